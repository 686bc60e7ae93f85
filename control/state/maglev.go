package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"github.com/lbgraph/lbgraph/io/packet"
)

// The keys of the permutations and of the digest: the 64-bit words of the
// fractional part of pi from that of selectK on, made odd. They are part of the
// definition in docs/selection.md and will never change.
const (
	permK0   = 0xc0ac29b7c97c50dd
	permK1   = 0x3f84d5b5b5470917
	permK2   = 0x9216d5d98979fb1b
	permK3   = 0xd1310ba698dfb5ad
	digestK0 = 0x2ffd72dbd01adfb7
	digestK1 = 0xb8e1afed6a267e97
	digestK2 = 0xba7c9045f12c7f99
	digestK3 = 0x24a19947b3916cf7
)

// MinTable and MaxTable bound the size of a Maglev table, which is a prime.
const (
	MinTable = 251
	MaxTable = 1000003
)

// DefaultTable is the size of the table of a pool that names none.
const DefaultTable = 65537

// ValidTable tells whether m may be the size of a table: a prime in bounds.
func ValidTable(m int) bool {
	if m < MinTable || m > MaxTable || m%2 == 0 {
		return false
	}
	for d := 3; d*d <= m; d += 2 {
		if m%d == 0 {
			return false
		}
	}
	return true
}

// permutation answers where the backend of an address, and of a port where it has
// one, begins in a table of m slots and by how many slots it goes on.
func permutation(a packet.Addr, port uint16, m uint32) (offset, skip uint32) {
	h := packet.Mix(a.Hi^permK0, a.Lo^permK1)
	if port != 0 {
		h = packet.Mix(h^uint64(port), permK1)
	}
	h = packet.Mix(h^permK2, permK3)
	return packet.Reduce(h, m), 1 + packet.Reduce(h<<32, m-1)
}

// A candidate is a usable member, as the builder sees it.
type candidate struct {
	addr   packet.Addr
	port   uint16 // 0 for none
	ord    uint16 // tells members of one address and port apart
	slot   uint16
	weight uint32 // 1 to 1000
}

// sortCandidates brings them to the order of their ranks, which does not depend
// on the order of the file.
func sortCandidates(set []candidate) {
	slices.SortFunc(set, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.addr.Hi, b.addr.Hi), cmp.Compare(a.addr.Lo, b.addr.Lo), cmp.Compare(a.port, b.port), cmp.Compare(a.ord, b.ord))
	})
}

const (
	tailSlots = 256 // with so few slots free, look at them instead of for them
	queueSize = 64  // of a walker's queue of free slots
	lookSteps = 16  // steps of a permutation that are taken at once
)

// walker is one backend on its way through its permutation. Its place is a
// fraction of the table, as a number of 2⁻⁶⁴: there the step wraps around by
// itself, and a multiplication gives the slot. It stands in the middle of slots,
// and over MaxTable steps the rounded step drifts from there by less than a
// millionth of a slot.
type walker struct {
	at, step     uint64
	offset, skip uint32
	inv          uint32 // of skip modulo m, once the tail needs it
	rank         uint16
	head, size   uint16 // of queue
	queue        [queueSize]uint32
}

// turnGroup is a run of walkers of one weight.
type turnGroup struct {
	lo, hi         int
	weight, credit uint32
}

// builder is the scratch memory of a build.
type builder struct {
	free    []byte // by slot: 1 while it is free
	walkers []walker
	groups  []turnGroup
	tail    [tailSlots]uint32
}

var builders = sync.Pool{New: func() any { return new(builder) }}

// fillTable fills table, whose length is a prime, with the ranks of set, which is
// in order. It equals the textbook's loop (see textbook in maglev_test.go) slot by
// slot; docs/selection.md defines both. What makes it fast: each backend looks at
// its next slots a block at a time, without branches, and queues the free ones; and
// when few slots are left, the backend takes the one that comes first in its
// permutation, computed instead of searched.
func fillTable(table []uint16, set []candidate) {
	b := builders.Get().(*builder)
	defer builders.Put(b)
	m := uint32(len(table))
	b.begin(m, set)

	free := b.free
	left := len(table)
	twice := 2 * b.groups[0].weight
	want, wantBelow := uint(0), left+1
	var tail []uint32
	magic := ^uint64(0)/uint64(m) + 1
	for left > 0 {
		for g := range b.groups {
			g := &b.groups[g]
			if g.credit += 2 * g.weight; g.credit < twice {
				continue
			}
			g.credit -= twice
			for i := g.lo; i < g.hi && left > 0; i++ {
				w := &b.walkers[i]
				if left > tailSlots {
					if left < wantBelow {
						want = min(max(uint(left/(2*len(set))), 1), queueSize-lookSteps)
						wantBelow = left - left/8
					}
					c, ok := w.pop(free)
					for !ok {
						w.look(free, want)
						c, ok = w.pop(free)
					}
					table[c] = w.rank
					left--
					continue
				}
				if tail == nil {
					tail = b.rest()
				}
				j := w.first(tail, m, magic)
				table[tail[j]] = w.rank
				left--
				tail[j] = tail[left]
				tail = tail[:left]
			}
		}
	}
}

