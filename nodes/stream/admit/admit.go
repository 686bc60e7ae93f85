// Package admit is the kind "admit": it bounds what is in flight.
package admit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of admit.
type Config struct {
	Limit      int           `hcl:"limit,optional" range:"1,10000000" doc:"sessions in flight at the same time"`
	Wait       time.Duration `hcl:"queue_timeout,optional" range:"0s,1h" doc:"time that a session over the limit waits for a place"`
	Queue      int           `hcl:"queue,optional" range:"0,10000000" doc:"sessions that wait at the same time"`
	RetryAfter time.Duration `hcl:"retry_after,optional" range:"0s,1h" doc:"what clients that are refused are told to wait"`
	Upgraded   int           `hcl:"upgraded,optional" range:"0,10000000" doc:"connections that have left HTTP, such as WebSockets; they do not count for limit"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "admit",
		Summary: "lets so many sessions pass at the same time, and the next ones wait a moment",
		Needs:   graph.Conn,
		Outputs: []graph.Output{
			next:         {Name: "next", Doc: "sessions that have a place, until they end"},
			overflow:     {Name: "overflow", Else: graph.Drop, Status: 503, Doc: "no place became free in time, or too many wait"},
			upgradesFull: {Name: "upgraded_full", Else: graph.Drop, Status: 503, Doc: "requests to leave HTTP when too many have"},
		},
		Counters: []graph.Counter{queued: {Name: "queued", Doc: "sessions that had to wait"}},
		Defaults: Config{Limit: 100, Wait: 25 * time.Millisecond, Queue: 1000, RetryAfter: time.Second, Upgraded: 10000},
		Streams: func(c Config, e *graph.Env) (stream.Stage, error) {
			return &stage{c, e, newGate(c)}, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	overflow
	upgradesFull
)

// Counter numbers.
const queued = 0

type stage struct {
	c   Config
	env *graph.Env
	*gate
}

// Inherit is part of graph.StageInheritor: who is in flight still counts.
func (a *stage) Inherit(old stream.Stage) {
	a.gate = old.(*stage).gate
	a.gate.set(a.c)
}

// Gauges is part of graph.Gauger.
func (a *stage) Gauges() map[string]float64 {
	return map[string]float64{
		"in_flight": float64(a.inFlight.Load()), "limit": float64(a.limit.Load()), "waiting": float64(a.waiting.Load()), "upgraded": float64(a.upgraded.Load()),
	}
}

// Serve is part of stream.Stage.
func (a *stage) Serve(_ context.Context, s *stream.Session) (int, error) {
	if wantsUpgrade(s) && !a.reserve() {
		s.RetryAfter = a.c.RetryAfter
		return upgradesFull, nil
	}
	if !a.quick() {
		a.env.Count(queued, 1)
		begun := stream.Now()
		in := a.enter(a.c.Wait, a.c.Queue)
		s.Queued = stream.Now() - begun
		if !in {
			if wantsUpgrade(s) {
				a.upgraded.Add(-1)
			}
			s.RetryAfter = a.c.RetryAfter
			return overflow, nil
		}
	}
	s.OnEnd(a.gate)
	return next, nil
}

func wantsUpgrade(s *stream.Session) bool { return s.Req != nil && s.Req.WantsUpgrade }

// gate is the places. It outlives reloads.
type gate struct {
	limit, most        atomic.Int64
	inFlight, upgraded atomic.Int64
	waiting            atomic.Int64 // also while one is about to wait

	mu    sync.Mutex
	queue []*waiter // the first one has waited longest
}

type waiter struct {
	in    chan struct{} // closed when it has a place
	given bool
}

func newGate(c Config) *gate {
	g := new(gate)
	g.set(c)
	return g
}

func (g *gate) set(c Config) {
	g.limit.Store(int64(c.Limit))
	g.most.Store(int64(c.Upgraded))
	g.serveQueue()
}

// take takes a place if there is one.
func (g *gate) take() bool {
	for {
		n := g.inFlight.Load()
		if n >= g.limit.Load() {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// quick takes a place if nobody waits for one.
func (g *gate) quick() bool { return g.waiting.Load() == 0 && g.take() }

// enter waits for a place.
func (g *gate) enter(wait time.Duration, most int) bool {
	g.mu.Lock()
	// Said before looking: whoever leaves after this look sees it.
	g.waiting.Add(1)
	if len(g.queue) == 0 && g.take() {
		g.waiting.Add(-1)
		g.mu.Unlock()
		return true
	}
	if len(g.queue) >= most || wait == 0 {
		g.waiting.Add(-1)
		g.mu.Unlock()
		return false
	}
	w := &waiter{in: make(chan struct{})}
	g.queue = append(g.queue, w)
	g.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-w.in:
		return true
	case <-t.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.given {
		return true
	}
	for i, q := range g.queue {
		if q == w {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			break
		}
	}
	g.waiting.Add(-1)
	return false
}

// leave gives a place back.
func (g *gate) leave() {
	g.inFlight.Add(-1)
	if g.waiting.Load() > 0 {
		g.serveQueue()
	}
}

// serveQueue gives free places to those who wait longest.
func (g *gate) serveQueue() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.queue) > 0 && g.take() {
		w := g.queue[0]
		g.queue = g.queue[1:]
		g.waiting.Add(-1)
		w.given = true
		close(w.in)
	}
}

// reserve takes a place among the upgraded.
func (g *gate) reserve() bool {
	if g.upgraded.Add(1) > g.most.Load() {
		g.upgraded.Add(-1)
		return false
	}
	return true
}

// Upgraded is part of stream.Ender: the session counts among the upgraded only.
func (g *gate) Upgraded(*stream.Session) { g.leave() }

// End is part of stream.Ender.
func (g *gate) End(s *stream.Session) {
	if !s.Upgraded {
		g.leave()
	}
	if wantsUpgrade(s) {
		g.upgraded.Add(-1)
	}
}
