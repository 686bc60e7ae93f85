// Package graph is the contract between the kinds of node, the file that
// arranges them, and the runtime that moves packets through them; and the model:
// a file's graphs, checked, drawn and explained without a host.
//
// A kind of node is one Def, given to Register from an init function. Everything
// else reads it: the checker knows from Needs, Forbids and Outputs which ways
// through a graph make sense; the runtime sums Headroom and reserves Frames; dot,
// explain, metrics and the reference pages print the same words.
//
// Who calls: the Maker runs once for every core when a graph is built, on the
// goroutine that builds it. All methods of the Node it answers are then called by
// that core's loop alone, one at a time. What a Maker closes over is shared by
// all cores, hence immutable or atomic.
package graph
