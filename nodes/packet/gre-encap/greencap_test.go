package greencap

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var (
	backend4 = netip.MustParseAddr("10.0.1.1")
	backend6 = netip.MustParseAddr("2001:db8:1::1")
)

// world has backend 1 over IPv4 and backend 2 over IPv6.
func world() *state.Snapshot {
	return &state.Snapshot{Backends: []state.Backend{{}, {ID: 1, Addr: backend4}, {ID: 2, Addr: backend6}}}
}

func rig(t testing.TB, configure func(*encap.Config), opts ...nodetest.Option) *nodetest.Worker {
	return nodetest.New(t, "gre-encap", configure, append([]nodetest.Option{nodetest.WithState(world())}, opts...)...).Workers[0]
}

// send loads one frame, parses it, sends it to backend b and answers the output
// and the frame that left.
func send(t testing.TB, w *nodetest.Worker, b uint32, frame []byte) (string, []byte) {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	w.V.Backend[0] = b
	out := w.Only(w.Process(in), 0)
	return out, bytes.Clone(w.V.Bytes(0))
}

// inner answers the IP packet in an Ethernet frame, without padding.
func inner(t testing.TB, frame []byte) []byte {
	t.Helper()
	p := nodetest.Decode(frame)
	for _, l := range p.Layers() {
		switch l.LayerType() {
		case layers.LayerTypeIPv4, layers.LayerTypeIPv6:
			return append(bytes.Clone(l.LayerContents()), l.LayerPayload()...)
		}
	}
	t.Fatalf("no IP packet in %x", frame)
	return nil
}

// check verifies an encapsulated frame field by field against the frame that came.
func check(t testing.TB, w *nodetest.Worker, came, left []byte, b netip.Addr) {
	t.Helper()
	p := nodetest.Decode(left)
	if e := p.ErrorLayer(); e != nil && e.LayerType() != layers.LayerTypeTCP {
		t.Errorf("the frame does not decode: %v", e.Error())
	}
	want := inner(t, came)
	eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if eth.DstMAC.String() != nodetest.FromMAC.String() || eth.SrcMAC.String() != nodetest.ToMAC.String() {
		t.Errorf("sent from %v to %v", eth.SrcMAC, eth.DstMAC)
	}
	v := &w.V
	outer := left[v.L3[0]:]
	tos := want[1]
	if want[0]>>4 == 6 {
		tos = want[0]<<4 | want[1]>>4
	}
	var gre []byte
	if b.Is4() {
		ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		if ip.IHL != 5 || ip.TTL != 64 || ip.Flags != layers.IPv4DontFragment || ip.FragOffset != 0 || ip.Protocol != layers.IPProtocolGRE {
			t.Errorf("outer header %+v", ip)
		}
		if ip.TOS != tos&3 {
			t.Errorf("outer ToS %#x for inner %#x", ip.TOS, tos)
		}
		if int(ip.Length) != 24+len(want) || len(outer) != 24+len(want) {
			t.Errorf("outer length %d, %d bytes in the frame, want %d", ip.Length, len(outer), 24+len(want))
		}
		if packet.Checksum(outer[:20]) != 0 {
			t.Errorf("wrong checksum in %x", outer[:20])
		}
		if dst, _ := netip.AddrFromSlice(ip.DstIP); dst != b {
			t.Errorf("outer destination %s", dst)
		}
		gre = outer[20:]
	} else {
		ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		if ip.HopLimit != 64 || ip.NextHeader != layers.IPProtocolGRE {
			t.Errorf("outer header %+v", ip)
		}
		if ip.TrafficClass != tos&3 {
			t.Errorf("outer traffic class %#x for inner %#x", ip.TrafficClass, tos)
		}
		if ip.FlowLabel != uint32(v.Hash[0]>>44) {
			t.Errorf("flow label %#x of hash %#x", ip.FlowLabel, v.Hash[0])
		}
		if int(ip.Length) != 4+len(want) || len(outer) != 44+len(want) {
			t.Errorf("payload length %d, %d bytes in the frame, want %d", ip.Length, len(outer), 4+len(want))
		}
		if dst, _ := netip.AddrFromSlice(ip.DstIP); dst != b {
			t.Errorf("outer destination %s", dst)
		}
		gre = outer[40:]
	}
	proto := uint16(packet.EtherIPv4)
	if want[0]>>4 == 6 {
		proto = packet.EtherIPv6
	}
	if gre[0] != 0 || gre[1] != 0 || binary.BigEndian.Uint16(gre[2:]) != proto {
		t.Errorf("GRE header %x", gre[:4])
	}
	if !bytes.Equal(gre[4:], want) {
		t.Errorf("inner packet changed:\n%x\n%x", gre[4:], want)
	}
	if v.IPLen[0] != uint32(len(outer)) || v.Len[0] != uint32(len(left)) || v.Total[0] != v.Len[0] {
		t.Errorf("IPLen %d, Len %d, Total %d; %d bytes at L3 of %d", v.IPLen[0], v.Len[0], v.Total[0], len(outer), len(left))
	}
	if got := v.Flags[0]; got&packet.V6 != 0 != b.Is6() || got&(packet.ICMP|packet.Later) != 0 || got&packet.DF == 0 {
		t.Errorf("flags %b", got)
	}
}

