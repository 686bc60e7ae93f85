package runtime

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func TestStraightThrough(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> tx"), 1, nil)
	in := numbered("xx", 200)
	r.port().Inject(0, in...)
	r.settle()
	out := r.port().Sent(0)
	if len(out) != len(in) {
		t.Fatalf("%d of %d frames came out", len(out), len(in))
	}
	for i := range out {
		if !bytes.Equal(out[i].Data, in[i]) {
			t.Fatalf("frame %d changed or moved", i)
		}
	}
	s := r.conserved()
	want(t, "received", s.Received, 200)
	want(t, "sent", s.Sent, 200)
	want(t, "sent bytes", s.SentBytes, 200*60)
	want(t, "calls of tx", s.Node("tx").Calls, 4)
	want(t, "vectors of 64", s.Sizes[64], 3)
	want(t, "vectors of 8", s.Sizes[8], 1)
}

func TestHoldReleaseDrop(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> keeper", "keeper -> tx", "keeper.late -> tx"), 1, nil)
	r.port().Inject(0, frames("h1", "x1", "h2", "d1", "x2")...)
	r.settle()
	want(t, "sent at once", r.sent(0), "[x1 x2]")
	want(t, "held", r.conserved().Held, 3)
	r.tick()
	want(t, "sent after a tick", r.sent(0), "[]")
	r.tick()
	want(t, "sent after the second", r.sent(0), "[h1 h2]")
	s := r.conserved()
	want(t, "held", s.Held, 0)
	want(t, "drops", s.Drops(), "map[keeper.old:1]")
}

func TestMade(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> twin", "twin -> tx"), 1, nil)
	r.port().Inject(0, frames("c1", "x1", "c2")...)
	r.settle()
	want(t, "sent", r.sent(0), "[c1 x1 c2 C1 C2]")
	want(t, "made", r.conserved().Made, 2)
}

func TestNoFrame(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> twin", "twin -> tx"), 1, nil)
	l := r.loops[0]
	r.settle()
	r.spoilt = true
	for l.reserve = 0; len(l.free) > 0; l.free = l.free[:len(l.free)-1] { // as if all were in use
	}
	r.port().Inject(0, frames("c1", "x1")...)
	r.settle()
	want(t, "sent", r.sent(0), "[x1]")
	s := r.Stats()
	want(t, "drops", s.Drops(), "map[twin.no_frame:1]")
}

func TestUnansweredAndTwice(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> spread", "spread -> tx"), 1, nil)
	r.port().Inject(0, frames("u0", "20", "x0", "u1", "s0")...)
	r.settle()
	want(t, "sent", r.sent(0), "[20 x0 s0]")
	s := r.conserved()
	want(t, "drops", s.Drops(), "map[spread.unanswered:2]")
	want(t, "duplicate answers, and one of a lane that is not the node's", s.Node("spread").DuplicateAnswer, 2)
}

func TestPunt(t *testing.T) {
	g := func() *graph.Graph { return draw(t, 1, "rx -> spread", "spread -> tx") }
	r := newRig(t, g(), 1, nil)
	r.port().Inject(0, frames("k0", "x0")...)
	r.settle()
	want(t, "drops", func() any { s := r.conserved(); return s.Drops() }(), "map[spread.refused:1]")
	var got []byte
	r = newRig(t, g(), 1, func(o *Options) { o.Kernel = func(f []byte) bool { got = append(got, f[0]); return true } })
	r.port().Inject(0, frames("k0", "x0")...)
	r.settle()
	want(t, "to the kernel", string(got), "k")
	want(t, "kernel", r.conserved().Kernel, 1)
}

func TestPassTellHear(t *testing.T) {
	// One queue, three cores: cores 1 and 2 have no queue, and pass back to send.
	r := newRig(t, draw(t, 3, "rx -> spread", "spread -> tx"), 1, nil)
	r.port().Inject(0, frames("p1A", "p2B", "x0", "p1C", "a2", "p0D")...)
	r.settle()
	want(t, "sent", r.sent(0), "[x0 p0 p1 p1 p2 a2]")
	s := r.conserved()
	want(t, "rings", s.Census.Rings, 0)
	want(t, "told", s.Node("spread").Gauges["heard"], 4)
	want(t, "heard in order", r.loops[0].nodes[r.prog.byName["spread"]].Node.(*spread).heard, "[65 66 67 68]")
	// Frames came home.
	for _, l := range r.loops[1:] {
		want(t, "free at a core without a queue", len(l.free), l.own)
	}
}

