package cases_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var be = binary.BigEndian

// result answers what has come of all that a bench was given, and checks that
// nothing is missing.
func (b *bench) result() (r result) {
	b.t.Helper()
	st := b.e.Stats()
	collect(b.t, &st, &r)
	b.port.addTo(&r)
	if r.received+r.made != r.sent+r.dropped()+r.kernel+r.held {
		b.t.Errorf("received %d + made %d is not sent %d + dropped %v + kernel %d + held %d", r.received, r.made, r.sent, r.drops, r.kernel, r.held)
	}
	return r
}

// give lets frames in past the admission rule, as a port without one would, and
// answers what has come of all so far.
func (b *bench) give(queue int, frames ...[]byte) result {
	b.t.Helper()
	for i, f := range frames {
		b.port.port.Inject(queue, f)
		if i%64 == 63 {
			b.settle()
		}
	}
	b.settle()
	return b.result()
}

// out decodes a frame that goes to a backend in GRE over either family.
func out(t testing.TB, b []byte) (backend netip.Addr, inner []byte, outer int) {
	t.Helper()
	d := nodetest.Decode(b)
	g, ok := d.Layer(layers.LayerTypeGRE).(*layers.GRE)
	if !ok {
		t.Fatalf("no GRE:\n%s", d.Dump())
	}
	backend, _ = netip.AddrFromSlice(d.NetworkLayer().NetworkFlow().Dst().Raw())
	ip := d.NetworkLayer()
	return backend, g.LayerPayload(), len(ip.LayerContents()) + len(ip.LayerPayload())
}

// to answers b with another destination; IPv4 checksums are made right.
func to(b []byte, dst string) []byte {
	b = bytes.Clone(b)
	a := netip.MustParseAddr(dst)
	if a.Is6() {
		copy(b[14+24:], a.AsSlice())
		return b
	}
	copy(b[14+16:], a.AsSlice())
	return fixed(b)
}

// fixed makes the IPv4 header checksum right.
func fixed(b []byte) []byte {
	n := int(b[14]&15) * 4
	b[24], b[25] = 0, 0
	be.PutUint16(b[24:], checksum(b[14:14+n]))
	return b
}

// Behind one encapsulation, MSS and MTU follow the family of each packet's own
// backend.
func TestMixedFamilies(t *testing.T) {
	file := strings.Replace(plain, `backend "web-2" { address = "10.0.1.2" }`, `backend "web-2" { address = "2001:db8:1::2" }`, 1)
	file = strings.Replace(file, `node "mtu-check" "mtu" {}`, "node \"mtu-check\" \"mtu\" {\n icmp_rate = 1000000\n icmp_burst = 1000000\n}", 1)
	seen := map[string]int{}
	for _, client := range []netip.Addr{nodetest.Client4, nodetest.Client6} {
		vip := nodetest.VIP4
		if client.Is6() {
			vip = nodetest.VIP6
		}
		for port := uint16(2000); port < 2024; port++ {
			b := newBench(t, file, 1, false)
			r := b.give(0, nodetest.SYN(t, client, vip, port, 443, 1460))
			if len(r.out) != 1 {
				t.Fatalf("%d frames, drops %v", len(r.out), r.drops)
			}
			backend, inner, outer := out(t, r.out[0])
			fits, m := 1500-24, mss(tcp(t, inner))
			if backend.Is6() {
				fits = 1500 - 44
			}
			seen[fmt.Sprint(client.Is6(), backend.Is6())]++
			head := 40
			if client.Is6() {
				head = 60
			}
			if m != fits-head || outer != len(inner)+1500-fits {
				t.Errorf("from %s over %s: MSS %d, %d bytes around %d", client, backend, m, outer, len(inner))
			}
			// The largest segment of the flow that fits, and one byte more.
			data := func(n int) []byte {
				return nodetest.TCP(t, client, vip, port, 443, nil, make([]byte, n-head)...)
			}
			r = b.give(0, data(fits), data(fits+1))
			if len(r.out) != 2 {
				t.Fatalf("%d frames, drops %v", len(r.out), r.drops)
			}
			if at, _, outer := out(t, r.out[0]); at != backend || outer != 1500 {
				t.Errorf("%d bytes go to %s in %d", fits, at, outer)
			}
			d := nodetest.Decode(r.out[1])
			told := 0
			if icmp, ok := d.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok && icmp.TypeCode == layers.CreateICMPv4TypeCode(3, 4) {
				told = int(icmp.Seq)
			} else if icmp, ok := d.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok && icmp.TypeCode == layers.CreateICMPv6TypeCode(2, 0) {
				told = int(be.Uint32(icmp.Payload))
			}
			if told != fits {
				t.Errorf("from %s over %s: told an MTU of %d, want %d\n%s", client, backend, told, fits, d)
			}
		}
	}
	for _, pair := range []string{"false false", "false true", "true false", "true true"} {
		if seen[pair] < 3 {
			t.Errorf("families %v", seen)
		}
	}
}

