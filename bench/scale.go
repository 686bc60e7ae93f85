package bench

import (
	"runtime"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
)

// A Size is how much a file holds.
type Size struct{ VIPs, Pools, Backends, Flows int }

// Scale is what a file of some size costs.
type Scale struct {
	Size
	Load   time.Duration // reading and checking the file
	Build  time.Duration // the first snapshot, all Maglev tables
	Flap   time.Duration // a backend of one pool goes down: the next snapshot
	Tables uint64        // that this next snapshot needed
	Memory uint64        // bytes of the heap that file and snapshot hold
	Match  float64       // ns a packet in vip-classify
	LookUp float64       // ns a packet in conntrack, every flow before any comes again
}

// MeasureScale measures a sample of that size, in so many runs of the time d.
func MeasureScale(z Size, runs int, d time.Duration) (*Scale, error) {
	x := &Scale{Size: z}
	s := NewSample(z.Flows)
	s.VIPs, s.Pools, s.Backends = z.VIPs, z.Pools, z.Backends
	before := heap()
	t := time.Now()
	f, err := s.Load()
	if err != nil {
		return nil, err
	}
	x.Load = time.Since(t)
	store := state.NewStore()
	t = time.Now()
	err = store.Apply(f.Spec)
	x.Build = time.Since(t)
	if err == nil {
		x.Memory = heap() - before
		store.Flush()
		built, _ := store.Builds()
		t = time.Now()
		err = store.Drain("pool-0", "b-0", true, false)
		store.Flush()
		x.Flap = time.Since(t)
		x.Tables, _ = store.Builds()
		x.Tables -= built
	}
	store.Close()
	if err != nil {
		return nil, err
	}
	e, err := NewEngine(f, Load{Flows: z.Flows}, 64, false)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	r := &Result{Nodes: []NodeResult{{Name: "vip-classify"}, {Name: "ct"}}}
	quiet(func() {
		e.Warm()
		for range runs {
			e.nodes(r, d)
		}
	})
	x.Match, x.LookUp = median(r.Nodes[0].PerPacket), median(r.Nodes[1].PerPacket)
	return x, nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