func TestCases(t *testing.T) {
	w := rig(t, nil)
	for name, frame := range nodetest.Cases(t) {
		if name == "totlen-lies" { // parse drops it
			continue
		}
		for b, addr := range []netip.Addr{1: backend4, 2: backend6} {
			if b == 0 {
				continue
			}
			t.Run(name+"/"+addr.String(), func(t *testing.T) {
				out, left := send(t, w, uint32(b), frame)
				if out != "next" {
					t.Fatalf("leaves by %q", out)
				}
				check(t, w, frame, left, addr)
			})
		}
	}
}

// The columns of the client's flow stay: conntrack and frag-pin read them after the
// packet was sent.
func TestFlowColumnsStay(t *testing.T) {
	w := rig(t, nil)
	in := w.Load(nodetest.Cases(t)["frag1"])
	w.Parse(in)
	w.V.Backend[0], w.V.VIP[0], w.V.Slot[0] = 1, 7, 3
	w.V.Flags[0] |= packet.Related | packet.Pinned
	var was packet.Record
	w.V.Save(0, &was)
	w.Process(in)
	var is packet.Record
	w.V.Save(0, &is)
	if is.Src != was.Src || is.Dst != was.Dst || is.SPort != was.SPort || is.DPort != was.DPort || is.Proto != was.Proto ||
		is.Hash != was.Hash || is.ID != was.ID || is.Backend != 1 || is.VIP != 7 || is.Slot != 3 {
		t.Errorf("%+v became %+v", was, is)
	}
	if is.Flags&(packet.First|packet.Related|packet.Pinned) != packet.First|packet.Related|packet.Pinned {
		t.Errorf("flags %b", is.Flags)
	}
}

// tags are put between the MAC addresses and the EtherType of a frame.
func tagged(frame []byte, tags ...uint32) []byte {
	b := bytes.Clone(frame[:12])
	for _, tag := range tags {
		b = binary.BigEndian.AppendUint32(b, tag)
	}
	return append(b, frame[12:]...)
}

func TestVLAN(t *testing.T) {
	cases := nodetest.Cases(t)
	const c100, c7, s200 = 0x8100_6064, 0x8100_0007, 0x88a8_00c8
	for _, c := range []struct {
		name string
		tags []uint32
	}{{"one", []uint32{c100}}, {"two", []uint32{s200, c7}}} {
		for b, addr := range map[uint32]netip.Addr{1: backend4, 2: backend6} {
			for _, plain := range []string{"syn", "syn6", "trailer-pad"} {
				t.Run(c.name+"/"+addr.String()+"/"+plain, func(t *testing.T) {
					frame := tagged(cases[plain], c.tags...)
					w := rig(t, nil)
					_, left := send(t, w, b, frame)
					got := left[12 : len(left)-int(w.V.IPLen[0])]
					var want []byte
					for _, tag := range c.tags {
						want = binary.BigEndian.AppendUint32(want, tag)
					}
					want = binary.BigEndian.AppendUint16(want, map[bool]uint16{false: 0x0800, true: 0x86dd}[addr.Is6()])
					if !bytes.Equal(got, want) {
						t.Errorf("behind the addresses stands %x, want %x", got, want)
					}
					check(t, w, frame, left, addr)

					w = rig(t, func(c *encap.Config) { c.VLAN = "strip" })
					_, stripped := send(t, w, b, frame)
					_, want = send(t, rig(t, nil), b, cases[plain])
					if !bytes.Equal(stripped, want) {
						t.Errorf("stripped: %x\nnever tagged: %x", stripped, want)
					}
					check(t, w, frame, stripped, addr)
					if w.V.Flags[0]&packet.Tagged != 0 {
						t.Error("still marked as tagged")
					}
				})
			}
		}
	}
}