// What is for no VIP never leaves, whatever it is and whatever came before; nor does
// what is for a VIP and not served.
func TestStrangersNeverLeave(t *testing.T) {
	c := nodetest.Cases(t)
	b := newBench(t, plain, 1, false)
	known := b.give(0, c["syn"], c["frag1"], c["v6-frag1"])
	sent := known.sent
	if sent != 4 {
		t.Fatalf("%d frames left for the VIPs, drops %v", sent, known.drops)
	}
	var strangers [][]byte
	for name, f := range c {
		switch {
		case f[12] == 0x81 || name == "totlen-lies":
		case f[14]>>4 == 6:
			strangers = append(strangers, to(f, "2001:db8::11"), to(f, "2001:db8:1::1"))
		default:
			// A backend's address, our own, another client's, and a VIP's neighbour.
			strangers = append(strangers, to(f, "10.0.1.1"), to(f, "192.0.2.1"), to(f, "198.51.100.8"), to(f, "203.0.113.11"))
		}
	}
	for _, other := range []func(b []byte){func(b []byte) { b[23] = 132 }, func(b []byte) { b[23] = 47 }, func(b []byte) { b[23] = 17 }} {
		f := bytes.Clone(c["data"])
		other(f)
		strangers = append(strangers, fixed(f))
	}
	strangers = append(strangers, c["wrong-port"])
	r := b.give(0, strangers...)
	if r.sent != sent || r.held != 0 {
		t.Errorf("%d of %d left, %d are held: %v", r.sent-sent, len(strangers), r.held, r.drops)
	}
	if r.drops["vip-classify.wrong_port"] == 0 || r.drops["vip-classify.no_punt"] == 0 {
		t.Errorf("drops %v", r.drops)
	}
	// With the rule in front they are not even received: all go to the kernel.
	for _, f := range strangers {
		r := overMemory(t, plain, 1, []shot{{0, 0, f}})
		if r.sent != 0 || r.kernel+r.dropped() != 1 {
			t.Errorf("%x: sent %d, kernel %d, drops %v", f, r.sent, r.kernel, r.drops)
		}
	}
}

