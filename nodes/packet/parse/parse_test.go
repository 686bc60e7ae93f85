package parse_test

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/nodes/packet/parse"
)

var be = binary.BigEndian

func rig(t testing.TB) *nodetest.Worker {
	return nodetest.New[struct{}](t, "parse", nil).Workers[0]
}

// edit answers a copy of b, changed; for IPv4 frames without tags the header
// checksum is made right again.
func edit(b []byte, change func(b []byte) []byte) []byte {
	b = change(slices.Clone(b))
	if len(b) >= 34 && be.Uint16(b[12:]) == packet.EtherIPv4 {
		if n := int(b[14]&0xf) * 4; n >= 20 && len(b) >= 14+n {
			be.PutUint16(b[24:], 0)
			be.PutUint16(b[24:], packet.Checksum(b[14:14+n]))
		}
	}
	return b
}

func set(at int, to ...byte) func([]byte) []byte {
	return func(b []byte) []byte { copy(b[at:], to); return b }
}

// tagged puts VLAN tags of the given EtherTypes in front of the IP header.
func tagged(b []byte, types ...uint16) []byte {
	out := slices.Clone(b[:12])
	for i, typ := range types {
		out = be.AppendUint16(be.AppendUint16(out, typ), uint16(100+i))
	}
	return append(out, b[12:]...)
}

// extended puts IPv6 extension headers behind the IPv6 header: pairs of protocol
// number and bytes whose first is filled in.
func extended(b []byte, ext ...[]byte) []byte {
	out := slices.Clone(b[:54])
	last := out[20]
	for i := len(ext) - 1; i >= 0; i-- {
		ext[i][1], last = last, ext[i][0]
	}
	out[20] = last
	for _, e := range ext {
		out = append(out, e[1:]...)
	}
	out = append(out, b[54:]...)
	be.PutUint16(out[18:], uint16(len(out)-54))
	return out
}

// ext makes an extension header of n×8 bytes for extended.
func ext(proto byte, n int) []byte {
	e := make([]byte, 1+8*n)
	e[0], e[2] = proto, byte(n-1)
	if n == 1 {
		e[3], e[4] = 1, 4 // PadN
	}
	return e
}

// frag makes an IPv6 fragment header for extended.
func frag(offset uint16, more bool, id uint32) []byte {
	w := offset
	if more {
		w |= 1
	}
	return be.AppendUint32(be.AppendUint16([]byte{44, 0, 0}, w), id)
}

type columns struct {
	L3, L4       uint16
	IPLen        uint32
	Flags        packet.Flags
	Proto, TCP   uint8
	ID           uint32
	SPort, DPort uint16
}

func row(v *packet.Vector, i int) columns {
	c := columns{v.L3[i], v.L4[i], v.IPLen[i], v.Flags[i], v.Proto[i], v.TCP[i], 0, v.SPort[i], v.DPort[i]}
	if c.Flags&(packet.First|packet.Later) != 0 {
		c.ID = v.ID[i]
	}
	return c
}

