package encap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Config is the arguments that the encapsulations share.
type Config struct {
	Source  netip.Prefix `hcl:"source,optional" doc:"address that outer headers come from, or a prefix whose host bits are filled from the flow hash; by default the interface's own address"`
	Source6 netip.Prefix `hcl:"source6,optional" doc:"source of IPv6 outer headers, where source is IPv4 and pools have backends of both families"`
	NextHop string       `hcl:"next_hop,optional" doc:"where frames go: sender (the router they came from), kernel (its routes and neighbours, which a neigh block follows), or the MAC or IP address of a gateway"`
	TTL     int          `hcl:"ttl,optional" range:"1,255" doc:"TTL or hop limit of the outer header"`
	DSCP    string       `hcl:"dscp,optional" enum:"zero,copy" doc:"DSCP of the outer header: zero, or the inner one; ECN is always copied"`
	VLAN    string       `hcl:"vlan,optional" enum:"keep,strip" doc:"what becomes of the frame's VLAN tags"`
}

// Defaults are the values of a block that says nothing.
func Defaults() Config { return Config{NextHop: "sender", TTL: 64, DSCP: "zero", VLAN: "keep"} }

// Outer answers c, for those who know a kind's arguments only as something that has it.
func (c Config) Outer() Config { return c }

// Check looks at what tags cannot say. It answers a sentence for the operator.
func (c Config) Check() error {
	if _, err := parseNextHop(c.NextHop); err != nil {
		return err
	}
	if c.Source6.IsValid() {
		if c.Source6.Addr().Is4() {
			return fmt.Errorf("source6 is an IPv6 address or prefix, not %s", c.Source6)
		}
		if c.Source.IsValid() && !c.Source.Addr().Is4() {
			return errors.New("source is IPv6 already; leave source6 out")
		}
	}
	for _, p := range []netip.Prefix{c.Source, c.Source6} {
		if !p.IsValid() {
			continue
		}
		if a := p.Addr(); a.IsMulticast() || a.IsUnspecified() || a.Is4In6() {
			return fmt.Errorf("%s cannot be a source", p)
		}
		if !p.Addr().Is4() && p.Bits() < 64 {
			return fmt.Errorf("%s leaves more than 64 bits to the flow hash; a prefix of /64 or longer is needed", p)
		}
	}
	return nil
}

// Gateway answers the address that next_hop names, with its zone; ok is false
// where it names something else.
func (c Config) Gateway() (a netip.Addr, ok bool) {
	h, _ := parseNextHop(c.NextHop)
	return h.gateway, h.gateway.IsValid()
}

// Wants tells that next_hop needs a neigh block to be resolved; see graph.Def.
func (c Config) Wants() (control, argument string) {
	if h, err := parseNextHop(c.NextHop); err == nil && (h.kernel || h.gateway.IsValid()) {
		return "neigh", fmt.Sprintf("next_hop = %q", c.NextHop)
	}
	return "", ""
}

// nextHop is next_hop, understood. At most one of its parts is set; none is the
// sender.
type nextHop struct {
	kernel  bool
	mac     [6]byte
	hasMAC  bool
	gateway netip.Addr
}

func parseNextHop(s string) (h nextHop, err error) {
	switch s {
	case "sender":
		return h, nil
	case "kernel":
		h.kernel = true
		return h, nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		if a.IsMulticast() || a.IsUnspecified() {
			return h, fmt.Errorf("next_hop %s is no gateway's address", s)
		}
		h.gateway = a
		return h, nil
	}
	if m, err := net.ParseMAC(s); err == nil && len(m) == 6 {
		if m[0]&1 != 0 {
			return h, fmt.Errorf("next_hop %s is a group address", s)
		}
		h.mac, h.hasMAC = [6]byte(m), true
		return h, nil
	}
	return h, fmt.Errorf("next_hop is sender, kernel, an IP address or a MAC address, not %q", s)
}

// sources answers where outer headers of both families come from: as c says, else
// the first of addrs that others can reach. An invalid prefix is none.
func (c Config) sources(addrs []netip.Addr) (src [2]netip.Prefix) {
	if c.Source.IsValid() {
		src[family(c.Source.Addr())] = c.Source
	}
	if c.Source6.IsValid() {
		src[1] = c.Source6
	}
	for _, a := range addrs {
		f := family(a)
		if !src[f].IsValid() && a.IsGlobalUnicast() {
			src[f] = netip.PrefixFrom(a.WithZone(""), a.BitLen())
		}
	}
	return src
}

// family answers 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Sources answers what outer headers come from, where the file says so.
func (c Config) Sources() (all []netip.Prefix) {
	for _, p := range []netip.Prefix{c.Source, c.Source6} {
		if p.IsValid() {
			all = append(all, p)
		}
	}
	return all
}
