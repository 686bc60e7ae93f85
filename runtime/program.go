package runtime

import (
	"fmt"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/graph"
)

// Where an output leads, besides a node's number.
const (
	toDrop = -1 - iota
	toPunt
)

// program is a compiled graph: what all cores share. It is immutable.
type program struct {
	gen    uint32
	graph  *graph.Graph
	nodes  []step
	byName map[string]int
	// prev is the program this one replaced, so that what still waits in a ring
	// under the old numbers finds its way. The chain is cut at keptPrograms.
	prev atomic.Pointer[program]
}

// keptPrograms bounds how far back a frame in a ring may come from. Rings are
// emptied before each change, so two would do.
const keptPrograms = 8

// step is one node of a program.
type step struct {
	inst    *graph.Instance
	maker   graph.Maker
	targets []int32 // by output: number of the next node, toDrop or toPunt
	port    int     // index of the port a source receives from; 0 without one
}

// compile orders the nodes of g and resolves its edges. Every Maker is made by
// build, which is called in the order of the graph.
func compile(g *graph.Graph, gen uint32, order []*graph.Instance) (*program, error) {
	p := &program{gen: gen, graph: g, byName: map[string]int{}}
	for i, n := range order {
		p.byName[n.Name] = i
		p.nodes = append(p.nodes, step{inst: n, targets: make([]int32, len(n.Outputs))})
	}
	for i := range p.nodes {
		s := &p.nodes[i]
		for o, out := range s.inst.Outputs {
			var e *graph.Edge
			if o < len(s.inst.Edges) {
				e = s.inst.Edges[o]
			}
			switch {
			case e != nil:
				to, ok := p.byName[e.To.Name]
				if !ok || to <= i {
					return nil, fmt.Errorf("graph %q: edge %s.%s -> %s does not lead forward", g.Name, s.inst.Name, out.Name, e.To.Name)
				}
				s.targets[o] = int32(to)
			case out.Else == graph.Punt:
				s.targets[o] = toPunt
			default:
				// A Must output without an edge is reached by no packet, or the
				// checker had refused the graph.
				s.targets[o] = toDrop
			}
		}
	}
	return p, nil
}

// trace finds what node and output of an earlier program are called in p. ok is
// false when the node, or its output, is there no more.
func (p *program) trace(gen uint32, node, output int) (n, o int, ok bool) {
	if gen == p.gen {
		return node, output, true
	}
	for old := p.prev.Load(); old != nil; old = old.prev.Load() {
		if old.gen != gen {
			continue
		}
		inst := old.nodes[node].inst
		n, ok = p.byName[inst.Name]
		if !ok || p.nodes[n].inst.Kind != inst.Kind {
			return 0, 0, false
		}
		if output < 0 {
			return n, output, true
		}
		o = p.nodes[n].inst.Output(inst.Outputs[output].Name)
		return n, o, o >= 0
	}
	return 0, 0, false
}

// parser answers the node that gives l3 to what has nothing yet: where frames of a
// removed node start again. −1 if there is none.
func (p *program) parser() int {
	for i := range p.nodes {
		k := p.nodes[i].inst.Kind
		if k.Source || k.Needs != 0 {
			continue
		}
		for _, o := range p.nodes[i].inst.Outputs {
			if o.Gives.Has(graph.L3) {
				return i
			}
		}
	}
	return -1
}