func TestColumns(t *testing.T) {
	c := nodetest.Cases(t)
	udp6 := nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 5001, 4500, 1, 2, 3, 4, 5, 6, 7, 8)
	const six = packet.V6 | packet.DF
	tests := []struct {
		name   string
		frame  []byte
		output string
		want   columns
	}{
		{"syn", c["syn"], "next", columns{14, 34, 44, packet.DF, 6, packet.SYN, 0, 40000, 443}},
		{"data", c["data"], "next", columns{14, 34, 45, packet.DF, 6, packet.PSH | packet.ACK, 0, 40000, 443}},
		{"trailer-pad", c["trailer-pad"], "next", columns{14, 34, 40, packet.DF, 6, packet.ACK, 0, 40013, 443}},
		{"udp-1500-df", c["udp-1500-df"], "next", columns{14, 34, 1500, packet.DF, 17, 0, 0, 5001, 4500}},
		{"ihl6", c["ihl6"], "next", columns{14, 38, 48, packet.DF, 6, packet.SYN, 0, 40000, 443}},
		{"syn6", c["syn6"], "next", columns{14, 54, 64, six, 6, packet.SYN, 0, 40000, 443}},
		{"udp6", udp6, "next", columns{14, 54, 56, six, 17, 0, 0, 5001, 4500}},
		{"vlan100-syn", c["vlan100-syn"], "next", columns{18, 38, 44, packet.DF | packet.Tagged, 6, packet.SYN, 0, 40000, 443}},
		{"QinQ", tagged(c["syn"], 0x88a8, 0x8100), "next", columns{22, 42, 44, packet.DF | packet.Tagged, 6, packet.SYN, 0, 40000, 443}},
		{"QinQ over IPv6", tagged(c["syn6"], 0x8100, 0x8100), "next", columns{22, 62, 64, six | packet.Tagged, 6, packet.SYN, 0, 40000, 443}},
		{"frag1", c["frag1"], "next", columns{14, 34, 1500, packet.First, 17, 0, 0xbeef, 5000, 4500}},
		{"frag2", c["frag2"], "fragment", columns{14, 34, 596, packet.Later, 17, 0, 0xbeef, 0, 0}},
		{"v6-frag1", c["v6-frag1"], "next", columns{14, 62, 1280, six | packet.First, 17, 0, 0xabcdef01, 5000, 4500}},
		{"v6-frag2", c["v6-frag2"], "fragment", columns{14, 62, 224, six | packet.Later, 17, 0, 0xabcdef01, 0, 0}},
		{"icmp-fragneeded-8", c["icmp-fragneeded-8"], "icmp", columns{14, 34, 56, packet.ICMP, 1, 0, 0, 0, 0}},
		{"icmp6-ptb", c["icmp6-ptb"], "icmp", columns{14, 54, 1232, six | packet.ICMP, 58, 0, 0, 0, 0}},
		{"echo6", c["echo6"], "icmp", columns{14, 54, 52, six | packet.ICMP, 58, 0, 0, 0, 0}},
		{"first fragment of ICMP", edit(c["icmp-fragneeded-8"], set(20, 0x20, 0)), "icmp", columns{14, 34, 56, packet.ICMP | packet.First, 1, 0, 0x1234, 0, 0}},
		{"later fragment of ICMP", edit(c["icmp-fragneeded-8"], set(20, 0, 9)), "fragment", columns{14, 34, 56, packet.ICMP | packet.Later, 1, 0, 0x1234, 0, 0}},
		{"GRE", edit(c["data"], set(23, 47)), "next", columns{14, 34, 45, packet.DF, 47, 0, 0, 0, 0}},
		{"ESP over IPv6", edit(c["syn6"], set(20, 50)), "next", columns{14, 54, 64, six, 50, 0, 0, 0, 0}},
		{"ICMP in IPv6", edit(c["syn6"], set(20, 1)), "next", columns{14, 54, 64, six, 1, 0, 0, 0, 0}},
		{"ICMPv6 in IPv4", edit(c["syn"], set(23, 58)), "next", columns{14, 34, 44, packet.DF, 58, 0, 0, 0, 0}},
		{"no next header", edit(c["syn6"], set(20, 59)), "next", columns{14, 54, 64, six, 59, 0, 0, 0, 0}},
		{"hop-by-hop, options, routing, options", extended(c["syn6"], ext(0, 1), ext(60, 2), ext(43, 3), ext(60, 1)), "next", columns{14, 110, 120, six, 6, packet.SYN, 0, 40000, 443}},
		{"hop-by-hop and echo", extended(c["echo6"], ext(0, 1)), "icmp", columns{14, 62, 60, six | packet.ICMP, 58, 0, 0, 0, 0}},
		{"atomic fragment", extended(c["syn6"], frag(0, false, 7)), "next", columns{14, 62, 72, six, 6, packet.SYN, 0, 40000, 443}},
		{"atomic fragment, reserved bits", extended(c["syn6"], frag(6, false, 7)), "next", columns{14, 62, 72, six, 6, packet.SYN, 0, 40000, 443}},
		{"options inside a first fragment", extended(udp6, ext(0, 1), frag(0, true, 7), ext(60, 1)), "next", columns{14, 78, 80, six | packet.First, 17, 0, 7, 5001, 4500}},
		{"later fragment that began with options", extended(udp6, frag(64, false, 7), ext(60, 1)), "fragment", columns{14, 62, 72, six | packet.Later, 60, 0, 7, 0, 0}},
		{"room behind a datagram", edit(c["udp-1500-df"], set(38, 0, 8)), "next", columns{14, 34, 1500, packet.DF, 17, 0, 0, 5001, 4500}},
		{"small datagram", nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 1, 4500), "next", columns{14, 34, 28, packet.DF, 17, 0, 0, 1, 4500}},
		{"small datagram, IPv6", nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 1, 4500), "next", columns{14, 54, 48, six, 17, 0, 0, 1, 4500}},
	}
	// Alone in lane 0 and beside others in a sparse set, so that both ways are taken.
	for _, sparse := range []bool{false, true} {
		w := rig(t)
		for _, x := range tests {
			in, lane := w.Load(x.frame), 0
			if sparse {
				in, lane = w.Load(c["syn"], x.frame)&^1, 1
			}
			w.V.VIP[lane], w.V.Backend[lane] = 5, 6
			ans := w.Process(in)
			if got := w.Only(ans, lane); got != x.output {
				t.Errorf("%s: leaves by %q, want %q", x.name, got, x.output)
			}
			if got := row(&w.V, lane); got != x.want {
				t.Errorf("%s:\n got %+v\nwant %+v", x.name, got, x.want)
			}
			v := &w.V
			src, dst := nodetest.Client4, nodetest.VIP4
			if x.want.Flags&packet.V6 != 0 {
				src, dst = nodetest.Client6, nodetest.VIP6
			}
			switch x.name {
			case "icmp-fragneeded-8", "icmp6-ptb", "first fragment of ICMP", "later fragment of ICMP": // from a router
				src = v.Src[lane].Netip()
			}
			if v.Src[lane] != packet.AddrOf(src) || v.Dst[lane] != packet.AddrOf(dst) {
				t.Errorf("%s: %v to %v", x.name, v.Src[lane], v.Dst[lane])
			}
			if h := packet.FlowHash(v.Src[lane], v.Dst[lane], x.want.SPort, x.want.DPort, x.want.Proto); v.Hash[lane] != h {
				t.Errorf("%s: hash %#x, want %#x", x.name, v.Hash[lane], h)
			}
			if v.VIP[lane] != 0 || v.Backend[lane] != 0 {
				t.Errorf("%s: keeps service and backend of the vector before", x.name)
			}
		}
	}
}

