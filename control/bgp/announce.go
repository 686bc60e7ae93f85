package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lbgraph/lbgraph/control/state"
)

// A Decision says whether an address is to be announced, as far as the backends
// behind it are concerned.
type Decision struct {
	Prefix   netip.Prefix
	VIPs     []string // the enabled vip blocks with this address, in the order of the file
	Announce bool
	Why      string // why it is not announced
}

// Decide answers a decision for every address that an enabled VIP has, by address.
// It depends on the snapshot alone.
//
// The services of an address are the enabled vip blocks that have it. A service is
// healthy while its pool is; those that are optional do not count. The address is
// announced while all the others are healthy, or any of them if all of them say
// require = any; with none left that counts, it is announced.
//
// A pool is healthy for a service while at least Quorum of its backends that may
// get new flows are Healthy. A pool that has no check, or that fails open, is
// healthy while anything in it takes new flows.
func Decide(s *state.Snapshot) []Decision {
	pools := map[string]*state.Pool{}
	for i := range s.Pools {
		if p := &s.Pools[i]; p.ID != 0 {
			pools[p.Name] = p
		}
	}
	services := map[netip.Prefix][]*state.VIPSpec{}
	for i := range s.VIPs {
		if v := &s.VIPs[i]; !v.Disabled && v.Prefix.IsValid() {
			p := canonical(v.Prefix)
			services[p] = append(services[p], v)
		}
	}
	all := make([]Decision, 0, len(services))
	for prefix, vips := range services {
		d := Decision{Prefix: prefix}
		var sick []string
		counted, any := 0, true
		for _, v := range vips {
			d.VIPs = append(d.VIPs, v.Name)
			if v.Optional {
				continue
			}
			counted++
			any = any && v.Require == "any"
			if why := ails(pools[v.Pool], v); why != "" {
				sick = append(sick, fmt.Sprintf("vip %q: %s", v.Name, why))
			}
		}
		switch {
		case prefix.Bits() == 0:
			d.Why = "a default route is not announced"
		case len(sick) == 0 || any && len(sick) < counted:
			d.Announce = true
		default:
			d.Why = strings.Join(sick, "; ")
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Decision) int { return a.Prefix.Compare(b.Prefix) })
	return all
}

// canonical answers p without host bits, an IPv4 prefix in IPv4's form.
func canonical(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// ails says what keeps a pool from serving v, or nothing.
func ails(p *state.Pool, v *state.VIPSpec) string {
	switch quorum := max(v.Quorum, 1); {
	case p == nil:
		return fmt.Sprintf("there is no pool %q", v.Pool)
	case p.Check == "" || p.FailOpen:
		if p.Usable == 0 {
			return fmt.Sprintf("no backend of pool %q takes new flows", p.Name)
		}
	case p.Healthy < quorum:
		return fmt.Sprintf("pool %q has %d healthy backends and needs %d", p.Name, p.Healthy, quorum)
	}
	return ""
}

// undecided answers a backend whose check has not decided yet, or "": the node is
// warm.
func undecided(s *state.Snapshot) string {
	for i := range s.Pools {
		p := &s.Pools[i]
		if p.ID == 0 || p.Check == "" {
			continue
		}
		for j := range p.Members {
			m := &p.Members[j]
			if m.Backend != 0 && !m.Removed && !m.Drained && m.Weight > 0 && m.Health == state.Unknown {
				return p.Name + "/" + m.Name
			}
		}
	}
	return ""
}
