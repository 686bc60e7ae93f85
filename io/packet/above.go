package packet

import "math/bits"

// above is Above, without a branch for each lane.
func above(column *[Size]uint32, limit uint32, in Lanes) (l Lanes) {
	for i, x := range column {
		_, less := bits.Sub32(limit, x, 0)
		l |= Lanes(less) << i
	}
	return l & in
}