// Services of one address and overlapping prefixes each have a pool of their own.
func TestServicesHaveTheirOwnPools(t *testing.T) {
	var file strings.Builder
	file.WriteString(plain[strings.Index(plain, "graph "):])
	for i, v := range []string{
		`address = "203.0.113.10", protocol = "tcp", ports = [80]`,
		`address = "203.0.113.10", protocol = "tcp", ports = [443, 8443]`,
		`address = "203.0.113.10", protocol = "tcp", ports = ["8000-8099"]`,
		`address = "203.0.113.10", protocol = "udp", ports = [53, 443]`,
		`address = "203.0.113.10"`, // any protocol, every port
		`address = "198.18.0.0/24", protocol = "tcp"`,
		`address = "198.18.0.7", protocol = "tcp", ports = [443]`,
		`address = "2001:db8:5::/64", protocol = "udp", ports = ["1000-1999"]`,
		`address = "2001:db8:5::9", ports = [0, 9]`,
	} {
		fmt.Fprintf(&file, "pool \"p%d\" {\n backend \"b\" { address = \"10.0.%d.1\" }\n}\nvip \"v%d\" {\n %s\n pool = pool.p%d\n}\n", i, i, i, strings.ReplaceAll(v, ", p", "\n p"), i)
	}
	b := newBench(t, file.String(), 1, false)
	proto := func(dst string, n byte) []byte {
		a := netip.MustParseAddr(dst)
		src := nodetest.Client4
		if a.Is6() {
			src = nodetest.Client6
		}
		return nodetest.Frame(t, nodetest.Ether(a.Is6()), nodetest.IP(src, a, layers.IPProtocol(n)))
	}
	tcpTo := func(dst string, port uint16) []byte {
		return nodetest.SYN(t, nodetest.Client4, netip.MustParseAddr(dst), 4000, port, 1000)
	}
	udpTo := func(dst string, port uint16) []byte {
		a := netip.MustParseAddr(dst)
		src := nodetest.Client4
		if a.Is6() {
			src = nodetest.Client6
		}
		return nodetest.UDP(t, src, a, 4000, port, 1, 2, 3)
	}
	for _, c := range []struct {
		frame []byte
		pool  int // −1: none
	}{
		{tcpTo("203.0.113.10", 80), 0},
		{tcpTo("203.0.113.10", 443), 1},
		{tcpTo("203.0.113.10", 8443), 1},
		{tcpTo("203.0.113.10", 8000), 2},
		{tcpTo("203.0.113.10", 8099), 2},
		{tcpTo("203.0.113.10", 8100), 4},
		{udpTo("203.0.113.10", 53), 3},
		{udpTo("203.0.113.10", 443), 3},
		{udpTo("203.0.113.10", 80), 4},
		{proto("203.0.113.10", 132), 4},
		{tcpTo("198.18.0.7", 443), 6},
		{tcpTo("198.18.0.7", 80), -1}, // the longer prefix decides
		{tcpTo("198.18.0.8", 443), 5},
		{udpTo("198.18.0.8", 443), -1},
		{udpTo("2001:db8:5::8", 1000), 7},
		{udpTo("2001:db8:5::8", 1999), 7},
		{udpTo("2001:db8:5::8", 2000), -1},
		{udpTo("2001:db8:5::9", 9), 8},
		{udpTo("2001:db8:5::9", 1000), -1},
		{proto("2001:db8:5::9", 132), 8}, // no port is port 0
	} {
		// Twice: by the table, and by the entry that this made.
		for range 2 {
			before := b.result()
			r := b.give(0, c.frame)
			d := nodetest.Decode(c.frame)
			switch {
			case c.pool < 0:
				if len(r.out) != 0 || r.drops["vip-classify.wrong_port"] != before.drops["vip-classify.wrong_port"]+1 {
					t.Errorf("%v left, or drops %v", d, r.drops)
				}
			case len(r.out) != 1:
				t.Errorf("%v: %d frames left, drops %v", d, len(r.out), r.drops)
			default:
				if backend, _, _ := out(t, r.out[0]); backend != netip.AddrFrom4([4]byte{10, 0, byte(c.pool), 1}) {
					t.Errorf("%v goes to %s, want pool p%d", d, backend, c.pool)
				}
			}
		}
	}
}

// Checksums of TCP and UDP are the hosts' matter: wrong ones pass and stay exactly as
// wrong as they were.
func TestChecksumsAreLeftAlone(t *testing.T) {
	c := nodetest.Cases(t)
	bad := func(b []byte, at int, x ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], x)
		return b
	}
	udp := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 4000, 4500, 1, 2, 3)
	udp6 := nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 4000, 4500, 1, 2, 3)
	for name, f := range map[string][]byte{
		"TCP": bad(c["data"], 50, 0x12, 0x34), "no TCP checksum": bad(c["data"], 50, 0, 0), "UDP": bad(udp, 40, 0x12, 0x34),
		"no UDP checksum": bad(udp, 40, 0, 0), "UDP over IPv6": bad(udp6, 60, 0x12, 0x34), "no UDP checksum over IPv6": bad(udp6, 60, 0, 0),
	} {
		r := overMemory(t, plain, 1, []shot{{0, 0, f}})
		if len(r.out) != 1 {
			t.Errorf("%s: %d frames left, drops %v", name, len(r.out), r.drops)
		} else if x := gre(t, r.out[0]); !bytes.Equal(x.inner, f[14:14+ipLength(f[14:])]) {
			t.Errorf("%s: changed", name)
		}
	}
	for name, at := range map[string]int{"syn": 50, "syn6": 70} {
		f := bad(c[name], at, 0x12, 0x34)
		r := overMemory(t, plain, 1, []shot{{0, 0, f}})
		if len(r.out) != 1 {
			t.Fatalf("%s: %d frames left, drops %v", name, len(r.out), r.drops)
		}
		x := gre(t, r.out[0])
		// The sum over the segment, so that the pseudo-header's share is the same.
		segment := at - 16 - 14
		if was, is := checksum(f[14:][segment:]), checksum(x.inner[segment:]); was != is {
			t.Errorf("%s: the checksum is off otherwise than it was: %#x, %#x", name, is, was)
		}
	}
}

