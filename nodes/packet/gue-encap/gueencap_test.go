package gueencap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

var backends = []netip.Addr{1: netip.MustParseAddr("10.0.1.1"), 2: netip.MustParseAddr("2001:db8:1::1")}

func rig(t testing.TB, configure func(*Config)) *nodetest.Worker {
	s := &state.Snapshot{Backends: []state.Backend{{}, {ID: 1, Addr: backends[1]}, {ID: 2, Addr: backends[2]}}}
	return nodetest.New(t, "gue-encap", configure, nodetest.WithState(s)).Workers[0]
}

// check sends one frame to backend b and verifies what leaves, by the layers that
// gopacket knows and by hand from there. It answers the UDP source port.
func check(t testing.TB, w *nodetest.Worker, b uint32, port uint16, frame []byte) uint16 {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	v := &w.V
	v.Backend[0] = b
	came := bytes.Clone(v.Bytes(0)[v.L3[0]:][:v.IPLen[0]])
	if out := w.Only(w.Process(in), 0); out != "next" {
		t.Fatalf("leaves by %q", out)
	}
	p := nodetest.Decode(v.Bytes(0))
	if dst, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Dst().Raw()); dst != backends[b] {
		t.Errorf("outer destination %s", dst)
	}
	if b == 1 {
		l3 := v.L3[0]
		ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		if packet.Checksum(v.Bytes(0)[l3:l3+20]) != 0 || int(ip.Length) != 32+len(came) || ip.Protocol != layers.IPProtocolUDP {
			t.Errorf("outer header %+v", ip)
		}
	} else if ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6); int(ip.Length) != 12+len(came) || ip.NextHeader != layers.IPProtocolUDP {
		t.Errorf("outer header %+v", ip)
	}
	udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if udp.SrcPort < 49152 || udp.DstPort != layers.UDPPort(port) || int(udp.Length) != 12+len(came) || udp.Checksum != 0 {
		t.Errorf("UDP header %+v", udp)
	}
	proto := map[byte]byte{4: packet.ProtoIPIP, 6: packet.ProtoIPv6}[came[0]>>4]
	if want := append([]byte{0, proto, 0, 0}, came...); !bytes.Equal(udp.LayerPayload(), want) {
		t.Errorf("GUE and inner packet\n%x, want\n%x", udp.LayerPayload(), want)
	}
	return uint16(udp.SrcPort)
}

func TestCases(t *testing.T) {
	w := rig(t, nil)
	for name, frame := range nodetest.Cases(t) {
		if name == "totlen-lies" { // parse drops it
			continue
		}
		t.Run(name, func(t *testing.T) {
			for b := uint32(1); b < 3; b++ {
				check(t, w, b, 6080, frame)
			}
		})
	}
}

func TestPort(t *testing.T) {
	w := rig(t, func(c *Config) { c.Port = 65000 })
	for b := uint32(1); b < 3; b++ {
		check(t, w, b, 65000, nodetest.Cases(t)["syn"])
	}
}

// Flows spread over source ports, and one flow keeps its own.
func TestSourcePort(t *testing.T) {
	w := rig(t, nil)
	for b := uint32(1); b < 3; b++ {
		seen := map[uint16]bool{}
		for port := range uint16(200) {
			frame := nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, port, 4500)
			first := check(t, w, b, 6080, frame)
			if again := check(t, w, b, 6080, frame); again != first {
				t.Fatalf("one flow leaves from ports %d and %d", first, again)
			}
			seen[first] = true
		}
		if len(seen) < 190 {
			t.Errorf("200 flows use %d ports", len(seen))
		}
	}
}

func TestTooLong(t *testing.T) {
	for _, c := range []struct {
		b, n uint32
		out  string
	}{{1, 65503, "next"}, {1, 65504, "too_long"}, {2, 65523, "next"}, {2, 65524, "too_long"}} {
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
		if c.out == "next" {
			udp := v.Bytes(0)[14+20*c.b:]
			if got := binary.BigEndian.Uint16(udp[4:]); uint32(got) != c.n+12 {
				t.Errorf("UDP length %d", got)
			}
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
		w := rig(t, func(cfg *Config) { cfg.NextHop = c.hop })
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
	f.Add(uint16(1), uint16(6080), []byte{}, false)
	f.Add(uint16(443), uint16(1), []byte("hello"), true)
	f.Fuzz(func(t *testing.T, sport, port uint16, payload []byte, v6 bool) {
		src, dst := nodetest.Client4, nodetest.VIP4
		if v6 {
			src, dst = nodetest.Client6, nodetest.VIP6
		}
		if port == 0 {
			port = 1
		}
		frame := nodetest.UDP(t, src, dst, sport, 443, payload[:min(len(payload), 1400)]...)
		w := rig(t, func(c *Config) { c.Port = int(port) })
		for b := uint32(1); b < 3; b++ {
			check(t, w, b, port, frame)
		}
	})
}
