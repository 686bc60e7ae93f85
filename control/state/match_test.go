package state

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// slowMatch is the documentation of Match as a loop.
func slowMatch(rules []rule, dst netip.Addr, proto uint8, port uint16) (uint32, Verdict) {
	longest := -1
	for _, r := range rules {
		if r.prefix.Contains(dst) {
			longest = max(longest, r.prefix.Bits())
		}
	}
	if longest < 0 {
		return 0, NotVIP
	}
	var best *rule
	leave := true
	for i := range rules {
		r := &rules[i]
		if !r.prefix.Contains(dst) || r.prefix.Bits() != longest {
			continue
		}
		leave = leave && r.leave
		if r.proto != 0 && r.proto != proto || port < r.lo || port > r.hi {
			continue
		}
		better := best == nil
		if !better {
			switch {
			case (r.proto != 0) != (best.proto != 0):
				better = r.proto != 0
			case r.hi-r.lo != best.hi-best.lo:
				better = r.hi-r.lo < best.hi-best.lo
			default:
				better = r.lo < best.lo
			}
		}
		if better {
			best = r
		}
	}
	switch {
	case best != nil:
		return best.service, Served
	case leave:
		return 0, Leave
	}
	return 0, WrongPort
}

func TestMatchEqualsItsDocumentation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	prefixes := []netip.Prefix{
		netip.MustParsePrefix("203.0.113.10/32"), netip.MustParsePrefix("203.0.113.11/32"), netip.MustParsePrefix("203.0.113.8/30"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("2001:db8::10/128"),
		netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2001:db8::8/125"), netip.MustParsePrefix("::/0"),
	}
	dsts := []netip.Addr{}
	for _, a := range []string{"203.0.113.10", "203.0.113.11", "203.0.113.9", "203.0.113.200", "8.8.8.8", "2001:db8::10", "2001:db8::f", "2001:db8::99", "2001:db8:1::1", "2400::1"} {
		dsts = append(dsts, netip.MustParseAddr(a))
	}
	verdicts := map[Verdict]int{}
	for round := range 400 {
		var rules []rule
		for range r.IntN(12) {
			q := rule{prefix: prefixes[r.IntN(len(prefixes))], proto: []uint8{0, 6, 17}[r.IntN(3)], leave: r.IntN(3) > 0}
			q.lo = uint16(r.IntN(12))
			switch r.IntN(3) {
			case 0:
				q.hi = q.lo
			case 1:
				q.hi = q.lo + uint16(r.IntN(6))
			default:
				q.lo, q.hi = 0, 65535
			}
			// Of two equal rules the earlier wins; the loop's tie-break is the same.
			q.service = uint32(len(rules) + 1)
			rules = append(rules, q)
		}
		m := newMatcher(rules)
		for _, d := range dsts {
			for _, proto := range []uint8{6, 17, 47} {
				for port := range uint16(20) {
					got, v := m.Match(packet.AddrOf(d), proto, port)
					want, wv := slowMatch(rules, d, proto, port)
					if got != want || v != wv {
						t.Fatalf("round %d: Match(%s, %d, %d) = %d %d, want %d %d of %+v", round, d, proto, port, got, v, want, wv, rules)
					}
					verdicts[v]++
				}
			}
			if got, want := m.MatchAddr(packet.AddrOf(d)), func() bool { _, v := slowMatch(rules, d, 6, 0); return v != NotVIP }(); got != want {
				t.Fatalf("MatchAddr(%s) = %v", d, got)
			}
		}
	}
	for v := NotVIP; v <= Leave; v++ {
		if verdicts[v] == 0 {
			t.Errorf("verdict %d never came up", v)
		}
	}
}

func TestMatchNothing(t *testing.T) {
	for _, m := range []*Matcher{nil, {}, newMatcher(nil)} {
		if _, v := m.Match(packet.Addr4(1), 6, 80); v != NotVIP || m.MatchAddr(packet.Addr4(1)) {
			t.Error("an empty matcher matches")
		}
	}
}

func manyRules(n int) []rule {
	rules := make([]rule, n)
	for i := range rules {
		a := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
		rules[i] = rule{prefix: netip.PrefixFrom(a, 32), proto: 6, lo: 443, hi: 443, service: uint32(i + 1)}
	}
	return rules
}

