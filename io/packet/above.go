package packet

import "math/bits"

// Above answers the lanes with a value above limit in a column, also lanes that hold no packet.
// Nodes ask so what is rare: which packets are too long.
func Above(column *[Size]uint32, limit uint32) (l Lanes) {
	if hasAbove {
		return aboveLanes(column, limit)
	}
	return above(column, limit)
}

// above is Above without assembly, and without a branch for each lane.
func above(column *[Size]uint32, limit uint32) (l Lanes) {
	for i, x := range column {
		_, less := bits.Sub32(limit, x, 0)
		l |= Lanes(less) << i
	}
	return l
}
