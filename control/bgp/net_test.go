package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

func netTest(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: needs namespaces and routers")
	}
	t.Parallel()
}

// every is each sort of router.
var every = []struct {
	name  string
	start func(t testing.TB, ns *netnstest.NS, id string, n ...neighbour) router
}{
	{"bird", func(t testing.TB, ns *netnstest.NS, id string, n ...neighbour) router {
		return startBird(t, ns, id, n...)
	}},
	{"frr", func(t testing.TB, ns *netnstest.NS, id string, n ...neighbour) router {
		return startFRR(t, ns, id, n...)
	}},
	{"gobgpd", func(t testing.TB, ns *netnstest.NS, id string, n ...neighbour) router {
		return startGoBGPd(t, ns, id, n...)
	}},
}

// A link joins a node (.1) and a router (.254): 192.0.i.0/24 and 2001:db8:i::/64.
func link(lb, up *netnstest.NS, i int) {
	netnstest.Veth(
		netnstest.End{NS: lb, Name: fmt.Sprintf("up%d", i), Addrs: []string{fmt.Sprintf("192.0.%d.1/24", i), fmt.Sprintf("2001:db8:%d::1/64", i)}},
		netnstest.End{NS: up, Name: fmt.Sprintf("down%d", i), Addrs: []string{fmt.Sprintf("192.0.%d.254/24", i), fmt.Sprintf("2001:db8:%d::fe/64", i)}})
}

// web is what most tests announce: an address of each family, by one pool.
func web() state.Spec {
	return state.Spec{
		Pools: []state.PoolSpec{pool("web", "10.9.0.1", "10.9.0.2")},
		VIPs:  []state.VIPSpec{vip("web", "203.0.113.80", "web"), vip("web6", "2001:db8:80::1", "web")},
	}
}

// open is web with a pool that needs no check.
func open() state.Spec {
	s := web()
	s.Pools[0].Health = ""
	return s
}

const web4, web6 = "203.0.113.80/32", "2001:db8:80::1/128"

// patience is how long a busy machine may take for what a quiet one does at once. It is
// far less than the hold time of 90 s and the restart time of routers, which would also
// bring things about.
const patience = 30 * time.Second

// block is a bgp block with one router, on link 2.
const block = `
asn = 65001
announce_after = "0s"
drain_time = "1s"
peer "r" {
  address = "192.0.2.254"
  asn     = 64500
}
`

func heardWithin(t testing.TB, r router, within time.Duration, prefixes ...string) (found route) {
	t.Helper()
	for _, prefix := range prefixes {
		eventually(t, within, func() error {
			var ok bool
			if found, ok = r.heard(prefix); !ok {
				return fmt.Errorf("%s is not heard", prefix)
			}
			return nil
		})
	}
	return found
}

func goneWithin(t testing.TB, r router, within time.Duration, prefixes ...string) {
	t.Helper()
	for _, prefix := range prefixes {
		eventually(t, within, func() error {
			if found, ok := r.heard(prefix); ok {
				return fmt.Errorf("%s is still there: %+v", prefix, found)
			}
			return nil
		})
	}
}

// sorted answers the words of s in order.
func sorted(s string) string {
	w := strings.Fields(s)
	slices.Sort(w)
	return strings.Join(w, " ")
}

