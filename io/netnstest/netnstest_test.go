package netnstest

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPair(t *testing.T) {
	a, b := New(t), New(t)
	Veth(End{NS: a, Name: "a0", Addrs: []string{"10.9.0.1/24", "fd09::1/64"}, Queues: 2},
		End{NS: b, Name: "b.0", Addrs: []string{"10.9.0.2/24", "fd09::2/64"}, MTU: 1400})
	say(t, a, b, "10.9.0.2")
	say(t, a, b, "fd09::2")
	if got := b.link("b.0").Attrs(); got.MTU != 1400 || got.NumRxQueues != 1 {
		t.Errorf("b.0 has MTU %d and %d queues, want 1400 and 1", got.MTU, got.NumRxQueues)
	}
	if got := a.link("a0").Attrs(); got.MTU != 1500 || got.NumRxQueues != 2 {
		t.Errorf("a0 has MTU %d and %d queues, want 1500 and 2", got.MTU, got.NumRxQueues)
	}
	features := a.Exec("ethtool", "-k", "a0")
	for _, f := range []string{"tx-checksumming: off", "\ttx-tcp-segmentation: off", "generic-receive-offload: off", "tx-vlan-offload: off"} {
		if !strings.Contains(features, f) {
			t.Errorf("not %q:\n%s", f, features)
		}
	}
	a.Neigh("a0", "10.9.0.2", b.MAC("b.0"))
	b.Route("0.0.0.0/0", "10.9.0.1", "")
	b.Route("192.0.2.0/24", "", "b.0")
	if s := b.Exec("ip", "route"); !strings.Contains(s, "default via 10.9.0.1 dev b.0") || !strings.Contains(s, "192.0.2.0/24 dev b.0") {
		t.Errorf("routes: %s", s)
	}
}

// say sends one datagram from a to address, which b has.
func say(t *testing.T, a, b *NS, address string) {
	t.Helper()
	var in net.PacketConn
	var out net.Conn
	var err error
	b.Do(func() { in, err = net.ListenPacket("udp", net.JoinHostPort(address, "9")) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	a.Do(func() { out, err = net.Dial("udp", net.JoinHostPort(address, "9")) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	if _, err := out.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = in.SetReadDeadline(time.Now().Add(2 * time.Second))
	var buf [9]byte
	if n, _, err := in.ReadFrom(buf[:]); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("%s heard %q, %v", address, buf[:n], err)
	}
}

// What a test changes must not leak into the process's own namespace.
func TestApart(t *testing.T) {
	own := func() string { s, _ := os.Readlink("/proc/thread-self/ns/net"); return s }
	before := own()
	n := New(t)
	var inside string
	n.Do(func() { inside = own() })
	if inside == before || own() != before {
		t.Errorf("inside %s, outside before %s, after %s", inside, before, own())
	}
	n.Sysctl("net.ipv4.ip_forward", "1")
	if s := n.Exec("cat", "/proc/sys/net/ipv4/ip_forward"); s != "1\n" {
		t.Errorf("ip_forward is %q", s)
	}
	if _, err := n.Try("sh", "-c", "echo sorry >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "sorry") {
		t.Errorf("the error of a failing command is %v", err)
	}
	c := exec.Command("sleep", "60")
	n.Start(c)
	if s, err := os.Readlink("/proc/" + strconv.Itoa(c.Process.Pid) + "/ns/net"); err != nil || s != inside {
		t.Errorf("the command runs in %s (%v), want %s", s, err, inside)
	}
}
