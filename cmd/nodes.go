package cmd

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph"
)

func init() { add(newNodes) }

func newNodes(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "List the kinds of node and control block",
		Long: `Lists the kinds that this build knows, plane by plane. See lbgraph explain KIND for
one of them; -o json has all that explain says of each.`,
		Example: `  lbgraph nodes
  lbgraph nodes -o json | jq -r '.[].kind'`,
		Args: takes(),
	}
	asJSON := output(c)
	c.RunE = func(*cobra.Command, []string) error {
		var all []graph.Description
		for _, k := range graph.Kinds() {
			all = append(all, graph.Describe(k))
		}
		if js, err := asJSON(); js || err != nil {
			return a.json(all, err)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		for _, plane := range []graph.Plane{graph.PacketPlane, graph.StreamPlane, graph.ControlPlane} {
			title := fmt.Sprintf("%s kinds\n", strings.ToUpper(plane.String()[:1])+plane.String()[1:])
			for _, d := range all {
				if d.Plane != plane.String() {
					continue
				}
				fmt.Fprint(w, title)
				title = ""
				fmt.Fprintf(w, "  %s\t%s\n", d.Kind, d.Summary)
			}
			if title == "" {
				fmt.Fprintln(w)
			}
		}
		return w.Flush()
	}
	return c
}