func TestAfterSendOnce(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 1, nil)
	r.port().Inject(0, frames("B0", "x0", "b1", "B0")...)
	r.settle()
	want(t, "sent", r.sent(0), "[B0 x0 B0 b1]")
	at := func(core int) string {
		return string(r.loops[core].nodes[r.prog.byName["spread"]].Node.(*spread).after)
	}
	// The lane that was passed on with a backend is told where it left, in the
	// same pass, and not where it was sent.
	want(t, "told on core 0", []byte(at(0)), []byte{7, 9, 7})
	want(t, "told on core 1", at(1), "")
	r.conserved()
}

func TestAfterSendOnlyWhatWasSent(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> spread", "spread -> tx"), 1, nil)
	r.settle()
	r.port().Limit(1)
	r.port().Inject(0, frames("B0", "B0", "B0")...)
	r.settle()
	s := r.conserved()
	want(t, "sent", s.Sent, 1)
	want(t, "drops", s.Drops(), "map[tx.tx_full:2]")
	want(t, "told", r.loops[0].nodes[r.prog.byName["spread"]].Node.(*spread).after, []byte{7})
}

func TestRingFull(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 1, func(o *Options) {})
	n := meshFrames + 100
	r.port().Inject(0, numbered("p1", n)...)
	for range 10000 { // core 1 stands still
		r.Step(0)
		if r.port().Drained() {
			break
		}
		if r.loops[0].entries.len() == 0 && len(r.loops[0].free) == 0 {
			break
		}
	}
	r.settle()
	s := r.conserved()
	want(t, "sent and dropped", s.Sent+s.Dropped, n)
	if s.Dropped == 0 || s.Drops()["spread.ring_full"] != s.Dropped {
		t.Errorf("no drops, or for other reasons than a full ring: %v", s.Drops())
	}
}

func TestSwap(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> keeper", "keeper -> tx", "keeper.late -> tx"), 1, nil)
	r.port().Inject(0, frames("h1", "x1", "d1")...)
	r.settle()
	want(t, "sent", r.sent(0), "[x1]")
	// A node is put in between; the keeper keeps what it holds.
	if err := r.Swap(draw(t, 1, "rx -> twin", "twin -> keeper", "keeper -> tx", "keeper.late -> spread", "spread -> tx")); err != nil {
		t.Fatal(err)
	}
	want(t, "held", r.conserved().Held, 2)
	r.port().Inject(0, frames("c2", "h2")...)
	r.settle()
	want(t, "sent", r.sent(0), "[c2 C2]")
	r.tick()
	r.tick()
	want(t, "released", r.sent(0), "[h1 h2]")
	s := r.conserved()
	want(t, "drops", s.Drops(), "map[keeper.old:1]")
	want(t, "the keeper's packets", s.Node("keeper").Packets, 6)
	// The keeper goes, with a frame in its hands.
	r.port().Inject(0, frames("h3")...)
	r.settle()
	if err := r.Swap(draw(t, 1, "rx -> tx")); err != nil {
		t.Fatal(err)
	}
	r.port().Inject(0, frames("x4")...)
	r.settle()
	want(t, "sent", r.sent(0), "[x4]")
	s = r.conserved()
	want(t, "reload drops", s.Reload, 1)
	want(t, "held", s.Held, 0)
}

