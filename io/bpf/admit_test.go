package bpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

type ruling struct {
	name    string
	frame   []byte
	verdict Verdict
	vip     string
}

// rulings is what the rule says to world1 and sources, case by case.
func rulings(t testing.TB) []ruling {
	c := cases(t)
	v4 := func(dst string, proto uint8, place uint16, data []byte) []byte {
		return ether(0, 0x0800, ip4("198.51.100.7", dst, proto, 0, place, data))
	}
	v6 := func(dst string, next uint8, data []byte) []byte {
		return ether(0, 0x86dd, ip6("2001:db8:c::7", dst, next, data))
	}
	tcp := func(dst string, port uint16) []byte { return v4(dst, packet.ProtoTCP, 0, l4(port, 20)) }
	udp := func(dst string, port uint16) []byte { return v4(dst, packet.ProtoUDP, 0, l4(port, 8)) }
	broken := func(b []byte, at int, x byte) []byte {
		b = append([]byte(nil), b...)
		b[at] = x
		return b
	}
	ext := func(n int, next uint8, data []byte) []byte {
		for range n {
			data = append([]byte{next, 0, 0, 0, 0, 0, 0, 0}, data...)
			next = packet.ProtoDestOpts
		}
		return v6("2001:db8::10", next, data)
	}
	frag6 := func(offset uint16, next uint8, data []byte) []byte {
		h := []byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}
		return v6("2001:db8::10", packet.ProtoFragment, append(h, data...))
	}
	err4 := func(kind uint8, dst, src string, proto uint8, port uint16) []byte {
		return v4(dst, packet.ProtoICMP, 0, append([]byte{kind, 4, 0, 0, 0, 0, 0, 0}, ip4(src, "192.0.2.9", proto, 0, 0x4000, l4(port, 8))...))
	}
	err6 := func(kind uint8, dst, src string, proto uint8, port uint16) []byte {
		return v6(dst, packet.ProtoICMPv6, append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, ip6(src, "2001:db8::99", proto, l4(port, 8))...))
	}
	return []ruling{
		{"syn", c["syn"], Redirect, "web"},
		{"syn6", c["syn6"], Redirect, "web6"},
		{"udp", c["udp-1500-df"], Redirect, "ike"},
		{"vlan", c["vlan100-syn"], Redirect, "web"},
		{"options", c["ihl6"], Redirect, "web"},
		{"first fragment", c["frag1"], Redirect, "ike"},
		{"later fragment", c["frag2"], Redirect, "web"},
		{"IPv6 first fragment", c["v6-frag1"], Redirect, "ike6"},
		{"IPv6 later fragment", c["v6-frag2"], Redirect, "web6"},
		{"ICMP error", c["icmp-fragneeded-8"], Redirect, "web"},
		{"ICMPv6 error", c["icmp6-ptb"], Redirect, "web6"},
		{"echo", c["echo6"], Redirect, "web6"},
		{"wrong port", c["wrong-port"], Drop, "web"},
		{"lying length", c["totlen-lies"], Redirect, "web"},

		{"nothing", nil, Pass, ""},
		{"half an Ethernet header", c["syn"][:13], Pass, ""},
		{"ARP", ether(0, 0x0806, make([]byte, 28)), Pass, ""},
		{"two tags", ether(2, 0x0800, c["syn"][14:]), Redirect, "web"},
		{"three tags", ether(3, 0x0800, c["syn"][14:]), Pass, ""},
		{"no destination", c["syn"][:33], Pass, ""},
		{"no ports", c["syn"][:37], Redirect, "web"},
		{"ports and no more", c["syn"][:38], Redirect, "web"},
		{"wrong port and no more", c["wrong-port"][:38], Drop, "web"},
		{"IPv6 without destination", c["syn6"][:53], Pass, ""},
		{"IPv6 without ports", c["syn6"][:57], Redirect, "web6"},
		{"version", broken(c["wrong-port"], 14, 0x55), Redirect, "web"},
		{"IHL", broken(c["wrong-port"], 14, 0x44), Redirect, "web"},
		{"total length below IHL", broken(c["wrong-port"], 17, 19), Redirect, "web"},
		{"ports in the padding", broken(c["wrong-port"], 17, 23), Redirect, "web"},
		{"IPv6 version", broken(c["syn6"], 14, 0x50), Redirect, "web6"},
		{"version, not ours", broken(v4("203.0.113.99", 6, 0, l4(80, 20)), 14, 0x55), Pass, ""},
		{"another address", tcp("203.0.113.99", 443), Pass, ""},
		{"disabled VIP", tcp("203.0.113.40", 80), Pass, ""},
		{"disabled service", tcp("203.0.113.10", 81), Drop, "web"},
		{"wrong protocol", v4("203.0.113.10", packet.ProtoGRE, 0, make([]byte, 8)), Drop, "web"},
		{"leave", tcp("203.0.113.20", 81), Pass, "left"},
		{"served although others are left", tcp("203.0.113.20", 80), Redirect, "left"},
		{"only one of two leaves", tcp("203.0.113.21", 82), Drop, "half"},
		{"only the other of two leaves", tcp("203.0.113.22", 82), Drop, "half3"},
		{"prefix", v4("198.18.0.5", 132, 0, make([]byte, 8)), Redirect, "net"},
		{"longer prefix", tcp("198.18.0.129", 100), Redirect, "subnet"},
		{"longer prefix, wrong port", tcp("198.18.0.129", 444), Drop, "subnet"},
		{"address in a prefix", udp("198.18.0.200", 53), Redirect, "host"},
		{"address in a prefix, wrong port", tcp("198.18.0.200", 80), Drop, "host"},
		{"any protocol", udp("203.0.113.30", 80), Redirect, "any"},
		{"any protocol, range", udp("203.0.113.30", 150), Redirect, "any"},
		{"protocol before any", tcp("203.0.113.30", 125), Redirect, "tcp"},
		{"the narrower range", v4("203.0.113.30", 17, 0, l4(125, 8)), Redirect, "any2"},
		{"no port is port 0", v4("203.0.113.30", 132, 0, make([]byte, 8)), Drop, "any"},
		{"IPv6 range", v6("2001:db8:5::9", 17, l4(1500, 8)), Redirect, "net6"},
		{"IPv6 left", v6("2001:db8:5::9", 17, l4(2001, 8)), Pass, "net6"},
		{"IPv6 all ports", v6("2001:db8:5:1::9", 17, l4(2001, 8)), Redirect, "all6"},
		{"IPv4-mapped destination", v6("::ffff:203.0.113.10", 6, l4(443, 20)), Pass, ""},

		{"neighbour solicitation", v6("2001:db8::10", 58, append([]byte{135}, make([]byte, 23)...)), Pass, ""},
		{"ICMPv6 redirect", v6("2001:db8::10", 58, append([]byte{137}, make([]byte, 39)...)), Pass, ""},
		{"ICMPv6 138", v6("2001:db8::10", 58, append([]byte{138}, make([]byte, 39)...)), Redirect, "web6"},
		{"neighbour solicitation behind options", ext(1, 58, append([]byte{135}, make([]byte, 23)...)), Pass, ""},
		{"ICMPv6 without type", v6("2001:db8::10", 58, nil), Redirect, "web6"},
		{"ICMPv6 over IPv4", v4("203.0.113.10", 58, 0, append([]byte{135}, make([]byte, 23)...)), Drop, "web"},
		{"eight headers", ext(8, 6, l4(443, 20)), Redirect, "web6"},
		{"eight headers, wrong port", ext(8, 6, l4(80, 20)), Drop, "web6"},
		{"nine headers", ext(9, 6, l4(80, 20)), Redirect, "web6"},
		{"hop-by-hop behind another", ext(1, 0, append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, l4(80, 20)...)), Redirect, "web6"},
		{"a header one byte longer than the packet", func() []byte {
			b := v6("2001:db8::10", 60, append([]byte{47, 1}, make([]byte, 22)...))
			b[19] = 15
			return b
		}(), Redirect, "web6"},
		{"authentication header", ext(0, 51, make([]byte, 24)), Drop, "web6"},
		{"IPv6 first fragment, wrong port", frag6(1, 6, l4(80, 20)), Drop, "web6"},
		{"IPv6 later fragment, whatever the port", frag6(8, 6, l4(80, 20)), Redirect, "web6"},
		{"first fragment, wrong port", v4("203.0.113.10", 6, 0x2000, l4(80, 24)), Drop, "web"},

		{"tunnel error", err4(3, "10.1.0.2", "10.1.0.2", packet.ProtoGRE, 0), Redirect, ""},
		{"tunnel error to a prefix", err4(11, "10.9.0.5", "10.9.0.5", packet.ProtoIPIP, 0), Redirect, ""},
		{"GUE error", err4(12, "10.1.0.2", "10.1.0.2", packet.ProtoUDP, GUEPort), Redirect, ""},
		{"error about other UDP", err4(3, "10.1.0.2", "10.1.0.2", packet.ProtoUDP, 53), Pass, ""},
		{"error about TCP", err4(3, "10.1.0.2", "10.1.0.2", packet.ProtoTCP, 0), Pass, ""},
		{"error quoting another", err4(3, "10.1.0.2", "10.9.0.5", packet.ProtoGRE, 0), Pass, ""},
		{"error to no source", err4(3, "10.1.0.3", "10.1.0.3", packet.ProtoGRE, 0), Pass, ""},
		{"echo to a source", err4(8, "10.1.0.2", "10.1.0.2", packet.ProtoGRE, 0), Pass, ""},
		{"error quoting a later fragment", func() []byte { b := err4(3, "10.1.0.2", "10.1.0.2", packet.ProtoGRE, 0); b[14+20+8+6] = 1; return b }(), Pass, ""},
		{"first fragment of a tunnel error", func() []byte { b := err4(3, "10.1.0.2", "10.1.0.2", packet.ProtoGRE, 0); b[14+6] = 0x20; return b }(), Pass, ""},
		{"tunnel error, IPv6", err6(2, "fd01::2", "fd01::2", packet.ProtoGRE, 0), Redirect, ""},
		{"GUE error, IPv6", err6(1, "fd01::2", "fd01::2", packet.ProtoUDP, GUEPort), Redirect, ""},
		{"error quoting another, IPv6", err6(2, "fd01::2", "fd01::3", packet.ProtoGRE, 0), Pass, ""},
		{"echo to a source, IPv6", err6(128, "fd01::2", "fd01::2", packet.ProtoGRE, 0), Pass, ""},
	}
}