func TestSourcePrefix(t *testing.T) {
	w := rig(t, func(c *encap.Config) {
		c.Source, c.Source6 = netip.MustParsePrefix("10.9.0.0/20"), netip.MustParsePrefix("2001:db8:9::/68")
	})
	seen := map[uint32]map[netip.Addr]bool{1: {}, 2: {}}
	for port := range uint16(200) {
		frame := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 1000+port, 443)
		for b, prefix := range map[uint32]string{1: "10.9.0.0/20", 2: "2001:db8:9::/68"} {
			_, left := send(t, w, b, frame)
			check(t, w, frame, left, map[uint32]netip.Addr{1: backend4, 2: backend6}[b])
			src, _ := netip.AddrFromSlice(nodetest.Decode(left).NetworkLayer().NetworkFlow().Src().Raw())
			if !netip.MustParsePrefix(prefix).Contains(src) {
				t.Fatalf("source %s is not in %s", src, prefix)
			}
			seen[b][src] = true
			_, again := send(t, w, b, frame)
			if !bytes.Equal(left, again) {
				t.Fatal("two packets of one flow differ in their outer headers")
			}
		}
	}
	if len(seen[1]) < 180 || len(seen[2]) < 180 {
		t.Errorf("200 flows use %d and %d sources", len(seen[1]), len(seen[2]))
	}
}

func TestSourceOfInterface(t *testing.T) {
	for b, want := range map[uint32]netip.Addr{1: nodetest.Local4, 2: nodetest.Local6} {
		_, left := send(t, rig(t, nil), b, nodetest.Cases(t)["syn"])
		src, _ := netip.AddrFromSlice(nodetest.Decode(left).NetworkLayer().NetworkFlow().Src().Raw())
		if src != want {
			t.Errorf("outer source %s, want %s", src, want)
		}
	}
}

