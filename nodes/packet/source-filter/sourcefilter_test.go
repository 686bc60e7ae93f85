package sourcefilter

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func prefixes(all ...string) (ps []netip.Prefix) {
	for _, s := range all {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// reference answers what lists say by looking at all of them.
func reference(a netip.Addr, allow, deny []netip.Prefix, unlisted bool) bool {
	best, says := -1, unlisted
	for k, list := range [][]netip.Prefix{allow, deny} {
		for _, p := range list {
			if p.Contains(a) && (p.Bits() > best || p.Bits() == best && k == 1) {
				best, says = p.Bits(), k == 1
			}
		}
	}
	return says
}

func ask(tr *trie, a netip.Addr) bool {
	var s search
	s.start(3, tr, packet.AddrOf(a), a.Is6())
	return s.run(packet.Lane(3)) != 0
}

func TestLongestPrefix(t *testing.T) {
	allow := prefixes("10.0.0.0/8", "10.1.2.0/24", "192.0.2.7/32", "2001:db8::/32", "2001:db8:1:2::/64", "2001:db8::7/128", "0.0.0.0/1")
	deny := prefixes("10.1.0.0/16", "10.1.2.128/25", "192.0.2.0/24", "2001:db8:1::/48", "2001:db8:1:2:8000::/65", "10.1.2.0/24", "::/0")
	for _, unlisted := range []bool{false, true} {
		tr := build(allow, deny, unlisted)
		for _, s := range []string{
			"10.2.3.4", "10.1.9.9", "10.1.2.1", "10.1.2.200", "192.0.2.7", "192.0.2.8", "192.0.2.6", "200.1.2.3", "9.0.0.1", "0.0.0.0", "127.255.255.255", "128.0.0.0", "255.255.255.255",
			"2001:db8::1", "2001:db8::7", "2001:db8::8", "2001:db8:1::1", "2001:db8:1:2::1", "2001:db8:1:2:8000::", "2001:db8:1:2:7fff:ffff:ffff:ffff", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::ffff:0:1",
		} {
			a := netip.MustParseAddr(s)
			if got, want := ask(tr, a), reference(a, allow, deny, unlisted); got != want {
				t.Errorf("unlisted %v: %s is denied: %v, want %v", unlisted, s, got, want)
			}
		}
	}
	mapped := build(nil, prefixes("::ffff:10.0.0.0/104"), false)
	if !ask(mapped, netip.MustParseAddr("10.9.9.9")) || ask(mapped, netip.MustParseAddr("11.0.0.0")) {
		t.Error("an IPv4 prefix in IPv6 form")
	}
}

// Random lists of nested and neighbouring prefixes, asked at and beside their edges.
func TestAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for round := range 60 {
		v6 := round%2 == 1
		addr := func() netip.Addr {
			var b [16]byte
			// Few distinct bytes, so that prefixes nest and meet.
			for i := range b {
				b[i] = []byte{0, 1, 0x7f, 0x80, 0xff}[r.IntN(5)]
			}
			if v6 {
				b[0] = 0x20
				return netip.AddrFrom16(b)
			}
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		list := func() (ps []netip.Prefix) {
			for range r.IntN(60) {
				a := addr()
				ps = append(ps, netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked())
			}
			return ps
		}
		allow, deny, unlisted := list(), list(), r.IntN(2) == 0
		tr := build(allow, deny, unlisted)
		check := func(a netip.Addr) {
			if !a.IsValid() {
				return
			}
			if got, want := ask(tr, a), reference(a, allow, deny, unlisted); got != want {
				t.Fatalf("round %d: %v is denied: %v, want %v\nallow %v\ndeny %v", round, a, got, want, allow, deny)
			}
		}
		for _, p := range append(allow, deny...) {
			check(p.Addr())
			check(p.Addr().Prev())
			last := last(p)
			check(last)
			check(last.Next())
		}
		for range 200 {
			check(addr())
		}
	}
}

// last is the last address of p.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func world(t testing.TB, change func(v []state.VIPSpec)) *state.Snapshot {
	t.Helper()
	one := func(name, addr string) state.VIPSpec {
		return state.VIPSpec{Name: name, Prefix: netip.MustParsePrefix(addr), Protocol: 6, Ports: []state.PortRange{{Lo: 443, Hi: 443}}, Pool: "web"}
	}
	vips := []state.VIPSpec{one("open", "203.0.113.10/32"), one("deny", "203.0.113.11/32"), one("allow", "203.0.113.12/32"), one("six", "2001:db8::10/128")}
	vips[1].Deny = prefixes("198.51.100.0/24")
	vips[1].Allow = prefixes("198.51.100.7/32")
	vips[2].Allow = prefixes("198.51.100.0/25")
	vips[2].Unlisted = "deny"
	vips[3].Deny = prefixes("2001:db8:c::/48")
	if change != nil {
		change(vips)
	}
	s, err := state.Build(state.Spec{
		Pools: []state.PoolSpec{{Name: "web", TableSize: 251, Backends: []state.BackendSpec{{Name: "1", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100}}}},
		VIPs:  vips,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB, s *state.Snapshot, unlisted string) *nodetest.Worker {
	return nodetest.New(t, "source-filter", func(c *Config) { c.Unlisted = unlisted }, nodetest.WithState(s)).Workers[0]
}

// put sets lane i as a packet from src to the VIP called name.
func put(t testing.TB, w *nodetest.Worker, i int, src, name string) {
	t.Helper()
	a := netip.MustParseAddr(src)
	w.V.Src[i], w.V.Flags[i], w.V.VIP[i] = packet.AddrOf(a), 0, 0
	if a.Is6() {
		w.V.Flags[i] = packet.V6
	}
	for s, x := range w.State().Services {
		if x.VIP == name && x.Enabled {
			w.V.VIP[i] = uint32(s)
		}
	}
	if name != "" && w.V.VIP[i] == 0 {
		t.Fatalf("no VIP %q", name)
	}
}

func TestFilter(t *testing.T) {
	for _, x := range []struct {
		unlisted, src, vip, want string
	}{
		{"allow", "198.51.100.8", "open", "next"},
		{"allow", "198.51.100.8", "deny", "denied"},
		{"allow", "198.51.100.7", "deny", "next"},
		{"allow", "198.51.101.8", "deny", "next"},
		{"allow", "198.51.100.8", "allow", "next"},
		{"allow", "198.51.100.200", "allow", "denied"},
		{"allow", "2001:db8:c::7", "six", "denied"},
		{"allow", "2001:db8:d::7", "six", "next"},
		{"deny", "198.51.101.8", "open", "denied"},
		{"deny", "198.51.100.7", "deny", "next"},
		{"deny", "198.51.101.8", "deny", "denied"},
		{"deny", "198.51.100.8", "", "next"}, // no service known: a later fragment, ICMP
	} {
		w := rig(t, world(t, nil), x.unlisted)
		put(t, w, 5, x.src, x.vip)
		if out := w.Only(w.Process(packet.Lane(5)), 5); out != x.want {
			t.Errorf("unlisted = %s: %s to %s leaves by %q, want %q", x.unlisted, x.src, x.vip, out, x.want)
		}
	}
	w := rig(t, world(t, nil), "allow")
	for i, src := range []string{"198.51.100.8", "198.51.100.7", "198.51.100.9", "1.1.1.1"} {
		put(t, w, i, src, "deny")
	}
	if ans := w.Process(0b1111); ans["denied"] != 0b0101 || ans["next"] != 0b1010 {
		t.Errorf("%v", ans)
	}
	w.V.VIP[0] = 1 << 30
	if out := w.Only(w.Process(1), 0); out != "next" {
		t.Errorf("a number that is no service: %q", out)
	}
}

// A reload changes what counts at once; lists that stay are not made again.
func TestReload(t *testing.T) {
	store := state.NewStore()
	defer store.Close()
	w := rig(t, world(t, nil), "allow")
	f := w.Node.(*worker).filters
	kept := func(name string) *trie {
		put(t, w, 0, "1.1.1.1", name)
		return (*f.byService.Load())[w.V.VIP[0]]
	}
	deny, six := kept("deny"), kept("six")
	w.Publish(world(t, func(v []state.VIPSpec) {
		v[1].Allow = nil
		v[2].Deny, v[2].Allow, v[2].Unlisted = v[3].Deny, nil, ""
	}))
	if kept("deny") == deny || kept("six") != six || kept("allow") != six {
		t.Error("made again: the same lists, or not made again: others")
	}
	put(t, w, 0, "198.51.100.7", "deny")
	put(t, w, 1, "198.51.100.200", "allow")
	if ans := w.Process(0b11); ans["denied"] != 1 || ans["next"] != 2 {
		t.Errorf("after the reload: %v", ans)
	}
	if len(f.made) != 2 {
		t.Errorf("%d lists are kept, want 2", len(f.made))
	}
}

func random(r *rand.Rand, n, size int) (ps []netip.Prefix) {
	var b [4]byte
	for range n {
		binary.BigEndian.PutUint32(b[:], r.Uint32())
		ps = append(ps, netip.PrefixFrom(netip.AddrFrom4(b), size).Masked())
	}
	return ps
}

func random6(r *rand.Rand, n, size int) (ps []netip.Prefix) {
	b := [16]byte{0x20, 1}
	for range n {
		binary.BigEndian.PutUint64(b[2:], r.Uint64())
		ps = append(ps, netip.PrefixFrom(netip.AddrFrom16(b), size).Masked())
	}
	return ps
}

// A million prefixes stay within memory and time that a reload can afford, and each is found.
func TestMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a million prefixes")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for _, x := range []struct {
		name string
		list []netip.Prefix
		mb   int
	}{
		{"/32", random(r, 1e6, 32), 64}, {"/24", random(r, 1e6, 24), 10}, {"IPv6 /64", random6(r, 1e6, 64), 260},
	} {
		start := time.Now()
		tr := build(nil, x.list, false)
		took := time.Since(start)
		size := len(tr.nodes) * 24 >> 20
		t.Logf("%s: %d MB, %v", x.name, size, took)
		if size > x.mb {
			t.Errorf("%s: %d MB", x.name, size)
		}
		for _, p := range x.list[:10000] {
			if !ask(tr, p.Addr()) || !ask(tr, last(p)) {
				t.Fatalf("%v is not found", p)
			}
		}
		runtime.GC()
	}
}

func FuzzTrie(f *testing.F) {
	f.Add([]byte{8, 10, 0, 0, 0, 24, 10, 1, 2, 0, 32, 10, 1, 2, 3}, []byte{10, 1, 2, 4}, true)
	f.Fuzz(func(t *testing.T, lists, at []byte, unlisted bool) {
		if len(at) < 4 || len(lists) > 500 {
			return
		}
		var allow, deny []netip.Prefix
		for k := 0; len(lists) >= 5; k++ {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte(lists[1:5])), int(lists[0])%33).Masked()
			if lists[0]&0x80 != 0 {
				deny = append(deny, p)
			} else {
				allow = append(allow, p)
			}
			lists = lists[5:]
		}
		a := netip.AddrFrom4([4]byte(at))
		tr := build(allow, deny, unlisted)
		for _, a := range append([]netip.Addr{a}, addrs(allow, deny)...) {
			if got, want := ask(tr, a), reference(a, allow, deny, unlisted); got != want {
				t.Fatalf("%v is denied: %v, want %v\nallow %v\ndeny %v", a, got, want, allow, deny)
			}
		}
	})
}

