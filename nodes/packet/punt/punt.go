// Package punt is the kind "punt": it gives packets to the kernel.
package punt

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "punt",
		Summary: "gives packets to the kernel",
		Forbids: graph.Backend | graph.Sent,
		Outputs: []graph.Output{{Name: "no_punt", Else: graph.Drop, Doc: "there is no way to the kernel, or it is full"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(core graph.Core) (graph.Node, error) { return worker{core}, nil }, nil
		},
	})
}

type worker struct{ core graph.Core }

// Process is part of graph.Node.
func (w worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = w.core.Punt(v, in)
}
