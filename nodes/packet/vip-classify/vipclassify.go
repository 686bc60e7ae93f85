// Package vipclassify is the kind "vip-classify": it finds the service that a
// packet's destination stands for, and tells VIP traffic from all else.
package vipclassify

import (
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "vip-classify",
		Summary: "finds the service that a packet's destination stands for, and tells VIP traffic from all else",
		Needs:   graph.L3,
		Forbids: graph.VIP | graph.Sent,
		Outputs: []graph.Output{
			next:      {Name: "next", Only: graph.Flow, Gives: graph.VIP, Doc: "packets for a service"},
			fragment:  {Name: "fragment", Only: graph.Fragment, Gives: graph.VIP, Else: graph.Drop, Doc: "later fragments for an address of a VIP"},
			icmp:      {Name: "icmp", Only: graph.ICMP, Gives: graph.VIP, Else: graph.Punt, Doc: "ICMP for an address of a VIP, and errors about tunnels"},
			notVIP:    {Name: "not_vip", Else: graph.Punt, Doc: "the destination is no address of an enabled VIP"},
			leave:     {Name: "leave", Else: graph.Punt, Doc: "a VIP's address but not its protocol or port, where on_mismatch is leave"},
			wrongPort: {Name: "wrong_port", Else: graph.Drop, Doc: "a VIP's address but not its protocol or port"},
		},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return &worker{core: c}, nil }, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	fragment
	icmp
	notVIP
	leave
	wrongPort
)

type worker struct{ core graph.Core }

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[wrongPort]
	m := w.core.State().Matcher()
	var served packet.Lanes
	if n, ok := in.Dense(); ok {
		served = m.MatchDense(v, n)
	} else {
		for l := in; l != 0; l &= l - 1 {
			i := l.Next() & 63
			if v.Flags[i]&(packet.Later|packet.ICMP) == 0 && !mapped(v, i) {
				if s, verdict := m.Match(v.Dst[i], v.Proto[i], v.DPort[i]); verdict == state.Served {
					v.VIP[i] = s
					served |= packet.Lane(i)
				}
			}
		}
	}
	out[next] = served
	for other := in &^ served; other != 0; other &= other - 1 {
		i := other.Next() & 63
		out[classify(m, v, i)] |= packet.Lane(i)
	}
}

// mapped tells whether an IPv6 packet goes to the mapped form of an IPv4 address
// (RFC 4291 §2.5.5.2), which no packet on a wire should: it is not for the VIP of
// the IPv4 address.
func mapped(v *packet.Vector, i int) bool {
	return v.Flags[i]&packet.V6 != 0 && v.Dst[i].Is4()
}

// classify answers where a lane goes that no service takes.
func classify(m *state.Matcher, v *packet.Vector, i int) int {
	v.VIP[i] = 0
	switch {
	case mapped(v, i):
		return notVIP
	case v.Flags[i]&(packet.Later|packet.ICMP) == 0:
		switch _, verdict := m.Match(v.Dst[i], v.Proto[i], v.DPort[i]); verdict {
		case state.Leave:
			return leave
		case state.WrongPort:
			return wrongPort
		}
		return notVIP
	case !m.MatchAddr(v.Dst[i]):
		if v.Flags[i]&packet.ICMP != 0 {
			if _, ok := v.TunnelError(i); ok {
				return icmp // about our own tunnel: icmp-vip takes note of it
			}
		}
		return notVIP
	case v.Flags[i]&packet.Later != 0:
		return fragment
	}
	return icmp
}

// Trace is part of graph.Tracer.
func (w *worker) Trace(v *packet.Vector, lane int) string {
	if s := w.core.State(); int(v.VIP[lane&63]) < len(s.Services) && v.VIP[lane&63] != 0 {
		return "vip " + s.Services[v.VIP[lane&63]].VIP
	}
	return "no service"
}
