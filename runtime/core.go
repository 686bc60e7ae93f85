package runtime

import (
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// core is the graph.Core of one node on one loop.
type core struct {
	*Loop
	idx int // of the node in the loop's program
	gen uint32
}

var _ graph.Core = (*core)(nil)

type told struct {
	gen  uint32
	node int32
	m    graph.Message
}

func (c *core) ID() int                           { return c.id }
func (c *core) Cores() int                        { return len(c.eng.loops) }
func (c *core) State() *state.Snapshot            { return c.snap }
func (c *core) Now() int64                        { return c.now }
func (c *core) Count(i int, n uint64)             { c.nodes[c.idx].counters[i] += n }
func (c *core) Mem() []byte                       { return c.mem }
func (c *core) Chunk(f uint32) (offset, n uint32) { return f * uint32(c.chunk), uint32(c.chunk) }

func (c *core) Hold(v *packet.Vector, lane int) uint32 {
	lane &= 63
	f := v.Frame[lane]
	e := c.entry(f)
	v.Save(lane, &e.Record)
	e.gen, e.node, e.marked = c.gen, int16(c.idx), c.marked.Has(lane)
	c.gone |= packet.Lane(lane)
	c.held++
	c.holds[f>>6] |= 1 << (f & 63)
	if c.obs != nil {
		c.obs.Held(c.id, c.nodes[c.idx].inst, &e.Record)
	}
	return f
}

func (c *core) Held(f uint32) *packet.Record { return &c.entry(f).Record }

func (c *core) Release(f uint32, output int) {
	e := c.entry(f)
	e.gen, e.node, e.output = c.gen, int16(c.idx), int16(output)
	c.unhold(f)
	c.entries.push(f)
}

func (l *Loop) unhold(f uint32) {
	l.held--
	l.holds[f>>6] &^= 1 << (f & 63)
}

func (c *core) DropHeld(f uint32, output int) {
	e := c.entry(f)
	c.unhold(f)
	n := &c.nodes[c.idx]
	n.outs[output]++
	n.outBytes[output] += uint64(e.Total)
	if c.obs != nil {
		c.obs.Ended(c.id, n.inst, &e.Record, Dropped, n.inst.Outputs[output].Name)
	}
	next := e.Chain
	c.freeFrame(f)
	c.freeChain(next)
}

func (c *core) Alloc() (uint32, bool) {
	if len(c.free) == 0 {
		return packet.NoFrame, false
	}
	f := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.lent++
	return f, true
}

func (c *core) Free(f uint32) {
	c.lent--
	c.freeFrame(f)
}

func (c *core) Emit(r *packet.Record, output int) {
	e := c.entry(r.Frame)
	e.Record = *r
	e.gen, e.node, e.output, e.marked = c.gen, int16(c.idx), int16(output), false
	c.lent--
	c.made++
	c.entries.push(r.Frame)
	if c.obs != nil {
		c.obs.Made(c.id, c.nodes[c.idx].inst, &e.Record)
	}
}

func (c *core) Pass(to int, v *packet.Vector, lane, output int) bool {
	lane &= 63
	f := v.Frame[lane]
	e := c.entry(f)
	v.Save(lane, &e.Record)
	mark := c.marked.Has(lane)
	tell := mark && v.Backend[lane] != 0
	e.gen, e.node, e.output, e.marked = c.gen, int16(c.idx), int16(output), mark && !tell
	if c.obs != nil {
		// Before the push: the frame is the other core's afterwards.
		c.obs.Passed(c.id, to, c.nodes[c.idx].inst, &e.Record)
	}
	if !c.eng.mesh[c.id][to].frames.Push(f) {
		return false
	}
	c.gone |= packet.Lane(lane)
	c.wake |= 1 << uint(to)
	if tell {
		c.done |= packet.Lane(lane)
	}
	return true
}

func (c *core) Tell(to int, m *graph.Message) bool {
	if !c.eng.mesh[c.id][to].told.Push(told{c.gen, int32(c.idx), *m}) {
		return false
	}
	c.wake |= 1 << uint(to)
	return true
}

func (c *core) Unchain(v *packet.Vector, lane int) {
	lane &= 63
	next := v.Chain[lane]
	v.Chain[lane], v.Total[lane] = packet.NoFrame, v.Len[lane]
	c.freeChain(next)
}

func (c *core) Sent(v *packet.Vector, lanes packet.Lanes) {
	c.gone |= lanes
	c.done |= lanes & c.marked
	c.sent += uint64(lanes.Count())
	if n, ok := lanes.Dense(); ok {
		c.sentDense(v, n)
	} else {
		c.sentSome(v, lanes)
	}
	if c.obs != nil {
		c.observe(v, lanes, c.nodes[c.idx].inst, Sent, "")
	}
}

// sentDense is sentSome for lanes 0 … n−1. Sums of one place of memory wait for each other,
// and most vectors are of one service.
func (c *core) sentDense(v *packet.Vector, n int) {
	n = min(n, packet.Size)
	bytes := v.Octets(n)
	c.sentBytes += bytes
	services, backends := c.perService, c.perBackend
	if v.OneService(n) {
		if s := v.VIP[0]; uint(s) < uint(len(services)) {
			services[s].Packets += uint64(n)
			services[s].Bytes += bytes
		}
	} else {
		for i, s := range v.VIP[:n] {
			if uint(s) < uint(len(services)) {
				services[s].Packets++
				services[s].Bytes += uint64(v.Total[i])
			}
		}
	}
	for i, b := range v.Backend[:n] {
		if uint(b) < uint(len(backends)) {
			backends[b].Packets++
			backends[b].Bytes += uint64(v.Total[i])
		}
	}
}

// sentSome counts lanes that were sent, by service and backend.
func (c *core) sentSome(v *packet.Vector, lanes packet.Lanes) {
	services, backends := c.perService, c.perBackend
	for m := lanes; m != 0; m &= m - 1 {
		i := m.Next() & 63
		n := uint64(v.Total[i])
		c.sentBytes += n
		if s := v.VIP[i]; uint(s) < uint(len(services)) {
			services[s].Packets++
			services[s].Bytes += n
		}
		if b := v.Backend[i]; uint(b) < uint(len(backends)) {
			backends[b].Packets++
			backends[b].Bytes += n
		}
	}
}

func (c *core) Punt(v *packet.Vector, lanes packet.Lanes) packet.Lanes {
	taken := c.punt(v, lanes, c.nodes[c.idx].inst)
	c.gone |= taken
	return lanes &^ taken
}
