package streams

import (
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// meters is how many meters the connections of a listener share, so that cores
// seldom meet.
const meters = 16

// listening is what came to a listener, over reloads.
type listening struct {
	accepted, requests  atomic.Uint64
	malformed           atomic.Uint64 // requests that could not be read
	refused             atomic.Uint64 // connections that accept answered an error for
	connections, active atomic.Int64
	bound               atomic.Pointer[netip.AddrPort]
	bytes               [meters]stream.Meter
}

// outcomes is how the sessions of a route ended, and what they took.
type outcomes struct {
	of      [graph.Outcomes]atomic.Uint64
	latency stream.Histogram
}

// count counts a session that is over.
func (o *outcomes) count(s *stream.Session, now int64) {
	o.of[outcome(s)].Add(1)
	if !s.Upgraded {
		o.latency.Observe(now - s.Begun)
	}
}

// outcome answers how a session ended.
func outcome(s *stream.Session) graph.Outcome {
	switch {
	case s.Req == nil && s.Reason == "":
		return graph.Ended
	case s.Req == nil:
		return graph.Failed
	case s.Status == statusClientGone:
		return graph.Gone
	case s.Cut || s.Status < http.StatusContinue || s.Status > 599:
		return graph.Cut
	}
	return graph.Outcome(s.Status/100 - 1)
}

// over takes note of a session that is over but for its End. route is the node
// that its outcome counts for; nil is the listener.
func (c *conn) over(route *node, s *stream.Session, w *way) {
	now := stream.Now()
	if route == nil {
		route = c.block.prog.Load().byName[c.client.Listener]
	}
	if route != nil { // a reload may have removed it
		route.outcomes.count(s, now)
	}
	if w != nil {
		w.tell(s, now)
	}
}

// unread takes note of a request that could not be read, at the place from where it
// would have gone on.
func (c *conn) unread(at place, s *stream.Session) {
	if log := c.enter(at).log(); log != nil {
		log.Keep(s)
	}
	if w := c.engine.follow(c, s); w != nil {
		w.tell(s, s.Begun)
	}
	if n := c.block.prog.Load().byName[c.client.Listener]; n != nil {
		n.of[outcome(s)].Add(1)
	}
}

// log answers the log that all sessions come to which come to n; nil if there is none,
// or they part before.
func (n *node) log() stream.Keeper {
	for n != nil {
		if k, is := n.stage.(stream.Keeper); is {
			return k
		}
		var to *node
		for i := range n.outs {
			if x := n.outs[i].to; x != nil && to != nil && x != to {
				return nil
			} else if x != nil {
				to = x
			}
		}
		n = to
	}
	return nil
}
