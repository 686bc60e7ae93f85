package streams

import (
	"maps"
	"slices"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Stats answers the counts of every stream block, by name. It waits for nothing.
func (e *Engine) Stats() []graph.StreamStats {
	blocks := *e.view.Load()
	backends := e.backendStats()
	all := make([]graph.StreamStats, len(blocks))
	for i, b := range blocks {
		all[i] = b.stats()
		all[i].Backends = backends
	}
	return all
}

func (l *listening) stats(node string) graph.ListenerStats {
	s := graph.ListenerStats{
		Node: node, Accepted: l.accepted.Load(), Requests: l.requests.Load(), Malformed: l.malformed.Load(), AcceptErrors: l.refused.Load(),
		Connections: l.connections.Load(), Active: l.active.Load(),
	}
	if a := l.bound.Load(); a != nil {
		s.Address = *a
	}
	for i := range l.bytes {
		s.In += l.bytes[i].In.Load()
		s.Out += l.bytes[i].Out.Load()
	}
	return s
}

func (o *outcomes) stats(n *node) graph.RouteStats {
	s := graph.RouteStats{Node: n.inst.Name, Balances: n.routes, LatencySum: o.latency.Sum.Load()}
	for i := range s.Sessions {
		s.Sessions[i] = o.of[i].Load()
	}
	for i := range s.Latency {
		s.Latency[i] = o.latency.Count[i].Load()
	}
	return s
}

func (b *block) stats() graph.StreamStats {
	s := graph.StreamStats{Stream: b.name}
	p := b.prog.Load()
	b.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(b.listening)) {
		l := b.listening[name].stats(name)
		s.Accepted += l.Accepted
		s.Requests += l.Requests
		s.Malformed += l.Malformed
		s.Connections += l.Connections
		s.Active += l.Active
		if n := p.byName[name]; n != nil && n.inst.Kind.Source {
			s.Listeners = append(s.Listeners, l)
		}
	}
	b.mu.Unlock()
	for _, n := range p.nodes {
		in := n.in.Load()
		k := graph.NodeStats{Name: n.inst.Name, Kind: n.inst.Kind.Name, Calls: in, Packets: in}
		for i := range n.outs {
			o := &n.outs[i]
			x := graph.OutputStats{Name: o.name, Drop: o.to == nil, Packets: o.count.Load()}
			if o.to != nil {
				x.To = o.to.inst.Name
			}
			k.Outputs = append(k.Outputs, x)
		}
		for i, c := range n.inst.Kind.Counters {
			k.Counters = append(k.Counters, graph.CounterStats{Name: c.Name, Value: n.counters[i].Load()})
		}
		if p := n.panics.Load(); p > 0 {
			k.Counters = append(k.Counters, graph.CounterStats{Name: "panic", Value: p})
		}
		if g, ok := n.stage.(graph.Gauger); ok {
			k.Gauges = g.Gauges()
		}
		if c, ok := n.stage.(graph.Certified); ok {
			k.Certificates = c.Certificates()
		}
		s.Nodes = append(s.Nodes, k)
		if r := n.outcomes.stats(n); r.Balances || r.Sum() > 0 {
			s.Routes = append(s.Routes, r)
		}
	}
	return s
}

func (e *Engine) backendStats() (all []graph.BackendStats) {
	now := stream.Now()
	for _, b := range e.backends.all() {
		s := graph.BackendStats{
			Addr: b.Addr, Active: b.Active.Load(), Total: b.Total.Load(), Failures: b.Failures.Load(), Retries: b.Retries.Load(),
			Ejected: b.Ejected.Load() > now, LatencySum: b.Latency.Sum.Load(),
		}
		for i := range s.Latency {
			s.Latency[i] = b.Latency.Count[i].Load()
		}
		all = append(all, s)
	}
	return all
}

// StopTime is how long what is in flight may take when a stream plane stops, unless
// the caller says otherwise.
const StopTime = 30 * time.Second
