package graph_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
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

// What leaves by an output holds what the output asks for.
func TestExitsHoldWhatTheyAskFor(t *testing.T) {
	gr, a := analyze(t, "sample")
	asked := 0
	for _, n := range gr.Nodes {
		for i, x := range a.Place(n).Exits {
			o := n.Outputs[i]
			for _, name := range strings.Split((o.Only &^ o.Removes).String(), ", ") {
				if name == "nothing" {
					continue
				}
				asked++
				for _, facts := range x.Facts {
					if !slices.Contains(facts, name) {
						t.Errorf("%s.%s is for %s, and %v leaves by it", n.Name, o.Name, name, facts)
					}
				}
			}
		}
	}
	if asked < 5 {
		t.Errorf("only %d outputs ask for anything", asked)
	}
}
