package bench

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
)

// WriteTable writes r for people: a line a node, then the whole.
func (r *Result) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "graph %s: %s; medians of %d runs\n\n", r.Graph, r.Describe(), len(r.PerPacket))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "node\tkind\tcalls\tpackets/call\tns/packet\tcycles/packet\tshare\t")
	whole := median(r.PerPacket)
	nodes := 0.0 // a packet that is received
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.Packets == 0 {
			fmt.Fprintf(t, "%s\t%s\t0\t\t\t\t\t\n", n.Name, n.Kind)
			continue
		}
		ns := median(n.PerPacket)
		part := ns * float64(n.Packets) / 1e5
		nodes += part
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.2f\t%.1f\t%.0f %%\t\n", n.Name, n.Kind, n.Calls, float64(n.Packets)/float64(n.Calls), ns, ns*r.CyclesRate, 100*part/(whole+median(r.Port)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\ncalls are of 100000 packets received; share is of the whole with its port\n")
	fmt.Fprintf(w, "the whole graph %.2f ns/packet; its port costs %.2f, which is taken off", whole, median(r.Port))
	if len(r.Reference) > 0 {
		fmt.Fprintf(w, "\nthe scalar reference %.2f ns/packet: %.2f times as much", median(r.Reference), Ratio(r.Reference, r.PerPacket))
	}
	for reason, n := range r.Drops {
		fmt.Fprintf(w, "\n%d packets were dropped: %s", n, reason)
	}
	_, err := fmt.Fprintln(w)
	return err
}

// Ratio is the median of the ratios of what was measured side by side.
func Ratio(a, b []float64) float64 {
	var all []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			all = append(all, a[i]/b[i])
		}
	}
	return median(all)
}

// WriteLines writes r as lines of the Go benchmark format, which benchstat reads: one
// a run for each node, the graph and the reference.
func (r *Result) WriteLines(w io.Writer) error {
	name := fmt.Sprintf("%s/flows=%d/new=%d/vector=%d", r.Graph, r.Load.Flows, r.Load.NewFlows, r.Batch)
	if len(r.Load.Sizes) > 0 {
		name += "/sizes=" + strings.ReplaceAll(strings.Trim(fmt.Sprint(r.Load.Sizes), "[]"), " ", ",")
	}
	if r.Cold {
		name += "/cold"
	}
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: github.com/lbgraph/lbgraph/bench\n", runtime.GOOS, runtime.GOARCH)
	line := func(what string, runs []float64) {
		for _, ns := range runs {
			fmt.Fprintf(w, "Benchmark%s 1 %.3f ns/packet\n", what, ns)
		}
	}
	line("Graph/"+name, r.PerPacket)
	line("Port/"+name, r.Port)
	line("Reference/"+name, r.Reference)
	for i := range r.Nodes {
		if n := &r.Nodes[i]; n.Packets > 0 {
			line("Node/"+name+"/"+n.Name, n.PerPacket)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}
