package icmpvip

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var (
	be       = binary.BigEndian
	router4  = netip.MustParseAddr("192.0.2.99")
	router6  = netip.MustParseAddr("2001:db8:f::99")
	backend4 = netip.MustParseAddr("10.0.1.1")
	backend6 = netip.MustParseAddr("2001:db8:1::1")
	stranger = netip.MustParseAddr("10.9.9.9")
)

func world(t testing.TB) *state.Snapshot {
	t.Helper()
	vip := func(name, a string, proto uint8, ports ...state.PortRange) state.VIPSpec {
		return state.VIPSpec{Name: name, Prefix: netip.MustParsePrefix(a), Protocol: proto, Ports: ports, Pool: "web"}
	}
	one := func(n uint16) state.PortRange { return state.PortRange{Lo: n, Hi: n} }
	s, err := state.Build(state.Spec{
		Pools: []state.PoolSpec{{Name: "web", TableSize: 251, Backends: []state.BackendSpec{
			{Name: "4", Address: backend4, Weight: 100}, {Name: "6", Address: backend6, Weight: 100},
		}}},
		VIPs: []state.VIPSpec{
			vip("web", "203.0.113.10/32", 6, one(443)), vip("ike", "203.0.113.10/32", 17, one(4500)), vip("web6", "2001:db8::10/128", 6, one(443)),
			vip("all", "203.0.113.11/32", 0),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB, echo string, opts ...nodetest.Option) *nodetest.Worker {
	return nodetest.New(t, "icmp-vip", func(c *Config) { c.Echo = echo }, append(opts, nodetest.WithState(world(t)))...).Workers[0]
}

func load(w *nodetest.Worker, frame []byte) packet.Lanes {
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	clear(w.Counters)
	return in
}

func send(w *nodetest.Worker, frame []byte) string { return w.Only(w.Process(load(w, frame)), 0) }

// message makes a frame with an ICMP or ICMPv6 message, its checksum made right.
func message(t testing.TB, src, dst netip.Addr, typ, code byte, rest uint32, body ...byte) []byte {
	proto := layers.IPProtocolICMPv4
	if !src.Is4() {
		proto = layers.IPProtocolICMPv6
	}
	m := be.AppendUint32([]byte{typ, code, 0, 0}, rest)
	m = append(m, body...)
	sum := packet.Sum(m)
	if !src.Is4() {
		sum += packet.PseudoSum(packet.AddrOf(src), packet.AddrOf(dst), 58, uint32(len(m)))
	}
	be.PutUint16(m[2:], ^packet.Fold(sum))
	return nodetest.Frame(t, nodetest.Ether(!src.Is4()), nodetest.IP(src, dst, proto), gopacket.Payload(m))
}

// quote is n bytes of a TCP segment of 1400 bytes in an IP packet, without Ethernet header.
func quote(t testing.TB, src, dst netip.Addr, sport, dport uint16, n int) []byte {
	return nodetest.TCP(t, src, dst, sport, dport, nil, make([]byte, 1400)...)[14:][:n]
}

func check(t *testing.T, name string, v *packet.Vector, src, dst netip.Addr, sport, dport uint16, proto uint8, vip string, snap *state.Snapshot) {
	t.Helper()
	if v.Src[0] != packet.AddrOf(src) || v.Dst[0] != packet.AddrOf(dst) || v.SPort[0] != sport || v.DPort[0] != dport || v.Proto[0] != proto {
		t.Errorf("%s: flow %v:%d to %v:%d protocol %d", name, v.Src[0], v.SPort[0], v.Dst[0], v.DPort[0], v.Proto[0])
	}
	if h := packet.FlowHash(packet.AddrOf(src), packet.AddrOf(dst), sport, dport, proto); v.Hash[0] != h {
		t.Errorf("%s: not the hash of the flow itself", name)
	}
	if s := v.VIP[0]; s == 0 || snap.Services[s].VIP != vip {
		t.Errorf("%s: service %d, want %s", name, s, vip)
	}
	if v.Flags[0]&(packet.Related|packet.ICMP) != packet.Related|packet.ICMP || v.TCP[0] != 0 {
		t.Errorf("%s: flags %b, TCP flags %b", name, v.Flags[0], v.TCP[0])
	}
}

func TestErrors(t *testing.T) {
	c := nodetest.Cases(t)
	q := quote(t, nodetest.VIP4, nodetest.Client4, 443, 40000, 28)
	q6 := quote(t, nodetest.VIP6, nodetest.Client6, 443, 40000, 48)
	options := append(append([]byte{0x47}, q[1:20]...), 7, 7, 4, 0, 0, 0, 0, 1)
	options = append(options, q[20:28]...)
	first := bytes.Clone(q)
	first[6] = 0x20
	ext := bytes.Clone(q6[:40])
	ext[6] = 0
	ext = append(ext, 60, 0, 1, 4, 0, 0, 0, 0, 44, 1, 1, 12, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 6, 0, 0, 1, 0, 0, 0, 9)
	ext = append(ext, q6[40:]...)
	eight := bytes.Clone(q6[:40])
	eight[6] = 60
	for range 7 {
		eight = append(eight, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	eight = append(append(eight, 6, 0, 1, 4, 0, 0, 0, 0), q6[40:]...)
	udp := nodetest.UDP(t, nodetest.VIP4, nodetest.Client4, 4500, 5001, make([]byte, 50)...)[14:42]
	sctp := bytes.Clone(quote(t, netip.MustParseAddr("203.0.113.11"), nodetest.Client4, 443, 40000, 28))
	sctp[9] = 132
	w := rig(t, "answer")
	for _, x := range []struct {
		name         string
		frame        []byte
		vip          string
		dst          netip.Addr
		sport, dport uint16
		proto        uint8
	}{
		{"icmp-fragneeded-8", c["icmp-fragneeded-8"], "web", nodetest.VIP4, 40000, 443, 6},
		{"icmp6-ptb", c["icmp6-ptb"], "web6", nodetest.VIP6, 40000, 443, 6},
		{"time exceeded", message(t, router4, nodetest.VIP4, 11, 0, 0, q...), "web", nodetest.VIP4, 40000, 443, 6},
		{"parameter problem", message(t, router4, nodetest.VIP4, 12, 0, 0, q...), "web", nodetest.VIP4, 40000, 443, 6},
		{"unreachable by the client itself", message(t, nodetest.Client4, nodetest.VIP4, 3, 3, 0, q...), "web", nodetest.VIP4, 40000, 443, 6},
		{"quoted options", message(t, router4, nodetest.VIP4, 3, 4, 1400, options...), "web", nodetest.VIP4, 40000, 443, 6},
		{"quoted first fragment", message(t, router4, nodetest.VIP4, 11, 0, 0, first...), "web", nodetest.VIP4, 40000, 443, 6},
		{"all of it quoted", message(t, router4, nodetest.VIP4, 3, 1, 0, quote(t, nodetest.VIP4, nodetest.Client4, 443, 40000, 1001)...), "web", nodetest.VIP4, 40000, 443, 6},
		{"UDP", message(t, router4, nodetest.VIP4, 3, 3, 0, udp...), "ike", nodetest.VIP4, 5001, 4500, 17},
		{"protocol without ports", message(t, router4, netip.MustParseAddr("203.0.113.11"), 3, 2, 0, sctp...), "all", netip.MustParseAddr("203.0.113.11"), 0, 0, 132},
		{"IPv6 unreachable", message(t, router6, nodetest.VIP6, 1, 0, 0, q6...), "web6", nodetest.VIP6, 40000, 443, 6},
		{"IPv6 time exceeded", message(t, router6, nodetest.VIP6, 3, 0, 0, q6...), "web6", nodetest.VIP6, 40000, 443, 6},
		{"IPv6 parameter problem", message(t, router6, nodetest.VIP6, 4, 1, 6, q6...), "web6", nodetest.VIP6, 40000, 443, 6},
		{"IPv6 with quoted extension headers", message(t, router6, nodetest.VIP6, 2, 0, 1400, ext...), "web6", nodetest.VIP6, 40000, 443, 6},
		{"IPv6 with eight of them", message(t, router6, nodetest.VIP6, 2, 0, 1400, eight...), "web6", nodetest.VIP6, 40000, 443, 6},
	} {
		if out := send(w, x.frame); out != "next" {
			t.Errorf("%s: leaves by %q", x.name, out)
			continue
		}
		client := nodetest.Client4
		if x.dst.Is6() {
			client = nodetest.Client6
		}
		check(t, x.name, &w.V, client, x.dst, x.sport, x.dport, x.proto, x.vip, w.State())
		if !bytes.Equal(w.V.Bytes(0), x.frame) {
			t.Errorf("%s: the packet changed", x.name)
		}
	}
}

// The flow of an error is that of the packets it is about: so is its hash.
func TestSameHash(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, "answer")
	for _, x := range [][2]string{{"icmp-fragneeded-8", "syn"}, {"icmp6-ptb", "syn6"}} {
		send(w, c[x[0]])
		h := w.V.Hash[0]
		if load(w, c[x[1]]); w.V.Hash[0] != h {
			t.Errorf("%s and %s differ", x[0], x[1])
		}
	}
}

func TestReasons(t *testing.T) {
	c := nodetest.Cases(t)
	q := quote(t, nodetest.VIP4, nodetest.Client4, 443, 40000, 28)
	q6 := quote(t, nodetest.VIP6, nodetest.Client6, 443, 40000, 48)
	change := func(b []byte, at int, to ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], to)
		return b
	}
	err4 := func(q []byte) []byte { return message(t, router4, nodetest.VIP4, 3, 1, 0, q...) }
	err6 := func(q []byte) []byte { return message(t, router6, nodetest.VIP6, 1, 1, 0, q...) }
	frag6 := append(append(change(q6[:40], 6, 44), 6, 0, 0, 8, 0, 0, 0, 9), q6[40:]...)
	echo := message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 0x00010002, 1, 2, 3, 4)
	first := change(echo, 20, 0x20, 0, 64, 1, 0, 0)
	be.PutUint16(first[24:], packet.Checksum(first[14:34]))
	group := bytes.Clone(echo)
	group[0] |= 1
	deep := change(q6[:40], 6, 60)
	for range 8 {
		deep = append(deep, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	deep = append(append(deep, 6, 0, 1, 4, 0, 0, 0, 0), q6[40:]...)
	w := rig(t, "answer")
	for _, x := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"quote of 7 bytes of TCP", err4(q[:27]), "bad_quote"},
		{"half a quoted header", err4(q[:19]), "bad_quote"},
		{"no quote", err4(nil), "bad_quote"},
		{"quoted header length 4", err4(change(q, 0, 0x44)), "bad_quote"},
		{"IPv6 quoted in ICMP", err4(q6), "bad_quote"},
		{"IPv4 quoted in ICMPv6", err6(q), "bad_quote"},
		{"quoted options past the end", err4(change(q, 0, 0x48)), "bad_quote"},
		{"quote of 7 bytes of TCP, IPv6", err6(q6[:47]), "bad_quote"},
		{"half a quoted extension header", err6(append(change(q6[:40], 6, 60), 6, 0, 1, 4)), "bad_quote"},
		{"nine quoted extension headers", err6(deep), "bad_quote"},
		{"quoted later fragment", err4(change(q, 6, 0, 1)), "quoted_fragment"},
		{"quoted later fragment, IPv6", err6(frag6), "quoted_fragment"},
		{"another port", err4(quote(t, nodetest.VIP4, nodetest.Client4, 80, 40000, 28)), "quoted_unknown"},
		{"another address", err4(quote(t, stranger, nodetest.Client4, 443, 40000, 28)), "quoted_unknown"},
		{"another VIP", err4(quote(t, netip.MustParseAddr("203.0.113.11"), nodetest.Client4, 443, 40000, 28)), "quoted_unknown"},
		{"the client's own packet", err4(quote(t, nodetest.Client4, nodetest.VIP4, 40000, 443, 28)), "quoted_unknown"},
		{"ICMP quoted", message(t, router4, netip.MustParseAddr("203.0.113.11"), 3, 1, 0, message(t, netip.MustParseAddr("203.0.113.11"), nodetest.Client4, 0, 0, 7)[14:42]...), "quoted_unknown"},
		{"first fragment", first, "icmp_fragment"},
		{"echo reply", message(t, nodetest.Client4, nodetest.VIP4, 0, 0, 7), "icmp_type"},
		{"redirect", message(t, router4, nodetest.VIP4, 5, 1, 7, q...), "icmp_type"},
		{"source quench", message(t, router4, nodetest.VIP4, 4, 0, 7, q...), "icmp_type"},
		{"timestamp", message(t, nodetest.Client4, nodetest.VIP4, 13, 0, 7, q...), "icmp_type"},
		{"echo reply, IPv6", message(t, nodetest.Client6, nodetest.VIP6, 129, 0, 7), "icmp_type"},
		{"type 0, IPv6", message(t, nodetest.Client6, nodetest.VIP6, 0, 0, 7, q6...), "icmp_type"},
		{"reserved error, IPv6", message(t, nodetest.Client6, nodetest.VIP6, 100, 0, 7, q6...), "icmp_type"},
		{"error with a wrong checksum", change(c["icmp-fragneeded-8"], 36, 1, 2), "bad_checksum"},
		{"error with a wrong checksum, IPv6", change(c["icmp6-ptb"], 56, 1, 2), "bad_checksum"},
		{"echo with a wrong checksum", change(echo, 36, 1, 2), "bad_checksum"},
		{"echo with a wrong checksum, IPv6", change(c["echo6"], 60, 1, 2), "bad_checksum"},
		{"echo to a group", group, "echo_refused"},
		{"echo from a group", message(t, netip.MustParseAddr("224.0.0.1"), nodetest.VIP4, 8, 0, 7), "echo_refused"},
		{"echo from broadcast", message(t, netip.MustParseAddr("255.255.255.255"), nodetest.VIP4, 8, 0, 7), "echo_refused"},
		{"echo from nowhere, IPv6", message(t, netip.MustParseAddr("::"), nodetest.VIP6, 128, 0, 7), "echo_refused"},
		{"neighbour solicitation", message(t, nodetest.Client6, nodetest.VIP6, 135, 0, 0, make([]byte, 16)...), "pass"},
		{"router solicitation", message(t, nodetest.Client6, nodetest.VIP6, 133, 0, 0), "pass"},
		{"redirect, IPv6", message(t, nodetest.Client6, nodetest.VIP6, 137, 0, 0, make([]byte, 32)...), "pass"},
		{"multicast listener report", message(t, nodetest.Client6, nodetest.VIP6, 131, 0, 0), "icmp_type"},
	} {
		if out := send(w, x.frame); out != x.want {
			t.Errorf("%s: leaves by %q, want %q", x.name, out, x.want)
		}
	}
	for echoes, want := range map[string]string{"punt": "pass", "drop": "echo_refused"} {
		w := rig(t, echoes)
		if len(w.Outputs) != int(reply) {
			t.Errorf("echo = %q: %d outputs", echoes, len(w.Outputs))
		}
		for name, frame := range map[string][]byte{"echo": echo, "echo6": c["echo6"]} {
			if out := send(w, frame); out != want || !bytes.Equal(w.V.Bytes(0), frame) {
				t.Errorf("echo = %q: %s leaves by %q", echoes, name, out)
			}
		}
		if out := send(w, c["icmp-fragneeded-8"]); out != "next" {
			t.Errorf("echo = %q: an error leaves by %q", echoes, out)
		}
	}
}

func TestEcho(t *testing.T) {
	c := nodetest.Cases(t)
	tag := func(b []byte) []byte {
		return append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 100), b[12:]...)
	}
	big := make([]byte, 1401)
	for i := range big {
		big[i] = byte(i)
	}
	// A checksum that overflows when the type is subtracted: the carry must go round.
	carry := message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 0xfffff7ff)
	if sum := be.Uint16(carry[36:]); sum <= 0xf7ff && sum > 8 {
		t.Fatalf("the checksum %#x needs no carry", sum)
	}
	w := rig(t, "answer")
	for _, x := range []struct {
		name  string
		frame []byte
	}{
		{"echo6", c["echo6"]},
		{"echo", message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 0x12345678, []byte("ping")...)},
		{"carry", carry},
		{"all ones", message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 0xf7ff0000)},
		{"odd length", message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 7, big...)},
		{"odd length, IPv6", message(t, nodetest.Client6, nodetest.VIP6, 128, 0, 7, big...)},
		{"tagged", tag(c["echo6"])},
	} {
		if out := send(w, x.frame); out != "reply" {
			t.Errorf("%s: leaves by %q", x.name, out)
			continue
		}
		got, v := w.V.Bytes(0), &w.V
		was, is := nodetest.Decode(x.frame), nodetest.Decode(got)
		if was.LinkLayer().LinkFlow() != is.LinkLayer().LinkFlow().Reverse() || was.NetworkLayer().NetworkFlow() != is.NetworkLayer().NetworkFlow().Reverse() {
			t.Errorf("%s: not on its way back: %x", x.name, got)
		}
		m, ttl := is.NetworkLayer().LayerPayload(), uint8(0)
		sum := packet.Sum(m)
		switch ip := is.NetworkLayer().(type) {
		case *layers.IPv4:
			ttl = ip.TTL
			if packet.Checksum(ip.Contents) != 0 {
				t.Errorf("%s: IPv4 checksum", x.name)
			}
		case *layers.IPv6:
			ttl = ip.HopLimit
			sum += packet.PseudoSum(v.Src[0], v.Dst[0], 58, uint32(len(m)))
		}
		want := byte(0)
		if v.Flags[0]&packet.V6 != 0 {
			want = 129
		}
		if m[0] != want || packet.Fold(sum) != 0xffff || ttl != 64 || !bytes.Equal(m[4:], was.NetworkLayer().LayerPayload()[4:]) || len(got) != len(x.frame) {
			t.Errorf("%s: type %d, TTL %d, sum %#x: %x", x.name, m[0], ttl, packet.Fold(sum), m)
		}
		if v.Backend[0] != 0 || v.VIP[0] != 0 || v.Src[0].Netip().String() != is.NetworkLayer().NetworkFlow().Src().String() {
			t.Errorf("%s: columns are not the answer's", x.name)
		}
	}
}

