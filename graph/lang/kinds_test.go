package lang_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbgraph/lbgraph/graph"
)

// The kinds of the real catalogue are written elsewhere; these have the same
// outputs and arguments, and build nothing.

func outputs(names ...string) (os []graph.Output) {
	for _, n := range names {
		o := graph.Output{Name: n}
		switch n[0] {
		case '-':
			o.Name, o.Else = n[1:], graph.Drop
		case '^':
			o.Name, o.Else = n[1:], graph.Punt
		}
		os = append(os, o)
	}
	return os
}

func packets[C any](kind string, defaults C, outs ...string) {
	graph.Register(graph.Def[C]{
		Kind: kind, Summary: "stands in for " + kind, Defaults: defaults, Outputs: outputs(outs...),
		Packets: func(C, *graph.Env) (graph.Maker, error) { return nil, errors.New("a stand-in builds nothing") },
	})
}

func control[C any](kind string, defaults C, single bool) {
	graph.Register(graph.Def[C]{
		Kind: kind, Summary: "stands in for " + kind, Defaults: defaults, Single: single,
		Control: func(C, *graph.Env) (graph.Control, error) { return nil, errors.New("a stand-in builds nothing") },
	})
}

type timeouts struct {
	TCPEstablished time.Duration `hcl:"tcp_established,optional" range:"1s,24h" doc:"of an established connection"`
	UDP            time.Duration `hcl:"udp,optional" doc:"of UDP"`
}

type conntrack struct {
	Entries  int      `hcl:"entries,optional" range:"1024,16777216" doc:"entries a core"`
	Timeouts timeouts `hcl:"timeouts,block" doc:"how long an entry lives"`
	NewFlows int      `hcl:"new_flows,optional" doc:"new flows a second and core; 0 is no cap"`
}

type handoff struct {
	Cores []int `hcl:"cores" range:"0,63" doc:"cores that take over"`
}

type greEncap struct {
	Source  netip.Prefix `hcl:"source,optional" doc:"outer source"`
	NextHop string       `hcl:"next_hop,optional" doc:"sender, an address, or kernel"`
	TTL     uint8        `hcl:"ttl,optional" doc:"outer TTL"`
	Scale   float64      `hcl:"scale,optional" range:"0,1" doc:"a float"`
	Small   float32      `hcl:"small,optional" doc:"a small float"`
	Signed  int8         `hcl:"signed,optional" doc:"a small integer"`
	Keep    bool         `hcl:"keep,optional" doc:"a flag"`
}

type peer struct {
	Name        string            `hcl:"name,label"`
	Address     netip.Addr        `hcl:"address" doc:"the router's address"`
	ASN         uint16            `hcl:"asn" doc:"the router's AS number"`
	Hold        time.Duration     `hcl:"hold,optional" range:"3s," doc:"hold time"`
	Communities []string          `hcl:"communities,optional" doc:"communities"`
	Labels      map[string]string `hcl:"labels,optional" doc:"free text"`
	Password    string            `hcl:"password,optional" secret:"true" doc:"of the session"`
}

func (p *peer) SetDefaults() { p.Hold = 90 * time.Second }

type inventory struct {
	File string `hcl:"file" doc:"a JSON file"`
}

func init() {
	type none = struct{}
	packets("xdp-rx", struct {
		Interface string `hcl:"interface" doc:"the device"`
		Queues    int    `hcl:"queues,optional" range:"0,64" doc:"number of queues; 0 is all"`
		Mode      string `hcl:"mode,optional" enum:"auto,native,generic" doc:"XDP mode"`
	}{Mode: "auto"}, "next")
	packets("parse", none{}, "next", "-fragment", "^icmp", "^other", "-truncated")
	packets("vip-classify", none{}, "next", "-fragment", "^icmp", "^not_vip", "-wrong_port")
	packets("frag-pin", none{}, "next", "-pinned", "-frag_full")
	packets("conntrack", conntrack{Entries: 131072, Timeouts: timeouts{time.Minute, 30 * time.Second}}, "hit", "miss")
	packets("maglev-select", none{}, "next", "-no_backend")
	packets("mss-clamp", none{}, "next")
	packets("mtu-check", none{}, "next", "reply", "-too_big")
	packets("icmp-vip", none{}, "next", "reply", "^pass", "-bad_quote")
	graph.Register(graph.Def[handoff]{
		Kind: "handoff", Summary: "stands in for handoff", Outputs: outputs("next", "-ring_full"),
		Check: func(h handoff) error {
			for i, c := range h.Cores {
				for _, d := range h.Cores[:i] {
					if c == d {
						return graph.BadArgument(fmt.Sprintf("cores[%d]", i), "core %d is listed twice. List each core once", c)
					}
				}
			}
			return nil
		},
		Packets: func(handoff, *graph.Env) (graph.Maker, error) { return nil, errors.New("a stand-in builds nothing") },
	})
	packets("xdp-tx", struct {
		Interface string `hcl:"interface,optional" doc:"the device"`
	}{}, "-tx_full")
	packets("drop", none{})
	packets("accept", struct {
		Address netip.AddrPort `hcl:"address,optional" doc:"where to listen"`
	}{}, "next")
	packets("balance", struct {
		Pool string `hcl:"pool" ref:"pool" doc:"the pool"`
	}{}, "next")
	packets("proxy", none{})
	for _, k := range []string{"accept", "balance", "proxy"} {
		graph.Lookup(k).Plane = graph.StreamPlane
	}
	packets("gre-encap", greEncap{TTL: 64}, "next", "-no_neighbour")

	control("health", struct {
		Path     string        `hcl:"path,optional" doc:"what is asked for"`
		Interval time.Duration `hcl:"interval,optional" range:"100ms,1h" doc:"between two probes"`
	}{"/", 5 * time.Second}, false)
	control("bgp", struct {
		ASN   uint32 `hcl:"asn,optional" doc:"our AS number"`
		Peers []peer `hcl:"peer,block" doc:"a router"`
	}{}, true)
	control("metrics", struct {
		Listen netip.AddrPort `hcl:"listen,optional" doc:"where to listen"`
	}{netip.MustParseAddrPort("127.0.0.1:9100")}, true)
	control("inventory", inventory{}, false)
	graph.Lookup("inventory").Includes = func(c any) []string { return []string{c.(*inventory).File} }
	control("admin", none{}, true)
}
