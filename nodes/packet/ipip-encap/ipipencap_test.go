package ipipencap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var backends = []netip.Addr{1: netip.MustParseAddr("10.0.1.1"), 2: netip.MustParseAddr("2001:db8:1::1")}

func rig(t testing.TB, configure func(*encap.Config)) *nodetest.Worker {
	s := &state.Snapshot{Backends: []state.Backend{{}, {ID: 1, Addr: backends[1]}, {ID: 2, Addr: backends[2]}}}
	return nodetest.New(t, "ipip-encap", configure, nodetest.WithState(s)).Workers[0]
}

// send sends one frame to backend b and answers the inner packet that came, its outer
// header and what follows that.
func send(t testing.TB, w *nodetest.Worker, b uint32, frame []byte) (came, outer, inner []byte) {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	v := &w.V
	v.Backend[0] = b
	came = bytes.Clone(v.Bytes(0)[v.L3[0]:][:v.IPLen[0]])
	if out := w.Only(w.Process(in), 0); out != "next" {
		t.Fatalf("leaves by %q", out)
	}
	left := v.Bytes(0)[v.L3[0]:]
	n := map[uint32]int{1: packet.IPv4Len, 2: packet.IPv6Len}[b]
	return came, left[:n], left[n:]
}

// check verifies the outer header of a packet to backend b by hand.
func check(t testing.TB, b uint32, came, outer, inner []byte) {
	t.Helper()
	if !bytes.Equal(came, inner) {
		t.Errorf("inner packet changed:\n%x\n%x", inner, came)
	}
	proto := map[byte]byte{4: packet.ProtoIPIP, 6: packet.ProtoIPv6}[came[0]>>4]
	if b == 1 {
		dst, _ := netip.AddrFromSlice(outer[16:20])
		if outer[0] != 0x45 || int(binary.BigEndian.Uint16(outer[2:])) != 20+len(came) || outer[8] != 64 || outer[9] != proto ||
			packet.Checksum(outer) != 0 || dst != backends[1] {
			t.Errorf("outer header %x", outer)
		}
		return
	}
	dst, _ := netip.AddrFromSlice(outer[24:40])
	if outer[0]>>4 != 6 || int(binary.BigEndian.Uint16(outer[4:])) != len(came) || outer[6] != proto || outer[7] != 64 || dst != backends[2] {
		t.Errorf("outer header %x", outer)
	}
}

func TestCases(t *testing.T) {
	w := rig(t, nil)
	for name, frame := range nodetest.Cases(t) {
		if name == "totlen-lies" { // parse drops it
			continue
		}
		t.Run(name, func(t *testing.T) {
			for b := uint32(1); b < 3; b++ {
				came, outer, inner := send(t, w, b, frame)
				check(t, b, came, outer, inner)
			}
		})
	}
}

// An independent decoder finds its way through all four mixes to the ports.
func TestDecodes(t *testing.T) {
	w := rig(t, nil)
	for _, name := range []string{"syn", "syn6"} {
		for b := uint32(1); b < 3; b++ {
			send(t, w, b, nodetest.Cases(t)[name])
			tcp, ok := nodetest.Decode(w.V.Bytes(0)).Layer(layers.LayerTypeTCP).(*layers.TCP)
			if !ok || tcp.DstPort != 443 {
				t.Errorf("%s to backend %d does not decode", name, b)
			}
		}
	}
}

// The host bits enter the checksum.
func TestSourcePrefix(t *testing.T) {
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	w := rig(t, func(c *encap.Config) { c.Source = prefix })
	seen := map[netip.Addr]bool{}
	for port := range uint16(64) {
		came, outer, inner := send(t, w, 1, nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, port, 4500))
		check(t, 1, came, outer, inner)
		src, _ := netip.AddrFromSlice(outer[12:16])
		if !prefix.Contains(src) {
			t.Errorf("source %s", src)
		}
		seen[src] = true
	}
	if len(seen) < 60 {
		t.Errorf("64 flows use %d sources", len(seen))
	}
}

