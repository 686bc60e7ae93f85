package drop

import (
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB, reason string) *nodetest.Worker {
	return nodetest.New(t, "drop", func(c *Config) {
		if reason != "" {
			c.Reason = reason
		}
	}).Workers[0]
}

func TestDrop(t *testing.T) {
	for reason, want := range map[string]string{"": "dropped", "not_ours": "not_ours", "x2": "x2"} {
		w := rig(t, reason)
		if ans := w.Process(0b1011); ans[want] != 0b1011 {
			t.Errorf("reason %q: %v", reason, ans)
		}
		if len(w.Outputs) != 1 || w.Outputs[0].Else != graph.Drop {
			t.Errorf("reason %q: outputs %+v", reason, w.Outputs)
		}
	}
	if !graph.Lookup("drop").Sink() {
		t.Error("not the end of a path")
	}
}

func TestReason(t *testing.T) {
	for reason, ok := range map[string]bool{
		"a": true, "rate_limited": true, "x25": true,
		"": false, "Dropped": false, "2x": false, "_x": false, "a-b": false, "a b": false, "é": false, "abcdefghijklmnopqrstuvwxyz0123456": false,
	} {
		c := Config{reason}
		if err := graph.Lookup("drop").CheckConfig(&c); (err == nil) != ok {
			t.Errorf("%q: %v", reason, err)
		}
	}
}

func FuzzReason(f *testing.F) {
	f.Add("dropped")
	f.Add("no-such")
	f.Fuzz(func(t *testing.T, reason string) {
		c := Config{reason}
		if graph.Lookup("drop").CheckConfig(&c) != nil {
			return
		}
		for _, r := range reason {
			if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
				t.Fatalf("%q is taken", reason)
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	w := rig(t, "")
	if n := testing.AllocsPerRun(100, func() { w.Run(packet.All(64)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDrop reports nanoseconds a packet.
func BenchmarkDrop(b *testing.B) {
	w := rig(b, "")
	b.ReportAllocs()
	for b.Loop() {
		w.Run(packet.All(64))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
