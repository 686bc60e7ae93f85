package proxy

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (p *proxy) Explain(s *stream.Session) (output int, says string) {
	what := "passes the connection on"
	if s.Req != nil {
		what = "asks by HTTP/" + p.c.HTTP
	}
	if p.tls != nil {
		what += " over TLS"
	}
	if s.Backend != nil {
		what += fmt.Sprintf(" at %v", s.Backend.Addr)
	}
	return stream.Done, what
}
