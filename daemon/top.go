package daemon

import (
	"context"
	"time"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Top measures what the nodes do for a while, with every vector timed. A reload in the
// meantime carries the counts of nodes on; what it puts in a node's place by another
// kind, and an output that drops from then on, begin anew.
func (d *Daemon) Top(ctx context.Context, long time.Duration) (admin.Top, error) {
	d.timeAll(1)
	defer d.timeAll(-1)
	before, streams, begun := d.Stats(), d.StreamStats(), time.Now()
	select {
	case <-time.After(long):
	case <-ctx.Done():
		return admin.Top{}, ctx.Err()
	}
	after, now := d.Stats(), d.StreamStats()
	t := admin.Top{Seconds: time.Since(begun).Seconds(), Graphs: []admin.TopGraph{}, Streams: []admin.TopStream{}, Backends: []admin.TopBackend{}}
	for i := range after {
		t.Graphs = append(t.Graphs, topGraph(&before[i], &after[i]))
	}
	for i := range now {
		t.Streams = append(t.Streams, topStream(first(streams, func(s *graph.StreamStats) bool { return s.Stream == now[i].Stream }), &now[i]))
	}
	if len(now) > 0 {
		was := first(streams, func(*graph.StreamStats) bool { return true }) // all have the same backends
		for i := range now[0].Backends {
			b := &now[0].Backends[i]
			t.Backends = append(t.Backends, d.topBackend(first(was.Backends, func(x *graph.BackendStats) bool { return x.Addr == b.Addr }), b))
		}
	}
	return t, nil
}

// timeAll counts who wants every vector timed.
func (d *Daemon) timeAll(n int) {
	d.shared.Lock()
	defer d.shared.Unlock()
	was := d.timing
	d.timing += n
	if (was == 0) != (d.timing == 0) {
		for _, e := range d.engines {
			e.TimeAll(d.timing > 0)
		}
	}
}

func topGraph(a, b *graph.Stats) admin.TopGraph {
	g := admin.TopGraph{
		Graph: b.Graph, Cores: b.Cores, Received: since(a.Received, b.Received), Sent: since(a.Sent, b.Sent),
		Dropped: since(a.Dropped, b.Dropped), Kernel: since(a.Kernel, b.Kernel), Nodes: []admin.TopNode{},
	}
	sum := 0.0
	for i := range b.Nodes {
		y := &b.Nodes[i]
		x := earlier(a.Nodes, y)
		n := admin.TopNode{Node: y.Name, Kind: y.Kind, Calls: since(x.Calls, y.Calls), Packets: since(x.Packets, y.Packets), Dropped: drops(x, y)}
		if timed := since(x.Timed, y.Timed); timed > 0 && b.CyclesPerNanosecond > 0 {
			n.Nanos = float64(since(x.Cycles, y.Cycles)) / float64(timed) / b.CyclesPerNanosecond
		}
		n.Share = n.Nanos * float64(n.Packets)
		sum += n.Share
		g.Nodes = append(g.Nodes, n)
	}
	for i := range g.Nodes {
		if sum > 0 {
			g.Nodes[i].Share /= sum
		}
	}
	return g
}

// earlier answers what a node had counted: nothing, if it was of another kind.
func earlier(all []graph.NodeStats, y *graph.NodeStats) *graph.NodeStats {
	return first(all, func(n *graph.NodeStats) bool { return n.Name == y.Name && n.Kind == y.Kind })
}

// drops is what a node dropped from x to y.
func drops(x, y *graph.NodeStats) (sum uint64) {
	for _, o := range y.Outputs {
		if o.Drop {
			was := first(x.Outputs, func(p *graph.OutputStats) bool { return p.Drop && p.Name == o.Name })
			sum += since(was.Packets, o.Packets)
		}
	}
	return sum + since(x.Unanswered, y.Unanswered) + since(x.NoPunt, y.NoPunt)
}

// since is what a count grew by; it grew from 0 if it is less than it was.
func since(was, is uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}

// first answers the first that fits, or the zero value.
func first[T any](all []T, fits func(*T) bool) *T {
	for i := range all {
		if fits(&all[i]) {
			return &all[i]
		}
	}
	return new(T)
}

func topStream(a, b *graph.StreamStats) admin.TopStream {
	t := admin.TopStream{Stream: b.Stream, Listeners: []admin.TopListener{}, Routes: []admin.TopRoute{}, Nodes: []admin.TopStage{}}
	for i := range b.Listeners {
		y := &b.Listeners[i]
		x := first(a.Listeners, func(l *graph.ListenerStats) bool { return l.Node == y.Node })
		t.Listeners = append(t.Listeners, admin.TopListener{
			Listener: y.Node, Address: y.Address.String(), Open: y.Connections, Active: y.Active, Connections: since(x.Accepted, y.Accepted),
			Requests: since(x.Requests, y.Requests), Unreadable: since(x.Malformed, y.Malformed), BytesIn: since(x.In, y.In), BytesOut: since(x.Out, y.Out),
		})
	}
	for i := range b.Routes {
		y := &b.Routes[i]
		x := first(a.Routes, func(r *graph.RouteStats) bool { return r.Node == y.Node })
		r := admin.TopRoute{Route: y.Node}
		for k := range r.Outcomes {
			r.Outcomes[k] = since(x.Sessions[k], y.Sessions[k])
		}
		r.Sessions = since(x.Sum(), y.Sum())
		r.P50, r.P99 = topTimes(&x.Latency, &y.Latency)
		t.Routes = append(t.Routes, r)
	}
	for i := range b.Nodes {
		y := &b.Nodes[i]
		x := earlier(a.Nodes, y)
		t.Nodes = append(t.Nodes, admin.TopStage{Node: y.Name, Kind: y.Kind, Sessions: since(x.Packets, y.Packets), Dropped: drops(x, y), Values: y.Gauges})
	}
	return t
}

func (d *Daemon) topBackend(a, b *graph.BackendStats) admin.TopBackend {
	t := admin.TopBackend{
		Backend: b.Addr.String(), Name: backendName(d.Snapshot(), b.Addr, ""), Active: b.Active, Ejected: b.Ejected,
		Sessions: since(a.Total, b.Total), Failures: since(a.Failures, b.Failures), Retries: since(a.Retries, b.Retries),
	}
	t.P50, t.P99 = topTimes(&a.Latency, &b.Latency)
	return t
}

// topTimes answers what half, and 99 of 100, of what was counted in between took less
// than, in milliseconds.
func topTimes(a, b *[stream.HistogramBuckets]uint64) (p50, p99 float64) {
	var d [stream.HistogramBuckets]uint64
	for i := range d {
		d[i] = since(a[i], b[i])
	}
	return 1e3 * graph.Quantile(&d, 0.5), 1e3 * graph.Quantile(&d, 0.99)
}
