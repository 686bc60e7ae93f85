package runtime

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
)

// The kinds of these tests work on frames whose first byte says what is to become
// of them, so that a test reads as a list of frames.

type portConfig struct {
	Port   string `hcl:"port,optional"`
	Mode   string `hcl:"mode,optional"`
	Queues int    `hcl:"queues,optional"`
}

func (c portConfig) spec() graph.PortSpec {
	return graph.PortSpec{Driver: "mem", Name: c.Port, Mode: c.Mode, Queues: c.Queues}
}

// rx receives from the queues of its core in turn.
type rx struct {
	queues []graph.Queue
	turn   int
}

func (n *rx) Process(v *packet.Vector, _ packet.Lanes, out []packet.Lanes) {
	for range n.queues {
		q := n.queues[n.turn]
		n.turn = (n.turn + 1) % len(n.queues)
		if c := q.Receive(v); c > 0 {
			out[0] = packet.All(c)
			return
		}
	}
}

// tx sends by its core's first queue, or passes to core 0.
type tx struct {
	core graph.Core
	q    graph.Queue
}

func (n *tx) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	if n.q == nil {
		for m := in; m != 0; m &= m - 1 {
			if !n.core.Pass(0, v, m.Next(), -1) {
				out[1] |= packet.Lane(m.Next())
			}
		}
		return
	}
	taken := n.q.Transmit(v, in)
	n.core.Sent(v, taken)
	out[0] = in &^ taken
}

func queuesOf(p graph.Port, c graph.Core) (mine []graph.Queue) {
	for q := c.ID(); q < p.Queues(); q += c.Cores() {
		mine = append(mine, p.Queue(q))
	}
	return mine
}

// keeper holds frames that begin with 'h', for two ticks; 'g' frames are released
// by name "late"; 'd' frames are dropped when they were held long enough.
type keeper struct {
	core   graph.Core
	frames []uint32
	ticks  int
}

func (n *keeper) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for m := in; m != 0; m &= m - 1 {
		i := m.Next()
		if b := v.Bytes(i)[0]; b == 'h' || b == 'd' {
			n.frames = append(n.frames, n.core.Hold(v, i))
		} else {
			out[0] |= packet.Lane(i)
		}
	}
}

func (n *keeper) Tick(int64) {
	if n.ticks++; n.ticks < 2 {
		return
	}
	n.ticks = 0
	for _, f := range n.frames {
		r := n.core.Held(f)
		if n.core.Mem()[r.Start] == 'd' {
			n.core.DropHeld(f, 2)
		} else {
			n.core.Release(f, 1)
		}
	}
	n.frames = n.frames[:0]
}

func (n *keeper) Inherit(old graph.Node) { n.frames = old.(*keeper).frames }

// twin makes a copy of frames that begin with 'c', with a 'C' in front.
type twin struct{ core graph.Core }

func (n *twin) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	for m := in; m != 0; m &= m - 1 {
		i := m.Next()
		b := v.Bytes(i)
		if b[0] != 'c' {
			continue
		}
		f, ok := n.core.Alloc()
		if !ok {
			out[0] &^= packet.Lane(i)
			out[1] |= packet.Lane(i)
			continue
		}
		base, _ := n.core.Chunk(f)
		var r packet.Record
		v.Save(i, &r)
		r.Frame, r.Start = f, base+256
		r.Chain, r.Total = packet.NoFrame, r.Len
		copy(n.core.Mem()[r.Start:], b)
		n.core.Mem()[r.Start] = 'C'
		n.core.Emit(&r, 0)
	}
}

// spread passes frames to the core that their second byte names, "back" to where
// they came from when they begin with 'b', and tells core 0 of each.
type spread struct {
	core  graph.Core
	heard []uint64
	after []byte // second bytes of lanes told by AfterSend
}

