package daemon

import (
	"fmt"

	"github.com/lbgraph/lbgraph/graph"
)

// lockedOut tells of a VIP that covers an address of an interface that is received
// from: what the node itself is sent there, its routers' and its operators' packets,
// would be balanced.
func (d *Daemon) lockedOut(f *graph.File) error {
	for _, e := range d.engines {
		for _, p := range e.Ports() {
			info := p.Info()
			for _, a := range info.Addrs {
				for i := range f.Spec.VIPs {
					if v := &f.Spec.VIPs[i]; !v.Disabled && v.Prefix.Contains(a) {
						return fmt.Errorf("vip %q (%s) covers %s, the address of interface %s itself: the node would be locked out; narrow the prefix, or move the VIP",
							v.Name, v.Prefix, a, info.Name)
					}
				}
			}
		}
	}
	return nil
}
