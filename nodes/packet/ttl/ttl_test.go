package ttl

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var be = binary.BigEndian

func rig(t testing.TB, answer bool) *nodetest.Worker {
	return nodetest.New(t, "ttl", func(c *Config) { c.Answer = answer }).Workers[0]
}

// with sets TTL or hop limit of a frame without tags.
func with(b []byte, ttl byte) []byte {
	b = bytes.Clone(b)
	if b[14]>>4 == 6 {
		b[21] = ttl
		return b
	}
	b[22] = ttl
	be.PutUint16(b[24:], 0)
	be.PutUint16(b[24:], packet.Checksum(b[14:14+int(b[14]&0xf)*4]))
	return b
}

func load(w *nodetest.Worker, frames ...[]byte) packet.Lanes {
	w.Reuse()
	in := w.Load(frames...)
	w.Parse(in)
	for i := range frames {
		w.V.Backend[i], w.V.VIP[i] = 3, 4
	}
	return in
}

func TestDecrement(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, false)
	for _, name := range []string{"syn", "syn6", "ihl6", "frag2", "v6-frag2", "icmp-fragneeded-8"} {
		for _, ttl := range []byte{2, 3, 64, 255} {
			frame := with(c[name], ttl)
			if out := w.Only(w.Process(load(w, frame)), 0); out != "next" || w.V.Backend[0] != 3 {
				t.Errorf("%s, TTL %d: leaves by %q", name, ttl, out)
			}
			if got, want := w.V.Bytes(0), with(c[name], ttl-1); !bytes.Equal(got, want) {
				t.Errorf("%s, TTL %d:\n got %x\nwant %x", name, ttl, got, want)
			}
		}
		for _, ttl := range []byte{0, 1} {
			frame := with(c[name], ttl)
			if out := w.Only(w.Process(load(w, frame)), 0); out != "expired" || !bytes.Equal(w.V.Bytes(0), frame) {
				t.Errorf("%s, TTL %d: leaves by %q", name, ttl, out)
			}
		}
	}
	// A checksum that was wrong is so afterwards.
	frame := c["syn"]
	frame[25] ^= 1
	w.Process(load(w, frame))
	if packet.Checksum(w.V.Bytes(0)[14:34]) == 0 {
		t.Error("a wrong checksum became right")
	}
}

func TestAnswer(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, true)
	for _, name := range []string{"syn", "syn6", "udp-1500-df", "v6-frag1", "trailer-pad"} {
		frame := with(c[name], 1)
		if out := w.Only(w.Process(load(w, frame)), 0); out != "reply" {
			t.Errorf("%s: leaves by %q", name, out)
			continue
		}
		was, is := nodetest.Decode(frame), nodetest.Decode(w.V.Bytes(0))
		if was.NetworkLayer().NetworkFlow() != is.NetworkLayer().NetworkFlow().Reverse() || was.LinkLayer().LinkFlow() != is.LinkLayer().LinkFlow().Reverse() {
			t.Errorf("%s: not on its way back", name)
		}
		whole := append(bytes.Clone(was.NetworkLayer().LayerContents()), was.NetworkLayer().LayerPayload()...)
		quoted := is.NetworkLayer().LayerPayload()[8:]
		switch ip := is.NetworkLayer().(type) {
		case *layers.IPv4:
			if h := is.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); h.TypeCode != layers.CreateICMPv4TypeCode(11, 0) || packet.Checksum(ip.Payload) != 0 || packet.Checksum(ip.Contents) != 0 {
				t.Errorf("%s: %+v", name, h)
			}
			whole = whole[:min(len(whole), 548)]
		case *layers.IPv6:
			sum := packet.PseudoSum(w.V.Src[0], w.V.Dst[0], 58, uint32(len(ip.Payload))) + packet.Sum(ip.Payload)
			if h := is.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); h.TypeCode != layers.CreateICMPv6TypeCode(3, 0) || packet.Fold(sum) != 0xffff {
				t.Errorf("%s: %+v", name, h)
			}
			whole = whole[:min(len(whole), 1232)]
		}
		if !bytes.Equal(quoted, whole) || w.V.Backend[0] != 0 || w.V.VIP[0] != 0 {
			t.Errorf("%s: quoted\n%x, want\n%x", name, quoted, whole)
		}
	}
	for name, frame := range map[string][]byte{
		"later fragment": with(c["frag2"], 1), "later fragment, IPv6": with(c["v6-frag2"], 1), "ICMP": with(c["icmp-fragneeded-8"], 1),
		"from a group": with(nodetest.UDP(t, netip.MustParseAddr("224.0.0.1"), nodetest.VIP4, 1, 2), 1),
	} {
		if out := w.Only(w.Process(load(w, frame)), 0); out != "expired" {
			t.Errorf("%s: leaves by %q", name, out)
		}
	}
	w = rig(t, true)
	n := map[string]int{}
	for range 30 {
		n[w.Only(w.Process(load(w, with(c["syn"], 1))), 0)]++
	}
	if n["reply"] != burst || n["icmp_limited"] != 30-burst {
		t.Errorf("30 at once: %v", n)
	}
}

