package runtime

import (
	"sync/atomic"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Loop is one core's pass over and over. All its fields but the atomic ones belong
// to the goroutine that runs it.
type Loop struct {
	id    int
	eng   *Engine
	prog  *program
	nodes []node

	mem   []byte
	links []packet.Link
	chunk uint
	base  uint32 // first frame of this core
	own   uint32 // frames of a core

	free     []uint32   // frames at home and free
	homeward [][]uint32 // frames of other cores, to be sent home
	away     int        // how many those are
	entries  fifo       // frames to enter behind an output
	held     int
	holds    []uint64 // one bit a frame: those that this core's nodes hold
	lent     int      // allocated and not yet emitted; 0 between vectors
	reserve  int      // frames that refilling leaves for the nodes

	queues []graph.Queue
	// Scratch that would escape through interfaces on the stack.
	batch   [packet.Size]uint32
	message graph.Message

	// Of the pass in hand.
	v       packet.Vector
	snap    *state.Snapshot
	now     int64
	marked  packet.Lanes // lanes of which AfterSend may be told
	done    packet.Lanes // lanes sent or passed in this pass, and marked
	gone    packet.Lanes // lanes held, passed, sent or punted by the node in hand
	entered bool         // the pass began behind an output
	timed   bool
	dirty   bool   // a vector ran since queues were served last
	full    bool   // the last vector from a source had all lanes
	wake    uint64 // cores to be woken at the end of the pass

	passes        uint64
	nextTick      int64
	sources       []int
	afterSenders  []int
	tickers       []int
	obs           Observer
	traceAll      bool // time every vector
	received      uint64
	receivedBytes uint64
	made          uint64
	sent          uint64
	sentBytes     uint64
	kernel        uint64
	reloadDrops   uint64            // frames whose node a reload removed
	retired       map[string]uint64 // drops of nodes and outputs that a reload removed, by "node.reason"
	perService    []Traffic
	perBackend    []Traffic
	latency       [graph.LatencyBuckets]uint64
	sizes         [packet.Size + 1]uint64 // vectors by packets

	cmd      atomic.Pointer[command]
	beat     atomic.Int64 // clock of the last pass, for whoever watches over the loop
	sleeping atomic.Bool
	waker    waker
	fds      []int

	_ [line]byte // another core's may come behind it
}

// node is one node of the program on this core.
type node struct {
	graph.Node
	inst    *graph.Instance
	core    *core
	targets []int32
	pend    packet.Lanes   // lanes that wait for it in this pass
	visited packet.Lanes   // lanes it saw in this pass
	out     []packet.Lanes // its answer; nothing between calls
	port    uint16
	source  bool
	makes   bool // it may make packets
	after   graph.AfterSender
	marks   packet.Flags // of after
	ticker  graph.Ticker
	arriver graph.Arriver
	hearer  graph.Hearer

	calls, packets, cycles, timed uint64
	outs, outBytes                []uint64 // by output; bytes for drops alone
	unanswered, duplicate, noPunt uint64
	counters                      []uint64
}

type command struct {
	fn   func(*Loop)
	done chan struct{}
}

// step runs everything that is due once and tells whether anything was.
func (l *Loop) step() (busy bool) {
	if c := l.cmd.Load(); c != nil {
		l.cmd.Store(nil)
		c.fn(l)
		close(c.done)
	}
	l.setClock(l.eng.opts.Clock())
	busy = l.fromMesh()
	l.serveQueues()
	l.enter()
	for _, s := range l.sources {
		if l.receive(s) {
			busy = true
			l.enter()
		}
	}
	if l.now >= l.nextTick {
		l.tick()
	}
	l.endPass()
	return busy
}

func (l *Loop) setClock(now int64) {
	l.now = now
	l.setState(l.eng.opts.State.Load())
}

func (l *Loop) setState(s *state.Snapshot) {
	if s == l.snap {
		return
	}
	l.snap = s
	// Rare: a new snapshot may bring new numbers.
	l.perService = grown(l.perService, len(s.Services))
	l.perBackend = grown(l.perBackend, len(s.Backends))
}

func grown(t []Traffic, n int) []Traffic {
	if len(t) >= n {
		return t
	}
	more := apart[Traffic](n)
	copy(more, t)
	return more
}

const tickEvery = 10e6 // ns

func (l *Loop) tick() {
	l.nextTick = l.now + tickEvery
	l.beat.Store(l.now)
	for _, i := range l.tickers {
		l.nodes[i].ticker.Tick(l.now)
	}
	l.enter()
}

// fromMesh takes what other cores sent: frames that come home, messages, lanes.
func (l *Loop) fromMesh() (busy bool) {
	batch := &l.batch
	for from := range l.eng.mesh {
		w := &l.eng.mesh[from][l.id]
		for {
			n := w.home.PopBatch(batch[:])
			l.free = append(l.free, batch[:n]...)
			if n < len(batch) {
				break
			}
		}
		for range packet.Size {
			m, ok := w.told.Pop()
			if !ok {
				break
			}
			busy = true
			if n, _, ok := l.prog.trace(m.gen, int(m.node), -1); ok && l.nodes[n].hearer != nil {
				l.message = m.m
				l.nodes[n].hearer.Hear(from, &l.message)
			}
		}
		n := w.frames.PopBatch(batch[:])
		for _, f := range batch[:n] {
			l.entries.push(f)
		}
		busy = busy || n > 0
	}
	return busy
}

// emptyRings takes all that is in the rings to this core now. It runs before a change
// of graph, so that what is left in a ring is at most one change old, however fast
// changes follow each other.
func (l *Loop) emptyRings() {
	most := 0
	for from := range l.eng.mesh {
		w := &l.eng.mesh[from][l.id]
		most = max(most, w.frames.Cap(), w.told.Cap())
	}
	for range most/packet.Size + 1 {
		if !l.fromMesh() {
			return
		}
		l.serveQueues()
		l.enter()
		l.endPass()
	}
}

// serveQueues takes back what was transmitted and gives free frames to receive.
func (l *Loop) serveQueues() {
	batch := &l.batch
	for _, q := range l.queues {
		for {
			n := q.Reclaim(batch[:])
			l.freeFrames(batch[:n])
			if n < len(batch) {
				break
			}
		}
		for len(l.free) > l.reserve {
			at := max(l.reserve, len(l.free)-packet.Size)
			n := q.Refill(l.free[at:])
			// It takes from the beginning; what it left moves down.
			l.free = l.free[:at+copy(l.free[at:], l.free[at+n:])]
			if n < packet.Size {
				break
			}
		}
	}
}

// receive runs one vector from source s.
func (l *Loop) receive(s int) bool {
	n := &l.nodes[s]
	l.makeRoom()
	v := &l.v
	v.Now = l.now
	l.gone = 0
	l.timed = l.traceAll || l.passes&63 == 0
	var t0 uint64
	if l.timed {
		t0 = cycles()
	}
	n.Process(v, 0, n.out)
	in := packet.Lanes(0)
	for _, lanes := range n.out {
		in |= lanes
	}
	if in == 0 {
		return false
	}
	if v.Now != l.now {
		l.now = v.Now // the port has a clock of its own
	}
	// A source fills the first lanes.
	count := in.Count()
	v.Begin(count, n.port)
	l.received += uint64(count)
	l.receivedBytes += v.Octets(count)
	l.passes++
	l.sizes[count]++
	l.full = count == packet.Size
	l.marked, l.done, l.entered = in, 0, false
	if l.obs != nil {
		l.obs.Received(l.id, n.inst, v, in)
	}
	l.account(v, n, in, t0)
	l.run(v, s+1)
	if l.timed {
		l.latency[bucket(cycles()-t0)]++
	}
	return true
}

// enter runs what waits behind outputs until nothing waits any more.
func (l *Loop) enter() {
	for l.entries.len() > 0 {
		l.makeRoom()
		v := &l.v
		v.Now = l.now
		l.marked, l.done, l.entered, l.timed = 0, 0, true, l.traceAll
		e := l.entry(l.entries.peek())
		node, output, ok := l.prog.trace(e.gen, int(e.node), int(e.output))
		gen, was, wasOut := e.gen, e.node, e.output
		i := 0
		for i < packet.Size && l.entries.len() > 0 {
			e = l.entry(l.entries.peek())
			if e.gen != gen || e.node != was || e.output != wasOut {
				break
			}
			v.Load(i, &e.Record)
			if e.marked {
				l.marked |= packet.Lane(i)
			}
			l.entries.pop()
			i++
		}
		in := packet.All(i)
		if !ok {
			if node, in = l.restart(v, in); in == 0 {
				continue
			}
			output = -1
		}
		n := &l.nodes[node]
		if output >= 0 {
			n.out[output] = in
			l.gone = 0
			l.direct(v, n, in)
			l.run(v, node+1)
			continue
		}
		n.pend = in
		if n.arriver != nil {
			n.pend = 0
			l.gone = 0
			n.visited = in
			n.arriver.Arrive(v, in, n.out)
			n.calls++
			n.packets += uint64(i)
			if l.obs != nil {
				l.obs.Visited(l.id, n.inst, v, in)
			}
			l.direct(v, n, in)
			node++
		}
		l.run(v, node)
	}
}

// restart decides on frames whose node a reload has removed: those that have no
// outer header yet are parsed again, the others drop.
func (l *Loop) restart(v *packet.Vector, in packet.Lanes) (node int, left packet.Lanes) {
	node = l.prog.parser()
	for m := in; m != 0; m &= m - 1 {
		i := m.Next() & 63
		if node < 0 || v.Backend[i] != 0 {
			l.reloadDrops++
			if l.obs != nil {
				l.observe(v, packet.Lane(i), nil, Dropped, "reload")
			}
			l.freePacket(v, i)
			continue
		}
		left |= packet.Lane(i)
	}
	return node, left
}

// run runs the nodes from first on that lanes wait for, and ends the pass.
func (l *Loop) run(v *packet.Vector, first int) {
	for i := first; i < len(l.nodes); i++ {
		n := &l.nodes[i]
		in := n.pend
		if in == 0 {
			continue
		}
		n.pend, n.visited = 0, in
		if l.obs != nil && n.makes {
			// A lane at a time, so that the observer knows which packet caused another.
			for ; in != 0; in &= in - 1 {
				l.process(v, n, packet.Lane(in.Next()))
			}
			continue
		}
		l.process(v, n, in)
	}
	l.dirty = true
	if done := l.done; done != 0 {
		var with packet.Lanes
		for _, i := range l.afterSenders {
			n := &l.nodes[i]
			if n.marks != 0 && !v.AnyFlag(n.marks) {
				continue
			}
			if with == 0 {
				with = packet.Above(&v.Backend, 0, done)
			}
			lanes := with
			if !l.entered {
				lanes &= n.visited
			}
			if lanes != 0 {
				n.after.AfterSend(v, lanes)
			}
		}
	}
	for _, i := range l.afterSenders {
		l.nodes[i].visited = 0
	}
}

// process calls a node and leads its lanes on.
func (l *Loop) process(v *packet.Vector, n *node, in packet.Lanes) {
	l.gone = 0
	var t0 uint64
	if l.timed {
		t0 = cycles()
	}
	n.Process(v, in, n.out)
	l.account(v, n, in, t0)
}

// account counts a node's call, which began at t0 if vectors are timed, and leads its
// lanes on.
func (l *Loop) account(v *packet.Vector, n *node, in packet.Lanes, t0 uint64) {
	count := uint64(in.Count())
	n.calls++
	n.packets += count
	if l.timed {
		n.cycles += cycles() - t0
		n.timed += count
	}
	if l.obs != nil && !n.source {
		l.obs.Visited(l.id, n.inst, v, in)
	}
	l.direct(v, n, in)
}

// direct leads the lanes that n answered to where they go, and empties its answer: a
// node finds nothing there but what it writes. What was answered by nothing drops, what
// was answered twice goes the first way. What is rare has functions of its own, so that
// the rest needs no room on the stack.
func (l *Loop) direct(v *packet.Vector, n *node, in packet.Lanes) {
	seen := l.gone
	for o, lanes := range n.out {
		if lanes == 0 {
			continue
		}
		n.out[o] = 0
		if wrong := lanes & (seen | ^in); wrong != 0 {
			n.duplicate += uint64(wrong.Count())
			if lanes &^= wrong; lanes == 0 {
				continue
			}
		}
		seen |= lanes
		n.outs[o] += uint64(lanes.Count())
		if to := n.targets[o]; to >= 0 {
			l.nodes[to].pend |= lanes
		} else {
			l.end(v, n, o, lanes)
		}
	}
	if left := in &^ seen; left != 0 {
		l.unanswered(v, n, left)
	}
}

// end ends the way of lanes behind output o of n, which leads to no node.
func (l *Loop) end(v *packet.Vector, n *node, o int, lanes packet.Lanes) {
	if n.targets[o] == toDrop {
		l.drop(v, n, o, lanes)
		return
	}
	if left := lanes &^ l.punt(v, lanes, n.inst); left != 0 {
		n.noPunt += uint64(left.Count())
		if l.obs != nil {
			l.observe(v, left, n.inst, Dropped, "no_punt")
		}
		l.release(v, left)
	}
}

// unanswered drops lanes that n answered by no output.
func (l *Loop) unanswered(v *packet.Vector, n *node, lanes packet.Lanes) {
	n.unanswered += uint64(lanes.Count())
	if l.obs != nil {
		l.observe(v, lanes, n.inst, Dropped, "unanswered")
	}
	l.release(v, lanes)
}

func (l *Loop) drop(v *packet.Vector, n *node, o int, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		n.outBytes[o] += uint64(v.Total[m.Next()&63])
	}
	if l.obs != nil {
		l.observe(v, lanes, n.inst, Dropped, n.inst.Outputs[o].Name)
	}
	l.release(v, lanes)
}