// begin sets up the scratch memory: walkers in the order of their turns.
func (b *builder) begin(m uint32, set []candidate) {
	b.free = slices.Grow(b.free[:0], int(m))[:m]
	for i := range b.free {
		b.free[i] = 1
	}
	b.walkers = slices.Grow(b.walkers[:0], len(set))[:len(set)]
	order := make([]int, len(set))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(set[y].weight, set[x].weight) })
	b.groups = b.groups[:0]
	for i, r := range order {
		c := &set[r]
		w := &b.walkers[i]
		w.offset, w.skip = permutation(c.addr, c.port, m)
		w.at, _ = bits.Div64(uint64(w.offset), 1<<63, uint64(m))
		w.step, _ = bits.Div64(uint64(w.skip), 0, uint64(m))
		w.inv, w.rank, w.head, w.size = 0, uint16(r), 0, 0
		if n := len(b.groups); n == 0 || b.groups[n-1].weight != c.weight {
			b.groups = append(b.groups, turnGroup{lo: i, weight: c.weight, credit: set[order[0]].weight})
		}
		b.groups[len(b.groups)-1].hi = i + 1
	}
}

// rest lists the slots that are still free.
func (b *builder) rest() []uint32 {
	n := 0
	for at := 0; ; at++ {
		i := bytes.IndexByte(b.free[at:], 1)
		if i < 0 {
			return b.tail[:n]
		}
		at += i
		b.tail[n] = uint32(at)
		n++
	}
}

// pop takes the next slot off the queue that is still free. ok is false when the
// queue has none.
func (w *walker) pop(free []byte) (slot uint32, ok bool) {
	for w.head < w.size {
		c := w.queue[w.head%queueSize]
		w.head++
		if free[c] != 0 {
			free[c] = 0
			return c, true
		}
	}
	return 0, false
}

// look queues the next free slots of the permutation, at least want, which is at
// most queueSize − lookSteps. One that another takes in the meantime is skipped
// by pop.
func (w *walker) look(free []byte, want uint) {
	m := uint64(len(free))
	at, step := w.at, w.step
	k := uint(0)
	for k < want {
		for range lookSteps / 4 {
			c0 := at >> 32 * m >> 32
			at += step
			c1 := at >> 32 * m >> 32
			at += step
			c2 := at >> 32 * m >> 32
			at += step
			c3 := at >> 32 * m >> 32
			at += step
			w.queue[k%queueSize] = uint32(c0)
			k += uint(free[c0])
			w.queue[k%queueSize] = uint32(c1)
			k += uint(free[c1])
			w.queue[k%queueSize] = uint32(c2)
			k += uint(free[c2])
			w.queue[k%queueSize] = uint32(c3)
			k += uint(free[c3])
		}
	}
	w.at, w.head, w.size = at, 0, uint16(k)
}

// first answers which of the free slots comes first in w's permutation: slot c
// stands at (c − offset) / skip modulo m. All free ones are still ahead of w.
// magic is 2^64/m rounded up; it divides exactly what is below 2^40.
func (w *walker) first(slots []uint32, m uint32, magic uint64) int {
	if w.inv == 0 {
		w.inv = inverse(w.skip, m)
	}
	best, at := ^uint64(0), 0
	inv, up := uint64(w.inv), uint64(m-w.offset)
	for j, c := range slots {
		x := (uint64(c) + up) * inv
		q, _ := bits.Mul64(x, magic)
		if r := x - q*uint64(m); r < best {
			best, at = r, j
		}
	}
	return at
}

// inverse answers the x with a·x = 1 modulo the prime m, by Euclid's algorithm.
func inverse(a, m uint32) uint32 {
	r0, r1 := int64(m), int64(a)
	t0, t1 := int64(0), int64(1)
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	if t0 < 0 {
		t0 += int64(m)
	}
	return uint32(t0)
}

// digest answers the number by which nodes compare their tables: of the usable
// members in order and the table of ranks; withSeed adds the pool's seed.
func digest(table []uint16, set []candidate) uint64 {
	h := packet.Mix(digestK0, uint64(len(table))^digestK1)
	for i := range set {
		c := &set[i]
		h = packet.Mix(packet.Mix(h^c.addr.Hi, digestK2)^c.addr.Lo, uint64(c.port)<<16^uint64(c.weight)^digestK3)
	}
	// Four chains side by side, since one multiplication waits for the last.
	l := [4]uint64{h ^ digestK0, h ^ digestK1, h ^ digestK2, h ^ digestK3}
	i := 0
	for ; i+16 <= len(table); i += 16 {
		for j := range l {
			t := table[i+4*j : i+4*j+4 : i+4*j+4]
			l[j] = packet.Mix(l[j]^(uint64(t[0])<<48|uint64(t[1])<<32|uint64(t[2])<<16|uint64(t[3])), digestK2)
		}
	}
	for ; i < len(table); i++ {
		l[0] = packet.Mix(l[0]^uint64(table[i]), digestK2)
	}
	return packet.Mix(packet.Mix(packet.Mix(l[0]^digestK1, l[1]^digestK0)^l[2], digestK3)^l[3], digestK0)
}

// withSeed answers the digest of a pool with that seed; the table does not depend
// on it, the selection does.
func withSeed(digest, seed uint64) uint64 { return packet.Mix(digest^seed, digestK1) }

// tableKey answers what a table depends on, to find it again: its size and, of
// each usable member in order, address, port, weight and slot.
func tableKey(m int, set []candidate) string {
	k := make([]byte, 0, 4+len(set)*24)
	k = binary.BigEndian.AppendUint32(k, uint32(m))
	for i := range set {
		c := &set[i]
		k = binary.BigEndian.AppendUint64(k, c.addr.Hi)
		k = binary.BigEndian.AppendUint64(k, c.addr.Lo)
		k = binary.BigEndian.AppendUint16(k, c.port)
		k = binary.BigEndian.AppendUint16(k, uint16(c.weight))
		k = binary.BigEndian.AppendUint16(k, c.slot)
	}
	return string(k)
}
