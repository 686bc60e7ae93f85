package runtime

import (
	"unsafe"

	"github.com/lbgraph/lbgraph/io/packet"
)

// A Memory is what frames are chunks of.
type Memory interface {
	Bytes() []byte
	// FD is the file descriptor to share it by; −1 if there is none.
	FD() int
	Close() error
}

// entry stands at the beginning of every chunk and describes the frame while it
// is in no vector.
type entry struct {
	packet.Record
	gen    uint32
	node   int16
	output int16
	marked bool // AfterSend is still to be told of it
}

// line is what the hardware moves between cores at once: two cache lines, which it
// fetches in pairs.
const line = 128

// apart makes n zero counters that share no line with anything else: else two cores
// that count would take it from each other all the time.
func apart[T uint64 | packet.Lanes | Traffic](n int) []T {
	if n == 0 {
		return nil
	}
	var one T
	each := line / int(unsafe.Sizeof(one))
	room := make([]T, n+2*each)
	at := 0
	for uintptr(unsafe.Pointer(&room[at]))%line != 0 {
		at++
	}
	return room[at : at+n : at+n]
}

// The record and what the loop adds to it must fit into the room that drivers
// leave in front.
const _ = uint(packet.RecordSize - unsafe.Sizeof(entry{}))

func (l *Loop) entry(f uint32) *entry {
	return (*entry)(unsafe.Pointer(&l.mem[uint(f)*l.chunk]))
}

// free gives a frame back to its home.
func (l *Loop) freeFrame(f uint32) {
	if f-l.base < l.own {
		l.free = append(l.free, f)
		return
	}
	l.homeward[f/l.own] = append(l.homeward[f/l.own], f)
	l.away++
}

// freeFrames gives frames back to their homes: most are at home.
func (l *Loop) freeFrames(frames []uint32) {
	far := false
	for _, f := range frames {
		far = far || f-l.base >= l.own
	}
	if !far {
		l.free = append(l.free, frames...)
		return
	}
	for _, f := range frames {
		l.freeFrame(f)
	}
}

// freePacket frees a lane's frames, the chain included.
func (l *Loop) freePacket(v *packet.Vector, i int) {
	i &= 63
	next := v.Chain[i]
	l.freeFrame(v.Frame[i])
	l.freeChain(next)
}

func (l *Loop) freeChain(f uint32) {
	for f != packet.NoFrame {
		next := l.links[f].Next
		l.freeFrame(f)
		f = next
	}
}

// fifo is a queue of frames, as large as there are frames.
type fifo struct {
	ring       []uint32
	head, tail uint
}

func newFIFO(n int) fifo {
	size := 1
	for size < n {
		size *= 2
	}
	return fifo{ring: make([]uint32, size)}
}

func (q *fifo) len() int        { return int(q.tail - q.head) }
func (q *fifo) push(f uint32)   { q.ring[q.tail&uint(len(q.ring)-1)] = f; q.tail++ }
func (q *fifo) peek() uint32    { return q.ring[q.head&uint(len(q.ring)-1)] }
func (q *fifo) pop() (f uint32) { f = q.peek(); q.head++; return f }
