package graph_test

import (
	"bytes"
	"encoding/json"
	"testing"

	g "github.com/lbgraph/lbgraph/graph"
)

func TestExplain(t *testing.T) {
	var b bytes.Buffer
	for _, kind := range []string{"xdp-rx", "frag-pin", "gre-encap", "metrics"} {
		if err := g.Explain(&b, g.Lookup(kind)); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	golden(t, "testdata/explain.golden", b.String())
}

func TestExplainNode(t *testing.T) {
	gr, a := analyze(t, "sample")
	var b bytes.Buffer
	for _, node := range []string{"rx", "mtu", "tx"} {
		if err := a.ExplainNode(&b, gr.Node(node)); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	js, err := json.MarshalIndent(a.Place(gr.Node("icmp-vip")), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	b.Write(append(js, '\n'))
	golden(t, "testdata/explain_node.golden", b.String())
}
