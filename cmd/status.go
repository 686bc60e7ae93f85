package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
)

func init() { add(newStatus) }

func newStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Say how the daemon is, and its backends and routes",
		Long: `Asks the daemon that runs for its health, the configuration in force and how reloads
went, pools with their backends and tables, checks, routers, and what graphs and
streams counted; lbgraph top has the rates. With -o json it is all of it.`,
		Example: `  lbgraph status
  lbgraph status -o json | jq -r '.pools[] | "\(.name) \(.digest)"'`,
		Args: takes(),
	}
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		var s admin.Status
		if err := ask().ask(c.Context(), "GET", "/v1/status", nil, &s); err != nil {
			return err
		}
		if js {
			return a.json(s, nil)
		}
		return status(a.out, &s)
	}
	return c
}

// status prints a status for people.
func status(w io.Writer, s *admin.Status) error {
	var b strings.Builder
	cfg := &s.Configuration
	fmt.Fprintf(&b, "lbgraph %s\n", s.Version)
	fmt.Fprintf(&b, "healthy: %s\nready:   %s\n", s.Healthy, s.Ready)
	if len(s.Drained) > 0 {
		fmt.Fprintf(&b, "drained: by %s\n", strings.Join(s.Drained, " and "))
	}
	fmt.Fprintf(&b, "file:    %s, in force since %s", cfg.File, cfg.Since.Local().Format(time.DateTime))
	if cfg.LastGood {
		b.WriteString(" as it was last good")
	}
	b.WriteByte('\n')
	if n := list(counted(cfg.Reloads[admin.Reloaded], "taken"), counted(cfg.Reloads[admin.Wrong], "wrong"), counted(cfg.Reloads[admin.Refused], "refused"), counted(cfg.Reloads[admin.Failed], "failed")); n != "" {
		fmt.Fprintf(&b, "reloads: %s\n", n)
	}
	if r := cfg.Last; r != nil {
		fmt.Fprintf(&b, "last:    %s at %s, by %s\n", r.Outcome, r.At.Local().Format(time.DateTime), r.Why)
		if r.Outcome != admin.Reloaded && r.Outcome != admin.Unchanged {
			fmt.Fprintf(&b, "         %s\n", r.Error)
		}
	}
	details(&b, s.Details)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, p := range s.Pools {
		fmt.Fprintf(t, "\npool %s, table %s\n", p.Name, p.Digest)
		for _, x := range p.Backends {
			word := x.Status
			if x.Removed {
				word += ", removed"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\tweight %d\n", strings.TrimPrefix(x.Name, p.Name+"/"), withPort(x.Address, x.Port), word, x.Health, x.Weight)
		}
	}
	_ = t.Flush()
	for i := range s.Graphs {
		g := &s.Graphs[i]
		fmt.Fprintf(&b, "\ngraph %s, %s\n", g.Graph, plural(g.Cores, "core"))
		for _, p := range g.Ports {
			fmt.Fprintf(&b, "  port %s: %s\n", p.Name, p.Mode)
		}
		fmt.Fprintf(&b, "  received %d, made %d, sent %d, dropped %d, to the kernel %d, held %d\n", g.Received, g.Made, g.Sent, g.Dropped, g.Kernel, g.Held)
		drops := g.Drops()
		for _, reason := range slices.Sorted(maps.Keys(drops)) {
			fmt.Fprintf(&b, "  dropped %s %d\n", reason, drops[reason])
		}
	}
	var streams strings.Builder
	streamStatus(&streams, s.Streams)
	_, err := io.WriteString(w, b.String()+trimmed(streams.String()))
	return err
}

// streamStatus prints what streams counted.
func streamStatus(b *strings.Builder, all []graph.StreamStats) {
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	table := func(indent string, write func(row func(...any))) {
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		write(func(cells ...any) {
			fmt.Fprintf(t, indent+strings.TrimSuffix(strings.Repeat("%v\t", len(cells)), "\t")+"\n", cells...)
		})
		_ = t.Flush()
	}
	for i := range all {
		s := &all[i]
		fmt.Fprintf(b, "\nstream %s\n", s.Stream)
		table("  ", func(row func(...any)) {
			for _, l := range s.Listeners {
				row("listener "+l.Node, l.Address, plural(int(l.Connections), "connection"), fmt.Sprintf("%d accepted", l.Accepted), list(counted(l.Requests, "requests"), counted(l.Malformed, "of them unreadable"), counted(l.AcceptErrors, "not accepted")))
			}
		})
		table("  ", func(row func(...any)) {
			for j := range s.Routes {
				if r := &s.Routes[j]; r.Sum() > 0 {
					row("route "+r.Node, plural(int(r.Sum()), "session"), fmt.Sprintf("p50 %.1f ms", 1e3*graph.Quantile(&r.Latency, 0.5)), fmt.Sprintf("p99 %.1f ms", 1e3*graph.Quantile(&r.Latency, 0.99)), outcomes(r.Sessions, count))
				}
			}
		})
		for _, n := range s.Nodes {
			for _, o := range n.Outputs {
				if o.Drop && o.Packets > 0 {
					fmt.Fprintf(b, "  dropped %s.%s %d\n", n.Name, o.Name, o.Packets)
				}
			}
		}
		for _, n := range s.Nodes {
			for _, c := range n.Certificates {
				fmt.Fprintf(b, "  certificate %s ends %s\n", c.File, c.NotAfter.Local().Format(time.DateTime))
			}
		}
	}
	if len(all) == 0 || len(all[0].Backends) == 0 {
		return
	}
	b.WriteString("\nbackends of streams\n")
	table("  ", func(row func(...any)) {
		for i := range all[0].Backends { // each stream has all
			x := &all[0].Backends[i]
			word := ""
			if x.Ejected {
				word = "left out for failures"
			}
			row(x.Addr, fmt.Sprintf("%d active", x.Active), plural(int(x.Total), "session"), fmt.Sprintf("%d failed", x.Failures), fmt.Sprintf("%d retries", x.Retries), fmt.Sprintf("p50 %.1f ms", 1e3*graph.Quantile(&x.Latency, 0.5)), fmt.Sprintf("p99 %.1f ms", 1e3*graph.Quantile(&x.Latency, 0.99)), word)
		}
	})
}

// details prints what control blocks say, as far as it is for people.
func details(b *strings.Builder, all map[string]any) {
	if x, ok := all["bgp"]; ok {
		var bgp struct {
			ASN      uint32 `json:"asn"`
			Withheld string `json:"withheld"`
			Peers    []struct {
				Name, Address, State string
				Announced            uint64
				LastError            string `json:"last_error"`
			} `json:"peers"`
			VIPs []struct {
				Route   string
				Routers int
				Why     string
			} `json:"vips"`
		}
		if again(x, &bgp) {
			fmt.Fprintf(b, "\nbgp, AS %d\n", bgp.ASN)
			if bgp.Withheld != "" {
				fmt.Fprintf(b, "  nothing is announced: %s\n", bgp.Withheld)
			}
			t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
			for _, p := range bgp.Peers {
				fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", p.Name, p.Address, p.State, plural(int(p.Announced), "route"), p.LastError)
			}
			for _, v := range bgp.VIPs {
				word := "announced to " + plural(v.Routers, "router")
				if v.Routers == 0 {
					word = "not announced: " + v.Why
				}
				fmt.Fprintf(t, "  %s\t%s\n", v.Route, word)
			}
			_ = t.Flush()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "health") {
			continue
		}
		var probes []struct {
			Address, Health, Error string
			Port                   int
			Seconds                float64
		}
		if !again(all[name], &probes) {
			continue
		}
		fmt.Fprintf(b, "\n%s\n", name)
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, p := range probes {
			fmt.Fprintf(t, "  %s\t%s\t%.1f ms\t%s\n", withPort(p.Address, p.Port), p.Health, p.Seconds*1e3, p.Error)
		}
		_ = t.Flush()
	}
}

// again reads what was decoded without knowing its form.
func again(from, to any) bool {
	b, err := json.Marshal(from)
	return err == nil && json.Unmarshal(b, to) == nil
}

// withPort answers an address, and its port where there is one.
func withPort(address string, port int) string {
	if port == 0 {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