// Each sort of router hears what is announced, with all that routes carry, and
// forgets what is withdrawn when the quorum is lost.
func TestNetAnnounce(t *testing.T) {
	netTest(t)
	for _, kind := range every {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			r := kind.start(t, up, "192.0.2.254", neighbour{addr: "192.0.2.1", asn: 65001})
			n := newNode(t, lb)
			spec := web()
			spec.VIPs[0].Quorum = 2
			n.start(spec, `
				asn = 65001
				announce_after = "0s"
				communities = ["65001:80", "no-export"]
				large_communities = ["65001:1:2"]
				med = 5
				local_pref = 200 # not for this router
				peer "r" {
					address = "192.0.2.254"
					asn = 64500
					communities = ["65001:443"]
					large_communities = ["4200000000:0:7"]
					med = 7
				}`)
			n.up("r")
			time.Sleep(200 * time.Millisecond)
			if got, ok := r.heard(web4); ok {
				t.Fatalf("announced although nothing is known to be healthy: %+v", got)
			}
			n.health("10.9.0.1", state.Healthy)
			check := func(prefix, hop string) {
				t.Helper()
				got := heardWithin(t, r, patience, prefix)
				if len(got.hops) != 1 || got.hops[0] != hop {
					t.Errorf("%s has next hops %v, want %s", prefix, got.hops, hop)
				}
				if sorted(got.communities) != "65001:443 65001:80 65535:65281" || sorted(got.large) != "4200000000:0:7 65001:1:2" || got.med != "7" || got.path != "65001" || got.pref == "200" {
					t.Errorf("%s carries %+v", prefix, got)
				}
			}
			// An IPv6 route over an IPv4 session.
			check(web6, "2001:db8:2::1")
			if _, ok := r.heard(web4); ok {
				t.Error("announced with one of two healthy backends that it needs")
			}
			n.health("10.9.0.2", state.Healthy)
			check(web4, "192.0.2.1")
			n.health("10.9.0.1", state.Unhealthy)
			goneWithin(t, r, patience, web4)
			heardWithin(t, r, 0, web6)
			n.health("10.9.0.2", state.Unhealthy)
			goneWithin(t, r, patience, web6)
		})
	}
}