// Every length that can come, with and without DF, has a verdict: whole in a tunnel,
// in pieces in tunnels, or an answer that tells what fits. No outer packet is longer
// than the network takes, and none is a fragment.
func TestEveryLengthHasAVerdict(t *testing.T) {
	file := strings.Replace(plain, `node "mtu-check" "mtu" {}`, "node \"mtu-check\" \"mtu\" {\n icmp_rate = 1000000\n icmp_burst = 1000000\n}", 1)
	lengths := []int{28, 1000, 8999}
	for n := 1440; n <= 1520; n++ {
		lengths = append(lengths, n)
	}
	for n := 2900; n <= 3100; n += 7 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for kind, v6 := range map[string]bool{"DF": false, "may be fragmented": false, "IPv6": true} {
			src, dst, head := nodetest.Client4, nodetest.VIP4, 28
			if v6 {
				src, dst, head = nodetest.Client6, nodetest.VIP6, 48
			}
			f := nodetest.UDP(t, src, dst, 4000, 4500, make([]byte, max(0, n-head))...)
			if kind == "may be fragmented" {
				f[20] = 0
				fixed(f)
			}
			b := newBench(t, file, 1, false)
			r := b.give(0, f)
			pieces, answers, data := 0, 0, 0
			for _, o := range r.out {
				if d := nodetest.Decode(o); d.Layer(layers.LayerTypeGRE) == nil {
					answers++
					continue
				}
				x := gre(t, o) // no fragment, DF, 1500 bytes at most
				pieces++
				data += len(x.inner) - int(x.inner[0]&15)*4
			}
			fits := len(f)-14 <= 1476
			switch {
			case r.dropped() != 0 || r.held != 0 || r.kernel != 0:
				t.Errorf("%d bytes, %s: drops %v", n, kind, r.drops)
			case fits && (pieces != 1 || answers != 0):
				t.Errorf("%d bytes, %s: %d tunnelled, %d answered", n, kind, pieces, answers)
			case !fits && kind == "may be fragmented" && (pieces < 2 || answers != 0 || data != n-20):
				t.Errorf("%d bytes, %s: %d tunnelled with %d bytes of data, %d answered", n, kind, pieces, data, answers)
			case !fits && kind != "may be fragmented" && (pieces != 0 || answers != 1):
				t.Errorf("%d bytes, %s: %d tunnelled, %d answered", n, kind, pieces, answers)
			}
		}
	}
}

// An error about a flow goes where the flow is, whichever core knows it, and although
// the pool's table says otherwise by now. It changes nothing.
func TestErrorsFindTheFlowsOfOtherCores(t *testing.T) {
	c := nodetest.Cases(t)
	for name, file := range map[string]string{"each queue its core": plain, "handed off": steering(4)} {
		for _, pair := range [][2]string{{"syn", "icmp-fragneeded-8"}, {"syn6", "icmp6-ptb"}} {
			queues := 4
			if name == "handed off" {
				queues = 1
			}
			for home := range queues {
				b := newBench(t, file, queues, false)
				r := b.give(home, c[pair[0]])
				if len(r.out) != 1 {
					t.Fatalf("%d frames, drops %v", len(r.out), r.drops)
				}
				flow, _, _ := out(t, r.out[0])
				// Its backend takes no new flows: the table now leads it elsewhere.
				b.store.SetStatus(b.store.Backend(flow), state.Draining)
				b.store.Flush()
				for q := range queues {
					r = b.give(q, c[pair[1]])
					if len(r.out) != 1 {
						t.Fatalf("%s: %d frames, drops %v", name, len(r.out), r.drops)
					}
					if got, _, _ := out(t, r.out[0]); got != flow {
						t.Errorf("%s: the flow came by queue %d and is at %s, an error by queue %d went to %s", name, home, flow, q, got)
					}
					if r.entries != 1 {
						t.Errorf("%s: %d entries", name, r.entries)
					}
				}
				// Who never saw the flow goes by the table.
				b = newBench(t, file, queues, false)
				b.store.SetStatus(b.store.Backend(flow), state.Draining)
				b.store.Flush()
				r = b.give(home, c[pair[1]])
				if got, _, _ := out(t, r.out[0]); got == flow || r.entries != 0 {
					t.Errorf("%s: an error about an unknown flow went to %s, %d entries", name, got, r.entries)
				}
			}
		}
	}
}

