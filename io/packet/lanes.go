package packet

import "math/bits"

// Size is the number of lanes of a vector. The knee of the cost per packet lies
// at 32 to 64, and 64 lets a set of lanes be one machine word.
const Size = 64

// Lanes is a set of lanes of a vector: bit i is lane i. A lane never moves while
// its vector is processed; joining two ways is an OR.
type Lanes uint64

// All answers the lanes 0 … n−1, n from 0 to Size.
func All(n int) Lanes {
	if n <= 0 {
		return 0
	}
	return Lanes(^uint64(0) >> (uint(Size-n) & 63))
}

// Lane answers the set that holds lane i alone.
func Lane(i int) Lanes { return 1 << (uint(i) & 63) }

// Count answers how many lanes are in the set.
func (l Lanes) Count() int { return bits.OnesCount64(uint64(l)) }

// Has tells whether lane i is in the set.
func (l Lanes) Has(i int) bool { return l>>(uint(i)&63)&1 != 0 }

// Next answers the lowest lane of the set, to be masked with & 63 by the caller
// where the compiler must see the bound; 64 for the empty set. The walk over a set is
//
//	for l := in; l != 0; l &= l - 1 {
//		i := l.Next()
//		…
//	}
func (l Lanes) Next() int { return bits.TrailingZeros64(uint64(l)) }

// End answers the number behind the highest lane of the set; 0 for the empty set. Where
// nearly all lanes are in the set, this walk is cheaper than that of Next, whose instruction
// takes six steps on some processors:
//
//	for i, end := in.Next(), in.End(); i < end; i++ {
//		if !in.Has(i) {
//			continue
//		}
//		…
//	}
func (l Lanes) End() int { return bits.Len64(uint64(l)) }

// Dense tells whether the set is exactly lanes 0 … n−1: then a counting loop is
// two to three times cheaper than the walk over bits.
func (l Lanes) Dense() (n int, ok bool) {
	return bits.OnesCount64(uint64(l)), l&(l+1) == 0
}
