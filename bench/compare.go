package bench

import (
	"runtime"
	"slices"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A Work is one way to load the sample.
type Work struct {
	Load
	Batch   int  // packets a vector
	Cold    bool // headers are in no cache
	Entries int  // of the connection table; 0 is a million, more if there are more flows
	// Main, Paths and Nodes change the sample; see Sample.
	Main         []string
	Paths, Nodes string
}

// tableFor is the entries of both tables where nothing else is said: one size for all
// figures, so that only the work differs.
const tableFor = 1 << 20

// A Comparison is the sample and the reference measured side by side, in nanoseconds a
// packet, one value a run; what the port costs is taken off.
type Comparison struct{ Graph, Reference []float64 }

// Ratio is how many times longer the reference takes: the median of the runs.
func (c Comparison) Ratio() float64 { return Ratio(c.Reference, c.Graph) }

// sample is the sample for w.
func (w *Work) sample() Sample {
	s := NewSample(max(w.Flows, tableFor))
	if w.Entries != 0 {
		s.Entries = w.Entries
	}
	s.Main, s.Paths, s.Nodes = w.Main, w.Paths, w.Nodes
	return s
}

// engine makes the sample for w.
func (w *Work) engine() (*Engine, error) {
	f, err := w.sample().Load()
	if err != nil {
		return nil, err
	}
	return NewEngine(f, w.Load, orDefault(w.Batch, packet.Size), w.Cold)
}

// Compare measures graph, reference and port in turn, so many runs of the time d each.
func Compare(w Work, runs int, d time.Duration) (c Comparison, err error) {
	e, err := w.engine()
	if err != nil {
		return c, err
	}
	defer e.Close()
	batch := orDefault(w.Batch, packet.Size)
	ref := newScalar(e, w.sample().Entries, batch, w.Cold)
	defer ref.Close()
	base := newBare(e.traffic(), batch, w.Cold)
	quiet(func() {
		e.Warm()
		for range runs {
			port := run(base, d/4)
			c.Graph = append(c.Graph, run(e, d)-port)
			c.Reference = append(c.Reference, run(ref, d)-port)
		}
	})
	return c, nil
}

// NodeCost measures one node of the sample, in nanoseconds a packet, one value a run.
func NodeCost(w Work, node string, runs int, d time.Duration) ([]float64, error) {
	e, err := w.engine()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	r := &Result{Nodes: []NodeResult{{Name: node}}}
	quiet(func() {
		e.Warm()
		for range runs {
			e.nodes(r, d)
		}
	})
	return r.Nodes[0].PerPacket, nil
}

// LookUp measures look-ups of hot flows in a connection table of which fill percent are
// in use, or of all its flows in turn if hot is 0. miss makes all packets belong to
// flows that the table does not have, and does not take.
func LookUp(entries, fill, hot int, miss bool, runs int, d time.Duration) ([]float64, error) {
	w := Work{Load: Load{Flows: entries / 100 * fill}, Entries: entries}
	e, err := w.engine()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	r := &Result{Nodes: []NodeResult{{Name: "ct"}}}
	quiet(func() {
		e.Warm()
		if hot > 0 {
			e.load.Flows, e.load.flow = hot, 0
		}
		e.load.lone = miss
		for range runs {
			e.nodes(r, d)
		}
	})
	return r.Nodes[0].PerPacket, nil
}

// Added measures what n nodes without work add to a packet, each; one value a run.
func Added(n, runs int, d time.Duration) (each []float64, err error) {
	plain := Work{Load: Load{Flows: 10000}}
	more := plain
	more.Main = slices.Clone(mainPath[:2])
	for i := range n {
		name := "idle-" + string(rune('a'+i))
		more.Main = append(more.Main, name)
		more.Nodes += "  node \"count\" \"" + name + "\" {}\n"
	}
	more.Main = append(more.Main, mainPath[2:]...)
	a, err := plain.engine()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := more.engine()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	quiet(func() {
		a.Warm()
		b.Warm()
		for range runs {
			without := run(a, d)
			each = append(each, (run(b, d)-without)/float64(n))
		}
	})
	return each, nil
}

// Allocations counts the allocations of so many slices of w.
func Allocations(w Work, slices int) (n uint64, err error) {
	e, err := w.engine()
	if err != nil {
		return 0, err
	}
	defer e.Close()
	quiet(func() {
		e.Warm()
		var before, after runtime.MemStats
		for range slices {
			e.arm()
			runtime.ReadMemStats(&before)
			e.run()
			runtime.ReadMemStats(&after)
			n += after.Mallocs - before.Mallocs
		}
	})
	return n, nil
}

// loop measures f, which does something so many times, in nanoseconds each.
func loop(times, runs int, f func()) (each []float64) {
	quiet(func() {
		for range runs {
			var all []float64
			for range 200 {
				t := time.Now()
				f()
				all = append(all, float64(time.Since(t))/float64(times))
			}
			each = append(each, median(all))
		}
	})
	return each
}

// Selection measures Pool.Select on given hashes.
func Selection(runs int) ([]float64, error) {
	f, err := NewSample(1).Load()
	if err != nil {
		return nil, err
	}
	s, err := state.Build(f.Spec)
	if err != nil {
		return nil, err
	}
	var hashes [1024]uint64
	for i := range hashes {
		hashes[i] = packet.Mix(uint64(i+1)*0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	}
	p, all := &s.Pools[1], hashes[:]
	const rounds = 8
	return loop(rounds*len(all), runs, func() {
		sum := uint32(0) // in a register
		for range rounds {
			for _, h := range all {
				slot, _ := p.Select(h)
				sum += slot
			}
		}
		runtime.KeepAlive(sum)
	}), nil
}

// Limiter measures a rate limiter that allows, or denies, n packets of every vector. A
// node asks it once a vector, for a number of lanes.
func Limiter(allow bool, n, runs int) []float64 {
	rate, step := 1_000_000_000, int64(n)
	if !allow {
		rate, step = 1, 0
	}
	b, now, ask := packet.NewBucket(rate, n), int64(1), packet.All(n)
	b.Take(now, n)
	return loop(4096*n, runs, func() {
		at := now // in a register
		for range 4096 {
			at += step
			b.Take(at, ask.Count())
		}
		now = at
	})
}
