package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/netnstest"
	_ "github.com/lbgraph/lbgraph/nodes/all"
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

func newWorld(t *testing.T, backends int) *world {
	w := &world{t: t, client: netnstest.New(t), router: netnstest.New(t), node: netnstest.New(t)}
	netnstest.Veth(netnstest.End{NS: w.client, Name: "eth0", Addrs: []string{"198.51.100.7/24", "2001:db8:c::7/64"}},
		netnstest.End{NS: w.router, Name: "client", Addrs: []string{"198.51.100.1/24", "2001:db8:c::1/64"}})
	netnstest.Veth(netnstest.End{NS: w.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:f::1/64"}},
		netnstest.End{NS: w.router, Name: "node", Addrs: []string{"192.0.2.2/24", "2001:db8:f::2/64"}})
	w.client.Route("0.0.0.0/0", "198.51.100.1", "")
	w.client.Route("::/0", "2001:db8:c::1", "")
	w.node.Route("0.0.0.0/0", "192.0.2.2", "")
	w.node.Route("::/0", "2001:db8:f::2", "")
	w.router.Sysctl("net.ipv4.ip_forward", "1")
	w.router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	w.router.Route("203.0.113.80/32", "192.0.2.1", "")
	w.router.Route("2001:db8::80/128", "2001:db8:f::1", "")
	for i := range backends {
		b := netnstest.New(t)
		w.backends = append(w.backends, b)
		netnstest.Veth(netnstest.End{NS: b, Name: "eth0", Addrs: []string{fmt.Sprintf("10.1.%d.2/24", i+1), fmt.Sprintf("10.0.1.%d/32", i+1)}, MTU: 1524},
			netnstest.End{NS: w.router, Name: fmt.Sprintf("b%d", i+1), Addrs: []string{fmt.Sprintf("10.1.%d.1/24", i+1)}, MTU: 1524})
		b.Route("0.0.0.0/0", fmt.Sprintf("10.1.%d.1", i+1), "eth0")
		w.router.Route(fmt.Sprintf("10.0.1.%d/32", i+1), fmt.Sprintf("10.1.%d.2", i+1), "")
	}
	return w
}

// load reads lb.hcl as the repository has it.
func load(t *testing.T) *graph.File {
	t.Helper()
	f, diags := lang.Load("../lb.hcl", lang.Options{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if diags := graph.Check(f); diags.HasErrors() {
		t.Fatal(diags)
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
		if err := d.Stop(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return d
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

// gre answers the frame if it carries GRE over IPv4.
func gre(f []byte) []byte {
	if len(f) > 34 && f[12] == 8 && f[13] == 0 && f[23] == 47 {
		return f
	}
	return nil
}
