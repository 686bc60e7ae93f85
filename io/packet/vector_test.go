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
