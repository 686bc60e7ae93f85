package bpf

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// cases reads the frames of the repository's packet cases.
func cases(t testing.TB) map[string][]byte {
	t.Helper()
	f, err := os.Open("../../testdata/cases/packets.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	all := map[string][]byte{}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		w := strings.Fields(s.Text())
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		b, err := hex.DecodeString(w[2])
		if err != nil {
			t.Fatalf("%s: %v", w[0], err)
		}
		all[w[0]] = b
	}
	if len(all) < 20 {
		t.Fatalf("%d cases", len(all))
	}
	return all
}

func ports(lohi ...uint16) (p []state.PortRange) {
	for i := 0; i < len(lohi); i += 2 {
		p = append(p, state.PortRange{Lo: lohi[i], Hi: lohi[i+1]})
	}
	return p
}

// world1 is VIPs of all kinds; that of the packet cases comes first.
func world1() state.Spec {
	p := netip.MustParsePrefix
	return state.Spec{VIPs: []state.VIPSpec{
		{Name: "web", Prefix: p("203.0.113.10/32"), Protocol: 6, Ports: ports(443, 443)},
		{Name: "ike", Prefix: p("203.0.113.10/32"), Protocol: 17, Ports: ports(4500, 4500)},
		{Name: "web6", Prefix: p("2001:db8::10/128"), Protocol: 6, Ports: ports(443, 443)},
		{Name: "ike6", Prefix: p("2001:db8::10/128"), Protocol: 17, Ports: ports(4500, 4500)},
		{Name: "left", Prefix: p("203.0.113.20/32"), Protocol: 6, Ports: ports(80, 80), Leave: true},
		{Name: "half", Prefix: p("203.0.113.21/32"), Protocol: 6, Ports: ports(80, 80), Leave: true},
		{Name: "half2", Prefix: p("203.0.113.21/32"), Protocol: 6, Ports: ports(81, 81)},
		{Name: "half3", Prefix: p("203.0.113.22/32"), Protocol: 6, Ports: ports(80, 80)},
		{Name: "half4", Prefix: p("203.0.113.22/32"), Protocol: 6, Ports: ports(81, 81), Leave: true},
		{Name: "net", Prefix: p("198.18.0.0/24")},
		{Name: "subnet", Prefix: p("198.18.0.128/25"), Protocol: 6, Ports: ports(80, 443, 8000, 8100)},
		{Name: "host", Prefix: p("198.18.0.200/32"), Protocol: 17, Ports: ports(53, 53)},
		{Name: "any", Prefix: p("203.0.113.30/32"), Ports: ports(80, 80, 100, 200, 120, 130)},
		{Name: "tcp", Prefix: p("203.0.113.30/32"), Protocol: 6, Ports: ports(110, 150)},
		{Name: "any2", Prefix: p("203.0.113.30/32"), Ports: ports(122, 126)},
		{Name: "net6", Prefix: p("2001:db8:5::/48"), Protocol: 17, Ports: ports(1000, 2000), Leave: true},
		{Name: "all6", Prefix: p("2001:db8:5:1::/64"), Protocol: 17},
		{Name: "off", Prefix: p("203.0.113.40/32"), Disabled: true},
		{Name: "off2", Prefix: p("203.0.113.10/32"), Protocol: 6, Ports: ports(81, 81), Disabled: true},
	}}
}

func sources() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.1.0.2/32"), netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd01::2/128")}
}

func mustRules(t testing.TB, s state.Spec, tunnels []netip.Prefix) *Rules {
	t.Helper()
	r, err := RulesOf(s, tunnels)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// addresses4 and addresses6 are destinations that matter to world1, and others.
var (
	addresses4 = []string{"203.0.113.10", "203.0.113.20", "203.0.113.21", "203.0.113.30", "203.0.113.40", "198.18.0.1", "198.18.0.129", "198.18.0.200", "198.18.1.1", "10.1.0.2", "10.9.0.77", "10.1.0.3"}
	addresses6 = []string{"2001:db8::10", "2001:db8::11", "2001:db8:5::1", "2001:db8:5:1::1", "2001:db8:6::1", "fd01::2", "::ffff:203.0.113.10", "ff02::1:ff00:10"}
	somePorts  = []uint16{0, 53, 79, 80, 81, 99, 100, 115, 125, 160, 200, 201, 443, 444, 999, 1000, 1500, 2000, 2001, 4500, 6080, 8000, 8100, 8101, 65535}
	protos     = []uint8{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP, packet.ProtoICMPv6, packet.ProtoGRE, packet.ProtoIPIP, 51, 132, 0}
)

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func one(r *rand.Rand, in int) bool { return r.IntN(in) == 0 }

// ether puts an Ethernet header with n VLAN tags in front of an IP packet.
func ether(n int, kind uint16, ip []byte) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for i := range n {
		b = binary.BigEndian.AppendUint16(b, []uint16{0x88a8, 0x8100}[(i+n)&1])
		b = append(b, 0, 100)
	}
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, ip...)
}

// ip4 makes an IPv4 packet; its checksum is left out, which nobody here looks at.
func ip4(src, dst string, proto uint8, options int, place uint16, data []byte) []byte {
	b := make([]byte, 20+options)
	b[0], b[6], b[7], b[8], b[9] = 0x40|uint8(len(b)/4), uint8(place>>8), uint8(place), 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(data)))
	copy(b[12:], netip.MustParseAddr(src).AsSlice())
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	return append(b, data...)
}