// An echo request of many frames comes back as many.
func TestEchoChain(t *testing.T) {
	data := make([]byte, 8000)
	for i := range data {
		data[i] = byte(i * 3)
	}
	frame := message(t, nodetest.Client4, nodetest.VIP4, 8, 0, 7, data...)
	for _, corrupt := range []bool{false, true} {
		w := rig(t, "answer")
		parts := []int{3001, 3001, len(frame) - 6002}
		w.Load(frame[:parts[0]])
		w.Parse(1)
		w.V.Total[0] = uint32(len(frame))
		next, at := &w.V.Chain[0], parts[0]
		for _, n := range parts[1:] {
			f, _ := w.Alloc()
			base, _ := w.Chunk(f)
			w.V.Links[f] = packet.Link{Next: packet.NoFrame, Start: base + 256, Len: uint32(n)}
			copy(w.V.Mem[base+256:], frame[at:at+n])
			*next, next, at = f, &w.V.Links[f].Next, at+n
			if corrupt {
				w.V.Mem[base+300] ^= 4
			}
		}
		want := "reply"
		if corrupt {
			want = "bad_checksum"
		}
		if out := w.Only(w.Process(1), 0); out != want || w.V.Total[0] != uint32(len(frame)) || w.V.Chain[0] == packet.NoFrame {
			t.Errorf("corrupt %v: leaves by %q, %d bytes", corrupt, out, w.V.Total[0])
		}
	}
}

