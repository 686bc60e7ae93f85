package streams

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// TestCountingTakesNoMemory: what every session costs for being counted, and for not
// being looked at, takes no memory.
func TestCountingTakesNoMemory(t *testing.T) {
	e, l := &Engine{}, &listening{}
	n := &node{counts: &counts{}}
	c := &conn{engine: e, block: newBlock("s"), listening: l}
	s := new(stream.Session)
	s.Reset(&c.client)
	s.Req = &stream.Request{}
	s.Status = 200
	if got := testing.AllocsPerRun(100, func() {
		w := e.follow(c, s)
		w.begin(place{})
		w.enter(n, s)
		w.leave(s, nil)
		c.over(n, s, w)
		w.drop()
	}); got != 0 {
		t.Errorf("it takes %v pieces of memory", got)
	}
	if n.of[graph.Succeeded].Load() != 101 {
		t.Errorf("%d sessions were counted", n.of[graph.Succeeded].Load())
	}
}

// TestOutcomes: each way for a session to end is told from the others.
func TestOutcomes(t *testing.T) {
	req := &stream.Request{}
	for _, c := range []struct {
		s    stream.Session
		want graph.Outcome
	}{
		{stream.Session{}, graph.Ended},
		{stream.Session{Record: stream.Record{Reason: "idle"}}, graph.Failed},
		{stream.Session{Req: req, Record: stream.Record{Status: 101}}, graph.Informed},
		{stream.Session{Req: req, Record: stream.Record{Status: 204}}, graph.Succeeded},
		{stream.Session{Req: req, Record: stream.Record{Status: 308}}, graph.Redirected},
		{stream.Session{Req: req, Record: stream.Record{Status: 404}}, graph.Refused},
		{stream.Session{Req: req, Record: stream.Record{Status: 503}}, graph.ServerError},
		{stream.Session{Req: req, Record: stream.Record{Status: 599, Reason: "no_backend"}}, graph.ServerError},
		{stream.Session{Req: req, Record: stream.Record{Status: 499}}, graph.Gone},
		{stream.Session{Req: req, Record: stream.Record{Status: 499, Cut: true}}, graph.Gone},
		{stream.Session{Req: req, Record: stream.Record{Status: 200, Cut: true}}, graph.Cut},
		{stream.Session{Req: req}, graph.Cut},
		{stream.Session{Req: req, Record: stream.Record{Status: 999}}, graph.Cut},
	} {
		if got := outcome(&c.s); got != c.want {
			t.Errorf("%+v is %v, want %v", c.s.Record, got, c.want)
		}
	}
}

// BenchmarkCounting is the cost of counting a session and of nobody looking at it.
func BenchmarkCounting(b *testing.B) {
	e, l := &Engine{}, &listening{}
	n := &node{counts: &counts{}}
	c := &conn{engine: e, block: newBlock("s"), listening: l}
	s := new(stream.Session)
	s.Reset(&c.client)
	s.Req, s.Status = &stream.Request{}, 200
	b.ReportAllocs()
	for b.Loop() {
		w := e.follow(c, s)
		for range 6 {
			w.enter(n, s)
			w.leave(s, nil)
		}
		c.over(n, s, w)
	}
}

// Backends that nobody uses any more take no memory, however many came and went.
func TestBackendsAreForgotten(t *testing.T) {
	var all registry
	all.init()
	kept := all.get(netip.MustParseAddrPort("192.0.2.1:80"))
	for i := range 1000 {
		all.get(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 80))
	}
	end := time.Now().Add(20 * time.Second)
	for n := byte(1); len(all.at) > 10; n++ {
		if time.Now().After(end) {
			t.Fatalf("%d are remembered", len(all.at))
		}
		runtime.GC()
		all.get(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, n}), 80))
		time.Sleep(time.Millisecond)
	}
	if all.get(kept.Addr) != kept {
		t.Error("one that is used is another one")
	}
}