// Services of single addresses, also as many as half fill their table to the last place,
// take their own packets, and none that differ from those by a bit of address, protocol
// or port.
func TestMatchOfManySingles(t *testing.T) {
	for _, n := range []int{1, 64, 4096, 8192} {
		rules := manyRules(n)
		for i := range rules {
			r := &rules[i]
			r.lo = uint16([]int{443, 1 << 15, 53 | 1<<15, 0xffff}[i%4])
			r.hi, r.proto = r.lo, []uint8{packet.ProtoTCP, packet.ProtoUDP}[i/4%2]
			if i%3 == 2 && n < 8192 {
				a := r.prefix.Addr().As4()
				r.prefix = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 13: a[1], 14: a[2], 15: a[3]}), 128)
			}
		}
		m := newMatcher(rules)
		var v packet.Vector
		check := func(dst packet.Addr, proto uint8, port uint16, want uint32) {
			t.Helper()
			got, verdict := m.Match(dst, proto, port)
			if got != want || (verdict == Served) != (want != 0) {
				t.Fatalf("%d services: Match(%v, %d, %d) is %d, %d, not %d", n, dst, proto, port, got, verdict, want)
			}
			v.Dst[0], v.Proto[0], v.DPort[0], v.Flags[0], v.VIP[0] = dst, proto, port, 0, 0
			if !dst.Is4() {
				v.Flags[0] = packet.V6
			}
			if served := m.MatchDense(&v, 1); v.VIP[0] != want || (served == 1) != (want != 0) {
				t.Fatalf("%d services: MatchDense of %v, %d, %d is %d, not %d", n, dst, proto, port, v.VIP[0], want)
			}
		}
		check(packet.Addr4(0), 0, 0, 0) // of zeros, as free places are
		check(packet.Addr{}, 0, 0, 0)
		for _, r := range rules {
			dst := packet.AddrOf(r.prefix.Addr())
			check(dst, r.proto, r.lo, r.service)
			for bit := range 16 {
				check(dst, r.proto, r.lo^1<<bit, 0)
				if bit < 8 {
					check(dst, r.proto^1<<bit, r.lo, 0)
				}
				check(packet.Addr{Hi: dst.Hi, Lo: dst.Lo ^ 1<<(16+bit)}, r.proto, r.lo, 0)
			}
		}
	}
}

// Packets that carry no flow of their own are nobody's here, also where a service takes
// whatever comes to its address.
func TestMatchDenseLeavesOutWhatHasNoFlow(t *testing.T) {
	m := newMatcher([]rule{
		{prefix: netip.MustParsePrefix("203.0.113.0/24"), hi: 65535, service: 1},
		{prefix: netip.MustParsePrefix("203.0.113.10/32"), hi: 65535, service: 2},
		{prefix: netip.MustParsePrefix("2001:db8::/32"), hi: 65535, service: 3},
	})
	const before = 77
	for _, c := range []struct {
		dst   string
		flags packet.Flags
		want  uint32
	}{
		{"203.0.113.9", 0, 1}, {"203.0.113.9", packet.DF, 1}, {"203.0.113.10", 0, 2}, {"2001:db8::1", packet.V6, 3},
		{"203.0.113.9", packet.Later, before}, {"203.0.113.10", packet.ICMP, before}, {"203.0.113.10", packet.V6, before},
		{"2001:db8::1", packet.V6 | packet.Later, before}, {"2001:db8::1", packet.V6 | packet.ICMP, before}, {"192.0.2.1", 0, before},
	} {
		var v packet.Vector
		v.Dst[1], v.Proto[1], v.Flags[1], v.VIP[1] = packet.AddrOf(netip.MustParseAddr(c.dst)), packet.ProtoTCP, c.flags, before
		served := m.MatchDense(&v, 2)
		if v.VIP[1] != c.want || served.Has(1) != (c.want != before) {
			t.Errorf("%s with flags %x: service %d, served %v, want %d", c.dst, c.flags, v.VIP[1], served.Has(1), c.want)
		}
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	m := newMatcher(append(manyRules(100), rule{prefix: netip.MustParsePrefix("198.51.100.0/24"), hi: 65535, service: 999}))
	a, b := packet.Addr4(0xcb000001), packet.AddrOf(netip.MustParseAddr("198.51.100.1"))
	if n := testing.AllocsPerRun(100, func() {
		m.Match(a, 6, 443)
		m.Match(b, 17, 53)
		m.MatchAddr(b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestManyPortsOnOnePrefix(t *testing.T) {
	var rules []rule
	for p := range 65536 {
		rules = append(rules, rule{prefix: netip.MustParsePrefix("203.0.113.0/24"), proto: 6, lo: uint16(p), hi: uint16(p), service: uint32(p + 1)})
	}
	m := newMatcher(append(rules, rule{prefix: netip.MustParsePrefix("203.0.113.0/24"), hi: 65535, service: 100000}))
	for _, p := range []uint16{0, 1, 80, 65535} {
		if s, v := m.Match(packet.Addr4(0xcb007105), 6, p); s != uint32(p)+1 || v != Served {
			t.Errorf("port %d: service %d, verdict %d", p, s, v)
		}
		if s, v := m.Match(packet.Addr4(0xcb007105), 17, p); s != 100000 || v != Served {
			t.Errorf("UDP port %d: service %d, verdict %d", p, s, v)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		m := newMatcher(manyRules(n))
		b.Run(fmt.Sprintf("vips=%d/exact", n), func(b *testing.B) {
			x, sum := uint32(1), uint32(0)
			for b.Loop() {
				x = x*1664525 + 1013904223
				s, _ := m.Match(packet.Addr4(0xcb000000+packet.Reduce(uint64(x)<<32, uint32(n))), 6, 443)
				sum += s
			}
			if sum == 0 {
				b.Fatal("nothing matched")
			}
		})
	}
	m := newMatcher([]rule{{prefix: netip.MustParsePrefix("203.0.0.0/16"), lo: 0, hi: 65535, service: 1}})
	b.Run("prefix", func(b *testing.B) {
		for b.Loop() {
			if _, v := m.Match(packet.Addr4(0xcb000102), 6, 443); v != Served {
				b.Fatal("no match")
			}
		}
	})
	big := manyRules(10000)
	b.Run("build/vips=10000", func(b *testing.B) {
		for b.Loop() {
			newMatcher(big)
		}
	})
}
