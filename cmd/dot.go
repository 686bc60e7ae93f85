package cmd

import (
	"bytes"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph"
)

func init() { add(newDot) }

func newDot(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "dot FILE",
		Short: "Draw a file's graphs",
		Long: `Writes the graphs of a file as a drawing for Graphviz: from source to sink, the
main path heavy, and on each node what drops there or goes to the kernel. With
-facts each edge says what holds on the packets that take it. With -o json it is
the nodes, edges and facts as data.`,
		Example: `  lbgraph dot -svg lb.hcl > lb.svg
  lbgraph dot -facts lb.hcl | dot -Tpng > lb.png`,
		Args:              takes("FILE"),
		ValidArgsFunction: hclFiles,
	}
	file := a.file(c)
	facts := c.Flags().Bool("facts", false, "write on each edge what holds there")
	svg := c.Flags().Bool("svg", false, "write SVG, by way of Graphviz's program dot")
	asJSON := output(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		if js && (*svg || *facts) {
			return misuse("dot -o json has all facts and no drawing. Leave out -svg and -facts")
		}
		f, err := file(args[0])
		if err != nil {
			return err
		}
		if js {
			return a.json(drawing(f), nil)
		}
		var b bytes.Buffer
		if err := graph.Dot(&b, f, graph.DotOptions{Facts: *facts}); err != nil {
			return err
		}
		if !*svg {
			_, err := a.out.Write(b.Bytes())
			return err
		}
		program, err := exec.LookPath("dot")
		if err != nil {
			return refused("-svg needs Graphviz, whose program dot is not installed (apt-get install graphviz)")
		}
		run := exec.CommandContext(c.Context(), program, "-Tsvg")
		var out, problem bytes.Buffer
		run.Stdin, run.Stdout, run.Stderr = &b, &out, &problem
		if err := run.Run(); err != nil {
			line, _, _ := strings.Cut(strings.TrimSpace(problem.String()), "\n")
			return refused("dot failed: %w: %s", err, line)
		}
		_, err = a.out.Write(out.Bytes())
		return err
	}
	return c
}

// drawnGraph is a graph as data.
type drawnGraph struct {
	Graph string            `json:"graph"`
	Plane string            `json:"plane"`
	Nodes []graph.NodePlace `json:"nodes"`
}

func drawing(f *graph.File) []drawnGraph {
	all := []drawnGraph{}
	for _, g := range f.Graphs {
		d := drawnGraph{Graph: g.Name, Plane: g.Plane.String()}
		an, _ := graph.Analyze(g)
		for _, n := range g.Nodes {
			d.Nodes = append(d.Nodes, an.Place(n))
		}
		all = append(all, d)
	}
	return all
}
