// Package runtime compiles a checked packet graph into one loop per core and runs
// the loops: an Engine owns the frames, the ports, the rings between cores and the
// counters, and swaps the loops' programs between two vectors on reload.
//
// It knows no kind of node and no driver. Kinds reach it through graph.Core and
// graph.Env, drivers through the Driver interface.
//
// # Frames
//
// All frames are chunks of one memory. Each core owns an equal range of them: the
// frame's home. At every quiet point (between two vectors) each frame is in exactly
// one place: a port's fill, receive, transmit or completion ring, held by a node,
// waiting in a ring between cores or to enter a pass, or in the free list of its
// home. Census counts them; the sum is the number of frames owned.
//
// # A pass
//
// Sources fill a vector; nodes run in topological order, each at most once a
// vector, on the union of the lanes that lead to it. Frames that were released,
// made, or passed by another core enter behind an output in a vector of their own,
// before the next receive, in their order.
package runtime
