package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// What the loop promises about what it keeps: frames, columns, counts, watchers,
// and the heartbeat.

// watcher watches the state, and wants to be closed.
type watcherConfig struct {
	Fail string `hcl:"fail,optional"`
}

type watcher struct{ config watcherConfig }

var watchersOpen int

func (watcher) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[0] = in }
func (watcher) Close() error                                                  { watchersOpen--; return nil }

// chainer takes chains off frames that begin with 't'.
type chainer struct{ core graph.Core }

func (n chainer) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	for m := in; m != 0; m &= m - 1 {
		if i := m.Next(); v.Bytes(i)[0] == 't' {
			n.core.Unchain(v, i)
			n.core.Count(0, 1)
		}
	}
}

func init() {
	graph.Register(graph.Def[watcherConfig]{
		Kind: "test-watcher", Summary: "watches in tests",
		Outputs: []graph.Output{{Name: "next"}},
		Packets: func(c watcherConfig, e *graph.Env) (graph.Maker, error) {
			e.Watch(func(*state.Snapshot) {})
			if c.Fail == "build" {
				return nil, errors.New("it does not build")
			}
			return func(core graph.Core) (graph.Node, error) {
				if c.Fail == "make" && core.ID() == 1 {
					return nil, errors.New("it does not make")
				}
				watchersOpen++
				return watcher{c}, nil
			}, nil
		},
	})
	graph.Register(graph.Def[struct{}]{
		Kind: "test-chainer", Summary: "takes chains off in tests",
		Outputs:  []graph.Output{{Name: "next"}},
		Counters: []graph.Counter{{Name: "taken"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return chainer{c}, nil }, nil
		},
	})
}

// The last frames of a core are for its nodes, not for the rings of its queues.
func TestReceiveLeavesAReserve(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> twin", "twin -> tx"), 1, nil)
	r.settle()
	l := r.loops[0]
	if l.reserve < 64 {
		t.Fatalf("a reserve of %d frames, and the graph may make 64", l.reserve)
	}
	kept := l.free[l.reserve+1:]
	l.free = l.free[:l.reserve+1]
	r.port().Stop() // what is sent stays in the transmit ring
	r.port().Inject(0, numbered("x", 32)...)
	r.settle()
	want(t, "frames in the fill ring", l.queues[0].Census().Fill, 64-32+1)
	want(t, "free frames", len(l.free), l.reserve)
	l.free = append(l.free, kept...)
	r.port().Limit(0)
}

// What the packets of another vector left in the columns is none of the next one's.
func TestColumnsBeginClean(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> spread", "spread -> tx"), 1, nil)
	l := r.loops[0]
	r.port().Inject(0, frames("B0")...)
	r.settle()
	l.v.VIP[0] = 5
	o := &columns{}
	r.Observe(o)
	r.port().Inject(0, frames("x0")...)
	r.settle()
	want(t, "services and backends", o.seen, "[[0 0]]")
	want(t, "told", l.nodes[r.prog.byName["spread"]].Node.(*spread).after, []byte{7})
}

// columns takes down service and backend of what is received.
type columns struct {
	recorder
	seen [][2]uint32
}

func (o *columns) Received(_ int, _ *graph.Instance, v *packet.Vector, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		o.seen = append(o.seen, [2]uint32{v.VIP[m.Next()], v.Backend[m.Next()]})
	}
}

func TestBytesOfDrops(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> keeper", "keeper -> tx", "keeper.late -> tx", "keeper.late -> tx"), 1, nil)
	r.port().Limit(1)
	r.port().Inject(0, numbered("x0", 3)...)
	r.port().Inject(0, append(frames("d1"), make([]byte, 100))...)
	r.settle()
	r.port().Limit(0)
	r.tick()
	r.tick()
	s := r.conserved()
	bytes := func(node, output string) uint64 {
		for _, o := range s.Node(node).Outputs {
			if o.Name == output {
				return o.Bytes
			}
		}
		t.Fatalf("%s has no output %s", node, output)
		return 0
	}
	want(t, "drops", s.Drops(), "map[keeper.old:1 tx.tx_full:3]")
	want(t, "bytes of full rings", bytes("tx", "tx_full"), 2*60+100)
	want(t, "bytes of held packets", bytes("keeper", "old"), 60)
	want(t, "bytes received", s.ReceivedBytes, 4*60+100)
}

