package route

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (r *router) Explain(s *stream.Session) (output int, says string) {
	if x := r.choose(s); x != nil {
		return x.output, fmt.Sprintf("rule %q fits", x.name)
	}
	return noRoute, "no rule fits"
}
