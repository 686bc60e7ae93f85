//go:build !purego

package parse

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func needLanes(t *testing.T) {
	t.Helper()
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: AVX2 is %v, BMI2 is %v; CI runs it emulated", cpu.X86.HasAVX2, cpu.X86.HasBMI2)
	}
}

// frame writes to b a packet that parses, or one of which something was changed afterwards, and
// answers its length.
func frame(rnd *rand.Rand, b []byte, odd bool) int {
	be := binary.BigEndian
	for i := range b {
		b[i] = uint8(rnd.Uint32())
	}
	pad := max(0, rnd.IntN(12)-6)
	be.PutUint16(b[12:], packet.EtherIPv4)
	b[14] = 0x45
	b[20] &= 0xc0 // DF and the reserved bit, which says nothing
	b[21] = 0
	size := 0
	if rnd.IntN(2) == 0 {
		b[23] = packet.ProtoTCP
		options := 4 * max(0, rnd.IntN(16)-5)
		size = 40 + options + rnd.IntN(40)
		b[46] = uint8(20+options)<<2 | b[46]&0xf
	} else {
		b[23] = packet.ProtoUDP
		size = 28 + rnd.IntN(60)
		be.PutUint16(b[38:], uint16(8+rnd.IntN(size-27)))
	}
	be.PutUint16(b[16:], uint16(size))
	change := -1
	if odd {
		change = rnd.IntN(6)
	}
	if change == 0 { // before the checksum, which stays right
		b[[]int{14, 16, 17, 20, 21, 23, 38, 39, 46}[rnd.IntN(9)]] ^= 1 << rnd.IntN(8)
	}
	be.PutUint16(b[24:], 0)
	be.PutUint16(b[24:], packet.Checksum(b[14:34]))
	switch change {
	case 1:
		b[12+rnd.IntN(36)] ^= 1 << rnd.IntN(8)
	case 2:
		size = rnd.IntN(size)
	case 3: // the other way to write a sum of zero
		if be.Uint16(b[24:]) == 0 {
			b[24], b[25] = 0xff, 0xff
		}
	}
	return 14 + size + pad
}

// long writes to b a packet that parses and is long enough for a group.
func long(rnd *rand.Rand, b []byte) (n int) {
	for n < shortest {
		n = frame(rnd, b, false)
	}
	return n
}