func (n *spread) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for m := in; m != 0; m &= m - 1 {
		i := m.Next()
		b := v.Bytes(i)
		switch to := int(b[1]-'0') % n.core.Cores(); {
		case b[0] == 'u': // unanswered
		case b[0] == '2': // twice
			out[0] |= packet.Lane(i)
			out[1] |= packet.Lane(i)
		case b[0] == 's': // and a lane that it was not given
			out[0] |= packet.Lane(i) | packet.Lane(packet.Size-1)
		case b[0] == 'B':
			v.Backend[i] = 7
			out[0] |= packet.Lane(i)
		case b[0] == 'b':
			v.Backend[i] = 9
			if !n.core.Pass(to, v, i, 0) {
				out[1] |= packet.Lane(i)
			}
		case b[0] == 'p':
			if !n.core.Pass(to, v, i, 0) {
				out[1] |= packet.Lane(i)
			}
			n.core.Tell(0, &graph.Message{uint64(b[2])})
		case b[0] == 'a' && to != n.core.ID():
			if !n.core.Pass(to, v, i, -1) {
				out[1] |= packet.Lane(i)
			}
		case b[0] == 'k':
			left := n.core.Punt(v, packet.Lane(i))
			out[2] |= left
		default:
			out[0] |= packet.Lane(i)
		}
	}
}

func (n *spread) Hear(from int, m *graph.Message) {
	n.heard = append(n.heard, uint64(from)<<8|m[0])
}

func (n *spread) Marks() packet.Flags { return 0 }

func (n *spread) AfterSend(v *packet.Vector, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		n.after = append(n.after, byte(v.Backend[m.Next()]))
	}
}

func (n *spread) Gauges() map[string]float64 {
	return map[string]float64{"heard": float64(len(n.heard))}
}

func init() {
	graph.Register(graph.Def[portConfig]{
		Kind: "test-rx", Summary: "receives in tests", Source: true,
		Outputs: []graph.Output{{Name: "next", Gives: graph.L3 | graph.Outbound}},
		Ports:   func(c portConfig) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Packets: func(c portConfig, e *graph.Env) (graph.Maker, error) {
			p, err := e.Port(c.spec())
			return func(core graph.Core) (graph.Node, error) { return &rx{queues: queuesOf(p, core)}, nil }, err
		},
	})
	graph.Register(graph.Def[portConfig]{
		Kind: "test-tx", Summary: "sends in tests", Needs: graph.Outbound,
		Outputs: []graph.Output{{Name: "tx_full", Else: graph.Drop}, {Name: "ring_full", Else: graph.Drop}},
		Ports:   func(c portConfig) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Packets: func(c portConfig, e *graph.Env) (graph.Maker, error) {
			p, err := e.Port(c.spec())
			return func(core graph.Core) (graph.Node, error) {
				n := &tx{core: core}
				if q := queuesOf(p, core); len(q) > 0 {
					n.q = q[0]
				}
				return n, nil
			}, err
		},
	})
	graph.Register(graph.Def[struct{}]{
		Kind: "test-keeper", Summary: "holds in tests",
		Outputs: []graph.Output{{Name: "next"}, {Name: "late"}, {Name: "old", Else: graph.Drop}},
		Frames:  func(struct{}) (int, int) { return 64, 0 },
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return &keeper{core: c}, nil }, nil
		},
	})
	graph.Register(graph.Def[struct{}]{
		Kind: "test-twin", Summary: "copies in tests",
		Outputs: []graph.Output{{Name: "next"}, {Name: "no_frame", Else: graph.Drop}},
		Frames:  func(struct{}) (int, int) { return 0, 64 },
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return &twin{c}, nil }, nil
		},
	})
	graph.Register(graph.Def[struct{}]{
		Kind: "test-spread", Summary: "passes in tests",
		Outputs: []graph.Output{{Name: "next"}, {Name: "ring_full", Else: graph.Drop}, {Name: "refused", Else: graph.Drop}, {Name: "kernel", Else: graph.Punt}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return &spread{core: c}, nil }, nil
		},
	})
}

// draw makes a graph of lines "a.out -> b"; a node's kind is test- and its name up
// to a digit. Node rx and tx use port p.
func draw(t testing.TB, cores int, lines ...string) *graph.Graph {
	t.Helper()
	g := &graph.Graph{Name: "test", Plane: graph.PacketPlane, GraphConfig: graph.GraphDefaults()}
	g.Cores, g.Rings, g.Frames = cores, 64, 256
	node := func(name string) *graph.Instance {
		if n := g.Node(name); n != nil {
			return n
		}
		k := graph.Lookup("test-" + strings.TrimRight(name, "0123456789"))
		if k == nil {
			t.Fatalf("no kind for %q", name)
		}
		n := &graph.Instance{Kind: k, Name: name, Config: k.NewConfig()}
		if c, ok := n.Config.(*portConfig); ok {
			c.Port = "p"
		}
		n.Outputs = k.OutputsOf(n.Config)
		n.Edges = make([]*graph.Edge, len(n.Outputs))
		g.Nodes = append(g.Nodes, n)
		return n
	}
	for _, line := range lines {
		a, b, _ := strings.Cut(line, " -> ")
		name, out, ok := strings.Cut(a, ".")
		if !ok {
			out = "next"
		}
		from, to := node(name), node(b)
		o := from.Output(out)
		if o < 0 {
			t.Fatalf("%q has no output %q", name, out)
		}
		from.Edges[o] = &graph.Edge{From: from, Output: o, To: to}
	}
	return g
}

