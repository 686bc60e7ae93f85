//go:build !purego

package mssclamp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/packet"
)

func needLanes(t *testing.T) {
	t.Helper()
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: BMI1 is %v; CI runs it emulated", cpu.X86.HasBMI1)
	}
}

// Assembly clamps as the plain Go code does, and leaves what that leaves: SYNs with all kinds of
// options and flags, cut off at any byte, to backends that take more, less or nothing.
func TestLanesAreWhatPlainIs(t *testing.T) {
	needLanes(t)
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

// syn makes lane i a SYN at start with nothing but an MSS.
func syn(v *packet.Vector, i int, start uint32, mss, sum uint16) {
	v.Start[i], v.Len[i] = start, usualL4+packet.TCPLen+optionLen
	v.L4[i], v.Proto[i], v.TCP[i], v.Flags[i], v.Backend[i] = usualL4, packet.ProtoTCP, packet.SYN, packet.DF, 0
	h := v.Bytes(i)[usualL4:]
	h[12], h[20], h[21] = 6<<4, kindMSS, optionLen
	binary.BigEndian.PutUint16(h[16:], sum)
	binary.BigEndian.PutUint16(h[22:], mss)
}

// Every checksum becomes what Update16 makes of it, also those whose sum is carried over twice.
func TestLanesOfAllChecksums(t *testing.T) {
	needLanes(t)
	const chunk = 64
	v := &packet.Vector{Mem: make([]byte, chunk*packet.Size)}
	for _, c := range []struct{ mss, limit uint16 }{{1460, 1436}, {65535, 1}, {65535, 65534}, {1, 0}, {0x8000, 0x7fff}, {256, 255}, {65535, 0}} {
		for from := 0; from < 1<<16; from += packet.Size {
			for i := range packet.Size {
				syn(v, i, uint32(chunk*i), c.mss, uint16(from+i))
			}
			if rest, n := clampLanes(v, packet.All(packet.Size), []int32{int32(c.limit) + headers}); rest != 0 || n != packet.Size {
				t.Fatalf("MSS %d to %d: %d lowered, %x left", c.mss, c.limit, n, rest)
			}
			for i := range packet.Size {
				h := v.Bytes(i)[usualL4:]
				if sum, want := binary.BigEndian.Uint16(h[16:]), packet.Update16(uint16(from+i), c.mss, c.limit); sum != want {
					t.Fatalf("MSS %d to %d: checksum %#x became %#x, want %#x", c.mss, c.limit, from+i, sum, want)
				}
				if mss := binary.BigEndian.Uint16(h[22:]); mss != c.limit {
					t.Fatalf("MSS %d to %d: it is %d", c.mss, c.limit, mss)
				}
			}
		}
	}
}

// Nothing is read behind the memory of the frames, whatever a frame's length and what it says of
// itself; the memory may be of 4 GB.
func TestLanesReadNothingBehind(t *testing.T) {
	needLanes(t)
	page := unix.Getpagesize()
	all, err := unix.Mmap(-1, 0, 1<<32+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(all)
	v := &packet.Vector{Mem: all}
	syn(v, 0, 0, 1460, 1)
	first := bytes.Clone(v.Bytes(0))
	for _, end := range []int{1 << 31, 1<<31 + 3*page, 1 << 32} {
		if err = unix.Mprotect(all[end:][:page], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		for n := range uint32(100) {
			for size := range 16 {
				f := make([]byte, 100)
				copy(f, first)
				f[usualL4+12] = byte(size << 4)
				copy(all[end-int(n):end], f)
				v.Start[0], v.Len[0] = uint32(end-int(n)), n
				want := packet.Lanes(1)
				if size == 6 && n >= uint32(len(first)) {
					want = 0
				}
				if rest, lowered := clampLanes(v, 1, []int32{1476}); rest != want || lowered != uint64(1-want) {
					t.Fatalf("a frame of %d bytes that ends at %d, header of %d words: %d lowered, %x left", n, end, size, lowered, rest)
				}
			}
		}
	}
}

// Backends are those that there are, though more numbers stand behind the end of the slice.
func TestLanesStayWithinTheNumbers(t *testing.T) {
	needLanes(t)
	v := &packet.Vector{Mem: make([]byte, 128)}
	mtus := []int32{1476, 1476, 1476, 1476}
	for n := range len(mtus) {
		for b := range uint32(len(mtus)) {
			syn(v, 0, 0, 1460, 1)
			v.Backend[0] = b
			want := uint64(0)
			if int(b) < n {
				want = 1
			}
			if rest, lowered := clampLanes(v, 1, mtus[:n]); lowered != want || uint64(rest) != 1-want {
				t.Errorf("%d backends, number %d: %d lowered, %x left", n, b, lowered, rest)
			}
		}
	}
	const last = 1<<16 + 1
	mtus = make([]int32, last+1)
	mtus[last] = 1476
	syn(v, 0, 0, 1460, 1)
	v.Backend[0] = last
	if rest, lowered := clampLanes(v, 1, mtus); lowered != 1 || rest != 0 {
		t.Errorf("backend %d: %d lowered, %x left", last, lowered, rest)
	}
}
