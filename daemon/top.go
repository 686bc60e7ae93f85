package daemon

import (
	"context"
	"time"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
)

// Top measures what the nodes do for a while, with every vector timed. Counts of
// nodes that a reload replaces in the meantime begin anew.
func (d *Daemon) Top(ctx context.Context, long time.Duration) (admin.Top, error) {
	d.timeAll(1)
	defer d.timeAll(-1)
	before, begun := d.Stats(), time.Now()
	select {
	case <-time.After(long):
	case <-ctx.Done():
		return admin.Top{}, ctx.Err()
	}
	after := d.Stats()
	t := admin.Top{Seconds: time.Since(begun).Seconds()}
	for i := range after {
		t.Graphs = append(t.Graphs, topGraph(&before[i], &after[i]))
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
		x := a.Node(y.Name)
		n := admin.TopNode{Node: y.Name, Kind: y.Kind, Calls: since(x.Calls, y.Calls), Packets: since(x.Packets, y.Packets), Dropped: since(drops(&x), drops(y))}
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

func drops(n *graph.NodeStats) (sum uint64) {
	for _, o := range n.Outputs {
		if o.Drop {
			sum += o.Packets
		}
	}
	return sum + n.Unanswered + n.NoPunt
}

// since is what a count grew by; it grew from 0 if it is less than it was.
func since(was, is uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}
