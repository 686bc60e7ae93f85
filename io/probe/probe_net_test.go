package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// asNode has the test binary open a Dialer and keep it until it is killed.
const asNode = "LBGRAPH_TEST_PROBE_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(asNode) == "" {
		os.Exit(m.Run())
	}
	d, err := Open(gre, snapshot(nil, "10.0.1.2"), zap.NewNop())
	if err == nil && os.Getenv(asNode) == "dial" {
		_, err = dial(d, "10.0.1.2", "203.0.113.80", 3*time.Second)
	}
	fmt.Println("open:", err)
	time.Sleep(time.Minute)
}

var gre = Encap{Protocol: encap.GRE, Config: encap.Defaults()}

const (
	vip4, vip6 = "203.0.113.80", "2001:db8::80"
	wait       = 300 * time.Millisecond // for what must not come
)

// world is a node behind a router, with backends on links of their own: 10.0.N.2 and
// fd00:N::2, which serve HTTP.
//
//	node 192.0.2.1 --- router --- 10.0.N.2 backend N
type world struct {
	t            testing.TB
	node, router *netnstest.NS
	backends     []*backend
}

type backend struct {
	*netnstest.NS
	addr4, addr6 string
}

func newWorld(t testing.TB, backends int) *world {
	w := &world{t: t, node: newNS(t), router: newNS(t)}
	netnstest.Veth(netnstest.End{NS: w.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:f::1/64"}, Offload: true},
		netnstest.End{NS: w.router, Name: "node", Addrs: []string{"192.0.2.2/24", "2001:db8:f::2/64"}, Offload: true})
	w.node.Route("0.0.0.0/0", "192.0.2.2", "")
	w.node.Route("::/0", "2001:db8:f::2", "")
	w.router.Sysctl("net.ipv4.ip_forward", "1")
	w.router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	for i := 1; i <= backends; i++ {
		b := &backend{newNS(t), fmt.Sprintf("10.0.%d.2", i), fmt.Sprintf("fd00:%d::2", i)}
		netnstest.Veth(netnstest.End{NS: b.NS, Name: "eth0", Addrs: []string{b.addr4 + "/24", b.addr6 + "/64"}, Offload: i&1 != 0},
			netnstest.End{NS: w.router, Name: fmt.Sprint("b", i), Addrs: []string{fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i)}, Offload: i&1 != 0})
		b.Route("0.0.0.0/0", fmt.Sprintf("10.0.%d.1", i), "")
		b.Route("::/0", fmt.Sprintf("fd00:%d::1", i), "")
		w.backends = append(w.backends, b)
		var l net.Listener
		var err error
		b.Do(func() { l, err = net.Listen("tcp", ":80") })
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintf(rw, "backend %d", i) })}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return w
}

// newNS makes a namespace whose link-local addresses are usable at once.
func newNS(t testing.TB) *netnstest.NS {
	n := netnstest.New(t)
	n.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	return n
}

// vips puts both VIPs on a backend's loopback.
func (b *backend) vips() {
	b.Exec("ip", "addr", "add", vip4+"/32", "dev", "lo")
	b.Exec("ip", "addr", "add", vip6+"/128", "dev", "lo")
}

// decap has a backend take outer headers off.
func (w *world) decap(b *backend, tc bool) {
	w.t.Helper()
	var d *bpf.Decap
	var err error
	b.Do(func() {
		d, err = bpf.AttachDecap(bpf.DecapOptions{Interface: b.Index("eth0"), Tunnels: bpf.AllTunnels, TC: tc})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = d.Close() })
}

// snapshot has a pool of backends behind both VIPs.
func snapshot(t testing.TB, backends ...string) *state.Snapshot {
	spec := state.Spec{Pools: []state.PoolSpec{{Name: "web", TableSize: 251}}}
	for i, a := range backends {
		spec.Pools[0].Backends = append(spec.Pools[0].Backends, state.BackendSpec{Name: fmt.Sprint("b", i), Address: netip.MustParseAddr(a), Weight: 100})
	}
	for _, v := range []string{vip4, vip6} {
		a := netip.MustParseAddr(v)
		spec.VIPs = append(spec.VIPs, state.VIPSpec{Name: v, Prefix: netip.PrefixFrom(a, a.BitLen()), Protocol: 6, Ports: []state.PortRange{{Lo: 80, Hi: 80}}, Pool: "web"})
	}
	s, err := state.Build(spec)
	if err != nil && t != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) all() *state.Snapshot {
	var all []string
	for _, b := range w.backends {
		all = append(all, b.addr4, b.addr6)
	}
	return snapshot(w.t, all...)
}

