//go:build !amd64 || purego

package packet

// Above answers the lanes with a value above limit in a column, also lanes that hold no packet.
// Nodes ask so for what is rare: which packets are too long.
func Above(column *[Size]uint32, limit uint32) Lanes { return above(column, limit) }
