package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// host is a daemon: a store and a list of gateways.
type host struct {
	store *state.Store

	mu       sync.Mutex
	gateways []netip.Addr
	poke     func()
}

func (h *host) Snapshot() *state.Snapshot { return h.store.Cell().Load() }

func (h *host) Gateways() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gateways
}

func (h *host) SetNeighbour(a netip.Addr, mac [6]byte, ok bool) { h.store.SetNeighbour(a, mac, ok) }

func (h *host) SetRoute(a netip.Addr, ok bool) { h.store.SetRoute(a, ok) }

// routed waits until a has a route, or none.
func (h *host) routed(t *testing.T, a netip.Addr, want bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		for _, b := range h.Snapshot().Backends {
			if b.Addr == a && b.NoRoute == !want {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s: a route is there: not %v", a, want)
		}
	}
}

func (h *host) WatchTargets(f func()) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.poke = f
	return func() {}
}

// mac answers what the snapshot says about a backend, or else a gateway.
func (h *host) mac(a netip.Addr) (mac [6]byte, ok bool) {
	s := h.Snapshot()
	for _, b := range s.Backends {
		if b.Addr == a {
			return b.MAC, b.HasMAC
		}
	}
	mac, ok = s.Neighbours[a]
	return mac, ok
}

// expect waits until a is reached at mac, or not at all (nil).
func (h *host) expect(t *testing.T, what string, within time.Duration, a netip.Addr, mac *[6]byte) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		got, ok := h.mac(a)
		if mac == nil && !ok || mac != nil && ok && got == *mac {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s is reached at %x, %v", what, a, got, ok)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func spec(backends ...string) state.Spec {
	p := state.PoolSpec{Name: "web", TableSize: 251}
	for i, b := range backends {
		p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprint(i), Address: netip.MustParseAddr(b), Weight: 100})
	}
	return state.Spec{Pools: []state.PoolSpec{p}}
}

