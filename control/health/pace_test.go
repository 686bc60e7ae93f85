package health

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
)

// TestHTTPDefaults: a check that says only http asks by GET for /, and takes every
// 2xx and nothing else.
func TestHTTPDefaults(t *testing.T) {
	var code int
	var asked string
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.RequestURI()
		w.WriteHeader(code)
	})
	cfg := Defaults()
	cfg.Type = "http"
	p, err := newProber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code int
		ok   bool
	}{{200, true}, {201, true}, {204, true}, {299, true}, {300, false}, {302, false}, {304, false}, {404, false}, {500, false}, {503, false}} {
		code = c.code
		err := p.probe(t.Context(), state.Target{Check: "c", Addr: a.Addr(), Port: int(a.Port())}, nil)
		if (err == nil) != c.ok {
			t.Errorf("status %d: %v", c.code, err)
		}
		if asked != "GET /" {
			t.Errorf("asked %q", asked)
		}
	}
}

// TestVerify: a certificate must be of someone trusted and for the name that is asked,
// where the check wants to know; else any will do.
func TestVerify(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
	s.StartTLS()
	defer s.Close()
	a := netip.MustParseAddrPort(s.Listener.Addr().String())
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	for _, c := range []struct {
		host   string
		verify bool
		roots  *x509.CertPool
		words  string
	}{
		{"example.com", true, trusted, ""},
		{"", true, trusted, ""}, // 127.0.0.1 is in the certificate
		{"other.test", true, trusted, "other.test"},
		{"example.com", true, x509.NewCertPool(), "unknown authority"},
		{"other.test", false, x509.NewCertPool(), ""},
	} {
		cfg := Defaults()
		cfg.Type, cfg.Host, cfg.Verify = "https", c.host, c.verify
		p, err := newProber(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.tls.RootCAs = c.roots
		err = p.probe(t.Context(), state.Target{Check: "c", Addr: a.Addr(), Port: int(a.Port())}, nil)
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("host %q, verify %v: %v, want %q", c.host, c.verify, err, c.words)
		}
	}
}

// TestDefaultPace: with nothing said, a backend is asked every five seconds or so, is
// up after two answers, and down after three probes that hung for two seconds each.
func TestDefaultPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := netip.MustParseAddrPort("10.9.0.1:80")
		h := newHost(t, "c", a)
		var mu sync.Mutex
		var begun []time.Time
		hang := false
		begin(t, h, func(c *Config) { *c = Defaults() }, func(ctx context.Context, _, _ string) (net.Conn, error) {
			mu.Lock()
			begun = append(begun, time.Now())
			wait := hang
			mu.Unlock()
			if wait {
				at := time.Now()
				<-ctx.Done()
				if d := time.Since(at); d != 2*time.Second {
					t.Errorf("a probe was given up after %v", d)
				}
				return nil, ctx.Err()
			}
			x, y := net.Pipe()
			_ = y.Close()
			return x, nil
		})
		probes := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(begun)
		}
		h.await(t, a, state.Healthy)
		if n := probes(); n != 2 {
			t.Errorf("up after %d successes", n)
		}
		mu.Lock()
		hang = true
		mu.Unlock()
		h.await(t, a, state.Unhealthy)
		if n := probes(); n != 5 {
			t.Errorf("down after %d failures", n-2)
		}
		for i := 1; i < len(begun); i++ {
			if g := begun[i].Sub(begun[i-1]); g < 4500*time.Millisecond || g > 5500*time.Millisecond+time.Millisecond {
				t.Errorf("gap %d is %v", i, g)
			}
		}
	})
}

// TestThousands: one scheduler has three thousand backends probed in their time, by no
// more goroutines than probes that run.
func TestThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		addrs := make([]netip.AddrPort, n)
		for i := range addrs {
			addrs[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80)
		}
		h := newHost(t, "c", addrs...)
		var mu sync.Mutex
		asked := map[string][]time.Time{}
		active, most := 0, 0
		before := runtime.NumGoroutine()
		c := begin(t, h, func(c *Config) { *c = Defaults() }, func(_ context.Context, _, address string) (net.Conn, error) {
			mu.Lock()
			asked[address] = append(asked[address], time.Now())
			active++
			most = max(most, active)
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			active--
			mu.Unlock()
			x, y := net.Pipe()
			_ = y.Close()
			return x, nil
		})
		time.Sleep(16 * time.Second)
		synctest.Wait()
		mu.Lock()
		running := active
		if most > 256 {
			t.Errorf("%d probes at a time", most)
		}
		if len(asked) != n {
			t.Errorf("%d of %d backends were asked", len(asked), n)
		}
		for a, at := range asked {
			if len(at) < 3 || len(at) > 4 {
				t.Errorf("%s was asked %d times in 16 s", a, len(at))
			}
			if !slices.IsSortedFunc(at, time.Time.Compare) {
				t.Errorf("%s: %v", a, at)
			}
		}
		mu.Unlock()
		if g := runtime.NumGoroutine(); g > before+running+4 {
			t.Errorf("%d goroutines for %d probes that run, %d were there before", g, running, before)
		}
		if r := c.Results(); len(r) != n {
			t.Errorf("%d results", len(r))
		}
		for _, a := range addrs {
			if h.last(a) != state.Healthy {
				t.Errorf("%v is %v", a, h.last(a))
			}
		}
		t.Logf("%d probes at a time, at most", most)
	})
}