// Frames of other cores come home as fast as they are sent there.
func TestFramesComeHomeInOnePass(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 2, nil)
	r.settle()
	l := r.loops[0]
	frames := slices.Clone(l.free[len(l.free)-200:])
	l.free = l.free[:len(l.free)-200]
	before := len(l.free)
	r.mesh[1][0].home.PushBatch(frames)
	r.Step(0)
	want(t, "frames on their way home", r.mesh[1][0].home.Len(), 0)
	want(t, "frames at home", len(l.free), before+200)
	r.conserved()
}

// long makes frames of 4000 bytes, which take three of the rig's chunks.
func long(words ...string) (all [][]byte) {
	for _, w := range words {
		b := make([]byte, 4000)
		copy(b, w)
		all = append(all, b)
	}
	return all
}

// All frames of a packet share its fate.
func TestChains(t *testing.T) {
	lines := []string{"rx -> chainer", "chainer -> keeper", "keeper -> spread", "keeper.late -> spread", "spread -> tx"}
	r := newRig(t, draw(t, 1, lines...), 1, nil)
	r.loops[0].perBackend = make([]Traffic, 8)
	r.port().Inject(0, long("h1", "d1", "B0", "u1", "t1")...)
	r.settle()
	r.conserved()
	r.tick()
	r.tick()
	var lengths []int
	for _, p := range r.port().Sent(0) {
		lengths = append(lengths, len(p.Data))
	}
	want(t, "sent", lengths, "[4000 1792 4000]")
	s := r.conserved()
	want(t, "bytes sent", s.SentBytes, 9792)
	want(t, "to the backend", s.PerBackend[7], "{1 4000}")
	want(t, "drops", s.Drops(), "map[keeper.old:1 spread.unanswered:1]")
	// A node goes that holds some.
	r.port().Inject(0, long("h2", "h3")...)
	r.settle()
	if err := r.Swap(draw(t, 1, "rx -> chainer", "chainer -> tx")); err != nil {
		t.Fatal(err)
	}
	r.settle()
	s = r.conserved()
	want(t, "reload drops", s.Reload, 2)
	chainer := s.Node("chainer")
	want(t, "count over the change", chainer.Counter("taken"), 1)
	// All frames are back, and can be received into.
	r.port().Inject(0, long("x")...)
	r.settle()
	want(t, "sent", len(r.port().Sent(0)), 1)
}

// Nodes are closed, and no longer told of snapshots, once they are gone: after the
// stop, after a change, and after one that failed or was given up.
func TestNothingStaysOpen(t *testing.T) {
	watching := 0
	watch := func(o *Options) {
		o.Watch = func(f func(*state.Snapshot)) func() {
			watching++
			f(o.State.Load())
			return func() { watching-- }
		}
	}
	open := func(when string, nodes, watches int) {
		t.Helper()
		want(t, "open nodes "+when, watchersOpen, nodes)
		want(t, "watches "+when, watching, watches)
	}
	with := func(fail string) *graph.Graph {
		g := draw(t, 2, "rx -> watcher1", "watcher1 -> watcher2", "watcher2 -> tx")
		g.Node("watcher2").Config.(*watcherConfig).Fail = fail
		return g
	}
	open("at first", 0, 0)
	for _, fail := range []string{"build", "make"} {
		if _, err := New(with(fail), Options{
			State: new(state.Cell), Drivers: map[string]Driver{"mem": &memDriver{queues: 1}}, Manual: true,
			Watch: func(func(*state.Snapshot)) func() {
				watching++
				return func() { watching-- }
			},
			Memory: func(n, chunk int) (Memory, error) { return &heap{b: make([]byte, n*chunk)}, nil },
		}); err == nil || !strings.Contains(err.Error(), "it does not "+fail) {
			t.Fatalf("got %v", err)
		}
		open("where one does not "+fail, 0, 0)
	}
	r := newRig(t, with(""), 1, watch)
	open("in the first graph", 4, 2)
	for _, fail := range []string{"build", "make"} {
		if _, err := r.Prepare(with(fail)); err == nil || !strings.Contains(err.Error(), "it does not "+fail) {
			t.Fatalf("got %v", err)
		}
		open("where a change does not "+fail, 4, 2)
	}
	c, err := r.Prepare(with(""))
	if err != nil {
		t.Fatal(err)
	}
	open("while a change is prepared", 8, 4)
	c.Abort()
	open("after it was given up", 4, 2)
	if err := r.Swap(with("")); err != nil {
		t.Fatal(err)
	}
	open("after a change", 4, 2)
	if err := r.Swap(draw(t, 2, "rx -> watcher1", "watcher1 -> tx")); err != nil {
		t.Fatal(err)
	}
	open("with one of them", 2, 1)
	r.Stop()
	open("after the stop", 0, 0)
}

