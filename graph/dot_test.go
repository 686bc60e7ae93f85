package graph_test

import (
	"bytes"
	"os/exec"
	"strings"
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

// Graphviz understands the drawings, and complains about nothing.
func TestDotRenders(t *testing.T) {
	program, err := exec.LookPath("dot")
	if err != nil {
		t.Skip("missing: dot (Debian's graphviz)")
	}
	for _, path := range files(t, "good") {
		var b bytes.Buffer
		if err := g.Dot(&b, load(t, path), g.DotOptions{Facts: true}); err != nil {
			t.Fatal(err)
		}
		run := exec.Command(program, "-Tsvg")
		run.Stdin = &b
		var out, problem bytes.Buffer
		run.Stdout, run.Stderr = &out, &problem
		if err := run.Run(); err != nil || problem.Len() > 0 || !strings.Contains(out.String(), "</svg>") {
			t.Errorf("%s: %v: %s", path, err, problem.String())
		}
	}
}

// What is dropped is no main path, though nothing else is drawn.
func TestReasonsAreNoMainPath(t *testing.T) {
	gr := &g.Graph{Name: "edge", Plane: g.PacketPlane, GraphConfig: g.GraphDefaults()}
	for _, name := range []string{"xdp-rx", "parse", "reflect"} {
		k := g.Lookup(name)
		n := &g.Instance{Kind: k, Name: name, Config: k.NewConfig()}
		n.Outputs = k.OutputsOf(n.Config)
		n.Edges = make([]*g.Edge, len(n.Outputs))
		gr.Nodes = append(gr.Nodes, n)
	}
	draw := func(from, output, to string) {
		n := gr.Node(from)
		o := n.Output(output)
		n.Edges[o] = &g.Edge{From: n, Output: o, To: gr.Node(to)}
	}
	draw("xdp-rx", "next", "parse")
	draw("parse", "truncated", "reflect")
	var b bytes.Buffer
	if err := g.Dot(&b, &g.File{Path: "lb.hcl", Graphs: []*g.Graph{gr}}, g.DotOptions{}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		for edge, heavy := range map[string]bool{`"edge/xdp-rx" -> "edge/parse"`: true, `"edge/parse" -> "edge/reflect"`: false} {
			if strings.Contains(line, edge) && strings.Contains(line, "penwidth=2.6") != heavy {
				t.Errorf("heavy %v: %s", !heavy, line)
			}
		}
	}
}