func TestReasons(t *testing.T) {
	c := nodetest.Cases(t)
	arp := edit(c["syn"], set(12, 0x08, 0x06))
	llc := edit(c["syn"], set(12, 0x00, 0x2c))
	deep := make([][]byte, 9)
	for i := range deep {
		deep[i] = ext(60, 1)
	}
	udp := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 1, 4500, make([]byte, 32)...)
	udp6 := nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 1, 4500, make([]byte, 32)...)
	tests := []struct {
		name, want string
		frame      []byte
	}{
		{"ARP", "other", arp},
		{"LLC", "other", llc},
		{"ARP in a VLAN", "other", tagged(arp, 0x8100)},
		{"no Ethernet header", "truncated", c["syn"][:13]},
		{"half a tag", "truncated", c["vlan100-syn"][:16]},
		{"nothing behind the EtherType", "truncated", c["syn"][:14]},
		{"half an IPv4 header", "truncated", c["syn"][:33]},
		{"half an IPv6 header", "truncated", c["syn6"][:53]},
		{"version 6 in IPv4", "bad_version", edit(c["syn"], set(14, 0x65))},
		{"version 4 in IPv6", "bad_version", edit(c["syn6"], set(14, 0x40))},
		{"totlen-lies", "bad_length", c["totlen-lies"]},
		{"a byte is missing", "bad_length", c["data"][:58]},
		{"total length shorter than the header", "bad_length", edit(c["syn"], set(16, 0, 19))},
		{"total length shorter than the options", "bad_length", edit(c["ihl6"], set(16, 0, 22))},
		{"IPv6 payload longer than the frame", "bad_length", edit(c["syn6"], set(18, 0, 25))},
		{"UDP length 7", "bad_length", edit(udp, set(38, 0, 7))},
		{"UDP longer than the packet", "bad_length", edit(udp, set(38, 0, 41))},
		{"UDP length 0, IPv6", "bad_length", edit(udp6, set(58, 0, 0))},
		{"UDP longer than the packet, IPv6", "bad_length", edit(udp6, set(58, 0, 41))},
		{"first fragment of a datagram of 7 bytes", "bad_length", edit(udp, func(b []byte) []byte { return set(38, 0, 7)(set(20, 0x20, 0)(b)) })},
		{"IPv6 fragment of odd length", "bad_length", extended(nodetest.UDP(t, nodetest.Client6, nodetest.VIP6, 1, 4500, 1), frag(0, true, 1))},
		{"fragment past 65535", "bad_length", edit(udp, set(20, 0x1f, 0xff))},
		{"IPv6 fragment past 65535", "bad_length", extended(udp6, frag(0xfff8, false, 1))},
		{"fragment up to byte 65535", "fragment", edit(udp, func(b []byte) []byte { return set(20, 0x1f, 0xf9)(set(16, 0, 55)(b)) })},
		{"fragment one byte past that", "bad_length", edit(udp, func(b []byte) []byte { return set(20, 0x1f, 0xf9)(set(16, 0, 56)(b)) })},
		{"IPv6 fragment up to byte 65535", "fragment", extended(udp6[:54+7], frag(0xfff8, false, 1))},
		{"IPv6 fragment one byte past that", "bad_length", extended(udp6[:54+8], frag(0xfff8, false, 1))},
		{"IPv6 fragment of 12 bytes with more to come", "bad_length", extended(udp6[:54+12], frag(8, true, 1))},
		{"IPv6 fragment of 16 bytes with more to come", "fragment", extended(udp6[:54+16], frag(8, true, 1))},
		{"fragment of no data", "bad_length", edit(c["frag2"], func(b []byte) []byte { return set(16, 0, 20)(b[:34]) })},
		{"checksum", "bad_checksum", set(24, 0xc2, 0x53)(slices.Clone(c["syn"]))},
		{"checksum with options", "bad_checksum", set(34, 2)(slices.Clone(c["ihl6"]))},
		{"checksum of a fragment", "bad_checksum", set(30, 2)(slices.Clone(c["frag2"]))},
		{"IHL 4", "bad_header", edit(c["syn"], set(14, 0x44))},
		{"IHL 0", "bad_header", edit(c["syn"], set(14, 0x40))},
		{"TCP of 19 bytes", "bad_header", edit(c["syn"], set(16, 0, 39))},
		{"TCP offset 4", "bad_header", edit(c["syn"], set(46, 0x40))},
		{"TCP offset past the end", "bad_header", edit(c["syn"], set(46, 0x70))},
		{"TCP offset past the end, IPv6", "bad_header", edit(c["syn6"], set(66, 0x70))},
		{"TCP offset into the padding", "bad_header", edit(c["trailer-pad"], set(46, 0x60))},
		{"UDP of 7 bytes", "bad_header", edit(udp, set(16, 0, 27))},
		{"UDP of 7 bytes, IPv6", "bad_header", edit(udp6, set(18, 0, 7))},
		{"ICMP of 7 bytes", "bad_header", edit(c["icmp-fragneeded-8"], set(16, 0, 27))},
		{"tiny first fragment, no ports", "bad_header", edit(c["frag1"], func(b []byte) []byte { return set(16, 0, 23)(b[:60]) })},
		{"tiny first fragment, no TCP flags", "bad_header", edit(c["syn"], func(b []byte) []byte { return set(16, 0, 36, 0, 0, 0x20, 0)(b) })},
		{"tiny first fragment, IPv6", "bad_header", extended(c["syn6"][:70], frag(0, true, 1))},
		{"first fragment that ends in options", "bad_header", extended(c["syn6"][:54], frag(0, true, 1), ext(60, 1))[:62+8-8+8]},
		{"hop-by-hop second", "bad_header", extended(c["syn6"], ext(60, 1), ext(0, 1))},
		{"two fragment headers", "bad_header", extended(c["syn6"], frag(0, false, 1), frag(0, false, 1))},
		{"nine extension headers", "bad_header", extended(c["syn6"], deep...)},
		{"extension header past the end", "bad_header", extended(c["syn6"], []byte{60, 0, 200, 1, 4, 0, 0, 0, 0})},
		{"half an extension header", "bad_header", edit(c["syn6"], func(b []byte) []byte { return set(18, 0, 4)(set(20, 60)(b)) })},
		{"half a fragment header", "bad_header", edit(c["syn6"], func(b []byte) []byte { return set(18, 0, 7)(set(20, 44)(b)) })},
		{"payload length 0", "bad_header", edit(c["syn6"], set(18, 0, 0))},
		{"three tags", "bad_tag", tagged(c["syn"], 0x88a8, 0x8100, 0x8100)},
	}
	w := rig(t)
	seen := map[string]bool{}
	for _, x := range tests {
		if got := w.Only(w.Process(w.Load(x.frame)), 0); got != x.want {
			t.Errorf("%s: leaves by %q, want %q", x.name, got, x.want)
		}
		seen[x.want] = true
	}
	for _, o := range w.Outputs[3:] {
		if !seen[o.Name] {
			t.Errorf("no packet earns %s", o.Name)
		}
	}
}

