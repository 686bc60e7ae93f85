// Package bgp is the control kind bgp: it announces the addresses of VIPs to
// routers while there are healthy backends behind them, and withdraws them
// otherwise.
//
// Decide is the policy: a pure function from a snapshot to what may be announced.
// Control holds what routers are told against it, and keeps the sessions: its one
// goroutine owns all state, and looks at everything again whenever something may
// have changed. A speaker talks the protocol: gobgp, in this process. Whatever else
// may find out that a router is gone (BFD, once there is one) needs no more than to
// send the loop an event.
package bgp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of the bgp block.
type Config struct {
	ASN           uint32        `hcl:"asn" range:"1,4294967295" doc:"AS number of this node"`
	RouterID      netip.Addr    `hcl:"router_id,optional" doc:"BGP identifier in the form of an IPv4 address; by default the address from which the first peer over IPv4 is reached"`
	AnnounceAfter time.Duration `hcl:"announce_after,optional" range:"0s,1h" doc:"how long to wait after the start, at most, until all health checks have decided"`
	DrainTime     time.Duration `hcl:"drain_time,optional" range:"0s,1h" doc:"how long to go on forwarding after the withdrawal, when the daemon stops"`
	HoldTime      time.Duration `hcl:"hold_time,optional" range:"3s,65535s" doc:"silence after which a session counts as lost, in whole seconds; keepalives go out three times as often"`
	Session
	Peers []Peer `hcl:"peer,block" doc:"a router"`
}

// Session is the arguments that hold for all peers, or for one.
type Session struct {
	Communities      []Community      `hcl:"communities,optional" doc:"communities of all routes, as in \"65000:100\" or \"no-export\""`
	LargeCommunities []LargeCommunity `hcl:"large_communities,optional" doc:"large communities of all routes, as in \"65000:1:2\""`
	MED              *uint32          `hcl:"med,optional" doc:"MULTI_EXIT_DISC of all routes; none by default"`
	LocalPref        *uint32          `hcl:"local_pref,optional" range:"1,4294967295" doc:"LOCAL_PREF of all routes, which peers of the same AS get; 100 by default"`
	NextHopIPv4      netip.Addr       `hcl:"next_hop_ipv4,optional" doc:"next hop of IPv4 routes; by default this node's address of the session, or of its interface"`
	NextHopIPv6      netip.Addr       `hcl:"next_hop_ipv6,optional" doc:"next hop of IPv6 routes; by default this node's address of the session, or of its interface"`
}

// Peer is the arguments of a peer block. Of its Session, lists are added to those
// of the bgp block; other values take their place.
type Peer struct {
	Name         string        `hcl:"name,label" doc:"what logs, metrics and status call it"`
	Address      netip.Addr    `hcl:"address" doc:"the router's address"`
	ASN          uint32        `hcl:"asn" range:"1,4294967295" doc:"the router's AS number"`
	Port         uint16        `hcl:"port,optional" range:"1,65535" doc:"the router's TCP port"`
	LocalAddress netip.Addr    `hcl:"local_address,optional" doc:"address to connect from; by default the kernel chooses"`
	PasswordFile string        `hcl:"password_file,optional" doc:"file with the password of the session's TCP MD5 signature, which nobody but its owner may read"`
	PasswordEnv  string        `hcl:"password_env,optional" doc:"environment variable with that password"`
	Multihop     uint8         `hcl:"multihop,optional" range:"0,255" doc:"TTL of packets to a router of another AS that is not on the link; 0 sends with TTL 1"`
	TTLSecurity  uint8         `hcl:"ttl_security,optional" range:"0,254" doc:"hops that packets from the router may have come, 1 for one on the link; 0 does not look"`
	HoldTime     time.Duration `hcl:"hold_time,optional" range:"3s,65535s" doc:"hold time of this session; 0s is as the bgp block says"`
	Enabled      bool          `hcl:"enabled,optional" doc:"false holds no session"`
	Session
}

// SetDefaults makes p what a peer block that says nothing is.
func (p *Peer) SetDefaults() { p.Port, p.Enabled = 179, true }

