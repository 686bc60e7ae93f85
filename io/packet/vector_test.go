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

// OneService looks at lanes 0 … n−1 and at no other.
func TestOneService(t *testing.T) {
	var v Vector
	for n := range Size + 1 {
		for odd := range Size {
			for i := range v.VIP {
				v.VIP[i] = 7
			}
			v.VIP[odd] = []uint32{8, 7 | 1<<31}[odd%2]
			if got, want := v.OneService(n), odd >= n || n == 1; got != want {
				t.Fatalf("%d lanes, another service in lane %d: %v", n, odd, got)
			}
		}
	}
}

func TestBegin(t *testing.T) {
	for n := range Size + 1 {
		var v Vector
		for i := range Size {
			v.VIP[i], v.Backend[i], v.Slot[i], v.Port[i] = 1, 1, 1, 1
		}
		v.L3[0], v.ID[Size-1] = 5, 6 // columns before and behind are not touched
		v.Begin(n, 0x8001)
		for i := range n {
			if v.VIP[i] != 0 || v.Backend[i] != 0 || v.Slot[i] != 0 || v.Port[i] != 0x8001 {
				t.Fatalf("lane %d of %d: service %d, backend %d, slot %d, port %#x", i, n, v.VIP[i], v.Backend[i], v.Slot[i], v.Port[i])
			}
		}
		if v.L3[0] != 5 || v.ID[Size-1] != 6 {
			t.Errorf("%d lanes: another column changed", n)
		}
	}
}
