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

	"github.com/lbgraph/lbgraph/control/state"
)

// prober probes by one configuration. Its methods may be called from any goroutine.
type prober struct {
	cfg    Config
	expect codes
	body   *regexp.Regexp // nil matches all
	client *http.Client   // nil for TCP
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// bodyLimit is how much of a body is read.
const bodyLimit = 64 << 10

func newProber(c Config) (*prober, error) {
	p := &prober{cfg: c, dial: new(net.Dialer).DialContext}
	var err error
	if p.expect, err = parseExpect(c.Expect); err != nil {
		return nil, err
	}
	if c.Body != "" {
		if p.body, err = regexp.Compile(c.Body); err != nil {
			return nil, fmt.Errorf("body is no regular expression: %w", err)
		}
	}
	if c.Type != "tcp" {
		p.client = &http.Client{
			// A redirect is an answer like any other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DialContext:            func(ctx context.Context, n, a string) (net.Conn, error) { return p.dial(ctx, n, a) },
				TLSClientConfig:        &tls.Config{InsecureSkipVerify: !c.Verify, ServerName: c.Host},
				DisableKeepAlives:      true, // each probe tries a new connection
				DisableCompression:     true,
				MaxResponseHeaderBytes: 64 << 10,
			},
		}
	}
	return p, nil
}

func (p *prober) close() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// probe asks a target once; nil is a success. A probe that takes longer than the
// timeout has failed.
func (p *prober) probe(ctx context.Context, t state.Target) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	addr := netip.AddrPortFrom(t.Addr, p.port(t)).String()
	var err error
	if p.client == nil {
		var c net.Conn
		if c, err = p.dial(ctx, "tcp", addr); err == nil {
			// A reset instead of a FIN: the backend keeps no TIME-WAIT for us, and
			// neither do we for thousands of probes.
			if tc, ok := c.(*net.TCPConn); ok {
				_ = tc.SetLinger(0)
			}
			_ = c.Close()
		}
	} else {
		err = p.get(ctx, addr)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", p.cfg.Timeout)
	}
	return err
}

func (p *prober) port(t state.Target) uint16 {
	switch {
	case p.cfg.Port != 0:
		return uint16(p.cfg.Port)
	case t.Port != 0:
		return uint16(t.Port)
	case p.cfg.Type == "https":
		return 443
	}
	return 80
}

func (p *prober) get(ctx context.Context, addr string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.cfg.Type+"://"+addr+p.cfg.Path, nil)
	if err != nil {
		return err
	}
	r.Host = p.cfg.Host
	r.Header.Set("User-Agent", "lbgraph-health")
	resp, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	if !p.expect.has(resp.StatusCode) {
		return fmt.Errorf("status %d is not expected", resp.StatusCode)
	}
	if p.body != nil {
		if !p.body.Match(body) {
			return fmt.Errorf("the body does not match %q", p.cfg.Body)
		}
		return nil
	}
	return err
}
