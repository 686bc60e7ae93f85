// Package all registers every control kind that comes with lbgraph.
package all
