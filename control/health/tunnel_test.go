package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// tunnelHost is a host whose tunnels lead to what the test says.
type tunnelHost struct {
	*host
	opened, closed atomic.Int32
	fail           error
	log            *zap.Logger // nil for none

	mu    sync.Mutex
	dial  func(ctx context.Context, backend netip.Addr, vip netip.AddrPort) (net.Conn, error)
	asked []string
}

func (h *tunnelHost) OpenTunnel() (func() error, error) {
	if h.fail != nil {
		return nil, h.fail
	}
	h.opened.Add(1)
	return func() error { h.closed.Add(1); return nil }, nil
}

func (h *tunnelHost) DialTunnel(ctx context.Context, backend netip.Addr, vip netip.AddrPort) (net.Conn, error) {
	h.mu.Lock()
	h.asked = append(h.asked, fmt.Sprint(vip, " on ", backend))
	dial := h.dial
	h.mu.Unlock()
	return dial(ctx, backend, vip)
}

func (h *tunnelHost) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(h.asked)))
}

// answer is a connection with somebody who is content.
func answer(context.Context, netip.Addr, netip.AddrPort) (net.Conn, error) {
	a, b := net.Pipe()
	_ = b.Close()
	return a, nil
}

func newTunnelHost(t *testing.T, spec state.Spec) *tunnelHost {
	h := &tunnelHost{host: &host{store: state.NewStore(), said: map[state.Target][]state.Health{}}, dial: answer}
	t.Cleanup(h.store.Close)
	if err := h.store.Apply(spec); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *tunnelHost) begin(t *testing.T, change func(*Config)) (*Checker, error) {
	t.Helper()
	c := Defaults()
	c.Through, c.Interval, c.Timeout = "tunnel", 100*time.Millisecond, 100*time.Millisecond
	if change != nil {
		change(&c)
	}
	ctl, err := graph.Lookup("health").Control(&c, &graph.Env{Node: "c", Host: h, Log: cmp.Or(h.log, zap.NewNop())})
	if err == nil {
		err = ctl.Start(context.Background())
	}
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = ctl.Stop(context.Background()) })
	return ctl.(*Checker), nil
}

func vip(name, prefix, pool string, proto uint8, ports ...uint16) state.VIPSpec {
	v := state.VIPSpec{Name: name, Prefix: netip.MustParsePrefix(prefix), Protocol: proto, Pool: pool}
	for _, p := range ports {
		v.Ports = append(v.Ports, state.PortRange{Lo: p, Hi: p})
	}
	return v
}

func pool(name, check string, backends ...string) state.PoolSpec {
	p := state.PoolSpec{Name: name, TableSize: 251, Health: check}
	for i, b := range backends {
		a := netip.MustParseAddrPort(b)
		p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprint("b", i), Address: a.Addr(), Port: int(a.Port()), Weight: 100})
	}
	return p
}

const tcp, udp = 6, 17