// host remembers what it was told.
type host struct {
	mu   sync.Mutex
	told map[netip.Addr]int
	got  chan struct{}
}

func (h *host) TunnelMTU(a netip.Addr, mtu int) {
	h.mu.Lock()
	h.told[a] = mtu
	h.mu.Unlock()
	h.got <- struct{}{}
}

func TestTunnel(t *testing.T) {
	h := &host{told: map[netip.Addr]int{}, got: make(chan struct{}, 10)}
	w := rig(t, "answer", func(r *nodetest.Rig) { r.Env.Host = h })
	outer := func(dst netip.Addr, proto byte, n int) []byte {
		src := nodetest.Local4
		if dst.Is6() {
			src = nodetest.Local6
		}
		b := quote(t, src, dst, 40000, 6080, n)
		if dst.Is6() {
			b[6] = proto
		} else {
			b[9] = proto
		}
		return b
	}
	big := func(dst netip.Addr, mtu uint32) []byte {
		if dst.Is6() {
			return message(t, router6, nodetest.Local6, 2, 0, mtu, outer(dst, 47, 1200)...)
		}
		return message(t, router4, nodetest.Local4, 3, 4, mtu, outer(dst, 47, 28)...)
	}
	for _, x := range []struct {
		name    string
		frame   []byte
		want    string
		learned uint64
	}{
		{"frag needed", big(backend4, 1400), "tunnel_error", 1},
		{"smaller", big(backend4, 1350), "tunnel_error", 1},
		{"larger again", big(backend4, 1430), "tunnel_error", 1},
		{"IPv6", big(backend6, 1300), "tunnel_error", 1},
		{"it would have fit", big(backend4, 1445), "tunnel_error", 0},
		{"no MTU", big(backend4, 0), "tunnel_error", 0},
		{"more than the network's", big(backend6, 9000), "tunnel_error", 0},
		{"unreachable", message(t, router4, nodetest.Local4, 3, 1, 0, outer(backend4, 47, 28)...), "tunnel_error", 0},
		{"IP in IP", message(t, router4, nodetest.Local4, 11, 0, 0, outer(backend4, 4, 28)...), "tunnel_error", 0},
		{"GUE", message(t, router4, nodetest.Local4, 3, 3, 0, outer(backend4, 17, 28)...), "tunnel_error", 0},
		{"no tunnel", message(t, router4, nodetest.Local4, 3, 1, 0, outer(backend4, 6, 28)...), "pass", 0},
		{"no backend", big(stranger, 1400), "pass", 0},
		{"not from here", message(t, router4, nodetest.Local4, 3, 4, 1400, func() []byte { b := quote(t, stranger, backend4, 1, 2, 28); b[9] = 47; return b }()...), "pass", 0},
		{"wrong checksum", func() []byte { b := big(backend4, 1200); b[36]++; return b }(), "bad_checksum", 0},
	} {
		if out := send(w, x.frame); out != x.want || w.Counter("learned") != x.learned {
			t.Errorf("%s: leaves by %q, learned %d", x.name, out, w.Counter("learned"))
		}
	}
	g := w.Node.(*worker).Gauges()
	if g["tunnel_errors 10.0.1.1"] != 8 || g["tunnel_errors 2001:db8:1::1"] != 2 || len(g) != 2 {
		t.Errorf("gauges %v", g)
	}
	node := w.Node.(*worker)
	node.Tick(1e15)
	for range 2 {
		select {
		case <-h.got:
		case <-time.After(5 * time.Second):
			t.Fatal("the host was not told")
		}
	}
	if h.told[backend4] != 1350 || h.told[backend6] != 1300 {
		t.Errorf("told %v", h.told)
	}
	// What was told is not told again; what is new is, a second later.
	node.Tick(1e15 + 1)
	send(w, big(backend4, 1300))
	node.Tick(1e15 + 2)
	select {
	case <-h.got:
		t.Error("told too soon")
	case <-time.After(10 * time.Millisecond):
	}
	node.Tick(1e15 + 2e9)
	<-h.got
	if h.told[backend4] != 1300 {
		t.Errorf("told %v", h.told)
	}
	// Backends that stay keep their counts in the next snapshot.
	w.Publish(world(t))
	if g := node.Gauges(); g["tunnel_errors 10.0.1.1"] != 9 {
		t.Errorf("gauges after a new snapshot: %v", g)
	}
}

