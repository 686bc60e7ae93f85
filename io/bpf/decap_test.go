package bpf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/netnstest"
	"github.com/lbgraph/lbgraph/io/packet"
)

const (
	local4, local6   = "10.2.0.9", "fd02::9"
	remote4, remote6 = "10.2.0.1", "fd02::1"
)

func sum16(b []byte) (s uint32) {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return s
}

// whole4 is ip4 with a header checksum and a traffic class.
func whole4(src, dst string, proto uint8, tos byte, data []byte) []byte {
	b := ip4(src, dst, proto, 0, 0x4000, data)
	b[1] = tos
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum16(b[:20])))
	return b
}

// whole6 is ip6 with a traffic class.
func whole6(src, dst string, next uint8, tos byte, data []byte) []byte {
	b := ip6(src, dst, next, data)
	b[0], b[1] = 0x60|tos>>4, tos<<4
	return b
}

func tunnelled(kind Tunnels, v6out, v6in bool, tos byte, inner []byte) []byte {
	next, ether := uint8(packet.ProtoIPIP), uint16(0x0800)
	if v6in {
		next, ether = packet.ProtoIPv6, 0x86dd
	}
	switch kind {
	case GRE:
		inner = append([]byte{0, 0, byte(ether >> 8), byte(ether)}, inner...)
		next = packet.ProtoGRE
	case GUE:
		udp := make([]byte, 8)
		binary.BigEndian.PutUint16(udp, 50000)
		binary.BigEndian.PutUint16(udp[2:], GUEPort)
		binary.BigEndian.PutUint16(udp[4:], uint16(12+len(inner)))
		inner = append(append(udp, 0, next, 0, 0), inner...)
		next = packet.ProtoUDP
	}
	if v6out {
		return whole6(remote6, local6, next, tos, inner)
	}
	return whole4(remote4, local4, next, tos, inner)
}

func inner(v6 bool, tos byte, size int) []byte {
	data := l4(80, size)
	if v6 {
		return whole6("2001:db8:c::7", "2001:db8::10", packet.ProtoUDP, tos, data)
	}
	return whole4("198.51.100.7", "203.0.113.10", packet.ProtoUDP, tos, data)
}

func kindOf(v6 bool) uint16 {
	if v6 {
		return 0x86dd
	}
	return 0x0800
}

