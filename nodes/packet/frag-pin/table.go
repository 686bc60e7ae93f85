package fragpin

import (
	"math/bits"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A pin says where the fragments of one packet go, in the form in which it travels
// between cores. The first five words are the key:
//
//	0 1  source        2 3  destination
//	4    identification in the upper half, protocol in bits 8 … 15; the flow's protocol
//	     in bits 0 … 7 is no part of the key
//	5    backend, service     6  slot, source port, destination port     7  flow hash
type pin graph.Message

// keyOf answers the key of lane i, with the flow's protocol, and the key's hash. The
// protocol counts for IPv4 (RFC 791 §3.2) and not for IPv6, whose later fragments
// may name another header than the first (RFC 8200 §4.5).
func keyOf(v *packet.Vector, i int) (k pin, hash uint64) {
	i &= 63
	src, dst, id := v.Src[i], v.Dst[i], v.ID[i]
	k[0], k[1], k[2], k[3] = src.Hi, src.Lo, dst.Hi, dst.Lo
	k[4] = uint64(id)<<32 | uint64(v.Proto[i])
	if src.Is4() {
		k[4] |= uint64(v.Proto[i]) << 8
	}
	return k, k.hash()
}

func (p *pin) hash() uint64 {
	return packet.FlowHash(packet.Addr{Hi: p[0], Lo: p[1]}, packet.Addr{Hi: p[2], Lo: p[3]}, uint16(p[4]>>48), uint16(p[4]>>32), uint8(p[4]>>8))
}

func (p *pin) same(k *pin) bool {
	return (p[0]^k[0])|(p[1]^k[1])|(p[2]^k[2])|(p[3]^k[3])|(p[4]^k[4])>>8 == 0
}

func (p *pin) backend() uint32 { return uint32(p[5] >> 32) }
func (p *pin) service() uint32 { return uint32(p[5]) }
func (p *pin) slot() uint32    { return uint32(p[6] >> 32) }

// fill adds what lane i says about its flow.
func (p *pin) fill(v *packet.Vector, i int) {
	i &= 63
	p[5] = uint64(v.Backend[i])<<32 | uint64(v.VIP[i])
	p[6] = uint64(v.Slot[i])<<32 | uint64(v.SPort[i])<<16 | uint64(v.DPort[i])
	p[7] = v.Hash[i]
}

// restore gives the packet that r describes the flow of its first fragment.
func (p *pin) restore(r *packet.Record) {
	r.Proto = uint8(p[4])
	r.Backend, r.VIP, r.Slot = p.backend(), p.service(), p.slot()
	r.SPort, r.DPort = uint16(p[6]>>16), uint16(p[6])
	r.Hash = p[7]
	r.Flags |= packet.Pinned
}

// ways is the number of pins a key can stand at: the bound of every search.
const ways = 8

// A table holds pins until they expire, in sets of ways. It never grows.
type table struct {
	tags []uint32 // by pin: part of the key's hash; 0 is free
	pins []entry
	used int
	hand int // next set to be swept
}

type entry struct {
	pin
	expires int64
}

// newTable makes a table for n pins, with a third more room, as sets fill unevenly.
func newTable(n int) *table {
	slots := 1 << bits.Len(uint((n+n/3)-1))
	slots = max(slots, ways)
	return &table{tags: make([]uint32, slots), pins: make([]entry, slots)}
}

func (t *table) set(hash uint64) int { return int(hash&uint64(len(t.tags)/ways-1)) * ways }

func tag(hash uint64) uint32 { return uint32(hash>>32) | 1 }

// find answers the live pin of k, or nil.
func (t *table) find(k *pin, hash uint64, now int64) *entry {
	at := t.set(hash)
	for i, g := range t.tags[at : at+ways] {
		if g == tag(hash) && t.pins[at+i].same(k) {
			if t.pins[at+i].expires <= now {
				return nil
			}
			return &t.pins[at+i]
		}
	}
	return nil
}

// What insert did.
const (
	added = iota
	replaced
	evicted // a live pin, the oldest of the set
)

func (t *table) insert(p *pin, hash uint64, now, expires int64) (did int) {
	at := t.set(hash)
	best, oldest := -1, at
	for i := at; i < at+ways; i++ {
		switch e := &t.pins[i]; {
		case t.tags[i] == 0:
			best = i
		case t.tags[i] == tag(hash) && e.same(p):
			*e = entry{*p, expires}
			return replaced
		case e.expires < t.pins[oldest].expires:
			oldest = i
		}
	}
	if best < 0 {
		best = oldest
		if t.pins[best].expires > now {
			did = evicted
		}
		t.used--
	}
	t.used++
	t.tags[best] = tag(hash)
	t.pins[best] = entry{*p, expires}
	return did
}

// sweep frees what expired in the next n sets.
func (t *table) sweep(n int, now int64) {
	for range n {
		for i := t.hand; i < t.hand+ways; i++ {
			if t.tags[i] != 0 && t.pins[i].expires <= now {
				t.tags[i] = 0
				t.used--
			}
		}
		if t.hand += ways; t.hand == len(t.tags) {
			t.hand = 0
		}
	}
}

// flush frees the pins to backend; 0 is all.
func (t *table) flush(backend uint32) {
	for i := range t.tags {
		if t.tags[i] != 0 && (backend == 0 || t.pins[i].backend() == backend) {
			t.tags[i] = 0
			t.used--
		}
	}
}

// A shelf holds later fragments that came before their first: in the order of
// arrival, and by key. It never grows.
type shelf struct {
	slots       []waiting
	first, last int32 // by arrival
	free        int32
	n           int
	buckets     []bucket
}

type waiting struct {
	key   pin // the first five words
	frame uint32
	since int64
	prev  int32 // by arrival
	next  int32
	more  int32 // of the bucket, by arrival
}

type bucket struct{ first, last int32 }

const none = -1

func newShelf(n int) *shelf {
	s := &shelf{slots: make([]waiting, n), first: none, last: none, free: none, buckets: make([]bucket, 1<<bits.Len(uint(n)))}
	for i := range s.buckets {
		s.buckets[i] = bucket{none, none}
	}
	for i := n - 1; i >= 0; i-- {
		s.slots[i].next, s.free = s.free, int32(i)
	}
	return s
}

func (s *shelf) full() bool { return s.free == none }

func (s *shelf) bucket(hash uint64) *bucket { return &s.buckets[hash&uint64(len(s.buckets)-1)] }

// put adds a frame behind all others; the shelf is not full.
func (s *shelf) put(k *pin, hash uint64, frame uint32, now int64) {
	i := s.free
	w := &s.slots[i]
	s.free = w.next
	*w = waiting{key: *k, frame: frame, since: now, prev: s.last, next: none, more: none}
	if s.last == none {
		s.first = i
	} else {
		s.slots[s.last].next = i
	}
	s.last = i
	b := s.bucket(hash)
	if b.last == none {
		b.first = i
	} else {
		s.slots[b.last].more = i
	}
	b.last = i
	s.n++
}

// take calls f with the frames of k in the order of arrival and removes them.
func (s *shelf) take(k *pin, hash uint64, f func(frame uint32)) {
	b := s.bucket(hash)
	before := int32(none)
	for i := b.first; i != none; {
		w := &s.slots[i]
		more := w.more
		if !w.key.same(k) {
			before, i = i, more
			continue
		}
		f(w.frame)
		s.remove(b, before, i)
		i = more
	}
}

// oldest answers the frame that has waited longest.
func (s *shelf) oldest() (frame uint32, since int64, ok bool) {
	if s.first == none {
		return 0, 0, false
	}
	w := &s.slots[s.first]
	return w.frame, w.since, true
}

// drop removes the oldest: it is the first of its bucket too.
func (s *shelf) drop() { s.remove(s.bucket(s.slots[s.first].key.hash()), none, s.first) }

// remove takes slot i, which stands behind slot before in b, off the shelf.
func (s *shelf) remove(b *bucket, before, i int32) {
	w := &s.slots[i]
	if before == none {
		b.first = w.more
	} else {
		s.slots[before].more = w.more
	}
	if b.last == i {
		b.last = before
	}
	if w.prev == none {
		s.first = w.next
	} else {
		s.slots[w.prev].next = w.next
	}
	if w.next == none {
		s.last = w.prev
	} else {
		s.slots[w.next].prev = w.prev
	}
	w.next, s.free = s.free, i
	s.n--
}
