package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/probe"
)

var _ health.TunnelDialer = (*Daemon)(nil)

// tunnel is how health checks reach backends as traffic does. Its dialler is there
// while a check needs it.
type tunnel struct {
	mu      sync.Mutex
	encap   probe.Encap
	err     error // why there is no encap
	users   int
	dialer  *probe.Dialer
	unwatch func()
}

// followTunnel has checks encapsulate as f does. It fails where f has such checks and
// does not say how; nothing changes then.
func (d *Daemon) followTunnel(f *graph.File) error {
	e, err := encapOf(f)
	for _, c := range f.Controls {
		if h, ok := c.Config.(*health.Config); ok && h.Through == "tunnel" && err != nil {
			return fmt.Errorf("health %s checks through the tunnel: %w", c.Name, err)
		}
	}
	d.tunnel.mu.Lock()
	defer d.tunnel.mu.Unlock()
	d.tunnel.encap, d.tunnel.err = e, err
	if d.tunnel.dialer != nil && err == nil {
		d.tunnel.dialer.SetEncap(e)
	}
	return nil
}

// encapOf answers how the graphs of f encapsulate.
func encapOf(f *graph.File) (e probe.Encap, err error) {
	first := ""
	for _, g := range packetGraphs(f) {
		for _, n := range g.Nodes {
			next, ok := encapBy(n)
			switch {
			case !ok:
			case first == "":
				e, first = next, n.Name
			case next.Protocol != e.Protocol || next.Port != e.Port:
				return e, fmt.Errorf("nodes %s and %s encapsulate in different ways, and it cannot be told which backends are reached by which", first, n.Name)
			}
		}
	}
	if first == "" {
		return e, errors.New("no node encapsulates")
	}
	return e, nil
}

var encapKinds = map[string]encap.Protocol{"gre-encap": encap.GRE, "ipip-encap": encap.IPIP, "gue-encap": encap.GUE}

// encapBy answers how a node encapsulates, if it does.
func encapBy(n *graph.Instance) (e probe.Encap, ok bool) {
	p, ok := encapKinds[n.Kind.Name]
	if !ok {
		return e, false
	}
	_, port := n.Kind.Tunnel(n.Config)
	return probe.Encap{Protocol: p, Config: n.Config.(interface{ Outer() encap.Config }).Outer(), Port: port}, true
}

// OpenTunnel makes what DialTunnel needs, for the first that wants it; it goes when the
// last closes.
func (d *Daemon) OpenTunnel() (closing func() error, err error) {
	t := &d.tunnel
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users == 0 {
		if t.err != nil {
			return nil, t.err
		}
		dialer, err := probe.Open(t.encap, d.Snapshot(), d.log.Named("probe"))
		if err != nil {
			return nil, err
		}
		t.dialer, t.unwatch = dialer, d.store.Watch(dialer.Update)
	}
	t.users++
	return sync.OnceValue(d.closeTunnel), nil
}

func (d *Daemon) closeTunnel() error {
	t := &d.tunnel
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users--; t.users > 0 {
		return nil
	}
	t.unwatch()
	dialer := t.dialer
	t.dialer, t.unwatch = nil, nil
	return dialer.Close()
}

// DialTunnel connects to a VIP on a backend, through the tunnel that traffic takes.
func (d *Daemon) DialTunnel(ctx context.Context, backend netip.Addr, vip netip.AddrPort) (net.Conn, error) {
	d.tunnel.mu.Lock()
	dialer := d.tunnel.dialer
	d.tunnel.mu.Unlock()
	if dialer == nil {
		return nil, net.ErrClosed
	}
	return dialer.Dial(ctx, backend, vip)
}