// decap loads the programs without attaching them.
func decap(t testing.TB, o DecapOptions) *Decap {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root: XDP programs need it")
	}
	d := &Decap{}
	if err := d.load(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// run answers the frame that a program leaves, nil if it drops it.
func (d *Decap) run(t testing.TB, name string, b []byte) []byte {
	t.Helper()
	p := d.objs.Programs[name]
	if p == nil {
		t.Skip("kernel: does not load " + name)
	}
	action, out, err := p.Test(b)
	if err != nil {
		t.Fatalf("%s: %v running %x", name, err, b)
	}
	switch {
	case name == "lbgraph_dectc" && action == 0xffffffff, name != "lbgraph_dectc" && action == 2:
		return out
	case name == "lbgraph_dectc" && action == 2, name != "lbgraph_dectc" && action == 1:
		return nil
	}
	t.Fatalf("%s: action %d of %x", name, action, b)
	return nil
}

var hooks = []string{"lbgraph_decap", "lbgraph_decaps", "lbgraph_dectc"}

// counted answers the name of the one counter that differs, or "".
func counted(t testing.TB, d *Decap, before DecapCounts) (DecapCounts, string) {
	t.Helper()
	after, err := d.Counts()
	if err != nil {
		t.Fatal(err)
	}
	name, n := "", 0
	see := func(s string, a, b Count) {
		if a != b {
			name = s
			n += int(b.Packets - a.Packets)
		}
	}
	for k, c := range after.Stripped {
		see(k.String(), before.Stripped[k], c)
	}
	for k, c := range after.Dropped {
		see(k, before.Dropped[k], c)
	}
	for k, c := range after.Passed {
		see(k, before.Passed[k], c)
	}
	if n > 1 {
		t.Errorf("%d packets counted", n)
	}
	return after, name
}

func TestDecapAllPairs(t *testing.T) {
	d := decap(t, DecapOptions{Tunnels: AllTunnels, Addresses: []netip.Addr{netip.MustParseAddr(local4), netip.MustParseAddr(local6)}})
	for _, prog := range hooks {
		for _, kind := range []Tunnels{GRE, IPIP, GUE} {
			for pair := range 4 {
				v6out, v6in := pair&1 != 0, pair&2 != 0
				for tags := range 3 {
					if prog == "lbgraph_dectc" && tags != 0 {
						continue // the kernel takes one off before
					}
					for _, size := range []int{8, 100, 1400} {
						in := inner(v6in, 0, size)
						b := ether(tags, kindOf(v6out), tunnelled(kind, v6out, v6in, 0, in))
						want := ether(tags, kindOf(v6in), in)
						pad := append(b, make([]byte, 3)...) // Ethernet padding stays behind, for the kernel to cut
						before, _ := d.Counts()
						got := d.run(t, prog, pad)
						_, name := counted(t, d, before)
						if !bytes.Equal(got, append(want, 0, 0, 0)) || name != kind.String() {
							t.Errorf("%s %s outer v6 %v inner v6 %v, %d tags: counted %q,\n%x, want\n%x", prog, kind, v6out, v6in, tags, name, got, want)
						}
					}
				}
			}
		}
	}
}

// RFC 6040 §4.2, figure 4.
func TestDecapCongestion(t *testing.T) {
	d := decap(t, DecapOptions{Tunnels: AllTunnels})
	const drop = 4
	want := [4][4]byte{ // by inner, then outer
		{0, 0, 0, drop},
		{1, 1, 1, 3},
		{2, 1, 2, 3},
		{3, 3, 3, 3},
	}
	for _, prog := range hooks {
		for pair := range 4 {
			v6out, v6in := pair&1 != 0, pair&2 != 0
			for i := range byte(4) {
				for o := range byte(4) {
					b := ether(0, kindOf(v6out), tunnelled(GRE, v6out, v6in, 0xb8|o, inner(v6in, 0x48|i, 20)))
					before, _ := d.Counts()
					got := d.run(t, prog, b)
					_, name := counted(t, d, before)
					if want[i][o] == drop {
						if got != nil || name != "bad_ecn" {
							t.Errorf("%s: inner %d outer %d: %x, %q", prog, i, o, got, name)
						}
						continue
					}
					if w := ether(0, kindOf(v6in), inner(v6in, 0x48|want[i][o], 20)); !bytes.Equal(got, w) {
						t.Errorf("%s: inner %d outer %d:\n%x, want\n%x", prog, i, o, got, w)
					}
				}
			}
		}
	}
}

func TestDecapLeavesOthers(t *testing.T) {
	all := DecapOptions{Tunnels: AllTunnels, Addresses: []netip.Addr{netip.MustParseAddr(local4), netip.MustParseAddr(local6)}}
	in := inner(false, 0, 20)
	frame := func(kind Tunnels, change func(b []byte)) []byte {
		b := tunnelled(kind, false, false, 0, in)
		if change != nil {
			change(b)
			b[10], b[11] = 0, 0
			binary.BigEndian.PutUint16(b[10:], ^uint16(sum16(b[:20])))
		}
		return ether(0, 0x0800, b)
	}
	frame6 := func(change func(b []byte)) []byte {
		b := tunnelled(GUE, true, false, 0, in)
		change(b)
		return ether(0, 0x86dd, b)
	}
	elsewhere := func(b []byte) { b[19]++ }
	for _, c := range []struct {
		name    string
		o       DecapOptions
		frame   []byte
		drops   bool
		counter string
	}{
		{"another destination", all, frame(GRE, elsewhere), false, ""},
		{"another destination where any will do", DecapOptions{Tunnels: GRE}, frame(GRE, nil), false, "gre"},
		{"a kind not asked for", DecapOptions{Tunnels: GRE | GUE}, frame(IPIP, nil), false, ""},
		{"another UDP port", DecapOptions{Tunnels: GUE, GUEPort: 9999}, frame(GUE, nil), false, ""},
		{"TCP", all, frame(GRE, func(b []byte) { b[9] = 6 }), false, ""},
		{"a fragment", all, frame(GRE, func(b []byte) { b[6] = 0x20 }), false, "fragment"},
		{"a later fragment", all, frame(IPIP, func(b []byte) { b[7] = 1 }), false, "fragment"},
		{"GRE with key", all, frame(GRE, func(b []byte) { b[20] = 0x20 }), false, "options"},
		{"GRE version 1", all, frame(GRE, func(b []byte) { b[21] = 1 }), false, "options"},
		{"GRE with Ethernet inside", all, frame(GRE, func(b []byte) { b[22], b[23] = 0x65, 0x58 }), false, ""},
		{"GUE variant 1", all, frame(GUE, func(b []byte) { b[28] = 0x40 }), false, "options"},
		{"GUE control message", all, frame(GUE, func(b []byte) { b[28] = 0x20 }), false, "options"},
		{"GUE with options", all, frame(GUE, func(b []byte) { b[28] = 1 }), false, "options"},
		{"GUE with flags", all, frame(GUE, func(b []byte) { b[30] = 0x80 }), false, "options"},
		{"GUE with GRE inside", all, frame(GUE, func(b []byte) { b[29] = 47 }), false, ""},
		{"UDP length beyond the packet", all, frame(GUE, func(b []byte) { b[25]++ }), true, "bad_length"},
		{"UDP length below the inner packet's", all, frame(GUE, func(b []byte) { b[25]-- }), true, "bad_inner"},
		{"UDP length below 8, IPv6", all, frame6(func(b []byte) { b[44], b[45] = 0, 7 }), true, "bad_length"},
		{"total length beyond the frame", all, frame(GRE, func(b []byte) { b[3]++ }), true, "bad_length"},
		{"payload length beyond the frame", all, frame6(func(b []byte) { b[5]++ }), true, "bad_length"},
		{"header checksum", all, func() []byte { b := frame(GRE, nil); b[24]++; return b }(), true, "bad_checksum"},
		{"inner version", all, frame(GRE, func(b []byte) { b[24] = 0x65 }), true, "bad_inner"},
		{"inner IHL", all, frame(GRE, func(b []byte) { b[24] = 0x44 }), true, "bad_inner"},
		{"inner longer than outer", all, frame(GRE, func(b []byte) { b[27]++ }), true, "bad_inner"},
		{"inner shorter than its header", all, frame(GRE, func(b []byte) { b[26], b[27] = 0, 19 }), true, "bad_inner"},
		{"no room for GRE", all, frame(GRE, func(b []byte) { b[2], b[3] = 0, 22 }), true, "bad_inner"},
		{"frame ends in GRE", all, frame(GRE, nil)[:37], true, "truncated"},
		{"frame ends in the outer header", all, frame(GRE, nil)[:33], false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decap(t, c.o)
			for _, prog := range hooks {
				if prog == "lbgraph_dectc" && len(c.frame) < 34 {
					continue // the kernel makes no skb of it
				}
				before, _ := d.Counts()
				got := d.run(t, prog, c.frame)
				_, name := counted(t, d, before)
				if name != c.counter || (got == nil) != c.drops {
					t.Errorf("%s: counted %q, left %x", prog, name, got)
				}
				if c.counter != "gre" && got != nil && !bytes.Equal(got, c.frame) {
					t.Errorf("%s: changed to %x", prog, got)
				}
			}
		})
	}
}

