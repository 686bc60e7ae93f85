package streams

import (
	"slices"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Stats answers the counts of every stream block, by name.
func (e *Engine) Stats() []graph.StreamStats {
	e.mu.Lock()
	blocks := make([]*block, 0, len(e.blocks))
	for _, b := range e.blocks {
		blocks = append(blocks, b)
	}
	e.mu.Unlock()
	slices.SortFunc(blocks, func(a, b *block) int { return strings.Compare(a.name, b.name) })
	backends := e.backendStats()
	all := make([]graph.StreamStats, len(blocks))
	for i, b := range blocks {
		all[i] = b.stats()
		all[i].Backends = backends
	}
	return all
}

func (b *block) stats() graph.StreamStats {
	s := graph.StreamStats{
		Stream: b.name, Accepted: b.accepted.Load(), Requests: b.requests.Load(),
		Malformed: b.malformed.Load(), Connections: b.connections.Load(), Active: b.active.Load(),
	}
	for _, n := range b.prog.Load().nodes {
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
		s.Nodes = append(s.Nodes, k)
	}
	return s
}

func (e *Engine) backendStats() (all []graph.BackendStats) {
	now := stream.Now()
	for _, b := range e.backends.all() {
		s := graph.BackendStats{
			Addr: b.Addr, Active: b.Active.Load(), Total: b.Total.Load(), Failures: b.Failures.Load(),
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
