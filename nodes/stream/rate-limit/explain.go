package ratelimit

import (
	"fmt"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (l *limiter) Explain(s *stream.Session) (output int, says string) {
	left := l.table.left(l.key(s), stream.Now(), l.step, int64(l.c.Burst)*l.step)
	if left < 0 {
		return limited, fmt.Sprintf("%s is over the rate for %v", l.whose(), time.Duration(-left).Round(time.Millisecond))
	}
	return next, fmt.Sprintf("%s may send %d at once", l.whose(), left/l.step)
}

// whose says what shares an allowance.
func (l *limiter) whose() string {
	if l.c.Key == "all" {
		return "everybody together"
	}
	return "this " + l.c.Key
}

// left answers what is left of the allowance of most; if it does not do for a further
// step, less than 0: how long until it does.
func (t *table) left(key uint64, now, step, most int64) int64 {
	full := now
	for set, i := &t.sets[key>>8&t.mask], 0; i < ways; i++ {
		if set[i].key.Load() == key {
			full = max(full, set[i].full.Load())
		}
	}
	left := most - (full - now)
	if left < step {
		left -= step
	}
	return left
}
