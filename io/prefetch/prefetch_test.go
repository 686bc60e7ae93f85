package prefetch

import (
	"bytes"
	"testing"
	"unsafe"
)

func TestLinesTouchNothing(t *testing.T) {
	mem := bytes.Repeat([]byte{0xa5}, 1<<16)
	p := make([]unsafe.Pointer, 0, 64)
	for n := range 65 {
		if n > 0 {
			p = append(p, unsafe.Pointer(&mem[(n*977)%len(mem)]))
		}
		Lines(p)
	}
	Lines(nil)
	if !bytes.Equal(mem, bytes.Repeat([]byte{0xa5}, 1<<16)) {
		t.Error("memory changed")
	}
	if n := testing.AllocsPerRun(100, func() { Lines(p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Sixteen dependent-free reads of far memory at a time, asked for before or not.
// What is done with each value takes about as long as a node's work on a packet.
func BenchmarkLines(b *testing.B) {
	mem := make([]byte, 256<<20)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	for _, ask := range []bool{false, true} {
		name := "plain"
		if ask {
			name = "prefetched"
		}
		b.Run(name, func(b *testing.B) {
			var p [16]unsafe.Pointer
			x, sum := uint64(1), uint64(0)
			for b.Loop() {
				for i := range p {
					x = x*6364136223846793005 + 1442695040888963407
					p[i] = unsafe.Pointer(&mem[x>>32%uint64(len(mem))])
				}
				if ask {
					Lines(p[:])
				}
				for _, q := range p {
					for range 12 { // a chain that the processor cannot look behind
						sum = (sum ^ uint64(*(*byte)(q))) * 0x9e3779b97f4a7c15
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/16, "ns/line")
			if sum == 0 {
				b.Log(sum)
			}
		})
	}
}
