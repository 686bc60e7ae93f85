package packet

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestBucket(t *testing.T) {
	const start = int64(1e12)
	count := func(b *Bucket, from, step int64, tries int) (n int) {
		for i := range tries {
			if b.Take(from + int64(i)*step) {
				n++
			}
		}
		return n
	}
	for _, x := range []struct {
		rate, burst, tries int
		step               int64
		want               int
	}{
		{100, 10, 1000, 1e6, 109},           // a second: the burst, and one every 10 ms from the first
		{100, 10, 50, 0, 10},                // at once
		{100, 1, 1000, 1e6, 100},            // no burst
		{100, 10, 100, 1e7, 100},            // just the rate
		{0, 10, 100, 1e9, 0},                // none
		{2_000_000_000, 1, 100, 1, 100},     // as fast as the clock counts
		{1_000_000, 1_000_000, 100, 0, 100}, // all of a large burst
	} {
		if got := count(NewBucket(x.rate, x.burst), start, x.step, x.tries); got != x.want {
			t.Errorf("rate %d burst %d: %d of %d every %d ns, want %d", x.rate, x.burst, got, x.tries, x.step, x.want)
		}
	}
	b := NewBucket(100, 10)
	count(b, start, 0, 50)
	if got := count(b, start+1e12, 0, 50); got != 10 {
		t.Errorf("after a long rest: %d at once, want 10", got)
	}
	if got := count(b, start, 0, 50); got != 0 {
		t.Errorf("a clock that lags: %d", got)
	}
}

// Cores share the bucket: no token is given twice.
func TestBucketShared(t *testing.T) {
	b := NewBucket(1, 100)
	var got atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				if b.Take(1e12) {
					got.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got.Load() != 100 {
		t.Errorf("%d, want 100", got.Load())
	}
}

func BenchmarkBucket(b *testing.B) {
	b.Run("allow", func(b *testing.B) {
		k, now := NewBucket(1_000_000_000, 1), int64(0)
		for b.Loop() {
			now++
			if !k.Take(now) {
				b.Fatal("refused")
			}
		}
	})
	b.Run("deny", func(b *testing.B) {
		k := NewBucket(1, 1)
		k.Take(1)
		for b.Loop() {
			if k.Take(1) {
				b.Fatal("allowed")
			}
		}
	})
}