func TestAdmit(t *testing.T) {
	rules := mustRules(t, world1(), sources())
	for _, x := range rulings(t) {
		verdict, reason, vip := Admit(rules, x.frame)
		name := ""
		if vip != 0 {
			name = rules.VIPs[vip-1]
		}
		if verdict != x.verdict || (reason == WrongPort) != (x.verdict == Drop) || name != x.vip {
			t.Errorf("%s: %s %s %q, want %s %q", x.name, verdict, reason, name, x.verdict, x.vip)
		}
	}
	// Rules without anything pass everything.
	for name, b := range cases(t) {
		if verdict, _, vip := Admit(&Rules{}, b); verdict != Pass || vip != 0 {
			t.Errorf("%s: %s without rules", name, verdict)
		}
	}
}

// kernel runs the XDP program beside its twin.
type kernel struct {
	t     testing.TB
	a     *Admission
	rules *Rules
	n     int
}

func newKernel(t testing.TB) *kernel {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root: XDP programs need it")
	}
	a, err := NewAdmission()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	if a.frags == nil {
		t.Log("the kernel knows no packets of several buffers: only the plain program is tested")
	}
	return &kernel{t: t, a: a}
}

// socket gives queue 0, from which test runs come, a socket.
func (k *kernel) socket() {
	k.t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := k.a.SetSocket(0, fd); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) update(r *Rules) {
	k.t.Helper()
	if err := k.a.Update(r); err != nil {
		k.t.Fatal(err)
	}
	k.rules = r
}

