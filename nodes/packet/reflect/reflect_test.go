package reflect

import (
	"bytes"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB) *nodetest.Worker {
	return nodetest.New[struct{}](t, "reflect", nil).Workers[0]
}

func check(t testing.TB, w *nodetest.Worker, frame []byte) {
	t.Helper()
	w.Reuse()
	if out := w.Only(w.Process(w.Load(frame)), 0); out != "next" {
		t.Errorf("leaves by %q", out)
	}
	want := bytes.Clone(frame)
	if len(frame) >= 14 {
		copy(want, frame[6:12])
		copy(want[6:], frame[:6])
	}
	if got := w.V.Bytes(0); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestReflect(t *testing.T) {
	w := rig(t)
	for _, frame := range nodetest.Cases(t) {
		check(t, w, frame)
	}
	for n := range 20 {
		check(t, w, nodetest.Cases(t)["syn"][:n])
	}
}

func FuzzReflect(f *testing.F) {
	f.Add([]byte("destinsource08"))
	w := rig(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		w.T = t
		check(t, w, b[:min(len(b), 3000)])
	})
}

func TestNoAllocation(t *testing.T) {
	w := rig(t)
	in := w.Load(nodetest.Cases(t)["syn"])
	if n := testing.AllocsPerRun(100, func() { w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkReflect reports nanoseconds a packet.
func BenchmarkReflect(b *testing.B) {
	w := rig(b)
	frames := make([][]byte, packet.Size)
	for i := range frames {
		frames[i] = nodetest.Cases(b)["data"]
	}
	in := w.Load(frames...)
	b.ReportAllocs()
	for b.Loop() {
		w.Run(in)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
