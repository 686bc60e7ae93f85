package demo

import (
	"strings"

	"github.com/lbgraph/lbgraph/graph"
)

// Picture draws a graph for a terminal: the main way in one line, then every
// other edge, each way followed until it meets what is drawn already.
func Picture(g *graph.Graph) string {
	var b strings.Builder
	drawn := map[*graph.Edge]bool{}
	way := func(begin string, e *graph.Edge) {
		b.WriteString("    " + begin)
		for e != nil && !drawn[e] {
			drawn[e] = true
			b.WriteString(" ──► " + e.To.Name)
			// The first output that is drawn is the main one.
			rest := e.To.Edges
			e = nil
			for i := 0; i < len(rest) && e == nil; i++ {
				e = rest[i]
			}
		}
		b.WriteByte('\n')
	}
	for _, n := range g.Nodes {
		if n.Kind.Source {
			for _, e := range n.Edges {
				if e != nil {
					way(n.Name, e)
				}
			}
		}
	}
	for _, n := range g.Nodes {
		for _, e := range n.Edges {
			if e != nil && !drawn[e] {
				way(n.Name+"."+n.Outputs[e.Output].Name, e)
			}
		}
	}
	return b.String()
}