// A whole vector of a mix leaves in the right places.
func TestVector(t *testing.T) {
	c := nodetest.Cases(t)
	names := slices.Sorted(maps.Keys(c))
	var frames [][]byte
	for i := range packet.Size {
		frames = append(frames, c[names[i%len(names)]])
	}
	w := rig(t)
	ans := w.Process(w.Load(frames...))
	alone := rig(t)
	for i := range packet.Size {
		a := alone.Process(alone.Load(frames[i]))
		if got, want := w.Only(ans, i), alone.Only(a, 0); got != want {
			t.Errorf("%s leaves by %q among others and by %q alone", names[i%len(names)], got, want)
		}
		if got, want := row(&w.V, i), row(&alone.V, 0); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", names[i%len(names)], got, want)
		}
	}
}

// The first frame of a chained packet is enough: lengths count for the whole.
func TestChain(t *testing.T) {
	whole := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, 1, 4500, make([]byte, 3000)...)
	w := rig(t)
	w.Load(whole[:1700], whole[:1700])
	w.V.Total[0], w.V.Chain[0] = uint32(len(whole)), 500
	w.V.Total[1], w.V.Chain[1] = uint32(len(whole)-1), 501
	ans := w.Process(packet.All(2))
	if w.Only(ans, 0) != "next" || w.V.IPLen[0] != 3028 || w.V.DPort[0] != 4500 {
		t.Errorf("leaves by %q, %d bytes, port %d", w.Only(ans, 0), w.V.IPLen[0], w.V.DPort[0])
	}
	if w.Only(ans, 1) != "bad_length" {
		t.Errorf("one byte short: leaves by %q", w.Only(ans, 1))
	}
}