// A loop that is about to sleep looks once more for what others have sent.
func TestSleepLooksAtTheRings(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 1, nil)
	l, w := r.loops[1], &r.mesh[0][1]
	least := func() time.Duration {
		least := time.Hour
		for range 5 {
			begun := time.Now()
			l.sleep(l.rest(true))
			least = min(least, time.Since(begun))
		}
		return least
	}
	const long = sleepMost * time.Millisecond / 2
	// A signal ends a sleep early, so one that is long enough will do.
	most := time.Duration(0)
	for begun := time.Now(); most < long && time.Since(begun) < 5*time.Second; {
		at := time.Now()
		woken := l.sleep(l.rest(true))
		most = max(most, time.Since(at))
		if woken && time.Since(at) >= sleepMost*time.Millisecond {
			t.Error("time was up, and it says that it was woken")
		}
	}
	if most < long {
		t.Errorf("with nothing to do it sleeps %v", most)
	}
	for name, ring := range map[string]struct{ push, pop func() }{
		"a frame":        {func() { w.frames.Push(1) }, func() { w.frames.Pop() }},
		"a message":      {func() { w.told.Push(told{}) }, func() { w.told.Pop() }},
		"a frame's home": {func() { w.home.Push(1) }, func() { w.home.Pop() }},
	} {
		ring.push()
		if d := least(); d > long {
			t.Errorf("with %s in its ring it sleeps %v", name, d)
		}
		if !l.sleep(l.rest(true)) {
			t.Errorf("with %s in its ring it says that time was up", name)
		}
		ring.pop()
	}
	// Without free frames it looks for completions soon.
	free := l.free
	l.free = l.free[:l.reserve]
	if d := least(); d > long {
		t.Errorf("without free frames it sleeps %v", d)
	}
	l.free = free
}

// The slowest loop counts, and each of them by its own heartbeat.
func TestLastPass(t *testing.T) {
	for still := range 3 {
		r := newRig(t, draw(t, 3, "rx -> tx"), 1, nil)
		r.clock += 2e9
		for c := range 3 {
			if c != still {
				r.Step(c)
			}
		}
		want(t, "since the last pass of a loop that stands still", r.LastPass(), 2*time.Second)
		r.Step(still)
		want(t, "since the last pass when all have passed", r.LastPass(), "0s")
		r.Stop()
	}
}

// A node of the same name and another kind knows nothing of what its predecessor
// had on its way.
func TestAnotherKindTakesNothingOver(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 1, nil)
	r.port().Inject(0, frames("p1A", "a1")...)
	r.Step(0) // the frames now wait in the ring to core 1
	g := draw(t, 2, "rx -> twin", "twin -> tx")
	g.Node("twin").Name = "spread"
	if err := r.Swap(g); err != nil {
		t.Fatal(err)
	}
	r.settle()
	s := r.conserved()
	want(t, "reload drops", s.Reload, 2)
	want(t, "packets of the other", s.Node("spread").Packets, 0)
}

// Packets that were released behind different outputs go different ways, also when
// they are entered together.
func TestEntriesKeepTheirOutputs(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> fork", "fork -> spread", "fork.other -> tx", "spread -> tx"), 1, nil)
	r.port().Inject(0, frames("u1", "k1", "u2", "k2")...)
	r.settle()
	want(t, "sent", r.sent(0), "[k1 k2]") // which spread would refuse
	s := r.conserved()
	want(t, "drops", s.Drops(), "map[spread.unanswered:2]")
}

