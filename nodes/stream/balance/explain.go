package balance

import (
	"fmt"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Pool is part of graph.Pooled.
func (b *balancer) Pool() string { return b.c.Pool }

// Explain is part of graph.StageExplainer.
func (b *balancer) Explain(s *stream.Session) (output int, says string) {
	v := b.view.Load()
	now := stream.Now()
	up := v.count(s, now)
	if up == 0 {
		// As Pick does: what is left out is better than nothing.
		now = stream.Never
		up = v.count(s, now)
	}
	if up == 0 {
		return noBackend, "no backend of pool " + b.c.Pool + " is up"
	}
	s.Route = b.env.Node
	var m *member
	why := ""
	switch b.c.Algorithm {
	case "round-robin":
		at := b.turn.Load()
		for i := range v.order {
			if k := &v.members[v.order[(at+uint64(i))%uint64(len(v.order))]]; v.up(k, s, now) {
				m = k
				break
			}
		}
		why = "the next in turn"
	case "least-connections":
		m = b.leastFrom(v, s, now, b.turn.Load()+1)
		why = fmt.Sprintf("the least busy, with %d", m.Active.Load())
	case "random-two":
		if up > 1 {
			return next, fmt.Sprintf("the less busy of two at random out of %d of pool %s", up, b.c.Pool)
		}
		m = b.leastFrom(v, s, now, 0)
		why = "the only one"
	default:
		m = b.hashed(v, s, now)
		why = "by the hash of " + b.keyName(s)
	}
	if m == nil || now == stream.Never {
		m = b.leastFrom(v, s, now, b.turn.Load()+1)
		why = "the least busy"
		if now == stream.Never {
			why += " of those left out, for nothing else is up"
		}
	}
	s.Backend = m.Backend
	name := v.snap.Pools[v.pool].Members[m.slot].Name
	return next, fmt.Sprintf("%s/%s at %v, %s; %d of %d are up", b.c.Pool, name, m.Addr, why, up, len(v.snap.Pools[v.pool].Members))
}

// count answers how many members may get s now.
func (v *view) count(s *stream.Session, now int64) (n int) {
	for i := range v.members {
		if v.up(&v.members[i], s, now) {
			n++
		}
	}
	return n
}

// keyName says what is hashed of a session.
func (b *balancer) keyName(s *stream.Session) string {
	if b.c.Algorithm == "source" || s.Req == nil {
		return "the client's address"
	}
	return b.c.Key
}
