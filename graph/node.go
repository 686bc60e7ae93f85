package graph

import (
	"context"
	"net/netip"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/stream"
)

// A Node is one kind's worker on one core.
//
// Process looks at the lanes in of v and answers, output by output, where each
// goes next: it sets bits in out[o], which is zero on entry and has one element
// for every output of the node in the order of Node outputs (Def.Outputs, then
// OutputsOf). A lane belongs in one output at most. Lanes that were given to
// Core.Hold, Pass, Sent or Kernel are in none. A Source is called with in = 0,
// fills lanes 0 … n−1 of v and answers them.
//
// Process must not block, allocate, or keep v.
type Node interface {
	Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes)
}

// A Maker makes the worker of one core. It may allocate.
type Maker func(Core) (Node, error)

// Optional methods of a Node. The loop looks for them once, when it is built.
type (
	// AfterSender is told at the end of a pass which lanes that have a backend
	// were sent or handed to another core. It reads columns only; the frames'
	// bytes may be gone. lanes visited the node in this pass, or entered the pass
	// behind some node (released, or from another core); a packet is told once.
	// Vectors of which no lane has any of the flags that Marks answers, always the same,
	// are not told of; with 0 all are.
	AfterSender interface {
		AfterSend(v *packet.Vector, lanes packet.Lanes)
		Marks() packet.Flags
	}
	// Inheritor takes over the state of the node of the same name and kind that
	// it replaces. It swaps pointers; it is called between two vectors.
	Inheritor interface{ Inherit(old Node) }
	// Hearer receives what the same node told on another core.
	Hearer interface{ Hear(from int, m *Message) }
	// Ticker is called between vectors, at least every 10 ms while the loop is awake,
	// once more 10 ms after the last packet, and ten times every second, one after the
	// other, while it sleeps; now is in nanoseconds of the vectors' clock.
	Ticker interface{ Tick(now int64) }
	// Tracer says in a few words what the node knows about a lane it has just
	// processed. It may allocate: it runs for traced packets only.
	Tracer interface {
		Trace(v *packet.Vector, lane int) string
	}
	// Arriver processes lanes that another core passed to this node with output
	// −1; without it they arrive through Process.
	Arriver interface {
		Arrive(v *packet.Vector, in packet.Lanes, out []packet.Lanes)
	}
	// Gauger answers the node's gauges for metrics and status, by name; called on
	// the node's own core by way of its command cell. It may allocate.
	Gauger interface{ Gauges() map[string]float64 }
	// Flusher forgets all state towards backend (0: all of it).
	Flusher interface{ Flush(backend uint32) }
	// Peeker says by which output Process would answer a lane, and changes nothing
	// but the lane's columns, as Process would. known tells that the node remembers
	// the lane's flow, and that other cores' workers need not be asked. It is called
	// between vectors.
	Peeker interface {
		Peek(v *packet.Vector, lane int) (output int, known bool)
	}
)

// A Message travels between the workers of one node on different cores, by value.
type Message [8]uint64

// Core is what one node on one core may ask of the loop that runs it. Each node
// has its own. Its methods are for that node on that core alone, during Process,
// AfterSend, Arrive, Hear, Tick and Inherit, unless said otherwise.
type Core interface {
	// ID is the core's number, 0 … Cores()−1.
	ID() int
	// Cores is the number of cores of the graph.
	Cores() int
	// State is the snapshot of the vector in hand: the same for all its nodes.
	State() *state.Snapshot
	// Now is the clock of the vector in hand in nanoseconds; monotonic.
	Now() int64
	// Count adds n to the node's counter i (the order of Def.Counters).
	Count(i int, n uint64)
	// Mem is the memory that frames are chunks of.
	Mem() []byte
	// Chunk answers the offset in Mem of the first byte of frame f, and the size
	// of chunks. A packet may stand anywhere from RecordSize on.
	Chunk(f uint32) (offset, size uint32)

	// Hold takes the lane out of the vector and keeps its frame and columns; the
	// node stores the answered frame number. Kinds reserve the frames by Frames.
	Hold(v *packet.Vector, lane int) (f uint32)
	// Held answers the record of a held frame, to be read or changed.
	Held(f uint32) *packet.Record
	// Release lets a held frame go on behind output of this node, before the next
	// receive.
	Release(f uint32, output int)
	// DropHeld frees a held frame, counted under output, which names the reason.
	DropHeld(f uint32, output int)
	// Alloc takes a free frame for a packet of the node's own making; ok is false
	// when there is none.
	Alloc() (f uint32, ok bool)
	// Free gives back a frame from Alloc that will not be emitted.
	Free(f uint32)
	// Emit sends the packet that r describes, in a frame from Alloc, on behind
	// output of this node, before the next receive. The loop counts it as made.
	Emit(r *packet.Record, output int)
	// Pass sends a lane to core, where it goes on behind output of this node, or
	// with output −1 arrives at this node itself. ok is false when the ring is full:
	// then the lane still belongs to the caller.
	Pass(core int, v *packet.Vector, lane, output int) (ok bool)
	// Tell sends a message to this node's worker on core; ok is false when the
	// ring is full.
	Tell(core int, m *Message) (ok bool)
	// Unchain frees all frames of the lane's packet but the first, and sets Chain
	// and Total to match: for an answer that takes the place of a long packet.
	Unchain(v *packet.Vector, lane int)
	// Sent says that the frames of lanes belong to a port now.
	Sent(v *packet.Vector, lanes packet.Lanes)
	// Punt gives lanes to the kernel, where there is a way; the answered lanes
	// found none and still belong to the caller.
	Punt(v *packet.Vector, lanes packet.Lanes) (left packet.Lanes)
}