// A change that does not fit what runs is refused, and nothing changes.
func TestChangesThatDoNotFit(t *testing.T) {
	g := func(cores, ring, mtu int) *graph.Graph {
		g := draw(t, 0, "rx -> wide", "wide -> tx")
		*g.Node("wide").Config.(*wideConfig) = wideConfig{cores, ring}
		g.NetworkMTU = mtu
		return g
	}
	r := newRig(t, g(2, 64, 1400), 1, func(o *Options) { o.Drivers["mem"].(*memDriver).mtu = 1450 })
	want(t, "loops", r.Cores(), 2)
	for name, c := range map[string]struct {
		to      *graph.Graph
		restart bool
		says    string
	}{
		"more cores":    {g(3, 64, 1400), true, "node wide works on 3 cores, and 2 run"},
		"a larger ring": {g(2, 2*meshFrames, 1400), true, "rings between cores grow from 2048 to 4096"},
		"a larger MTU":  {g(2, 64, 1451), false, "its MTU is 1450, and network_mtu 1451"},
	} {
		var restart *ErrRestart
		if err := r.Swap(c.to); err == nil || errors.As(err, &restart) != c.restart || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, to := range map[string]*graph.Graph{
		"fewer cores": g(1, 64, 1400), "a smaller ring": g(2, 32, 1400), "all that the MTU carries": g(2, 64, 1450),
	} {
		if err := r.Swap(to); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(g(2, 64, 1451), Options{
		State: new(state.Cell), Drivers: map[string]Driver{"mem": &memDriver{queues: 1, mtu: 1450}}, Manual: true,
		Memory: func(n, chunk int) (Memory, error) { return &heap{b: make([]byte, n*chunk)}, nil },
	}); err == nil || !strings.Contains(err.Error(), "its MTU is 1450") {
		t.Errorf("a first graph with a larger MTU: %v", err)
	}
}

// wide wants cores, and a ring between them.
type wideConfig struct {
	Cores int `hcl:"cores,optional"`
	Ring  int `hcl:"ring,optional"`
}

func init() {
	graph.Register(graph.Def[wideConfig]{
		Kind: "test-wide", Summary: "wants cores in tests",
		Outputs: []graph.Output{{Name: "next"}},
		Cores:   func(c wideConfig) int { return c.Cores },
		Ring:    func(c wideConfig) int { return c.Ring },
		Packets: func(wideConfig, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return nothing{}, nil }, nil
		},
	})
}

// fork passes frames to core 1, those with 'u' behind next, others behind other.
type fork struct{ core graph.Core }

func (n fork) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for m := in; m != 0; m &= m - 1 {
		i := m.Next()
		o := 1
		if v.Bytes(i)[0] == 'u' {
			o = 0
		}
		n.core.Pass(1, v, i, o)
	}
}

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-fork", Summary: "parts frames in tests",
		Outputs: []graph.Output{{Name: "next"}, {Name: "other"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return fork{c}, nil }, nil
		},
	})
}

// A reload changes how long a loop gathers.
func TestGatherIsReloaded(t *testing.T) {
	g := func(gather time.Duration) *graph.Graph {
		g := draw(t, 1, "rx -> tx")
		g.Gather = gather
		return g
	}
	const gather = 20 * time.Millisecond
	r := running(t, g(gather), 1)
	sent := uint64(0)
	trips := func(n int) (all, least time.Duration) {
		least = time.Hour
		for i := range n {
			begun := time.Now()
			r.port().Inject(0, frames("x0")...)
			for sent++; r.port().SentPackets() < sent; {
				if time.Since(begun) > 10*time.Second {
					t.Fatal("a packet is not sent")
				}
				time.Sleep(50 * time.Microsecond)
			}
			d := time.Since(begun)
			if all += d; i > 0 { // before the first there was nothing to wait for
				least = min(least, d)
			}
		}
		return all, least
	}
	if all, _ := trips(6); all < 4*gather {
		t.Errorf("6 packets one after the other took %v with gather = %v", all, gather)
	}
	if err := r.Swap(g(0)); err != nil {
		t.Fatal(err)
	}
	if _, least := trips(20); least > gather/2 {
		t.Errorf("each packet took %v and more after a reload to gather = 0s", least)
	}
	if err := r.Swap(g(gather)); err != nil {
		t.Fatal(err)
	}
	if all, _ := trips(6); all < 4*gather {
		t.Errorf("6 packets one after the other took %v after a reload to gather = %v", all, gather)
	}
}

