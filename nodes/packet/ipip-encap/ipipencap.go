// Package ipipencap is the kind ipip-encap: IP in IP, all four mixes of families.
package ipipencap

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/encap"
)

func init() {
	_, headroom := encap.IPIP.Overhead()
	graph.Register(graph.Def[encap.Config]{
		Kind:    "ipip-encap",
		Summary: "wraps packets in a second IP header towards their backend",
		Needs:   graph.L3 | graph.Backend, Forbids: graph.Sent,
		Outputs: []graph.Output{
			encap.Next: {
				Name: "next", Gives: graph.Encap | graph.Outbound, Removes: graph.L4 | graph.Fragment | graph.ICMP,
				Doc: "encapsulated packets",
			},
			encap.NoNeighbour: {Name: "no_neighbour", Else: graph.Drop, Doc: "the hardware address of the next hop is not known"},
			encap.NoRoute:     {Name: "no_route", Else: graph.Drop, Doc: "there is no way to the backend"},
			encap.TooLong:     {Name: "too_long", Else: graph.Drop, Doc: "the outer length field would wrap"},
			encap.BadLength:   {Name: "bad_length", Else: graph.Drop, Doc: "a packet in several frames ends before the last of them"},
		},
		Headroom: headroom,
		Overhead: func(encap.Config) (int, int) { return encap.IPIP.Overhead() },
		Defaults: encap.Defaults(),
		Check:    encap.Config.Check,
		Wants:    encap.Config.Wants,
		Packets: func(c encap.Config, env *graph.Env) (graph.Maker, error) {
			e := encap.New(encap.IPIP, c, 0)
			env.Watch(e.Update)
			return func(core graph.Core) (graph.Node, error) { return e.Worker(core, env.Addrs()) }, nil
		},
	})
}
