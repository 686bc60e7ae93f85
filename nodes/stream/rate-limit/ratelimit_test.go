package ratelimit

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestRate(t *testing.T) {
	const step = int64(1e8) // 10 a second
	x := newTable(64)
	now := int64(1e12)
	passed := 0
	for i := range 1000 { // 10 s, 100 a second
		if x.take(7, now+int64(i)*1e7, step, 5*step) == 0 {
			passed++
		}
	}
	if passed < 103 || passed > 106 {
		t.Errorf("%d of 1000 pass", passed)
	}
	if wait := x.take(7, now+999e7, step, 5*step); wait <= 0 || wait > step {
		t.Errorf("wait for %d ns", wait)
	}
	if x.take(8, now+999e7, step, 5*step) != 0 {
		t.Error("another key pays for it")
	}
	if x.take(7, now+20e9, step, 5*step) != 0 {
		t.Error("it never recovers")
	}
}

// A flood of keys takes no memory, and those that come often are remembered.
func TestFlood(t *testing.T) {
	const step = int64(1e9)
	x := newTable(1024)
	now := int64(1e12)
	for i := range uint64(100_000) {
		x.take(i*0x9e3779b97f4a7c15|1, now+int64(i), step, step)
	}
	if len(x.sets)*ways != 1024 {
		t.Errorf("%d entries", len(x.sets)*ways)
	}
	x.take(99, now+1e6, step, 10*step)
	for i := range 9 {
		if x.take(99, now+1e6+int64(i), step, 10*step) != 0 {
			t.Errorf("refused at %d", i)
		}
	}
	if x.take(99, now+1e6+10, step, 10*step) == 0 {
		t.Error("the eleventh passes")
	}
}

func TestConcurrent(t *testing.T) {
	x := newTable(64)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if x.take(3, 1e12, 1e6, 100e6) == 0 {
					passed.Add(1)
				}
			}
		})
	}
	if wg.Wait(); passed.Load() != 100 {
		t.Errorf("%d pass, want 100", passed.Load())
	}
}

func BenchmarkTake(b *testing.B) {
	x := newTable(65536)
	for i := uint64(0); b.Loop(); i++ {
		x.take(i*0x9e3779b97f4a7c15|1, int64(i), 1000, 10000)
	}
}