// Whatever comes, what leaves is what came, or its end behind the same Ethernet
// header with an inner packet that fits; and all three programs agree.
func TestDecapOfBrokenFrames(t *testing.T) {
	d := decap(t, DecapOptions{Tunnels: AllTunnels})
	r := rand.New(rand.NewPCG(8, 9))
	stripped := 0
	for range 6000 {
		v6out, v6in := one(r, 2), one(r, 2)
		b := ether(r.IntN(2)*r.IntN(3), kindOf(v6out), tunnelled(pick(r, []Tunnels{GRE, IPIP, GUE}), v6out, v6in, byte(r.IntN(4)), inner(v6in, byte(r.IntN(4)), 8+r.IntN(40))))
		if !one(r, 4) {
			b = mutate(r, b)
		}
		outs := map[string]string{}
		for _, prog := range hooks {
			if d.objs.Programs[prog] == nil || prog == "lbgraph_dectc" && (len(b) < 54 || b[12] == 0x81 || b[12] == 0x88) {
				continue
			}
			got := d.run(t, prog, b)
			outs[hex.EncodeToString(got)] = prog
			if got == nil || bytes.Equal(got, b) {
				continue
			}
			stripped++
			cut := len(b) - len(got)
			l2 := 14
			for k := 0; k < 2 && (got[l2-2] == 0x81 || got[l2-2] == 0x88); k++ {
				l2 += 4
			}
			ip, ok := got[l2:], false
			switch binary.BigEndian.Uint16(got[l2-2:]) {
			case 0x0800:
				ok = len(ip) >= 20 && ip[0]>>4 == 4 && int(binary.BigEndian.Uint16(ip[2:])) <= len(ip)
			case 0x86dd:
				ok = len(ip) >= 40 && ip[0]>>4 == 6 && 40+int(binary.BigEndian.Uint16(ip[4:])) <= len(ip)
			}
			// The congestion mark, and the checksum over it, may differ.
			if !ok || cut < 20 || cut > 52 || !bytes.Equal(got[:l2-2], b[:l2-2]) || !bytes.Equal(got[l2+20:], b[cut+l2+20:]) {
				t.Fatalf("%s: %x becomes %x", prog, b, got)
			}
		}
		if len(outs) > 1 {
			t.Fatalf("of %x: %v", b, outs)
		}
	}
	if stripped < 1500 {
		t.Errorf("%d stripped", stripped)
	}
	c, err := d.Counts()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range c.Dropped {
		if n.Packets == 0 {
			t.Errorf("nothing was %s", name)
		}
	}
}

