package handoff

import (
	"slices"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB, n int, cores ...int) *nodetest.Rig {
	return nodetest.New(t, "handoff", func(c *Config) { c.Cores = cores }, nodetest.Cores(n))
}

// flows are frames of different flows.
func flows(t testing.TB, n int) [][]byte {
	var all [][]byte
	for i := range n {
		all = append(all, nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, uint16(1000+i), 443))
	}
	return all
}

// Every lane goes to the core of its hash, with all its columns; the others stay; the
// core does not depend on where the packet comes from.
func TestSpread(t *testing.T) {
	r := rig(t, 4, 1, 2, 3)
	var where [3][]int
	for from := range 3 {
		w := r.Workers[from]
		in := w.Load(flows(t, 60)...)
		w.Parse(in)
		ans := w.Process(in)
		count := map[int]int{}
		next := 0
		for i := range 60 {
			want := 1 + int((w.V.Hash[i]>>32)*3>>32)
			where[from] = append(where[from], want)
			count[want]++
			if want == from {
				if !ans["next"].Has(i) {
					t.Errorf("core %d: lane %d does not stay", from, i)
				}
				continue
			}
			var r packet.Record
			w.V.Save(i, &r)
			if p := w.Passed[next]; p.To != want || p.Output != "next" || p.Record != r {
				t.Errorf("core %d: lane %d passed to %d behind %q, want core %d", from, i, p.To, p.Output, want)
			}
			next++
		}
		if next != len(w.Passed) || w.Counter("passed") != uint64(next) {
			t.Errorf("%d passed, %d counted, want %d", len(w.Passed), w.Counter("passed"), next)
		}
		for c := 1; c < 4; c++ {
			if count[c] < 8 {
				t.Errorf("core %d gets %d of 60 flows", c, count[c])
			}
		}
	}
	if !slices.Equal(where[0], where[1]) || !slices.Equal(where[0], where[2]) {
		t.Error("the core of a flow depends on where it comes from")
	}
}

// Lanes of one flow leave in their order.
func TestOrder(t *testing.T) {
	w := rig(t, 2, 1).Workers[0]
	f := flows(t, 2)
	in := w.Load(f[0], f[1], f[0], f[0], f[1])
	w.Parse(in)
	frames := slices.Clone(w.V.Frame[:5])
	w.Process(in)
	if len(w.Passed) != len(frames) {
		t.Fatalf("%d of %d frames were passed", len(w.Passed), len(frames))
	}
	for i, p := range w.Passed {
		if p.Record.Frame != frames[i] {
			t.Errorf("frame %d leaves as number %d", p.Record.Frame, i)
		}
	}
}

func TestCollect(t *testing.T) {
	r := rig(t, 2, 0)
	for i, w := range r.Workers {
		in := w.Load(flows(t, 7)...)
		w.Parse(in)
		ans := w.Process(in)
		if i == 0 && ans["next"] != in || i == 1 && len(w.Passed) != 7 {
			t.Errorf("core %d: %v, %d passed", i, ans, len(w.Passed))
		}
	}
}

func TestRingFull(t *testing.T) {
	w := rig(t, 3, 0, 1, 2).Workers[0]
	w.RingFull = true
	in := w.Load(flows(t, 64)...)
	w.Parse(in)
	ans := w.Process(in)
	for i := range 64 {
		want := "ring_full"
		if packet.Reduce(w.V.Hash[i], 3) == 0 {
			want = "next"
		}
		if got := w.Only(ans, i); got != want {
			t.Errorf("lane %d leaves by %q, want %q", i, got, want)
		}
	}
	if w.Counter("passed") != 0 {
		t.Errorf("%d counted as passed", w.Counter("passed"))
	}
}

func TestConfig(t *testing.T) {
	k := graph.Lookup("handoff")
	for _, c := range []struct {
		cores []int
		ring  int
		err   string
		least int
	}{
		{[]int{1, 2, 3}, 2048, "", 4},
		{[]int{0}, 64, "", 1},
		{nil, 2048, "empty", 1},
		{[]int{1, 1}, 2048, "core 1 is named twice", 2},
		{[]int{1}, 1000, "power of two", 2},
	} {
		cfg := k.NewConfig().(*Config)
		cfg.Cores, cfg.Ring = c.cores, c.ring
		err := k.CheckConfig(cfg)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %v", cfg, err)
		}
		if k.Cores(cfg) != c.least || k.Ring(cfg) != c.ring {
			t.Errorf("%+v: works on %d cores, rings of %d", cfg, k.Cores(cfg), k.Ring(cfg))
		}
	}
}

// none passes into nothing.
type none struct{ graph.Core }

func (none) Pass(int, *packet.Vector, int, int) bool { return true }

func TestAllocations(t *testing.T) {
	w := rig(t, 4, 1, 2, 3).Workers[1]
	in := w.Load(flows(t, 64)...)
	w.Parse(in)
	w.Node.(*worker).core = none{w}
	if n := testing.AllocsPerRun(100, func() { w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkProcess(b *testing.B) {
	for _, c := range []struct {
		name  string
		cores []int
	}{{"spread", []int{1, 2, 3}}, {"collect", []int{0}}} {
		b.Run(c.name, func(b *testing.B) {
			w := rig(b, 4, c.cores...).Workers[0]
			in := w.Load(flows(b, 64)...)
			w.Parse(in)
			w.Node.(*worker).core = none{w}
			for n := 0; n < b.N; n += packet.Size {
				w.Run(in)
			}
		})
	}
}

func FuzzProcess(f *testing.F) {
	f.Add(uint64(1), uint64(7), uint8(3))
	f.Fuzz(func(t *testing.T, hash, lanes uint64, n uint8) {
		cores := make([]int, n%16+1)
		for i := range cores {
			cores[i] = i
		}
		w := rig(t, 16, cores...).Workers[5]
		w.Load(flows(t, 1)...)
		for i := range w.V.Hash {
			w.V.Hash[i] = hash * uint64(2*i+1)
		}
		in := packet.Lanes(lanes)
		ans := w.Process(in) // every lane goes one way
		for _, p := range w.Passed {
			if p.To == 5 || p.To >= len(cores) {
				t.Errorf("passed to core %d of %d", p.To, len(cores))
			}
		}
		if ans["next"].Count()+len(w.Passed) != in.Count() {
			t.Errorf("%d stay, %d pass, %d came", ans["next"].Count(), len(w.Passed), in.Count())
		}
	})
}