// Nothing on the wire may harm: no panic, no byte behind the packet looked at, and replies with
// right checksums.
func FuzzICMP(f *testing.F) {
	for name, b := range nodetest.Cases(f) {
		if name == "icmp-fragneeded-8" || name == "icmp6-ptb" || name == "echo6" {
			f.Add(b[14:], name != "icmp-fragneeded-8", true)
		}
	}
	f.Add(message(f, nodetest.Client4, nodetest.VIP4, 8, 0, 7, 1, 2, 3)[14:], false, true)
	w := rig(f, "answer")
	f.Fuzz(func(t *testing.T, b []byte, v6, right bool) {
		w.T = t
		size := 20
		if v6 {
			size = 40
		}
		if len(b) < size+8 || len(b) > 2000 {
			return
		}
		run := func(poison byte) (packet.Vector, string, []byte) {
			w.Reuse()
			in := w.Load(append(make([]byte, 14), b...))
			v := &w.V
			end := v.Start[0] + v.Len[0]
			for i := range v.Mem[end : end+100] {
				v.Mem[int(end)+i] = poison
			}
			p := v.Bytes(0)
			v.L3[0], v.L4[0], v.IPLen[0] = 14, uint16(14+size), uint32(len(b))
			v.Src[0], v.Dst[0], v.Proto[0], v.Flags[0] = packet.AddrOf(router4), packet.AddrOf(nodetest.VIP4), 1, packet.ICMP
			if v6 {
				v.Src[0], v.Dst[0], v.Proto[0], v.Flags[0] = packet.AddrOf(router6), packet.AddrOf(nodetest.VIP6), 58, packet.ICMP|packet.V6
			}
			if right {
				sum := uint32(0)
				if v6 {
					sum = packet.PseudoSum(v.Src[0], v.Dst[0], 58, uint32(len(b)-size))
				}
				be.PutUint16(p[14+size+2:], 0)
				be.PutUint16(p[14+size+2:], ^packet.Fold(sum+packet.Sum(p[14+size:])))
			}
			return *v, w.Only(w.Process(in), 0), bytes.Clone(v.Bytes(0))
		}
		_, one, a := run(0xff)
		_, two, c := run(0)
		if one != two || !bytes.Equal(a, c) {
			t.Fatalf("what stands behind the end changes the answer: %q, %q", one, two)
		}
		if one == "reply" {
			sum := packet.Sum(a[14+size:])
			if v6 {
				sum += packet.PseudoSum(w.V.Src[0], w.V.Dst[0], 58, uint32(len(b)-size))
			}
			if packet.Fold(sum) != 0xffff {
				t.Fatalf("checksum of the reply: %x", a)
			}
		}
		if right && one == "bad_checksum" {
			t.Fatalf("bad_checksum, and it is right: %x", a)
		}
	})
}

