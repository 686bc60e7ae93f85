package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/lbgraph/lbgraph/graph"
)

// report collects tables, and the lines for benchstat that follow them.
type report struct {
	out   io.Writer
	lines []string
}

// table writes a title and a table whose first row names its columns.
func (r *report) table(title string, rows [][]string) error {
	if _, err := fmt.Fprintf(r.out, "\n%s\n\n", title); err != nil {
		return err
	}
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// nodes writes what the nodes of a graph took, by the engine's own samples.
func (r *report) nodes(name string, s *graph.Stats) error {
	rows := [][]string{{"share", "ns a packet", "packets a call", "node"}}
	cost := func(n *graph.NodeStats) float64 { // ns, of all that were timed
		if n.Timed == 0 {
			return 0
		}
		return float64(n.Cycles) / s.CyclesPerNanosecond / float64(n.Timed)
	}
	sum := 0.0
	for i := range s.Nodes {
		sum += cost(&s.Nodes[i]) * float64(s.Nodes[i].Packets)
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Packets == 0 || sum == 0 {
			continue
		}
		rows = append(rows, []string{percent(cost(n) * float64(n.Packets) / sum), fmt.Sprintf("%.1f", cost(n)), fmt.Sprintf("%.1f", float64(n.Packets)/float64(n.Calls)), n.Name})
	}
	each := 0.0
	if s.Received > 0 {
		each = sum / float64(s.Received)
	}
	return r.table(fmt.Sprintf("What the nodes of %q take, by samples, which an interruption spoils: %.1f ns a packet together; the rest is the kernel and the loop.", name, each), rows)
}

// line adds a line as go test -bench writes it: values by unit, in pairs.
func (r *report) line(name string, pairs ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, "BenchmarkIO/%s 1", strings.NewReplacer(", ", "/", " ", "-").Replace(name))
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, " %s %s", figure(pairs[i]), pairs[i+1])
	}
	r.lines = append(r.lines, b.String())
}

func figure(x any) string {
	if f, ok := x.(float64); ok {
		return fmt.Sprintf("%.5g", f)
	}
	return fmt.Sprint(x)
}

// flush writes the lines.
func (r *report) flush() error {
	if len(r.lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(r.out, "\n%s\n", strings.Join(r.lines, "\n"))
	return err
}

// thousands writes a number of packets or a rate.
func thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// micro writes ns as µs.
func micro(ns float64) string {
	switch us := ns / 1e3; {
	case us >= 1000:
		return fmt.Sprintf("%.0f", us)
	case us >= 100:
		return fmt.Sprintf("%.1f", us)
	default:
		return fmt.Sprintf("%.2f", us)
	}
}

func times2(x float64) string  { return fmt.Sprintf("%.2f", x) }
func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }
