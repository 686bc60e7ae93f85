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
