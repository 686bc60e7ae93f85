package packet

// Spread mixes a flow hash once more. Flows that differ in a port or two have flow
// hashes that follow one another in even steps, so that a few bits of them may be
// far from even; what takes a few bits takes them from here. Select of a pool mixes
// by itself, with another key.
func Spread(hash uint64) uint64 { return Mix(hash^hashK2, hashK1) }