// Every prefix of every case is dropped by name or handed on where it is still
// whole, and nothing behind its end is looked at.
func TestTruncated(t *testing.T) {
	w := rig(t)
	for name, frame := range nodetest.Cases(t) {
		for n := range len(frame) {
			check(t, w, name, frame[:n])
		}
		w.Reuse()
	}
}

// check parses b before two kinds of poison and compares with the independent
// decoder.
func check(t testing.TB, w *nodetest.Worker, name string, b []byte) (output string) {
	w.Reuse()
	in := w.Load(b)
	output = w.Only(w.Process(in), 0)
	first := w.V
	in = w.Load(b)
	end := w.V.Start[0] + w.V.Len[0]
	for i := range w.V.Mem[end : end+200] {
		w.V.Mem[int(end)+i] = 0
	}
	if again := w.Only(w.Process(in), 0); again != output || row(&first, 0) != row(&w.V, 0) ||
		first.Src[0] != w.V.Src[0] || first.Dst[0] != w.V.Dst[0] || first.Hash[0] != w.V.Hash[0] {
		t.Fatalf("%s, %d bytes: what stands behind the end changes the answer: %q %+v, %q %+v", name, len(b), output, row(&first, 0), again, row(&w.V, 0))
	}
	c := row(&w.V, 0)
	if int(w.V.Len[0]) != len(b) || w.V.Total[0] != w.V.Len[0] {
		t.Fatalf("%s: length changed", name)
	}
	oracle(t, name, b, output, c, &w.V)
	among(t, w, name, b, output)
	return output
}

