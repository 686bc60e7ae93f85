package cmd

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/replay"
)

func init() { add(newReplay) }

func newReplay(a *app) *cobra.Command {
	var in, addrs []string
	var out string
	var packets bool
	var o replay.Options
	c := &cobra.Command{
		Use:   "replay FILE --in CAPTURE",
		Short: "Run a file's packet graph on captures",
		Long: `Runs the packet graph of a file on captures, as if they came by its interface: a
capture for each queue, in their order. Nothing is opened but files, and no
privilege is needed. Time is that of the captures, so that what a packet meets in
the connection table is what it would have met, and every run gives the same.

All backends count as healthy but those of --down. What leaves is written to --out,
in pcapng if its name ends so. With -o json, every packet's way, verdict and backend
is told: compare two files, or two versions of one, before rolling out a change.`,
		Example: `  lbgraph replay lb.hcl --in clients.pcap --out tunnel.pcap
  lbgraph replay lb.hcl --in q0.pcap --in q1.pcap --down web/web-1 -o json | jq .drops`,
		Args:              takes("FILE"),
		ValidArgsFunction: hclFiles,
	}
	c.Flags().StringArrayVar(&in, "in", nil, "`CAPTURE` of the next queue, or INTERFACE=CAPTURE where there are several; may be repeated")
	c.Flags().StringVar(&out, "out", "", "`CAPTURE` to write what leaves to")
	c.Flags().StringArrayVar(&o.Down, "down", nil, "`POOL/BACKEND` that counts as dead; may be repeated")
	c.Flags().StringVar(&o.Graph, "graph", "", "`name` of the graph, if the file has several")
	c.Flags().StringArrayVar(&addrs, "address", nil, "`address` of the interface, instead of 192.0.2.1 and 2001:db8::1; may be repeated")
	c.Flags().BoolVar(&packets, "packets", false, "also print a line for each packet")
	_ = c.MarkFlagFilename("in", "pcap", "pcapng")
	_ = c.MarkFlagFilename("out", "pcap", "pcapng")
	read, asJSON := a.file(c), output(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		if len(in) == 0 {
			return misuse("replay needs a capture: --in CAPTURE")
		}
		for _, name := range in {
			i := replay.Input{File: name}
			before, after, ok := strings.Cut(name, "=")
			if _, err := os.Stat(name); ok && err != nil && !strings.Contains(before, "/") {
				i = replay.Input{Interface: before, File: after}
			}
			o.In = append(o.In, i)
		}
		for _, s := range addrs {
			addr, err := netip.ParseAddr(s)
			if err != nil {
				return misuse("--address is %q, which is no address", s)
			}
			o.Addrs = append(o.Addrs, addr)
		}
		f, err := read(args[0])
		if err != nil {
			return err
		}
		var w *os.File
		if out != "" {
			for _, i := range o.In {
				if same(i.File, out) {
					return misuse("--out is %s, which is read too", out)
				}
			}
			if w, err = os.Create(out); err != nil {
				return err
			}
			o.Out, o.Format = w, pcap.FormatOf(out)
		}
		x, err := replay.Run(f, o)
		if w != nil {
			err = errors.Join(err, w.Close())
		}
		var wrong replay.ErrOption
		switch {
		case errors.As(err, &wrong):
			return misuse("%w", err)
		case err != nil:
			return err
		}
		for _, warning := range x.Warnings {
			fmt.Fprintf(a.err, "lbgraph: warning: %s\n", warning)
		}
		if js {
			return a.json(x, nil)
		}
		return report(a.out, x, packets)
	}
	return c
}

// same tells whether two names are of one file.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// report prints a result for people.
func report(w io.Writer, x *replay.Result, packets bool) error {
	var b strings.Builder
	if packets {
		for i := range x.Packets {
			p := &x.Packets[i]
			fmt.Fprintf(&b, "%5d  queue %d  %s  %s", p.N, p.Queue, strings.Join(p.Path, " "), p.Verdict)
			for _, s := range []string{p.Reason, p.VIP, p.Backend} {
				if s != "" {
					fmt.Fprintf(&b, "  %s", s)
				}
			}
			if len(p.Outputs) != 1 || p.Outputs[0].Kind != replay.Forward {
				for _, o := range p.Outputs {
					fmt.Fprintf(&b, "  [%s %s %d]", o.Kind, o.Verdict, o.Length)
				}
			}
			b.WriteByte('\n')
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "received %d, made %d, sent %d, to the kernel %d, held %d, dropped %d\n", x.Received, x.Made, x.Sent, x.Kernel, x.Held, total(x.Drops))
	table := func(title string, of map[string]uint64) {
		if len(of) == 0 {
			return
		}
		names := make([]string, 0, len(of))
		width := 0
		for name := range of {
			names = append(names, name)
			width = max(width, len(name))
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, name := range names {
			fmt.Fprintf(&b, "  %-*s  %d\n", width, name, of[name])
		}
	}
	table("dropped", x.Drops)
	backends := map[string]uint64{}
	for i := range x.Packets {
		if p := &x.Packets[i]; p.Backend != "" && p.Verdict == replay.Sent {
			backends[p.Backend]++
		}
	}
	table("packets to backends", backends)
	c := x.Connections
	if c.Hits+c.Misses > 0 {
		fmt.Fprintf(&b, "\nconnections: %d entries, %d hits, %d misses, %d inserts\n", c.Entries, c.Hits, c.Misses, c.Inserts)
	}
	pools := make([]string, 0, len(x.Pools))
	for name := range x.Pools {
		pools = append(pools, name)
	}
	slices.Sort(pools)
	for _, name := range pools {
		slots := map[string]uint64{}
		for backend, n := range x.Pools[name].Slots {
			slots[backend] = uint64(n)
		}
		table(fmt.Sprintf("pool %s, table %s, slots", name, x.Pools[name].Digest), slots)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func total(drops map[string]uint64) (n uint64) {
	for _, d := range drops {
		n += d
	}
	return n
}
