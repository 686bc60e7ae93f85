// Package lang reads the configuration file: blocks, variables, locals,
// references, functions and paths. It answers a graph.File in which every name is
// followed and every path is edges, or diagnostics that show the line, the reason
// and the remedy; and it formats files and prints diagnostics.
//
// Files whose name ends in .json are read as the JSON form of HCL. All functions
// may be called from any goroutine.
package lang
