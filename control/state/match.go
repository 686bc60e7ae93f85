package state

import "github.com/lbgraph/lbgraph/io/packet"

// Verdict says how a destination is served.
type Verdict uint8

const (
	// NotVIP: no enabled VIP covers the address.
	NotVIP Verdict = iota
	// Served: the answered service takes it.
	Served
	// WrongPort: a VIP's address, but not its protocol or port; drop.
	WrongPort
	// Leave: as WrongPort, but the VIP leaves such packets to the kernel.
	Leave
)

// A Matcher finds the service of a destination. It is immutable once built.
type Matcher struct{}

// Match answers the service for a destination address, protocol and port. The
// most specific wins: address before prefix (longest first), then protocol before
// any, then one port before a range before all.
func (m *Matcher) Match(dst packet.Addr, proto uint8, port uint16) (service uint32, verdict Verdict) {
	return 0, NotVIP
}

// MatchAddr tells whether an enabled VIP covers dst.
func (m *Matcher) MatchAddr(dst packet.Addr) bool { return false }