// Routers of all sorts over IPv4 and IPv6 hear the same; nothing of one comes to
// another; one that is killed leaves the sessions of the others alone, and is told
// everything when it is back.
func TestNetPeers(t *testing.T) {
	netTest(t)
	lb := netnstest.New(t)
	var ups [4]*netnstest.NS
	for i := range ups {
		ups[i] = netnstest.New(t)
		link(lb, ups[i], i+1)
	}
	b := startBird(t, ups[0], "192.0.1.254", neighbour{addr: "192.0.1.1", asn: 65001})
	routers := []router{
		b,
		startFRR(t, ups[1], "192.0.2.254", neighbour{addr: "2001:db8:2::1", asn: 65001}),
		startGoBGPd(t, ups[2], "192.0.3.254", neighbour{addr: "192.0.3.1", asn: 65001}),
		startBird(t, ups[3], "192.0.4.254", neighbour{addr: "2001:db8:4::1", asn: routerASN}),
	}
	n := newNode(t, lb)
	// The last is a peer of the same AS as this node, but for what the node calls
	// itself: both nodes and routers take the AS from the block.
	n.start(open(), `
		asn = 65001
		router_id = "10.255.0.1"
		announce_after = "0s"
		peer "bird4" {
			address = "192.0.1.254"
			asn = 64500
		}
		peer "frr6" {
			address = "2001:db8:2::fe"
			asn = 64500
		}
		peer "gobgpd4" {
			address = "192.0.3.254"
			asn = 64500
		}
		peer "off" {
			address = "2001:db8:4::fe"
			asn = 64500
			enabled = false
		}`)
	names := []string{"bird4", "frr6", "gobgpd4"}
	n.up(names...)
	for i, r := range routers[:3] {
		for prefix, hop := range map[string]string{web4: fmt.Sprintf("192.0.%d.1", i+1), web6: fmt.Sprintf("2001:db8:%d::1", i+1)} {
			if got := heardWithin(t, r, patience, prefix); got.hops[0] != hop {
				t.Errorf("%s hears %s with next hop %v, want %s", names[i], prefix, got.hops, hop)
			}
		}
	}
	// The routers' own routes have come here, and nowhere else.
	eventually(t, patience, func() error {
		if a, b := n.peer("bird4"), n.peer("frr6"); a.Received != 1 || b.Received < 1 || a.Announced != 2 || b.Announced != 2 {
			return fmt.Errorf("bird4 %+v, frr6 %+v", a, b)
		}
		return nil
	})
	for _, v := range n.do(command{}).Status.VIPs {
		if !v.Announced || v.Routers != 3 || v.Why != "" {
			t.Errorf("with three sessions: %+v", v)
		}
	}
	for own, others := range map[string][]router{birdOwn: {routers[1], routers[2]}, frrOwn: {routers[0], routers[2]}} {
		for _, r := range others {
			if got, ok := r.heard(own); ok {
				t.Errorf("%s was passed on: %+v", own, got)
			}
		}
	}
	if p := n.peer("off"); p.State != "Disabled" || p.Sessions+p.Failures != 0 {
		t.Errorf("a disabled peer: %+v", p)
	}

	// A router that has just started may have refused a first attempt.
	before := map[string]PeerStatus{}
	for _, name := range names {
		before[name] = n.peer(name)
	}
	if err := b.process().Kill(); err != nil {
		t.Fatal(err)
	}
	_ = b.cmd.Wait()
	eventually(t, patience, func() error {
		if p := n.peer("bird4"); p.Failures == before["bird4"].Failures {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	time.Sleep(time.Second)
	for _, name := range names[1:] {
		if p := n.peer(name); p.State != "Established" || p.Sessions != 1 || p.Failures != before[name].Failures {
			t.Errorf("%s after bird4 was killed: %+v, before: %+v", name, p, before[name])
		}
	}
	b.start()
	heardWithin(t, b, patience, web4, web6)
	if p := n.peer("bird4"); p.Sessions <= before["bird4"].Sessions {
		t.Errorf("bird4: %+v, before: %+v", p, before["bird4"])
	}
}

// Within one AS: local_pref goes out, the path stays empty, multihop is not needed.
func TestNetSameAS(t *testing.T) {
	netTest(t)
	for _, kind := range every {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			r := kind.start(t, up, "192.0.2.254", neighbour{addr: "2001:db8:2::1", asn: routerASN})
			n := newNode(t, lb)
			n.start(open(), `
				asn = 64500
				router_id = "10.255.0.1"
				announce_after = "0s"
				local_pref = 200
				peer "r" {
					address = "2001:db8:2::fe"
					asn = 64500
				}`)
			n.up("r")
			if got := heardWithin(t, r, patience, web4); kind.name != "gobgpd" && got.pref != "200" || strings.Trim(got.path, "Local") != "" || got.hops[0] != "192.0.2.1" {
				t.Errorf("%s: %+v", web4, got)
			}
		})
	}
}

// Passwords: the right one from a file and from the environment; a wrong one keeps
// the session down and is hinted at; a changed file is read.
func TestNetPassword(t *testing.T) {
	netTest(t)
	for _, kind := range every {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			link(lb, up, 3)
			r := kind.start(t, up, "192.0.2.254",
				neighbour{addr: "192.0.2.1", asn: 65001, password: "s3cret"}, neighbour{addr: "2001:db8:3::1", asn: 65001, password: "other"})
			file := filepath.Join(t.TempDir(), "secret")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("wrong\n")
			n := newNode(t, lb, "BGP_SECRET=other")
			n.start(open(), fmt.Sprintf(`
				asn = 65001
				announce_after = "0s"
				peer "file" {
					address = "192.0.2.254"
					asn = 64500
					password_file = %q
				}
				peer "env" {
					address = "2001:db8:3::fe"
					asn = 64500
					password_env = "BGP_SECRET"
				}`, file))
			n.up("env")
			eventually(t, patience, func() error {
				if p := n.peer("file"); p.Failures == 0 || !strings.Contains(p.LastError, "password") {
					return fmt.Errorf("no hint: %+v", p)
				}
				return nil
			})
			if p := n.peer("file"); p.Sessions != 0 {
				t.Errorf("a session in spite of the wrong password: %+v", p)
			}
			if log := n.log.String(); strings.Contains(log, "wrong") || strings.Contains(log, "other") {
				t.Error("a password was logged")
			}
			write("s3cret")
			eventually(t, patience, func() error {
				if p := n.peer("file"); p.State != "Established" {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
			heardWithin(t, r, patience, web4, web6)
		})
	}
}

// The daemon that is not healthy, and the node that is drained, announce nothing;
// at the end routes are withdrawn first, and the session stands while packets are
// still forwarded.
func TestNetWithdrawThenDrain(t *testing.T) {
	netTest(t)
	for _, kind := range every {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			r := kind.start(t, up, "192.0.2.254", neighbour{addr: "192.0.2.1", asn: 65001})
			n := newNode(t, lb)
			const drain = 4 * time.Second
			n.start(open(), strings.Replace(block, `"1s"`, `"4s"`, 1))
			n.up("r")
			heardWithin(t, r, patience, web4, web6)
			n.do(command{Do: "sick", Sick: "a loop has not passed for 1s"})
			goneWithin(t, r, patience, web4, web6)
			if s := n.do(command{}).Status; s.Withheld != "a loop has not passed for 1s" {
				t.Errorf("withheld: %q", s.Withheld)
			}
			n.do(command{Do: "sick"})
			heardWithin(t, r, patience, web4, web6)
			n.do(command{Do: "drained", On: true})
			goneWithin(t, r, patience, web4, web6)
			n.do(command{Do: "drained"})
			heardWithin(t, r, patience, web4, web6)

			ended := make(chan answer)
			go func() { ended <- n.ask(command{Do: "drain"}) }()
			goneWithin(t, r, drain-100*time.Millisecond, web4, web6)
			select {
			case a := <-ended:
				t.Fatalf("the drain ended before its time: %+v", a)
			default:
			}
			a := <-ended
			if a.Error != "" || a.Took < drain || a.Took > drain+patience {
				t.Errorf("draining for %v took %v: %s", drain, a.Took, a.Error)
			}
			if p := a.Status.Peers[0]; p.State != "Established" || p.Sessions != 1 {
				t.Errorf("the session at the end of the drain: %+v", p)
			}
			if a := n.do(command{Do: "stop"}); a.Took > 5*time.Second {
				t.Errorf("stopping took %v", a.Took)
			}
		})
	}
}