func (w *world) open(e Encap, s *state.Snapshot) *Dialer {
	w.t.Helper()
	var d *Dialer
	var err error
	w.node.Do(func() { d, err = Open(e, s, zaptest.NewLogger(w.t)) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.close(d) })
	return d
}

func (w *world) close(d *Dialer) {
	w.t.Helper()
	var err error
	w.node.Do(func() { err = d.Close() })
	if err != nil {
		w.t.Error(err)
	}
}

// dial asks a VIP on a backend who answers.
func dial(d *Dialer, backend, vip string, patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := d.Dial(ctx, netip.MustParseAddr(backend), netip.AddrPortFrom(netip.MustParseAddr(vip), 80))
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

func (w *world) dial(d *Dialer, backend, vip string, patience time.Duration) (who string, err error) {
	w.node.Do(func() { who, err = dial(d, backend, vip, patience) })
	return who, err
}

// reaches wants both VIPs on a backend to answer as it.
func (w *world) reaches(d *Dialer, n int) {
	w.t.Helper()
	b := w.backends[n-1]
	for _, to := range []string{b.addr4, b.addr6} {
		for _, vip := range []string{vip4, vip6} {
			if who, err := w.dial(d, to, vip, 5*time.Second); err != nil || who != fmt.Sprint("backend ", n) {
				w.t.Errorf("%s on %s: %q, %v", vip, to, who, err)
			}
		}
	}
}

// silent wants that no VIP on a backend is answered, by anybody.
func (w *world) silent(d *Dialer, n int) {
	w.t.Helper()
	b := w.backends[n-1]
	for _, to := range []string{b.addr4, b.addr6} {
		for _, vip := range []string{vip4, vip6} {
			if who, err := w.dial(d, to, vip, wait); err == nil {
				w.t.Errorf("%s on %s is answered by %q", vip, to, who)
			}
		}
	}
}

// TestNetProbeAllMixes: every kind of tunnel, over IPv4 and IPv6, leads connections to
// IPv4 and IPv6 VIPs to the backend that is meant and no other, by XDP and TC
// decapsulation, with checksum and segmentation offload and without.
func TestNetProbeAllMixes(t *testing.T) {
	w := newWorld(t, 2)
	for i, b := range w.backends {
		b.vips()
		w.decap(b, i == 0)
	}
	d := w.open(gre, w.all())
	for _, e := range []Encap{gre, {Protocol: encap.IPIP, Config: encap.Defaults()}, {Protocol: encap.GUE, Config: encap.Defaults(), Port: bpf.GUEPort}} {
		d.SetEncap(e)
		for range 3 {
			w.reaches(d, 1)
			w.reaches(d, 2)
		}
	}
}

// TestNetProbeFinds: what keeps traffic from a backend keeps probes from an answer,
// though each backend answers at its own address.
func TestNetProbeFinds(t *testing.T) {
	w := newWorld(t, 5)
	const good, bare, closed, forwards, deaf = 1, 2, 3, 4, 5
	for i, b := range w.backends {
		if n := i + 1; n != deaf {
			w.decap(b, true)
		}
		if n := i + 1; n != bare && n != forwards {
			b.vips()
		}
	}
	// Who has no VIP and forwards sends to the router, and that to one which answers.
	b := w.backends[forwards-1]
	b.Sysctl("net.ipv4.ip_forward", "1")
	b.Sysctl("net.ipv6.conf.all.forwarding", "1")
	w.router.Route(vip4+"/32", w.backends[good-1].addr4, "")
	w.router.Route(vip6+"/128", w.backends[good-1].addr6, "")
	d := w.open(gre, w.all())
	for _, b := range w.backends {
		var err error
		w.node.Do(func() {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", b.addr4+":80", 5*time.Second); err == nil {
				_ = c.Close()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.reaches(d, good)
	for _, n := range []int{bare, forwards, deaf} {
		w.silent(d, n)
	}
	// A VIP where nobody listens refuses.
	var err error
	w.node.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = d.Dial(ctx, netip.MustParseAddr(w.backends[closed-1].addr4), netip.MustParseAddrPort(vip4+":81"))
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port where nobody listens: %v", err)
	}
	// What was missing is noticed when it is there.
	w.backends[bare-1].vips()
	w.reaches(d, bare)
	w.decap(w.backends[deaf-1], true)
	w.reaches(d, deaf)
	w.reaches(d, good)
}

// TestNetProbeFollowsBackends: a backend that is none is not connected to, and
// one that gets another number is reached by that.
func TestNetProbeFollowsBackends(t *testing.T) {
	w := newWorld(t, 2)
	for _, b := range w.backends {
		b.vips()
		w.decap(b, true)
	}
	one, two := w.backends[0].addr4, w.backends[1].addr4
	d := w.open(gre, snapshot(t, one))
	want := func(backend, who, words string) {
		t.Helper()
		if got, err := w.dial(d, backend, vip4, 5*time.Second); got != who || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%s: %q, %v", backend, got, err)
		}
	}
	want(one, "backend 1", "")
	want(two, "", "is no backend")
	d.Update(snapshot(t, two, one))
	want(two, "backend 2", "")
	want(one, "backend 1", "")
	d.Update(snapshot(t, two))
	want(one, "", "is no backend")
	// Its number alone leads nowhere now.
	w.node.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = mark(int(fd), bpf.ProbeMark|2, true) })
		}}
		if c, err := dialer.DialContext(ctx, "tcp", vip4+":80"); err == nil {
			t.Errorf("a number of no backend leads to one")
			_ = c.Close()
		}
	})
	want(two, "backend 2", "")
	// A backend behind another link.
	w.node.Exec("ip", "route", "add", "unreachable", two)
	want(two, "", "there is no way")
	w.node.Exec("ip", "route", "del", "unreachable", two)
	want(two, "backend 2", "")
	d.Update(snapshot(t, "192.0.2.1"))
	want("192.0.2.1", "", "is no other host")
}

