package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

func TestJudge(t *testing.T) {
	bad := errors.New("refused")
	for _, c := range []struct {
		name    string
		results string // + success, - failure
		states  string // after each: U unknown, H healthy, D unhealthy
	}{
		{"two successes up", "++", "UH"},
		{"three failures down", "---", "UUD"},
		{"failures must be consecutive", "--+--+---", "UUUUUUUUD"},
		{"successes must be consecutive", "+-++", "UUUH"},
		{"one failure keeps it up", "++-+--+---", "UHHHHHHHHD"},
		{"up again", "---++", "UUDDH"},
		{"one success does not", "---+-++", "UUDDDDH"},
	} {
		var x target
		for i, r := range c.results {
			var err error
			if r == '-' {
				err = bad
			}
			now, changed := x.judge(err, 0, 2, 3)
			if got := "UHD"[now]; got != c.states[i] {
				t.Errorf("%s: after %s the state is %c, want %c", c.name, c.results[:i+1], got, c.states[i])
			}
			if want := i > 0 && c.states[i] != c.states[i-1] || i == 0 && c.states[0] != 'U'; changed != want {
				t.Errorf("%s: after %s changed is %v", c.name, c.results[:i+1], changed)
			}
		}
	}
}

// host keeps what checkers say.
type host struct {
	store *state.Store
	mu    sync.Mutex
	said  map[state.Target][]state.Health
	watch []func()
}

func newHost(t *testing.T, check string, addrs ...netip.AddrPort) *host {
	h := &host{store: state.NewStore(), said: map[state.Target][]state.Health{}}
	t.Cleanup(h.store.Close)
	h.apply(t, check, addrs...)
	return h
}

func (h *host) apply(t *testing.T, check string, addrs ...netip.AddrPort) {
	t.Helper()
	p := state.PoolSpec{Name: "web", TableSize: 251, Health: check}
	for i, a := range addrs {
		p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprint("b", i), Address: a.Addr(), Port: int(a.Port()), Weight: 100})
	}
	q := p // a second pool with the same check probes nothing twice
	q.Name = "api"
	if err := h.store.Apply(state.Spec{Pools: []state.PoolSpec{p, q}}); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.watch {
		if f != nil {
			f()
		}
	}
}

func (h *host) Snapshot() *state.Snapshot { return h.store.Cell().Load() }
func (h *host) SetHealth(t state.Target, x state.Health) {
	h.store.SetHealth(t, x)
	h.mu.Lock()
	h.said[t] = append(h.said[t], x)
	h.mu.Unlock()
}

func (h *host) WatchTargets(f func()) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watch = append(h.watch, f)
	at := len(h.watch) - 1
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.watch[at] = nil
	}
}

// watching is how many watch the targets.
func (h *host) watching() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.watch {
		if f != nil {
			n++
		}
	}
	return n
}

func (h *host) last(a netip.AddrPort) state.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	said := h.said[state.Target{Check: "c", Addr: a.Addr(), Port: int(a.Port())}]
	if len(said) == 0 {
		return state.Unknown
	}
	return said[len(said)-1]
}

func (h *host) await(t *testing.T, a netip.AddrPort, want state.Health) {
	t.Helper()
	for end := time.Now().Add(time.Minute); h.last(a) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%v is %v, want %v", a, h.last(a), want)
		}
	}
}

func start(t *testing.T, h *host, change func(*Config)) *Checker {
	t.Helper()
	return begin(t, h, change, nil)
}

// begin is start with a dialler of the test's own.
func begin(t *testing.T, h *host, change func(*Config), dial func(context.Context, string, string) (net.Conn, error)) *Checker {
	t.Helper()
	c := Defaults()
	c.Interval, c.Timeout = 200*time.Millisecond, 200*time.Millisecond // time enough to answer on a busy machine
	change(&c)
	k := graph.Lookup("health")
	if err := k.CheckConfig(&c); err != nil {
		t.Fatal(err)
	}
	ctl, err := k.Control(&c, &graph.Env{Node: "c", Host: h, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if dial != nil {
		ctl.(*Checker).prober.dial = dial
	}
	if err := ctl.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ctl.Stop(context.Background()) })
	return ctl.(*Checker)
}

func serve(t *testing.T, tls bool, h http.HandlerFunc) netip.AddrPort {
	s := httptest.NewUnstartedServer(h)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddrPort(l.Addr().String())
	h := newHost(t, "c", a)
	start(t, h, func(*Config) {})
	h.await(t, a, state.Healthy)
	_ = l.Close()
	h.await(t, a, state.Unhealthy)
	if l, err = net.Listen("tcp", a.String()); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.await(t, a, state.Healthy)
}

func TestHTTP(t *testing.T) {
	var status atomic.Int32
	var body atomic.Value
	status.Store(200)
	body.Store("all is well")
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "www.example" || r.URL.RequestURI() != "/healthz?deep=1" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, body.Load())
	})
	h := newHost(t, "c", a)
	c := start(t, h, func(c *Config) {
		c.Type, c.Host, c.Path, c.Body, c.Expect = "http", "www.example", "/healthz?deep=1", "w.ll", []string{"200", "202-204"}
	})
	h.await(t, a, state.Healthy)
	status.Store(201) // not among the expected
	h.await(t, a, state.Unhealthy)
	if r := c.Results(); len(r) != 1 || r[0].Err == nil || !strings.Contains(r[0].Err.Error(), "status 201") {
		t.Errorf("results are %+v", r)
	}
	status.Store(203)
	h.await(t, a, state.Healthy)
	body.Store("all is lost")
	h.await(t, a, state.Unhealthy)
}