// Defaults are the values of a bgp block that says nothing.
func Defaults() Config {
	return Config{AnnounceAfter: 30 * time.Second, DrainTime: 5 * time.Second, HoldTime: 90 * time.Second}
}

// Host is what the kind needs of the daemon.
type Host interface {
	// Healthy is nil while every loop passes and every interface that traffic comes
	// by is up and has its XDP program. It is called several times a second.
	Healthy() error
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "bgp",
		Summary:  "announces the addresses of VIPs to routers while backends behind them are healthy",
		Single:   true,
		Live:     true,
		Defaults: Defaults(),
		Check:    check,
		Peers: func(c Config) (all []netip.Addr) {
			for i := range c.Peers {
				all = append(all, c.Peers[i].Address)
			}
			return all
		},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("bgp has no daemon to ask")
			}
			return newControl(c, h, e, newGoBGP(e.Log))
		},
	})
}

func check(c Config) error {
	if len(c.Peers) == 0 {
		return errors.New("there is no peer block, so nobody would be told anything; add one")
	}
	if a := c.RouterID; a.IsValid() && (!a.Is4() || a.IsUnspecified()) {
		return fmt.Errorf("router_id = %q must have the form of an IPv4 address", a)
	}
	if err := c.Session.check("bgp", c.HoldTime); err != nil {
		return err
	}
	names, addresses := map[string]bool{}, map[netip.Addr]string{}
	for i := range c.Peers {
		p := &c.Peers[i]
		who := "peer " + strconv.Quote(p.Name)
		if names[p.Name] {
			return fmt.Errorf("%s is there twice; give one of them another name", who)
		}
		names[p.Name] = true
		a := p.Address
		switch {
		case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.Zone() != "":
			return fmt.Errorf("%s: address %s is none that a session can have; write the router's global address", who, a)
		case addresses[a] != "":
			return fmt.Errorf("%s has the address %s of peer %q; sessions are told apart by their address", who, a, addresses[a])
		case p.LocalAddress.IsValid() && p.LocalAddress.Is4() != a.Is4():
			return fmt.Errorf("%s: local_address %s is not of the family of address %s", who, p.LocalAddress, a)
		case p.PasswordFile != "" && p.PasswordEnv != "":
			return fmt.Errorf("%s has password_file and password_env; keep one", who)
		case p.Multihop > 0 && p.TTLSecurity > 0:
			return fmt.Errorf("%s has multihop and ttl_security, which exclude each other; ttl_security = %d allows as many hops", who, p.Multihop)
		case p.Multihop > 0 && p.ASN == c.ASN:
			return fmt.Errorf("%s is of the same AS, where multihop has no meaning; remove it", who)
		case p.LocalPref != nil && p.ASN != c.ASN:
			return fmt.Errorf("%s is of another AS, which is told no local_pref (RFC 4271 section 5.1.5); remove it", who)
		}
		addresses[a] = p.Name
		if err := p.Session.check(who, p.HoldTime); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) check(who string, hold time.Duration) error {
	switch {
	case hold%time.Second != 0:
		return fmt.Errorf("%s: hold_time %v is not in whole seconds, which is what the protocol can say", who, hold)
	case s.NextHopIPv4.IsValid() && !hop(s.NextHopIPv4, false):
		return fmt.Errorf("%s: next_hop_ipv4 %s is no IPv4 address of a host", who, s.NextHopIPv4)
	case s.NextHopIPv6.IsValid() && !hop(s.NextHopIPv6, true):
		return fmt.Errorf("%s: next_hop_ipv6 %s is no global IPv6 address of a host", who, s.NextHopIPv6)
	}
	return nil
}

// hop tells whether a can be the next hop of a family.
func hop(a netip.Addr, six bool) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		a.Is6() == six && a.Zone() == ""
}

// transport is what a session is made of: when it changes, the session begins anew.
type transport struct {
	address, local            netip.Addr
	asn                       uint32
	port                      uint16
	passwordFile, passwordEnv string
	multihop, ttlSecurity     uint8
	hold                      time.Duration
	enabled                   bool
}

// attributes are what routes to a peer carry: they change under a session.
type attributes struct {
	communities []Community
	large       []LargeCommunity
	med         *uint32
	localPref   *uint32
	hop4, hop6  netip.Addr // invalid: to be found
}

