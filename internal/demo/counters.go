package demo

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lbgraph/lbgraph/control/metrics"
)

// sample is one line of the Prometheus text format.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

var (
	sampleLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? ([-+.0-9eInfNa]+)$`)
	labelPair  = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
)

func samples(text string) (all []sample) {
	for line := range strings.Lines(text) {
		m := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		s := sample{name: m[1], labels: map[string]string{}}
		for _, l := range labelPair.FindAllStringSubmatch(m[2], -1) {
			s.labels[l[1]] = l[2]
		}
		var err error
		if s.value, err = strconv.ParseFloat(m[3], 64); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// listen is where the balancer serves its metrics; "" if nowhere.
func (d *demo) listen() string {
	for _, c := range d.File.Controls {
		if m, ok := c.Config.(*metrics.Config); ok {
			return m.Listen
		}
	}
	return ""
}

// local asks a balancer's own listener.
func (d *demo) local(ctx context.Context, balancer, path string) (string, error) {
	return d.net.run(ctx, balancer, "curl", "-sS", "--fail", "--max-time", "5", "http://"+d.listen()+path)
}

func (d *demo) samples(ctx context.Context, balancer string) ([]sample, error) {
	text, err := d.local(ctx, balancer, "/metrics")
	return samples(text), err
}

// received is the number of bytes that came to all balancers so far.
func (d *demo) received(ctx context.Context) (n float64, err error) {
	for _, b := range balancers {
		all, err := d.samples(ctx, b)
		if err != nil {
			return 0, err
		}
		n += total(all, "lbgraph_received_bytes_total")
	}
	return n, nil
}

// total is the sum of a metric over its labels.
func total(all []sample, name string) (n float64) {
	for _, s := range all {
		if s.name == name {
			n += s.value
		}
	}
	return n
}

// counters shows what the nodes counted, and that nothing is unaccounted for.
func (d *demo) counters(ctx context.Context) error {
	d.say("\nWhat the nodes saw, of both balancers together: curl http://%s/metrics", d.listen())
	received := 0.0
	packets, outputs, drops := map[string]float64{}, map[string]map[string]float64{}, map[string]map[string]float64{}
	add := func(to map[string]map[string]float64, node, what string, n float64) {
		if to[node] == nil {
			to[node] = map[string]float64{}
		}
		to[node][what] += n
	}
	for _, b := range balancers {
		all, err := d.samples(ctx, b)
		if err != nil {
			return err
		}
		for _, s := range all {
			node := s.labels["node"]
			switch s.name {
			case "lbgraph_received_packets_total":
				received += s.value
			case "lbgraph_node_packets_total":
				packets[node] += s.value
			case "lbgraph_node_output_packets_total":
				add(outputs, node, s.labels["output"], s.value)
			case "lbgraph_dropped_packets_total":
				add(drops, node, s.labels["reason"], s.value)
			}
		}
	}
	list := func(of map[string]float64) string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if of[name] > 0 {
				all = append(all, fmt.Sprintf("%s %.0f", name, of[name]))
			}
		}
		return strings.Join(all, ", ")
	}
	w := tabwriter.NewWriter(d.Out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "    node\tpackets\tleft by\tdropped")
	for _, g := range d.File.Graphs {
		for _, n := range g.Nodes {
			in := packets[n.Name]
			if n.Kind.Source {
				in = received
			}
			_, _ = fmt.Fprintf(w, "    %s\t%.0f\t%s\t%s\n", n.Name, in, list(outputs[n.Name]), list(drops[n.Name]))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, b := range balancers {
		for _, path := range []string{"/healthz", "/readyz"} {
			out, err := d.local(ctx, b, path)
			d.fact(err == nil && strings.TrimSpace(out) == "ok", "%s: %s says %s%s", b, path, strings.TrimSpace(out), from("", err))
		}
	}
	return d.conserved(ctx)
}

// conserved states that each balancer accounts for every packet.
func (d *demo) conserved(ctx context.Context) error {
	for _, b := range balancers {
		var got, gone float64
		for range 20 { // a packet may be on its way
			all, err := d.samples(ctx, b)
			if err != nil {
				return err
			}
			got, gone = account(all)
			if got > 0 && got == gone {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
		d.accounted(b, got, gone)
	}
	return nil
}

// account answers how many packets came to a balancer or were made there, and how
// many of them it says went or are held.
func account(all []sample) (got, gone float64) {
	for _, name := range []string{"received_packets_total", "made_packets_total"} {
		got += total(all, "lbgraph_"+name)
	}
	for _, name := range []string{"sent_packets_total", "dropped_packets_total", "kernel_packets_total", "held_packets"} {
		gone += total(all, "lbgraph_"+name)
	}
	return got, gone
}

// accounted states that both are the same.
func (d *demo) accounted(balancer string, got, gone float64) {
	d.fact(got > 0 && got == gone, "%s: received + made %.0f = sent + dropped + to the kernel + held %.0f", balancer, got, gone)
}
