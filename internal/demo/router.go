package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/control/bgp"
	"github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/control/state"
)

// readBGP takes the router from the file.
func (d *demo) readBGP() error {
	for _, c := range d.File.Controls {
		b, ok := c.Config.(*bgp.Config)
		if !ok {
			continue
		}
		for _, p := range b.Peers {
			if p.Enabled && p.Address.Is4() && p.Port == 179 && p.PasswordFile == "" && p.PasswordEnv == "" && !p.LocalAddress.IsValid() {
				d.bgp, d.peer = b, p
				return nil
			}
		}
	}
	return fmt.Errorf("%s: the demo shows balancers behind a router, so the file needs a bgp block with a peer of an IPv4 address, port 179, and no password or local address", d.File.Path)
}

// balancer4 and balancer6 are the addresses of a balancer: the next after the
// router's.
func (d *demo) balancer4(i int) string {
	a := d.peer.Address
	for range i + 1 {
		a = a.Next()
	}
	return a.String()
}

func balancer6(i int) string { return fmt.Sprintf("2001:db8:f::%x", i+2) }

// checks answers where health checks ask for a backend.
func (d *demo) checks(b state.BackendSpec) (all []netip.AddrPort) {
	seen := map[int]bool{}
	for _, pool := range d.File.Spec.Pools {
		for _, c := range d.File.Controls {
			h, ok := c.Config.(*health.Config)
			if !ok || c.Name != pool.Health {
				continue
			}
			for _, other := range pool.Backends {
				if other.Address != b.Address {
					continue
				}
				port := 80
				if other.Port != 0 {
					port = other.Port
				}
				if h.Port != 0 {
					port = h.Port
				}
				if !seen[port] {
					seen[port] = true
					all = append(all, netip.AddrPortFrom(b.Address, uint16(port)))
				}
			}
		}
	}
	return all
}

// route begins the router's BGP daemon. It takes the VIPs and nothing else, and
// uses all equal ways.
func (d *demo) route() error {
	var four, six []string
	for _, a := range d.addrs() {
		if a.Is4() {
			four = append(four, a.String()+"/32")
		} else {
			six = append(six, a.String()+"/128")
		}
	}
	var c strings.Builder
	fmt.Fprintf(&c, "log stderr all;\nrouter id %s;\nprotocol device { }\n", d.peer.Address)
	c.WriteString("template bgp balancer {\n")
	fmt.Fprintf(&c, "  local as %d;\n  passive on;\n  error wait time 1, 1;\n", d.peer.ASN)
	if d.peer.TTLSecurity > 0 {
		c.WriteString("  ttl security on;\n")
	}
	families := ""
	for _, f := range []struct {
		name  string
		allow []string
	}{{"ipv4", four}, {"ipv6", six}} {
		if len(f.allow) > 0 {
			fmt.Fprintf(&c, "  %s { import where net ~ [ %s ]; export none; };\n", f.name, strings.Join(f.allow, ", "))
			families += fmt.Sprintf("protocol kernel { %s { export all; import none; }; merge paths on; }\n", f.name)
		}
	}
	c.WriteString("}\n" + families)
	for i := range balancers {
		fmt.Fprintf(&c, "protocol bgp balancer%d from balancer { neighbor %s as %d; }\n", i+1, d.balancer4(i), d.bgp.ASN)
	}
	file := filepath.Join(d.net.dir, "bird.conf")
	if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
		return err
	}
	return d.net.start("router", "bird", "bird", "-f", "-c", file, "-s", filepath.Join(d.net.dir, "bird.ctl"), "-P", filepath.Join(d.net.dir, "bird.pid"))
}

// names lists the VIPs' addresses.
func (d *demo) names() string {
	var all []string
	for _, a := range d.addrs() {
		all = append(all, a.String())
	}
	return strings.Join(all, " and ")
}

// ways waits until the router has n ways to every VIP.
func (d *demo) ways(ctx context.Context, n int) error {
	return d.net.until(ctx, 20*time.Second, func() error {
		var missing error
		for _, a := range d.addrs() {
			out, err := d.net.run(ctx, "router", "ip", pick(a, "-4", "-6"), "route", "show", a.String())
			if err != nil {
				return err
			}
			if got := strings.Count(out, "via "); got != n {
				missing = errors.Join(missing, fmt.Errorf("the router has %d ways to %s, not %d", got, a, n))
			}
		}
		return missing
	})
}