// among holds the answer for b alone, which stands in lane 0, against those for b in a
// lane of many.
func among(t testing.TB, w *nodetest.Worker, name string, b []byte, output string) {
	alone := w.V
	frames := make([][]byte, 11)
	for i := range frames {
		frames[i] = neighbour
	}
	at := len(b) % len(frames)
	frames[at] = b
	parse.Try(w.Node)
	ans := w.Process(w.Load(frames...))
	for i := range frames {
		want, c := "next", columns{14, 34, 44, packet.DF, 6, packet.SYN, 0, 40000, 443}
		if i == at {
			want, c = output, row(&alone, 0)
			if w.V.Src[i] != alone.Src[0] || w.V.Dst[i] != alone.Dst[0] || w.V.Hash[i] != alone.Hash[0] {
				t.Fatalf("%s, %d bytes: addresses or hash differ among others: %v %v %x, alone %v %v %x", name, len(b),
					w.V.Src[i], w.V.Dst[i], w.V.Hash[i], alone.Src[0], alone.Dst[0], alone.Hash[0])
			}
		}
		if got := w.Only(ans, i); got != want || row(&w.V, i) != c || w.V.VIP[i] != 0 || w.V.Backend[i] != 0 {
			t.Fatalf("%s, %d bytes: lane %d of %d, with it in lane %d: %q %+v, want %q %+v", name, len(b), i, len(frames), at, got, row(&w.V, i), want, c)
		}
	}
	w.Reuse()
}

var neighbour = func() []byte {
	b := set(14, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 51, 100, 7, 203, 0, 113, 10, 0x9c, 0x40, 0x01, 0xbb)(make([]byte, 58))
	b[12], b[46], b[47] = 8, 6<<4, packet.SYN
	return edit(b, func(b []byte) []byte { return b })
}()

