// Package nodetest runs one kind of node by itself, on one or several make-believe
// cores, for tests and benchmarks. The memory in front of and behind every packet
// is poisoned with 0xFF, so that a read past a packet's end shows.
package nodetest

import (
	"fmt"
	"net/netip"
	"sort"
	"testing"
	"unsafe"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Chunk is the size of the rig's frames, Front the offset of a loaded packet.
const (
	Chunk = 4096
	Front = 256
)

// A Rig is one node on each of Cores make-believe cores.
type Rig struct {
	T       testing.TB
	Kind    *graph.Kind
	Outputs []graph.Output
	Env     *graph.Env
	Cell    *state.Cell
	Workers []*Worker
	Ports   []graph.Port // what the node asked for, and what tests add
	mem     []byte
	links   []packet.Link
	watch   []func(*state.Snapshot)
}

// A Worker is the node on one core, and the graph.Core it was made with.
type Worker struct {
	*Rig
	Node     graph.Node
	V        packet.Vector
	Clock    int64
	Counters []uint64
	// What the node asked the core to do, in order.
	Entered []Entered // Release and Emit
	Dropped []Entered // DropHeld
	Gone    packet.Lanes
	Passed  []Passed
	Told    []Told
	Kernel  int // lanes given to Punt
	// NoPunt makes Punt find no way to the kernel; RingFull makes Pass and Tell
	// fail; NoFrames makes Alloc fail.
	NoPunt, RingFull, NoFrames bool

	id   int
	free []uint32
	held map[uint32]bool
	out  []packet.Lanes
	snap *state.Snapshot
}

// Entered is a frame that goes on behind an output, by Release, Emit or DropHeld.
type Entered struct {
	Record packet.Record
	Output string
	Made   bool
}

// Passed is a lane sent to another core. Output is "" for output −1.
type Passed struct {
	To     int
	Record packet.Record
	Output string
}

// Told is a message sent to another core.
type Told struct {
	To      int
	Message graph.Message
}

// Option changes the rig before its nodes are made.
type Option func(*Rig)

// Cores makes n workers.
func Cores(n int) Option { return func(r *Rig) { r.Env.Cores = n } }

// Overhead tells the node what the encapsulation behind it adds.
func Overhead(v4, v6 int) Option {
	return func(r *Rig) { r.Env.Overhead4, r.Env.Overhead6 = v4, v6 }
}

// MTU sets the graph's network_mtu.
func MTU(n int) Option { return func(r *Rig) { r.Env.MTU = n } }

// WithState publishes s before the nodes are made.
func WithState(s *state.Snapshot) Option { return func(r *Rig) { r.Cell.Publish(s) } }

// WithPort makes open answer for every port the node asks for.
func WithPort(open func(graph.PortSpec) (graph.Port, error)) Option {
	return func(r *Rig) {
		r.Env.Port = func(s graph.PortSpec) (graph.Port, error) {
			p, err := open(s)
			if err == nil {
				r.Ports = append(r.Ports, p)
			}
			return p, err
		}
	}
}

// New makes a rig for a registered kind. configure may be nil; C is the kind's
// configuration.
func New[C any](t testing.TB, kind string, configure func(*C), opts ...Option) *Rig {
	t.Helper()
	k := graph.Lookup(kind)
	if k == nil {
		t.Fatalf("kind %q is not registered", kind)
	}
	cfg, ok := k.NewConfig().(*C)
	if !ok {
		t.Fatalf("kind %q is configured by %T", kind, k.NewConfig())
	}
	if configure != nil {
		configure(cfg)
	}
	if err := k.CheckConfig(cfg); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	r := &Rig{T: t, Kind: k, Outputs: k.OutputsOf(cfg), Cell: new(state.Cell)}
	r.Env = &graph.Env{
		Graph: "test", Node: kind, Cores: 1, MTU: 1500, Overhead4: 24, Overhead6: 44, State: r.Cell, Log: zap.NewNop(),
		Watch: func(f func(*state.Snapshot)) { r.watch = append(r.watch, f); f(r.Cell.Load()) },
		Port: func(s graph.PortSpec) (graph.Port, error) {
			return nil, fmt.Errorf("no port %q in this test", s.Name)
		},
		Ports: func() []graph.Port { return r.Ports },
		Addrs: func() []netip.Addr { return []netip.Addr{Local4, Local6} },
	}
	for _, o := range opts {
		o(r)
	}
	const frames = 1024 // a core
	r.mem = make([]byte, r.Env.Cores*frames*Chunk)
	r.links = make([]packet.Link, r.Env.Cores*frames)
	for i := range r.mem {
		r.mem[i] = 0xff
	}
	mk, err := k.Packets(cfg, r.Env)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	for c := range r.Env.Cores {
		w := &Worker{
			Rig: r, id: c, Clock: 1e12, Counters: make([]uint64, len(k.Counters)),
			held: map[uint32]bool{}, out: make([]packet.Lanes, len(r.Outputs)), snap: r.Cell.Load(),
		}
		for f := (c+1)*frames - 1; f >= c*frames; f-- {
			w.free = append(w.free, uint32(f))
		}
		if w.Node, err = mk(w); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		w.V.Mem, w.V.Links = r.mem, r.links
		r.Workers = append(r.Workers, w)
	}
	return r
}

// Memory answers what frames are chunks of, and the links by frame number: for
// ports, which copy packets into frames.
func (r *Rig) Memory() ([]byte, []packet.Link) { return r.mem, r.links }

// Publish makes s the rig's snapshot, as seen from the next Load on.
func (r *Rig) Publish(s *state.Snapshot) {
	for _, f := range r.watch {
		f(s)
	}
	r.Cell.Publish(s)
	for _, w := range r.Workers {
		w.snap = s
	}
}

// Load puts frames (whole Ethernet frames) into lanes 0 … n−1 of the worker's
// vector, with the frame columns set and all others zero, and answers the lanes.
// The frames of the vector before are forgotten, unless they are held.
func (w *Worker) Load(frames ...[]byte) packet.Lanes {
	w.T.Helper()
	if len(frames) > packet.Size {
		w.T.Fatalf("%d frames do not fit a vector", len(frames))
	}
	w.V = packet.Vector{Mem: w.mem, Links: w.links, Now: w.Clock}
	w.Gone = 0
	for i, b := range frames {
		f, ok := w.Alloc()
		if !ok {
			w.T.Fatal("the rig has no frame left")
		}
		base, size := w.Chunk(f)
		if Front+len(b) > int(size) {
			w.T.Fatalf("a frame of %d bytes does not fit a chunk", len(b))
		}
		chunk := w.mem[base : base+size]
		for j := range chunk {
			chunk[j] = 0xff
		}
		copy(chunk[Front:], b)
		w.V.Frame[i], w.V.Start[i], w.V.Len[i], w.V.Total[i], w.V.Chain[i] = f, base+Front, uint32(len(b)), uint32(len(b)), packet.NoFrame
	}
	return packet.All(len(frames))
}

// LoadRecord puts the packet of r into lane i of the vector: for lanes that
// another core passed, or that a node released.
func (w *Worker) LoadRecord(i int, r *packet.Record) packet.Lanes {
	w.V.Load(i, r)
	return packet.Lane(i)
}

// Process runs the node on lanes of the vector and answers them by output name.
// It fails the test when a lane is answered twice, or by nothing.
func (w *Worker) Process(in packet.Lanes) map[string]packet.Lanes {
	w.T.Helper()
	w.Run(in)
	return w.answers(in)
}

// Run runs the node and allocates nothing: for benchmarks. Answers are in Out.
func (w *Worker) Run(in packet.Lanes) {
	clear(w.out)
	w.Node.Process(&w.V, in, w.out)
}

// Out answers what Run left under output number o.
func (w *Worker) Out(o int) packet.Lanes { return w.out[o] }

// Arrive runs the node on lanes that another core passed to it.
func (w *Worker) Arrive(in packet.Lanes) map[string]packet.Lanes {
	w.T.Helper()
	clear(w.out)
	if a, ok := w.Node.(graph.Arriver); ok {
		a.Arrive(&w.V, in, w.out)
	} else {
		w.Node.Process(&w.V, in, w.out)
	}
	return w.answers(in)
}

func (w *Worker) answers(in packet.Lanes) map[string]packet.Lanes {
	w.T.Helper()
	ans := map[string]packet.Lanes{}
	seen := w.Gone
	for o, l := range w.out {
		if l == 0 {
			continue
		}
		if l&seen != 0 {
			w.T.Errorf("lanes %b leave by %q and by another way", l&seen, w.Outputs[o].Name)
		}
		seen |= l
		ans[w.Outputs[o].Name] = l
	}
	if w.Kind.Source {
		return ans
	}
	if left := in &^ seen; left != 0 {
		w.T.Errorf("lanes %b are unanswered", left)
	}
	if more := seen &^ in &^ w.Gone; more != 0 {
		w.T.Errorf("lanes %b were answered but not asked", more)
	}
	return ans
}

// Only answers the one output that lane took, "" when it was held, passed or sent.
func (w *Worker) Only(ans map[string]packet.Lanes, lane int) string {
	for name, l := range ans {
		if l.Has(lane) {
			return name
		}
	}
	return ""
}

// Counter answers the node's counter of that name.
func (w *Worker) Counter(name string) uint64 {
	w.T.Helper()
	for i, c := range w.Kind.Counters {
		if c.Name == name {
			return w.Counters[i]
		}
	}
	w.T.Fatalf("%s has no counter %q", w.Kind.Name, name)
	return 0
}

// HeldFrames answers the numbers of the frames that the node holds, in order.
func (w *Worker) HeldFrames() []uint32 {
	var all []uint32
	for f := range w.held {
		all = append(all, f)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

// Packet answers a copy of the first frame of the packet that r describes.
func (w *Worker) Packet(r *packet.Record) []byte {
	return append([]byte(nil), w.mem[r.Start:r.Start+r.Len]...)
}

// Deliver hands everything that was passed and told so far to the workers it was
// meant for, and answers what the arrivals (output −1) were answered. Lanes passed
// behind an output are left in Passed.
func (r *Rig) Deliver() []map[string]packet.Lanes {
	r.T.Helper()
	var all []map[string]packet.Lanes
	for from, w := range r.Workers {
		told, passed := w.Told, w.Passed
		w.Told, w.Passed = nil, nil
		for i := range told {
			if h, ok := r.Workers[told[i].To].Node.(graph.Hearer); ok {
				h.Hear(from, &told[i].Message)
			} else {
				r.T.Errorf("%s is told something and does not hear", r.Kind.Name)
			}
		}
		for i := range passed {
			if passed[i].Output != "" {
				w.Passed = append(w.Passed, passed[i])
				continue
			}
			to := r.Workers[passed[i].To]
			to.V = packet.Vector{Mem: to.mem, Links: to.links, Now: to.Clock}
			to.Gone = 0
			all = append(all, to.Arrive(to.LoadRecord(0, &passed[i].Record)))
		}
	}
	return all
}

// What follows is graph.Core.

// ID is part of graph.Core.
func (w *Worker) ID() int { return w.id }

// Cores is part of graph.Core.
func (w *Worker) Cores() int { return w.Env.Cores }

// State is part of graph.Core.
func (w *Worker) State() *state.Snapshot { return w.snap }

// Now is part of graph.Core.
func (w *Worker) Now() int64 { return w.Clock }

// Count is part of graph.Core.
func (w *Worker) Count(i int, n uint64) { w.Counters[i] += n }

// Mem is part of graph.Core.
func (w *Worker) Mem() []byte { return w.mem }

// Chunk is part of graph.Core.
func (w *Worker) Chunk(f uint32) (offset, size uint32) { return f * Chunk, Chunk }

func (w *Worker) record(f uint32) *packet.Record {
	return (*packet.Record)(unsafe.Pointer(&w.mem[f*Chunk]))
}

// Hold is part of graph.Core.
func (w *Worker) Hold(v *packet.Vector, lane int) uint32 {
	f := v.Frame[lane&63]
	if w.held[f] {
		w.T.Errorf("frame %d is held twice", f)
	}
	v.Save(lane, w.record(f))
	w.held[f] = true
	w.Gone |= packet.Lane(lane)
	return f
}

// Held is part of graph.Core.
func (w *Worker) Held(f uint32) *packet.Record {
	if !w.held[f] {
		w.T.Errorf("frame %d is not held", f)
	}
	return w.record(f)
}

// Release is part of graph.Core.
func (w *Worker) Release(f uint32, output int) {
	w.unhold(f)
	w.Entered = append(w.Entered, Entered{Record: *w.record(f), Output: w.Outputs[output].Name})
}

// DropHeld is part of graph.Core.
func (w *Worker) DropHeld(f uint32, output int) {
	w.unhold(f)
	w.Dropped = append(w.Dropped, Entered{Record: *w.record(f), Output: w.Outputs[output].Name})
	w.free = append(w.free, f)
}

func (w *Worker) unhold(f uint32) {
	if !w.held[f] {
		w.T.Errorf("frame %d is let go and was not held", f)
	}
	delete(w.held, f)
}

// Alloc is part of graph.Core. Where all frames were used, those loaded longest
// ago are used again.
func (w *Worker) Alloc() (uint32, bool) {
	if w.NoFrames || len(w.free) == 0 {
		return packet.NoFrame, false
	}
	f := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	return f, true
}

// Reuse frees all frames that are not held: between the rounds of a long test.
func (w *Worker) Reuse() {
	w.free = w.free[:0]
	n := len(w.mem) / Chunk / len(w.Workers)
	for f := w.id * n; f < (w.id+1)*n; f++ {
		if !w.held[uint32(f)] {
			w.free = append(w.free, uint32(f))
		}
	}
	w.Entered, w.Dropped = nil, nil
}

// Free is part of graph.Core.
func (w *Worker) Free(f uint32) { w.free = append(w.free, f) }

// Emit is part of graph.Core.
func (w *Worker) Emit(r *packet.Record, output int) {
	w.Entered = append(w.Entered, Entered{Record: *r, Output: w.Outputs[output].Name, Made: true})
}

// Pass is part of graph.Core.
func (w *Worker) Pass(core int, v *packet.Vector, lane, output int) bool {
	if w.RingFull {
		return false
	}
	if core < 0 || core >= w.Env.Cores {
		w.T.Errorf("there is no core %d", core)
		return false
	}
	p := Passed{To: core}
	if output >= 0 {
		p.Output = w.Outputs[output].Name
	}
	v.Save(lane, &p.Record)
	w.Passed = append(w.Passed, p)
	w.Gone |= packet.Lane(lane)
	return true
}

// Tell is part of graph.Core.
func (w *Worker) Tell(core int, m *graph.Message) bool {
	if w.RingFull {
		return false
	}
	w.Told = append(w.Told, Told{core, *m})
	return true
}

// Unchain is part of graph.Core.
func (w *Worker) Unchain(v *packet.Vector, lane int) {
	for f := v.Chain[lane&63]; f != packet.NoFrame; f = w.links[f].Next {
		w.free = append(w.free, f)
	}
	v.Chain[lane&63], v.Total[lane&63] = packet.NoFrame, v.Len[lane&63]
}

// Sent is part of graph.Core.
func (w *Worker) Sent(_ *packet.Vector, lanes packet.Lanes) { w.Gone |= lanes }

// Punt is part of graph.Core.
func (w *Worker) Punt(_ *packet.Vector, lanes packet.Lanes) packet.Lanes {
	if w.NoPunt {
		return lanes
	}
	w.Kernel += lanes.Count()
	w.Gone |= lanes
	return 0
}
