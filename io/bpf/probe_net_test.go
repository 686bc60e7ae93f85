package bpf

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

// TestNetProbeHook: what a socket with a mark sends to the device leaves by another, in
// its tunnel and to the next hop that the kernel knows; nobody else gets the place.
func TestNetProbeHook(t *testing.T) {
	for name, clsact := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			node, peer := netnstest.New(t), netnstest.New(t)
			netnstest.Veth(netnstest.End{NS: node, Name: "eth0", Addrs: []string{remote4 + "/24"}}, netnstest.End{NS: peer, Name: "eth0"})
			netnstest.Veth(netnstest.End{NS: node, Name: "p0"}, netnstest.End{NS: node, Name: "p1"})
			node.Neigh("eth0", local4, peer.MAC("eth0"))
			attach := func() (p *Probe, err error) {
				node.Do(func() { p, err = AttachProbe(ProbeOptions{Interface: node.Index("p0"), clsact: clsact}) })
				return p, err
			}
			for range 2 { // a second time where the first was
				p, err := attach()
				if err != nil {
					t.Fatal(err)
				}
				if !p.Alive() {
					t.Error("it does not stand there")
				}
				if !clsact {
					if _, err := attach(); !errors.Is(err, ErrBusy) {
						t.Errorf("beside another: %v", err)
					}
				}
				w := way(false, GRE)
				w.Interface = node.Index("eth0")
				if err := p.Set(5, w); err != nil {
					t.Fatal(err)
				}
				in := inner(false, 0, 40)
				heard := listenRaw(t, peer, "eth0")
				for _, mark := range []int{0, ProbeMark | 6, ProbeMark | 5} {
					sendMarked(t, node, "p0", mark, ether(0, 0x0800, in))
				}
				from, to := node.MAC("eth0"), peer.MAC("eth0")
				want := append(append(append([]byte(nil), to[:]...), from[:]...), ether(0, 0x0800, tunnelled(GRE, false, false, 0, in))[12:]...)
				if got := heard(); !bytes.Equal(got, want) {
					t.Errorf("heard %x, want %x", got, want)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				if s := node.Exec("tc", "filter", "show", "dev", "p0", "egress"); s != "" {
					t.Errorf("left behind: %s", s)
				}
			}
		})
	}
}

// listenRaw answers the first IPv4 frame that comes in by an interface from then on.
func listenRaw(t *testing.T, ns *netnstest.NS, dev string) (heard func() []byte) {
	t.Helper()
	var fd int
	var err error
	ip := uint16(unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8)
	ns.Do(func() {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(ip)); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: ns.Index(dev)})
		}
	})
	if err == nil {
		second := unix.NsecToTimeval(time.Second.Nanoseconds())
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &second)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() []byte {
		b := make([]byte, 2000)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			t.Fatalf("nothing is heard: %v", err)
		}
		return b[:n]
	}
}

func sendMarked(t *testing.T, ns *netnstest.NS, dev string, mark int, frame []byte) {
	t.Helper()
	fd := rawSocket(t, ns, dev)
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark)
	if err == nil {
		_, err = unix.Write(fd, frame)
	}
	// The program's verdict on others is an error of the write.
	if err != nil && !(errors.Is(err, unix.ENOBUFS) && mark != ProbeMark|5) {
		t.Fatalf("mark %#x: %v", mark, err)
	}
}
