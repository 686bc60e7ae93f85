package packet

import "sync/atomic"

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
		return new(Bucket)
	}
	step := max(1_000_000_000/int64(rate), 1)
	return &Bucket{step: step, span: step * int64(max(burst, 1)-1)}
}

// Take takes one token at time now and tells whether there was one.
func (b *Bucket) Take(now int64) bool {
	for b.step > 0 {
		full := b.full.Load()
		if full-now > b.span {
			return false
		}
		if b.full.CompareAndSwap(full, max(full, now)+b.step) {
			return true
		}
	}
	return false
}
