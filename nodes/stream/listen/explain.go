package listen

import (
	"fmt"
	"net/netip"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (l *listener) Explain(s *stream.Session) (output int, says string) {
	c := s.Client
	c.HTTP = l.http
	c.Trusted = l.trusts(c.Peer.Addr())
	n := l.load.Load()
	if l.c.Connections > 0 && n >= int64(l.c.Connections) {
		return full, fmt.Sprintf("%d connections are open, the most allowed", n)
	}
	if l.c.PerClient > 0 && l.clients.count(c.Remote.Addr()) >= l.c.PerClient {
		return perClient, fmt.Sprintf("%v has %d connections, the most allowed", c.Remote.Addr(), l.c.PerClient)
	}
	if l.c.Connections > 0 {
		says = fmt.Sprintf("%d of %d connections are open", n, l.c.Connections)
	}
	if l.c.Proxy == "require" && c.Trusted {
		says = "it has to begin with a PROXY header"
	}
	return next, says
}

func (c *clients) count(a netip.Addr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[a]
}