// oracle holds an answer against gopacket's.
func oracle(t testing.TB, name string, b []byte, output string, c columns, v *packet.Vector) {
	if output != "next" && output != "icmp" && output != "fragment" {
		return
	}
	if int(c.L3)+int(c.IPLen) > len(b) || int(c.L4) > int(c.L3)+int(c.IPLen) {
		t.Fatalf("%s: %+v runs past %d bytes", name, c, len(b))
	}
	off, inIP := 0, false
	for _, l := range nodetest.Decode(b).Layers() {
		switch l := l.(type) {
		case *layers.IPv4:
			if inIP {
				return // a tunnel: parse looks at the outermost header
			}
			inIP = true
			if off != int(c.L3) || int(l.Length) != int(c.IPLen) || off+int(l.IHL)*4 != int(c.L4) || uint8(l.Protocol) != c.Proto || c.Flags&packet.V6 != 0 {
				t.Fatalf("%s: %+v, gopacket says IPv4 at %d, %+v", name, c, off, l)
			}
			if more := l.Flags&layers.IPv4MoreFragments != 0; (l.FragOffset > 0) != (c.Flags&packet.Later != 0) || (more && l.FragOffset == 0) != (c.Flags&packet.First != 0) {
				t.Fatalf("%s: %+v, gopacket says %+v", name, c, l)
			}
			if (l.FragOffset > 0) != (output == "fragment") || c.Flags&(packet.First|packet.Later) != 0 && c.ID != uint32(l.Id) {
				t.Fatalf("%s: leaves by %q with %+v, gopacket says %+v", name, output, c, l)
			}
			if !slices.Equal(l.SrcIP.To4(), v.Src[0].Netip().AsSlice()) || !slices.Equal(l.DstIP.To4(), v.Dst[0].Netip().AsSlice()) {
				t.Fatalf("%s: %v to %v, gopacket says %+v", name, v.Src[0], v.Dst[0], l)
			}
		case *layers.IPv6:
			if inIP {
				return
			}
			inIP = true
			src, dst := v.Src[0], v.Dst[0]
			var s, d [16]byte
			src.Put16(s[:])
			dst.Put16(d[:])
			if off != int(c.L3) || int(l.Length)+40 != int(c.IPLen) || c.Flags&packet.V6 == 0 || string(l.SrcIP) != string(s[:]) || string(l.DstIP) != string(d[:]) {
				t.Fatalf("%s: %+v, gopacket says IPv6 at %d, %+v", name, c, off, l)
			}
		case *layers.IPv6Fragment:
			if off > int(c.L4) || c.Flags&packet.V6 == 0 {
				return // the last header that parse looks at is another
			}
			if (l.FragmentOffset > 0) != (output == "fragment") || l.FragmentOffset == 0 && l.MoreFragments != (c.Flags&packet.First != 0) {
				t.Fatalf("%s: leaves by %q, gopacket says %+v", name, output, l)
			}
			if l.FragmentOffset > 0 && (off+8 != int(c.L4) || l.Identification != c.ID) {
				t.Fatalf("%s: %+v, gopacket says %+v at %d", name, c, l, off)
			}
		case *layers.TCP:
			if c.Flags&packet.Later == 0 && off == int(c.L4) && (output != "next" || c.Proto != 6 || uint16(l.SrcPort) != c.SPort || uint16(l.DstPort) != c.DPort || l.Contents[13] != c.TCP) {
				t.Fatalf("%s: leaves by %q with %+v, gopacket says TCP at %d, %+v", name, output, c, off, l)
			}
		case *layers.UDP:
			if c.Flags&packet.Later == 0 && off == int(c.L4) && (output != "next" || c.Proto != 17 || uint16(l.SrcPort) != c.SPort || uint16(l.DstPort) != c.DPort) {
				t.Fatalf("%s: leaves by %q with %+v, gopacket says UDP at %d, %+v", name, output, c, off, l)
			}
		case *layers.ICMPv4, *layers.ICMPv6:
			if c.Flags&packet.Later == 0 && off == int(c.L4) && output != "icmp" && c.Proto != 1 && c.Proto != 58 {
				t.Fatalf("%s: leaves by %q with %+v, gopacket says ICMP at %d", name, output, c, off)
			}
		}
		if off > int(c.L4) {
			return
		}
		off += len(l.LayerContents())
	}
	if !inIP {
		t.Fatalf("%s: leaves by %q, gopacket finds no IP", name, output)
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range nodetest.Cases(f) {
		f.Add(b)
	}
	c := nodetest.Cases(f)
	f.Add(tagged(c["syn"], 0x88a8, 0x8100))
	f.Add(extended(c["syn6"], ext(0, 1), ext(60, 2), ext(43, 3), frag(0, false, 9)))
	w := rig(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 3000 {
			return
		}
		w.T = t
		// Random checksums are wrong: both ways are wanted.
		for _, b := range [][]byte{b, edit(b, func(b []byte) []byte { return b })} {
			output := check(t, w, "fuzz", b)
			if output == "bad_checksum" && packet.Sum(b[w.V.L3[0]:int(w.V.L3[0])+int(b[w.V.L3[0]]&0xf)*4]) == 0xffff {
				t.Fatal("bad_checksum, and it is right")
			}
			// Nothing faultless may be refused. gopacket takes a total length of 0 for
			// what segmentation offload leaves in captures; on the wire it is a lie.
			p := nodetest.Decode(b)
			if tcp, ok := p.TransportLayer().(*layers.TCP); ok && p.ErrorLayer() == nil && len(p.Layers()) > 2 && !p.Metadata().Truncated {
				if ip, ok := p.Layers()[1].(*layers.IPv4); ok && p.Layers()[2] == gopacket.Layer(tcp) && ip.Version == 4 && ip.Contents[2]|ip.Contents[3] != 0 && packet.Sum(ip.Contents) == 0xffff && output != "next" {
					t.Fatalf("leaves by %q: %v", output, p)
				}
			}
		}
	})
}