// Over IPv6 the length field does not count the outer header: 65535 bytes of inner
// packet fit, over IPv4 65515.
func TestTooLong(t *testing.T) {
	for _, c := range []struct {
		b, n uint32
		out  string
	}{{1, 65515, "next"}, {1, 65516, "too_long"}, {2, 65535, "next"}, {2, 65536, "too_long"}} {
		w := rig(t, nil)
		in := w.Load(nodetest.Cases(t)["data"])
		w.Parse(in)
		f, _ := w.Alloc()
		v := &w.V
		v.Backend[0], v.IPLen[0], v.Total[0], v.Chain[0] = c.b, c.n, c.n+14, f
		v.Links[f] = packet.Link{Next: packet.NoFrame, Len: v.Total[0] - v.Len[0]}
		if out := w.Only(w.Process(in), 0); out != c.out {
			t.Errorf("%d bytes to backend %d leave by %q, want %q", c.n, c.b, out, c.out)
		}
	}
}

// What cannot be sent drops by its name.
func TestReasons(t *testing.T) {
	syn := nodetest.Cases(t)["syn"]
	group := bytes.Clone(syn)
	group[6] |= 1
	for _, c := range []struct {
		name, hop string
		b         uint32
		frame     []byte
		more      int // frames behind the first
		want      string
	}{
		{"to a backend that is none", "sender", 3, syn, 0, "no_route"},
		{"no backend", "sender", 0, syn, 0, "no_route"},
		{"from a group address", "sender", 1, group, 0, "no_neighbour"},
		{"a neighbour that the kernel does not know", "kernel", 2, syn, 0, "no_neighbour"},
		{"a packet that ends before the last of its frames", "sender", 1, syn, 2, "bad_length"},
	} {
		w := rig(t, func(cfg *encap.Config) { cfg.NextHop = c.hop })
		in := w.Load(c.frame)
		w.Parse(in)
		w.V.Backend[0] = c.b
		for next := &w.V.Chain[0]; c.more > 0; c.more-- {
			f, _ := w.Alloc()
			base, _ := w.Chunk(f)
			w.V.Links[f] = packet.Link{Next: packet.NoFrame, Start: base + nodetest.Front, Len: 100}
			*next, next = f, &w.V.Links[f].Next
			w.V.Total[0] += 100
			w.V.IPLen[0] += 30 // in all they end in the first of the two
		}
		if out := w.Only(w.Process(in), 0); out != c.want {
			t.Errorf("%s: leaves by %q, want %q", c.name, out, c.want)
		}
	}
}

func TestAllocations(t *testing.T) {
	w := rig(t, nil)
	in := w.Load(nodetest.Cases(t)["data"], nodetest.Cases(t)["vlan100-syn"])
	w.Parse(in)
	w.V.Backend[0], w.V.Backend[1] = 1, 2
	was := w.V
	if n := testing.AllocsPerRun(100, func() { w.V = was; w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEncap(b *testing.B) {
	for _, c := range []struct {
		name    string
		backend uint32
	}{{"outer4", 1}, {"outer6", 2}} {
		b.Run(c.name, func(b *testing.B) {
			w := rig(b, nil)
			data := nodetest.Cases(b)["data"]
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = data
			}
			in := w.Load(frames...)
			w.Parse(in)
			for i := range frames {
				w.V.Backend[i] = c.backend
			}
			v := &w.V
			start, length, flags := v.Start, v.IPLen, v.Flags
			for n := 0; n < b.N; n += packet.Size {
				v.Start, v.IPLen, v.Flags = start, length, flags
				for i := range frames {
					*(*[16]byte)(v.Mem[v.Start[i]:]) = [16]byte(data)
				}
				w.Run(in)
			}
		})
	}
}

func FuzzEncap(f *testing.F) {
	f.Add(uint8(0), uint16(1), []byte{}, false)
	f.Add(uint8(0xbb), uint16(443), []byte("hello"), true)
	f.Fuzz(func(t *testing.T, tos uint8, port uint16, payload []byte, v6 bool) {
		src, dst := nodetest.Client4, nodetest.VIP4
		if v6 {
			src, dst = nodetest.Client6, nodetest.VIP6
		}
		frame := nodetest.UDP(t, src, dst, port, 443, payload[:min(len(payload), 1400)]...)
		want := tos & 3
		if v6 {
			frame[14], frame[15] = 0x60|tos>>4, tos<<4|frame[15]&0xf
		} else {
			frame[15] = tos
		}
		w := rig(t, nil)
		for b := uint32(1); b < 3; b++ {
			came, outer, inner := send(t, w, b, frame)
			check(t, b, came, outer, inner)
			got := outer[1]
			if b == 2 {
				got = outer[0]<<4 | outer[1]>>4
			}
			if got != want {
				t.Errorf("ToS %#x of inner %#x", got, tos)
			}
		}
	})
}