// examples/steering.hcl: one queue feeds three workers, and all leaves by that queue,
// each flow in its order.
func TestSteeringExample(t *testing.T) {
	text, err := os.ReadFile("../examples/steering.hcl")
	if err != nil {
		t.Fatal(err)
	}
	vip := netip.MustParseAddr("203.0.113.80")
	const flows, each = 120, 5
	total := 0
	for worker := 1; worker < 4; worker++ {
		b := newBench(t, string(text), 1, false)
		for k := range each {
			for i := range uint16(flows) {
				b.port.port.Inject(0, nodetest.TCP(t, nodetest.Client4, vip, 1000+i, 443, func(h *layers.TCP) { h.SYN, h.ACK, h.Seq = k == 0, k != 0, uint32(k) }))
			}
		}
		// The other workers stand still: what comes out was this one's work.
		for range 200 {
			b.e.Step(0)
			b.e.Step(worker)
		}
		mine := len(b.port.port.Sent(0))
		if mine < flows*each/5 || mine > flows*each/2 {
			t.Errorf("worker %d had %d of %d packets", worker, mine, flows*each)
		}
		total += mine
	}
	if total != flows*each {
		t.Errorf("the three workers had %d packets together, want %d", total, flows*each)
	}
	// The cores take turns as they come, and packets arrive meanwhile: those of a flow one
	// after the other, or with others between.
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		b := newBench(t, string(text), 1, false)
		next := map[layers.TCPPort]uint32{}
		for n := range flows * each {
			i, k := n%flows, n/flows
			if round%2 == 1 {
				i, k = n/each, n%each
			}
			b.port.port.Inject(0, nodetest.TCP(t, nodetest.Client4, vip, 1000+uint16(i), 443, func(h *layers.TCP) { h.SYN, h.ACK, h.Seq = k == 0, k != 0, uint32(k) }))
			if rng.IntN(3) == 0 {
				b.e.Step(rng.IntN(b.e.Cores()))
			}
		}
		b.settle()
		r := b.result()
		if r.sent != flows*each || r.entries != flows {
			t.Errorf("sent %d, %d entries, drops %v", r.sent, r.entries, r.drops)
		}
		for _, f := range r.out {
			h := tcp(t, gre(t, f).inner)
			if h.Seq != next[h.SrcPort] {
				t.Errorf("port %d: packet %d comes where %d should", h.SrcPort, h.Seq, next[h.SrcPort])
			}
			next[h.SrcPort]++
		}
	}
}

// Lists of allowed and denied sources change under traffic: who is on no list, or on
// all, is never judged otherwise.
func TestListsChangeUnderTraffic(t *testing.T) {
	file := strings.Replace(plain, "vip-classify, frag-pin", "vip-classify, source-filter, frag-pin", 1)
	file = strings.Replace(file, `  protocol    = "tcp"`, "  protocol    = \"tcp\"\n  deny        = [\"100.64.0.1\"]", 1)
	f := load(t, file)
	var many []netip.Prefix
	for i := range uint32(100_000) {
		many = append(many, netip.PrefixFrom(packet.Addr4(100<<24|64<<16+i).Netip(), 32))
	}
	lists := func(more ...string) state.Spec {
		spec := f.Spec
		spec.VIPs = append([]state.VIPSpec{}, spec.VIPs...)
		spec.VIPs[0].Deny = append([]netip.Prefix{}, many...)
		for _, m := range more {
			spec.VIPs[0].Deny = append(spec.VIPs[0].Deny, netip.MustParsePrefix(m))
		}
		return spec
	}
	specs := []state.Spec{lists(), lists("192.0.2.128/25"), lists("192.0.2.0/24")}
	b := newBench(t, file, 1, true)
	if err := b.store.Apply(specs[0]); err != nil {
		t.Fatal(err)
	}
	free, sometimes, never := "198.51.100.7", "192.0.2.200", "100.64.0.1"
	from := func(src string) []byte {
		return nodetest.TCP(t, netip.MustParseAddr(src), nodetest.VIP4, 4000, 443, nil, 1)
	}
	frames := [][]byte{from(free), from(sometimes), from(never)}
	done := make(chan error, 1)
	go func() {
		for i := range 12 {
			if err := b.store.Apply(specs[i%3]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	n := uint64(0)
	for changing := true; changing; {
		for range 20 {
			b.port.port.Inject(0, frames...)
			n += 3
		}
		time.Sleep(time.Millisecond)
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			changing = false
		default:
		}
	}
	wait(t, b.e.Stats, n)
	r := b.result()
	got := map[string]uint64{}
	for _, f := range r.out {
		_, inner, _ := out(t, f)
		got[netip.AddrFrom4([4]byte(inner[12:16])).String()]++
	}
	each := n / 3
	if got[free] != each || got[never] != 0 || got[sometimes] == 0 || got[sometimes] == each || r.drops["source-filter.denied"] != n-got[free]-got[sometimes] || r.dropped() != r.drops["source-filter.denied"] {
		t.Errorf("of %d each: %v left; drops %v", each, got, r.drops)
	}
}
