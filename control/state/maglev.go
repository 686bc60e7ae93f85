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
// fractional part of pi from that of SelectK on, made odd. They are part of the
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
	blockSize = 64  // steps of a permutation that are looked at together, at most
	turnsSize = 512 // turns that are put in order together, at least
)

// walker is one backend on its way through its permutation, in a block of it. A place
// is a fraction of the table, as a number of 2⁻³²: there a step wraps around by itself,
// and a multiplication gives the slot. The block begins in the middle of a slot, and
// within it the rounded step drifts from there by less than a fiftieth of a slot.
type walker struct {
	open       uint64 // bit j: step j of the block is ahead, and was free when looked at
	base, step uint32
	slot       uint16 // of the member: what its cells of the table say
}

// path is what a walker needs rarely. In numbers of 2⁻⁶⁴ the drift over MaxTable steps
// is less than a millionth of a slot.
type path struct {
	at, step     uint64 // of the next block
	offset, skip uint32
	inv          uint64 // of skip modulo the table's size, by that size, once the tail needs it
}

// turnGroup is a run of walkers of one weight. In each round its credit grows by twice
// the weight, and by twice the largest weight it pays for a turn of each.
type turnGroup struct {
	lo, hi         uint16
	weight, credit uint32
}

// builder is the scratch memory of a build.
type builder struct {
	taken   []byte // by slot: 1 once it is taken
	block   uint32 // steps at a time; a multiple of 4
	order   []int
	walkers []walker
	paths   []path // of the walkers
	groups  []turnGroup
	due     []uint16 // groups that have a turn in a round
	turns   []uint16 // walkers in the order of their turns
	tail    [tailSlots]uint32
}

var builders = sync.Pool{New: func() any { return new(builder) }}

// fillTable fills table, whose length is a prime, with the slots of set, which is
// in order. It equals the textbook's loop (see textbook in maglev_test.go) slot by
// slot; docs/selection.md defines both. What makes it fast: each backend looks at
// its next slots a block at a time, without branches, and keeps one bit for each that
// is free, so that all backends fit a fast cache; and when few slots are left, the
// backend takes the one that comes first in its permutation, computed instead of
// searched.
func fillTable(table []uint16, set []candidate) {
	b := builders.Get().(*builder)
	defer builders.Put(b)
	b.begin(uint32(len(table)), set)

	m := uint32(len(table))
	var tail []uint32
	for left := len(table); left > 0; {
		turns := b.rounds()
		turns = turns[:min(len(turns), left)]
		fast := min(len(turns), max(left-tailSlots, 0))
		for k := take(b.walkers, turns[:fast], b.taken, table); k < fast; {
			b.look(turns[k])
			k += take(b.walkers, turns[k:fast], b.taken, table)
		}
		for _, i := range turns[fast:] {
			if tail == nil {
				tail = b.rest()
			}
			j := b.paths[i].first(tail, m)
			table[tail[j]] = b.walkers[i].slot
			tail[j] = tail[len(tail)-1]
			tail = tail[:len(tail)-1]
		}
		left -= len(turns)
	}
}

// begin sets up the scratch memory: walkers in the order of their turns.
func (b *builder) begin(m uint32, set []candidate) {
	b.taken = slices.Grow(b.taken[:0], int(m))[:m]
	clear(b.taken)
	// What a backend knows of its block grows old while the others take their turns.
	b.block = blockSize
	if len(set) > 4*blockSize {
		b.block = blockSize / 2
	}
	b.walkers = slices.Grow(b.walkers[:0], len(set))[:len(set)]
	b.paths = slices.Grow(b.paths[:0], len(set))[:len(set)]
	b.order = slices.Grow(b.order[:0], len(set))[:len(set)]
	for i := range b.order {
		b.order[i] = i
	}
	slices.SortStableFunc(b.order, func(x, y int) int { return cmp.Compare(set[y].weight, set[x].weight) })
	b.groups, b.turns = b.groups[:0], b.turns[:0]
	for i, r := range b.order {
		c, p := &set[r], &b.paths[i]
		p.offset, p.skip = permutation(c.addr, c.port, m)
		p.at, _ = bits.Div64(uint64(p.offset), 1<<63, uint64(m))
		p.step, _ = bits.Div64(uint64(p.skip), 0, uint64(m))
		p.inv = 0
		b.walkers[i] = walker{step: uint32(p.step >> 32), slot: c.slot}
		if n := len(b.groups); n == 0 || b.groups[n-1].weight != c.weight {
			b.groups = append(b.groups, turnGroup{lo: uint16(i), weight: c.weight, credit: set[b.order[0]].weight})
		}
		b.groups[len(b.groups)-1].hi = uint16(i + 1)
	}
	b.due = slices.Grow(b.due[:0], len(b.groups))[:len(b.groups)]
}

