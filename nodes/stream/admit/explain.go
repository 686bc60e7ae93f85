package admit

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (a *stage) Explain(s *stream.Session) (output int, says string) {
	if n := a.gate.upgraded.Load(); wantsUpgrade(s) && n >= a.most.Load() {
		return upgradesFull, fmt.Sprintf("%d connections have left HTTP, the most allowed", n)
	}
	in, limit, waiting := a.inFlight.Load(), a.limit.Load(), a.waiting.Load()
	says = fmt.Sprintf("%d of %d are in flight", in, limit)
	switch {
	case waiting == 0 && in < limit:
		return next, says
	case int(waiting) >= a.c.Queue || a.c.Wait == 0:
		return overflow, fmt.Sprintf("%s, %d wait", says, waiting)
	}
	return next, fmt.Sprintf("%s, %d wait: it would wait up to %v", says, waiting, a.c.Wait)
}
