// Package count is the kind "count": it counts packets and bytes at a place of the
// operator's choice.
package count

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "count",
		Summary: "counts the packets and bytes that come by",
		Outputs: []graph.Output{{Name: "next", Doc: "all packets"}},
		Counters: []graph.Counter{
			packets: {Name: "packets", Doc: "packets that came by"},
			octets:  {Name: "bytes", Doc: "bytes of their frames, from the Ethernet header on"},
		},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(core graph.Core) (graph.Node, error) { return worker{core}, nil }, nil
		},
	})
}

// Counter numbers.
const (
	packets = iota
	octets
)

type worker struct{ core graph.Core }

// Process is part of graph.Node.
func (w worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	var sum uint64
	if n, ok := in.Dense(); ok {
		sum = v.Octets(n)
	} else {
		for l := in; l != 0; l &= l - 1 {
			sum += uint64(v.Total[l.Next()&63])
		}
	}
	w.core.Count(packets, uint64(in.Count()))
	w.core.Count(octets, sum)
}
