package prefetch

import (
	"bytes"
	"testing"
	"unsafe"
)

func TestOffsetsTouchNothing(t *testing.T) {
	mem := bytes.Repeat([]byte{0xa5}, 1<<16)
	var off []uint32
	for n := range 65 {
		Offsets(unsafe.Pointer(&mem[0]), off)
		off = append(off, uint32(n*977%(len(mem)-64)))
	}
	for i := range off {
		off[i] += 64
		Around(unsafe.Pointer(&mem[0]), off[:i+1])
	}
	Around(unsafe.Pointer(&mem[0]), nil)
	if !bytes.Equal(mem, bytes.Repeat([]byte{0xa5}, 1<<16)) {
		t.Error("memory changed")
	}
	if n := testing.AllocsPerRun(100, func() { Offsets(unsafe.Pointer(&mem[0]), off); Around(unsafe.Pointer(&mem[0]), off) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