// memDriver opens memory ports with as many queues as it is told.
type memDriver struct {
	queues int
	ports  map[string]*mem.Port
	fail   error
	poison bool
	clock  bool
	mtu    int
}

func (d *memDriver) Queues(graph.PortSpec) (int, error) { return d.queues, nil }

func (d *memDriver) Open(s graph.PortSpec, m Memory, chunk, rings int) (graph.Port, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	p, err := mem.Open(mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings, Poison: d.poison, Clock: d.clock}, d.queues, graph.PortInfo{Name: s.Name, MTU: d.mtu})
	if err != nil {
		return nil, err
	}
	if d.ports == nil {
		d.ports = map[string]*mem.Port{}
	}
	d.ports[s.Name] = p
	return p, nil
}

type heap struct {
	b      []byte
	closed bool
}

func (h *heap) Bytes() []byte { return h.b }
func (h *heap) FD() int       { return -1 }
func (h *heap) Close() error  { h.closed = true; return nil }

// rig is an engine on a memory port.
type rig struct {
	*Engine
	t     testing.TB
	d     *memDriver
	m     *heap
	clock int64
	// spoilt: the test has taken frames away.
	spoilt bool
}

func newRig(t testing.TB, g *graph.Graph, queues int, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, d: &memDriver{queues: queues, poison: true}, m: &heap{}, clock: 1e9}
	o := Options{
		State: new(state.Cell), Drivers: map[string]Driver{"mem": r.d}, Manual: true,
		Memory: func(n, chunk int) (Memory, error) { r.m.b = make([]byte, n*chunk); return r.m, nil },
		Clock:  func() int64 { return r.clock },
	}
	if change != nil {
		change(&o)
	}
	e, err := New(g, o)
	if err != nil {
		t.Fatal(err)
	}
	r.Engine = e
	t.Cleanup(func() {
		// Whatever a test did, no frame and no packet is missing at its end. Loops on
		// threads of their own are not at rest here; their tests look themselves.
		if o.Manual && !r.spoilt && len(e.loops) > 0 {
			r.settle()
			r.conserved()
		}
		e.Stop()
	})
	return r
}

func (r *rig) port() *mem.Port { return r.d.ports["p"] }

// settle steps all cores until nothing happens any more.
func (r *rig) settle() {
	r.t.Helper()
	for range 10000 {
		busy := false
		for c := range r.Cores() {
			busy = r.Step(c) || busy
		}
		if !busy && r.quiet() {
			return
		}
	}
	r.t.Fatal("the engine does not settle")
}

func (r *rig) quiet() bool {
	for i := range r.mesh {
		for j := range r.mesh[i] {
			if r.mesh[i][j].frames.Len()+r.mesh[i][j].told.Len()+r.mesh[i][j].home.Len() > 0 {
				return false
			}
		}
	}
	return true
}

func (r *rig) tick() {
	r.clock += tickEvery
	r.settle()
}

// sent answers the first two bytes of what queue q sent.
func (r *rig) sent(q int) (s []string) {
	for _, p := range r.port().Sent(q) {
		s = append(s, string(p.Data[:2]))
	}
	return s
}

func (r *rig) conserved() Stats {
	r.t.Helper()
	s := r.Stats()
	if err := s.CheckConservation(); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// frames makes frames of 60 bytes that begin with the words.
func frames(words ...string) (all [][]byte) {
	for _, w := range words {
		b := make([]byte, 60)
		copy(b, w)
		all = append(all, b)
	}
	return all
}

func numbered(prefix string, n int) (all [][]byte) {
	for i := range n {
		b := make([]byte, 60)
		copy(b, prefix)
		binary.BigEndian.PutUint32(b[8:], uint32(i))
		all = append(all, b)
	}
	return all
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}
