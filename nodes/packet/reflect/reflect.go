// Package reflect is the kind "reflect": it sends frames back to where they came from.
package reflect

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "reflect",
		Summary: "turns frames round: MAC addresses are exchanged, nothing else",
		Forbids: graph.VIP | graph.Backend | graph.Sent,
		Outputs: []graph.Output{{Name: "next", Gives: graph.Outbound, Doc: "all frames, on their way back"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return worker{}, nil }, nil
		},
	})
}

type worker struct{}

// Process is part of graph.Node.
func (worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	for ; in != 0; in &= in - 1 {
		// What is no Ethernet frame has nothing to exchange.
		if b := v.Bytes(in.Next()); len(b) >= packet.EtherLen {
			packet.SwapMACs(b)
		}
	}
}
