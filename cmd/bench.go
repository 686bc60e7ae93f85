package cmd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/bench"
	"github.com/lbgraph/lbgraph/graph"
)

func init() { add(newBench) }

func newBench(a *app) *cobra.Command {
	var o bench.Options
	var file string
	var sizes []string
	c := &cobra.Command{
		Use:   "bench [KIND …]",
		Short: "Measure a graph over memory, node by node",
		Long: `Measures what the nodes of a graph cost a packet, over memory: no interface and no
privilege is needed. Without --graph it is the graph of lb.hcl with a hundred
backends, and beside it a scalar pipeline that does the same work packet by
packet. KIND limits the table to nodes of these kinds; one that the graph does not
have is put into it.

Below the table stand the runs as lines that benchstat reads. Each figure is the
median of short slices, so that other work on the machine disturbs little.`,
		Example: `  lbgraph bench
  lbgraph bench parse gre-encap --flows 1000000 --cold
  lbgraph bench --graph lb.hcl --new-flows 10 --count 10 > new.txt && benchstat old.txt new.txt`,
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, k := range graph.Kinds() {
				if k.Plane == graph.PacketPlane {
					names = append(names, k.Name+"\t"+k.Summary)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().StringVar(&file, "graph", "", "`FILE` whose first graph is measured, instead of the sample")
	c.Flags().IntVar(&o.Load.Flows, "flows", 10000, "`number` of flows; each comes once before any comes again")
	c.Flags().StringSliceVar(&sizes, "sizes", nil, "`lengths` of frames in bytes, in turn (60)")
	c.Flags().IntVar(&o.Load.NewFlows, "new-flows", 0, "`percent` of packets that begin a flow not seen before")
	c.Flags().BoolVar(&o.Cold, "cold", false, "packets come with their headers in no cache")
	c.Flags().IntVar(&o.Batch, "vector", 64, "packets a vector, at `most`")
	c.Flags().IntVar(&o.Count, "count", 5, "`number` of runs")
	_ = c.MarkFlagFilename("graph", "hcl", "json")
	read := a.file(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		for _, s := range sizes {
			n, err := strconv.Atoi(strings.TrimSpace(s))
			if err != nil {
				return misuse("--sizes has %q, which is no number", s)
			}
			o.Load.Sizes = append(o.Load.Sizes, n)
		}
		if o.Count < 1 || o.Batch < 1 || o.Batch > 64 {
			return misuse("--count is at least 1, --vector 1 to 64")
		}
		if file != "" {
			f, err := read(file)
			if err != nil {
				return err
			}
			o.File = f
		}
		o.Kinds, o.Progress = args, a.progress()
		r, err := bench.Run(o)
		var use bench.ErrUse
		switch {
		case errors.As(err, &use):
			return misuse("%w", err)
		case err != nil:
			return err
		}
		if err := r.WriteTable(a.out); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
		return r.WriteLines(a.out)
	}
	return c
}

// progress tells on standard error how far a long piece of work is: on a terminal
// always, else every ten seconds.
func (a *app) progress() func(done, of int, what string) {
	terminal := colour(a.err)
	last := time.Now()
	return func(done, of int, what string) {
		switch {
		case terminal && done == of:
			fmt.Fprintf(a.err, "\r\x1b[K")
		case terminal:
			fmt.Fprintf(a.err, "\r\x1b[K%d/%d %s", done, of, what)
		case time.Since(last) > 10*time.Second:
			last = time.Now()
			fmt.Fprintf(a.err, "lbgraph: %d of %d done: %s\n", done, of, what)
		}
	}
}
