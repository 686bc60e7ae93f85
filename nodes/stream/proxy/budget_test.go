package proxy

import (
	"testing"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Retries are so many percent of the sessions of a second, and ten in any case.
func TestBudget(t *testing.T) {
	for _, c := range []struct {
		percent  int64
		sessions int
		want     int
	}{{20, 1000, 200}, {20, 0, leastRetries}, {20, 50, leastRetries}, {20, 51, leastRetries}, {20, 60, 12}, {0, 1000, leastRetries}, {100, 300, 300}} {
		got := 0
		for range 10 { // a second may end in between
			b := newBudget()
			b.percent.Store(c.percent)
			for range c.sessions {
				b.session()
			}
			for got = 0; b.retry(); got++ {
			}
			if stream.Now()-b.window < second {
				break
			}
		}
		if got != c.want {
			t.Errorf("%d %% of %d sessions: %d retries, want %d", c.percent, c.sessions, got, c.want)
		}
	}
	// What came in ten seconds counts by the second.
	b := newBudget()
	b.percent.Store(20)
	for range 10_000 {
		b.session()
	}
	b.window -= 10 * second
	got := 0
	for b.retry() {
		got++
	}
	if got < 190 || got > 200 {
		t.Errorf("%d retries behind ten seconds of 1000 sessions each", got)
	}
}
