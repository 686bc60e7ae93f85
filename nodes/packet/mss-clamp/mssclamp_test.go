package mssclamp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// Backends by number.
const (
	over4 = iota + 1
	over6
	narrow  // a smaller path MTU was learned
	absurd4 // as an attacker may claim
	absurd6
	gone // past the end of the snapshot
)

var world = &state.Snapshot{Backends: []state.Backend{
	{},
	over4:   {Addr: netip.MustParseAddr("10.0.1.1")},
	over6:   {Addr: netip.MustParseAddr("2001:db8:1::1")},
	narrow:  {Addr: netip.MustParseAddr("10.0.1.2"), MTU: 1400},
	absurd4: {Addr: netip.MustParseAddr("10.0.1.3"), MTU: 68},
	absurd6: {Addr: netip.MustParseAddr("2001:db8:1::2"), MTU: 68},
}}

func rig(t testing.TB, insert bool, opts ...nodetest.Option) *nodetest.Worker {
	return nodetest.New(t, "mss-clamp", func(c *Config) { c.Insert = insert }, append(opts, nodetest.WithState(world))...).Workers[0]
}

// send runs one frame on its way to a backend and answers what leaves.
func send(t testing.TB, w *nodetest.Worker, backend uint32, frame []byte) []byte {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	w.V.Backend[0] = backend
	clear(w.Counters)
	if out := w.Only(w.Process(in), 0); out != "next" {
		t.Errorf("leaves by %q", out)
	}
	return bytes.Clone(w.V.Bytes(0))
}

// mss answers the values of all MSS options, read by an independent decoder, and
// whether checksums and lengths are right.
func mss(t *testing.T, frame []byte) (values []uint16) {
	t.Helper()
	p := nodetest.Decode(frame)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%v: %x", e.Error(), frame)
	}
	ip := p.NetworkLayer()
	tcp := append(bytes.Clone(p.TransportLayer().LayerContents()), p.TransportLayer().LayerPayload()...)
	if h, ok := ip.(*layers.IPv4); ok && packet.Checksum(h.Contents) != 0 {
		t.Errorf("IPv4 checksum: %x", frame)
	}
	src, _ := netip.AddrFromSlice(ip.NetworkFlow().Src().Raw())
	dst, _ := netip.AddrFromSlice(ip.NetworkFlow().Dst().Raw())
	if sum := packet.PseudoSum(packet.AddrOf(src), packet.AddrOf(dst), 6, uint32(len(tcp))) + packet.Sum(tcp); packet.Fold(sum) != 0xffff {
		t.Errorf("TCP checksum: %x", frame)
	}
	for _, o := range p.TransportLayer().(*layers.TCP).Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			values = append(values, binary.BigEndian.Uint16(o.OptionData))
		}
	}
	return values
}

// options makes a SYN with the options as they are, padded.
func options(t testing.TB, v6 bool, opts ...byte) []byte {
	src, dst, tcp := nodetest.Client4, nodetest.VIP4, 34
	if v6 {
		src, dst, tcp = nodetest.Client6, nodetest.VIP6, 54
	}
	for len(opts)%4 != 0 {
		opts = append(opts, 0)
	}
	// The decoder's builder writes only options that parse: they go in as data first.
	b := nodetest.TCP(t, src, dst, 40000, 443, func(h *layers.TCP) { h.SYN = true }, opts...)
	b[tcp+12] = byte(5+len(opts)/4) << 4
	sum := binary.BigEndian.Uint16(b[tcp+16:])
	binary.BigEndian.PutUint16(b[tcp+16:], packet.Update16(sum, 0x5002, binary.BigEndian.Uint16(b[tcp+12:])))
	return b
}

