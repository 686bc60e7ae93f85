// Package packet holds what travels through a packet graph: the Vector (one
// batch of up to 64 packets on one core, stored as columns), the Lanes (a set of
// the packets of a vector), addresses, the hash that picks backends, header
// offsets and Internet checksums. It imports the standard library alone.
//
// Nothing in this package is safe for concurrent use: a vector belongs to the one
// core that runs it.
package packet