func (k *kernel) counts() Counts {
	k.t.Helper()
	c, err := k.a.Counts()
	if err != nil {
		k.t.Fatal(err)
	}
	return c
}

var actions = map[Verdict]uint32{Pass: 2, Redirect: 4, Drop: 1} // XDP_PASS, XDP_REDIRECT, XDP_DROP

// same sees to it that program and twin agree on a frame: on the action, and by
// the counters on reason and VIP.
func (k *kernel) same(b []byte) {
	k.t.Helper()
	k.sameOf(b, k.a.plain, k.a.frags)
}

func (k *kernel) sameOf(b []byte, progs ...*ebpf.Program) {
	k.t.Helper()
	if len(b) < 14 {
		return // which the kernel refuses to run
	}
	verdict, reason, vip := Admit(k.rules, b)
	for _, p := range progs {
		if p == nil {
			continue
		}
		before := k.counts()
		got, err := p.Run(&ebpf.RunOptions{Data: b})
		if err != nil {
			k.t.Fatalf("%v running %x", err, b)
		}
		after := k.counts()
		if got != actions[verdict] {
			k.t.Fatalf("%s %s here and action %d there of %x", verdict, reason, got, b)
		}
		size := uint64(len(b))
		add := func(c *Count) { c.Packets, c.Bytes = c.Packets+1, c.Bytes+size }
		switch verdict {
		case Pass:
			add(&before.Passed)
		case Redirect:
			add(&before.Redirected)
		case Drop:
			c := before.Dropped[reason]
			add(&c)
			before.Dropped[reason] = c
		}
		if vip != 0 && verdict != Pass {
			v := before.VIPs[k.rules.VIPs[vip-1]]
			v.Packets, v.Bytes = v.Packets+1, v.Bytes+size
			if verdict == Drop {
				v.Dropped++
			}
			before.VIPs[k.rules.VIPs[vip-1]] = v
		}
		if fmt.Sprint(before) != fmt.Sprint(after) {
			k.t.Fatalf("%s %s %d here; the counters there are\n%v, want\n%v of %x", verdict, reason, vip, after, before, b)
		}
		k.n++
	}
}

