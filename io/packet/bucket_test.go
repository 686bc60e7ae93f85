package packet

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

func TestBucket(t *testing.T) {
	const start = int64(1e12)
	count := func(b *Bucket, from, step int64, tries int) (n int) {
		for i := range tries {
			n += b.Take(from+int64(i)*step, 1)
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

// Asking for many gets what asking for one as often gets, also where the clock goes back
// a little, as those of two cores do.
func TestBucketOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	part := 0 // how often there were some, but not all
	for range 300 {
		rate, burst, now := 1+r.IntN(1_000_000), 1+r.IntN(100), int64(1e12)
		if r.IntN(8) == 0 {
			rate = 0
		}
		many, single := NewBucket(rate, burst), NewBucket(rate, burst)
		for range 50 {
			n, want := r.IntN(Size+1), 0
			for range n {
				want += single.Take(now, 1)
			}
			if got := many.Take(now, n); got != want {
				t.Fatalf("rate %d burst %d: %d of %d, one by one %d", rate, burst, got, n, want)
			}
			if 0 < want && want < n {
				part++
			}
			now += r.Int64N(100_000_000_000/int64(1+rate)) - 1000
		}
	}
	if part < 500 {
		t.Errorf("only %d times a part", part)
	}
}

// No token is given to two cores.
func TestBucketShared(t *testing.T) {
	const burst = 2_000_000
	b := NewBucket(1, burst)
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, all := 1, 0
			for i := 0; got > 0; i++ {
				got = b.Take(1e12, 1+i%3)
				all += got
			}
			sum.Add(int64(all))
		})
	}
	wg.Wait()
	if sum.Load() != burst {
		t.Errorf("%d, want %d", sum.Load(), burst)
	}
}

// In no interval do cores get more together than the rate and the
// burst, and while they want more than there is, nothing is lost.
func TestBucketOfCores(t *testing.T) {
	const rate, burst, step, cores, tries = 1_000_000, 100, 1000, 4, 20_000
	type taken struct{ now, n int64 }
	b, each := NewBucket(rate, burst), [cores][]taken{}
	var clock atomic.Int64
	clock.Store(1e12)
	var wg sync.WaitGroup
	for c := range cores {
		r := rand.New(rand.NewPCG(uint64(c), 3))
		wg.Go(func() {
			for range tries {
				now := clock.Add(r.Int64N(20 * step))
				if n := b.Take(now, 1+r.IntN(Size)); n > 0 {
					each[c] = append(each[c], taken{now, int64(n)})
				}
			}
		})
	}
	wg.Wait()
	all := slices.Concat(each[:]...)
	slices.SortFunc(all, func(a, b taken) int { return cmp.Compare(a.now, b.now) })
	// least is the least of rate·t − taken at any moment up to now: from the moment of it
	// until now most were taken beyond the rate.
	sum, least := int64(0), int64(math.MaxInt64)
	for _, x := range all {
		least = min(least, sum*step-x.now)
		sum += x.n
		if most := burst*step + x.now + least; sum*step > most {
			t.Fatalf("%d tokens too many", (sum*step-most+step-1)/step)
		}
	}
	if want := (clock.Load() - 1e12) / step; sum < want {
		t.Errorf("%d of %d", sum, want)
	}
}

// BenchmarkBucket is of one packet alone in its vector, and reports nanoseconds a vector; bench
// has the figure of full ones.
func BenchmarkBucket(b *testing.B) {
	b.Run("allow", func(b *testing.B) {
		k, now := NewBucket(1_000_000_000, 1), int64(0)
		for range b.N { // b.Loop keeps calls from being inlined
			now++
			if k.Take(now, 1) == 0 {
				b.Fatal("refused")
			}
		}
	})
	b.Run("deny", func(b *testing.B) {
		k := NewBucket(1, 1)
		k.Take(1, 1)
		for range b.N {
			if k.Take(1, 1) != 0 {
				b.Fatal("allowed")
			}
		}
	})
}