// On a real interface the inner packet reaches the kernel's socket.
func TestDecapOnVeth(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		mtu        int
		o          DecapOptions
	}{
		{"native", "native", 1600, DecapOptions{Mode: Native}},
		{"generic", "generic", 1600, DecapOptions{Mode: Generic}},
		{"auto", "native", 1600, DecapOptions{}},
		{"jumbo", "native", 9000, DecapOptions{Mode: Native}},
		{"tc", "tc", 1600, DecapOptions{TC: true}},
		{"clsact", "tc", 1600, DecapOptions{TC: true, clsact: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lb, backend := netnstest.New(t), netnstest.New(t)
			netnstest.Veth(netnstest.End{NS: lb, Name: "l0", Addrs: []string{remote4 + "/24", remote6 + "/64"}, MTU: c.mtu},
				netnstest.End{NS: backend, Name: "eth0", Addrs: []string{local4 + "/24", local6 + "/64"}, MTU: c.mtu})
			for _, a := range []string{"203.0.113.10/32", "2001:db8::10/128"} {
				backend.Exec("ip", "addr", "add", a, "dev", "lo")
			}
			backend.Exec("ip", "route", "add", "default", "via", remote4)
			backend.Exec("ip", "route", "add", "default", "via", remote6)
			o := c.o
			o.Interface, o.Tunnels = backend.Index("eth0"), AllTunnels
			o.Addresses = []netip.Addr{netip.MustParseAddr(local4), netip.MustParseAddr(local6)}
			attach := func() (d *Decap) {
				var err error
				backend.Do(func() { d, err = AttachDecap(o) })
				if err != nil {
					t.Fatal(err)
				}
				if d.Mode != c.mode {
					t.Errorf("mode %s", d.Mode)
				}
				return d
			}
			// A second time in the place of the first.
			if err := attach().Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
			d := attach()
			defer func() { _ = d.Close() }()
			var in net.PacketConn
			var err error
			backend.Do(func() { in, err = net.ListenPacket("udp", ":80") })
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = in.Close() }()
			raw := rawSocket(t, lb, "l0")
			n := 0
			for _, kind := range []Tunnels{GRE, IPIP, GUE} {
				for pair := range 4 {
					v6out, v6in := pair&1 != 0, pair&2 != 0
					text := fmt.Sprintf("%s %d", kind, pair)
					b := ether(0, kindOf(v6out), tunnelled(kind, v6out, v6in, 0, datagram(v6in, text)))
					to, from := backend.MAC("eth0"), lb.MAC("l0")
					copy(b, to[:])
					copy(b[6:], from[:])
					if _, err := unix.Write(raw, b); err != nil {
						t.Fatal(err)
					}
					n++
					_ = in.SetReadDeadline(time.Now().Add(2 * time.Second))
					buf := make([]byte, 100)
					k, from1, err := in.ReadFrom(buf)
					if err != nil || string(buf[:k]) != text {
						t.Fatalf("%s: heard %q, %v", text, buf[:k], err)
					}
					if src := from1.(*net.UDPAddr).AddrPort().Addr().Unmap().String(); src != "198.51.100.7" && src != "2001:db8:c::7" {
						t.Errorf("%s: from %s", text, src)
					}
				}
			}
			counts, err := d.Counts()
			if err != nil {
				t.Fatal(err)
			}
			for k, c := range counts.Stripped {
				if c.Packets != 4 {
					t.Errorf("%s: %d packets", k, c.Packets)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if s := backend.Exec("ip", "-d", "link", "show", "eth0"); bytes.Contains([]byte(s), []byte("xdp")) {
				t.Errorf("left behind: %s", s)
			}
			if s := backend.Exec("tc", "filter", "show", "dev", "eth0", "ingress"); s != "" {
				t.Errorf("left behind: %s", s)
			}
		})
	}
}