// The program in the kernel and its twin agree: on the packet cases, all their
// truncations, and thousands of frames well-formed, odd and broken.
func TestProgramEqualsTwin(t *testing.T) {
	k := newKernel(t)
	k.socket()
	if got, err := k.a.plain.Run(&ebpf.RunOptions{Data: cases(t)["syn"]}); err != nil || got != actions[Pass] {
		t.Errorf("before the first rules: action %d, %v", got, err)
	}
	for round, spec := range []state.Spec{world1(), {}, world1()} {
		tunnels := sources()
		if round == 1 {
			tunnels = nil
		}
		r, err := RulesOf(spec, tunnels, [][]uint16{{GUEPort}, nil, {1, 2, 6080}}[round]...)
		if err != nil {
			t.Fatal(err)
		}
		k.update(r)
		for _, b := range cases(t) {
			for n := len(b); n >= 14; n-- {
				// Nobody looks at what lies further behind.
				if n < 130 || n == len(b) {
					k.same(b[:n])
				}
			}
			for tags := 1; tags <= 3; tags++ {
				k.same(ether(tags, binary.BigEndian.Uint16(b[12:]), b[14:]))
			}
		}
	}
	// Every case, and every neighbour of it that differs in one byte of its headers.
	for _, x := range rulings(t) {
		k.same(x.frame)
		b := append([]byte(nil), x.frame...)
		for i := 12; i < min(len(b), 90); i++ {
			for _, y := range []byte{b[i] + 1, b[i] - 1, b[i] ^ 0x20} {
				old := b[i]
				b[i] = y
				k.sameOf(b, k.a.plain)
				b[i] = old
			}
		}
	}
	// Every case whose IP header says that it is shorter.
	for _, x := range rulings(t) {
		for n := range 70 {
			b := append([]byte(nil), x.frame...)
			if len(b) >= 34 && b[12] == 8 {
				b[16], b[17] = 0, byte(n)
			} else if len(b) >= 54 && b[12] == 0x86 {
				b[18], b[19] = 0, byte(n)
			} else {
				break
			}
			k.sameOf(b, k.a.plain)
		}
	}
	r := rand.New(rand.NewPCG(2, 3))
	seen := map[Verdict]int{}
	for range 3000 {
		b := frame(r)
		k.same(b)
		k.same(mutate(r, b))
		k.same(lie(r, b))
		v, _, _ := Admit(k.rules, b)
		seen[v]++
	}
	t.Logf("%d runs; well-formed: %v", k.n, seen)
	if seen[Pass] < 300 || seen[Redirect] < 300 || seen[Drop] < 150 {
		t.Errorf("the frames are too much alike: %v", seen)
	}
}

