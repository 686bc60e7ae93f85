package demo

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

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

// local asks the balancer's own listener.
func (d *demo) local(ctx context.Context, path string) (string, error) {
	return d.net.run(ctx, "balancer", "curl", "-sS", "--fail", "--max-time", "5", "http://"+d.listen()+path)
}

func (d *demo) samples(ctx context.Context) ([]sample, error) {
	text, err := d.local(ctx, "/metrics")
	return samples(text), err
}

// received is the number of bytes that came to the balancer so far.
func (d *demo) received(ctx context.Context) (n float64, err error) {
	all, err := d.samples(ctx)
	for _, s := range all {
		if s.name == "lbgraph_received_bytes_total" {
			n += s.value
		}
	}
	return n, err
}

// counters shows what the nodes counted, and that nothing is unaccounted for.
func (d *demo) counters(ctx context.Context) error {
	listen := d.listen()
	d.say("\nWhat the nodes saw: curl http://%s/metrics", listen)
	all, err := d.samples(ctx)
	if err != nil {
		return err
	}
	sum := map[string]float64{}
	packets, outputs, drops := map[string]float64{}, map[string][]string{}, map[string][]string{}
	for _, s := range all {
		sum[s.name] += s.value
		if s.value == 0 {
			continue
		}
		node := s.labels["node"]
		switch s.name {
		case "lbgraph_node_packets_total":
			packets[node] += s.value
		case "lbgraph_node_output_packets_total":
			outputs[node] = append(outputs[node], fmt.Sprintf("%s %.0f", s.labels["output"], s.value))
		case "lbgraph_dropped_packets_total":
			drops[node] = append(drops[node], fmt.Sprintf("%s %.0f", s.labels["reason"], s.value))
		}
	}
	w := tabwriter.NewWriter(d.Out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "    node\tpackets\tleft by\tdropped")
	for _, g := range d.File.Graphs {
		for _, n := range g.Nodes {
			in := packets[n.Name]
			if n.Kind.Source {
				in = sum["lbgraph_received_packets_total"]
			}
			_, _ = fmt.Fprintf(w, "    %s\t%.0f\t%s\t%s\n", n.Name, in, strings.Join(outputs[n.Name], ", "), strings.Join(drops[n.Name], ", "))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	got := sum["lbgraph_received_packets_total"] + sum["lbgraph_made_packets_total"]
	gone := sum["lbgraph_sent_packets_total"] + sum["lbgraph_dropped_packets_total"] + sum["lbgraph_kernel_packets_total"] + sum["lbgraph_held_packets"]
	for _, path := range []string{"/healthz", "/readyz"} {
		out, err := d.local(ctx, path)
		d.fact(err == nil && strings.TrimSpace(out) == "ok", "%s says %s%s", path, strings.TrimSpace(out), by("", err))
	}
	d.fact(got > 0 && got == gone, "received + made %.0f = sent + dropped + to the kernel + held %.0f", got, gone)
	return nil
}
