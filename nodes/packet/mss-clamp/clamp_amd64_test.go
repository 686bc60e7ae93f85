//go:build !purego

package mssclamp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Assembly clamps as the plain Go code does, and leaves what that leaves: SYNs with all kinds of
// options and flags, cut off at any byte, to backends that take more, less or nothing.
func TestLanesAreWhatPlainIs(t *testing.T) {
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: BMI1 is %v", cpu.X86.HasBMI1)
	}
	rnd := rand.New(rand.NewPCG(4, 4))
	usual := [][]byte{
		{2, 4, 0x05, 0xb4},
		{2, 4, 0x05, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2},
		{2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7},
	}
	mtus := []int32{0, 20, 40, 41, 576, 1476, 1480, 9000, 65535}
	const chunk = 256
	var v packet.Vector
	v.Mem = make([]byte, chunk*packet.Size)
	mem := make([]byte, len(v.Mem))
	w := &worker{}
	done, left := 0, 0
	for step := range 10000 {
		rare := []int{1, 3, 30, 1000}[rnd.IntN(4)]
		for i := range packet.Size {
			v.Start[i] = uint32(chunk*((i+step)%packet.Size) + rnd.IntN(64))
			h := v.Mem[v.Start[i]:][usualL4:]
			for j := range 62 {
				h[j] = uint8(rnd.Uint32())
			}
			o := usual[rnd.IntN(len(usual))]
			h[12] = uint8(20+len(o))<<2 | h[12]&0xf
			copy(h[20:], o)
			switch rnd.IntN(4) {
			case 0:
				h[22], h[23] = uint8(rnd.Uint32()), uint8(rnd.Uint32())
			case 1: // a sum of zero or all ones
				h[16], h[17] = 0-h[16]&1, 0-h[16]&1
			}
			v.L4[i], v.Proto[i], v.TCP[i], v.Flags[i] = usualL4, packet.ProtoTCP, packet.SYN, packet.DF
			v.Len[i] = uint32(usualL4 + 20 + len(o) + rnd.IntN(3))
			v.Backend[i] = uint32(rnd.IntN(len(mtus)))
			if rnd.IntN(rare) != 0 {
				continue
			}
			switch rnd.IntN(7) {
			case 0:
				h[20+rnd.IntN(len(o))] ^= 1 << rnd.IntN(8)
			case 1:
				h[12] ^= 0x10 << rnd.IntN(4)
			case 2:
				v.Len[i] = uint32(rnd.IntN(usualL4 + 62))
			case 3:
				v.L4[i] += 4
			case 4:
				v.Flags[i] |= []packet.Flags{packet.V6, packet.Later, packet.Related, packet.First}[rnd.IntN(4)]
			case 5:
				v.Proto[i] = packet.ProtoUDP
			case 6:
				v.Backend[i] = []uint32{uint32(len(mtus)), 1 << 31, ^uint32(0)}[rnd.IntN(3)]
			}
		}
		in := packet.Lanes(rnd.Uint64() | rnd.Uint64())
		copy(mem, v.Mem)
		rest, n := clampLanes(&v, in, mtus)

		slow := v
		slow.Mem = mem
		w.counts = [len(w.counts)]uint64{}
		var want packet.Lanes // without a backend that takes a segment
		known := in
		for i := range packet.Size {
			w.mtu[i] = 0
			if int64(v.Backend[i]) < int64(len(mtus)) {
				w.mtu[i] = mtus[v.Backend[i]]
			}
			if w.mtu[i] < packet.IPv4Len+packet.TCPLen {
				want |= packet.Lane(i)
			}
		}
		want &= in
		known &^= want
		want |= w.plain(&slow, known)
		if rest != want || n != w.counts[clamped] {
			t.Fatalf("step %d: of %x it leaves %x and lowers %d, without assembly %x and %d", step, in, rest, n, want, w.counts[clamped])
		}
		if !bytes.Equal(v.Mem, mem) {
			t.Fatalf("step %d: packets differ", step)
		}
		done += (in &^ rest).Count()
		left += rest.Count()
	}
	if done < 100000 || left < 100000 {
		t.Errorf("assembly looked at %d SYNs and left %d", done, left)
	}
}
