package streams_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	session "github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/runtime/streams"
)

// TestObserver: no more sessions are followed at the same time than are to be, each is
// told once it is over, and none is followed any more then; a connection that requests
// come by is none.
func TestObserver(t *testing.T) {
	release := make(chan struct{})
	b := serve(t, func(p *peer) {
		for p.head() != "«end»" {
			<-release
			p.send(ok)
		}
	})
	r := run(t, simple("", b.addr()))
	var told, asked atomic.Int64
	o := &streams.Observer{
		Most:  2,
		Admit: func(string, *session.Session) bool { asked.Add(1); return true },
		Tell: func(block string, s *session.Session, how graph.Outcome, steps []streams.Step, total int64) {
			if block != "s" || s.Backend == nil || how != graph.Succeeded || len(steps) != 3 || total <= 0 {
				t.Errorf("%s: %v after %d ns, %+v", block, how, total, steps)
			}
			told.Add(1)
		},
	}
	r.engine.Observe(o)
	following := func(n int64) {
		t.Helper()
		eventually(t, "sessions are followed", func() error {
			if got := o.Following(); got != n {
				return fmt.Errorf("%d, want %d", got, n)
			}
			return nil
		})
	}
	var all []*peer
	for i := range 4 {
		p := dial(t, r.addr("in"))
		p.send(get)
		all = append(all, p)
		eventually(t, "it is there", func() error {
			if n := r.engine.Stats()[0].Active; n != int64(i+1) {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		following(min(int64(i+1), 2))
	}
	close(release)
	for _, p := range all {
		if got := p.head(); got[:12] != "HTTP/1.1 200" {
			t.Errorf("%q", got)
		}
	}
	following(0)
	if told.Load() != 2 {
		t.Errorf("%d sessions were told", told.Load())
	}
	// All connections are open still. One more request is followed again.
	p := dial(t, r.addr("in"))
	if got := p.get(get); got != "200 ok" {
		t.Errorf("%q", got)
	}
	following(0)
	r.quiet()
	if told.Load() != 3 {
		t.Errorf("%d sessions were told", told.Load())
	}
	r.engine.Observe(nil)
	n := asked.Load()
	if got := p.get(get); got != "200 ok" || asked.Load() != n {
		t.Errorf("%q, asked %d times when nobody looks on", got, asked.Load()-n)
	}
	r.quiet()
}