func TestClamp(t *testing.T) {
	c := nodetest.Cases(t)
	synack := nodetest.TCP(t, nodetest.Client4, nodetest.VIP4, 1, 443, func(h *layers.TCP) {
		h.SYN, h.ACK = true, true
		h.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{0x05, 0xb4}}}
	})
	jumbo := nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, 1, 443, 8960)
	tests := []struct {
		name    string
		backend uint32
		frame   []byte
		want    []uint16
	}{
		{"GRE over IPv4", over4, c["syn"], []uint16{1436}},
		{"GRE over IPv6", over6, c["syn"], []uint16{1416}},
		{"IPv6 in GRE over IPv4", over4, c["syn6"], []uint16{1416}},
		{"IPv6 in GRE over IPv6", over6, c["syn6"], []uint16{1396}},
		{"SYN-ACK", over4, synack, []uint16{1436}},
		{"jumbo", over4, jumbo, []uint16{1436}},
		{"odd offset", over4, c["mss-odd"], []uint16{1436}},
		{"VLAN", over4, c["vlan100-syn"], []uint16{1436}},
		{"IPv4 options", over4, c["ihl6"], []uint16{1436}},
		{"learned MTU", narrow, c["syn"], []uint16{1336}},
		{"no path is that narrow", absurd4, c["syn"], []uint16{576 - 24 - 40}},
		{"nor over IPv6", absurd6, c["syn"], []uint16{1280 - 44 - 40}},
		{"behind other options", over4, options(t, false, 3, 3, 7, 4, 2, 2, 4, 5, 0xb4, 1), []uint16{1436}},
		{"odd, IPv6", over4, options(t, true, 1, 2, 4, 0xff, 0xff), []uint16{1416}},
		{"twice", over4, options(t, false, 2, 4, 5, 0xb4, 1, 2, 4, 5, 0xb5, 1), []uint16{1436, 1436}},
	}
	w := rig(t, false)
	for _, x := range tests {
		got := send(t, w, x.backend, x.frame)
		if m := mss(t, got); !slices.Equal(m, x.want) {
			t.Errorf("%s: MSS %d, want %d", x.name, m, x.want)
		}
		if w.Counter("clamped") != 1 || w.Counter("malformed")+w.Counter("no_mss")+w.Counter("inserted") != 0 {
			t.Errorf("%s: counters %v", x.name, w.Counters)
		}
		// Nothing but the option and the checksum may differ.
		if len(got) != len(x.frame) {
			t.Errorf("%s: %d bytes became %d", x.name, len(x.frame), len(got))
		}
		if diff := differing(got, x.frame); diff > 2+2*len(x.want) {
			t.Errorf("%s: %d bytes changed", x.name, diff)
		}
	}
}

func differing(a, b []byte) (n int) {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func TestUntouched(t *testing.T) {
	c := nodetest.Cases(t)
	small := nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, 1, 443, 1436)
	tests := []struct {
		name    string
		frame   []byte
		counter string // "" is none
	}{
		{"not a SYN", c["data"], ""},
		{"FIN", c["fin"], ""},
		{"UDP", c["udp-1500-df"], ""},
		{"later fragment", c["frag2"], ""},
		{"ICMP", c["icmp-fragneeded-8"], ""},
		{"small enough", small, ""},
		{"no option", c["mss-none"], "no_mss"},
		{"behind the end of options", options(t, false, 0, 0, 0, 0, 2, 4, 5, 0xb4), "no_mss"},
		{"length 0", options(t, false, 3, 0, 2, 4, 5, 0xb4), "malformed"},
		{"length 1", options(t, false, 3, 1, 2, 4, 5, 0xb4), "malformed"},
		{"past the end", options(t, false, 2, 4, 5, 0xb4, 1, 1, 3, 3), "malformed"},
		{"kind without length", options(t, false, 2, 4, 5, 0xb4, 1, 1, 1, 3), "malformed"},
		{"MSS of length 3", options(t, false, 2, 3, 5), "malformed"},
		{"MSS of length 5", options(t, false, 2, 5, 5, 0xb4, 0), "malformed"},
	}
	w := rig(t, false)
	for _, x := range tests {
		if got := send(t, w, over4, x.frame); !bytes.Equal(got, x.frame) {
			t.Errorf("%s: changed to\n%x, was\n%x", x.name, got, x.frame)
		}
		for i, d := range w.Kind.Counters {
			want := uint64(0)
			if d.Name == x.counter {
				want = 1
			}
			if w.Counters[i] != want {
				t.Errorf("%s: %s is %d, want %d", x.name, d.Name, w.Counters[i], want)
			}
		}
		if (w.V.Flags[0]&packet.Malformed != 0) != (x.counter == "malformed") {
			t.Errorf("%s: flags %b", x.name, w.V.Flags[0])
		}
	}
	if got := send(t, w, gone, c["syn"]); !bytes.Equal(got, c["syn"]) {
		t.Errorf("a backend that is not in the snapshot: changed")
	}
}

