package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