// What needs a restart is told from what does not.
func TestDiffClasses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*graph.Graph)
		class  Class
	}{
		"another mode":       {func(g *graph.Graph) { g.Node("rx").Config.(*portConfig).Mode = "generic" }, Restart},
		"more queues":        {func(g *graph.Graph) { g.Node("rx").Config.(*portConfig).Queues = 2 }, Restart},
		"another chunk":      {func(g *graph.Graph) { g.Chunk = 4096 }, Restart},
		"more frames":        {func(g *graph.Graph) { g.Frames++ }, Restart},
		"other processors":   {func(g *graph.Graph) { g.Pin = []int{1} }, Restart},
		"another gather":     {func(g *graph.Graph) { g.Gather = time.Millisecond }, Live},
		"another MTU":        {func(g *graph.Graph) { g.NetworkMTU = 1400 }, Live},
		"nothing whatsoever": {func(g *graph.Graph) {}, Keep},
	} {
		g := func() *graph.Graph {
			g := draw(t, 1, "rx -> tx")
			for _, n := range g.Nodes {
				*n.Config.(*portConfig) = portConfig{Port: "p", Mode: "native", Queues: 1}
			}
			return g
		}
		to := g()
		c.change(to)
		if p := Diff(g(), to); p.Class() != c.class {
			t.Errorf("%s: %v, want %v\n%s", name, p.Class(), c.class, p)
		}
	}
}

// part leads frames that begin with 'u' behind next, others behind other, with a backend.
type part struct{ core graph.Core }

var parted []string

func (n part) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for m := in; m != 0; m &= m - 1 {
		i := m.Next()
		parted = append(parted, fmt.Sprint(n.core.Now(), v.Now, v.Port[i]))
		v.Backend[i] = 3
		o := 1
		if v.Bytes(i)[0] == 'u' {
			o = 0
		}
		out[o] |= packet.Lane(i)
	}
}

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-part", Summary: "parts frames without a core in tests",
		Outputs: []graph.Output{{Name: "next"}, {Name: "other"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return part{core: c}, nil }, nil
		},
	})
}

// Nodes are told of what was sent only where it has come by them in the same pass.
func TestAfterSendOfVisitors(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> part", "part -> watcher", "watcher -> told", "part.other -> tx", "told -> tx"), 1, nil)
	told := r.loops[0].nodes[r.prog.byName["told"]].Node.(*toldNode)
	for _, f := range []string{"u1", "x1", "u2", "x2"} {
		r.port().Inject(0, frames(f)...)
		r.settle()
	}
	want(t, "told", told.lanes, "[1 1]")
	r.port().Inject(0, frames("x1", "u1", "x2", "u2")...)
	r.settle()
	want(t, "told of those in the middle", told.lanes, "[1 1 10]")
}

// A node that names flags is told of all lanes of vectors that have one of them, and of
// no others.
func TestAfterSendOfMarkedVectors(t *testing.T) {
	toldMark = packet.Malformed
	defer func() { toldMark = 0 }()
	r := newRig(t, draw(t, 1, "rx -> part", "part -> told", "part.other -> tx", "told -> tx"), 1, nil)
	told := r.loops[0].nodes[r.prog.byName["told"]].Node.(*toldNode)
	for _, f := range []string{"u1", "u2", "u1"} {
		r.port().Inject(0, frames(f)...)
		r.settle()
		r.loops[0].v.Flags = [packet.Size]packet.Flags{}
	}
	want(t, "told", told.lanes, "[1]")
	r.port().Inject(0, frames("u1", "u2", "u1")...)
	r.settle()
	want(t, "told of a vector with one in the middle", told.lanes, "[1 7]")
}

// toldNode takes down what it is told. It marks packets that end in 2, if it has a mark.
type toldNode struct {
	lanes []packet.Lanes
	mark  packet.Flags
}

// toldMark is the mark of those that are made.
var toldMark packet.Flags

func (n *toldNode) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	for l := in; l != 0; l &= l - 1 {
		if i := l.Next() & 63; v.Bytes(i)[1] == '2' {
			v.Flags[i] |= n.mark
		}
	}
}
func (n *toldNode) AfterSend(_ *packet.Vector, lanes packet.Lanes) { n.lanes = append(n.lanes, lanes) }
func (n *toldNode) Marks() packet.Flags                            { return n.mark }

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-told", Summary: "is told in tests",
		Outputs: []graph.Output{{Name: "next"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return &toldNode{mark: toldMark}, nil }, nil
		},
	})
}

