package graph_test

import (
	"bytes"
	"testing"

	g "github.com/lbgraph/lbgraph/graph"
)

func TestDot(t *testing.T) {
	f := load(t, "testdata/good/sample.hcl")
	for name, o := range map[string]g.DotOptions{
		"plain": {},
		"facts": {Facts: true},
		"counters": {Counters: func(graph, node, output string) (uint64, bool) {
			return uint64(1234567 * len(node+output)), output != "too_big"
		}},
	} {
		var b bytes.Buffer
		if err := g.Dot(&b, f, o); err != nil {
			t.Fatal(err)
		}
		golden(t, "testdata/dot_"+name+".golden", b.String())
	}
}