// A node that is killed is forgotten at once: no graceful restart keeps its routes.
func TestNetKilled(t *testing.T) {
	netTest(t)
	for _, kind := range every {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			r := kind.start(t, up, "192.0.2.254", neighbour{addr: "192.0.2.1", asn: 65001})
			n := newNode(t, lb)
			n.start(open(), block)
			n.up("r")
			heardWithin(t, r, patience, web4, web6)
			if b, ok := r.(*bird); ok {
				_, caps, _ := strings.Cut(b.ctl("show protocols all n0"), "Neighbor capabilities")
				caps, _, _ = strings.Cut(caps, "Session:")
				if !strings.Contains(caps, "4-octet AS numbers") || strings.Contains(strings.ToLower(caps), "restart") {
					t.Errorf("capabilities of the node:%s", caps)
				}
			}
			_ = n.cmd.Process.Kill()
			_ = n.cmd.Wait()
			goneWithin(t, r, patience, web4, web6)
		})
	}
}

// The hold time of the file is what both sides go by: three keepalives in it, and
// either side gives the other up when it is silent for so long.
func TestNetHoldTimer(t *testing.T) {
	netTest(t)
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	b := startBird(t, up, "192.0.2.254", neighbour{addr: "192.0.2.1", asn: 65001})
	n := newNode(t, lb)
	n.start(open(), strings.Replace(block, "drain_time", "hold_time = \"3s\"\ndrain_time", 1))
	n.up("r")
	heardWithin(t, b, patience, web4)
	frames := sniff(t, up, "down2")
	time.Sleep(6 * time.Second)
	var first, last time.Time
	keepalives := 0
	for _, f := range frames() {
		// Ethernet, IPv4, TCP with time stamps; 19 bytes of BGP are a KEEPALIVE.
		if len(f.data) == 14+20+32+19 && f.data[26] == 192 && f.data[29] == 1 {
			if keepalives++; keepalives == 1 {
				first = f.at
			}
			last = f.at
		}
	}
	// A second apart; a busy machine may move some.
	if keepalives < 3 {
		t.Fatalf("%d keepalives in 6 s", keepalives)
	}
	if gap := last.Sub(first) / time.Duration(keepalives-1); gap < 700*time.Millisecond || gap > 1500*time.Millisecond {
		t.Errorf("%d keepalives are %v apart, want a third of 3s", keepalives, gap)
	}

	began := time.Now()
	if err := n.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goneWithin(t, b, patience, web4)
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("the router gave a silent node up after %v", took)
	}
	if err := n.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	heardWithin(t, b, patience, web4)

	if err := b.process().Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.process().Signal(unix.SIGCONT) }()
	eventually(t, patience, func() error {
		if p := n.peer("r"); !strings.Contains(p.LastError, "silent for the hold time") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	// Its kernel still accepts connections, but nobody reads them: stopping is quick
	// all the same.
	eventually(t, patience, func() error {
		if p := n.peer("r"); p.State != "OpenSent" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	// (It would wait ten seconds for an answer.)
	if a := n.do(command{Do: "stop"}); a.Took > 8*time.Second {
		t.Errorf("stopping took %v", a.Took)
	}
}

// A router that takes the connection and says nothing is left after ten seconds; one
// that takes it and closes is told about.
func TestNetSilentRouter(t *testing.T) {
	netTest(t)
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	var l net.Listener
	var err error
	up.Do(func() { l, err = net.Listen("tcp", "192.0.2.254:179") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conns := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	n := newNode(t, lb)
	n.start(open(), block)
	c := <-conns
	began := time.Now()
	eventually(t, patience, func() error {
		if p := n.peer("r"); !strings.Contains(p.LastError, "did not answer for 10s") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	if took := time.Since(began); took < 9*time.Second {
		t.Errorf("left after %v", took)
	}
	_ = c.Close()
	_ = (<-conns).Close()
	eventually(t, patience, func() error {
		if p := n.peer("r"); !strings.Contains(p.LastError, "does it know this node's address") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

// frame is what came by on a link.
type frame struct {
	at   time.Time
	data []byte
}

// sniff keeps the frames that an interface receives, until the answered function is
// called.
func sniff(t testing.TB, ns *netnstest.NS, dev string) func() []frame {
	t.Helper()
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
	fd, index, err := -1, ns.Index(dev), error(nil)
	ns.Do(func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
		}
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var frames []frame
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer unix.Close(fd)
		buf := make([]byte, 2048)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, from, err := unix.Recvfrom(fd, buf, 0); err == nil && from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING {
				frames = append(frames, frame{time.Now(), slices.Clone(buf[:n])})
			}
		}
	}()
	return func() []frame {
		close(stop)
		<-stopped
		return frames
	}
}

// gaps measures on the wire how long a node waits between attempts to reach a router
// on which nothing listens.
func gaps(t *testing.T, during time.Duration) (all []time.Duration) {
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	frames := sniff(t, up, "down2")
	n := newNode(t, lb)
	n.start(open(), block)
	time.Sleep(during)
	var last time.Time
	for _, f := range frames() {
		if d := f.data; len(d) < 54 || d[12] != 8 || d[13] != 0 || d[23] != 6 || d[47] != 2 {
			continue // no TCP SYN over IPv4
		}
		if !last.IsZero() {
			all = append(all, f.at.Sub(last))
		}
		last = f.at
	}
	p := n.peer("r")
	if !strings.Contains(p.LastError, "nothing listens on port 179") || p.Sessions != 0 {
		t.Errorf("the router that refuses connections: %+v", p)
	}
	t.Logf("gaps on the wire: %v", all)
	for i, g := range all {
		lo, hi := time.Second, time.Duration(2*time.Second)
		if i > 1 {
			hi = min(lastGap, firstGap<<i)
			lo = hi*4/5 - time.Second
		}
		const slack = time.Second // of a busy machine
		if g < lo-slack || g > hi+slack {
			t.Errorf("gap %d is %v, want %v to %v", i, g, lo, hi)
		}
	}
	return all
}

// The first gaps between attempts double.
func TestNetBackoff(t *testing.T) {
	netTest(t)
	if all := gaps(t, 25*time.Second); len(all) < 4 {
		t.Errorf("%d gaps in 25 s, want at least 4", len(all))
	}
}

// All of them, up to a minute.
func TestNetBackoffSoak(t *testing.T) {
	if os.Getenv("LBGRAPH_SOAK") == "" {
		t.Skip("soak: takes four minutes; LBGRAPH_SOAK=1 runs it")
	}
	netTest(t)
	if all := gaps(t, 4*time.Minute); len(all) < 8 {
		t.Errorf("%d gaps in 4 minutes, want at least 8", len(all))
	}
}

// Two nodes share the traffic: the router's kernel has both next hops, and one when
// a node withdraws.
func TestNetECMP(t *testing.T) {
	netTest(t)
	for _, kind := range every[:2] {
		t.Run(kind.name, func(t *testing.T) {
			netTest(t)
			up := netnstest.New(t)
			up.Sysctl("net.ipv4.fib_multipath_hash_policy", "1")
			up.Sysctl("net.ipv6.fib_multipath_hash_policy", "1")
			var nodes [2]*node
			var near []neighbour
			for i := range nodes {
				lb := netnstest.New(t)
				link(lb, up, i+1)
				nodes[i] = newNode(t, lb)
				near = append(near, neighbour{addr: fmt.Sprintf("192.0.%d.1", i+1), asn: 65001})
			}
			kind.start(t, up, "192.0.1.254", near...)
			for i, n := range nodes {
				n.start(open(), strings.Replace(block, "192.0.2.254", fmt.Sprintf("192.0.%d.254", i+1), 1))
			}
			// hops waits for the kernel's next hops of the VIPs to be these links'.
			hops := func(links ...int) {
				t.Helper()
				for _, family := range []string{"-4", "-6"} {
					dst, form := "203.0.113.80", "via 192.0.%d.1 "
					if family == "-6" {
						dst, form = "2001:db8:80::1", "via 2001:db8:%d::1 "
					}
					eventually(t, patience, func() error {
						out, err := up.Try("ip", family, "route", "show", dst)
						if err != nil {
							return err
						}
						if strings.Count(out, "via ") != len(links) {
							return fmt.Errorf("routes: %s", out)
						}
						for _, l := range links {
							if !strings.Contains(out, fmt.Sprintf(form, l)) {
								return fmt.Errorf("no next hop on link %d: %s", l, out)
							}
						}
						return nil
					})
				}
			}
			hops(1, 2)
			nodes[0].do(command{Do: "drained", On: true})
			hops(2)
			nodes[0].do(command{Do: "drained"})
			hops(1, 2)
			_ = nodes[1].cmd.Process.Kill()
			_ = nodes[1].cmd.Wait()
			hops(1)
		})
	}
}

// Local addresses, TTLs and routers behind others.
func TestNetTransport(t *testing.T) {
	netTest(t)
	lb, mid, far := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	link(lb, mid, 1)
	link(far, mid, 2)
	mid.Sysctl("net.ipv4.ip_forward", "1")
	lb.Route("192.0.2.0/24", "192.0.1.254", "")
	far.Route("0.0.0.0/0", "192.0.2.254", "")
	// The address that the near router expects is another than that of the link.
	netnstest.Veth(netnstest.End{NS: lb, Name: "svc", Addrs: []string{"10.7.7.7/32"}}, netnstest.End{NS: mid, Name: "svc"})
	mid.Route("10.7.7.7/32", "192.0.1.1", "")
	near := startBird(t, mid, "192.0.1.254",
		neighbour{addr: "10.7.7.7", asn: 65001, extra: "  multihop 2;\n"},
		neighbour{addr: "2001:db8:1::1", asn: 65001, extra: "  ttl security on;\n"})
	behind := startBird(t, far, "192.0.2.1", neighbour{addr: "192.0.1.1", asn: 65001, extra: "  multihop 2;\n"})
	n := newNode(t, lb)
	const form = `
		asn = 65001
		announce_after = "0s"
		peer "local" {
			address = "192.0.1.254"
			asn = 64500
			local_address = "10.7.7.7"
			multihop = 2
		}
		peer "secure" {
			address = "2001:db8:1::fe"
			asn = 64500
			ttl_security = 1
		}
		peer "far" {
			address = "192.0.2.1"
			asn = 64500
			%s
		}`
	n.start(open(), fmt.Sprintf(form, ""))
	n.up("local", "secure")
	heardWithin(t, near, patience, web4)
	if got, _ := near.heard(web4); !slices.Contains(got.hops, "10.7.7.7") || !slices.Contains(got.hops, "192.0.1.1") {
		t.Errorf("next hops of %s: %v", web4, got.hops)
	}
	// With TTL 1 the far router is not reached; with ttl_security one hop off, nor is
	// it heard.
	eventually(t, patience, func() error {
		if p := n.peer("far"); !strings.Contains(p.LastError, "more hops away than multihop") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	n.do(command{Do: "reconfigure", Block: fmt.Sprintf(form, "ttl_security = 1")})
	eventually(t, patience, func() error {
		if p := n.peer("far"); p.Failures == 0 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	if p := n.peer("far"); p.Sessions != 0 {
		t.Errorf("a session with a router that is too far off: %+v", p)
	}
	n.do(command{Do: "reconfigure", Block: fmt.Sprintf(form, "multihop = 2")})
	n.up("far")
	heardWithin(t, behind, patience, web4)
	for _, name := range []string{"local", "secure"} {
		if p := n.peer(name); p.Sessions != 1 {
			t.Errorf("%s had %d sessions", name, p.Sessions)
		}
	}
}

// The configurations in the operators' document work together.
func TestNetDocument(t *testing.T) {
	netTest(t)
	text, err := os.ReadFile("../../docs/bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	fence := func(language string) string {
		t.Helper()
		_, rest, ok := strings.Cut(string(text), "```"+language+"\n")
		block, _, ended := strings.Cut(rest, "```")
		if !ok || !ended {
			t.Fatalf("docs/bgp.md has no block of %s", language)
		}
		return block
	}
	body := strings.TrimSpace(fence("hcl"))
	body = strings.TrimSuffix(strings.TrimPrefix(body, "bgp {"), "}") + "\nannounce_after = \"0s\"\n"
	for name, start := range map[string]func(*netnstest.NS) router{
		"bird": func(ns *netnstest.NS) router { return newBird(t, ns, fence("bird")) },
		"frr":  func(ns *netnstest.NS) router { return newFRR(t, ns, fence("frr")) },
	} {
		t.Run(name, func(t *testing.T) {
			lb, up := netnstest.New(t), netnstest.New(t)
			link(lb, up, 2)
			r := start(up)
			n := newNode(t, lb)
			spec := open()
			spec.VIPs = append(spec.VIPs, vip("elsewhere", "198.51.100.1", "web"))
			n.start(spec, body)
			n.up("router")
			heardWithin(t, r, patience, web4, web6)
			if got, ok := r.heard("198.51.100.1/32"); ok {
				t.Errorf("a route that no VIP range has is taken: %+v", got)
			}
			out := up.Exec("ip", "route", "show", "203.0.113.80") + up.Exec("ip", "-6", "route", "show", "2001:db8:80::1")
			if strings.Count(out, "via ") != 2 {
				t.Errorf("the router's kernel has:\n%s", out)
			}
		})
	}
}

// The addresses of this machine that next hops are made of.
func TestNetAddresses(t *testing.T) {
	netTest(t)
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	link(lb, up, 3)
	lb.Exec("ip", "addr", "add", "2001:db8:2::7/64", "dev", "up2", "nodad")
	lb.Exec("ip", "addr", "add", "198.18.0.1/32", "dev", "lo")
	lb.Exec("ip", "addr", "add", "2001:db8:ffff::1/128", "dev", "lo")
	// An address that is on its way out.
	lb.Exec("ip", "addr", "change", "2001:db8:3::1/64", "dev", "up3", "preferred_lft", "0", "valid_lft", "1000")
	ip := netip.MustParseAddr
	lb.Do(func() {
		var k kernel
		for peer, want := range map[string]string{"192.0.2.254": "192.0.2.1", "2001:db8:2::fe": "2001:db8:2::", "192.0.9.9": "invalid IP"} {
			got, err := k.local(netip.AddrPortFrom(ip(peer), 179))
			if !strings.HasPrefix(got.String(), want) || got.IsValid() == (err != nil) {
				t.Errorf("towards %s: %s, %v, want %s", peer, got, err, want)
			}
		}
		for _, c := range []struct{ local, skip, want string }{
			{"192.0.2.1", "::", "2001:db8:2::7 2001:db8:2::1"},
			{"192.0.2.1", "2001:db8:2::7", "2001:db8:2::1"},
			{"2001:db8:2::1", "::", "192.0.2.1"},
			{"192.0.3.1", "::", "invalid IP"}, // deprecated
			{"10.0.0.1", "::", "invalid IP"},  // not ours
		} {
			got, err := k.beside(ip(c.local), func(a netip.Addr) bool { return a == ip(c.skip) })
			if err != nil || !strings.Contains(c.want, got.String()) {
				t.Errorf("beside %s: %s, %v, want %s", c.local, got, err, c.want)
			}
		}
	})
}

// What a reload changes is told to routers, and no session that stays is touched.
func TestNetReload(t *testing.T) {
	netTest(t)
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	b := startBird(t, up, "192.0.2.254",
		neighbour{addr: "192.0.2.1", asn: 65001}, neighbour{addr: "2001:db8:2::1", asn: 65001, extra: "  enforce first as off;\n"})
	n := newNode(t, lb)
	n.start(open(), block)
	n.up("r")
	heardWithin(t, b, patience, web4, web6)

	next := block + "med = 9\ncommunities = [\"65001:9\"]\nnext_hop_ipv6 = \"2001:db8:2::99\"\n"
	n.do(command{Do: "reconfigure", Block: next})
	eventually(t, patience, func() error {
		four, _ := b.heard(web4)
		six, _ := b.heard(web6)
		if four.med != "9" || four.communities != "65001:9" || six.med != "9" || len(six.hops) != 1 || six.hops[0] != "2001:db8:2::99" {
			return fmt.Errorf("%+v, %+v", four, six)
		}
		return nil
	})
	n.do(command{Do: "reconfigure", Block: block})
	eventually(t, patience, func() error {
		four, _ := b.heard(web4)
		if four.med != "" || four.communities != "" {
			return fmt.Errorf("%+v", four)
		}
		return nil
	})

	// VIPs come and go, by being disabled, too.
	spec := open()
	spec.VIPs[0].Disabled = true
	spec.VIPs = append(spec.VIPs, vip("more", "203.0.113.128/25", "web"))
	n.do(command{Do: "spec", Spec: &spec})
	goneWithin(t, b, patience, web4)
	heardWithin(t, b, patience, web6, "203.0.113.128/25")

	// A second router joins.
	six := block + `
		peer "r6" {
			address = "2001:db8:2::fe"
			asn = 64500
		}`
	n.do(command{Do: "reconfigure", Block: six})
	n.up("r6")
	if p := n.peer("r"); p.Sessions != 1 || p.Failures != 0 {
		t.Errorf("the session was not left alone: %+v", p)
	}
	// A session is made anew only when the session itself is another.
	n.do(command{Do: "reconfigure", Block: strings.Replace(six, "drain_time", "hold_time = \"30s\"\ndrain_time", 1)})
	n.up("r", "r6")
	// Errors change nothing.
	if a := n.ask(command{Do: "reconfigure", Block: strings.Replace(six, "asn     = 64500", "asn = 64500\npassword_file = \"/nowhere\"", 1)}); !strings.Contains(a.Error, "password_file") {
		t.Errorf("a missing file: %q", a.Error)
	}
	if p := n.peer("r"); p.State != "Established" {
		t.Errorf("the session after an error: %+v", p)
	}
	// Another AS: everything begins anew, and routers that expect the old one say so.
	n.do(command{Do: "reconfigure", Block: strings.Replace(six, "asn = 65001", "asn = 65002", 1)})
	eventually(t, patience, func() error {
		if p := n.peer("r"); !strings.Contains(p.LastError, "asn must be") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	n.do(command{Do: "reconfigure", Block: six})
	n.up("r", "r6")
	heardWithin(t, b, patience, web6)
}

// cycle starts and stops a node's speaker, with sessions up, and counts goroutines.
func cycle(t *testing.T, times int) {
	lb, up := netnstest.New(t), netnstest.New(t)
	link(lb, up, 2)
	b := startBird(t, up, "192.0.2.254", neighbour{addr: "192.0.2.1", asn: 65001}, neighbour{addr: "2001:db8:2::1", asn: 65001})
	n := newNode(t, lb)
	text := block + `
		peer "six" {
			address = "2001:db8:2::fe"
			asn = 64500
		}
		peer "nobody" {
			address = "192.0.2.253"
			asn = 64500
		}`
	base := 0
	for i := range times {
		spec := open()
		a := n.do(command{Do: "start", Spec: &spec, Block: text})
		n.up("r", "six")
		heardWithin(t, b, patience, web4)
		stop := n.do(command{Do: "stop"})
		if a.Took+stop.Took > 5*time.Second {
			t.Errorf("cycle %d: started in %v, stopped in %v", i, a.Took, stop.Took)
		}
		goneWithin(t, b, patience, web4, web6)
		// What the first cycle leaves is the server, for good.
		if i == 0 {
			time.Sleep(300 * time.Millisecond)
			base = n.do(command{}).Goroutines
			continue
		}
		eventually(t, patience, func() error {
			if g := n.do(command{}).Goroutines; g > base {
				return fmt.Errorf("cycle %d: %d goroutines, %d after the first", i, g, base)
			}
			return nil
		})
	}
}

func TestNetCycles(t *testing.T) {
	netTest(t)
	cycle(t, 10)
}

func TestNetCyclesSoak(t *testing.T) {
	if os.Getenv("LBGRAPH_SOAK") == "" {
		t.Skip("soak: takes four minutes; LBGRAPH_SOAK=1 runs it")
	}
	netTest(t)
	cycle(t, 100)
}
