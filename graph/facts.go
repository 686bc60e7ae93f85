package graph

import (
	"math/bits"
	"strings"
)

// Facts is a set of things known to hold on a packet or a connection.
type Facts uint32

// The facts. Packet facts come first, stream facts after them.
const (
	// L3: the outermost IP header is parsed and the hash column set (after
	// encapsulation: the outer header).
	L3 Facts = 1 << iota
	// L4: ports are known; 0 where the protocol has none.
	L4
	// Fragment: a later fragment.
	Fragment
	// ICMP: ICMP or ICMPv6.
	ICMP
	// Flow: the flow columns hold the 5-tuple of the client's flow and its hash.
	Flow
	// VIP: the destination is a VIP; with Flow, the service is set too.
	VIP
	// Backend: a backend is chosen.
	Backend
	// Encap: an outer header of ours is in front.
	Encap
	// Outbound: the frame may leave: encapsulated, a reply, or explicitly
	// reflected.
	Outbound
	// Conn: an accepted connection.
	Conn
	// TLS: the connection's TLS is terminated.
	TLS
	// HTTP: a parsed request head.
	HTTP
	// Pool: a backend of a pool is chosen for the connection or request.
	Pool
)

// Sent is what the last step before transmission gives: these are forbidden on
// arrival at nearly every kind.
const Sent = Encap | Outbound

var factNames = [...]string{"l3", "l4", "fragment", "icmp", "flow", "vip", "backend", "encap", "outbound", "conn", "tls", "http", "pool"}

var factDocs = [...]string{
	"the outermost IP header is parsed",
	"ports are known (0 where the protocol has none)",
	"a later fragment",
	"ICMP or ICMPv6",
	"the 5-tuple of the client's flow and its hash are set",
	"the destination is a VIP; with flow, its service is set",
	"a backend is chosen",
	"an outer header of ours is in front",
	"the frame may leave: encapsulated, a reply, or reflected",
	"an accepted connection",
	"TLS is terminated",
	"a parsed request head",
	"a backend of a pool is chosen",
}

// Has tells whether all of g hold.
func (f Facts) Has(g Facts) bool { return f&g == g }

// String lists the facts in their order, separated by ", "; "nothing" for none.
func (f Facts) String() string {
	if f == 0 {
		return "nothing"
	}
	var names []string
	for ; f != 0; f &= f - 1 {
		names = append(names, factNames[bits.TrailingZeros32(uint32(f))])
	}
	return strings.Join(names, ", ")
}

// AllFacts answers every fact with its name and one sentence, in order.
func AllFacts() []struct {
	Fact      Facts
	Name, Doc string
} {
	var all []struct {
		Fact      Facts
		Name, Doc string
	}
	for i, n := range factNames {
		all = append(all, struct {
			Fact      Facts
			Name, Doc string
		}{1 << i, n, factDocs[i]})
	}
	return all
}
