// Package lang reads the configuration file: blocks, variables, locals,
// references, functions and paths. It answers a graph.File in which every name is
// followed and every path is edges, or diagnostics that show the line, the reason
// and the remedy; and it formats files and prints diagnostics. Whether a graph
// makes sense is not its question but that of graph.Check, which takes the file.
//
// Load goes through a file in this order. Each step leaves out what an earlier one
// found at fault, so that one mistake makes one message, and independent mistakes
// are all told at once:
//
//	parse        syntax; with an error in it nothing further is looked at
//	root         which blocks there are, their names, none of them twice
//	include      pools and VIPs of the files that control blocks name
//	evaluation   variables, then the names pool.x, vip.x, health.x, then locals
//	pools, vips  into state.Spec
//	graph        nodes, paths and next into instances and edges
//	controls     all other blocks, by their registered kind
//	checkSpec    pools and VIPs against each other
//
// Files whose name ends in .json are read as the JSON form of HCL.
//
// graph.File.Places has, besides the heads of blocks ("pool.web", "graph.edge",
// "health.http"), the value of every argument: "pool.web.table_size",
// "pool.web.web-1.address" for a backend, "vip.web.ports[1]",
// "graph.edge.network_mtu", "graph.edge.ct.timeouts.udp" for one of a node,
// "metrics.listen".
//
// All functions may be called from any goroutine.
package lang