func TestSwapFindsTheWayOfRingEntries(t *testing.T) {
	g := draw(t, 2, "rx -> spread", "spread -> tx")
	r := newRig(t, g, 1, nil)
	r.port().Inject(0, frames("p1A", "p1B", "a1")...)
	for range 4 {
		r.Step(0) // the frames now wait in the ring to core 1
	}
	// Node numbers change: twin stands before spread now.
	if err := r.Swap(draw(t, 2, "rx -> twin", "twin -> spread", "spread -> keeper", "keeper -> tx", "keeper.late -> tx")); err != nil {
		t.Fatal(err)
	}
	r.settle()
	want(t, "sent", r.sent(0), "[p1 p1 a1]")
	r.conserved()
	// The node is gone: what has no outer header starts again at the parser, or, as
	// this graph has none, drops.
	r.port().Inject(0, frames("p1A")...)
	for range 4 {
		r.Step(0)
	}
	if err := r.Swap(draw(t, 2, "rx -> tx")); err != nil {
		t.Fatal(err)
	}
	r.settle()
	s := r.conserved()
	want(t, "reload drops", s.Reload, 1)
}

// What is prepared does nothing until it is committed, and not after another change.
func TestPrepare(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> tx"), 1, nil)
	with := draw(t, 1, "rx -> twin", "twin -> tx")
	first, err := r.Prepare(with)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Prepare(with)
	if err != nil {
		t.Fatal(err)
	}
	third, err := r.Prepare(with)
	if err != nil {
		t.Fatal(err)
	}
	r.port().Inject(0, frames("c1")...)
	r.settle()
	want(t, "sent before", r.sent(0), "[c1]")
	third.Abort()
	if err := second.Commit(); err != nil {
		t.Fatal(err)
	}
	r.port().Inject(0, frames("c2")...)
	r.settle()
	want(t, "sent after", r.sent(0), "[c2 C2]")
	if err := first.Commit(); err == nil || !strings.Contains(err.Error(), "meanwhile") {
		t.Errorf("a change of what is gone: %v", err)
	}
	r.conserved()
}

