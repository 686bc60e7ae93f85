//go:build !purego

package encap

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

type noCore struct{}

func (noCore) Unchain(v *packet.Vector, lane int) {
	v.Chain[lane], v.Total[lane] = packet.NoFrame, v.Len[lane]
}

// Assembly encapsulates as the plain Go code does: the same lanes, with the same columns and
// the same bytes of memory, whatever stands in the lanes between those that it is for.
func TestLanesAreWhatGre4Is(t *testing.T) {
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: AVX2 is %v", cpu.X86.HasAVX2)
	}
	rnd := rand.New(rand.NewPCG(3, 3))
	s := &state.Snapshot{Backends: []state.Backend{{}}}
	for i := 1; i < 9; i++ {
		b := state.Backend{ID: uint32(i), Addr: netip.AddrFrom4([4]byte{10, byte(rnd.Uint32()), byte(rnd.Uint32()), byte(i)})}
		if i == 8 {
			b.Addr = netip.MustParseAddr("2001:db8:1::1")
		}
		s.Backends = append(s.Backends, b)
	}
	const chunk = 2048
	var a, b packet.Vector
	a.Mem, b.Mem = make([]byte, chunk*packet.Size), make([]byte, chunk*packet.Size)
	done := 0
	for _, dscp := range []string{"0", "copy"} {
		c := Defaults()
		c.TTL, c.DSCP = 1+rnd.IntN(255), dscp
		e := New(GRE, c, 0)
		e.Update(s)
		w, err := e.Worker(noCore{}, []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")})
		if err != nil {
			t.Fatal(err)
		}
		ts := *e.table.Load()
		for step := range 4000 {
			in := packet.All(packet.Size)
			switch rnd.IntN(6) {
			case 0:
				in = packet.All(rnd.IntN(packet.Size + 1))
			case 1:
				in = packet.Lanes(rnd.Uint64() | rnd.Uint64() | rnd.Uint64())
			}
			for i := range a.Mem[:64] {
				a.Mem[rnd.IntN(len(a.Mem))] = uint8(i * step)
			}
			rare := []int{3, 20, 200, 100000}[rnd.IntN(4)]
			for i := range packet.Size {
				start := uint32(chunk*((i+step)%packet.Size) + 128 + rnd.IntN(256))
				a.Start[i], a.L3[i], a.Chain[i], a.Flags[i] = start, packet.EtherLen, packet.NoFrame, packet.Flags(rnd.Uint32())&^packet.V6
				a.IPLen[i] = uint32(20 + rnd.IntN(1481))
				a.Len[i] = a.IPLen[i] + packet.EtherLen + uint32(rnd.IntN(9))
				a.Total[i], a.Hash[i], a.Backend[i] = a.Len[i], rnd.Uint64(), uint32(1+rnd.IntN(7))
				a.Mem[start] &^= 1
				a.Mem[start+6] &^= 1
				a.Mem[start+14] = 0x45
				a.Mem[start+15] = uint8(rnd.Uint32())
				if rnd.IntN(rare) != 0 {
					continue
				}
				switch rnd.IntN(8) {
				case 0:
					a.L3[i] += packet.TagLen
				case 1:
					a.Backend[i] = []uint32{0, 8, 9, 1 << 31, ^uint32(0)}[rnd.IntN(5)]
				case 2:
					a.Mem[start] |= 1
				case 3:
					a.Mem[start+6] |= 1
				case 4:
					a.Flags[i] |= packet.V6
				case 5:
					a.Start[i] = uint32(rnd.IntN(around)) // too near to the beginning of the memory
				case 6:
					a.Start[i] = uint32(len(a.Mem) - 1 - rnd.IntN(around)) // or to its end
				case 7:
					a.Chain[i], a.Total[i] = 0, a.Len[i]+100
				}
			}
			mem := b.Mem
			b = a
			b.Mem = mem
			copy(b.Mem, a.Mem)

			was := a
			d := gre4Lanes(&a, in, ts, e.tosMask)
			for from := 0; from < packet.Size; from += 8 {
				group := packet.All(8) << from
				want := group
				for i := from; i < from+8; i++ {
					start := int(was.Start[i])
					if !in.Has(i) || was.L3[i] != packet.EtherLen || was.Chain[i] != packet.NoFrame || was.Flags[i]&packet.V6 != 0 || was.Backend[i]-1 > 6 ||
						start < around || start > len(a.Mem)-around || (b.Mem[start]|b.Mem[start+6])&1 != 0 {
						want = 0
						break
					}
				}
				if d&group != want {
					t.Fatalf("step %d: of group %x of %x it does %x", step, group, in, d&group)
				}
			}
			if left := gre4(&b, d, ts, e.tosMask); left != 0 {
				t.Fatalf("step %d: of %x gre4 leaves %x", step, d, left)
			}
			if !bytes.Equal(a.Mem, b.Mem) {
				t.Fatalf("step %d: the memory differs", step)
			}
			if a.Start != b.Start || a.IPLen != b.IPLen || a.Len != b.Len || a.Total != b.Total || a.Flags != b.Flags {
				t.Fatalf("step %d: columns differ", step)
			}
			done += d.Count()

			// As a node does it, with what is left.
			for i := range packet.Size {
				if st := was.Start[i]; st < chunk || st > uint32(len(a.Mem)-chunk) {
					in &^= packet.Lane(i)
				}
				if was.Chain[i] != packet.NoFrame {
					in &^= packet.Lane(i)
				}
			}
			a, b = was, was
			b.Mem = mem
			copy(b.Mem, a.Mem)
			x, y := make([]packet.Lanes, BadLength+1), make([]packet.Lanes, BadLength+1)
			w.Process(&a, in, x)
			e.lanes = false
			w.Process(&b, in, y)
			e.lanes = true
			for o := range x {
				if x[o] != y[o] {
					t.Fatalf("step %d: output %d has %x, without assembly %x", step, o, x[o], y[o])
				}
			}
			if !bytes.Equal(a.Mem, b.Mem) || a.Start != b.Start || a.IPLen != b.IPLen || a.Flags != b.Flags {
				t.Fatalf("step %d: what a node does differs", step)
			}
		}
	}
	if done < 100000 {
		t.Errorf("assembly encapsulated %d packets", done)
	}
}
