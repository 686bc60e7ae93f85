// Package all registers every control kind that comes with lbgraph.
package all

import (
	_ "github.com/lbgraph/lbgraph/control/admin"
	_ "github.com/lbgraph/lbgraph/control/bgp"
	_ "github.com/lbgraph/lbgraph/control/health"
	_ "github.com/lbgraph/lbgraph/control/metrics"
	_ "github.com/lbgraph/lbgraph/control/neigh"
)
