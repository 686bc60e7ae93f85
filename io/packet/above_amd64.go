//go:build !purego

package packet

// Above answers the lanes of in with a value above limit in a column. Nodes ask so for what is
// rare: which packets are too long.
//
//go:noescape
func Above(column *[Size]uint32, limit uint32, in Lanes) (l Lanes)