// Lanes bear the number of the port that received them, and a port with a clock of
// its own sets that of all nodes.
func TestPortsNumberAndClock(t *testing.T) {
	g := draw(t, 1, "rx1 -> part", "rx2 -> part", "part -> tx", "part.other -> tx")
	g.Node("rx2").Config.(*portConfig).Port = "q"
	r := newRig(t, g, 1, func(o *Options) { o.Drivers["mem"].(*memDriver).clock = true })
	parted = nil
	r.port().InjectAt(0, 5e9, frames("x1")...)
	r.settle()
	r.d.ports["q"].InjectAt(0, 7e9, frames("x2", "u2")...)
	r.settle()
	want(t, "core's time, vector's time and port", parted, "[5000000000 5000000000 0 7000000000 7000000000 1 7000000000 7000000000 1]")
}

// There are frames for the rings of all queues.
func TestFramesForAllQueues(t *testing.T) {
	for _, queues := range []int{1, 2, 3, 5} {
		r := newRig(t, draw(t, 1, "rx -> tx"), queues, nil)
		r.settle()
		for _, l := range r.loops {
			if rings := len(l.queues) * 2 * 64; int(l.own)-rings < l.reserve+256 {
				t.Errorf("%d queues: a core with %d rings has %d frames", queues, 2*len(l.queues), l.own)
			}
		}
	}
}

// Whoever sends to a core that sleeps wakes it: frames, messages, and frames that
// come home.
func TestSendersWake(t *testing.T) {
	r := newRig(t, draw(t, 2, "rx -> spread", "spread -> tx"), 2, nil)
	r.settle()
	woken := func(l *Loop) bool {
		var n [8]byte
		k, _ := unix.Read(l.waker.fd(), n[:])
		return k == 8
	}
	sleeps := func(c int, is bool) { r.loops[c].sleeping.Store(is) }
	sleeps(1, true)
	r.port().Inject(0, frames("x1")...)
	r.Step(0)
	want(t, "woken for nothing", woken(r.loops[1]), false)
	r.port().Inject(0, frames("a1")...)
	r.Step(0)
	want(t, "woken by a frame", woken(r.loops[1]), true)
	sleeps(1, false)
	sleeps(0, true)
	for range 2 {
		r.Step(1) // sends it, takes it back and sends it home
	}
	want(t, "woken by a frame that comes home", woken(r.loops[0]), true)
	r.port().Inject(1, frames("p1M")...) // tells core 0 of it
	r.Step(1)
	want(t, "woken by a message", woken(r.loops[0]), true)
	sleeps(0, false)
}

// counter counts ticks.
type counter struct{ n atomic.Int64 }

func (c *counter) Tick(int64) { c.n.Add(1) }

// A loop without work ticks once more soon, so that what has come is told, and then as
// often as if it slept for shorter; without free frames it ticks no more often than that.
func TestTicksWhileItSleeps(t *testing.T) {
	for name, starved := range map[string]bool{"at rest": false, "without free frames": true} {
		r := newRig(t, draw(t, 1, "rx -> keeper", "keeper -> tx", "keeper.late -> tx"), 1, func(o *Options) { o.Manual, o.Clock = false, nil })
		l, c := r.loops[0], new(counter)
		l.nodes[l.tickers[0]].ticker = c
		if starved {
			l.reserve = len(l.free)
		}
		begun := time.Now()
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		for c.n.Load() < 1 && time.Since(begun) < 30*time.Second {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begun); took > sleepMost*time.Millisecond/2 {
			t.Errorf("%s: the first tick comes after %v", name, took)
		}
		time.Sleep(3 * sleepMost * time.Millisecond)
		seconds := time.Since(begun).Seconds()
		least, most := 5*seconds, 50*seconds
		if starved {
			most = 150 * seconds // it is awake, and ticks every 10 ms
		}
		if n := float64(c.n.Load()); n < least || n > most {
			t.Errorf("%s: %.0f ticks in %.1f s", name, n, seconds)
		}
		r.Stop()
	}
}