func (l *Loop) release(v *packet.Vector, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		l.freePacket(v, m.Next())
	}
}

// punt offers lanes to the kernel and frees those it took.
func (l *Loop) punt(v *packet.Vector, lanes packet.Lanes, from *graph.Instance) (taken packet.Lanes) {
	if l.eng.opts.Kernel == nil {
		return 0
	}
	for m := lanes; m != 0; m &= m - 1 {
		i := m.Next() & 63
		if l.eng.opts.Kernel(v.Bytes(i)) {
			taken |= packet.Lane(i)
		}
	}
	l.kernel += uint64(taken.Count())
	if l.obs != nil {
		l.observe(v, taken, from, Kernel, "")
	}
	l.release(v, taken)
	return taken
}

// makeRoom hands to the kernel what the vector before this one left in the rings,
// so that each vector finds the room it would find alone.
func (l *Loop) makeRoom() {
	if l.dirty {
		l.dirty = false
		l.flush()
		l.serveQueues()
	}
}

func (l *Loop) flush() {
	for _, q := range l.queues {
		q.Flush()
	}
}

// endPass tells ports and other cores what the pass left for them.
func (l *Loop) endPass() {
	l.dirty = false
	l.flush()
	if l.away > 0 {
		for c := range l.homeward {
			h := l.homeward[c]
			if len(h) == 0 {
				continue
			}
			n := l.eng.mesh[l.id][c].home.PushBatch(h)
			l.homeward[c] = h[:copy(h, h[n:])]
			l.away -= n
			if n > 0 {
				l.wake |= 1 << uint(c)
			}
		}
	}
	if l.wake != 0 {
		l.eng.wakeAll(l.wake)
		l.wake = 0
	}
}

func (l *Loop) observe(v *packet.Vector, lanes packet.Lanes, n *graph.Instance, how Ending, reason string) {
	var r packet.Record
	for m := lanes; m != 0; m &= m - 1 {
		v.Save(m.Next(), &r)
		l.obs.Ended(l.id, n, &r, how, reason)
	}
}
