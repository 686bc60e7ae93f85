package xsk

import (
	"sync/atomic"
	"unsafe"
)

// desc is struct xdp_desc (linux/if_xdp.h): a packet, or a part of one, in the
// receive and transmit rings.
type desc struct {
	addr    uint64
	len     uint32
	options uint32
}

// contd in options says that the packet goes on in the next descriptor
// (XDP_PKT_CONTD).
const contd = 1

// A ring is one of a socket's four, shared with the kernel: one side writes
// entries and the producer's index, the other reads them and writes the
// consumer's. Indices run freely and wrap at 2³². We write the one that is ours
// and keep what we last saw of the kernel's.
type ring[T desc | uint64] struct {
	prod, cons *uint32 // where the indices stand
	flags      *uint32
	slot       []T    // length a power of two
	own        uint32 // our index: of the producer in fill and tx, of the consumer in rx and completion
	seen       uint32 // the kernel's, as last seen
	mapped     []byte // to be unmapped; nil on the heap
}

// wakeup is the bit of flags by which the kernel asks to be told of new entries
// (XDP_RING_NEED_WAKEUP).
const wakeup = 1

// at answers the entry of index i.
func (r *ring[T]) at(i uint) *T { return &r.slot[i&uint(len(r.slot)-1)] }

// room answers how many entries we, the producer, can add, looking at the kernel's
// index only if what we saw of it does not suffice for want.
func (r *ring[T]) room(want int) int {
	n := len(r.slot) - int(r.own-r.seen)
	if n < want {
		r.seen = atomic.LoadUint32(r.cons)
		n = len(r.slot) - int(r.own-r.seen)
	}
	return n
}

// publish shows the kernel the n entries behind our producer's index.
func (r *ring[T]) publish(n uint32) {
	r.own += n
	atomic.StoreUint32(r.prod, r.own)
}

// ready answers how many entries we, the consumer, can read, looking at the
// kernel's index only if what we saw of it does not suffice for want.
func (r *ring[T]) ready(want int) int {
	n := int(r.seen - r.own)
	if n < want {
		r.seen = atomic.LoadUint32(r.prod)
		n = int(r.seen - r.own)
	}
	return n
}

// release gives the n entries behind our consumer's index back to the kernel.
func (r *ring[T]) release(n uint32) {
	r.own += n
	atomic.StoreUint32(r.cons, r.own)
}

// wakes tells whether the kernel asks to be told.
func (r *ring[T]) wakes() bool { return atomic.LoadUint32(r.flags)&wakeup != 0 }

// offsets is struct xdp_ring_offset.
type offsets struct{ producer, consumer, desc, flags uint64 }

// place makes the ring of size entries that stands in mem as offsets say. mem
// stays in use.
func place[T desc | uint64](mem []byte, o offsets, size int) ring[T] {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	_ = mem[int(o.desc)+size*int(unsafe.Sizeof(*new(T)))-1]
	r := ring[T]{
		prod:   (*uint32)(unsafe.Add(base, o.producer)),
		cons:   (*uint32)(unsafe.Add(base, o.consumer)),
		flags:  (*uint32)(unsafe.Add(base, o.flags)),
		slot:   unsafe.Slice((*T)(unsafe.Add(base, o.desc)), size),
		mapped: mem,
	}
	return r
}
