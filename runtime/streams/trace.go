package streams

import (
	"net/netip"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// An Observer is told what becomes of sessions.
type Observer struct {
	// Admit tells, when a session begins, whether it is to be followed. It may be
	// called from any goroutine.
	Admit func(block string, s *stream.Session) bool
	// Tell gets a session that is over, but still has its backend, and its way. It
	// may be called from any goroutine, must not block, and must not keep s or what
	// is in it.
	Tell func(block string, s *stream.Session, how graph.Outcome, steps []Step, total int64)
	// Most is how many sessions are followed at the same time; others are left out.
	Most int64

	following atomic.Int64
}

// Following answers how many sessions are followed at this moment.
func (o *Observer) Following() int64 { return o.following.Load() }

// A Step is a node that a session came to.
type Step struct {
	Node, Kind string
	// Output is how it left; "" where it ended.
	Output string
	// At is when it came, in nanoseconds since the session began, Took how long the
	// node had it.
	At, Took int64
	// Backend is the backend that it got here; the zero value for none.
	Backend netip.AddrPort
	// Pool is the pool of a node that gives backends; "" of others.
	Pool string
	// Says is what the node says, where a session is only asked about.
	Says string
	// Queued is the time it waited here for admission, in nanoseconds; -1 for none.
	Queued int64
}

// Observe has o told of the sessions that begin from now on; nil ends it. Sessions
// that are followed already are told to whom they were begun for.
func (e *Engine) Observe(o *Observer) { e.observer.Store(o) }

// Observed tells whether somebody looks on.
func (e *Engine) Observed() bool { return e.observer.Load() != nil }

// A way is what became of a session so far. Most methods do nothing on nil: it is
// nil while nobody looks on.
type way struct {
	to    *Observer
	block string
	steps []Step
	had   netip.AddrPort // the backend that it got last
}

// follow answers a way for a session that begins, if somebody wants it.
func (e *Engine) follow(c *conn, s *stream.Session) *way {
	o := e.observer.Load()
	if o == nil {
		return nil
	}
	return o.follow(c.block.name, s)
}

func (o *Observer) follow(block string, s *stream.Session) *way {
	if !o.Admit(block, s) {
		return nil
	}
	if o.following.Add(1) > o.Most {
		o.following.Add(-1)
		return nil
	}
	return &way{to: o, block: block}
}

// begin says behind which output requests were read.
func (w *way) begin(at place) {
	if w != nil {
		w.steps = append(w.steps, Step{Node: at.node, Output: at.output, Queued: -1})
	}
}

func (w *way) enter(n *node, s *stream.Session) {
	if w != nil {
		k := n.step()
		k.At, k.Queued = stream.Now()-s.Begun, s.Queued
		w.steps = append(w.steps, k)
	}
}

func (n *node) step() Step {
	k := Step{Node: n.inst.Name, Kind: n.inst.Kind.Name, Queued: -1}
	if p, ok := n.stage.(graph.Pooled); ok {
		k.Pool = p.Pool()
	}
	return k
}

// leave says how a session left the node that it is at; x is nil where it ended.
func (w *way) leave(s *stream.Session, x *out) {
	if w == nil {
		return
	}
	k := &w.steps[len(w.steps)-1]
	k.Took = stream.Now() - s.Begun - k.At
	if x != nil {
		k.Output = x.name
	}
	if k.Queued == s.Queued {
		k.Queued = -1
	} else {
		k.Queued = s.Queued
	}
	if s.Backend != nil && s.Backend.Addr != w.had {
		w.had = s.Backend.Addr
		k.Backend = w.had
	}
}

func (w *way) tell(s *stream.Session, now int64) {
	w.to.following.Add(-1)
	w.to.Tell(w.block, s, outcome(s), w.steps, now-s.Begun)
}

// drop ends a way that nobody is told.
func (w *way) drop() {
	if w != nil {
		w.to.following.Add(-1)
	}
}