// left is what is to be as before. Link-local addresses come when they like.
func (w *world) left() string {
	return w.node.Exec("sh", "-c", `ip -br link; ip rule; ip -6 rule; ip route show table all | grep -v fe80
		head -v /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv4/conf/*/accept_local`)
}

// TestNetProbeOfLocalVIP: a VIP that this machine has too is asked on the backend, and
// nothing stays changed.
func TestNetProbeOfLocalVIP(t *testing.T) {
	for _, filter := range []string{"0", "1"} {
		t.Run("rp_filter "+filter, func(t *testing.T) {
			w := newWorld(t, 1)
			w.backends[0].vips()
			w.decap(w.backends[0], true)
			w.node.Exec("ip", "addr", "add", vip4+"/32", "dev", "lo")
			w.node.Exec("ip", "addr", "add", vip6+"/128", "dev", "lo")
			w.node.Sysctl("net.ipv4.conf.all.rp_filter", filter)
			before := w.left()
			d := w.open(gre, w.all())
			for range 2 {
				w.reaches(d, 1)
			}
			for _, family := range []string{"-4", "-6"} {
				rules := w.node.Exec("ip", family, "rule")
				first, _, _ := strings.Cut(rules, "\n")
				if strings.Count(rules, "lookup local") != 1 || !strings.Contains(first, "fwmark") {
					t.Errorf("the rules are\n%s", rules)
				}
			}
			w.close(d)
			if after := w.left(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// TestNetProbeWithStrictFilter: where the kernel would send to the VIP by another link
// than its answers come by, they are let in all the same, until the end.
func TestNetProbeWithStrictFilter(t *testing.T) {
	w := newWorld(t, 1)
	w.backends[0].vips()
	w.decap(w.backends[0], true)
	other := netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: w.node, Name: "eth1", Addrs: []string{"192.0.3.1/24"}}, netnstest.End{NS: other, Name: "eth0", Addrs: []string{"192.0.3.2/24"}})
	w.node.Route(vip4+"/32", "192.0.3.2", "")
	w.node.Sysctl("net.ipv4.conf.eth0.rp_filter", "1")
	before := w.left()
	d := w.open(gre, w.all())
	w.reaches(d, 1)
	if v := w.node.Exec("cat", "/proc/sys/net/ipv4/conf/eth0/rp_filter"); v != "2\n" {
		t.Errorf("rp_filter is %s", v)
	}
	w.close(d)
	if after := w.left(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	// Without any route there is nothing to be done but to say so.
	w.node.Exec("ip", "route", "del", vip4)
	w.node.Exec("ip", "route", "del", "default")
	w.node.Route("10.0.0.0/16", "192.0.2.2", "")
	d = w.open(gre, w.all())
	if _, err := w.dial(d, w.backends[0].addr4, vip4, wait); err == nil || !strings.Contains(err.Error(), "no route to "+vip4) {
		t.Errorf("without a route: %v", err)
	}
	if who, err := w.dial(d, w.backends[0].addr4, vip6, 5*time.Second); err != nil || who != "backend 1" {
		t.Errorf("without an IPv4 route, IPv6: %q, %v", who, err)
	}
}

// TestNetProbeTakesOver: a second process does not disturb the first; what a killed
// one left, parameters included, is taken over and removed.
func TestNetProbeTakesOver(t *testing.T) {
	w := newWorld(t, 1)
	w.backends[0].vips()
	w.decap(w.backends[0], true)
	w.node.Exec("ip", "addr", "add", vip4+"/32", "dev", "lo")
	w.node.Sysctl("net.ipv4.conf.eth0.rp_filter", "1")
	before := w.left()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asNode+"=dial")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.node.Start(c)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open: <nil>\n" {
		t.Fatalf("the first process says %q, %v", line, err)
	}
	w.node.Do(func() { _, err = Open(gre, w.all(), zap.NewNop()) })
	if !errors.Is(err, bpf.ErrBusy) {
		t.Errorf("beside a living process: %v", err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if w.left() == before {
		t.Error("a killed process leaves nothing")
	}
	d := w.open(gre, w.all())
	w.reaches(d, 1)
	w.close(d)
	if after := w.left(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if _, err := w.dial(d, w.backends[0].addr4, vip4, wait); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestNetProbeComesFrom: outer headers come from what the node of the graph says, and
// connections from no VIP.
func TestNetProbeComesFrom(t *testing.T) {
	w := newWorld(t, 1)
	w.backends[0].vips()
	w.decap(w.backends[0], true)
	e := gre
	e.Source, e.Source6 = netip.MustParsePrefix("100.64.0.0/24"), netip.MustParsePrefix("fd77::1/128")
	// The kernel's choice towards the backend is a VIP here.
	w.node.Exec("ip", "addr", "add", "203.0.113.80/32", "dev", "eth0")
	w.node.Exec("ip", "route", "replace", "default", "via", "192.0.2.2", "src", vip4)
	d := w.open(e, w.all())
	frames := w.capture()
	w.reaches(d, 1)
	seen := map[string]bool{}
	for _, f := range frames() {
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		if p.Layer(layers.LayerTypeGRE) == nil || p.NetworkLayer() == nil {
			continue
		}
		outer, in := p.NetworkLayer().NetworkFlow(), p.Layers()[3].(gopacket.NetworkLayer).NetworkFlow()
		seen[outer.String()+" "+in.String()] = true
	}
	want := map[string]bool{}
	for _, outer := range []string{"100.64.0.0->10.0.1.2", "fd77::1->fd00:1::2"} {
		want[outer+" 192.0.2.1->"+vip4], want[outer+" 2001:db8:f::1->"+vip6] = true, true
	}
	if !maps.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}

// capture collects what reaches the router from the node.
func (w *world) capture() (frames func() [][]byte) {
	w.t.Helper()
	var fd int
	var err error
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	w.router.Do(func() {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all)); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.router.Index("node")})
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (got [][]byte) {
		for {
			b := make([]byte, 4096)
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				return got // all that there is
			}
			if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING {
				got = append(got, b[:n])
			}
		}
	}
}