// datagram is an inner packet with text for port 80, UDP checksum and all.
func datagram(v6 bool, text string) []byte {
	b := make([]byte, 8+len(text))
	binary.BigEndian.PutUint16(b, 40000)
	binary.BigEndian.PutUint16(b[2:], 80)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	copy(b[8:], text)
	ip := inner(v6, 0, 0)
	addrs := ip[12:20]
	if v6 {
		addrs = ip[8:40]
	}
	pseudo := append(append(append([]byte(nil), addrs...), 0, packet.ProtoUDP, 0, byte(len(b))), b...)
	if len(pseudo)&1 != 0 {
		pseudo = append(pseudo, 0)
	}
	binary.BigEndian.PutUint16(b[6:], ^uint16(sum16(pseudo)))
	if v6 {
		return whole6("2001:db8:c::7", "2001:db8::10", packet.ProtoUDP, 0, b)
	}
	return whole4("198.51.100.7", "203.0.113.10", packet.ProtoUDP, 0, b)
}

func rawSocket(t testing.TB, ns *netnstest.NS, dev string) (fd int) {
	t.Helper()
	var err error
	ns.Do(func() {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ns.Index(dev)})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestDecapRefusals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root: XDP programs need it")
	}
	for _, tc := range []bool{false, true} {
		if _, err := AttachDecap(DecapOptions{Interface: 99999, Tunnels: GRE, TC: tc}); err == nil || !bytes.Contains([]byte(err.Error()), []byte(ErrNoInterface.Error())) {
			t.Errorf("tc %v: %v", tc, err)
		}
	}
	for s, want := range map[string]Tunnels{"gre": GRE, "gue, ipip": GUE | IPIP, "gre,ipip,gue": AllTunnels} {
		if k, err := ParseTunnels(s); k != want || err != nil {
			t.Errorf("%q: %s, %v", s, k, err)
		}
	}
	for _, s := range []string{"", "gre,", "vxlan"} {
		if _, err := ParseTunnels(s); err == nil {
			t.Errorf("%q is read", s)
		}
	}
}

// What the program costs those packets that are no tunnel's, its call included.
func BenchmarkDecap(b *testing.B) {
	d := decap(b, DecapOptions{Tunnels: AllTunnels, Addresses: []netip.Addr{netip.MustParseAddr(local4)}})
	_, each, err := d.objs.Programs["lbgraph_decap"].Benchmark(cases(b)["syn"], b.N, b.ResetTimer)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(each.Nanoseconds()), "ns/run")
}