func (a attributes) equal(b attributes) bool {
	same := func(x, y *uint32) bool { return x == y || x != nil && y != nil && *x == *y }
	return slices.Equal(a.communities, b.communities) && slices.Equal(a.large, b.large) &&
		same(a.med, b.med) && same(a.localPref, b.localPref) && a.hop4 == b.hop4 && a.hop6 == b.hop6
}

// resolve answers what holds for peer p of c.
func (c *Config) resolve(p *Peer) (transport, attributes) {
	t := transport{
		address: p.Address, local: p.LocalAddress, asn: p.ASN, port: p.Port, passwordFile: p.PasswordFile, passwordEnv: p.PasswordEnv,
		multihop: p.Multihop, ttlSecurity: p.TTLSecurity, hold: c.HoldTime, enabled: p.Enabled,
	}
	if p.HoldTime != 0 {
		t.hold = p.HoldTime
	}
	a := attributes{
		communities: slices.Concat(c.Communities, p.Communities), large: slices.Concat(c.LargeCommunities, p.LargeCommunities),
		med: c.MED, localPref: c.LocalPref, hop4: c.NextHopIPv4, hop6: c.NextHopIPv6,
	}
	if p.MED != nil {
		a.med = p.MED
	}
	if p.LocalPref != nil {
		a.localPref = p.LocalPref
	}
	if p.NextHopIPv4.IsValid() {
		a.hop4 = p.NextHopIPv4
	}
	if p.NextHopIPv6.IsValid() {
		a.hop6 = p.NextHopIPv6
	}
	return t, a
}

// covers answers the first enabled VIP that contains the address of a peer.
func (c *Config) covers(vips []state.VIPSpec) error {
	for i := range vips {
		for j := range c.Peers {
			if v, p := &vips[i], &c.Peers[j]; !v.Disabled && v.Prefix.Contains(p.Address) {
				return fmt.Errorf("vip %q covers %s, the address of peer %q: packets to the router would be balanced; narrow the prefix", v.Name, p.Address, p.Name)
			}
		}
	}
	return nil
}

// A Community is a tag of a route (RFC 1997): the upper and the lower 16 bits.
type Community uint32

// wellKnown are the communities that have names: RFC 1997, RFC 8326, RFC 7999.
var wellKnown = map[string]Community{
	"no-export": 0xffffff01, "no-advertise": 0xffffff02, "no-export-subconfed": 0xffffff03,
	"graceful-shutdown": 0xffff0000, "blackhole": 0xffff029a,
}

// UnmarshalText reads "65000:100" or the name of a well-known community.
func (c *Community) UnmarshalText(b []byte) error {
	if n, ok := wellKnown[strings.ToLower(string(b))]; ok {
		*c = n
		return nil
	}
	n, ok := numbers(string(b), 2, math.MaxUint16)
	if !ok {
		return errors.New(`write two numbers up to 65535 as in "65000:100", or no-export, no-advertise, no-export-subconfed, graceful-shutdown, blackhole`)
	}
	*c = Community(n[0]<<16 | n[1])
	return nil
}

// String answers the two halves as in "65000:100".
func (c Community) String() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

// A LargeCommunity is a tag of a route (RFC 8092).
type LargeCommunity [3]uint32

// UnmarshalText reads "65000:1:2".
func (c *LargeCommunity) UnmarshalText(b []byte) error {
	n, ok := numbers(string(b), 3, math.MaxUint32)
	if !ok {
		return errors.New(`write three numbers up to 4294967295 as in "65000:1:2"`)
	}
	*c = LargeCommunity(n)
	return nil
}

// String answers the three parts as in "65000:1:2".
func (c LargeCommunity) String() string { return fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]) }

// numbers reads n decimal numbers up to most, with colons between them.
func numbers(s string, n int, most uint64) (all []uint32, ok bool) {
	parts := strings.Split(s, ":")
	for _, p := range parts {
		v, err := strconv.ParseUint(p, 10, 32)
		if err != nil || v > most {
			return nil, false
		}
		all = append(all, uint32(v))
	}
	return all, len(parts) == n
}
