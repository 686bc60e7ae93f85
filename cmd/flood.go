package cmd

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/internal/flood"
)

func newDemoFlood(a *app) *cobra.Command {
	f := flood.Config{Timeout: 5 * time.Second}
	var quiet bool
	c := &cobra.Command{
		Use:   "flood TARGET",
		Short: "Put load on a server, and tell what it answered, how fast, and who",
		Long: `Sends requests to TARGET, http://HOST:PORT/PATH, https:// or tcp://HOST:PORT, and
nowhere else: it follows no redirect. On each connection the next request goes out when
the answer is there; with --rate so many go out a second whatever becomes of them, and
a latency counts from when its request was due, so that a server that stands still is
not asked less while it does (coordinated omission).

It ends after --duration or --requests, whichever comes first, and after 10 seconds
without either; Ctrl-C ends it early. What is under way at the end has --timeout to be
answered. Nothing is sent twice. A status of 400 and above is an error.

With TCP a line goes out and has to come back, as from an echo server; who answers may
put its name and a blank in front of it, as demo backend does. With HTTP the answers'
field Server tells who gave them, or the one that --by names.

While it runs standard error shows how far it is. The exit code is 1 if a request
failed, or was due and could not be sent; 3 if nobody listens.`,
		Example: `  lbgraph demo flood http://127.0.0.1:8080/
  lbgraph demo flood http://127.0.0.1:8080/ --host api.localhost --rate 500 -c 50 -d 1m
  lbgraph demo flood tcp://127.0.0.1:8090 --requests 1000 --per-request
  lbgraph demo flood http://127.0.0.1:8080/ --requests 10000 -o json | jq .latency_ms`,
		Args: takes("TARGET"),
	}
	c.Flags().IntVarP(&f.Connections, "connections", "c", 10, "connections at the same time")
	c.Flags().Float64Var(&f.Rate, "rate", 0, "requests a second on all connections together; 0 sends the next one when an answer is there")
	c.Flags().DurationVarP(&f.Duration, "duration", "d", 0, "`time` until no more are sent; 10s without --requests")
	c.Flags().Int64VarP(&f.Requests, "requests", "n", 0, "`number` until no more are sent")
	c.Flags().DurationVar(&f.Timeout, "timeout", f.Timeout, "`time` to connect, and to be answered")
	c.Flags().BoolVar(&f.PerRequest, "per-request", false, "open a connection for each request")
	c.Flags().StringVar(&f.Method, "method", "", "method of HTTP; GET, and POST with --size")
	c.Flags().StringArrayVarP(&f.Fields, "header", "H", nil, "`field` of the requests, as in \"Accept: text/html\"; may be given again")
	c.Flags().StringVar(&f.Host, "host", "", "host that is asked for, and the server name of TLS, instead of TARGET's")
	c.Flags().IntVar(&f.Size, "size", 0, "`bytes` of the requests' body; of the lines of TCP, 64 if left out")
	c.Flags().BoolVar(&f.Insecure, "insecure", false, "take any certificate")
	c.Flags().StringVar(&f.By, "by", "", "`field` of an answer that tells who gave it; Server if left out")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show how far it is")
	asJSON := output(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		f.Target = args[0]
		if !c.Flags().Changed("duration") && !c.Flags().Changed("requests") {
			f.Duration = 10 * time.Second
		}
		if strings.HasPrefix(f.Target, "tcp://") && !c.Flags().Changed("size") {
			f.Size = 64
		}
		if err := f.Check(); err != nil {
			return misuse("%w", err)
		}
		clear := ""
		if f.Every = time.Second; terminal(a.err) {
			f.Every, clear = 100*time.Millisecond, "\r\x1b[K"
		}
		if !quiet {
			f.Watch = func(p flood.Progress) {
				line := progress(p) + "\n"
				if clear != "" {
					line = clear + bar(p) + progress(p)
				}
				_, _ = io.WriteString(a.err, line)
			}
		}
		r, err := flood.Run(c.Context(), f)
		if !quiet && clear != "" {
			_, _ = io.WriteString(a.err, clear)
		}
		if err != nil {
			return refused("%w", err)
		}
		if js {
			err = a.json(r, nil)
		} else {
			_, err = io.WriteString(a.out, floodReport(r))
		}
		switch {
		case err != nil:
			return err
		case r.Failed > 0:
			return &exitError{requestsFailed, fmt.Errorf("%d of %d requests failed", r.Failed, r.Requests)}
		case r.NotSent > 0:
			return &exitError{requestsFailed, fmt.Errorf("%d requests were due and not sent: the server is too slow for this rate, or --connections are too few", r.NotSent)}
		}
		return nil
	}
	return c
}