// What stands behind the end of a packet's first frame is not the packet's: a header or
// options that end there are left alone.
func TestStaysWithinTheFrame(t *testing.T) {
	w := rig(t, false)
	frame := nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, 1, 443, 1460)
	const l4 = packet.EtherLen + packet.IPv4Len
	for _, n := range []uint32{l4 - 1, l4, l4 + packet.TCPLen - 1, l4 + packet.TCPLen, l4 + packet.TCPLen + optionLen - 1} {
		w.Reuse()
		in := w.Load(frame)
		w.Parse(in)
		w.V.Backend[0], w.V.Len[0] = over4, n
		clear(w.Counters)
		w.Process(in)
		w.V.Len[0] = uint32(len(frame))
		if !bytes.Equal(w.V.Bytes(0), frame) || w.Counter("clamped") != 0 {
			t.Errorf("%d bytes: %d clamped, changed to\n%x, was\n%x", n, w.Counter("clamped"), w.V.Bytes(0), frame)
		}
	}
}

// Lanes that the node was not given stay as they are, with all kinds of SYNs in them.
func TestOtherLanesStay(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, true)
	kinds := [][]byte{c["syn"], c["mss-odd"], c["syn6"], c["mss-none"], options(t, false, 3, 0)}
	var frames [][]byte
	for i := range packet.Size {
		frames = append(frames, kinds[i%len(kinds)])
	}
	for _, in := range []packet.Lanes{0, 1, 1 << 63, 0x5555555555555555, packet.All(packet.Size) &^ packet.All(8), packet.All(55)} {
		w.Reuse()
		w.Parse(w.Load(frames...))
		for i := range packet.Size {
			w.V.Backend[i] = over4
		}
		was := w.V.Flags
		clear(w.Counters)
		w.Process(in)
		changed := uint64(0)
		for i := range packet.Size {
			same := bytes.Equal(w.V.Bytes(i), frames[i]) && w.V.Flags[i] == was[i]
			if !in.Has(i) && !same {
				t.Errorf("lanes %x: lane %d changed", in, i)
			}
			if in.Has(i) {
				changed++
				if same {
					t.Errorf("lanes %x: lane %d is as it was", in, i)
				}
			}
		}
		if n := w.Counter("clamped") + w.Counter("inserted") + w.Counter("malformed"); n != changed {
			t.Errorf("lanes %x: %d counted, want %d", in, n, changed)
		}
	}
}

// A corrupt checksum must stay as wrong as it was.
func TestKeepsCorruption(t *testing.T) {
	w := rig(t, false)
	frame := nodetest.Cases(t)["syn"]
	frame[40] ^= 0x40
	got := send(t, w, over4, frame)
	if w.Counter("clamped") != 1 {
		t.Error("not clamped")
	}
	got[40] ^= 0x40
	if m := mss(t, got); m[0] != 1436 {
		t.Errorf("MSS %d", m)
	}
}

