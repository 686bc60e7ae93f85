// Package bench measures packet graphs over memory, beside a reference: a scalar
// pipeline that does the same work packet by packet.
//
// A Port stands in for the interface. Packets are written into its frames between
// the measured slices, so that a slice is the graph and the engine alone, but for
// columns to be filled; what that costs is measured too, and taken off. A slice
// is some microseconds long, hence mostly undisturbed, and the median of many says
// what the work costs, on a machine that has other work as well.
package bench
