package cmd

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
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
of all nodes, anew after each interval. While it watches, every vector is timed.

Of streams it shows connections, requests and bytes by listener; how sessions ended,
and what they took, by route, which is the last balance that they passed or the node
where they ended; and what backends have in flight, failed, and took. A session is a
request, or a connection without requests. Of times it shows what half of them, and 99
of 100, took less than, within a bucket of the histogram.

Where standard output is no terminal, or with -o json, it shows one interval and ends.`,
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
	var s strings.Builder
	topStreams(&s, t)
	return b.String() + trimmed(s.String())
}

// topStreams draws the streams' part.
func topStreams(b *strings.Builder, t *admin.Top) {
	rate := func(n uint64) string {
		if n == 0 {
			return "0"
		}
		return scaled(float64(n) / t.Seconds)
	}
	ms := func(v float64, n uint64) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", v)
	}
	// Tables in which the first column stands left.
	table := func(write func(w io.Writer)) {
		w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		write(w)
		_ = w.Flush()
		b.WriteByte('\n')
	}
	for _, s := range t.Streams {
		fmt.Fprintf(b, "stream %s\n\n", s.Stream)
		table(func(w io.Writer) {
			fmt.Fprintf(w, "listener\taddress\topen\tactive\tconns/s\trequests/s\tunreadable/s\tbytes in/s\tout/s\n")
			for _, l := range s.Listeners {
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", l.Listener, l.Address, l.Open, l.Active, rate(l.Connections), rate(l.Requests), rate(l.Unreadable), rate(l.BytesIn), rate(l.BytesOut))
			}
		})
		table(func(w io.Writer) {
			fmt.Fprintf(w, "route\tsessions/s\tp50 ms\tp99 ms\tended as\n")
			for _, r := range s.Routes {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Route, rate(r.Sessions), ms(r.P50, r.Sessions), ms(r.P99, r.Sessions), outcomes(r.Outcomes, func(n uint64) string { return rate(n) + "/s" }))
			}
		})
		table(func(w io.Writer) {
			fmt.Fprintf(w, "node\tkind\tsessions/s\tdropped/s\tnow\n")
			for _, n := range s.Nodes {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Node, n.Kind, rate(n.Sessions), rate(n.Dropped), values(n.Values))
			}
		})
	}
	if len(t.Backends) > 0 {
		table(func(w io.Writer) {
			fmt.Fprintf(w, "backend\tname\tactive\tsessions/s\tfailed/s\tretries/s\tp50 ms\tp99 ms\n")
			for _, x := range t.Backends {
				name := x.Name
				if x.Ejected {
					name += ", left out"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", x.Backend, name, x.Active, rate(x.Sessions), rate(x.Failures), rate(x.Retries), ms(x.P50, x.Sessions), ms(x.P99, x.Sessions))
			}
		})
	}
}

// outcomes says how many sessions ended in which way, but for those that none did.
func outcomes(t graph.Tally, count func(uint64) string) string {
	var all []string
	for o, n := range t {
		if n > 0 {
			all = append(all, graph.Outcome(o).String()+" "+count(n))
		}
	}
	return strings.Join(all, ", ")
}

// values says what a node measures of itself.
func values(all map[string]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s %g", k, all[k]))
	}
	return strings.Join(parts, ", ")
}

// scaled writes a number with three digits or so.
func scaled(v float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G", "T"} {
		if v < 9999.5 {
			break
		}
		v, unit = v/1000, u
	}
	if v < 9.95 {
		return fmt.Sprintf("%.1f%s", v, unit)
	}
	return fmt.Sprintf("%.0f%s", v, unit)
}
