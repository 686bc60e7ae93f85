package packet

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// sumByWords is RFC 1071 §4.1 as it is written there.
func sumByWords(b []byte) uint16 {
	s := 0
	for i := 0; i < len(b); i += 2 {
		w := int(b[i]) << 8
		if i+1 < len(b) {
			w |= int(b[i+1])
		}
		s += w
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mem := make([]byte, 70000)
	for i := range mem {
		mem[i] = byte(r.Uint32())
	}
	for _, n := range []int{0, 1, 2, 3, 15, 16, 17, 19, 20, 31, 33, 59, 60, 576, 1279, 1280, 65535} {
		for off := range 9 {
			b := mem[off : off+n]
			if got, want := Sum(b), uint32(sumByWords(b)); got != want {
				t.Errorf("%d bytes at %d: %#x, want %#x", n, off, got, want)
			}
			if n > 3 {
				// Two parts that meet at an odd offset.
				part := Sum(b[:3]) + uint32(bits.ReverseBytes16(uint16(Sum(b[3:]))))
				if Fold(part) != sumByWords(b) {
					t.Errorf("%d bytes at %d in two parts: %#x, want %#x", n, off, Fold(part), sumByWords(b))
				}
			}
		}
	}
	for i := range mem {
		mem[i] = 0xff
	}
	if got := Sum(mem[:65536]); got != 0xffff {
		t.Errorf("all ones: %#x", got)
	}
}

func TestFold(t *testing.T) {
	for _, s := range []uint32{0, 1, 0xffff, 0x10000, 0x1ffff, 0xffff0000, 0xfffe0001, 0xffffffff, 0xffff0001} {
		want := s
		for want > 0xffff {
			want = want>>16 + want&0xffff
		}
		if got := Fold(s); uint32(got) != want {
			t.Errorf("Fold(%#x) = %#x, want %#x", s, got, want)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	var b [24]byte
	for range 10000 {
		for i := range b {
			b[i] = byte(r.Uint32())
			if r.Uint32()%3 == 0 {
				b[i] = 0xff
			}
		}
		be := binary.BigEndian
		if got, want := fold64(be.Uint64(b[:]), be.Uint64(b[8:]), be.Uint64(b[16:])), sumByWords(b[:]); got != want {
			t.Fatalf("fold64(%x) = %#x, want %#x", b, got, want)
		}
	}
}

func TestPseudoSum(t *testing.T) {
	be := binary.BigEndian
	src, dst := Addr4(0xc6336407), Addr4(0xcb00710a)
	b := be.AppendUint32(be.AppendUint32(nil, 0xc6336407), 0xcb00710a)
	b = be.AppendUint16(append(b, 0, ProtoTCP), 4711)
	if got := PseudoSum(src, dst, ProtoTCP, 4711); got != uint32(sumByWords(b)) {
		t.Errorf("IPv4: %#x, want %#x", got, sumByWords(b))
	}
	six := Addr{0x20010db8ffffffff, 0xffffffffffffffff}
	b = make([]byte, 40)
	six.Put16(b)
	six.Put16(b[16:])
	be.PutUint32(b[32:], 70000)
	b[39] = ProtoICMPv6
	if got := PseudoSum(six, six, ProtoICMPv6, 70000); got != uint32(sumByWords(b)) {
		t.Errorf("IPv6: %#x, want %#x", got, sumByWords(b))
	}
}

// Incremental updates must give what the whole computation gives, also where
// RFC 1141's shorter form gives the other zero.
func TestUpdate(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	word := func() uint16 {
		return []uint16{0, 1, 0xffff, 0xfffe, uint16(r.Uint32())}[r.IntN(5)]
	}
	be := binary.BigEndian
	var b [16]byte
	for range 100000 {
		for i := 0; i < len(b); i += 2 {
			be.PutUint16(b[i:], word())
		}
		b[15] |= 1 // nothing real sums to no bits at all
		c := ^sumByWords(b[:])
		at, n := r.IntN(7), word()
		old := be.Uint16(b[2*at:])
		be.PutUint16(b[2*at:], n)
		if got, want := Update16(c, old, n), ^sumByWords(b[:]); got != want {
			t.Fatalf("Update16(%#x, %#x, %#x) = %#x, want %#x", c, old, n, got, want)
		}
		c = ^sumByWords(b[:])
		at = 2*r.IntN(6) + 1 // odd: a field across two words
		old = be.Uint16(b[at:])
		n = word()
		be.PutUint16(b[at:], n)
		if got, want := Update16(c, bits.ReverseBytes16(old), bits.ReverseBytes16(n)), ^sumByWords(b[:]); got != want {
			t.Fatalf("Update16 at an odd offset = %#x, want %#x", got, want)
		}
		c = ^sumByWords(b[:])
		old32, n32 := be.Uint32(b[4:]), uint32(word())<<16|uint32(word())
		be.PutUint32(b[4:], n32)
		if got, want := Update32(c, old32, n32), ^sumByWords(b[:]); got != want {
			t.Fatalf("Update32 = %#x, want %#x", got, want)
		}
		c = ^sumByWords(b[:14])
		if got, want := AddSum(c, Sum(b[14:])), ^sumByWords(b[:]); sumByWords(b[:14]) != 0 && got != want {
			t.Fatalf("AddSum = %#x, want %#x", got, want)
		}
	}
}

func TestFlowHash4(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 1000 {
		s, d, p, proto := r.Uint32(), r.Uint32(), r.Uint32(), uint8(r.Uint32())
		if got, want := FlowHash4(s, d, uint64(p)<<16|uint64(proto)), FlowHash(Addr4(s), Addr4(d), uint16(p>>16), uint16(p), proto); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	}
}

func BenchmarkSum1280(b *testing.B) {
	p := make([]byte, 1280)
	b.SetBytes(1280)
	for b.Loop() {
		sink += Sum(p)
	}
}

var sink uint32
