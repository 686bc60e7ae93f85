package bench

import (
	"unsafe"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/runtime"
)

// front is where a packet begins in its chunk: as AF_XDP leaves it.
const front = 256

// A Port is an interface with one queue whose packets stand in its frames before
// they are received, and whose transmission ends at once.
type Port struct {
	info  graph.PortInfo
	mem   []byte
	chunk uint32
	batch int // packets a vector at most
	room  int // frames that it takes

	fill  []uint32 // given by Refill
	ready []arrival
	next  int // of ready
	done  []uint32

	// sent sees every packet that is sent, if not nil.
	sent func(frame []byte)
}

// arrival is a packet that waits to be received.
type arrival struct{ frame, size uint32 }

var (
	_ graph.Port  = (*Port)(nil)
	_ graph.Queue = (*Port)(nil)
)

// newPort makes a port of so many frames of m.
func newPort(info graph.PortInfo, m []byte, chunk, frames, batch int) *Port {
	return &Port{
		info: info, mem: m, chunk: uint32(chunk), batch: min(batch, packet.Size), room: frames,
		fill: make([]uint32, 0, frames), ready: make([]arrival, 0, frames), done: make([]uint32, 0, 2*frames),
	}
}

// driver opens ports of the bench for interfaces of all names.
type driver struct {
	info   graph.PortInfo
	frames int
	batch  int
	ports  []*Port
}

// Queues is part of runtime.Driver.
func (d *driver) Queues(graph.PortSpec) (int, error) { return 1, nil }

// Open is part of runtime.Driver.
func (d *driver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	info := d.info
	info.Name = s.Name
	p := newPort(info, m.Bytes(), chunk, min(d.frames, rings), d.batch)
	d.ports = append(d.ports, p)
	return p, nil
}

// Arm writes the next packets of t into all frames that the port has, which must
// have been received and given back before. cold takes them out of all caches.
func (p *Port) Arm(t *Traffic, cold bool) (packets int) {
	p.ready, p.next = p.ready[:0], 0
	for _, f := range p.fill {
		start := f * p.chunk
		size := t.Next(p.mem[start+front : start+p.chunk])
		p.ready = append(p.ready, arrival{f, uint32(size)})
	}
	p.fill = p.fill[:0]
	if cold {
		base := unsafe.Pointer(unsafe.SliceData(p.mem))
		for _, a := range p.ready {
			// The record of the frame, the line that encapsulation writes, and the headers.
			at := unsafe.Add(base, a.frame*p.chunk)
			for _, off := range []int{0, 64, front - 64, front, front + 64} {
				flush(unsafe.Add(at, off))
			}
		}
		fence()
	}
	return len(p.ready)
}

// Left is the number of packets that wait.
func (p *Port) Left() int { return len(p.ready) - p.next }

// Queues is part of graph.Port.
func (p *Port) Queues() int { return 1 }

// Queue is part of graph.Port.
func (p *Port) Queue(int) graph.Queue { return p }

// Info is part of graph.Port.
func (p *Port) Info() graph.PortInfo { return p.info }

// Close is part of graph.Port.
func (p *Port) Close() error { return nil }

// Receive is part of graph.Queue.
func (p *Port) Receive(v *packet.Vector) (n int) {
	in := p.ready[p.next:]
	n = min(len(in), p.batch, packet.Size)
	for i, a := range in[:n] {
		v.Frame[i], v.Start[i] = a.frame, a.frame*p.chunk+front
		v.Len[i], v.Total[i], v.Chain[i] = a.size, a.size, packet.NoFrame
	}
	p.next += n
	return n
}

// Transmit is part of graph.Queue.
func (p *Port) Transmit(v *packet.Vector, lanes packet.Lanes) (taken packet.Lanes) {
	if p.sent != nil {
		for l := lanes; l != 0; l &= l - 1 {
			p.sent(v.Bytes(l.Next()))
		}
	}
	if n, ok := lanes.Dense(); ok {
		p.done = append(p.done, v.Frame[:n]...)
		return lanes
	}
	for l := lanes; l != 0; l &= l - 1 {
		p.done = append(p.done, v.Frame[l.Next()&63])
	}
	return lanes
}

// Flush is part of graph.Queue.
func (p *Port) Flush() {}

// Refill is part of graph.Queue.
func (p *Port) Refill(free []uint32) (n int) {
	n = min(len(free), p.room-len(p.fill)-p.Left())
	p.fill = append(p.fill, free[:n]...)
	return n
}

// Reclaim is part of graph.Queue.
func (p *Port) Reclaim(done []uint32) (n int) {
	n = copy(done, p.done)
	p.done = p.done[:copy(p.done, p.done[n:])]
	return n
}

// Census is part of graph.Queue.
func (p *Port) Census() graph.Census {
	return graph.Census{Fill: len(p.fill), Rx: p.Left(), Completion: len(p.done)}
}

// FD is part of graph.Queue.
func (p *Port) FD() int { return -1 }

// Idle is part of graph.Queue.
func (p *Port) Idle() bool { return false }
