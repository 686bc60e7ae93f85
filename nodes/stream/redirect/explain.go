package redirect

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (d *redirector) Explain(s *stream.Session) (output int, says string) {
	to, ok := d.appendTo(nil, s.Req)
	if !ok {
		return noHost, "the request has no host"
	}
	s.Status = d.status
	return stream.Done, fmt.Sprintf("answers %d: %s", d.status, to)
}
