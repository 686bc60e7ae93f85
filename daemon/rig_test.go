package daemon

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/runtime"
)

// rig is a daemon that runs a file of the test's own over memory.
type rig struct {
	*Daemon
	t    *testing.T
	path string
	port *memDriver
	logs *observer.ObservedLogs
}

// plain is a file in which every part has its own lines, the graph last: what is cut
// off before its end is no file that a reload takes.
const plain = `pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
  backend "web-3" { address = "10.0.1.3" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
graph "edge" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, gre, tx]
    new_flow = [ct.miss, maglev-select, gre]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
`

// with answers plain with further blocks in front of the graph.
func with(blocks string) string {
	return strings.Replace(plain, "graph \"edge\"", blocks+"\ngraph \"edge\"", 1)
}

// newRig runs text until the test ends, and checks then that nothing was lost.
func newRig(t *testing.T, text string, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "lb.hcl"), port: &memDriver{}}
	r.write(text)
	var core zapcore.Core
	core, r.logs = observer.New(zap.InfoLevel)
	l := Source{Path: r.path}.Load()
	if l.File == nil {
		t.Fatal(l.Diags)
	}
	o := Options{Version: "test", Log: zap.New(core), Drivers: map[string]runtime.Driver{"xdp": r.port}, Loaded: l}
	file := l.File
	for _, f := range change {
		f(&o)
	}
	if o.LastGood != nil {
		file = o.LastGood.File
	}
	d, err := New(file, o)
	if err != nil {
		t.Fatal(err)
	}
	r.Daemon = d
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		atRest(t, d)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// conserved: what its graphs have received they have answered for.
func conserved(t *testing.T, d *Daemon) {
	t.Helper()
	for _, s := range d.Stats() {
		if err := s.CheckConservation(); err != nil {
			t.Error(err)
		}
	}
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// until waits for something that takes a moment.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: it does not come to that; the log says %v", what, r.said())
		}
	}
}

// said is what the log has, a line each.
func (r *rig) said() (all []string) {
	for _, e := range r.logs.All() {
		all = append(all, fmt.Sprint(e.Level, " ", e.Message, " ", e.ContextMap()))
	}
	return all
}

// logged tells whether one line of the log has all words.
func (r *rig) logged(words ...string) bool {
lines:
	for _, l := range r.said() {
		for _, w := range words {
			if !strings.Contains(l, w) {
				continue lines
			}
		}
		return true
	}
	return false
}

var vip80 = netip.MustParseAddr("203.0.113.80")

// flows makes n TCP packets of as many flows to the VIP, none of which begins one.
func flows(t testing.TB, n int) (all [][]byte) {
	for i := range n {
		src := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
		all = append(all, nodetest.TCP(t, src, vip80, uint16(1024+i), 80, func(h *layers.TCP) { h.ACK = true }, 1, 2, 3))
	}
	return all
}

// gone answers the backend that a frame was sent to in GRE over IPv4, and the flow's
// source port.
func gone(b []byte) (backend netip.Addr, sport uint16) {
	return netip.AddrFrom4([4]byte(b[30:34])), binary.BigEndian.Uint16(b[14+24+20:])
}

// traffic sends packets through the rig, as fast as they come out again, until it is
// stopped, and notes whether flows stay where they are.
type traffic struct {
	r      *rig
	frames [][]byte
	stop   chan struct{}
	done   sync.WaitGroup

	injected, came, strayed int
	where                   map[uint16]netip.Addr
	longest                 time.Duration // between two rounds
}

func (r *rig) traffic(frames [][]byte) *traffic {
	x := &traffic{r: r, frames: frames, stop: make(chan struct{}), where: map[uint16]netip.Addr{}}
	begun := make(chan struct{})
	x.done.Go(func() {
		last := time.Now()
		for rounds := 0; ; rounds++ {
			if rounds == 1 {
				close(begun)
			}
			select {
			case <-x.stop:
				return
			default:
			}
			r.port.port.Inject(0, frames...)
			x.injected += len(frames)
			for end := time.Now().Add(time.Minute); x.came < x.injected && time.Now().Before(end); {
				x.collect()
			}
			x.longest = max(x.longest, time.Since(last))
			last = time.Now()
			if x.came < x.injected {
				if rounds == 0 {
					close(begun)
				}
				return // lost: end tells
			}
		}
	})
	<-begun
	return x
}

func (x *traffic) collect() {
	sent := x.r.port.port.Sent(0)
	if len(sent) == 0 {
		time.Sleep(50 * time.Microsecond)
	}
	x.came += len(sent)
	for _, p := range sent {
		b, port := gone(p.Data)
		if was, ok := x.where[port]; ok && was != b {
			x.strayed++
		}
		x.where[port] = b
	}
}

// end stops the traffic. Every packet must have come out, every flow at one backend.
func (x *traffic) end() {
	x.r.t.Helper()
	close(x.stop)
	x.done.Wait()
	if x.came != x.injected || x.injected == 0 {
		s := x.r.Stats()[0]
		x.r.t.Errorf("%d of %d packets came out; drops %v", x.came, x.injected, s.Drops())
	}
	if x.strayed > 0 {
		x.r.t.Errorf("%d packets went to another backend than their flow's", x.strayed)
	}
}
