// Package gueencap is the kind gue-encap: Generic UDP Encapsulation over IPv4 and
// IPv6.
package gueencap

import (
	"net/netip"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/encap"
)

// Config is the arguments of the kind.
type Config struct {
	encap.Config
	Port int `hcl:"port,optional" range:"1,65535" doc:"UDP port that backends listen on for GUE"`
}

func init() {
	_, headroom := encap.GUE.Overhead()
	graph.Register(graph.Def[Config]{
		Kind:    "gue-encap",
		Summary: "wraps packets in GUE, a tunnel over UDP, towards their backend",
		Needs:   graph.L3 | graph.Backend, Forbids: graph.Sent,
		Outputs: []graph.Output{
			encap.Next: {
				Name: "next", Gives: graph.Encap | graph.Outbound, Removes: graph.L4 | graph.Fragment | graph.ICMP,
				Doc: "encapsulated packets",
			},
			encap.NoNeighbour: {Name: "no_neighbour", Else: graph.Drop, Doc: "the hardware address of the next hop is not known"},
			encap.NoRoute:     {Name: "no_route", Else: graph.Drop, Doc: "there is no way to the backend"},
			encap.TooLong:     {Name: "too_long", Else: graph.Drop, Doc: "an outer length field would wrap"},
			encap.BadLength:   {Name: "bad_length", Else: graph.Drop, Doc: "a packet in several frames ends before the last of them"},
		},
		Headroom: headroom,
		Overhead: func(Config) (int, int) { return encap.GUE.Overhead() },
		Defaults: Config{Config: encap.Defaults(), Port: 6080},
		Check:    func(c Config) error { return c.Config.Check() },
		Wants:    func(c Config) (string, string) { return c.Config.Wants() },
		Tunnel:   func(c Config) ([]netip.Prefix, uint16) { return c.Sources(), uint16(c.Port) },
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			e := encap.New(encap.GUE, c.Config, uint16(c.Port))
			env.Watch(e.Update)
			return func(core graph.Core) (graph.Node, error) { return e.Worker(core, env.Addrs()) }, nil
		},
	})
}
