// Package ring holds the ring through which two cores hand each other frames and
// messages: fixed size, one producer, one consumer, no locks, no allocation.
package ring

import (
	"fmt"
	"sync/atomic"
)

// line keeps what two cores write apart. It is two cache lines, because the
// hardware fetches them in pairs.
const line = 128

// A Ring is a queue between one producer and one consumer, each of which may be
// any goroutine as long as it is one at a time. Only Push and PushBatch are the
// producer's, only Pop and PopBatch the consumer's; Len and Cap are everybody's.
//
// The indices run freely and wrap at 2³². Each side keeps what it last saw of the
// other's index and looks again only when that does not suffice, so that a batch
// costs one atomic store and, at most, one transfer of the other's cache line.
type Ring[T any] struct {
	_    [line]byte
	tail atomic.Uint32 // next slot to write; the producer's
	seen uint32        // head as the producer last saw it
	_    [line - 8]byte
	head atomic.Uint32 // next slot to read; the consumer's
	made uint32        // tail as the consumer last saw it
	_    [line - 8]byte
	slot []T // length a power of two; never changes
	_    [line]byte
}

// New makes a ring of size elements, a power of two up to 2³⁰; other sizes panic.
func New[T any](size int) *Ring[T] {
	if size <= 0 || size > 1<<30 || size&(size-1) != 0 {
		panic(fmt.Sprintf("ring.New(%d): the size is a power of two up to 2^30", size))
	}
	return &Ring[T]{slot: make([]T, size)}
}

// Cap is the number of elements the ring can hold.
func (r *Ring[T]) Cap() int { return len(r.slot) }

// Len is the number of elements in the ring. It is exact while neither side works
// and between 0 and Cap always.
func (r *Ring[T]) Len() int {
	// Head first: the other order could see a head beyond the tail.
	head := r.head.Load()
	return min(int(r.tail.Load()-head), len(r.slot))
}

// Push adds x; ok is false when the ring is full.
func (r *Ring[T]) Push(x T) (ok bool) {
	slot, tail := r.slot, r.tail.Load()
	if tail-r.seen >= uint32(len(slot)) {
		if r.seen = r.head.Load(); tail-r.seen >= uint32(len(slot)) {
			return false
		}
	}
	slot[uint(tail)&uint(len(slot)-1)] = x
	r.tail.Store(tail + 1)
	return true
}

// PushBatch adds as many of xs as there is room for, from the beginning, and
// answers how many: they become visible together.
func (r *Ring[T]) PushBatch(xs []T) (n int) {
	slot, tail := r.slot, r.tail.Load()
	room := uint32(len(slot)) - (tail - r.seen)
	if uint(room) < uint(len(xs)) {
		r.seen = r.head.Load()
		room = uint32(len(slot)) - (tail - r.seen)
	}
	n = min(len(xs), int(room))
	if n == 0 {
		return 0
	}
	at := int(tail & uint32(len(slot)-1))
	copy(slot, xs[copy(slot[at:], xs[:n]):n])
	r.tail.Store(tail + uint32(n))
	return n
}

// Pop takes the oldest element; ok is false when there is none.
func (r *Ring[T]) Pop() (x T, ok bool) {
	slot, head := r.slot, r.head.Load()
	if head == r.made {
		if r.made = r.tail.Load(); head == r.made {
			return x, false
		}
	}
	x = slot[uint(head)&uint(len(slot)-1)]
	r.head.Store(head + 1)
	return x, true
}

// PopBatch takes up to len(xs) of the oldest elements, in order, and answers how
// many. The ring keeps copies of what it held until they are written over.
func (r *Ring[T]) PopBatch(xs []T) (n int) {
	slot, head := r.slot, r.head.Load()
	if uint(r.made-head) < uint(len(xs)) {
		r.made = r.tail.Load()
	}
	n = min(len(xs), int(r.made-head))
	if n == 0 {
		return 0
	}
	at := int(head & uint32(len(slot)-1))
	copy(xs[copy(xs[:n], slot[at:]):n], slot)
	r.head.Store(head + uint32(n))
	return n
}
