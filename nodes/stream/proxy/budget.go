package proxy

import (
	"sync"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/io/stream"
)

// budget bounds retries, so that a pool that fails is not asked a multiple of what
// clients ask: so many percent of the sessions, of this second or of the one before,
// but always leastRetries a second.
type budget struct {
	percent  atomic.Int64
	sessions atomic.Int64 // since window began

	mu      sync.Mutex
	window  int64 // when it began
	before  int64 // sessions in the window before
	retries int64 // in this window
}

const (
	leastRetries = 10
	second       = int64(1e9)
)

func newBudget() *budget { return &budget{window: stream.Now()} }

func (b *budget) session() { b.sessions.Add(1) }

// retry asks for one retry.
func (b *budget) retry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn()
	if b.retries >= b.most() {
		return false
	}
	b.retries++
	return true
}

// turn begins another window when the last one is over.
func (b *budget) turn() {
	if now := stream.Now(); now-b.window >= second {
		n := b.sessions.Swap(0)
		// What came in a longer time counts by the second.
		b.before = int64(float64(n) * float64(second) / float64(max(now-b.window, second)))
		b.window, b.retries = now, 0
	}
}

// most is how many retries are allowed in this window.
func (b *budget) most() int64 {
	return max(leastRetries, max(b.sessions.Load(), b.before)*b.percent.Load()/100)
}

// left is how many retries would be allowed now.
func (b *budget) left() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn()
	return b.most() - b.retries
}
