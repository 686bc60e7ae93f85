// Package all registers every kind of node that comes with lbgraph.
package all

import (
	_ "github.com/lbgraph/lbgraph/nodes/packet/gre-encap"
	_ "github.com/lbgraph/lbgraph/nodes/packet/parse"
)
