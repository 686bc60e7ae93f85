package runtime

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Ending says how a frame's way ended.
type Ending uint8

// The endings.
const (
	Sent Ending = iota
	Dropped
	Kernel
)

// String answers the verdict's name.
func (e Ending) String() string { return [...]string{"sent", "dropped", "kernel"}[e] }

// An Observer sees every step of every packet: for replay and trace. Its methods
// are called by the loops' goroutines; a frame's number is the packet's identity
// from Received or Made until Ended. Vectors, records and bytes may be read during
// the call alone. Node is nil where a frame ends because its node is gone.
type Observer interface {
	// Received: lanes of v were received by the source.
	Received(core int, source *graph.Instance, v *packet.Vector, lanes packet.Lanes)
	// Visited: a node has processed lanes of v. A node that makes packets processes
	// one lane at a time while it is observed: what was Made since the Visited before
	// was made for that lane.
	Visited(core int, node *graph.Instance, v *packet.Vector, lanes packet.Lanes)
	// Held: the node keeps the packet for later.
	Held(core int, node *graph.Instance, r *packet.Record)
	// Made: the node made a packet. The next Visited names where it goes on.
	Made(core int, node *graph.Instance, r *packet.Record)
	// Passed: the packet goes to another core. It may be called again for the same
	// packet if the ring was full.
	Passed(core, to int, node *graph.Instance, r *packet.Record)
	// Ended: the packet was sent (its bytes are those that leave), dropped by
	// reason, or given to the kernel.
	Ended(core int, node *graph.Instance, r *packet.Record, how Ending, reason string)
}

// Says answers what a node says about a lane that it has just processed, "" if it
// says nothing. Only an Observer may ask, on the core and during the call of Visited.
func (e *Engine) Says(core int, node *graph.Instance, v *packet.Vector, lane int) string {
	l := e.loops[core]
	if i, ok := l.prog.byName[node.Name]; ok && l.nodes[i].inst == node {
		if t, ok := l.nodes[i].Node.(graph.Tracer); ok {
			return t.Trace(v, lane)
		}
	}
	return ""
}

// Look calls f with the node of that name on every core, between two vectors of the
// core; on several at the same time.
func (e *Engine) Look(name string, f func(core int, n graph.Node)) {
	e.each(func(l *Loop) {
		if i, ok := l.prog.byName[name]; ok {
			f(l.id, l.nodes[i].Node)
		}
	})
}
