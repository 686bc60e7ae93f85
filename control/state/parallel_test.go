package state

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestPoolsAreBuiltInParallel: as many tables are under work at the same time as there
// are cores, each once, and the state has them all.
func TestPoolsAreBuiltInParallel(t *testing.T) {
	const cores, pools = 4, 12
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	s := NewStore()
	defer s.Close()
	var begun, active, most atomic.Int64
	together := make(chan struct{})
	s.build = func(j *job) {
		now := active.Add(1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		if begun.Add(1) == cores {
			close(together)
		}
		select {
		case <-together: // no table is done before so many are under work
		case <-time.After(5 * time.Second):
		}
		j.build()
		active.Add(-1)
	}
	n := apply(t, s, manyPools(pools, 5, false))
	if m := most.Load(); m != cores {
		t.Errorf("%d tables at a time on %d cores", m, cores)
	}
	if b := begun.Load(); b != pools {
		t.Errorf("%d tables were built for %d pools", b, pools)
	}
	for i := range pools {
		p := &n.Pools[i+1]
		if len(p.Table) != 65537 || p.Usable != 5 {
			t.Errorf("pool %s: %d slots, %d usable", p.Name, len(p.Table), p.Usable)
		}
	}
	if b, took := s.Builds(); b != pools || took <= 0 {
		t.Errorf("%d builds in %v", b, took)
	}
}

// What is measured as the work of one core is not shared out.
func TestOneBuilderAtATime(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	s := NewStore()
	defer s.Close()
	s.builders = 1
	var active, together atomic.Int64
	s.build = func(j *job) {
		if active.Add(1) > 1 {
			together.Add(1)
		}
		time.Sleep(time.Millisecond) // another would begin now
		j.build()
		active.Add(-1)
	}
	apply(t, s, manyPools(12, 5, false))
	if n := together.Load(); n != 0 {
		t.Errorf("%d tables were built beside others", n)
	}
}
