package packet

import (
	"testing"
	"unsafe"
)

func TestAnyFlag(t *testing.T) {
	var v Vector
	if at := unsafe.Offsetof(v.Flags); at%8 != 0 {
		t.Errorf("Flags stands at %d", at)
	}
	for i := range Size {
		for bit := range 16 {
			v.Flags[i] = 1 << bit
			for f := range 16 {
				if v.AnyFlag(1<<f) != (f == bit) {
					t.Fatalf("lane %d with flag %d: flag %d", i, bit, f)
				}
			}
		}
		v.Flags[i] = 0
	}
	if v.AnyFlag(^Flags(0)) {
		t.Error("a flag out of nothing")
	}
}

// The bytes of the first lanes are the sum of their lengths, and of no other's, up to the
// longest packets that there are.
func TestOctets(t *testing.T) {
	var v Vector
	if unsafe.Offsetof(v.Total)%8 != 0 {
		t.Fatalf("Total stands at %d", unsafe.Offsetof(v.Total))
	}
	for _, most := range []uint32{1500, 1 << 26} {
		sum := uint64(0)
		for i := range Size {
			v.Total[i] = most - uint32(i)*7
		}
		for n := range Size + 1 {
			if got := v.Octets(n); got != sum {
				t.Fatalf("%d lanes have %d bytes, not %d", n, got, sum)
			}
			if n < Size {
				sum += uint64(v.Total[n])
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() { v.Octets(Size) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
