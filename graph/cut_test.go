package graph_test

import (
	"testing"

	"github.com/hashicorp/hcl/v2"

	g "github.com/lbgraph/lbgraph/graph"
)

// TestCutEdges takes every edge that must be drawn out of every good graph: that is
// one mistake, and it is told once, at the node that lost its way. What does not get
// its packets because of it is not told.
func TestCutEdges(t *testing.T) {
	cuts := 0
	for _, path := range files(t, "good") {
		f := load(t, path)
		for _, gr := range f.Graphs {
			for _, n := range gr.Nodes {
				for i, e := range n.Edges {
					if e == nil || n.Outputs[i].Else != g.Must {
						continue
					}
					cuts++
					n.Edges[i] = nil
					var errs hcl.Diagnostics
					for _, d := range g.Check(f) {
						if d.Severity == hcl.DiagError {
							errs = append(errs, d)
						}
					}
					if len(errs) != 1 || errs[0].Summary != "Dead end" || *errs[0].Subject != n.Range {
						t.Errorf("%s without %s.%s -> %s:\n%s", path, n.Name, n.Outputs[i].Name, e.To.Name, show(f, errs))
					}
					n.Edges[i] = e
				}
			}
		}
	}
	if cuts < 100 {
		t.Errorf("only %d edges were cut", cuts)
	}
}