// Without an address to send from, the node is not built, and a backend that
// comes later is not reached.
func TestNoSource(t *testing.T) {
	none := func(r *nodetest.Rig) { r.Env.Addrs = func() []netip.Addr { return nil } }
	cfg := encap.Defaults()
	env := &graph.Env{Watch: func(f func(*state.Snapshot)) { f(world()) }, Addrs: func() []netip.Addr { return nil }}
	mk, err := graph.Lookup("gre-encap").Packets(&cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = mk(nil); err == nil || !strings.Contains(err.Error(), "no IPv4 address to send from to backend 10.0.1.1") {
		t.Errorf("made without a source: %v", err)
	}

	r := nodetest.New[encap.Config](t, "gre-encap", nil, none)
	r.Publish(world())
	for b := uint32(1); b < 3; b++ {
		if out, _ := send(t, r.Workers[0], b, nodetest.Cases(t)["syn"]); out != "no_route" {
			t.Errorf("backend %d: leaves by %q", b, out)
		}
	}
}

func TestOptions(t *testing.T) {
	w := rig(t, func(c *encap.Config) { c.TTL, c.DSCP = 9, "copy" })
	ce := nodetest.Cases(t)["ecn-ce"]
	_, left := send(t, w, 1, ce)
	ip := nodetest.Decode(left).Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if ip.TTL != 9 || ip.TOS != ce[15] || packet.Checksum(left[14:34]) != 0 {
		t.Errorf("TTL %d, ToS %#x for %#x", ip.TTL, ip.TOS, ce[15])
	}
	_, left = send(t, w, 2, ce)
	if ip := nodetest.Decode(left).Layer(layers.LayerTypeIPv6).(*layers.IPv6); ip.HopLimit != 9 || ip.TrafficClass != ce[15] {
		t.Errorf("hop limit %d, traffic class %#x", ip.HopLimit, ip.TrafficClass)
	}
	six := bytes.Clone(nodetest.Cases(t)["syn6"])
	six[14], six[15] = 0x6b, 0xb0|six[15]&0xf // traffic class 0xbb
	_, left = send(t, w, 1, six)
	if ip := nodetest.Decode(left).Layer(layers.LayerTypeIPv4).(*layers.IPv4); ip.TOS != 0xbb {
		t.Errorf("ToS %#x for an inner traffic class of 0xbb", ip.TOS)
	}
}

func TestNextHop(t *testing.T) {
	syn := nodetest.Cases(t)["syn"]
	dst := func(left []byte) string { return net.HardwareAddr(left[:6]).String() }

	w := rig(t, func(c *encap.Config) { c.NextHop = "02:00:00:00:00:77" })
	if out, left := send(t, w, 1, syn); out != "next" || dst(left) != "02:00:00:00:00:77" || !bytes.Equal(left[6:12], nodetest.ToMAC) {
		t.Errorf("gateway by MAC: %q, %x", out, left[:12])
	}

	w = rig(t, func(c *encap.Config) { c.NextHop = "kernel" })
	if out, _ := send(t, w, 1, syn); out != "no_neighbour" {
		t.Errorf("before the kernel knows the neighbour: leaves by %q", out)
	}
	s := world()
	s.Backends[1].MAC, s.Backends[1].HasMAC = [6]byte{2, 0, 0, 0, 0, 0x55}, true
	w.Publish(s)
	if out, left := send(t, w, 1, syn); out != "next" || dst(left) != "02:00:00:00:00:55" {
		t.Errorf("neighbour known: %q, %s", out, dst(left))
	}
	if out, _ := send(t, w, 2, syn); out != "no_neighbour" {
		t.Errorf("the other backend's is not: leaves by %q", out)
	}
	s = world()
	s.Backends[1].MAC, s.Backends[1].HasMAC = [6]byte{2, 0, 0, 0, 0, 0x66}, true
	w.Publish(s)
	if _, left := send(t, w, 1, syn); dst(left) != "02:00:00:00:00:66" {
		t.Errorf("neighbour changed: sent to %s", dst(left))
	}

	s.Backends[1].HasMAC, s.Backends[1].NoRoute = false, true
	w.Publish(s)
	if out, _ := send(t, w, 1, syn); out != "no_route" {
		t.Errorf("without a route: leaves by %q", out)
	}

	w = rig(t, func(c *encap.Config) { c.NextHop = "192.0.2.254" })
	if out, _ := send(t, w, 1, syn); out != "no_neighbour" {
		t.Errorf("before the gateway's hardware address is known: leaves by %q", out)
	}
	s = world()
	s.Neighbours = map[netip.Addr][6]byte{netip.MustParseAddr("192.0.2.254"): {2, 0, 0, 0, 0, 0x99}}
	w.Publish(s)
	if out, left := send(t, w, 2, syn); out != "next" || dst(left) != "02:00:00:00:00:99" {
		t.Errorf("gateway by address: %q, %s", out, dst(left))
	}
	w = rig(t, func(c *encap.Config) { c.NextHop = "fe80::1%uplink" })
	s = world()
	s.Neighbours = map[netip.Addr][6]byte{netip.MustParseAddr("fe80::1"): {2, 0, 0, 0, 0, 0x88}}
	w.Publish(s)
	if out, left := send(t, w, 1, syn); out != "next" || dst(left) != "02:00:00:00:00:88" {
		t.Errorf("gateway by link-local address: %q, %s", out, dst(left))
	}

	// A frame to or from a group address has no sender to go back to.
	w = rig(t, nil)
	for _, at := range []int{0, 6} {
		group := bytes.Clone(syn)
		group[at] |= 1
		if out, _ := send(t, w, 1, group); out != "no_neighbour" {
			t.Errorf("group bit at %d: leaves by %q", at, out)
		}
	}
}

func TestNoRoute(t *testing.T) {
	w := rig(t, nil)
	for _, b := range []uint32{0, 3, 1 << 31} {
		if out, _ := send(t, w, b, nodetest.Cases(t)["syn"]); out != "no_route" {
			t.Errorf("backend %d: leaves by %q", b, out)
		}
	}
}

// chain loads a packet of n bytes of UDP payload in frames of part bytes.
func chain(t testing.TB, w *nodetest.Worker, part int, frame []byte) packet.Lanes {
	t.Helper()
	first := min(part, len(frame))
	in := w.Load(frame[:first])
	v := &w.V
	v.Total[0] = uint32(len(frame))
	last := &v.Chain[0]
	for rest := frame[first:]; len(rest) > 0; {
		n := min(part, len(rest))
		f, _ := w.Alloc()
		base, _ := w.Chunk(f)
		copy(v.Mem[base+nodetest.Front:], rest[:n])
		v.Links[f] = packet.Link{Next: packet.NoFrame, Start: base + nodetest.Front, Len: uint32(n)}
		*last = f
		last = &v.Links[f].Next
		rest = rest[n:]
	}
	w.Parse(in)
	v.Backend[0] = 1
	return in
}

// whole puts a chain together again.
func whole(v *packet.Vector) []byte {
	b := bytes.Clone(v.Bytes(0))
	for f := v.Chain[0]; f != packet.NoFrame; f = v.Links[f].Next {
		k := v.Links[f]
		b = append(b, v.Mem[k.Start:k.Start+k.Len]...)
	}
	return b
}

func TestChain(t *testing.T) {
	payload := bytes.Repeat([]byte("jumbo"), 1700)
	frame := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 5000, 4500, payload...)
	pad := bytes.Repeat([]byte{0xaa}, 100)
	for _, c := range []struct {
		name string
		came []byte
		out  string
	}{
		{"exact", frame, "next"},
		{"trailer in the last frame", append(bytes.Clone(frame), pad...), "next"},
		{"ends in the middle frame", append(bytes.Clone(frame[:4000]), frame[:4100]...), "bad_length"},
		{"ends behind the last frame", bytes.Clone(frame), "bad_length"},
		{"ends in the first frame", append(bytes.Clone(nodetest.Cases(t)["data"]), bytes.Repeat(pad, 50)...), "next"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := rig(t, nil)
			if c.name == "ends in the middle frame" {
				binary.BigEndian.PutUint16(c.came[16:], 3500)
			}
			in := chain(t, w, 3000, c.came)
			want := inner(t, c.came)
			if c.name == "ends behind the last frame" {
				w.V.IPLen[0]++ // no wire does that: parse would have refused it
			}
			if out := w.Only(w.Process(in), 0); out != c.out {
				t.Fatalf("leaves by %q", out)
			}
			if c.out != "next" {
				return
			}
			left := whole(&w.V)
			if !bytes.Equal(left[38:], want) || int(w.V.Total[0]) != len(left) || int(w.V.IPLen[0]) != len(left)-14 {
				t.Errorf("%d bytes left (Total %d, IPLen %d) for an inner packet of %d", len(left), w.V.Total[0], w.V.IPLen[0], len(want))
			}
			if packet.Checksum(left[14:34]) != 0 || int(binary.BigEndian.Uint16(left[16:])) != len(want)+24 {
				t.Errorf("outer header %x", left[14:34])
			}
		})
	}
}