// The rule and the VIP matcher of the packet plane agree on what has a port.
func TestAdmitAgreesWithTheMatcher(t *testing.T) {
	spec := world1()
	spec.Pools = []state.PoolSpec{{Name: "p", TableSize: 251, Backends: []state.BackendSpec{{Name: "b", Address: netip.MustParseAddr("10.0.0.1"), Weight: 100}}}}
	for i := range spec.VIPs {
		spec.VIPs[i].Pool = "p"
	}
	snap, err := state.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	rules := mustRules(t, spec, nil)
	n := 0
	try := func(dst string, proto uint8, port uint16) {
		b := ether(0, 0x0800, ip4("198.51.100.7", "203.0.113.10", proto, 0, 0, l4(port, 20)))
		a := netip.MustParseAddr(dst)
		if a.Is4In6() {
			return // no IPv6 packet to such an address is ours
		}
		if a.Is4() {
			copy(b[30:], a.AsSlice())
		} else {
			b = ether(0, 0x86dd, ip6("2001:db8:c::7", dst, proto, l4(port, 20)))
		}
		if proto != packet.ProtoTCP && proto != packet.ProtoUDP {
			port = 0
		}
		got, _, vip := Admit(rules, b)
		service, want := snap.Match(packet.AddrOf(a), proto, port)
		ok := false
		switch want {
		case state.NotVIP:
			ok = got == Pass && vip == 0
		case state.Served:
			ok = got == Redirect && rules.VIPs[vip-1] == snap.Services[service].VIP
		case state.WrongPort:
			ok = got == Drop
		case state.Leave:
			ok = got == Pass && vip != 0
		}
		if !ok {
			t.Errorf("%s protocol %d port %d: %s (VIP %d) here, %d (service %d) there", dst, proto, port, got, vip, want, service)
		}
		n++
	}
	for _, dst := range append(append([]string{}, addresses4...), addresses6...) {
		for _, proto := range []uint8{6, 17, 47, 132} {
			for _, port := range somePorts {
				try(dst, proto, port)
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d tries", n)
	}
}

func FuzzAdmit(f *testing.F) {
	for _, b := range cases(f) {
		f.Add(b)
	}
	r := rand.New(rand.NewPCG(4, 5))
	for range 50 {
		f.Add(mutate(r, frame(r)))
	}
	rules := mustRules(f, world1(), sources())
	f.Fuzz(func(t *testing.T, b []byte) {
		verdict, reason, vip := Admit(rules, b)
		if int(vip) > len(rules.VIPs) || (verdict == Drop) != (reason == WrongPort) || verdict == Drop && vip == 0 {
			t.Errorf("%s %s %d", verdict, reason, vip)
		}
	})
}

func TestAdmitDoesNotAllocate(t *testing.T) {
	rules := mustRules(t, world1(), sources())
	r := rand.New(rand.NewPCG(6, 7))
	var frames [][]byte
	for range 500 {
		frames = append(frames, frame(r))
	}
	if n := testing.AllocsPerRun(10, func() {
		for _, b := range frames {
			Admit(rules, b)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Without a socket VIP traffic drops, as it does on a queue that has none.
func TestNoSocket(t *testing.T) {
	k := newKernel(t)
	k.update(mustRules(t, world1(), nil))
	for _, p := range []*ebpf.Program{k.a.plain, k.a.frags} {
		if p == nil {
			continue
		}
		if got, err := p.Run(&ebpf.RunOptions{Data: cases(t)["syn"]}); err != nil || got != 1 {
			t.Errorf("action %d, %v", got, err)
		}
	}
	c := k.counts()
	n := c.Dropped[NoSocket].Packets
	if n == 0 || c.VIPs["web"].Dropped != n || c.VIPs["web"].Packets != n || c.Redirected.Packets != 0 {
		t.Errorf("%+v", c)
	}
}

// Counters follow a VIP's name from rules to rules, and begin at 0 with it.
func TestCountersFollowNames(t *testing.T) {
	k := newKernel(t)
	k.socket()
	vip := func(name string, port uint16) state.VIPSpec {
		return state.VIPSpec{Name: name, Prefix: netip.MustParsePrefix("203.0.113.10/32"), Protocol: 6, Ports: ports(port, port)}
	}
	run := func(port uint16) {
		t.Helper()
		b := ether(0, 0x0800, ip4("198.51.100.7", "203.0.113.10", 6, 0, 0, l4(port, 20)))
		if got, err := k.a.plain.Run(&ebpf.RunOptions{Data: b}); err != nil || got != 4 {
			t.Fatalf("action %d, %v", got, err)
		}
	}
	k.update(mustRules(t, state.Spec{VIPs: []state.VIPSpec{vip("a", 1), vip("b", 2)}}, nil))
	run(1)
	run(2)
	run(2)
	k.update(mustRules(t, state.Spec{VIPs: []state.VIPSpec{vip("c", 1), vip("b", 2)}}, nil))
	run(1)
	run(2)
	if c := k.counts(); len(c.VIPs) != 2 || c.VIPs["c"].Packets != 1 || c.VIPs["b"].Packets != 3 {
		t.Errorf("%+v", c.VIPs)
	}
	k.update(mustRules(t, state.Spec{VIPs: []state.VIPSpec{vip("a", 1), vip("d", 3), vip("b", 2)}}, nil))
	run(2)
	if c := k.counts(); len(c.VIPs) != 3 || c.VIPs["a"].Packets != 0 || c.VIPs["d"].Packets != 0 || c.VIPs["b"].Packets != 4 {
		t.Errorf("%+v", c.VIPs)
	}
}

// Rules change between two packets: no packet sees neither or half of them.
func TestFlipUnderTraffic(t *testing.T) {
	k := newKernel(t)
	k.socket()
	many := func(extra string) *Rules {
		s := state.Spec{}
		for i := range 300 {
			a := netip.AddrFrom4([4]byte{203, 0, 113, 0})
			if i >= 250 {
				a = netip.AddrFrom4([4]byte{198, 18, byte(i), 1})
			} else {
				b := a.As4()
				b[3] = byte(i)
				a = netip.AddrFrom4(b)
			}
			s.VIPs = append(s.VIPs, state.VIPSpec{Name: fmt.Sprint(extra, i), Prefix: netip.PrefixFrom(a, 32), Protocol: 6, Ports: ports(443, 443)})
		}
		s.VIPs = append(s.VIPs, state.VIPSpec{Name: "net", Prefix: netip.MustParsePrefix("10.64.0.0/16")})
		return mustRules(t, s, sources())
	}
	one, two := many("x"), many("y")
	k.update(one)
	done, stop := make(chan string), make(chan struct{})
	frames := [][]byte{
		ether(0, 0x0800, ip4("198.51.100.7", "203.0.113.10", 6, 0, 0, l4(443, 20))),
		ether(0, 0x0800, ip4("198.51.100.7", "10.64.9.9", 17, 0, 0, l4(9, 20))),
	}
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				done <- ""
				return
			default:
			}
			if got, err := k.a.plain.Run(&ebpf.RunOptions{Data: frames[n&1], Repeat: 500}); err != nil || got != 4 {
				<-stop
				done <- fmt.Sprintf("run %d: action %d, %v", n, got, err)
				return
			}
			n++
		}
	}()
	for i := range 60 {
		r := one
		if i&1 == 0 {
			r = two
		}
		k.update(r)
	}
	close(stop)
	if s := <-done; s != "" {
		t.Error(s)
	}
	if c := k.counts(); c.Passed.Packets != 0 || c.Dropped[WrongPort].Packets != 0 || c.Redirected.Packets < 1000 {
		t.Errorf("%+v", c)
	}
}

// Rules that do not fit leave the old ones in force.
func TestTooManyRules(t *testing.T) {
	k := newKernel(t)
	k.socket()
	good := mustRules(t, world1(), sources())
	k.update(good)
	s := state.Spec{}
	for i := range 20000 {
		a := netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)})
		s.VIPs = append(s.VIPs, state.VIPSpec{Name: "many", Prefix: netip.PrefixFrom(a, 32), Protocol: 6, Ports: ports(443, 443)})
	}
	if err := k.a.Update(mustRules(t, s, nil)); err == nil || !strings.Contains(err.Error(), "16384 is the most") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	for _, b := range cases(t) {
		k.same(b)
	}
	k.update(good)
	k.update(good)
	for _, b := range cases(t) {
		k.same(b)
	}
}

