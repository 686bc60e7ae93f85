// Figures prints the figures that the project wants to reach, beside what this machine
// gives: `make bench`. With -check it looks at nothing but ratios and allocations, and
// fails if they do not hold: what CI may ask of any machine.
//
//	figures [-runs N] [-slice D] [-only REGEXP]    the table
//	figures -check                                 the check
//	figures -scale                                 files of growing size
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lbgraph/lbgraph/bench"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

var (
	runs  = flag.Int("runs", 10, "runs of each figure")
	slice = flag.Duration("slice", 30*time.Millisecond, "time of a run")
	only  = flag.String("only", "", "figures whose name matches this")
	check = flag.Bool("check", false, "check ratios and allocations alone")
	scale = flag.Bool("scale", false, "what files of growing size cost")
)

func main() {
	flag.Parse()
	f := table
	switch {
	case *check:
		f = checks
	case *scale:
		f = scales
	}
	if err := f(); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// A figure is one line of the table. there is what was measured elsewhere, on a machine
// of its own: text, for it may be a span; from is its middle, 0 if there is none.
type figure struct {
	name    string
	unit    string // "ns", "µs" or "ms"
	target  float64
	there   string
	from    float64
	measure func() (here, reference []float64, err error)
	pkg     string // instead of measure: package and name of a Go benchmark
	mark    string
	value   string  // the benchmark's unit
	scale   float64 // by which its value is divided
	lowest  bool    // the least of the runs counts, not their median
}

func compare(name string, target float64, there string, from float64, w bench.Work) figure {
	return figure{name: name, unit: "ns", target: target, there: there, from: from, measure: func() ([]float64, []float64, error) {
		c, err := bench.Compare(w, *runs, *slice)
		return c.Graph, c.Reference, err
	}}
}

func node(name string, target float64, there string, from float64, of string, w bench.Work) figure {
	return one(name, target, there, from, func() ([]float64, error) { return bench.NodeCost(w, of, *runs, *slice) })
}

func one(name string, target float64, there string, from float64, f func() ([]float64, error)) figure {
	return figure{name: name, unit: "ns", target: target, there: there, from: from, measure: func() ([]float64, []float64, error) {
		x, err := f()
		return x, nil, err
	}}
}

func gobench(name, unit string, target float64, there string, from float64, pkg, mark, value string, scale float64) figure {
	return figure{name: name, unit: unit, target: target, there: there, from: from, pkg: pkg, mark: mark, value: value, scale: scale, lowest: true}
}

// dispatch is a difference: its least would be what noise makes of it.
func dispatch() figure {
	f := gobench("dispatch, counters, clocks of a node", "ns", 0.5, "", 0, "./runtime", "Node", "ns/packet-node", 1)
	f.lowest = false
	return f
}

func flows(n, fresh int) bench.Load { return bench.Load{Flows: n, NewFlows: fresh} }

func figures() []figure {
	k, m := 10_000, 1_000_000
	all := []figure{
		compare("established, 10 k flows", 18, "27–32", 29.5, bench.Work{Load: flows(k, 0)}),
		compare("established, 1 M flows", 30, "82–110", 96, bench.Work{Load: flows(m, 0)}),
		compare("every packet a new flow, 10 k keys", 33, "176–200", 188, bench.Work{Load: flows(k, 100)}),
		compare("every packet a new flow, 1 M keys", 40, "176–200", 188, bench.Work{Load: flows(m, 100)}),
		compare("established, 10 k flows, vectors of 1", 85, "", 0, bench.Work{Load: flows(k, 0), Batch: 1}),
		compare("established, 10 k flows, vectors of 4", 40, "", 0, bench.Work{Load: flows(k, 0), Batch: 4}),
		compare("established, 10 k flows, vectors of 16", 22, "", 0, bench.Work{Load: flows(k, 0), Batch: 16}),
		compare("headers cold, established, 10 k flows", 35, "90", 90, bench.Work{Load: flows(k, 0), Cold: true}),
		compare("headers cold, established, 1 M flows", 45, "140", 140, bench.Work{Load: flows(m, 0), Cold: true}),
		compare("headers cold, new flows, 10 k keys", 50, "205", 205, bench.Work{Load: flows(k, 100), Cold: true}),
	}
	for _, c := range []struct {
		fill  int
		there float64
	}{{15, 8.1}, {70, 11.3}, {90, 14.3}, {95, 23.3}} {
		all = append(all, one(fmt.Sprintf("look-up, hot: 1024 keys, %d %% in use", c.fill), 4, num(c.there), c.there,
			func() ([]float64, error) { return bench.LookUp(131072, c.fill, 1024, false, *runs, *slice) }))
	}
	for _, c := range []struct {
		entries       int
		name          string
		target, there float64
	}{{1 << 17, "128 k", 7, 20}, {1 << 20, "1 M", 17, 85}, {1 << 23, "8 M", 22, 98}} {
		all = append(all, one(fmt.Sprintf("look-up, fresh keys, %s entries, 70 %% in use", c.name), c.target, num(c.there), c.there,
			func() ([]float64, error) { return bench.LookUp(c.entries, 70, 0, false, *runs, *slice) }))
	}
	for _, c := range []struct {
		fill  int
		there float64
	}{{70, 4.1}, {90, 7.5}, {95, 16.2}} {
		all = append(all, one(fmt.Sprintf("look-up that misses, hot: 1024 keys, %d %% in use", c.fill), 3.2, num(c.there), c.there,
			func() ([]float64, error) { return bench.LookUp(131072, c.fill, 1024, true, *runs, *slice) }))
	}
	all = append(all, one("Maglev look-up, hash given", 0.8, "0.79", 0.79, func() ([]float64, error) { return bench.Selection(*runs) }))
	const st = "./control/state"
	for _, c := range []struct {
		n             int
		target, there float64
	}{{5, 0.45, 0.82}, {20, 0.55, 1.04}, {100, 0.70, 1.15}, {200, 0.77, 1.19}} {
		all = append(all, gobench(fmt.Sprintf("Maglev build, %d backends", c.n), "ms", c.target, num(c.there), c.there,
			st, fmt.Sprintf("MaglevBuild/backends=%d/fill", c.n), "ns/op", 1e6))
	}
	all = append(all,
		gobench("200 pools rebuilt, one core", "ms", 100, "216", 216, st, "Flap/pools=200/fail,one_core", "ns/op", 1e6),
		gobench("200 pools, a flap back, each", "µs", 10, "", 0, st, "Flap/pools=200/back", "ns/pool", 1e3),
		gobench("20 backends fail in 50 pools", "ms", 35, "116", 116, st, "RackFails", "ns/op", 1e6),
	)
	for _, n := range []int{10, 50, 100, 200} {
		all = append(all, gobench(fmt.Sprintf("a backend flaps in %d pools, each", n), "ms", 0.6, "2.2", 2.2, st, fmt.Sprintf("Flap/pools=%d/fail", n), "ns/pool", 1e6))
	}
	data := bench.Work{Load: flows(k, 0)}
	long := bench.Work{Load: bench.Load{Flows: k, Sizes: []int{1514}}}
	all = append(all,
		node("GRE encapsulation", 5, "74.9", 74.9, "gre", data),
		node("MSS clamp, a SYN", 10, "16.9", 16.9, "clamp", bench.Work{Load: flows(k, 100)}),
		node("MSS clamp, not a SYN", 1, "14.7", 14.7, "clamp", data),
		node("ICMP error made", 100, "264", 264, "mtu", long),
		one("rate limiter, allow", 5, "23.4", 23.4, func() ([]float64, error) { return bench.Limiter(true, 64, *runs), nil }),
		one("rate limiter, deny, one of a vector", 2, "3.6", 3.6, func() ([]float64, error) { return bench.Limiter(false, 1, *runs), nil }),
		gobench("hand-off between cores, batches of 64", "ns", 4, "7.9", 7.9, "./io/ring", "TwoCores/ring/batch=64", "ns/op", 1),
		dispatch(),
		one("a node of no work", 0.5, "", 0, func() ([]float64, error) { return bench.Added(8, *runs, *slice) }),
	)
	return all
}

func num(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func table() error {
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(figures(), func(f figure) bool { return !match.MatchString(f.name) })
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ratio\there\ttarget\tholds\treference here\treference there\twhat")
	held := 0
	for i := range all {
		f := &all[i]
		fmt.Fprintf(os.Stderr, "%d of %d: %s\n", i+1, len(all), f.name)
		here, reference, err := f.take()
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		value := middle(here)
		if f.lowest {
			value = slices.Min(here)
		}
		holds := "no"
		if value <= f.target {
			holds = "yes"
			held++
		}
		ratio, refHere := "", ""
		switch {
		case reference != nil:
			ratio, refHere = fmt.Sprintf("%.2f", bench.Ratio(reference, here)), fmt.Sprintf("%.1f", middle(reference))
		case f.from != 0:
			ratio = fmt.Sprintf("(%.2f)", f.from/value)
		}
		fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\t%s\t%s\t%s\n", ratio, short(value), f.unit, num(f.target), holds, refHere, f.there, f.name)
	}
	n, err := bench.Allocations(bench.Work{Load: flows(10_000, 10)}, 200)
	if err != nil {
		return err
	}
	holds := "no"
	if n == 0 {
		holds = "yes"
		held++
	}
	fmt.Fprintf(t, "\t%d\t0\t%s\t\t\tallocations over 100 k packets, one of ten of a new flow\n", n, holds)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, `
%d of %d hold. A figure is the median of %d runs; of the control plane and of hand-off, the least.
ratio: the scalar reference to the graph, in the same run; in brackets, what was measured there to here.
there: a Zen 5 guest at 3.2 GHz, on which the targets were set; docs/performance.md says more.
`, held, len(all)+1, *runs)
	return nil
}

func short(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func middle(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	if len(x) == 0 {
		return math.NaN()
	}
	return x[len(x)/2]
}

func (f *figure) take() (here, reference []float64, err error) {
	if f.measure != nil {
		return f.measure()
	}
	var parts []string
	for _, p := range strings.Split(f.mark, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(p)+"$")
	}
	parts[0] = "^Benchmark" + parts[0][1:]
	c := exec.Command("go", "test", "-run", "^$", "-bench", strings.Join(parts, "/"), "-benchtime", "50ms", "-count", strconv.Itoa(*runs), f.pkg)
	c.Stderr = os.Stderr
	text, err := c.Output()
	if err != nil {
		return nil, nil, err
	}
	for line := range bytes.Lines(text) {
		w := strings.Fields(string(line))
		for i := 2; i+1 < len(w) && strings.HasPrefix(w[0], "Benchmark"); i += 2 {
			if w[i+1] == f.value {
				x, err := strconv.ParseFloat(w[i], 64)
				if err != nil {
					return nil, nil, err
				}
				here = append(here, x/f.scale)
			}
		}
	}
	if len(here) == 0 {
		return nil, nil, fmt.Errorf("no benchmark %s in %s:\n%s", f.mark, f.pkg, text)
	}
	return here, nil, nil
}

// least are the ratios to the reference that any machine must show, so that a fall below
// tells of a fault. A Xeon guest gives 1.7, 3.5 and 3.1 at least, busy or not. Code that gave
// 2.6 there for the third gave 2.0 to 2.8 on an EPYC guest, which was not asked since. goal is
// what the project wants.
var least = []struct {
	name        string
	ratio, goal float64
	work        bench.Work
}{
	{"established, 10 k flows", 1.3, 1.3, bench.Work{Load: flows(10_000, 0)}},
	{"established, 1 M flows", 2.2, 2.2, bench.Work{Load: flows(1_000_000, 0)}},
	{"every packet a new flow, 10 k keys", 2.6, 3.5, bench.Work{Load: flows(10_000, 100)}},
}

func checks() error {
	var failed []string
	for _, l := range least {
		c, err := bench.Compare(l.work, 10, *slice)
		if err != nil {
			return err
		}
		verdict := "holds"
		if !(c.Ratio() >= l.ratio) {
			verdict = "does not hold"
			failed = append(failed, l.name)
		}
		if l.goal > l.ratio {
			verdict += fmt.Sprintf(" (the goal is %.1f)", l.goal)
		}
		fmt.Printf("%-36s %.2f times as fast as the reference, at least %.1f: %s\n", l.name, c.Ratio(), l.ratio, verdict)
	}
	for _, fresh := range []int{0, 10, 100} {
		n, err := bench.Allocations(bench.Work{Load: flows(10_000, fresh)}, 200)
		if err != nil {
			return err
		}
		fmt.Printf("%d %% of new flows: %d allocations over 100 k packets\n", fresh, n)
		if n > 2 { // those of the Go runtime itself
			failed = append(failed, "allocations")
		}
	}
	if failed != nil {
		return fmt.Errorf("does not hold: %s", strings.Join(failed, "; "))
	}
	return nil
}

// scales prints what files of growing size cost.
func scales() error {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "VIPs\tpools\tbackends each\tflows\tread and checked\tfirst snapshot\tone backend drained\theap\tvip-classify\tlook-up\t")
	for _, z := range []bench.Size{
		{VIPs: 100, Pools: 10, Backends: 50, Flows: 10_000},
		{VIPs: 1000, Pools: 10, Backends: 50, Flows: 10_000},
		{VIPs: 10_000, Pools: 10, Backends: 50, Flows: 100_000},
		{VIPs: 2000, Pools: 200, Backends: 50, Flows: 100_000},
		{VIPs: 2000, Pools: 2000, Backends: 50, Flows: 100_000},
		{VIPs: 1, Pools: 1, Backends: 100, Flows: 100_000},
		{VIPs: 1, Pools: 1, Backends: 100, Flows: 1_000_000},
		{VIPs: 1, Pools: 1, Backends: 100, Flows: 8_000_000},
	} {
		fmt.Fprintf(os.Stderr, "%+v\n", z)
		x, err := bench.MeasureScale(z, min(*runs, 3), *slice)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%v\t%v\t%v\t%d MB\t%.1f ns\t%.1f ns\t\n", z.VIPs, z.Pools, z.Backends, z.Flows,
			x.Load.Round(time.Millisecond), x.Build.Round(time.Millisecond), x.Flap.Round(100*time.Microsecond), x.Memory>>20, x.Match, x.LookUp)
	}
	return t.Flush()
}
