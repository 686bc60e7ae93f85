//go:build !purego

package packet

// Above answers the lanes with a value above limit in a column, also lanes that hold no packet.
// Nodes ask so for what is rare: which packets are too long.
//
//go:noescape
func Above(column *[Size]uint32, limit uint32) Lanes