// Assembly answers and writes what the plain Go code does: over vectors of all sizes, dense or
// not, of packets of which all, some or none are what it is for.
func TestLanesAreWhatPlainIs(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(11, 11))
	var a, b packet.Vector
	a.Mem = make([]byte, 256*packet.Size)
	cases := nodetest.Cases(t)
	maps.DeleteFunc(cases, func(_ string, b []byte) bool { return len(b) > 160 })
	names := slices.Sorted(maps.Keys(cases))
	parsed, odd := 0, 0
	for step := range 20000 {
		n := 1 + rnd.IntN(packet.Size)
		in := packet.All(n)
		if step%16 == 0 {
			in &= packet.Lanes(rnd.Uint64())
		}
		rare := []int{1, 4, 40, 1000}[rnd.IntN(4)]
		for i := range n {
			a.Start[i] = uint32(256*((i+step)%packet.Size) + rnd.IntN(16))
			f := a.Mem[a.Start[i]:][:160]
			change := rnd.IntN(rare) == 0
			a.Len[i] = uint32(frame(rnd, f, change))
			if change && rnd.IntN(3) == 0 { // another kind: IPv6, a fragment, with tags, with options, …
				a.Len[i] = uint32(copy(f, cases[names[rnd.IntN(len(names))]]))
			}
			a.Total[i] = a.Len[i]
			a.VIP[i], a.Backend[i], a.L3[i], a.L4[i], a.IPLen[i] = rnd.Uint32(), rnd.Uint32(), 1, 1, 1
			a.Src[i], a.Dst[i] = packet.Addr{Hi: rnd.Uint64()}, packet.Addr{Hi: rnd.Uint64()}
		}
		b = a
		x, y := make([]packet.Lanes, badTag+1), make([]packet.Lanes, badTag+1)
		(&worker{lanes: true}).Process(&a, in, x)
		(&worker{}).Process(&b, in, y)
		for o := range x {
			if x[o] != y[o] {
				t.Fatalf("step %d, %d lanes: output %d has %x, without assembly %x", step, n, o, x[o], y[o])
			}
		}
		for l := in; l != 0; l &= l - 1 {
			i := l.Next()
			if a.L3[i] != b.L3[i] || a.L4[i] != b.L4[i] || a.IPLen[i] != b.IPLen[i] || a.Flags[i] != b.Flags[i] || a.Proto[i] != b.Proto[i] ||
				a.TCP[i] != b.TCP[i] || a.Src[i] != b.Src[i] || a.Dst[i] != b.Dst[i] || a.SPort[i] != b.SPort[i] || a.DPort[i] != b.DPort[i] ||
				a.Hash[i] != b.Hash[i] || a.VIP[i] != b.VIP[i] || a.Backend[i] != b.Backend[i] {
				t.Fatalf("step %d: lane %d of %d differs: %x", step, i, n, a.Bytes(i))
			}
		}
		d, ok := in.Dense()
		if !ok || d < group {
			continue
		}
		// It leaves what plain leaves, and groups with a short frame.
		left := plainLanes(&a, d)
		want := packet.Lanes(0)
		for from := 0; from+group <= d; from += group {
			short := false
			for i := from; i < from+group; i++ {
				short = short || a.Len[i] < shortest
			}
			if short {
				want |= packet.All(group) << from
			} else {
				want |= plain(&b, from, from+group)
			}
			for i := from; i < from+group; i++ { // plain parses these, assembly does not
				if binary.BigEndian.Uint16(a.Mem[a.Start[i]+12:]) == packet.EtherIPv6 {
					want |= packet.Lane(i)
				}
			}
			parsed += group
		}
		if left != want {
			t.Fatalf("step %d: assembly leaves %x of %d lanes, want %x", step, left, d, want)
		}
		parsed -= left.Count()
		odd += left.Count()
	}
	if parsed < 150000 || odd < 100000 {
		t.Errorf("assembly parsed %d packets and left %d", parsed, odd)
	}
}

// Nothing is read behind the memory of the frames, and nothing before a packet is known to be
// long enough.
func TestLanesReadNothingBehind(t *testing.T) {
	needLanes(t)
	page := unix.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err = unix.Mprotect(mem[page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(5, 5))
	v := packet.Vector{Mem: mem[:page]}
	for size := range 200 {
		for lane := range group {
			for i := range group {
				v.Start[i] = uint32(256 * i)
				v.Len[i] = uint32(long(rnd, mem[v.Start[i]:][:160]))
			}
			b := make([]byte, 160)
			n := frame(rnd, b, false)
			n = min(n, size)
			v.Start[lane], v.Len[lane] = uint32(page-n), uint32(n)
			copy(mem[page-n:page], b)
			left := plainLanes(&v, group)
			if want := packet.All(group); n < shortest && left != want {
				t.Fatalf("a frame of %d bytes in lane %d: left %x", n, lane, left)
			}
		}
	}
}

// Where most of a vector is not for groups, the next ones are not tried: IPv6 alone costs what
// it costs without.
func TestLanesWait(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(6, 6))
	v := packet.Vector{Mem: make([]byte, 256*packet.Size)}
	w := &worker{lanes: true}
	out := make([]packet.Lanes, badTag+1)
	// tried tells whether a vector was given to assembly, with odd packets among it.
	tried := func(odd int) bool {
		for i := range packet.Size {
			v.Start[i] = uint32(256 * i)
			frame(rnd, v.Mem[v.Start[i]:][:160], false)
			v.Len[i], v.Total[i] = 160, 160
			if i < odd {
				v.Mem[v.Start[i]+12] = 0x86
			}
		}
		before := w.wait
		w.Process(&v, packet.All(packet.Size), out)
		return before == 0
	}
	for _, c := range []struct{ odd, wait int }{{0, 0}, {32, 0}, {33, waits}, {64, waits}} {
		if !tried(c.odd) || w.wait != c.wait {
			t.Fatalf("%d odd packets of a vector: waits for %d vectors, want %d", c.odd, w.wait, c.wait)
		}
		for range c.wait {
			if tried(0) {
				t.Fatal("tried while it should wait")
			}
		}
	}
}

