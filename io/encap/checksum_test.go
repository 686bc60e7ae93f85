package encap

import (
	"encoding/binary"
	"math/bits"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Every sum of a header is folded, also one that is carried over twice; and a backend's number
// may have more than 16 bits.
func TestAllChecksums(t *testing.T) {
	e := New(GRE, Defaults(), 0)
	e.tosMask = 0xff
	w := &Worker{e: e}
	ways := map[string]func(*packet.Vector, []template) packet.Lanes{
		"gre4":   func(v *packet.Vector, ts []template) packet.Lanes { return gre4(v, ^packet.Lanes(0), ts, 0xff) },
		"write4": func(v *packet.Vector, ts []template) packet.Lanes { return w.write4(v, ^packet.Lanes(0), ts) },
	}
	if hasLanes {
		ways["gre4Lanes"] = func(v *packet.Vector, ts []template) packet.Lanes {
			return ^gre4Lanes(v, ^packet.Lanes(0), ts, 0xff)
		}
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) { allChecksums(t, way) })
	}
}

// allChecksums runs what answers the lanes that it leaves.
func allChecksums(t *testing.T, way func(*packet.Vector, []template) packet.Lanes) {
	const first = 1<<16 + 100
	ts := make([]template, first+packet.Size)
	for i := range packet.Size {
		ts[first+i].ip = 4
	}
	v := &packet.Vector{Mem: make([]byte, packet.Size*2*around)}
	for _, c := range []struct {
		tos uint8
		n   uint32
	}{{0, 1000}, {3, 1500}, {0xff, 0xff00}, {0xff, 0xffff - over4}} {
		total := bits.ReverseBytes16(uint16(c.n + over4))
		for from := 0; from < 1<<16; from += packet.Size {
			clear(v.Mem)
			for i := range packet.Size {
				v.Start[i], v.Chain[i], v.L3[i], v.IPLen[i] = uint32(2*around*i+around), packet.NoFrame, packet.EtherLen, c.n
				v.Backend[i], ts[first+i].sum[0] = uint32(first+i), uint32(from+i)
				v.Mem[v.Start[i]+packet.EtherLen+1] = c.tos
			}
			if left := way(v, ts); left != 0 {
				t.Fatalf("lanes %x are left", left)
			}
			for i := range packet.Size {
				sum := uint32(from+i) + uint32(c.tos)<<8 + uint32(total)
				for sum > 0xffff {
					sum = sum&0xffff + sum>>16
				}
				h := v.Mem[v.Start[i]+packet.EtherLen:]
				if got := binary.LittleEndian.Uint16(h[10:]); got != ^uint16(sum) {
					t.Fatalf("sum %#x, ToS %#x, %d bytes: checksum %#x, want %#x", from+i, c.tos, c.n, got, ^uint16(sum))
				}
			}
		}
	}
}