// No outer length wraps: 65535 is the largest that goes.
func TestTooLong(t *testing.T) {
	for _, c := range []struct {
		b, n uint32
		out  string
	}{
		{1, 65535 - 24, "next"},
		{1, 65535 - 23, "too_long"},
		{2, 65535 - 4, "next"},
		{2, 65535 - 3, "too_long"},
		{2, 65535 + 40, "too_long"},
	} {
		w := rig(t, nil)
		frame := nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 5000, 4500, make([]byte, 2000)...)
		in := w.Load(frame)
		w.Parse(in)
		v := &w.V
		// A chain whose second frame makes the rest; its bytes are never touched.
		f, _ := w.Alloc()
		v.IPLen[0], v.Backend[0], v.Chain[0] = c.n, c.b, f
		v.Total[0] = 14 + c.n
		v.Links[f] = packet.Link{Next: packet.NoFrame, Len: v.Total[0] - v.Len[0]}
		if out := w.Only(w.Process(in), 0); out != c.out {
			t.Errorf("backend %d, %d bytes: leaves by %q, want %q", c.b, c.n, out, c.out)
		}
		if c.out != "next" {
			continue
		}
		length := binary.BigEndian.Uint16(v.Bytes(0)[16:])
		if c.b == 2 {
			length = binary.BigEndian.Uint16(v.Bytes(0)[18:])
		}
		if length != 65535 {
			t.Errorf("backend %d, %d bytes: outer length %d", c.b, c.n, length)
		}
	}
}

// Nothing in front of the headroom and nothing behind the packet is written.
func TestBounds(t *testing.T) {
	w := rig(t, nil)
	for b, over := range map[uint32]uint32{1: 24, 2: 44} {
		in := w.Load(nodetest.Cases(t)["ihl6"])
		w.Parse(in)
		w.V.Backend[0] = b
		start, end := w.V.Start[0], w.V.Start[0]+w.V.Len[0]
		behind := bytes.Clone(w.V.Mem[end : end+64])
		before := bytes.Clone(w.V.Mem[start-over-64 : start-over])
		w.Process(in)
		if !bytes.Equal(behind, w.V.Mem[end:end+64]) || !bytes.Equal(before, w.V.Mem[start-over-64:start-over]) {
			t.Errorf("backend %d: bytes around the packet changed", b)
		}
	}
}