// rounds answers whose turns the next ones are, up to the end of a round.
func (b *builder) rounds() []uint16 {
	if len(b.groups) == 1 && len(b.turns) > 0 {
		return b.turns // all rounds are alike
	}
	turns, due, pay := b.turns[:0], b.due, 2*b.groups[0].weight
	for len(turns) < turnsSize {
		// Weights make a pattern that no processor foresees: so without a branch.
		n := 0
		for i := range b.groups {
			g := &b.groups[i]
			credit := g.credit + 2*g.weight - pay
			short := uint32(int32(credit) >> 31) // all ones where it does not pay
			g.credit = credit + pay&short
			due[n] = uint16(i)
			n += int(1 + short)
		}
		for _, i := range due[:n] {
			g := &b.groups[i]
			for j := g.lo; j < g.hi; j++ {
				turns = append(turns, j)
			}
		}
	}
	b.turns = turns
	return turns
}

// rest lists the slots that are still free.
func (b *builder) rest() []uint32 {
	n := 0
	for at := 0; ; at++ {
		i := bytes.IndexByte(b.taken[at:], 0)
		if i < 0 {
			return b.tail[:n]
		}
		at += i
		b.tail[n] = uint32(at)
		n++
	}
}

// take gives turns until a walker has to look for free slots, and answers how many. It
// calls nothing, so that all it works with is in registers.
func take(walkers []walker, turns []uint16, taken []byte, table []uint16) int {
	m := uint64(len(table))
	taken = taken[:len(table)]
	for k, i := range turns {
		w := &walkers[i]
		for {
			if w.open == 0 {
				return k
			}
			j := uint32(bits.TrailingZeros64(w.open))
			w.open &= w.open - 1
			// Another may have taken it since.
			if c := uint64(w.base+j*w.step) * m >> 32; taken[c] == 0 {
				taken[c] = 1
				table[c] = w.slot
				break
			}
		}
	}
	return len(turns)
}

// look takes walker i to the next block of its permutation that has free slots.
func (b *builder) look(i uint16) {
	w, p, taken := &b.walkers[i], &b.paths[i], b.taken
	m, step := uint64(len(taken)), w.step
	for w.open == 0 {
		w.base = uint32(p.at >> 32)
		p.at += uint64(b.block) * p.step
		at := w.base + b.block*step // backwards, since the first one is the lowest bit
		shut := uint64(0)
		for range b.block / 4 {
			at -= step
			shut = shut*2 + uint64(taken[uint64(at)*m>>32])
			at -= step
			shut = shut*2 + uint64(taken[uint64(at)*m>>32])
			at -= step
			shut = shut*2 + uint64(taken[uint64(at)*m>>32])
			at -= step
			shut = shut*2 + uint64(taken[uint64(at)*m>>32])
		}
		w.open = shut ^ (1<<b.block - 1)
	}
}

// first answers which of the free slots comes first in p's permutation: slot c stands
// at (c − offset) / skip modulo m. All free ones are still ahead. By m that is a fraction,
// of which a multiplication in numbers of 2⁻⁶⁴ keeps what counts: two are apart by 1/m at
// least, and rounding makes less than 2⁻⁴⁰ of it, with a slot's index in the low bits.
func (p *path) first(slots []uint32, m uint32) int {
	if p.inv == 0 {
		p.inv, _ = bits.Div64(uint64(inverse(p.skip, m)), uint64(m-1), uint64(m)) // rounded up
	}
	least, inv, up := ^uint64(0), p.inv, uint64(m-p.offset)
	for j, c := range slots {
		if x := (uint64(c)+up)*inv&^(tailSlots-1) | uint64(j); x < least {
			least = x
		}
	}
	return int(least % tailSlots)
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
// members in order and the table, with ranks for its slots; withSeed adds the pool's seed.
func digest(table []uint16, set []candidate) uint64 {
	h, slots := packet.Mix(digestK0, uint64(len(table))^digestK1), 0
	for i := range set {
		c := &set[i]
		h = packet.Mix(packet.Mix(h^c.addr.Hi, digestK2)^c.addr.Lo, uint64(c.port)<<16^uint64(c.weight)^digestK3)
		slots = max(slots, int(c.slot)+1)
	}
	rank := make([]uint16, slots)
	for i := range set {
		rank[set[i].slot] = uint16(i)
	}
	// Four chains side by side, since one multiplication waits for the last.
	l := [4]uint64{h ^ digestK0, h ^ digestK1, h ^ digestK2, h ^ digestK3}
	i := 0
	for ; i+16 <= len(table); i += 16 {
		for j := range l {
			t := table[i+4*j : i+4*j+4 : i+4*j+4]
			l[j] = packet.Mix(l[j]^(uint64(rank[t[0]])<<48|uint64(rank[t[1]])<<32|uint64(rank[t[2]])<<16|uint64(rank[t[3]])), digestK2)
		}
	}
	for ; i < len(table); i++ {
		l[0] = packet.Mix(l[0]^uint64(rank[table[i]]), digestK2)
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