// ip6 makes an IPv6 packet of headers that are already in front of data.
func ip6(src, dst string, next uint8, data []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(data)))
	copy(b[8:], netip.MustParseAddr(src).AsSlice())
	d := netip.MustParseAddr(dst).As16()
	copy(b[24:], d[:])
	return append(b, data...)
}

// l4 makes a transport header, TCP's and UDP's ports at least.
func l4(dport uint16, size int) []byte {
	b := make([]byte, max(size, 4))
	b[0], b[1] = 0x9c, 0x40
	binary.BigEndian.PutUint16(b[2:], dport)
	return b[:size]
}

// quote makes what an ICMP error holds of a packet sent through a tunnel, or of one
// that is nearly that.
func quote(r *rand.Rand, v6 bool, src string) []byte {
	proto := pick(r, []uint8{packet.ProtoGRE, packet.ProtoIPIP, packet.ProtoIPv6, packet.ProtoUDP, packet.ProtoTCP})
	port := uint16(GUEPort)
	if one(r, 4) {
		port = pick(r, somePorts)
	}
	if v6 {
		if one(r, 4) {
			src = pick(r, addresses6)
		}
		return ip6(src, "2001:db8::99", proto, l4(port, r.IntN(20)))
	}
	if one(r, 4) {
		src = pick(r, addresses4)
	}
	place := uint16(0x4000)
	if one(r, 8) {
		place = pick(r, []uint16{1, 0x100, 0x1000, 0x2000})
	}
	return ip4(src, "192.0.2.9", proto, 4*r.IntN(3), place, l4(port, r.IntN(20)))
}

func icmp(r *rand.Rand, v6 bool, dst string) []byte {
	b := make([]byte, 8)
	if b[0] = pick(r, []uint8{3, 11, 12, 8, 0, 5, 4}); v6 {
		b[0] = pick(r, []uint8{1, 2, 3, 4, 128, 129, 132, 133, 135, 136, 137, 138, 0})
	}
	return append(b, quote(r, v6, dst)...)
}

// frame makes a frame that is well-formed or nearly so.
func frame(r *rand.Rand) []byte {
	tags := 0
	if one(r, 4) {
		tags = r.IntN(4)
	}
	proto := pick(r, protos)
	data := l4(pick(r, somePorts), 4+r.IntN(30))
	if one(r, 2) {
		dst := pick(r, addresses4)
		if proto == packet.ProtoICMP {
			data = icmp(r, false, dst)
		}
		place := uint16(0x4000)
		if one(r, 4) {
			place = pick(r, []uint16{0x2000, 0x2001, 1, 0x1000, 0x1fff, 0x8000, 0})
		}
		options := 0
		if one(r, 4) {
			options = 4 * r.IntN(11)
		}
		return ether(tags, 0x0800, ip4("198.51.100.7", dst, proto, options, place, data))
	}
	dst := pick(r, addresses6)
	if one(r, 3) {
		proto = packet.ProtoICMPv6
	}
	if proto == packet.ProtoICMPv6 {
		data = icmp(r, true, dst)
	}
	// Extension headers, the last first.
	if one(r, 2) {
		for range r.IntN(11) {
			next := pick(r, []uint8{packet.ProtoRouting, packet.ProtoDestOpts, packet.ProtoDestOpts, packet.ProtoFragment})
			if one(r, 20) {
				next = packet.ProtoHopByHop
			}
			h := make([]byte, 8)
			if next != packet.ProtoFragment {
				h = make([]byte, 8*(1+r.IntN(3)))
				h[1] = uint8(len(h)/8 - 1)
			} else if one(r, 2) {
				binary.BigEndian.PutUint16(h[2:], pick(r, []uint16{1, 8, 9, 0xfff8, 6}))
			}
			h[0] = proto
			data, proto = append(h, data...), next
		}
		if one(r, 3) {
			h := make([]byte, 8)
			h[0] = proto
			data, proto = append(h, data...), packet.ProtoHopByHop
		}
	}
	return ether(tags, 0x86dd, ip6("2001:db8:c::7", dst, proto, data))
}

// lie makes the length in an IP header end the packet about where its headers do,
// with bytes of the frame behind it.
func lie(r *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	switch {
	case b[12] == 8 && len(b) >= 34:
		binary.BigEndian.PutUint16(b[16:], uint16(int(b[14]&15)*4-2+r.IntN(40)))
	case b[12] == 0x86 && len(b) >= 54:
		binary.BigEndian.PutUint16(b[18:], uint16(r.IntN(60)))
	}
	return b
}

// mutate breaks a frame here and there, or cuts it.
func mutate(r *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	for range r.IntN(4) {
		// Headers rather than data.
		i := r.IntN(min(len(b), 80))
		switch r.IntN(3) {
		case 0:
			b[i] ^= 1 << r.IntN(8)
		case 1:
			b[i] = byte(r.Uint32())
		case 2:
			b[i] = pick(r, []byte{0, 1, 4, 6, 0x45, 0x46, 0x60, 44, 60, 255})
		}
	}
	if one(r, 3) {
		b = b[:14+r.IntN(len(b)-13)]
	}
	return b
}
