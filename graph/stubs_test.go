package graph_test

import (
	"errors"
	"net/netip"
	"slices"

	g "github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// The catalogue, as far as the checker sees it: kinds that move nothing. The real
// ones register under the same names, so these tests cannot import them; the tests
// of nodes/all check the same files with these.

type stub struct {
	Interface string `hcl:"interface,optional" doc:"network interface"`
	File      string `hcl:"file,optional" doc:"capture file"`
	ICMPRate  int    `hcl:"icmp_rate,optional" doc:"answers a second"`
	Answer    bool   `hcl:"answer,optional" doc:"answer with ICMP"`
	Echo      string `hcl:"echo,optional" doc:"what echo requests get"`
	Cores     []int  `hcl:"cores,optional" doc:"cores to hand to"`
	NextHop   string `hcl:"next_hop,optional" doc:"where frames go"`
}

// session is the arguments of stream kinds.
type session struct {
	Address  netip.AddrPort `hcl:"address,optional" doc:"where it listens"`
	Protocol string         `hcl:"protocol,optional" doc:"http or tcp"`
	Pool     string         `hcl:"pool,optional" doc:"whose backends are chosen"`
	Port     int            `hcl:"port,optional" doc:"of backends without one"`
	Rules    []rule         `hcl:"rule,block" doc:"an output"`

	Certificates []certificate `hcl:"certificate,block" doc:"a certificate"`
}

type rule struct {
	Name  string   `hcl:"name,label"`
	Hosts []string `hcl:"host,optional" doc:"of requests"`
	Names []string `hcl:"server_name,optional" doc:"that clients ask TLS for"`
}

type certificate struct {
	Cert string `hcl:"cert" doc:"a file"`
	Key  string `hcl:"key" doc:"a file"`
}

func drops(names ...string) (all []g.Output) {
	for _, n := range names {
		all = append(all, g.Output{Name: n, Else: g.Drop, Doc: n})
	}
	return all
}

func outputs(outs []g.Output, reasons ...string) []g.Output {
	return append(outs, drops(reasons...)...)
}

func next(gives, removes g.Facts) []g.Output {
	return []g.Output{{Name: "next", Gives: gives, Removes: removes}}
}

var reply = g.Output{Name: "reply", Gives: g.Outbound | g.ICMP, Removes: g.L4 | g.Fragment | g.Flow | g.VIP | g.Backend, Reply: true, Doc: "the answer"}

func replyIf(is func(stub) bool) func(stub) []g.Output {
	return func(c stub) []g.Output {
		if is(c) {
			return []g.Output{reply}
		}
		return nil
	}
}

func register(d g.Def[stub]) {
	d.Summary = "stands in for " + d.Kind
	d.Packets = func(stub, *g.Env) (g.Maker, error) { return nil, errors.New("a stub") }
	g.Register(d)
}

func init() {
	iface := func(c stub) string { return c.Interface }
	icmpRate := replyIf(func(c stub) bool { return c.ICMPRate > 0 })
	register(g.Def[stub]{Kind: "xdp-rx", Source: true, Outputs: next(0, 0), Interface: iface})
	register(g.Def[stub]{Kind: "pcap-rx", Source: true, Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "generate", Source: true, Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "parse", Forbids: g.L3, Outputs: outputs([]g.Output{
		{Name: "next", Gives: g.L3 | g.L4 | g.Flow},
		{Name: "fragment", Gives: g.L3 | g.Fragment, Else: g.Drop},
		{Name: "icmp", Gives: g.L3 | g.ICMP, Else: g.Punt},
		{Name: "other", Else: g.Punt},
	}, "truncated", "bad_version", "bad_length", "bad_checksum", "bad_header", "bad_tag")})
	register(g.Def[stub]{Kind: "vip-classify", Needs: g.L3, Forbids: g.VIP | g.Sent, Outputs: outputs([]g.Output{
		{Name: "next", Only: g.Flow, Gives: g.VIP},
		{Name: "fragment", Only: g.Fragment, Gives: g.VIP, Else: g.Drop},
		{Name: "icmp", Only: g.ICMP, Gives: g.VIP, Else: g.Punt},
		{Name: "not_vip", Else: g.Punt},
		{Name: "leave", Else: g.Punt},
	}, "wrong_port")})
	register(g.Def[stub]{Kind: "source-filter", Needs: g.L3 | g.VIP, Forbids: g.Sent, Outputs: outputs(next(0, 0), "denied")})
	register(g.Def[stub]{Kind: "frag-pin", Needs: g.L3 | g.VIP, Forbids: g.Backend | g.Sent, Outputs: outputs([]g.Output{
		{Name: "next", Only: g.Flow},
		{Name: "pinned", Only: g.Fragment, Gives: g.Flow | g.Backend, Else: g.Drop},
	}, "frag_full", "frag_expired", "frag_icmp")})
	register(g.Def[stub]{Kind: "icmp-vip", Needs: g.L3 | g.VIP | g.ICMP, Forbids: g.Flow | g.Backend | g.Sent, Defaults: stub{Echo: "answer"},
		Outputs: outputs([]g.Output{{Name: "next", Gives: g.Flow}, {Name: "pass", Else: g.Punt}},
			"bad_quote", "quoted_fragment", "quoted_unknown", "icmp_fragment", "icmp_type", "echo_refused"),
		OutputsOf: replyIf(func(c stub) bool { return c.Echo == "answer" })})
	register(g.Def[stub]{Kind: "conntrack", Needs: g.L3 | g.Flow | g.VIP, Forbids: g.Backend | g.Sent, Outputs: []g.Output{
		{Name: "hit", Gives: g.Backend}, {Name: "miss"}}})
	register(g.Def[stub]{Kind: "maglev-select", Needs: g.Flow | g.VIP, Forbids: g.Backend | g.Sent, Outputs: outputs(next(g.Backend, 0), "no_backend")})
	register(g.Def[stub]{Kind: "mss-clamp", Needs: g.L3 | g.Backend, Forbids: g.Sent, TakesOverhead: true, Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "mtu-check", Needs: g.L3 | g.Backend, Forbids: g.Sent, TakesOverhead: true, Guards: true, Defaults: stub{ICMPRate: 100},
		Outputs: outputs(next(0, g.L4), "too_big", "icmp_limited", "no_frame"), OutputsOf: icmpRate})
	register(g.Def[stub]{Kind: "ttl", Needs: g.L3 | g.Backend, Forbids: g.Sent,
		Outputs: outputs(next(0, 0), "expired", "icmp_limited"), OutputsOf: replyIf(func(c stub) bool { return c.Answer })})
	for kind, bytes := range map[string][2]int{"gre-encap": {24, 44}, "ipip-encap": {20, 40}, "gue-encap": {32, 52}} {
		register(g.Def[stub]{Kind: kind, Needs: g.L3 | g.Backend, Forbids: g.Sent, Headroom: bytes[1],
			Overhead: func(stub) (int, int) { return bytes[0], bytes[1] },
			Wants: func(c stub) (string, string) {
				if c.NextHop == "kernel" {
					return "neigh", `next_hop = "kernel"`
				}
				return "", ""
			},
			Outputs: outputs(next(g.Encap|g.Outbound, g.L4|g.Fragment|g.ICMP), "no_neighbour", "no_route")})
	}
	// No real kind stands behind an encapsulation and writes as much.
	register(g.Def[stub]{Kind: "label", Needs: g.Encap, Headroom: 90, Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "reflect", Forbids: g.VIP | g.Backend | g.Sent, Outputs: []g.Output{{Name: "next", Gives: g.Outbound}}})
	register(g.Def[stub]{Kind: "handoff", Needs: g.L3, Cores: func(c stub) int { return slices.Max(c.Cores) + 1 }, Defaults: stub{Cores: []int{0}}, Outputs: outputs(next(0, 0), "ring_full")})
	register(g.Def[stub]{Kind: "count", Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "sample", Outputs: next(0, 0)})
	register(g.Def[stub]{Kind: "decap", Needs: g.L3 | g.L4, Forbids: g.VIP | g.Sent, Outputs: outputs([]g.Output{
		{Name: "next", Removes: g.L3 | g.L4 | g.Flow}, {Name: "other", Else: g.Punt}}, "bad_tunnel")})
	register(g.Def[stub]{Kind: "xdp-tx", Needs: g.Outbound, Interface: iface, Outputs: drops("tx_full", "tx_too_long")})
	register(g.Def[stub]{Kind: "pcap-tx"})
	register(g.Def[stub]{Kind: "drop"})
	register(g.Def[stub]{Kind: "punt", Forbids: g.Backend | g.Sent, Outputs: drops("no_punt")})
	speaks := func(always g.Facts) func(session) []g.Output {
		return func(c session) []g.Output {
			if c.Protocol != "http" {
				return next(always, 0)
			}
			outs := next(always|g.HTTP, 0)
			if always == g.Conn { // listen
				outs[0].Without = `protocol = "tcp"`
			}
			return outs
		}
	}
	sessions := func(d g.Def[session]) {
		d.Summary, d.Defaults.Protocol = "stands in for "+d.Kind, "http"
		d.Streams = func(session, *g.Env) (stream.Stage, error) { return nil, errors.New("a stub") }
		g.Register(d)
	}
	sessions(g.Def[session]{Kind: "listen", Source: true, Outputs: drops("full", "client_full", "bad_proxy"), OutputsOf: speaks(g.Conn),
		Listens: func(c session) []g.Listen { return []g.Listen{{Address: c.Address}} }})
	sessions(g.Def[session]{Kind: "tls", Needs: g.Conn, Forbids: g.TLS | g.HTTP, Outputs: drops("handshake_failed", "handshake_timeout"), OutputsOf: speaks(g.TLS)})
	sessions(g.Def[session]{Kind: "admit", Needs: g.Conn, Outputs: outputs(next(0, 0), "overflow", "upgraded_full")})
	sessions(g.Def[session]{Kind: "route", Needs: g.Conn, Outputs: drops("no_route", "bad_hello"), OutputsOf: func(c session) (all []g.Output) {
		for _, r := range c.Rules {
			o := g.Output{Name: r.Name}
			if len(r.Hosts) > 0 {
				o.Only = g.HTTP
			}
			all = append(all, o)
		}
		return all
	}})
	sessions(g.Def[session]{Kind: "headers", Needs: g.HTTP, Outputs: next(0, 0)})
	sessions(g.Def[session]{Kind: "respond", Needs: g.HTTP})
	sessions(g.Def[session]{Kind: "balance", Needs: g.Conn, Outputs: outputs(next(g.Pool, 0), "no_backend"), Dials: func(c session) (string, int) { return c.Pool, c.Port }})
	sessions(g.Def[session]{Kind: "proxy", Needs: g.Conn | g.Pool, Outputs: drops("connect_failed", "cut")})
	g.Register(g.Def[stub]{Kind: "bgp", Summary: "stands in for bgp",
		Peers:   func(stub) []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.254")} },
		Control: func(stub, *g.Env) (g.Control, error) { return nil, errors.New("a stub") }})
	for _, kind := range []string{"metrics", "admin", "neigh"} {
		g.Register(g.Def[stub]{Kind: kind, Summary: "stands in for " + kind, Single: kind == "metrics",
			Control: func(stub, *g.Env) (g.Control, error) { return nil, errors.New("a stub") }})
	}
}