// share answers how much of a run is over, by time or by number, from 0 to 1.
func share(p flood.Progress) (s float64) {
	if p.Of > 0 {
		s = p.Elapsed.Seconds() / p.Of.Seconds()
	}
	if p.OfEnded > 0 {
		s = max(s, float64(p.Ended)/float64(p.OfEnded))
	}
	return min(s, 1)
}

func bar(p flood.Progress) string {
	const width = 20
	n := int(share(p) * width)
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "] "
}

// progress is a line of less than 80 columns, with the bar.
func progress(p flood.Progress) string {
	return fmt.Sprintf("%3.0f %%  %.1f s  %d answered  %.0f/s  %d failed", 100*share(p), p.Elapsed.Seconds(), p.Answered, float64(p.Answered)/max(p.Elapsed.Seconds(), 1e-3), p.Failed)
}

// floodReport is what a run is summed up by.
func floodReport(r *flood.Result) string {
	var b strings.Builder
	how := "the next request when an answer is there"
	if r.Rate > 0 {
		how = fmt.Sprintf("%g requests a second", r.Rate)
	}
	fmt.Fprintf(&b, "%s at %s, %s, %s: %.1f s", r.Target, r.Address, plural(r.Connections, "connection"), how, r.Seconds)
	if r.Interrupted {
		b.WriteString(", interrupted")
	}
	b.WriteString("\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "answered\t%d\t%.1f/s\n", r.Answered, r.PerSecond)
	fmt.Fprintf(w, "failed\t%d\n", r.Failed)
	if r.NotSent > 0 {
		fmt.Fprintf(w, "not sent\t%d\tdue, and no connection was free\n", r.NotSent)
	}
	if r.BrokenOff > 0 {
		fmt.Fprintf(w, "broken off\t%d\tunder way when it was interrupted\n", r.BrokenOff)
	}
	fmt.Fprintf(w, "connections\t%d\topened\n", r.Opened)
	fmt.Fprintf(w, "received\t%d\tbytes of content\n", r.Received)
	_ = w.Flush()
	if r.Latency.Count > 0 {
		from := "from sending a request to the end of its answer"
		if r.Latency.FromDue {
			from = "from when a request was due to the end of its answer"
		}
		fmt.Fprintf(&b, "\nlatency, %s\n", from)
		w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "min\t%.3f ms\t\n", r.Latency.Min)
		for _, p := range r.Latency.Percentiles {
			fmt.Fprintf(w, "%g %%\t%.3f ms\t\n", p.P, p.Ms)
		}
		fmt.Fprintf(w, "max\t%.3f ms\t\n", r.Latency.Max)
		_ = w.Flush()
	}
	counts := func(title string, of int64, m map[string]int64) {
		if len(m) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		names := slices.SortedFunc(maps.Keys(m), func(x, y string) int { return cmp.Or(cmp.Compare(m[y], m[x]), cmp.Compare(x, y)) })
		const most = 20
		for _, n := range names[:min(len(names), most)] {
			fmt.Fprintf(w, "  %s\t%d\t%.1f %%\n", cmp.Or(n, "(without a name)"), m[n], 100*float64(m[n])/float64(of))
		}
		_ = w.Flush()
		if len(names) > most {
			fmt.Fprintf(&b, "  and %d more\n", len(names)-most)
		}
	}
	counts("who answered", r.Answered, r.AnsweredBy)
	counts("errors", r.Failed, r.Errors)
	return b.String()
}