// The kernel's tables in namespaces: a balancer on two links, a router on each.
func TestKernel(t *testing.T) {
	lb, r1, r2 := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Veth(
		netnstest.End{NS: lb, Name: "one", Addrs: []string{"192.0.2.1/24", "2001:db8:1::1/64"}},
		netnstest.End{NS: r1, Name: "up", Addrs: []string{"192.0.2.254/24", "192.0.2.9/24", "2001:db8:1::254/64"}},
	)
	netnstest.Veth(
		netnstest.End{NS: lb, Name: "two", Addrs: []string{"198.51.100.1/24"}},
		netnstest.End{NS: r2, Name: "up", Addrs: []string{"198.51.100.254/24"}},
	)
	for _, dev := range []string{"one", "two"} { // three tries in 0.3 s instead of 3
		lb.Sysctl("net.ipv4.neigh."+dev+".retrans_time_ms", "100")
	}
	lb.Route("10.0.0.0/8", "192.0.2.254", "one")
	lb.Route("2001:db8:ff::/48", "2001:db8:1::254", "one")
	mac1, mac2 := r1.MAC("up"), r2.MAC("up")

	h := &host{store: state.NewStore()}
	defer h.store.Close()
	routed, linked, six, gateway := netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8:ff::7"), netip.MustParseAddr("198.51.100.254")
	nowhere := netip.MustParseAddr("172.16.0.1")
	if err := h.store.Apply(spec("10.0.1.1", "2001:db8:ff::7", "172.16.0.1")); err != nil {
		t.Fatal(err)
	}
	h.gateways = []netip.Addr{gateway}

	kind := graph.Lookup("neigh")
	cfg := kind.NewConfig().(*Config)
	cfg.Probe = 300 * time.Millisecond
	c, err := kind.Control(cfg, &graph.Env{Host: h, Log: zaptest.NewLogger(t), Watch: func(f func(*state.Snapshot)) { h.store.Watch(f) }})
	if err != nil {
		t.Fatal(err)
	}
	lb.Do(func() { err = c.Start(context.Background()) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()

	// Nobody sends to these neighbours, so nothing but our question finds them.
	const soon = 3 * time.Second
	h.expect(t, "routed", soon, routed, &mac1)
	h.expect(t, "IPv6", soon, six, &mac1)
	h.expect(t, "gateway", soon, gateway, &mac2)
	h.expect(t, "no route", 0, nowhere, nil)
	h.routed(t, nowhere, false)
	h.routed(t, routed, true)

	// A backend that is added, on the link.
	if err := h.store.Apply(spec("10.0.1.1", "2001:db8:ff::7", "172.16.0.1", "192.0.2.9")); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "added", soon, linked, &mac1)

	// Routes change under way.
	lb.Exec("ip", "route", "replace", "10.0.0.0/8", "via", "198.51.100.254", "dev", "two")
	h.expect(t, "another route", soon, routed, &mac2)
	lb.Exec("ip", "route", "add", "172.16.0.0/12", "via", "192.0.2.254", "dev", "one")
	h.expect(t, "a route appears", soon, nowhere, &mac1)
	h.routed(t, nowhere, true)
	lb.Exec("ip", "route", "del", "172.16.0.0/12")
	h.expect(t, "a route goes", soon, nowhere, nil)
	lb.Exec("ip", "route", "add", "blackhole", "172.16.0.1/32")
	h.expect(t, "a route to nowhere", 0, nowhere, nil)

	// The router gets another hardware address, and does not say so.
	other := [6]byte{2, 0, 0, 0, 0, 0x77}
	r2.Sysctl("net.ipv4.conf.up.arp_notify", "0")
	r2.Exec("ip", "link", "set", "dev", "up", "address", "02:00:00:00:00:77")
	h.expect(t, "a silent change of the hardware address", 10*time.Second, routed, &other)
	h.expect(t, "a silent change of the hardware address", soon, gateway, &other)

	// A neighbour entry is deleted: what was known holds, or is found again at once.
	lb.Exec("ip", "neigh", "del", "198.51.100.254", "dev", "two")
	time.Sleep(100 * time.Millisecond)
	h.expect(t, "deleted", soon, routed, &other)

	// A fixed entry is taken as it is.
	lb.Exec("ip", "neigh", "replace", "192.0.2.9", "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "one")
	h.expect(t, "a permanent entry", soon, linked, &[6]byte{2, 0, 0, 0, 0, 0x99})

	// The block changes: only routes by way of one interface count.
	cfg2 := *cfg
	cfg2.Interface = "one"
	if err := c.(graph.Reconfigurer).Reconfigure(&cfg2); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "an interface without the route", soon, routed, nil)
	cfg2.Interface = ""
	if err := c.(graph.Reconfigurer).Reconfigure(&cfg2); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "any interface", soon, routed, &other)

	// A gateway that a reload takes away.
	h.mu.Lock()
	h.gateways = nil
	h.mu.Unlock()
	h.poke()
	h.expect(t, "a gateway that nobody names", soon, gateway, nil)

	// The router is gone.
	r2.Exec("ip", "link", "set", "dev", "up", "down")
	h.expect(t, "the router is down", 10*time.Second, routed, nil)
	r2.Exec("ip", "link", "set", "dev", "up", "up")
	lb.Exec("ip", "route", "replace", "10.0.0.0/8", "via", "198.51.100.254", "dev", "two")
	h.expect(t, "the router is back", 10*time.Second, routed, &other)
}

// What the kernel did not get rid of in time is read again from the beginning.
func TestLost(t *testing.T) {
	lb, r1 := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(
		netnstest.End{NS: lb, Name: "one", Addrs: []string{"192.0.2.1/24"}},
		netnstest.End{NS: r1, Name: "up", Addrs: []string{"192.0.2.254/24"}},
	)
	var k *kernel
	var err error
	lb.Do(func() { k, err = openKernel() })
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	lb.Exec("ip", "neigh", "replace", "192.0.2.254", "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "one")
	lb.Do(func() {
		k.unsubscribe()
		err = k.subscribe()
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.After(3 * time.Second); ; {
		select {
		case e, ok := <-k.neighbours:
			if !ok {
				t.Fatal("the subscription ended")
			}
			if u, ok := read(&e); ok && u.addr == netip.MustParseAddr("192.0.2.254") && u.phase == fixed {
				return
			}
		case <-end:
			t.Fatal("the neighbour that was there before is never told")
		}
	}
}

func TestNoHost(t *testing.T) {
	kind := graph.Lookup("neigh")
	if _, err := kind.Control(kind.NewConfig(), &graph.Env{}); err == nil || errors.Unwrap(err) != nil {
		t.Errorf("without a daemon: %v", err)
	}
}
