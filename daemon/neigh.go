package daemon

import (
	"net/netip"

	"github.com/lbgraph/lbgraph/graph"
)

// SetNeighbour takes the hardware address by which a backend or gateway is reached.
func (d *Daemon) SetNeighbour(a netip.Addr, mac [6]byte, ok bool) {
	d.store.SetNeighbour(a, mac, ok)
}

// SetRoute takes whether the kernel has a way to a backend.
func (d *Daemon) SetRoute(a netip.Addr, ok bool) { d.store.SetRoute(a, ok) }

// Gateways are the addresses that next_hop arguments of the running file name.
func (d *Daemon) Gateways() []netip.Addr { return *d.gateways.Load() }

// findGateways looks through the configurations for one that has a gateway.
func (d *Daemon) findGateways(f *graph.File) {
	var all []netip.Addr
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			if c, ok := n.Config.(interface{ Gateway() (netip.Addr, bool) }); ok {
				if a, ok := c.Gateway(); ok {
					all = append(all, a)
				}
			}
		}
	}
	d.gateways.Store(&all)
}
