package punt

import (
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB) *nodetest.Worker {
	return nodetest.New[struct{}](t, "punt", nil).Workers[0]
}

func TestPunt(t *testing.T) {
	w := rig(t)
	if ans := w.Process(0b1101); len(ans) != 0 || w.Kernel != 3 {
		t.Errorf("%v, %d to the kernel", ans, w.Kernel)
	}
	w = rig(t)
	w.NoPunt = true
	if ans := w.Process(0b1101); ans["no_punt"] != 0b1101 || w.Kernel != 0 {
		t.Errorf("without a way: %v, %d to the kernel", ans, w.Kernel)
	}
	if !graph.Lookup("punt").Sink() {
		t.Error("not the end of a path")
	}
}

// Every lane is answered once, whether there is a way or not; the rig sees to it.
func FuzzPunt(f *testing.F) {
	f.Add(uint64(5), true)
	f.Fuzz(func(t *testing.T, in uint64, way bool) {
		w := rig(t)
		w.NoPunt = !way
		w.Process(packet.Lanes(in))
		if n := packet.Lanes(in).Count(); way && w.Kernel != n || !way && w.Out(0).Count() != n {
			t.Fatalf("%d lanes, %d to the kernel, %d dropped", n, w.Kernel, w.Out(0).Count())
		}
	})
}

func TestNoAllocation(t *testing.T) {
	w := rig(t)
	if n := testing.AllocsPerRun(100, func() { w.Run(packet.All(64)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkPunt reports nanoseconds a packet, without the way to the kernel itself.
func BenchmarkPunt(b *testing.B) {
	w := rig(b)
	b.ReportAllocs()
	for b.Loop() {
		w.Run(packet.All(64))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