func addrs(lists ...[]netip.Prefix) (all []netip.Addr) {
	for _, l := range lists {
		for _, p := range l {
			all = append(all, p.Addr(), last(p))
		}
	}
	return all
}

func TestNoAllocation(t *testing.T) {
	w := rig(t, world(t, nil), "allow")
	for i := range packet.Size {
		put(t, w, i, fmt.Sprintf("198.51.100.%d", i), "deny")
	}
	if n := testing.AllocsPerRun(100, func() { w.Run(packet.All(64)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkFilter reports nanoseconds a packet: without a list, and of random clients that ask
// a list of a million random prefixes.
func BenchmarkFilter(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, x := range []struct {
		name string
		list []netip.Prefix
	}{
		{"open", nil}, {"one", prefixes("198.51.100.0/24")}, {"1M-24", random(r, 1e6, 24)}, {"1M-32", random(r, 1e6, 32)}, {"1M-v6-64", random6(r, 1e6, 64)},
	} {
		b.Run(x.name, func(b *testing.B) {
			w := rig(b, world(b, func(v []state.VIPSpec) { v[0].Deny = x.list }), "allow")
			put(b, w, 0, "198.51.100.8", "open")
			vip := w.V.VIP[0]
			const n = 1 << 14
			src := make([]packet.Addr, n)
			var flags packet.Flags
			for i := range src {
				src[i] = packet.Addr4(r.Uint32())
				if len(x.list) > 1 {
					p := x.list[r.IntN(len(x.list))]
					src[i] = packet.AddrOf(p.Addr())
					if p.Addr().Is6() {
						flags = packet.V6
					}
				}
			}
			for i := range packet.Size {
				w.V.VIP[i], w.V.Flags[i] = vip, flags
			}
			at := 0
			b.ReportAllocs()
			for b.Loop() {
				copy(w.V.Src[:], src[at:at+packet.Size])
				at = (at + packet.Size) % n
				w.Run(packet.All(64))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}
