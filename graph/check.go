package graph

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/control/state"
)

// Check says what is wrong with a file, as far as no host is needed to see it:
// each graph by itself (Analyze), and how the graphs, VIPs and pools fit together.
// Errors make the file unusable; warnings do not.
func Check(f *File) hcl.Diagnostics {
	var says diagnostics
	once := map[*Kind]*Instance{}
	listens := map[netip.AddrPort]*Instance{}
	single := func(n *Instance) {
		if first := once[n.Kind]; first != nil && n.Kind.Single {
			says.err(fmt.Sprintf("Two %s in one file", n.Kind.Name), &n.Range, "One %s is all that a file can have, and it stands at %s:%d. Leave one of them out.",
				n.Kind.Name, first.Range.Filename, first.Range.Start.Line)
		}
		once[n.Kind] = n
	}
	for _, c := range f.Controls {
		single(c)
		if c.Kind.Plane != ControlPlane {
			says.err("Wrong plane", &c.Range, "%s works on the %s plane and cannot stand outside a graph. %s", c, c.Kind.Plane, wrongPlane[c.Kind.Plane])
		}
	}
	for _, c := range f.Controls {
		lockOut(f, c, &says)
	}
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			single(n)
			wanted(f, n, &says)
			portless(f, n, &says)
			for _, l := range n.Kind.Listens(n.Config) {
				if first := listens[l.Address]; first != nil {
					at, ok := f.Places["stream."+g.Name+"."+n.Name+".address"]
					if !ok {
						at = n.Range
					}
					says.err("Address used twice", &at, "%s listens on %s, and so does %s at %s:%d. Give one of them another address or port.",
						n, l.Address, first, first.Range.Filename, first.Range.Start.Line)
				}
				listens[l.Address] = n
			}
			if need := n.Kind.Cores(n.Config); g.Cores > 0 && need > g.Cores {
				says.err("Too few cores", &n.Range, "%s works with %d cores, and graph %q has %d. Set cores to %d or more, or leave it out.",
					n, need, g.Name, g.Cores, need)
			}
		}
		a, diags := Analyze(g)
		says.list = append(says.list, diags...)
		if !diags.HasErrors() {
			roomForIPv6(f, g, a, &says)
		}
	}
	says.sort()
	return says.list
}

// lockOut tells of VIPs that cover an address which c must reach: its packets would
// be balanced.
func lockOut(f *File, c *Instance, says *diagnostics) {
	for _, a := range c.Kind.Peers(c.Config) {
		for _, v := range f.Spec.VIPs {
			if v.Disabled || !v.Prefix.Contains(a) {
				continue
			}
			at, ok := f.Places["vip."+v.Name+".address"]
			if !ok {
				at = c.Range
			}
			says.err("VIP covers a peer", &at, "%s, which %s must reach, lies in %s of vip %q: what it answers would be balanced. Narrow the prefix, or move the VIP.",
				a, c, v.Prefix, v.Name)
			break
		}
	}
}

// wanted sees to it that the control that n works with stands in the file.
func wanted(f *File, n *Instance, says *diagnostics) {
	kind, argument := n.Kind.Wants(n.Config)
	if kind == "" || slices.ContainsFunc(f.Controls, func(c *Instance) bool { return c.Kind.Name == kind }) {
		return
	}
	says.err(fmt.Sprintf("No %s block", kind), &n.Range, "%s has %s, for which a %s block must stand in the file. Add \"%s {}\" beside the graph.", n, argument, kind, kind)
}

// portless tells of a backend that n cannot connect to, since nothing says by which
// port. One stands for all of its pool.
func portless(f *File, n *Instance, says *diagnostics) {
	if n.Kind.Dials == nil {
		return
	}
	pool, port := n.Kind.Dials(n.Config)
	if port != 0 {
		return
	}
	for i := range f.Spec.Pools {
		p := &f.Spec.Pools[i]
		if p.Name != pool {
			continue
		}
		for j := range p.Backends {
			b := &p.Backends[j]
			if b.Port != 0 {
				continue
			}
			at, ok := f.Places["pool."+pool+"."+b.Name]
			if !ok {
				at = n.Range
			}
			says.err("Backend without a port", &at, "%s connects to the backends of pool %q, and neither backend %q nor %s says by which port. Give the backend a port, or set port in %s for all that have none.",
				n, pool, b.Name, n.Name, n.Name)
			return
		}
	}
}

// roomForIPv6 sees to it that every link can carry what IPv6 promises: packets of
// 1280 bytes (RFC 8200 section 5), after encapsulation, too.
func roomForIPv6(f *File, g *Graph, a *Analysis, says *diagnostics) {
	i := slices.IndexFunc(f.Spec.VIPs, func(v state.VIPSpec) bool { return v.Prefix.Addr().Is6() && !v.Disabled })
	if i < 0 || g.Plane != PacketPlane {
		return
	}
	for _, n := range a.Order {
		v4, v6 := a.Overhead(n)
		if need := 1280 + max(v4, v6); n.Kind.Source && g.NetworkMTU < need {
			at, ok := f.Places["graph."+g.Name+".network_mtu"]
			if !ok {
				at = g.Range
			}
			says.err("network_mtu too small for IPv6", &at, "VIP %q is IPv6, whose packets of 1280 bytes must pass everywhere, and the encapsulation adds up to %d. Set network_mtu to %d or more.",
				f.Spec.VIPs[i].Name, need-1280, need)
			return
		}
	}
}

// diagnostics collects what there is to say.
type diagnostics struct{ list hcl.Diagnostics }

func (d *diagnostics) err(summary string, at *hcl.Range, format string, args ...any) {
	d.say(hcl.DiagError, summary, at, format, args)
}

func (d *diagnostics) warn(summary string, at *hcl.Range, format string, args ...any) {
	d.say(hcl.DiagWarning, summary, at, format, args)
}

func (d *diagnostics) say(severity hcl.DiagnosticSeverity, summary string, at *hcl.Range, format string, args []any) {
	where := *at
	d.list = append(d.list, &hcl.Diagnostic{Severity: severity, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: &where})
}

// sort orders by position in the file.
func (d *diagnostics) sort() {
	slices.SortStableFunc(d.list, func(x, y *hcl.Diagnostic) int { return byPlace(*x.Subject, *y.Subject) })
}