// Packets are where they are, also behind the first 2 GB of the memory and at the end of 4.
func TestLanesOfMuchMemory(t *testing.T) {
	needLanes(t)
	mem, err := unix.Mmap(-1, 0, 1<<32, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	rnd := rand.New(rand.NewPCG(7, 7))
	for lane := range group {
		for _, end := range []int{1 << 31, 1<<31 + 30, 1<<31 + 4096, 3 << 30, 1 << 32} {
			a := packet.Vector{Mem: mem}
			for i := range group {
				f := make([]byte, 160)
				n := long(rnd, f)
				a.Start[i], a.Len[i], a.Total[i] = uint32(256*i), uint32(n), uint32(n)
				if i == lane {
					a.Start[i] = uint32(end - n)
				}
				copy(mem[a.Start[i]:], f[:n])
			}
			b := a
			if left := plainLanes(&a, group); left != 0 {
				t.Fatalf("a packet that ends at %d in lane %d: assembly leaves %x", end, lane, left)
			}
			most(&b, 0, group)
			if left := plain(&b, 0, group); left != 0 {
				t.Fatalf("a packet that ends at %d in lane %d: plain leaves %x", end, lane, left)
			}
			if a.Src != b.Src || a.Dst != b.Dst || a.SPort != b.SPort || a.DPort != b.DPort || a.Hash != b.Hash || a.Proto != b.Proto || a.TCP != b.TCP || a.IPLen != b.IPLen {
				t.Fatalf("a packet that ends at %d in lane %d: columns differ", end, lane)
			}
		}
	}
}

// A header whose words sum to all ones is right, also where that is written as a checksum of
// 0xffff instead of 0; sums that are anything else, also zero and one more, are not.
func TestLanesOfAllChecksums(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(9, 9))
	be := binary.BigEndian
	v := packet.Vector{Mem: make([]byte, 256*group)}
	for i := range group {
		v.Start[i] = uint32(256 * i)
		n := long(rnd, v.Mem[256*i:][:160])
		v.Len[i], v.Total[i] = uint32(n), uint32(n)
	}
	for lane := range group {
		f := v.Mem[256*lane:]
		for range 20 {
			n := long(rnd, f[:160])
			v.Len[lane], v.Total[lane] = uint32(n), uint32(n)
			// An address so that the checksum is 0.
			be.PutUint16(f[24:], 0)
			be.PutUint16(f[28:], 0)
			be.PutUint16(f[28:], packet.Checksum(f[14:34]))
			for _, sum := range []struct {
				is   uint16
				want packet.Lanes
			}{{0, 0}, {1, 1}, {0xfffe, 1}, {0x8000, 1}, {0x7fff, 1}, {0x0100, 1}, {0xfeff, 1}, {0xffff, 0}} {
				be.PutUint16(f[24:], sum.is)
				if left := plainLanes(&v, group); left != sum.want<<lane {
					t.Fatalf("checksum %#x in lane %d: assembly leaves %x", sum.is, lane, left)
				}
				if left := plain(&v, 0, group); left != sum.want<<lane {
					t.Fatalf("checksum %#x in lane %d: plain leaves %x", sum.is, lane, left)
				}
			}
		}
	}
}