func TestInsert(t *testing.T) {
	c := nodetest.Cases(t)
	full := make([]byte, 40)
	for i := range full {
		full[i] = 1
	}
	data := nodetest.TCP(t, nodetest.Client6, nodetest.VIP6, 1, 443, func(h *layers.TCP) {
		h.SYN = true
		h.Options = []layers.TCPOption{{OptionType: 34, OptionLength: 2}, {OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop}}
	}, []byte("hello")...)
	first := bytes.Clone(c["mss-none"])
	first[20] = 0x20
	first[24], first[25] = 0, 0
	binary.BigEndian.PutUint16(first[24:], packet.Checksum(first[14:34]))
	long := nodetest.TCP(t, nodetest.Client4, nodetest.VIP4, 1, 443, func(h *layers.TCP) { h.SYN = true }, make([]byte, 1433)...)
	tests := []struct {
		name  string
		frame []byte
		want  uint16 // 0: untouched
	}{
		{"IPv4", c["mss-none"], 536},
		{"IPv6 with options and data", data, 1220},
		{"one word of room", options(t, false, full[:36]...), 536},
		{"no room in the header", options(t, false, full...), 0},
		{"no room in the tunnel", long, 0},
		{"fragment", first, 0},
		{"one is there", nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, 1, 443, 100), 0},
	}
	w := rig(t, true)
	for _, x := range tests {
		got := send(t, w, over4, x.frame)
		if x.want == 0 {
			if !bytes.Equal(got, x.frame) || w.Counter("inserted") != 0 {
				t.Errorf("%s: changed", x.name)
			}
			continue
		}
		if m := mss(t, got); !slices.Equal(m, []uint16{x.want}) {
			t.Errorf("%s: MSS %d, want %d", x.name, m, x.want)
		}
		if len(got) != len(x.frame)+4 || w.Counter("inserted") != 1 || w.Counter("no_mss") != 1 {
			t.Errorf("%s: %d bytes, were %d; counters %v", x.name, len(got), len(x.frame), w.Counters)
		}
		was, is := nodetest.Decode(x.frame), nodetest.Decode(got)
		if !bytes.Equal(was.TransportLayer().LayerPayload(), is.TransportLayer().LayerPayload()) {
			t.Errorf("%s: the data changed", x.name)
		}
		l3, ipLen, l4 := w.V.L3[0], w.V.IPLen[0], w.V.L4[0]
		again := w.Load(got)
		w.Parse(again)
		if w.V.L3[0] != l3 || w.V.IPLen[0] != ipLen || w.V.L4[0] != l4 {
			t.Errorf("%s: columns %d %d %d, the packet says %d %d %d", x.name, l3, ipLen, l4, w.V.L3[0], w.V.IPLen[0], w.V.L4[0])
		}
	}
	narrow := rig(t, true, nodetest.MTU(576))
	if m := mss(t, send(t, narrow, over4, c["mss-none"])); m[0] != 576-24-40 {
		t.Errorf("in a narrow network: MSS %d", m)
	}
}

func TestSYNs(t *testing.T) {
	var v packet.Vector
	for i := range v.TCP {
		v.TCP[i] = ^uint8(packet.SYN)
	}
	if got := syns(&v); got != 0 {
		t.Errorf("no SYN: %b", got)
	}
	for i := range v.TCP {
		v.TCP[i] |= packet.SYN
		if got := syns(&v); got != packet.Lane(i) {
			t.Errorf("lane %d: %b", i, got)
		}
		v.TCP[i] = 0
	}
	for i := range v.TCP {
		v.TCP[i] = 0xff
	}
	if got := syns(&v); got != packet.All(64) {
		t.Errorf("all: %b", got)
	}
}