func TestHTTPS(t *testing.T) {
	a := serve(t, true, func(http.ResponseWriter, *http.Request) {})
	h := newHost(t, "c", a)
	slow := func(c *Config) { c.Type, c.Interval, c.Timeout = "https", 150*time.Millisecond, 150*time.Millisecond }
	c := start(t, h, slow)
	h.await(t, a, state.Healthy)
	// Nobody trusts the test server's certificate.
	cfg := Defaults()
	slow(&cfg)
	cfg.Verify = true
	if err := c.Reconfigure(&cfg); err != nil {
		t.Fatal(err)
	}
	h.await(t, a, state.Unhealthy)
	// What failed before a change recovers after it.
	cfg.Verify = false
	if err := c.Reconfigure(&cfg); err != nil {
		t.Fatal(err)
	}
	h.await(t, a, state.Healthy)
}

func TestHungProbeIsAFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepted by the kernel, answered by nobody
	a := netip.MustParseAddrPort(l.Addr().String())
	h := newHost(t, "c", a)
	c := start(t, h, func(c *Config) { c.Type = "http" })
	h.await(t, a, state.Unhealthy)
	if r := c.Results(); !strings.Contains(r[0].Err.Error(), "no answer within") {
		t.Errorf("the error is %v", r[0].Err)
	}
}

// TestMany: hundreds of targets by one scheduler, each probed again and again, but no
// more often than the interval says although two pools have it, never more at a time
// than allowed, and nothing stays behind.
func TestMany(t *testing.T) {
	before := runtime.NumGoroutine()
	var active, most atomic.Int32
	const n, parallel, interval, often = 600, 32, 200 * time.Millisecond, 10
	var addrs []netip.AddrPort
	for i := range n {
		addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80))
	}
	var mu sync.Mutex
	probes := map[string]int{}
	// fewest and most probes of a target, of those there are.
	span := func() (fewest, most int) {
		mu.Lock()
		defer mu.Unlock()
		fewest = probes[addrs[0].String()]
		for _, a := range addrs {
			k := probes[a.String()]
			fewest, most = min(fewest, k), max(most, k)
		}
		return fewest, most
	}
	h := newHost(t, "c", addrs...)
	begun := time.Now()
	c := begin(t, h, func(c *Config) {
		c.Interval, c.Timeout, c.Parallel = interval, interval/2, parallel
	}, func(_ context.Context, _, at string) (net.Conn, error) {
		mu.Lock()
		probes[at]++
		mu.Unlock()
		most.Store(max(most.Load(), active.Add(1)))
		time.Sleep(100 * time.Microsecond)
		active.Add(-1)
		a, b := net.Pipe()
		_ = b.Close()
		return a, nil
	})
	for _, a := range addrs {
		h.await(t, a, state.Healthy)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		fewest, most := span()
		// Intervals are jittered by a tenth at most; the first probe has none before it.
		if bound := 1 + int(time.Since(begun)/(interval*9/10)); most > bound {
			t.Fatalf("a target was probed %d times in %v, want %d at most", most, time.Since(begun), bound)
		}
		if fewest >= often {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a target was probed %d times in a minute", fewest)
		}
	}
	mu.Lock()
	if len(probes) != n {
		t.Errorf("%d targets were probed, of %d", len(probes), n)
	}
	mu.Unlock()
	if m := most.Load(); m > parallel {
		t.Errorf("%d probes at a time, want at most %d", m, parallel)
	}
	// Half of them leave.
	h.apply(t, "c", addrs[:n/2]...)
	for end := time.Now().Add(5 * time.Second); len(c.Results()) != n/2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d targets are left", len(c.Results()))
		}
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines were there, %d are", before, runtime.NumGoroutine())
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		words  string
	}{
		{func(c *Config) { c.Timeout = c.Interval + 1 }, "longer than interval"},
		{func(c *Config) { c.Expect = []string{"ok"} }, `expect has "ok"`},
		{func(c *Config) { c.Expect = []string{"300-200"} }, `expect has "300-200"`},
		{func(c *Config) { c.Expect = []string{"200", "99"} }, `expect has "99"`},
		{func(c *Config) { c.Expect = []string{"600"} }, `expect has "600"`},
		{func(c *Config) { c.Expect = []string{"200-600"} }, `expect has "200-600"`},
		{func(c *Config) { c.Expect = []string{"200-x"} }, `expect has "200-x"`},
		{func(c *Config) { c.Body = "(" }, "no regular expression"},
		{func(c *Config) { c.Type, c.Path = "http", "healthz" }, "begin with a slash"},
		{func(c *Config) { c.Type, c.Path = "http", "/%zz" }, "is no path"},
	} {
		cfg := Defaults()
		c.change(&cfg)
		if err := check(cfg); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("got %v, want %q", err, c.words)
		}
	}
	cfg := Defaults()
	cfg.Expect, cfg.Timeout = []string{"100", "599", "100-599"}, cfg.Interval
	if err := check(cfg); err != nil {
		t.Errorf("the bounds themselves: %v", err)
	}
}

func TestJitter(t *testing.T) {
	p := &prober{cfg: Defaults()}
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := p.jittered()
		if d < 4500*time.Millisecond || d > 5500*time.Millisecond {
			t.Fatalf("interval %v", d)
		}
		seen[d] = true
	}
	if len(seen) < 900 {
		t.Errorf("only %d different intervals in 1000", len(seen))
	}
}

// A redirect is an answer like any other, and not followed: what it leads to may be
// another backend's health.
func TestRedirectIsNotFollowed(t *testing.T) {
	var followed atomic.Int64
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			followed.Add(1)
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	h := newHost(t, "c", a)
	start(t, h, func(c *Config) { c.Type, c.Interval, c.Timeout = "http", 200*time.Millisecond, 200*time.Millisecond })
	h.await(t, a, state.Unhealthy)
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}
