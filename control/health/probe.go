package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// prober probes by one configuration. Its methods may be called from any goroutine.
type prober struct {
	cfg    Config
	expect codes
	body   *regexp.Regexp // nil matches all
	tls    *tls.Config
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	tunnel TunnelDialer // nil for direct ones
	shut   func() error // of the tunnel
}

// bodyLimit is how much of a body is read.
const bodyLimit = 64 << 10

func newProber(c Config, h Host) (*prober, error) {
	p := &prober{cfg: c, dial: new(net.Dialer).DialContext, tls: &tls.Config{InsecureSkipVerify: !c.Verify, ServerName: c.Host}}
	var err error
	if p.expect, err = parseExpect(c.Expect); err != nil {
		return nil, err
	}
	if c.Body != "" {
		if p.body, err = regexp.Compile(c.Body); err != nil {
			return nil, fmt.Errorf("body is no regular expression: %w", err)
		}
	}
	if c.Through == "tunnel" {
		var ok bool
		if p.tunnel, ok = h.(TunnelDialer); !ok {
			return nil, errors.New("health has no daemon that reaches backends through tunnels")
		}
	}
	return p, nil
}

// open makes what probes through a tunnel need.
func (p *prober) open() (err error) {
	if p.tunnel != nil {
		p.shut, err = p.tunnel.OpenTunnel()
	}
	return err
}

func (p *prober) close() error {
	if p.shut == nil {
		return nil
	}
	return p.shut()
}

// probe asks a target once; nil is a success. Through a tunnel that is every VIP, one
// after the other, or the backend itself where none leads to it.
func (p *prober) probe(ctx context.Context, t state.Target, vips []netip.AddrPort) error {
	if p.tunnel == nil || len(vips) == 0 {
		return p.ask(ctx, netip.AddrPortFrom(t.Addr, p.port(0, t.Port)), p.dial)
	}
	for _, v := range vips {
		vip := netip.AddrPortFrom(v.Addr(), p.port(v.Port(), t.Port))
		err := p.ask(ctx, vip, func(ctx context.Context, _, _ string) (net.Conn, error) { return p.tunnel.DialTunnel(ctx, t.Addr, vip) })
		if err != nil {
			return fmt.Errorf("vip %s: %w", vip, err)
		}
	}
	return nil
}

// ask asks one address. What takes longer than the timeout has failed.
func (p *prober) ask(ctx context.Context, to netip.AddrPort, dial func(ctx context.Context, network, address string) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	var err error
	if p.cfg.Type == "tcp" {
		var c net.Conn
		if c, err = dial(ctx, "tcp", to.String()); err == nil {
			// A reset instead of a FIN: the backend keeps no TIME-WAIT for us, and
			// neither do we for thousands of probes.
			if tc, ok := c.(*net.TCPConn); ok {
				_ = tc.SetLinger(0)
			}
			_ = c.Close()
		}
	} else {
		err = p.get(ctx, to.String(), dial)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", p.cfg.Timeout)
	}
	return err
}

// port answers the check's port, the VIP's, the backend's, or the scheme's.
func (p *prober) port(vip uint16, backend int) uint16 {
	switch {
	case p.cfg.Port != 0:
		return uint16(p.cfg.Port)
	case vip != 0:
		return vip
	case backend != 0:
		return uint16(backend)
	case p.cfg.Type == "https":
		return 443
	}
	return 80
}

func (p *prober) get(ctx context.Context, addr string, dial func(ctx context.Context, network, address string) (net.Conn, error)) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.cfg.Type+"://"+addr+p.cfg.Path, nil)
	if err != nil {
		return err
	}
	r.Host = p.cfg.Host
	r.Header.Set("User-Agent", "lbgraph-health")
	// One for each probe: backends share the address of a VIP, and no connection may
	// serve another's probe.
	client := http.Client{
		// A redirect is an answer like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        p.tls,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	if !p.expect.has(resp.StatusCode) {
		return fmt.Errorf("status %d is not expected", resp.StatusCode)
	}
	if err == nil && p.body != nil && !p.body.Match(body) {
		err = fmt.Errorf("the body does not match %q", p.cfg.Body)
	}
	return err
}

// vipsOf answers, for every target of a check, the addresses of the enabled VIPs that
// lead to its pools. An address is there once for a pool, with the first port of the
// first VIP that has it and takes TCP, 0 if there is none; of a prefix it is the first
// address.
func vipsOf(s *state.Snapshot, check string) map[state.Target][]netip.AddrPort {
	pools := map[string][]netip.AddrPort{}
	for i := range s.VIPs {
		v := &s.VIPs[i]
		if v.Disabled {
			continue
		}
		a, port := v.Prefix.Masked().Addr(), uint16(0)
		if v.Protocol != packet.ProtoUDP && len(v.Ports) > 0 {
			port = v.Ports[0].Lo
		}
		all := pools[v.Pool]
		at := slices.IndexFunc(all, func(x netip.AddrPort) bool { return x.Addr() == a })
		switch {
		case at < 0:
			pools[v.Pool] = append(all, netip.AddrPortFrom(a, port))
		case all[at].Port() == 0:
			all[at] = netip.AddrPortFrom(a, port)
		}
	}
	targets := map[state.Target][]netip.AddrPort{}
	for i := range s.Pools {
		p := &s.Pools[i]
		vips := slices.Clip(pools[p.Name])
		if p.ID == 0 || p.Check != check || len(vips) == 0 {
			continue
		}
		for j := range p.Members {
			m := &p.Members[j]
			if m.Backend == 0 || m.Removed {
				continue
			}
			t := state.Target{Check: check, Addr: s.Backends[m.Backend].Addr, Port: m.Port}
			all := targets[t]
			if all == nil {
				targets[t] = vips
				continue
			}
			for _, v := range vips {
				if !slices.Contains(all, v) {
					all = append(all, v)
				}
			}
			targets[t] = all
		}
	}
	return targets
}
