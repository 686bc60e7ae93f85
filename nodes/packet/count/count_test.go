package count

import (
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB) *nodetest.Worker {
	return nodetest.New[struct{}](t, "count", nil).Workers[0]
}

func check(t testing.TB, w *nodetest.Worker, in packet.Lanes) {
	t.Helper()
	var octets uint64
	for i := range packet.Size {
		w.V.Total[i] = uint32(60 + i*i)
		if in.Has(i) {
			octets += uint64(60 + i*i)
		}
	}
	clear(w.Counters)
	if ans := w.Process(in); ans["next"] != in {
		t.Errorf("%b became %v", in, ans)
	}
	if w.Counter("packets") != uint64(in.Count()) || w.Counter("bytes") != octets {
		t.Errorf("%b: %v, want %d and %d", in, w.Counters, in.Count(), octets)
	}
}

func TestCount(t *testing.T) {
	w := rig(t)
	for _, in := range []packet.Lanes{0, 1, 0b111, 0b101, 1 << 63, packet.All(63), packet.All(64), ^packet.Lanes(1)} {
		check(t, w, in)
	}
	// A packet of several frames counts as a whole.
	w.V.Len[0], w.V.Total[0] = 1000, 9000
	clear(w.Counters)
	if w.Process(1); w.Counter("bytes") != 9000 {
		t.Errorf("%d bytes, want 9000", w.Counter("bytes"))
	}
}

func FuzzCount(f *testing.F) {
	f.Add(uint64(0xf0f0))
	w := rig(f)
	f.Fuzz(func(t *testing.T, in uint64) {
		w.T = t
		check(t, w, packet.Lanes(in))
	})
}

func TestNoAllocation(t *testing.T) {
	w := rig(t)
	if n := testing.AllocsPerRun(100, func() { w.Run(packet.All(64)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCount reports nanoseconds a packet.
func BenchmarkCount(b *testing.B) {
	w := rig(b)
	b.ReportAllocs()
	for b.Loop() {
		w.Run(packet.All(64))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