func TestRangesBeyondTheFew(t *testing.T) {
	k := newKernel(t)
	k.socket()
	var p []state.PortRange
	for i := range uint16(40) {
		p = append(p, state.PortRange{Lo: 1000 * i, Hi: 1000*i + 10*i + 1})
	}
	s := state.Spec{VIPs: []state.VIPSpec{
		{Name: "a", Prefix: netip.MustParsePrefix("203.0.113.10/32"), Protocol: 17, Ports: p},
		{Name: "b", Prefix: netip.MustParsePrefix("203.0.113.10/32")},
	}}
	k.update(mustRules(t, s, nil))
	for i := range uint16(40) {
		for _, port := range []uint16{1000 * i, 1000*i + 10*i + 1, 1000*i + 10*i + 2, 1000*i - 1} {
			b := ether(0, 0x0800, ip4("198.51.100.7", "203.0.113.10", 17, 0, 0, l4(port, 8)))
			k.same(b)
			want := uint32(2)
			for _, r := range p {
				if port >= r.Lo && port <= r.Hi {
					want = 1
				}
			}
			if _, _, vip := Admit(k.rules, b); vip != want {
				t.Errorf("port %d: VIP %d, want %d", port, vip, want)
			}
		}
	}
	// So many ranges, each so wide, do not fit.
	p = nil
	for i := range uint16(20) {
		p = append(p, state.PortRange{Lo: 3000 * i, Hi: 3000*i + 2999})
	}
	s.VIPs[0].Ports = p
	if _, err := RulesOf(s, nil); err != nil {
		t.Errorf("%v", err)
	}
	p = append(p, p...)
	s.VIPs[0].Ports = p
	if _, err := RulesOf(s, nil); err == nil || !strings.Contains(err.Error(), "203.0.113.10/32") {
		t.Errorf("%v", err)
	}
}

