// Package all registers every kind of node that comes with lbgraph.
package all

import (
	_ "github.com/lbgraph/lbgraph/nodes/packet/count"
	_ "github.com/lbgraph/lbgraph/nodes/packet/decap"
	_ "github.com/lbgraph/lbgraph/nodes/packet/drop"
	_ "github.com/lbgraph/lbgraph/nodes/packet/frag-pin"
	_ "github.com/lbgraph/lbgraph/nodes/packet/generate"
	_ "github.com/lbgraph/lbgraph/nodes/packet/gre-encap"
	_ "github.com/lbgraph/lbgraph/nodes/packet/gue-encap"
	_ "github.com/lbgraph/lbgraph/nodes/packet/handoff"
	_ "github.com/lbgraph/lbgraph/nodes/packet/icmp-vip"
	_ "github.com/lbgraph/lbgraph/nodes/packet/ipip-encap"
	_ "github.com/lbgraph/lbgraph/nodes/packet/maglev-select"
	_ "github.com/lbgraph/lbgraph/nodes/packet/mss-clamp"
	_ "github.com/lbgraph/lbgraph/nodes/packet/mtu-check"
	_ "github.com/lbgraph/lbgraph/nodes/packet/parse"
	_ "github.com/lbgraph/lbgraph/nodes/packet/pcap-rx"
	_ "github.com/lbgraph/lbgraph/nodes/packet/pcap-tx"
	_ "github.com/lbgraph/lbgraph/nodes/packet/punt"
	_ "github.com/lbgraph/lbgraph/nodes/packet/reflect"
	_ "github.com/lbgraph/lbgraph/nodes/packet/sample"
	_ "github.com/lbgraph/lbgraph/nodes/packet/source-filter"
	_ "github.com/lbgraph/lbgraph/nodes/packet/ttl"
	_ "github.com/lbgraph/lbgraph/nodes/packet/vip-classify"
	_ "github.com/lbgraph/lbgraph/nodes/packet/xdp-rx"
	_ "github.com/lbgraph/lbgraph/nodes/packet/xdp-tx"
)
