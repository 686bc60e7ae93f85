package bgp

import (
	"context"
	"net/netip"
)

// A speaker talks BGP with peers, which are told apart by their address. Its methods
// are for one goroutine. A peer that was added tries to reach its router once, or
// about once; the loop deletes it and adds it again when it is to try again.
type speaker interface {
	// start begins to speak, with nothing to say and no peers. tell is called with
	// every event, from any goroutine; it does not block.
	start(asn uint32, routerID netip.Addr, tell func(event)) error
	// stop ends all sessions and answers when they have ended, or ctx has.
	stop(ctx context.Context) error
	announce(netip.Prefix) error
	withdraw(netip.Prefix) error
	// export says what routes of a family carry to a peer; what no rule is for does
	// not go there. It takes the place of earlier rules, for what is sent from now on.
	export([]rule) error
	// refresh sends a peer all its routes again.
	refresh(peer netip.Addr) error
	add(t transport, password string) error
	remove(peer netip.Addr) error
	// counts answers the routes sent to and had from established peers.
	counts() (map[netip.Addr]count, error)
}

// A rule is for the routes of one family to one peer.
type rule struct {
	peer netip.Addr
	six  bool       // the family of the routes
	hop  netip.Addr // their next hop
	attributes
}

type count struct{ announced, received uint64 }

// phase is the state of a session (RFC 4271 section 8.2.2).
type phase uint8

const (
	idle phase = iota
	active
	openSent
	openConfirm
	established
)

// String answers the state's name in RFC 4271. Connect is not told from Active.
func (p phase) String() string {
	return [...]string{"Idle", "Active", "OpenSent", "OpenConfirm", "Established"}[p]
}

// An event is something that a session did.
type event struct {
	peer  netip.Addr
	phase phase  // it is in now
	fault string // instead of phase, if not "": the attempt to reach the router failed
	// reason, if not "", is why the next phase will be what it is; there is no phase.
	reason string
}