// A vector of which some go on and some do not.
func TestVector(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, true)
	ans := w.Process(load(w, with(c["syn"], 9), with(c["frag2"], 1), with(c["syn6"], 1), with(c["syn6"], 2)))
	if ans["next"] != 0b1001 || ans["expired"] != 0b10 || ans["reply"] != 0b100 {
		t.Errorf("%v", ans)
	}
}

// Tokens go to the first lanes of a vector that ask for one.
func TestVectorBeyondTheLimit(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, true)
	var frames [][]byte
	for range packet.Size / 4 {
		frames = append(frames, with(c["syn"], 9), with(c["syn"], 1), with(c["frag2"], 1), with(c["syn6"], 1))
	}
	ans := w.Process(load(w, frames...))
	const every, ask = 0x1111111111111111, packet.Lanes(0xaaaaaaaaaaaaaaaa)
	first := ask & packet.All(2*burst)
	if ans["next"] != every || ans["expired"] != every<<2 || ans["reply"] != first || ans["icmp_limited"] != ask&^first {
		t.Errorf("%v", ans)
	}
	for i := range packet.Size {
		if got, want := w.V.Flags[i]&packet.ICMP != 0, first.Has(i); got != want {
			t.Errorf("lane %d: an error: %v, want %v", i, got, want)
		}
	}
}

func FuzzDecrement(f *testing.F) {
	f.Add(byte(2), uint16(0), uint32(0))
	f.Add(byte(255), uint16(0xffff), uint32(0xffffffff))
	syn := nodetest.Cases(f)["syn"]
	w := rig(f, false)
	f.Fuzz(func(t *testing.T, ttl byte, id uint16, src uint32) {
		w.T = t
		b := bytes.Clone(syn)
		be.PutUint16(b[18:], id)
		be.PutUint32(b[26:], src)
		b = with(b, ttl)
		out := w.Only(w.Process(load(w, b)), 0)
		if (out == "next") != (ttl > 1) || packet.Checksum(w.V.Bytes(0)[14:34]) != 0 {
			t.Fatalf("TTL %d leaves by %q: %x", ttl, out, w.V.Bytes(0)[14:34])
		}
	})
}

func TestNoAllocation(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, true)
	in := load(w, c["syn"], c["syn6"], with(c["syn"], 1))
	saved := w.V
	if n := testing.AllocsPerRun(40, func() {
		w.V = saved
		w.Clock += 1e9
		w.Run(in)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTTL reports nanoseconds a packet.
func BenchmarkTTL(b *testing.B) {
	c := nodetest.Cases(b)
	for _, name := range []string{"data", "syn6"} {
		b.Run(name, func(b *testing.B) {
			w := rig(b, false)
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = with(c[name], 255)
			}
			in := load(w, frames...)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if n++; n%200 == 0 {
					for i := range packet.Size {
						copy(w.V.Bytes(i), frames[i])
					}
				}
				w.Run(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}

// An answer has one frame: what the packet had more goes back, or would be sent as
// part of the error.
func TestAnswerToAChain(t *testing.T) {
	w := rig(t, true)
	frame := with(nodetest.Cases(t)["udp-1500-df"], 1)
	const part = 800
	w.Reuse()
	in := w.Load(frame[:part])
	f, ok := w.Alloc()
	if !ok {
		t.Fatal("no frame")
	}
	base, _ := w.Chunk(f)
	copy(w.V.Mem[base+256:], frame[part:])
	w.V.Links[f] = packet.Link{Next: packet.NoFrame, Start: base + 256, Len: uint32(len(frame) - part)}
	w.V.Total[0], w.V.Chain[0] = uint32(len(frame)), f
	w.Parse(in)
	w.V.Backend[0] = 3
	if out := w.Only(w.Process(in), 0); out != "reply" {
		t.Fatalf("leaves by %q", out)
	}
	if w.V.Chain[0] != packet.NoFrame || w.V.Total[0] != w.V.Len[0] {
		t.Errorf("the answer is a chain, %d bytes of %d in its first frame", w.V.Len[0], w.V.Total[0])
	}
	if again, ok := w.Alloc(); !ok || again != f {
		t.Errorf("frame %d did not come back, but %d", f, again)
	}
}
