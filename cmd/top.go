package cmd

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
)

func init() { add(newTop) }

func newTop(a *app) *cobra.Command {
	var every time.Duration
	var once bool
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch what the nodes do, and what they cost",
		Long: `Shows for each node of the daemon that runs how often it was called, how many packets
it processed and dropped, what a packet cost in nanoseconds, and its share of the time
of all nodes, anew after each interval. While it watches, every vector is timed. Where
standard output is no terminal, or with -o json, it shows one interval and ends.`,
		Example: `  lbgraph top
  lbgraph top --interval 5s --once
  lbgraph top -o json | jq '.graphs[0].nodes[] | {node, ns_per_packet}'`,
		Args: takes(),
	}
	c.Flags().DurationVar(&every, "interval", time.Second, "`time` that is measured, 10ms to 1m")
	c.Flags().BoolVar(&once, "once", false, "show one interval and end")
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		x := ask()
		for {
			var t admin.Top
			if err := x.ask(c.Context(), "GET", fmt.Sprintf("/v1/top?seconds=%g", every.Seconds()), nil, &t); err != nil {
				if c.Context().Err() != nil {
					return nil // Ctrl-C is how one leaves it
				}
				return err
			}
			if js {
				return a.json(t, nil)
			}
			clear := ""
			if !once && terminal(a.out) {
				clear = "\x1b[H\x1b[2J"
			}
			if _, err := io.WriteString(a.out, clear+tops(&t)); err != nil || clear == "" {
				return err
			}
		}
	}
	return c
}

// tops draws one interval.
func tops(t *admin.Top) string {
	var b strings.Builder
	for _, g := range t.Graphs {
		rate := func(n uint64) string { return fmt.Sprintf("%.0f/s", float64(n)/t.Seconds) }
		fmt.Fprintf(&b, "graph %s, %s: received %s, sent %s, dropped %s, to the kernel %s\n\n", g.Graph, plural(g.Cores, "core"), rate(g.Received), rate(g.Sent), rate(g.Dropped), rate(g.Kernel))
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "node\tkind\tcalls/s\tpackets/s\tper call\tdropped/s\tns/packet\tshare\t\n")
		for _, n := range g.Nodes {
			per := 0.0
			if n.Calls > 0 {
				per = float64(n.Packets) / float64(n.Calls)
			}
			fmt.Fprintf(w, "%s\t%s\t%.0f\t%.0f\t%.1f\t%.0f\t%.1f\t%.1f %%\t\n", n.Node, n.Kind, float64(n.Calls)/t.Seconds, float64(n.Packets)/t.Seconds, per, float64(n.Dropped)/t.Seconds, n.Nanos, 100*n.Share)
		}
		_ = w.Flush()
		b.WriteByte('\n')
	}
	return b.String()
}