// Whatever the options are: no panic, lengths as they were, and a right checksum
// stays right.
func FuzzClamp(f *testing.F) {
	f.Add([]byte{2, 4, 5, 0xb4}, false)
	f.Add([]byte{1, 2, 4, 0xff, 0xff, 3, 3, 7}, true)
	f.Add([]byte{3, 0, 2, 4, 5, 0xb4}, false)
	keep, give := rig(f, false), rig(f, true)
	f.Fuzz(func(t *testing.T, opts []byte, v6 bool) {
		frame := options(t, v6, opts[:min(len(opts), 40)]...)
		for _, w := range []*nodetest.Worker{keep, give} {
			w.T = t
			got := send(t, w, over6, frame)
			if n := len(frame) + 4*int(w.Counter("inserted")); len(got) != n {
				t.Fatalf("%d bytes, want %d", len(got), n)
			}
			l4 := w.V.L4[0]
			sum := packet.PseudoSum(w.V.Src[0], w.V.Dst[0], packet.ProtoTCP, w.V.IPLen[0]+uint32(w.V.L3[0])-uint32(l4)) + packet.Sum(got[l4:])
			if packet.Fold(sum) != 0xffff {
				t.Fatalf("checksum is off by %#x: %x", packet.Fold(sum), got)
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, false)
	in := w.Load(c["syn"], c["data"], c["mss-none"], c["mss-odd"], c["syn6"], options(t, false, 3, 0))
	w.Parse(in)
	for i := range 6 {
		w.V.Backend[i] = over4
	}
	if n := testing.AllocsPerRun(100, func() { w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkClamp reports nanoseconds a packet: of a SYN whose option is lowered anew
// each time, and of data.
func BenchmarkClamp(b *testing.B) {
	c := nodetest.Cases(b)
	for _, name := range []string{"syn", "data"} {
		b.Run(name, func(b *testing.B) {
			w := rig(b, false)
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = c[name]
			}
			in := w.Load(frames...)
			w.Parse(in)
			for i := range packet.Size {
				w.V.Backend[i] = over4
			}
			b.ReportAllocs()
			for b.Loop() {
				if name == "syn" {
					for _, at := range w.V.Start {
						binary.BigEndian.PutUint16(w.V.Mem[at+56:], 1460)
					}
				}
				w.Run(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}

// TestUsualOptions: what is known at a glance is what the walk over the options finds,
// also where it differs from the usual by one bit.
func TestUsualOptions(t *testing.T) {
	for _, o := range [][]byte{
		{2, 4, 0x05, 0xb4},
		{2, 4, 0x05, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2},
		{2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7},
	} {
		h := append(make([]byte, packet.TCPLen), o...)
		if !usual((*[40]byte)(room(h)), uint32(len(h))) {
			t.Errorf("%x is not usual", o)
		}
		for bit := range 8 * len(o) {
			h[packet.TCPLen+bit/8] ^= 1 << (bit % 8)
			// The walk finds one MSS in front, and no fault.
			found, at := 0, packet.TCPLen
			for at < len(h) && h[at] != kindEnd {
				if h[at] == kindNop {
					at++
					continue
				}
				if at+2 > len(h) || h[at+1] < 2 || at+int(h[at+1]) > len(h) || h[at] == kindMSS && (h[at+1] != optionLen || at != packet.TCPLen) {
					found = -1
					break
				}
				if h[at] == kindMSS {
					found++
				}
				at += int(h[at+1])
			}
			if usual((*[40]byte)(room(h)), uint32(len(h))) && found != 1 {
				t.Errorf("%x is called usual", h[packet.TCPLen:])
			}
			h[packet.TCPLen+bit/8] ^= 1 << (bit % 8)
		}
		w := rig(t, false)
		for _, value := range []uint16{1460, 1436, 536} {
			binary.BigEndian.PutUint16(o[2:], value)
			if got := mss(t, send(t, w, over4, options(t, false, o...))); !slices.Equal(got, []uint16{min(value, 1436)}) {
				t.Errorf("%x: MSS %d", o, got)
			}
		}
	}
}

// room answers b with zeros behind it, for headers are read from arrays.
func room(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 40)...)[:40] }
