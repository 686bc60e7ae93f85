package packet

import (
	"math"
	"sync/atomic"
)

// A Bucket limits how often something is done: Rate times a second, and Burst times at
// once. It is safe for concurrent use: the nodes of all cores share one, so that
// the limit is the operator's figure whatever the number of cores. A refusal only reads, so that a
// flood does not move the cache line between cores.
//
// It is the virtual scheduling form of the generic cell rate algorithm (ITU-T I.371
// Annex A): one word says when the bucket will be full again.
type Bucket struct {
	full       atomic.Int64 // nanoseconds of the vectors' clock
	step, span int64        // one token; all but one of a full bucket
}

// NewBucket makes a full bucket. A rate of 0 allows nothing; one beyond 10⁹ counts as
// 10⁹.
func NewBucket(rate, burst int) *Bucket {
	if rate <= 0 {
		return &Bucket{span: math.MinInt64}
	}
	step := max(1_000_000_000/int64(rate), 1)
	return &Bucket{step: step, span: step * int64(max(burst, 1)-1)}
}

// Take takes up to n tokens at time now and answers how many there were: as many as n
// calls for one would get. The word is shared and a locked exchange dear, so a node asks
// once for all lanes of a vector.
func (b *Bucket) Take(now int64, n int) int {
	if n <= 0 || b.full.Load()-now > b.span {
		return 0
	}
	return b.take(now, int64(n))
}

// take is Take where there seems to be one; it stands apart so that a refusal costs no call.
//
//go:noinline
func (b *Bucket) take(now, n int64) int {
	for {
		full := b.full.Load()
		from, k := max(full, now), n
		room := b.span - (from - now) // for those behind the first
		if room < 0 {
			return 0
		}
		if (k-1)*b.step > room {
			k = room/b.step + 1
		}
		if b.full.CompareAndSwap(full, from+k*b.step) {
			return int(k)
		}
	}
}
