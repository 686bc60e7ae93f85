package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/io/pcap"
)

func init() { add(newTrace) }

func newTrace(a *app) *cobra.Command {
	var live, established, sessions bool
	var f admin.Filter
	var sf admin.SessionFilter
	var q question
	var src, dst, client, write string
	var long time.Duration
	c := &cobra.Command{
		Use:   "trace PROTOCOL SOURCE DESTINATION | URL | --live | --streams",
		Short: "Say what becomes of a packet or a request, node by node",
		Long: `Says what the daemon that runs would do with a packet of a flow, node by node: by its
rules, its tables and the state of its backends at this moment. It begins a TCP
connection, or with --established belongs to one. Nothing is sent, and nothing
changes. With a URL it says what its streams would do with a request, or with a
connection where the URL begins with tcp:, and which backend would get it.

With --live it shows packets that come, those that the filters fit, and what became of
them. While it watches, the packets that it follows cost more time. With --streams it
shows requests as they end, and connections that carry none: by which nodes they came,
when and how long they were there, and what they waited for: a place, a connection to
the backend, its answer.

--write puts the packets into a capture as they came and as they left, each with its
way as a comment where its name ends in .pcapng.`,
		Example: `  lbgraph trace tcp 198.51.100.7:4711 203.0.113.80:80
  lbgraph trace tcp [2001:db8:c::7]:4711 [2001:db8::80]:443 --established -o json
  lbgraph trace --live --verdict dropped --for 1m
  lbgraph trace --live --src 198.51.100.0/24 --dport 443 --count 5 --write way.pcapng
  lbgraph trace https://www.example.org/cart --client 198.51.100.7
  lbgraph trace --streams --host www.example.org --path /cart --status 5xx`,
		Args: takes("[PROTOCOL or URL]", "[SOURCE]", "[DESTINATION]"),
	}
	c.Flags().BoolVar(&live, "live", false, "show packets that come")
	c.Flags().BoolVar(&established, "established", false, "the packet is one of a connection that stands, no SYN")
	c.Flags().StringVar(&f.Graph, "graph", "", "`name` of the graph, if the file has several")
	c.Flags().StringVar(&f.Protocol, "proto", "", "with --live, only tcp, udp or icmp (of both families): `protocol`")
	c.Flags().StringVar(&src, "src", "", "with --live, only from this `prefix` or address")
	c.Flags().StringVar(&dst, "dst", "", "with --live, only to this `prefix` or address")
	c.Flags().Uint16Var(&f.SourcePort, "sport", 0, "with --live, only from this `port`")
	c.Flags().Uint16Var(&f.DestinationPort, "dport", 0, "with --live, only to this `port`")
	c.Flags().StringVar(&f.Verdict, "verdict", "", "with --live, only what is sent, dropped, kernel or held: `verdict`")
	c.Flags().StringVar(&f.Reason, "reason", "", "with --live, only drops for this `reason`")
	c.Flags().IntVar(&f.Count, "count", 10, "with --live or --streams, end after so many `packets` or sessions")
	c.Flags().DurationVar(&long, "for", 10*time.Second, "with --live or --streams, end after this `time`")
	c.Flags().BoolVar(&sessions, "streams", false, "show requests and connections of streams as they end")
	c.Flags().StringVar(&sf.Stream, "stream", "", "with --streams, only of the stream of this `name`")
	c.Flags().StringVar(&sf.Host, "host", "", "with --streams, only for this `host`; *.example.org is all below one")
	c.Flags().StringVar(&sf.Path, "path", "", "with --streams, only paths that begin with this `text`")
	c.Flags().StringVar(&sf.Status, "status", "", "with --streams, only with this `status`: 503, 5xx, gone, cut, ended or failed")
	q.flags(c, &client)
	c.Flags().StringVar(&write, "write", "", "`CAPTURE` to write packets to, before and after")
	_ = c.MarkFlagFilename("write", "pcapng", "pcap")
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		js, err := asJSON()
		if err != nil {
			return err
		}
		request := len(args) == 1 && strings.Contains(args[0], "://")
		switch {
		case live && sessions:
			return misuse("trace takes --live for packets or --streams for requests, not both")
		case (live || sessions) && len(args) > 0:
			return misuse("trace takes a flow, a URL, --live or --streams, and only one of them")
		case !live && !sessions && !request && len(args) < 3:
			return misuse("trace needs PROTOCOL SOURCE DESTINATION, a URL, --live or --streams. See lbgraph trace --help")
		case request:
			q.URL = args[0]
			if err := q.parse(client); err != nil {
				return err
			}
			var t admin.Session
			if err := ask().ask(c.Context(), "POST", "/v1/streams/trace", q.Request, &t); err != nil {
				return err
			}
			if js {
				return a.json(t, nil)
			}
			_, err := io.WriteString(a.out, wayOf(&t))
			return err
		case sessions:
			if client != "" {
				if sf.Client, err = conf.ParsePrefix(client); err != nil {
					return misuse("--client is %q, which is no address or prefix", client)
				}
			}
			sf.Listener, sf.Count, sf.Seconds = q.Listener, f.Count, long.Seconds()
			if c.Flags().Changed("method") {
				sf.Method = q.Method
			}
			return sampled(c, ask(), "/v1/streams/sample", sf, func(t *admin.Session) error {
				if js {
					return json.NewEncoder(a.out).Encode(t)
				}
				_, err := io.WriteString(a.out, wayOf(t))
				return err
			})
		}
		for _, p := range []struct {
			flag, text string
			to         *netip.Prefix
		}{{"--src", src, &f.Source}, {"--dst", dst, &f.Destination}} {
			if p.text == "" {
				continue
			}
			if *p.to, err = conf.ParsePrefix(p.text); err != nil {
				return misuse("%s is %q, which is no address or prefix", p.flag, p.text)
			}
		}
		w, err := newWays(write)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.close()) }()
		show := func(t *admin.Traced) error {
			if err := w.put(t); err != nil {
				return err
			}
			if js {
				return json.NewEncoder(a.out).Encode(t)
			}
			_, err := io.WriteString(a.out, way(t))
			return err
		}
		x := ask()
		if !live {
			q := admin.Flow{Protocol: args[0], SYN: !established, Graph: f.Graph}
			for i, to := range []*netip.AddrPort{&q.Source, &q.Destination} {
				if *to, err = netip.ParseAddrPort(args[i+1]); err != nil {
					return misuse("%q is no address with a port; write it as in 203.0.113.80:80 or [2001:db8::80]:80", args[i+1])
				}
			}
			var t admin.Traced
			if err := x.ask(c.Context(), "POST", "/v1/trace", q, &t); err != nil {
				return err
			}
			return show(&t)
		}
		f.Seconds = long.Seconds()
		return sampled(c, x, "/v1/sample", f, show)
	}
	return c
}

