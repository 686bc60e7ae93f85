package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/admin"
	_ "github.com/lbgraph/lbgraph/control/all"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/internal/demo"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/netnstest"
	"github.com/lbgraph/lbgraph/io/pcap"
	_ "github.com/lbgraph/lbgraph/nodes/all"
	"github.com/lbgraph/lbgraph/runtime"
)

// world is a client, a router, a balancer and backends, each a namespace:
//
//	client 198.51.100.7 --- router --- 192.0.2.1 balancer
//	                           |
//	                        backends 10.0.N.1
type world struct {
	t                    *testing.T
	client, router, node *netnstest.NS
	backends             []*netnstest.NS
}

func newWorld(t *testing.T, backends int) *world { return newWorldOf(t, backends, 1500) }

// newWorldOf is newWorld with links of another MTU; those to backends carry 24 bytes
// more.
func newWorldOf(t *testing.T, backends, mtu int) *world {
	w := &world{t: t, client: netnstest.New(t), router: netnstest.New(t), node: netnstest.New(t)}
	netnstest.Veth(netnstest.End{NS: w.client, Name: "eth0", Addrs: []string{"198.51.100.7/24", "2001:db8:c::7/64"}, MTU: mtu},
		netnstest.End{NS: w.router, Name: "client", Addrs: []string{"198.51.100.1/24", "2001:db8:c::1/64"}, MTU: mtu})
	netnstest.Veth(netnstest.End{NS: w.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:f::1/64"}, MTU: mtu},
		netnstest.End{NS: w.router, Name: "node", Addrs: []string{"192.0.2.2/24", "2001:db8:f::2/64"}, MTU: mtu})
	w.client.Route("0.0.0.0/0", "198.51.100.1", "")
	w.client.Route("::/0", "2001:db8:c::1", "")
	w.node.Route("0.0.0.0/0", "192.0.2.2", "")
	w.node.Route("::/0", "2001:db8:f::2", "")
	w.router.Sysctl("net.ipv4.ip_forward", "1")
	w.router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	w.router.Route("203.0.113.80/31", "192.0.2.1", "")
	w.router.Route("2001:db8::80/128", "2001:db8:f::1", "")
	for i := range backends {
		b := netnstest.New(t)
		w.backends = append(w.backends, b)
		netnstest.Veth(netnstest.End{NS: b, Name: "eth0", Addrs: []string{fmt.Sprintf("10.1.%d.2/24", i+1), fmt.Sprintf("10.0.1.%d/32", i+1)}, MTU: mtu + 24},
			netnstest.End{NS: w.router, Name: fmt.Sprintf("b%d", i+1), Addrs: []string{fmt.Sprintf("10.1.%d.1/24", i+1)}, MTU: mtu + 24})
		b.Route("0.0.0.0/0", fmt.Sprintf("10.1.%d.1", i+1), "eth0")
		w.router.Route(fmt.Sprintf("10.0.1.%d/32", i+1), fmt.Sprintf("10.1.%d.2", i+1), "")
	}
	return w
}

// load reads lb.hcl as the repository has it, but for its control blocks: no check
// takes the backends of these tests out, which need not answer, and nothing is
// listened on.
func load(t *testing.T) *graph.File {
	t.Helper()
	f, diags := lang.Load("../lb.hcl", lang.Options{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if diags := graph.Check(f); diags.HasErrors() {
		t.Fatal(diags)
	}
	f.Controls = nil
	for i := range f.Spec.Pools {
		f.Spec.Pools[i].Health = ""
	}
	return f
}

// start runs f in the balancer's namespace until the test ends.
func (w *world) start(f *graph.File) *Daemon {
	w.t.Helper()
	var d *Daemon
	var err error
	w.node.Do(func() {
		if d, err = New(f, Options{Version: "test", Log: zaptest.NewLogger(w.t, zaptest.Level(zap.InfoLevel))}); err == nil {
			err = d.Start(context.Background())
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		atRest(w.t, d)
		if err := d.Stop(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return d
}

// atRest waits until no packet is on its way, and fails the test if a frame or a
// packet is missing then.
func atRest(t testing.TB, d *Daemon) {
	t.Helper()
	for i := range d.Stats() {
		var err error
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			s := d.Stats()[i]
			if err = s.CheckConservation(); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// sniff answers the frames that reach a namespace's interface, until the test ends.
func sniff(t *testing.T, ns *netnstest.NS, dev string) <-chan []byte {
	t.Helper()
	var fd int
	var err error
	ns.Do(func() {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ALL))); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: ns.Index(dev)})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	// A pollable file, so that closing it ends the read.
	file := os.NewFile(uintptr(fd), "packet socket")
	t.Cleanup(func() { _ = file.Close() })
	frames := make(chan []byte, 1024)
	go func() {
		defer close(frames)
		for {
			b := make([]byte, 4096)
			n, err := file.Read(b)
			if err != nil {
				return
			}
			select {
			case frames <- b[:n]:
			default: // nobody reads any more
			}
		}
	}()
	return frames
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// TestNetFirstPacket: a SYN of a real client goes through all ten kinds of lb.hcl
// on AF_XDP and reaches a backend's link in GRE.
func TestNetFirstPacket(t *testing.T) {
	w := newWorld(t, 3)
	var links []<-chan []byte
	for _, b := range w.backends {
		links = append(links, sniff(t, b, "eth0"))
	}
	d := w.start(load(t))
	// Nobody answers: the SYN is what matters.
	_, _ = w.client.Try("curl", "-s", "-m", "1", "http://203.0.113.80/")
	deadline := time.After(5 * time.Second)
	var got []byte
	for got == nil {
		select {
		case f := <-links[0]:
			got = gre(f)
		case f := <-links[1]:
			got = gre(f)
		case f := <-links[2]:
			got = gre(f)
		case <-deadline:
			t.Fatalf("no GRE packet reached a backend; %v", d.Stats()[0].Drops())
		}
	}
	p := gopacket.NewPacket(got, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
	outer := p.Layers()[1].(*layers.IPv4)
	if outer.SrcIP.String() != "192.0.2.1" || !strings.HasPrefix(outer.DstIP.String(), "10.0.1.") || outer.Flags&layers.IPv4DontFragment == 0 {
		t.Errorf("the outer header is %+v", outer)
	}
	inner := p.Layers()[3].(*layers.IPv4)
	if inner.SrcIP.String() != "198.51.100.7" || inner.DstIP.String() != "203.0.113.80" {
		t.Errorf("the inner header is %+v", inner)
	}
	if int(outer.Length) != 24+int(inner.Length) {
		t.Errorf("outer length %d, inner %d", outer.Length, inner.Length)
	}
	tcp := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	mss := 0
	for _, o := range tcp.Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			mss = int(o.OptionData[0])<<8 | int(o.OptionData[1])
		}
	}
	if !tcp.SYN || mss != 1436 {
		t.Errorf("TCP is %+v, MSS %d", tcp, mss)
	}
	s := d.Stats()[0]
	if err := s.CheckConservation(); err != nil {
		t.Error(err)
	}
	for _, n := range []string{"rx", "parse", "vip-classify", "frag-pin", "ct", "maglev-select", "clamp", "mtu", "gre", "tx"} {
		if s.Node(n).Packets == 0 {
			t.Errorf("node %q saw no packet", n)
		}
	}
}

// serve makes every backend take tunnels off and answer on the VIP.
func (w *world) serve(vips ...string) {
	w.t.Helper()
	for i, b := range w.backends {
		lo, err := b.Link.LinkByName("lo")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, v := range vips {
			addr, err := netlink.ParseAddr(v)
			if err != nil {
				w.t.Fatal(err)
			}
			if err := b.Link.AddrAdd(lo, addr); err != nil {
				w.t.Fatal(err)
			}
		}
		b.Sysctl("net.ipv4.conf.all.rp_filter", "0")
		b.Sysctl("net.ipv4.conf.eth0.rp_filter", "0")
		b.Do(func() {
			var d *bpf.Decap
			if d, err = bpf.AttachDecap(bpf.DecapOptions{Interface: b.Index("eth0"), Tunnels: bpf.GRE}); err != nil {
				return
			}
			w.t.Cleanup(func() { _ = d.Close() })
			var l net.Listener
			if l, err = net.Listen("tcp", ":80"); err != nil {
				return
			}
			s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/sum" {
					sum := sha256.New()
					_, _ = io.Copy(sum, r.Body)
					fmt.Fprintf(rw, "%x", sum.Sum(nil))
					return
				}
				fmt.Fprintf(rw, "web-%d", i+1)
			})}
			go func() { _ = s.Serve(l) }()
			w.t.Cleanup(func() { _ = s.Close() })
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestNetTshark: what reaches a backend's link is well-formed in the eyes of an
// independent decoder.
func TestNetTshark(t *testing.T) {
	w := newWorld(t, 1)
	w.serve("203.0.113.80/32")
	// On the router's side of the link: the backend's own program would take the
	// tunnel off before a packet socket sees it.
	frames := sniff(t, w.router, "b1")
	f := load(t)
	f.Spec.Pools[0].Backends = f.Spec.Pools[0].Backends[:1]
	d := w.start(f)
	for range 5 {
		if out, err := w.client.Try("curl", "-s", "-m", "5", "http://203.0.113.80/"); err != nil || out != "web-1" {
			t.Fatalf("curl: %q, %v; %v", out, err, d.Stats()[0].Drops())
		}
	}
	path := filepath.Join(t.TempDir(), "link.pcapng")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	capture := pcap.NewWriter(file, pcap.FormatOf(path))
	for more := true; more; {
		select {
		case b := <-frames:
			if err := capture.Write(pcap.Packet{Data: b}, 0); err != nil {
				t.Fatal(err)
			}
		case <-time.After(200 * time.Millisecond):
			more = false
		}
	}
	if err := capture.Flush(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-r", path, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-Y", "gre",
		"-T", "fields", "-E", "separator=|", "-e", "ip.src", "-e", "ip.dst", "-e", "ip.proto", "-e", "gre.proto", "-e", "gre.flags_and_version",
		"-e", "ip.checksum.status", "-e", "tcp.checksum.status", "-e", "_ws.malformed").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 15 { // SYN, ACK, GET, FIN and more for each of five requests
		t.Fatalf("tshark sees %d GRE packets:\n%s", len(lines), out)
	}
	for _, l := range lines {
		if l != "192.0.2.1,198.51.100.7|10.0.1.1,203.0.113.80|47,6|0x0800|0x0000|1,1|1|" {
			t.Errorf("tshark reads a packet as %s", l)
		}
	}
	if s := d.Stats()[0]; s.CheckConservation() != nil {
		t.Error(s.CheckConservation())
	}
}

// TestNetReload: VIPs come and go under traffic; established requests go on, the
// XDP program follows the file, and nothing is lost.
func TestNetReload(t *testing.T) {
	w := newWorld(t, 2)
	w.serve("203.0.113.80/32", "203.0.113.81/32")
	f := load(t)
	f.Spec.Pools[0].Backends = f.Spec.Pools[0].Backends[:2]
	d := w.start(f)
	get := func(ip string, seconds string) bool {
		out, err := w.client.Try("curl", "-s", "-m", seconds, "http://"+ip+"/")
		return err == nil && strings.HasPrefix(out, "web-")
	}
	if !get("203.0.113.80", "5") {
		t.Fatalf("the first VIP does not answer: %v", d.Stats()[0].Drops())
	}
	if get("203.0.113.81", "1") {
		t.Fatal("a VIP that is in no file answers")
	}
	stop, failed := make(chan struct{}), make(chan int, 1)
	go func() {
		bad := 0
		for {
			select {
			case <-stop:
				failed <- bad
				return
			default:
				if !get("203.0.113.80", "5") {
					bad++
				}
			}
		}
	}()
	more := *f
	v := f.Spec.VIPs[0]
	v.Name, v.Prefix = "second", netip.MustParsePrefix("203.0.113.81/32")
	more.Spec.VIPs = append(slices.Clone(f.Spec.VIPs), v)
	for range 10 {
		plan, err := d.Reload(&more)
		if err != nil || plan.Class() != runtime.Live {
			t.Fatalf("%v, %v", plan, err)
		}
		if !get("203.0.113.81", "5") {
			t.Errorf("a VIP that was added does not answer: %v", d.Stats()[0].Drops())
		}
		if _, err := d.Reload(f); err != nil {
			t.Fatal(err)
		}
	}
	if get("203.0.113.81", "1") {
		t.Error("a VIP that was removed answers")
	}
	close(stop)
	if n := <-failed; n > 0 {
		t.Errorf("%d requests failed while VIPs came and went", n)
	}
	// Interfaces and the like need a restart, and the old file goes on.
	other := *f
	g := *f.Graphs[0]
	g.Rings = 4096
	other.Graphs = []*graph.Graph{&g}
	if _, err := d.Reload(&other); err == nil || !strings.Contains(err.Error(), "rings changes from 2048 to 4096") {
		t.Errorf("a change that needs a restart: %v", err)
	}
	if !get("203.0.113.80", "5") {
		t.Error("the old file does not go on")
	}
	if s := d.Stats()[0]; s.CheckConservation() != nil {
		t.Error(s.CheckConservation())
	}
}

// TestNetTunnelMTU: a router behind the balancer says that a tunnel's packets are
// too long; the balancer takes note and tells the next sender what fits.
func TestNetTunnelMTU(t *testing.T) {
	w := newWorld(t, 1)
	link, err := w.router.Link.LinkByName("b1")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.router.Link.LinkSetMTU(link, 1400); err != nil {
		t.Fatal(err)
	}
	f := load(t)
	f.Spec.Pools[0].Backends = f.Spec.Pools[0].Backends[:1]
	d := w.start(f)
	to := netip.MustParseAddrPort("203.0.113.80:7")
	known := 0
	for end := time.Now().Add(5 * time.Second); known != 1376 && time.Now().Before(end); {
		w.client.Do(func() { known, err = demo.PathMTU(t.Context(), to, 1470) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if known != 1376 { // 1400 less 24 of GRE over IPv4
		t.Errorf("the client's path MTU is %d, want 1376; %v", known, d.Stats()[0].Drops())
	}
	s := d.Stats()[0]
	icmp := s.Node("icmp-vip")
	if icmp.Gauges["tunnel_errors 10.0.1.1"] == 0 {
		t.Errorf("errors about the tunnel are not counted: %v", icmp.Gauges)
	}
	if err := s.CheckConservation(); err != nil {
		t.Error(err)
	}
}

// TestNetJumbo: packets of nearly 9000 bytes, each in several frames, go the whole
// way; one that does not fit the tunnel is answered.
func TestNetJumbo(t *testing.T) {
	w := newWorldOf(t, 1, 9000)
	w.serve("203.0.113.80/32")
	f := load(t)
	f.Spec.Pools[0].Backends = f.Spec.Pools[0].Backends[:1]
	f.Graphs[0].NetworkMTU = 9000
	d := w.start(f)
	body := strings.Repeat("0123456789abcdef", 1<<16)
	path := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := w.client.Try("curl", "-s", "-m", "10", "--data-binary", "@"+path, "http://203.0.113.80/sum")
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte(body))); err != nil || out != want {
		t.Fatalf("a megabyte up: %q, %v; want %s; %v", out, err, want, d.Stats()[0].Drops())
	}
	// The backend announces an MSS for its 9024 bytes, the client for its 9000: so
	// segments of 8960 bytes come up, which fit no tunnel of 9000. They are answered,
	// and the client sends shorter ones.
	s := d.Stats()[0]
	if s.SentBytes/s.Sent < 2048 {
		t.Errorf("packets of %d bytes on the average are no jumbo frames", s.SentBytes/s.Sent)
	}
	known := 0
	for end := time.Now().Add(5 * time.Second); known != 8976 && time.Now().Before(end); {
		w.client.Do(func() { known, err = demo.PathMTU(t.Context(), netip.MustParseAddrPort("203.0.113.80:7"), 9000) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if known != 8976 {
		t.Errorf("the client's path MTU is %d, want 8976", known)
	}
	s = d.Stats()[0]
	if err := s.CheckConservation(); err != nil {
		t.Error(err)
	}
}

// TestNetHealthy: the daemon is not healthy while its link is down or its program
// is gone.
func TestNetHealthy(t *testing.T) {
	w := newWorld(t, 1)
	d := w.start(load(t))
	says := func(want string) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			got := "ok"
			if err := d.Healthy(); err != nil {
				got = err.Error()
			}
			if strings.Contains(got, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the daemon says %q, want %q", got, want)
			}
		}
	}
	says("ok")
	w.router.Exec("ip", "link", "set", "node", "down")
	says("the link is down")
	w.router.Exec("ip", "link", "set", "node", "up")
	says("ok")
	// Somebody else's program takes our place.
	other, err := bpf.NewAdmission()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	var at *bpf.Attachment
	w.node.Do(func() {
		var dev *net.Interface
		if dev, err = net.InterfaceByName("eth0"); err == nil {
			at, err = other.Attach(bpf.AttachOptions{Interface: dev.Index, Mode: bpf.Auto, Replace: true})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = at.Close() }()
	says("the XDP program is gone")
	w.node.Exec("ip", "link", "delete", "eth0")
	says("interface eth0")
}

// TestNetLockOut: a VIP over the node's own address is refused at the start and in a
// reload, and nothing changes.
func TestNetLockOut(t *testing.T) {
	w := newWorld(t, 1)
	bad := load(t)
	bad.Spec.VIPs[0].Prefix = netip.MustParsePrefix("192.0.2.0/24")
	var err error
	w.node.Do(func() { _, err = New(bad, Options{}) })
	if err == nil || !strings.Contains(err.Error(), `vip "web" (192.0.2.0/24) covers 192.0.2.1, the address of interface eth0 itself`) {
		t.Errorf("got %v", err)
	}
	if out := w.node.Exec("ip", "-d", "link", "show", "eth0"); strings.Contains(out, "xdp") {
		t.Errorf("a program stays: %s", out)
	}
	d := w.start(load(t))
	generation := d.Snapshot().Generation
	if _, err := d.Reload(bad); err == nil || !strings.Contains(err.Error(), "covers 192.0.2.1") {
		t.Errorf("got %v", err)
	}
	if d.Snapshot().Generation != generation {
		t.Error("the state has changed")
	}
	bad.Spec.VIPs[0].Disabled = true // which covers nothing
	if _, err := d.Reload(bad); err != nil {
		t.Error(err)
	}
}

// gre answers the frame if it carries GRE over IPv4.
func gre(f []byte) []byte {
	if len(f) > 34 && f[12] == 8 && f[13] == 0 && f[23] == 47 {
		return f
	}
	return nil
}

// TestNetTraceOfTheProgram: what the XDP program would not let in is told as its verdict,
// and is not counted; what it does drop is counted where the graph would have dropped it.
func TestNetTraceOfTheProgram(t *testing.T) {
	w := newWorld(t, 1)
	d := w.start(load(t))
	for _, c := range []struct {
		protocol, destination string
		want                  string
	}{
		{"tcp", "203.0.113.80:80", "sent tx  web, 10 steps"},
		{"tcp", "192.0.2.1:22", "kernel XDP program  , 1 steps"},
		{"udp", "203.0.113.80:9", "dropped XDP program wrong_port web, 1 steps"},
	} {
		x, err := d.Trace(admin.Flow{Protocol: c.protocol, Source: netip.MustParseAddrPort("198.51.100.7:4711"), Destination: netip.MustParseAddrPort(c.destination), SYN: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s %s %s %s, %d steps", x.Verdict, x.Node, x.Reason, x.VIP, len(x.Steps)); got != c.want || x.Graph != "edge" || x.Flow != c.protocol+" 198.51.100.7:4711 > "+c.destination || len(x.Before) == 0 {
			t.Errorf("%s: %s, want %s; %s, %s", c.destination, got, c.want, x.Graph, x.Flow)
		}
	}
	if n := d.Stats()[0].Drops(); len(n) > 0 {
		t.Errorf("asking dropped %v", n)
	}
	var err error
	w.client.Do(func() {
		for _, a := range []string{"203.0.113.80:9", "203.0.113.80:7", "203.0.113.80:7"} {
			var c net.Conn
			if c, err = net.Dial("udp", a); err != nil {
				return
			}
			_, err = c.Write([]byte("x"))
			_ = c.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s := d.Stats()[0]
		if n := s.Drops()["vip-classify.wrong_port"]; n == 1 && s.Received >= 3 && s.CheckConservation() == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the program dropped %d, %v", n, s.Drops())
		}
	}
	got := scrape(t, d)
	for series, want := range map[string]float64{
		`lbgraph_xdp_packets_total{interface="eth0",verdict="wrong_port"}`: 1,
		`lbgraph_xdp_vip_packets_total{interface="eth0",vip="web"}`:        1, `lbgraph_xdp_vip_dropped_packets_total{interface="eth0",vip="web"}`: 1,
		`lbgraph_xdp_vip_packets_total{interface="eth0",vip="echo"}`: 2, `lbgraph_xdp_vip_dropped_packets_total{interface="eth0",vip="echo"}`: 0,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", series, v, ok, want)
		}
	}
}