func TestVIPsOf(t *testing.T) {
	off := vip("off", "203.0.113.9/32", "web", tcp, 80)
	off.Disabled = true
	spec := state.Spec{
		Pools: []state.PoolSpec{
			pool("web", "c", "10.0.0.1:0", "10.0.0.2:0"), pool("api", "c", "10.0.0.2:0"), pool("dns", "c", "10.0.0.3:53"),
			pool("other", "d", "10.0.0.1:0"), pool("idle", "c", "10.0.0.4:0"),
		},
		VIPs: []state.VIPSpec{
			off,
			vip("quic", "203.0.113.1/32", "web", udp, 443), // takes no TCP: the next names the port
			vip("tls", "203.0.113.1/32", "web", tcp, 443, 80),
			vip("more", "203.0.113.1/32", "web", tcp, 8080),
			vip("api", "203.0.113.1/32", "api", tcp, 9000),
			vip("net", "2001:db8::/64", "api", 0),
			vip("dns", "203.0.113.53/32", "dns", udp, 53),
			vip("other", "203.0.113.7/32", "other", tcp, 80),
		},
	}
	s, err := state.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	of := func(a string, port int) state.Target {
		return state.Target{Check: "c", Addr: netip.MustParseAddr(a), Port: port}
	}
	list := func(all ...string) (l []netip.AddrPort) {
		for _, a := range all {
			l = append(l, netip.MustParseAddrPort(a))
		}
		return l
	}
	want := map[state.Target][]netip.AddrPort{
		of("10.0.0.1", 0):  list("203.0.113.1:443"),
		of("10.0.0.2", 0):  list("203.0.113.1:443", "203.0.113.1:9000", "[2001:db8::]:0"),
		of("10.0.0.3", 53): list("203.0.113.53:0"),
	}
	if got := vipsOf(s, "c"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestVIPsOfSharedBackends: two backends that share a pool, and each another one with a
// VIP of its own, have each its own, and not the other's.
func TestVIPsOfSharedBackends(t *testing.T) {
	spec := state.Spec{Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:0", "10.0.0.2:0"), pool("api", "c", "10.0.0.1:0"), pool("dns", "c", "10.0.0.2:0")}}
	for i, p := range []string{"web", "web", "web", "api", "dns"} { // three: append leaves room for a fourth
		spec.VIPs = append(spec.VIPs, vip(fmt.Sprint(i), fmt.Sprintf("203.0.113.%d/32", i), p, tcp, 80))
	}
	s, err := state.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	for backend, last := range map[string]string{"10.0.0.1": "203.0.113.3:80", "10.0.0.2": "203.0.113.4:80"} {
		got := vipsOf(s, "c")[state.Target{Check: "c", Addr: netip.MustParseAddr(backend)}]
		if want := "[203.0.113.0:80 203.0.113.1:80 203.0.113.2:80 " + last + "]"; fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", backend, got, want)
		}
	}
}

// TestVIPsOfAPoolThatIsLeft: a backend that drains out of a pool and stays in another
// is not asked at the VIPs of the one that it leaves.
func TestVIPsOfAPoolThatIsLeft(t *testing.T) {
	spec := state.Spec{
		Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:9", "10.0.0.2:9"), pool("api", "c", "10.0.0.2:9")},
		VIPs:  []state.VIPSpec{vip("web", "203.0.113.1/32", "web", tcp, 80), vip("api", "203.0.113.2/32", "api", tcp, 80)},
	}
	spec.Pools[0].RemovalGrace = time.Hour
	h := newTunnelHost(t, spec)
	spec.Pools[0].Backends = spec.Pools[0].Backends[:1]
	if err := h.store.Apply(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := h.begin(t, nil); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.0.0.1:9", "10.0.0.2:9"} {
		h.await(t, netip.MustParseAddrPort(a), state.Healthy)
	}
	if got, want := h.all(), []string{"203.0.113.1:80 on 10.0.0.1", "203.0.113.2:80 on 10.0.0.2"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

// TestTunnelAsksEveryVIP at the port that the check, the VIP, the backend or the
// scheme says, in this order; and backends that no VIP leads to at their own address.
func TestTunnelAsksEveryVIP(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"the VIP's port", nil, []string{"203.0.113.1:8443 on 10.0.0.1", "[2001:db8::1]:9 on 10.0.0.1"}},
		{"the check's port", func(c *Config) { c.Port = 7 }, []string{"203.0.113.1:7 on 10.0.0.1", "[2001:db8::1]:7 on 10.0.0.1"}},
	} {
		h := newTunnelHost(t, state.Spec{
			Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:9"), pool("idle", "c", "127.0.0.1:1")},
			VIPs:  []state.VIPSpec{vip("a", "203.0.113.1/32", "web", tcp, 8443), vip("b", "2001:db8::1/128", "web", 0)},
		})
		if _, err := h.begin(t, c.change); err != nil {
			t.Fatal(err)
		}
		h.await(t, netip.MustParseAddrPort("10.0.0.1:9"), state.Healthy)
		h.await(t, netip.MustParseAddrPort("127.0.0.1:1"), state.Unhealthy) // refused, and not by a tunnel
		if got := h.all(); !slices.Equal(got, c.want) {
			t.Errorf("%s: asked %q, want %q", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		kind string
		want uint16
	}{{"tcp", 80}, {"http", 80}, {"https", 443}} {
		p := prober{cfg: Config{Type: c.kind}}
		if got := p.port(0, 0); got != c.want {
			t.Errorf("%s: port %d, want %d", c.kind, got, c.want)
		}
	}
}

// TestOneVIPOfManyFails: then the backend does, and the result names it.
func TestOneVIPOfManyFails(t *testing.T) {
	h := newTunnelHost(t, state.Spec{
		Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:0")},
		VIPs:  []state.VIPSpec{vip("a", "203.0.113.1/32", "web", tcp, 80), vip("b", "203.0.113.2/32", "web", tcp, 80)},
	})
	var bad atomic.Bool
	bad.Store(true)
	h.dial = func(ctx context.Context, b netip.Addr, v netip.AddrPort) (net.Conn, error) {
		if v.Addr() == netip.MustParseAddr("203.0.113.2") && bad.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return answer(ctx, b, v)
	}
	c, err := h.begin(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.await(t, netip.MustParseAddrPort("10.0.0.1:0"), state.Unhealthy)
	if r := c.Results(); len(r) != 1 || r[0].Err == nil || r[0].Err.Error() != "vip 203.0.113.2:80: no answer within 100ms" {
		t.Errorf("results are %+v", r)
	}
	bad.Store(false)
	h.await(t, netip.MustParseAddrPort("10.0.0.1:0"), state.Healthy)
}

// TestTunnelIsOpenWhileNeeded: a check opens the tunnel when it starts or changes to
// it, and gives it back when it changes or stops.
func TestTunnelIsOpenWhileNeeded(t *testing.T) {
	spec := state.Spec{Pools: []state.PoolSpec{pool("web", "c", "127.0.0.1:1")}, VIPs: []state.VIPSpec{vip("a", "203.0.113.1/32", "web", tcp, 80)}}
	h := newTunnelHost(t, spec)
	c, err := h.begin(t, func(c *Config) { c.Through = "direct" })
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddrPort("127.0.0.1:1")
	h.await(t, a, state.Unhealthy)
	if h.opened.Load() != 0 {
		t.Error("a direct check opens the tunnel")
	}
	cfg := c.prober.cfg
	change := func(through string) {
		t.Helper()
		next := cfg
		next.Through = through
		if err := c.Reconfigure(&next); err != nil {
			t.Fatal(err)
		}
	}
	change("tunnel")
	h.await(t, a, state.Healthy)
	change("direct")
	h.await(t, a, state.Unhealthy)
	if o, c := h.opened.Load(), h.closed.Load(); o != 1 || c != 1 {
		t.Errorf("opened %d, closed %d times", o, c)
	}
	h.fail = errors.New("no tunnel today")
	next := cfg
	next.Through = "tunnel"
	if err := c.Reconfigure(&next); err == nil || c.prober.cfg.Through != "direct" {
		t.Errorf("error %v, now %s", err, c.prober.cfg.Through)
	}
	h.fail = nil
	change("tunnel")
	if err := c.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if o, c := h.opened.Load(), h.closed.Load(); o != 2 || c != 2 {
		t.Errorf("opened %d, closed %d times", o, c)
	}
	h.fail = errors.New("no tunnel today")
	if _, err := h.begin(t, nil); !errors.Is(err, h.fail) {
		t.Errorf("started without a tunnel: %v", err)
	}
	if _, err := newProber(next, h.host); err == nil || !strings.Contains(err.Error(), "no daemon") {
		t.Errorf("a host without tunnels: %v", err)
	}
}

// TestResultOfAnotherCheckDoesNotCount: what was asked before a change is not judged
// after it.
func TestResultOfAnotherCheckDoesNotCount(t *testing.T) {
	h := newTunnelHost(t, state.Spec{Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:0")}, VIPs: []state.VIPSpec{vip("a", "203.0.113.1/32", "web", tcp, 80)}})
	asked, release := make(chan bool, 1), make(chan bool)
	var first sync.Once
	h.dial = func(ctx context.Context, b netip.Addr, v netip.AddrPort) (net.Conn, error) {
		hangs := false
		first.Do(func() { hangs = true })
		if hangs {
			asked <- true
			<-release
			return nil, errors.New("the tunnel is gone")
		}
		return answer(ctx, b, v)
	}
	c, err := h.begin(t, func(c *Config) { c.Fall = 1 })
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	next := c.prober.cfg
	next.Path = "/other"
	if err := c.Reconfigure(&next); err != nil {
		t.Fatal(err)
	}
	close(release)
	a := netip.MustParseAddrPort("10.0.0.1:0")
	h.await(t, a, state.Healthy)
	h.host.mu.Lock()
	defer h.host.mu.Unlock()
	if said := h.said[state.Target{Check: "c", Addr: a.Addr()}]; !slices.Equal(said, []state.Health{state.Healthy}) {
		t.Errorf("said %v", said)
	}
}