func TestSwapRefusals(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> tx"), 1, nil)
	g := draw(t, 2, "rx -> tx")
	g.Rings = 128
	var restart *ErrRestart
	if err := r.Swap(g); !errors.As(err, &restart) {
		t.Fatalf("got %v", err)
	} else {
		for _, w := range []string{"cores changes from 1 to 2", "rings changes from 64 to 128", "drain the node, restart"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
	bad := draw(t, 1, "rx -> spread") // a dead end
	if err := r.Swap(bad); err == nil {
		t.Error("a graph that does not check was taken")
	}
	r.port().Inject(0, frames("x1")...)
	r.settle()
	want(t, "the old graph still runs", r.sent(0), "[x1]")
	r.conserved()
}

func TestDiff(t *testing.T) {
	a := draw(t, 1, "rx -> keeper", "keeper -> tx", "keeper.late -> tx")
	b := draw(t, 1, "rx -> keeper", "keeper -> twin", "twin -> tx", "keeper.late -> tx")
	b.NetworkMTU = 1400
	p := Diff(a, b)
	want(t, "class", p.Class(), Live)
	for _, w := range []string{
		"live     graph test: network_mtu changes from 1500 to 1400", "live     edge keeper.next: leads to twin (was tx)", "live     node twin: is added (test-twin)",
	} {
		if !strings.Contains(p.String(), w) {
			t.Errorf("the plan lacks %q:\n%s", w, p)
		}
	}
	want(t, "the same graph", Diff(a, a).Class(), Keep)
	c := draw(t, 1, "rx -> tx")
	if !strings.Contains(Diff(a, c).String(), "node keeper: is removed") {
		t.Error("a removal is not planned")
	}
	c.Nodes[0].Config.(*portConfig).Port = "q"
	want(t, "another port", Diff(a, c).Class(), Restart)
}

func TestFailuresLeaveNothing(t *testing.T) {
	d := &memDriver{queues: 1, fail: errors.New("no such interface")}
	h := &heap{}
	placed := draw(t, 1, "rx -> tx")
	placed.Node("tx").Range.Filename, placed.Node("tx").Range.Start.Line = "a.hcl", 9
	placed.Node("rx").Range.Filename, placed.Node("rx").Range.Start.Line = "a.hcl", 7
	_, err := New(placed, Options{
		State: nil, Drivers: map[string]Driver{"mem": d}, Manual: true,
		Memory: func(n, chunk int) (Memory, error) { h.b = make([]byte, n*chunk); return h, nil },
	})
	if err == nil || err.Error() != fmt.Sprintf("a.hcl:7: graph %s, node rx: no such interface", placed.Name) || !errors.Is(err, d.fail) {
		t.Fatalf("got %v", err)
	}
	if !h.closed {
		t.Error("the memory stays")
	}
	_, err = New(draw(t, 1, "rx -> tx"), Options{Drivers: nil})
	if err == nil || !strings.Contains(err.Error(), `no driver "mem"`) {
		t.Fatalf("got %v", err)
	}
	g := draw(t, 64, "rx -> tx")
	g.Frames, g.Chunk = 1<<20, 4096
	if _, err = New(g, Options{Drivers: map[string]Driver{"mem": &memDriver{queues: 1}}}); err == nil || !strings.Contains(err.Error(), "4095 is the most") {
		t.Fatalf("got %v", err)
	}
}

// TestRunning runs loops on threads of their own: packets wake sleeping loops, a
// graph is swapped under traffic and nothing is lost.
func TestRunning(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 2, func(o *Options) { o.Manual, o.Clock = false, nil })
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // the loops sleep
	const rounds, each = 200, 50
	n := 0
	for i := range rounds {
		for q := range 2 {
			r.port().Inject(q, numbered([]string{"p0", "p1", "x0", "a1"}[i%4], each)...)
			n += each
		}
		// No more on the way than a ring holds: on a busy machine a core may be away
		// for long.
		for end := time.Now().Add(10 * time.Second); r.port().SentPackets()+1500 < uint64(n) && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		if i%8 == 7 {
			g := draw(t, 2, "rx -> spread", "spread -> tx")
			if i%16 == 7 {
				g = draw(t, 2, "rx -> twin", "twin -> spread", "spread -> keeper", "keeper -> tx", "keeper.late -> tx")
			}
			if err := r.Swap(g); err != nil {
				t.Fatal(err)
			}
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for r.port().SentPackets() < uint64(n) && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	s := r.conserved()
	want(t, "sent", s.Sent, n)
	want(t, "drops", s.Drops(), "map[]")
	if d := r.LastPass(); d > time.Second {
		t.Errorf("a loop has not passed for %v", d)
	}
	r.Stop()
	if !r.m.closed {
		t.Error("the memory stays")
	}
	r.Stop() // twice does no harm
}

// TestOrder: packets of one way stay in order through holds of others and passes.
func TestOrder(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 1, nil)
	r.port().Inject(0, numbered("p1", 500)...)
	r.settle()
	for i, p := range r.port().Sent(0) {
		if n := binary.BigEndian.Uint32(p.Data[8:]); n != uint32(i) {
			t.Fatalf("packet %d came as number %d", n, i)
		}
	}
}

type recorder struct{ lines []string }

func (o *recorder) add(words ...string) { o.lines = append(o.lines, strings.Join(words, " ")) }
func (o *recorder) Received(_ int, n *graph.Instance, _ *packet.Vector, _ packet.Lanes) {
	o.add("received", n.Name)
}
func (o *recorder) Visited(_ int, n *graph.Instance, _ *packet.Vector, _ packet.Lanes) {
	o.add("visited", n.Name)
}
func (o *recorder) Held(_ int, n *graph.Instance, _ *packet.Record)      { o.add("held", n.Name) }
func (o *recorder) Made(_ int, n *graph.Instance, _ *packet.Record)      { o.add("made", n.Name) }
func (o *recorder) Passed(_, _ int, n *graph.Instance, _ *packet.Record) { o.add("passed", n.Name) }
func (o *recorder) Ended(_ int, n *graph.Instance, _ *packet.Record, how Ending, reason string) {
	o.add("ended", n.Name, how.String(), reason)
}

func TestObserver(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> twin", "twin -> keeper", "keeper -> tx", "keeper.late -> tx"), 1, nil)
	o := &recorder{}
	r.Observe(o)
	r.port().Inject(0, frames("c1")...)
	r.settle()
	want(t, "a copied frame", strings.Join(o.lines, "; "),
		"received rx; made twin; visited twin; visited keeper; ended tx sent ; visited tx; visited keeper; ended tx sent ; visited tx")
	o.lines = nil
	r.port().Inject(0, frames("d1")...)
	r.settle()
	r.tick()
	r.tick()
	want(t, "a held frame", strings.Join(o.lines, "; "), "received rx; visited twin; held keeper; visited keeper; ended keeper dropped old")
	o.lines = nil
	r.port().Inject(0, frames("c1", "x1", "c2")...)
	r.settle()
	want(t, "who made what", strings.Join(o.lines[:7], "; "),
		"received rx; made twin; visited twin; visited twin; made twin; visited twin; visited keeper")
	r.Observe(nil)
	for name, c := range map[string]struct{ way, frame, want string }{
		"unanswered": {"spread", "u0", "received rx; visited spread; ended spread dropped unanswered"},
		"no punt":    {"aside", "a0", "received rx; visited aside; ended aside dropped no_punt"},
	} {
		r := newRig(t, draw(t, 1, "rx -> "+c.way, c.way+" -> tx"), 1, nil)
		o := &recorder{}
		r.Observe(o)
		r.port().Inject(0, frames(c.frame)...)
		r.settle()
		want(t, name, strings.Join(o.lines, "; "), c.want)
	}
}

// TestNoAllocations: a step with a full vector allocates nothing.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> spread", "spread -> keeper", "keeper -> tx", "keeper.late -> tx"), 1, nil)
	r.port().Discard()
	in := numbered("x0", 64)
	r.port().Repeat(0, 1000, in...)
	r.Step(0)
	if a := testing.AllocsPerRun(500, func() { r.Step(0) }); a != 0 {
		t.Errorf("%v allocations a step", a)
	}
}

func BenchmarkDispatch(b *testing.B) {
	for _, n := range []int{0, 4, 8} {
		b.Run(strings.Repeat("spread ", n)+"rx tx", func(b *testing.B) {
			lines := []string{"rx -> tx"}
			last := "rx"
			for i := range n {
				name := "count" + string(rune('0'+i))
				if i == 0 {
					lines = nil
				}
				lines = append(lines, last+" -> "+name)
				last = name
			}
			if n > 0 {
				lines = append(lines, last+" -> tx")
			}
			r := newRig(b, draw(b, 1, lines...), 1, func(o *Options) { o.Drivers["mem"].(*memDriver).poison = false })
			r.port().Discard()
			r.port().Repeat(0, b.N, numbered("x0", 64)...)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				r.Step(0)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
		})
	}
}

// BenchmarkNode is what the engine itself costs for each node that a packet passes: the
// call, the counters, the clock on a vector in 64. It is the difference between a graph
// with eight nodes that do nothing and one without, which take turns.
func BenchmarkNode(b *testing.B) {
	const nodes, steps = 8, 16
	lines := []string{"rx -> count0"}
	for i := range nodes - 1 {
		lines = append(lines, fmt.Sprintf("count%d -> count%d", i, i+1))
	}
	var rigs [2]*rig
	for i, l := range [][]string{{"rx -> tx"}, append(lines, fmt.Sprintf("count%d -> tx", nodes-1))} {
		rigs[i] = newRig(b, draw(b, 1, l...), 1, func(o *Options) { o.Drivers["mem"].(*memDriver).poison = false })
		rigs[i].port().Discard()
		rigs[i].port().Repeat(0, b.N*steps, numbered("x0", packet.Size)...)
	}
	more := make([]time.Duration, b.N)
	b.ResetTimer()
	for n := range more {
		for i, r := range rigs {
			begun := time.Now()
			for range steps {
				r.Step(0)
			}
			more[n] += time.Duration(2*i-1) * time.Since(begun)
		}
	}
	slices.Sort(more) // the median: other work on the machine meets one of the two
	b.ReportMetric(float64(more[len(more)/2].Nanoseconds())/steps/packet.Size/nodes, "ns/packet-node")
}

type nothing struct{}

func (nothing) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[0] = in }

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-count", Summary: "does nothing in tests",
		Outputs: []graph.Output{{Name: "next"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return nothing{}, nil }, nil
		},
	})
}