// sampled asks for samples and shows them as they come.
func sampled[T any](c *cobra.Command, x *client, path string, filter any, show func(*T) error) error {
	resp, err := x.open(c.Context(), "POST", path, filter)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := x.problem(resp); err != nil {
		return err
	}
	for d := json.NewDecoder(resp.Body); ; {
		var t T
		if err := d.Decode(&t); err != nil {
			if errors.Is(err, io.EOF) || c.Context().Err() != nil {
				return nil
			}
			return refused("the daemon ended: %w", err)
		}
		if err := show(&t); err != nil {
			return err
		}
	}
}

// way draws what became of a packet.
func way(t *admin.Traced) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s", t.Time.Local().Format("15:04:05.000000"), t.Flow, t.Verdict)
	if t.Verdict != "sent" && t.Node != "" {
		fmt.Fprintf(&b, " at %s", t.Node)
	}
	if t.Reason != "" {
		fmt.Fprintf(&b, ": %s", t.Reason)
	}
	if t.VIP != "" {
		fmt.Fprintf(&b, "  vip %s", t.VIP)
	}
	if t.Backend != "" {
		fmt.Fprintf(&b, "  backend %s", t.Backend)
	}
	b.WriteByte('\n')
	width, core := 0, 0
	for _, s := range t.Steps {
		width = max(width, len(s.Node))
	}
	for _, s := range t.Steps {
		says := s.Says
		if s.Core != core {
			core = s.Core
			says = strings.TrimSpace(fmt.Sprintf("(core %d) %s", core, says))
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-*s  %s", width, s.Node, says), " ") + "\n")
	}
	return b.String()
}

// ways is a capture that packets are written to, or none.
type ways struct {
	file     *os.File
	w        *pcap.Writer
	in, sent int
}

func newWays(name string) (*ways, error) {
	x := &ways{}
	if name == "" {
		return x, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	x.file, x.w = f, pcap.NewWriter(f, pcap.FormatOf(name))
	x.in, x.sent = x.w.Interface("received"), x.w.Interface("sent")
	return x, nil
}

func (x *ways) put(t *admin.Traced) error {
	if x.file == nil {
		return nil
	}
	var nodes []string
	for _, s := range t.Steps {
		nodes = append(nodes, s.Node)
	}
	comment := strings.Join(nodes, " ") + ": " + strings.Join(strings.Fields(t.Verdict+" "+t.Reason+" "+t.VIP+" "+t.Backend), " ")
	at := t.Time.UnixNano()
	if err := x.w.Write(pcap.Packet{Time: at, Data: t.Before, Interface: x.in, Comment: comment}, pcap.Inbound); err != nil {
		return err
	}
	for _, b := range t.After {
		if err := x.w.Write(pcap.Packet{Time: at, Data: b, Interface: x.sent, Comment: comment}, pcap.Outbound); err != nil {
			return err
		}
	}
	return nil
}

func (x *ways) close() error {
	if x.file == nil {
		return nil
	}
	return errors.Join(x.w.Flush(), x.file.Close())
}
