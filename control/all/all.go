// Package all registers every control kind that comes with lbgraph.
package all

import (
	_ "github.com/lbgraph/lbgraph/control/admin"
	_ "github.com/lbgraph/lbgraph/control/bgp"
	_ "github.com/lbgraph/lbgraph/control/drain"
	_ "github.com/lbgraph/lbgraph/control/health"
	_ "github.com/lbgraph/lbgraph/control/inventory"
	_ "github.com/lbgraph/lbgraph/control/log"
	_ "github.com/lbgraph/lbgraph/control/metrics"
	_ "github.com/lbgraph/lbgraph/control/neigh"
	_ "github.com/lbgraph/lbgraph/control/reload"
)