func TestRefusedRules(t *testing.T) {
	if _, err := RulesOf(state.Spec{}, nil, 1, 2, 3, 4, 4, 5); err == nil {
		t.Error("five ports of tunnels")
	}
	for _, v := range []state.VIPSpec{
		{Name: "none"},
		{Name: "mapped", Prefix: netip.MustParsePrefix("::ffff:203.0.113.10/128")},
	} {
		if _, err := RulesOf(state.Spec{VIPs: []state.VIPSpec{v}}, nil); err == nil || !strings.Contains(err.Error(), v.Name) {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	rules := mustRules(b, world1(), sources())
	for _, name := range []string{"syn", "syn6", "wrong-port", "frag2"} {
		frame := cases(b)[name]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Admit(rules, frame)
			}
		})
	}
}

// What the program costs in the kernel, its call included.
func BenchmarkProgram(b *testing.B) {
	k := newKernel(b)
	k.socket()
	k.update(mustRules(b, world1(), sources()))
	for _, name := range []string{"syn", "syn6", "wrong-port", "other"} {
		frame := cases(b)["syn"]
		if name == "other" {
			frame = append([]byte(nil), frame...)
			frame[30] = 9
		} else {
			frame = cases(b)[name]
		}
		b.Run(name, func(b *testing.B) {
			_, each, err := k.a.plain.Benchmark(frame, b.N, b.ResetTimer)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(each.Nanoseconds()), "ns/run")
		})
	}
}