func TestTrace(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t)
	for _, x := range []struct {
		frame []byte
		want  string
	}{
		{c["syn"], "protocol 6, 198.51.100.7:40000 to 203.0.113.10:443, 44 bytes"},
		{c["syn6"], "protocol 6, [2001:db8:c::7]:40000 to [2001:db8::10]:443, 64 bytes"},
		{c["frag2"], "protocol 17, 198.51.100.7 to 203.0.113.10, 596 bytes, fragment of 0xbeef"},
		{edit(c["syn"], set(12, 0x08, 0x06)), "58 bytes, no IP packet"},
	} {
		w.Process(w.Load(x.frame))
		if got := w.Node.(graph.Tracer).Trace(&w.V, 0); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	c := nodetest.Cases(t)
	var frames [][]byte
	for _, b := range c {
		frames = append(frames, b)
	}
	w := rig(t)
	in := w.Load(frames...)
	if n := testing.AllocsPerRun(100, func() { w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkParse reports nanoseconds a packet. The frames of a vector stay in the cache.
func BenchmarkParse(b *testing.B) {
	c := nodetest.Cases(b)
	udp := nodetest.UDP(b, nodetest.Client4, nodetest.VIP4, 5001, 4500, make([]byte, 64)...)
	for _, x := range []struct {
		name  string
		frame []byte
	}{
		{"tcp4", c["data"]},
		{"udp4", udp},
		{"tcp6", c["syn6"]},
		{"vlan", c["vlan100-syn"]},
		{"options", c["ihl6"]},
		{"extensions", extended(c["syn6"], ext(0, 1), ext(60, 1))},
		{"fragment", c["frag2"]},
		{"icmp", c["icmp-fragneeded-8"]},
	} {
		b.Run(x.name, func(b *testing.B) {
			w := rig(b)
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = x.frame
			}
			in := w.Load(frames...)
			b.ReportAllocs()
			for b.Loop() {
				w.Run(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}

// BenchmarkParseCold is of packets that lie anywhere in 128 MB: few are in a cache.
func BenchmarkParseCold(b *testing.B) {
	data := nodetest.Cases(b)["data"]
	const chunk, frames = 2048, 1 << 16
	mem := make([]byte, chunk*frames)
	for f := range frames {
		copy(mem[f*chunk+256:], data)
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(frames)
	w := rig(b)
	w.V.Mem = mem
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		for i := range packet.Size {
			w.V.Start[i], w.V.Len[i], w.V.Total[i] = uint32(order[at%frames]*chunk+256), uint32(len(data)), uint32(len(data))
			at++
		}
		w.Run(packet.All(packet.Size))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
