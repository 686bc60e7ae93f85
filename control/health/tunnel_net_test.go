package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/netnstest"
	"github.com/lbgraph/lbgraph/io/probe"
)

// TestNetThroughTunnel: backends that answer at their own address, but have no VIP or
// leave the tunnel's headers on, are unhealthy through the tunnel, until that is mended.
func TestNetThroughTunnel(t *testing.T) {
	const vip4, vip6 = "203.0.113.80", "2001:db8::80"
	node := netnstest.New(t)
	node.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	var backends []*netnstest.NS
	var addrs []string
	for i := 1; i <= 3; i++ {
		b := netnstest.New(t)
		b.Sysctl("net.ipv6.conf.default.accept_dad", "0")
		netnstest.Veth(netnstest.End{NS: node, Name: fmt.Sprint("b", i), Addrs: []string{fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i)}},
			netnstest.End{NS: b, Name: "eth0", Addrs: []string{fmt.Sprintf("10.0.%d.2/24", i), fmt.Sprintf("fd00:%d::2/64", i)}})
		var l net.Listener
		var err error
		b.Do(func() { l, err = net.Listen("tcp", ":80") })
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "www.example" || r.URL.Path != "/healthz" {
				w.WriteHeader(http.StatusNotFound)
			}
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		backends, addrs = append(backends, b), append(addrs, fmt.Sprintf("10.0.%d.2:80", i))
	}
	vips := func(b *netnstest.NS, order string) {
		b.Exec("ip", "addr", order, vip4+"/32", "dev", "lo")
		b.Exec("ip", "addr", order, vip6+"/128", "dev", "lo")
	}
	decap := func(b *netnstest.NS) {
		var d *bpf.Decap
		var err error
		b.Do(func() {
			d, err = bpf.AttachDecap(bpf.DecapOptions{Interface: b.Index("eth0"), Tunnels: bpf.GRE, TC: true})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
	}
	good, bare, deaf := backends[0], backends[1], backends[2]
	vips(good, "add")
	decap(good)
	decap(bare)
	vips(deaf, "add")

	h := newTunnelHost(t, state.Spec{
		Pools: []state.PoolSpec{pool("web", "c", addrs...)},
		VIPs:  []state.VIPSpec{vip("four", vip4+"/32", "web", tcp, 80), vip("six", vip6+"/128", "web", tcp, 80)},
	})
	var d *probe.Dialer
	var err error
	node.Do(func() {
		d, err = probe.Open(probe.Encap{Protocol: encap.GRE, Config: encap.Defaults()}, h.Snapshot(), zaptest.NewLogger(t))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		node.Do(func() { err = d.Close() })
		if err != nil {
			t.Error(err)
		}
	})
	h.dial = func(ctx context.Context, b netip.Addr, v netip.AddrPort) (c net.Conn, err error) {
		node.Do(func() { c, err = d.Dial(ctx, b, v) })
		return c, err
	}
	change := func(c *Config) {
		c.Type, c.Host, c.Path, c.Timeout = "http", "www.example", "/healthz", time.Second
		c.Interval = c.Timeout
	}
	// Asked directly, all three do.
	direct := Defaults()
	change(&direct)
	p, err := newProber(direct, h)
	if err != nil {
		t.Fatal(err)
	}
	p.dial = func(ctx context.Context, network, address string) (c net.Conn, err error) {
		node.Do(func() { c, err = new(net.Dialer).DialContext(ctx, network, address) })
		return c, err
	}
	for _, target := range h.Snapshot().Targets() {
		if err := p.probe(context.Background(), target, nil); err != nil {
			t.Errorf("%v directly: %v", target.Addr, err)
		}
	}
	c, err := h.begin(t, func(c *Config) {
		change(c)
		c.Rise, c.Fall = 1, 1
	})
	if err != nil {
		t.Fatal(err)
	}
	all := func(want ...state.Health) {
		t.Helper()
		for i, a := range addrs {
			h.await(t, netip.MustParseAddrPort(a), want[i])
		}
		if t.Failed() {
			t.Logf("results are %+v", c.Results())
		}
	}
	all(state.Healthy, state.Unhealthy, state.Unhealthy)
	vips(bare, "add")
	decap(deaf)
	all(state.Healthy, state.Healthy, state.Healthy)
	vips(good, "del")
	all(state.Unhealthy, state.Healthy, state.Healthy)
}
