// Package health is the control kind health: it asks backends whether they work,
// by TCP, HTTP or HTTPS, and tells the state what it found out. Both planes read
// the state.
//
// A target is a backend by one health block: pools that share both share the
// probe. Each block has one scheduler, which is one goroutine and a heap of due
// times; probes run in goroutines of their own, at most Config.Parallel at a time.
package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of a health block.
type Config struct {
	Type     string        `hcl:"type,optional" enum:"tcp,http,https" doc:"what a probe does: connect, or connect and GET"`
	Port     int           `hcl:"port,optional" range:"0,65535" doc:"port to probe; 0 is the VIP's first port if through is tunnel, else the backend's, else 80 (443 for https)"`
	Path     string        `hcl:"path,optional" doc:"path and query of the GET"`
	Through  string        `hcl:"through,optional" enum:"direct,tunnel" doc:"direct asks the backend at its own address; tunnel asks the VIPs on it, through the encapsulation that traffic takes"`
	Host     string        `hcl:"host,optional" doc:"Host field and TLS server name; empty is the address that is asked"`
	Expect   []string      `hcl:"expect,optional" doc:"status codes that are a success: numbers or ranges as in \"200-299\""`
	Body     string        `hcl:"body,optional" doc:"regular expression (RE2) that the first 64 KiB of the body must match; empty matches all"`
	Verify   bool          `hcl:"verify,optional" doc:"whether the certificate of an https backend must be valid"`
	Interval time.Duration `hcl:"interval,optional" range:"10ms,24h" doc:"time between two probes of a backend, give or take a tenth"`
	Timeout  time.Duration `hcl:"timeout,optional" range:"1ms,1h" doc:"time after which a probe without an answer has failed"`
	Rise     int           `hcl:"rise,optional" range:"1,100" doc:"successes in a row until a backend is healthy"`
	Fall     int           `hcl:"fall,optional" range:"1,100" doc:"failures in a row until a backend is unhealthy"`
	Parallel int           `hcl:"parallel,optional" range:"1,10000" doc:"probes of this block that run at the same time, at most"`
}

// Defaults are the values of a health block that says nothing.
func Defaults() Config {
	return Config{
		Type: "tcp", Through: "direct", Path: "/", Expect: []string{"200-299"},
		Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3, Parallel: 256,
	}
}

// Host is what the kind needs of the daemon.
type Host interface {
	// Snapshot is the current state; its Targets are what is probed.
	Snapshot() *state.Snapshot
	// SetHealth takes what was found out about a target.
	SetHealth(state.Target, state.Health)
	// WatchTargets calls f whenever Targets may have changed, which is after a reload that took
	// effect, until stop.
	WatchTargets(f func()) (stop func())
}

// TunnelDialer is a Host that reaches backends as traffic does. Checks with through =
// "tunnel" need it.
type TunnelDialer interface {
	// OpenTunnel makes what DialTunnel needs, until close, which may be called again.
	// Several may have it open.
	OpenTunnel() (close func() error, err error)
	// DialTunnel connects by TCP to a VIP on a backend, through the tunnel to it. No
	// other answers.
	DialTunnel(ctx context.Context, backend netip.Addr, vip netip.AddrPort) (net.Conn, error)
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "health",
		Summary:  "asks the backends of the pools that name it whether they work",
		Defaults: Defaults(),
		Check:    check,
		Live:     true,
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("health has no daemon to tell")
			}
			p, err := newProber(c, h)
			if err != nil {
				return nil, err
			}
			return &Checker{name: e.Node, host: h, log: e.Log, prober: p, wake: make(chan struct{}, 1)}, nil
		},
	})
}

func check(c Config) error {
	if c.Timeout > c.Interval {
		return fmt.Errorf("timeout %v is longer than interval %v: a hung probe would delay the next; make it shorter", c.Timeout, c.Interval)
	}
	if _, err := parseExpect(c.Expect); err != nil {
		return err
	}
	if _, err := regexp.Compile(c.Body); err != nil {
		return fmt.Errorf("body is no regular expression: %w", err)
	}
	if c.Type != "tcp" && !strings.HasPrefix(c.Path, "/") {
		return fmt.Errorf("path = %q must begin with a slash", c.Path)
	}
	if _, err := http.NewRequest(http.MethodGet, "http://x"+c.Path, nil); c.Type != "tcp" && err != nil {
		return fmt.Errorf("path = %q is no path: %w", c.Path, err)
	}
	return nil
}

// codes is a set of status codes.
type codes [][2]int

func parseExpect(words []string) (all codes, err error) {
	for _, w := range words {
		lo, hi, ranged := strings.Cut(w, "-")
		if !ranged {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || a < 100 || b > 599 || a > b {
			return nil, fmt.Errorf("expect has %q: write a status code from 100 to 599, or a range as in %q", w, "200-299")
		}
		all = append(all, [2]int{a, b})
	}
	return all, nil
}

func (c codes) has(n int) bool {
	return slices.ContainsFunc(c, func(r [2]int) bool { return n >= r[0] && n <= r[1] })
}

var _ graph.Reconfigurer = (*Checker)(nil)

// Reconfigure changes what is probed and how, at once; what is known of targets
// stays.
func (c *Checker) Reconfigure(config any) error {
	p, err := newProber(*config.(*Config), c.host)
	if err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return err
	}
	c.mu.Lock()
	old := c.prober
	c.prober, c.again = p, true
	c.mu.Unlock()
	c.log.Info("the check has changed", zap.String("health", c.name))
	c.hurry()
	return old.close()
}

// Stop ends the scheduler, and the probes in hand.
func (c *Checker) Stop(context.Context) error {
	if c.cancel == nil {
		return nil
	}
	c.unwatch()
	c.cancel()
	c.running.Wait()
	return c.prober.close()
}