func TestTrace(t *testing.T) {
	w := rig(t, nil)
	for b, want := range map[uint32]string{1: "GRE 192.0.2.1 > 10.0.1.1", 2: "GRE 2001:db8:f::1 > 2001:db8:1::1"} {
		send(t, w, b, nodetest.Cases(t)["syn"])
		if got := w.Node.(graph.Tracer).Trace(&w.V, 0); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	send(t, w, 9, nodetest.Cases(t)["syn"])
	if got := w.Node.(graph.Tracer).Trace(&w.V, 0); got != "" {
		t.Errorf("not encapsulated: %q", got)
	}
}

// armed is a full vector that can be encapsulated again and again.
type armed struct {
	w    *nodetest.Worker
	in   packet.Lanes
	v    packet.Vector
	head [packet.Size][16]byte
}

func arm(t testing.TB, b uint32, frame []byte) *armed {
	a := &armed{w: rig(t, nil)}
	frames := make([][]byte, packet.Size)
	for i := range frames {
		frames[i] = frame
	}
	a.in = a.w.Load(frames...)
	a.w.Parse(a.in)
	for i := range frames {
		a.w.V.Backend[i] = b
		copy(a.head[i][:], a.w.V.Bytes(i))
	}
	a.v = a.w.V
	return a
}

func (a *armed) again() {
	v := &a.w.V
	v.Start, v.Len, v.Total, v.IPLen, v.Flags = a.v.Start, a.v.Len, a.v.Total, a.v.IPLen, a.v.Flags
	for i := range a.head {
		*(*[16]byte)(v.Mem[v.Start[i]:]) = a.head[i]
	}
}

func TestAllocations(t *testing.T) {
	for b := uint32(1); b < 3; b++ {
		a := arm(t, b, nodetest.Cases(t)["data"])
		if n := testing.AllocsPerRun(100, func() { a.again(); a.w.Run(a.in) }); n != 0 {
			t.Errorf("backend %d: %v allocations", b, n)
		}
	}
}

// BenchmarkEncap counts packets. rearm is what it costs to make the vector ready
// for the next round; it is part of the others.
func BenchmarkEncap(b *testing.B) {
	cases := nodetest.Cases(b)
	for _, c := range []struct {
		name, frame string
		backend     uint32
	}{{"rearm", "data", 0}, {"4in4", "data", 1}, {"6in4", "syn6", 1}, {"4in6", "data", 2}, {"6in6", "syn6", 2}} {
		b.Run(c.name, func(b *testing.B) {
			a := arm(b, c.backend, cases[c.frame])
			for n := 0; n < b.N; n += packet.Size {
				a.again()
				if c.backend != 0 {
					a.w.Run(a.in)
				}
			}
		})
	}
}

// FuzzEncap sends packets of any shape to both backends and checks what leaves
// against an independent decoder.
func FuzzEncap(f *testing.F) {
	f.Add([]byte("hello"), uint8(0), uint8(0), uint16(1), uint16(2), false, uint8(0))
	f.Add([]byte{}, uint8(0xbb), uint8(2), uint16(5000), uint16(443), true, uint8(20))
	f.Fuzz(func(t *testing.T, payload []byte, tos, tags uint8, sport, dport uint16, v6 bool, pad uint8) {
		if len(payload) > 1400 {
			payload = payload[:1400]
		}
		src, dst := nodetest.Client4, nodetest.VIP4
		if v6 {
			src, dst = nodetest.Client6, nodetest.VIP6
		}
		ip := nodetest.IP(src, dst, layers.IPProtocolUDP)
		switch h := ip.(type) {
		case *layers.IPv4:
			h.TOS = tos
		case *layers.IPv6:
			h.TrafficClass = tos
		}
		udp := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
		if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
			t.Fatal(err)
		}
		frame := nodetest.Frame(t, nodetest.Ether(v6), ip, udp, gopacket.Payload(payload))
		for i := range tags % 3 {
			frame = tagged(frame, 0x8100_0000|uint32(i))
		}
		frame = append(frame, make([]byte, pad)...)
		w := rig(t, nil)
		for b, addr := range map[uint32]netip.Addr{1: backend4, 2: backend6} {
			out, left := send(t, w, b, frame)
			if out != "next" {
				t.Fatalf("leaves by %q", out)
			}
			check(t, w, frame, left, addr)
		}
	})
}