// Env is what a kind is built in: what the checker found out about the node's
// place, and the way to what the Engine owns.
type Env struct {
	Graph, Node string
	Cores       int
	// MTU is the graph's network_mtu: the largest IP packet that may leave, outer
	// header included, in bytes.
	MTU int
	// Overhead4 and Overhead6 are the bytes that the encapsulation behind this node
	// adds, by the outer family; the same on every way.
	Overhead4, Overhead6 int
	State                *state.Cell
	// Watch calls f with every snapshot before it is published, and once at
	// once; f must not block. What f derives must be published atomically.
	Watch func(f func(*state.Snapshot))
	// Port opens a port, or answers the one that is open under the same spec
	// since before a reload. The Engine closes it when no graph uses it.
	Port func(PortSpec) (Port, error)
	// Ports answers the graph's open ports by index, which is what the column Port
	// of a vector holds. It is complete only once all nodes are built: call it from
	// the Maker.
	Ports func() []Port
	// Host is what runs the controls. A kind asserts the small interface that it
	// declares for what it needs of it; nil where nothing runs (replay, tests).
	Host any
	// Count adds n to the counter i of a node of the stream plane (the order of
	// Def.Counters); any goroutine may call it.
	Count func(i int, n uint64)
	// Backends answers what streams know of the backend at an address and port.
	Backends func(netip.AddrPort) *stream.Backend
	// Addrs answers the addresses of the graph's interfaces, in the kernel's order.
	// It is complete only once all nodes are built: call it from the Maker.
	Addrs func() []netip.Addr
	Log   *zap.Logger
}

// A PortSpec names a port. Two equal specs are one port.
type PortSpec struct {
	Driver string // "xdp", "pcap", "gen", "mem"
	Name   string // interface or file
	Queues int    // 0 is all
	Mode   string // XDP mode: auto, native, generic; "" for as another node's spec says
	Write  bool   // a file to be written
	Args   string // what else tells ports of a driver apart, in the driver's own form
}

// A Port is a way in and out of the machine: an interface, a file, memory. The
// Engine owns it.
type Port interface {
	// Queues is the number of queues. Core c receives from and sends to the queues
	// q with q mod cores = c.
	Queues() int
	// Queue answers queue q, which one core alone will use.
	Queue(q int) Queue
	Info() PortInfo
	Close() error
}

// A Starter is a Port that lets packets in only when it is told to: after its
// queues were given frames, before the loops run.
type Starter interface{ Start() error }

// A Loser is a Port that can say how many packets were lost before it could receive
// or send them, by reason; none of them counts as received.
type Loser interface{ Lost() map[string]uint64 }

// PortInfo describes an open port.
type PortInfo struct {
	Name  string
	MAC   [6]byte
	MTU   int          // of the device; 0 if it has none
	Addrs []netip.Addr // the device's own addresses, in the kernel's order
	Mode  string       // as it is to be shown: "native, zero-copy", "generic, copy", "file"
}

// A Queue is one receive and one transmit ring. All calls come from one core.
// The frames it holds between Refill and Receive, and between Transmit and
// Reclaim, are its own.
type Queue interface {
	// Receive fills lanes 0 … n−1 of v's frame columns, and Now if the port has a
	// clock of its own; n ≤ packet.Size. Chained frames are entered in v.Links.
	Receive(v *packet.Vector) (n int)
	// Transmit takes lanes in their order; what it has no room for it does not
	// answer in taken.
	Transmit(v *packet.Vector, lanes packet.Lanes) (taken packet.Lanes)
	// Flush makes the kernel look at what was given to Transmit and Refill: at
	// most one system call, once a pass.
	Flush()
	// Refill gives free frames to the receiver and answers how many it took, from
	// the beginning of free.
	Refill(free []uint32) (n int)
	// Reclaim writes the frames whose transmission has ended to done and answers
	// how many.
	Reclaim(done []uint32) (n int)
	// Census counts the frames it holds, by place.
	Census() Census
	// FD is what poll waits on, or −1.
	FD() int
	// Idle tells that nothing will come any more: a file's end.
	Idle() bool
}

// Census is a queue's frames by place.
type Census struct{ Fill, Rx, Tx, Completion int }

// A Control is a kind of the control plane, running beside the loops.
type Control interface {
	// Start begins the work and answers when it can be relied on; ctx bounds the
	// start alone.
	Start(ctx context.Context) error
	// Stop ends it and answers when nothing of it runs any more.
	Stop(ctx context.Context) error
}

// A Reconfigurer is a Control that takes a changed configuration, which is what
// Kind.NewConfig answered, filled in. On error it goes on as before.
type Reconfigurer interface{ Reconfigure(config any) error }

// A Drainer is a Control that has the network send its packets elsewhere. Drain is
// called before Stop, while loops still forward; it answers when no more packets are
// expected, or ctx ends. There may be no way back.
type Drainer interface {
	Drain(ctx context.Context) error
}