func TestTrace(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, "answer")
	for name, want := range map[string]string{
		"icmp-fragneeded-8": "about protocol 6 from 203.0.113.10 port 443 to 198.51.100.7 port 40000",
		"echo6":             "type 129 code 0",
	} {
		send(w, c[name])
		if got := w.Node.(*worker).Trace(&w.V, 0); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, "answer")
	in := w.Load(c["icmp-fragneeded-8"], c["icmp6-ptb"], c["echo6"],
		message(t, router4, nodetest.Local4, 3, 1, 0, func() []byte { b := quote(t, nodetest.Local4, backend4, 1, 2, 28); b[9] = 47; return b }()...))
	w.Parse(in)
	saved := w.V
	if n := testing.AllocsPerRun(100, func() {
		w.V = saved
		w.Run(in)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkICMP reports nanoseconds a packet, checksum of the whole message included.
func BenchmarkICMP(b *testing.B) {
	c := nodetest.Cases(b)
	for _, x := range []struct {
		name  string
		frame []byte
	}{
		{"error-8", c["icmp-fragneeded-8"]},
		{"error6-1232", c["icmp6-ptb"]},
		{"echo-64", message(b, nodetest.Client4, nodetest.VIP4, 8, 0, 7, make([]byte, 56)...)},
	} {
		b.Run(x.name, func(b *testing.B) {
			w := rig(b, "answer")
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = x.frame
			}
			in := w.Load(frames...)
			w.Parse(in)
			src, dst, proto, flags := w.V.Src, w.V.Dst, w.V.Proto, w.V.Flags
			at := int(w.V.L4[0])
			word := be.Uint32(w.V.Bytes(0)[at:])
			b.ReportAllocs()
			for b.Loop() {
				w.V.Src, w.V.Dst, w.V.Proto, w.V.Flags = src, dst, proto, flags
				for i := range packet.Size {
					be.PutUint32(w.V.Bytes(i)[at:], word)
				}
				w.Run(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}
