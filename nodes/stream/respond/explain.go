package respond

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (r *responder) Explain(s *stream.Session) (output int, says string) {
	s.Status = r.status
	return stream.Done, fmt.Sprintf("answers %d, %d bytes", r.status, len(r.body))
}
