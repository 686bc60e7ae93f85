package decap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB) *nodetest.Worker { return nodetest.New[Config](t, "decap", nil).Workers[0] }

// run sends a frame through the node and answers its output and what is left of it.
func run(t testing.TB, w *nodetest.Worker, frame []byte) (string, []byte) {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	return w.Only(w.Process(in), 0), bytes.Clone(w.V.Bytes(0))
}

var outers = []netip.Addr{1: netip.MustParseAddr("10.0.1.1"), 2: netip.MustParseAddr("2001:db8:1::1")}

// wrap encapsulates a frame towards outers[b].
func wrap(t testing.TB, w *nodetest.Worker, p encap.Protocol, b uint32, frame []byte) []byte {
	t.Helper()
	e := encap.New(p, encap.Defaults(), 6080)
	e.Update(&state.Snapshot{Backends: []state.Backend{{}, {ID: 1, Addr: outers[1]}, {ID: 2, Addr: outers[2]}}})
	n, err := e.Worker(w, w.Env.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	w.V.Backend[0] = b
	out := make([]packet.Lanes, 5)
	if n.Process(&w.V, in, out); out[0] != in {
		t.Fatal("not encapsulated")
	}
	return bytes.Clone(w.V.Bytes(0))
}

// What an encapsulation put on comes off, to the last byte, in all mixes and with tags.
func TestRoundTrip(t *testing.T) {
	w := rig(t)
	for name, frame := range nodetest.Cases(t) {
		if name == "totlen-lies" || name == "trailer-pad" { // not whole; padded
			continue
		}
		want := bytes.Clone(frame)
		packet.SwapMACs(want)
		for _, p := range []encap.Protocol{encap.GRE, encap.IPIP, encap.GUE} {
			for b := uint32(1); b < 3; b++ {
				out, left := run(t, w, wrap(t, w, p, b, frame))
				if out != "next" || !bytes.Equal(left, want) || int(w.V.Total[0]) != len(want) {
					t.Errorf("%s in %s to %s: %q\n%x\n%x", name, p, outers[b], out, left, want)
				}
			}
		}
	}
}

// Padding behind the outer packet does not come along.
func TestPadding(t *testing.T) {
	w := rig(t)
	frame := nodetest.Cases(t)["data"]
	out, left := run(t, w, append(wrap(t, w, encap.GRE, 1, frame), 1, 2, 3, 4))
	if out != "next" || len(left) != len(frame) {
		t.Errorf("%q, %d bytes, want %d", out, len(left), len(frame))
	}
}

// tunnel is an IPv4 packet of proto with b as its payload.
func tunnel(t testing.TB, proto uint8, tos uint8, b ...byte) []byte {
	ip := nodetest.IP(nodetest.Client4, nodetest.VIP4, layers.IPProtocol(proto)).(*layers.IPv4)
	ip.TOS = tos
	return nodetest.Frame(t, nodetest.Ether(false), ip, gopacket.Payload(b))
}

func udp(port uint16, b ...byte) []byte {
	h := []byte{0xc0, 0, byte(port >> 8), byte(port), 0, byte(8 + len(b)), 0, 0}
	return append(h, b...)
}

func TestHeaders(t *testing.T) {
	inner := nodetest.Cases(t)["data"][14:]
	six := nodetest.Cases(t)["syn6"][14:]
	with := func(h []byte, inner []byte) []byte { return append(bytes.Clone(h), inner...) }
	summed := with([]byte{0x80, 0, 8, 0, 0, 0, 0, 0}, inner)
	binary.BigEndian.PutUint16(summed[4:], packet.Checksum(summed))
	wrong := bytes.Clone(summed)
	wrong[4]++
	w := rig(t)
	for _, c := range []struct {
		name  string
		proto uint8
		b     []byte
		out   string
		inner []byte
	}{
		{"GRE", 47, with([]byte{0, 0, 8, 0}, inner), "next", inner},
		{"GRE with key", 47, with([]byte{0x20, 0, 8, 0, 1, 2, 3, 4}, inner), "next", inner},
		{"GRE with key and sequence number", 47, with([]byte{0x30, 0, 0x86, 0xdd, 1, 2, 3, 4, 5, 6, 7, 8}, six), "next", six},
		{"GRE with checksum", 47, summed, "next", inner},
		{"GRE with a wrong checksum", 47, wrong, "bad_tunnel", nil},
		{"GRE with routing", 47, with([]byte{0x40, 0, 8, 0}, inner), "bad_tunnel", nil},
		{"GRE version 1", 47, with([]byte{0, 1, 8, 0}, inner), "bad_tunnel", nil},
		{"GRE cut short", 47, []byte{0, 0, 8}, "bad_tunnel", nil},
		{"GRE options cut short", 47, []byte{0x20, 0, 8, 0, 1, 2}, "bad_tunnel", nil},
		{"GRE with Ethernet", 47, with([]byte{0, 0, 0x65, 0x58}, inner), "other", nil},
		{"GRE says IPv6", 47, with([]byte{0, 0, 0x86, 0xdd}, inner), "bad_tunnel", nil},
		{"GRE with nothing", 47, []byte{0, 0, 8, 0}, "bad_tunnel", nil},
		{"4in4", 4, inner, "next", inner},
		{"6in4", 41, six, "next", six},
		{"4in4 says IPv6", 41, inner, "bad_tunnel", nil},
		{"4in4 cut short", 4, inner[:19], "bad_tunnel", nil},
		{"GUE", 17, udp(6080, with([]byte{0, 4, 0, 0}, inner)...), "next", inner},
		{"GUE with options", 17, udp(6080, with([]byte{1, 41, 0x80, 0, 1, 2, 3, 4}, six)...), "next", six},
		{"GUE options cut short", 17, udp(6080, 31, 4, 0, 0), "bad_tunnel", nil},
		{"GUE cut short", 17, udp(6080, 0, 4), "bad_tunnel", nil},
		{"GUE control", 17, udp(6080, 0x20, 4, 0, 0), "other", nil},
		{"GUE variant 1", 17, udp(6080, inner...), "bad_tunnel", nil},
		{"GUE with TCP", 17, udp(6080, with([]byte{0, 6, 0, 0}, inner)...), "other", nil},
		{"UDP", 17, udp(53, inner...), "other", nil},
		{"TCP", 6, inner, "other", nil},
	} {
		out, left := run(t, w, tunnel(t, c.proto, 0, c.b...))
		if out != c.out {
			t.Errorf("%s: leaves by %q, want %q", c.name, out, c.out)
			continue
		}
		if out == "next" && !bytes.Equal(left[14:], c.inner) {
			t.Errorf("%s: inner packet\n%x, want\n%x", c.name, left[14:], c.inner)
		}
	}
}

func TestFragment(t *testing.T) {
	ip := nodetest.IP(nodetest.Client4, nodetest.VIP4, layers.IPProtocolGRE).(*layers.IPv4)
	ip.Flags = layers.IPv4MoreFragments
	frame := nodetest.Frame(t, nodetest.Ether(false), ip, gopacket.Payload(append([]byte{0, 0, 8, 0}, nodetest.Cases(t)["data"][14:]...)))
	if out, _ := run(t, rig(t), frame); out != "bad_tunnel" {
		t.Errorf("the first fragment of a tunnel packet leaves by %q", out)
	}
}

// RFC 6040 §4.2, figure 4: a mark on the way reaches the inner packet.
func TestCongestion(t *testing.T) {
	w := rig(t)
	for _, name := range []string{"data", "syn6"} {
		plain := nodetest.Cases(t)[name][14:]
		proto := uint8(packet.ProtoIPIP)
		if name == "syn6" {
			proto = packet.ProtoIPv6
		}
		for inner := range byte(4) {
			p := bytes.Clone(plain)
			if proto == packet.ProtoIPv6 {
				p[0], p[1] = 0x60|5, inner<<4|p[1]&15
			} else {
				p[1] = 0x50 | inner
				binary.BigEndian.PutUint16(p[10:], 0)
				binary.BigEndian.PutUint16(p[10:], packet.Checksum(p[:20]))
			}
			for outer := range byte(4) {
				out, left := run(t, w, tunnel(t, proto, outer, p...))
				if outer == 3 && inner == 0 {
					if out != "bad_tunnel" {
						t.Errorf("%s: marked on the way, and cannot be: leaves by %q", name, out)
					}
					continue
				}
				want := 0x50 | inner
				if outer == 3 {
					want |= 3
				}
				if out != "next" || tos(left[14:]) != want {
					t.Errorf("%s: outer %d, inner %d: %q, ToS %#x, want %#x", name, outer, inner, out, tos(left[14:]), want)
				}
				if proto == packet.ProtoIPIP && packet.Checksum(left[14:34]) != 0 {
					t.Errorf("%s: outer %d, inner %d: wrong checksum", name, outer, inner)
				}
			}
		}
	}
}

// Every truncation of a tunnel packet ends somewhere, and reads nothing behind it.
func TestTruncated(t *testing.T) {
	w := rig(t)
	for _, p := range []encap.Protocol{encap.GRE, encap.IPIP, encap.GUE} {
		frame := wrap(t, w, p, 1, nodetest.Cases(t)["data"])
		for n := 34; n < len(frame); n++ {
			w.Reuse()
			in := w.Load(frame)
			w.Parse(in)
			w.V.Len[0], w.V.Total[0] = uint32(n), uint32(n)
			for i := n; i < len(frame); i++ {
				w.V.Mem[int(w.V.Start[0])+i] = 0xff
			}
			out := w.Only(w.Process(in), 0)
			if out == "" || out == "next" && int(w.V.Len[0]) > n {
				t.Errorf("%s cut to %d bytes: %q with %d bytes", p, n, out, w.V.Len[0])
			}
		}
	}
}

func TestAllocations(t *testing.T) {
	w := rig(t)
	in := w.Load(wrap(t, w, encap.GRE, 1, nodetest.Cases(t)["data"]), wrap(t, w, encap.GUE, 2, nodetest.Cases(t)["syn6"]))
	w.Parse(in)
	was, mem := w.V, bytes.Clone(w.V.Mem[:8*nodetest.Chunk])
	if n := testing.AllocsPerRun(100, func() { w.V = was; copy(w.V.Mem, mem); w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecap(b *testing.B) {
	w := rig(b)
	frame := wrap(b, w, encap.GRE, 1, nodetest.Cases(b)["data"])
	frames := make([][]byte, packet.Size)
	for i := range frames {
		frames[i] = frame
	}
	w.Reuse()
	in := w.Load(frames...)
	w.Parse(in)
	start, size := w.V.Start, w.V.Len
	for n := 0; n < b.N; n += packet.Size {
		w.V.Start, w.V.Len, w.V.Total = start, size, size
		for i := range frames {
			copy(w.V.Bytes(i), frame)
		}
		w.Run(in)
	}
	if w.Out(next) != in {
		b.Fatal("not all lanes went on")
	}
}

func FuzzDecap(f *testing.F) {
	f.Add(uint8(47), []byte{0x20, 0, 8, 0, 1, 2, 3, 4, 0x45, 0})
	f.Add(uint8(17), udp(6080, 0, 4, 0, 0, 0x45))
	f.Add(uint8(4), []byte{0x45})
	f.Fuzz(func(t *testing.T, proto uint8, b []byte) {
		b = b[:min(len(b), 1400)]
		frame := tunnel(t, proto, 3, b...)
		w := rig(t)
		out, left := run(t, w, frame)
		if out != "next" {
			return
		}
		// What is left is an Ethernet header and a tail of what came, but for the mark.
		p := left[14:]
		if len(p) > len(b) || len(p) < 20 || !bytes.Equal(left[:12], frame[:12]) || !bytes.Equal(p[12:], b[len(b)-len(p)+12:]) {
			t.Errorf("%x became %x", frame, left)
		}
	})
}
