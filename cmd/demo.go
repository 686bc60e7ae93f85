package cmd

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/internal/demo"
)

func init() { add(newDemo) }

func newDemo(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "demo [FILE]",
		Short: "Show balancers at work, or be their backend, or their load",
		Long: `Makes a client, a router with BIRD, two balancers and their backends in network
namespaces, and runs FILE (lb.hcl by default) on AF_XDP at both balancers. Sends
HTTP and UDP requests; kills a balancer and a backend under open connections and
brings them back; changes the file; and tells what it saw. It cleans up at the end, also after
Ctrl-C, and fails if something that must hold does not. It needs root, and ip,
ethtool, curl and bird (BIRD 2).

FILE has a variable "uplink", the interface of its xdp-rx; a bgp block with a peer
of an IPv4 address, which is the router's; backends with IPv4 addresses; and a VIP
with an IPv4 address, protocol tcp and a port.`,
		Example: `  sudo lbgraph demo
  sudo lbgraph demo lb.hcl`,
		Args: takes("[FILE]"),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		path := "lb.hcl"
		if len(args) > 0 {
			path = args[0]
		}
		const uplink = "uplink"
		l := load(path, lang.Options{Vars: map[string]string{"uplink": uplink}})
		if err := a.tell(l); err != nil {
			return err
		}
		if err := l.err(); err != nil {
			return err
		}
		binary, err := os.Executable()
		if err != nil {
			return err
		}
		return demo.Run(c.Context(), demo.Config{
			Binary: binary, File: l.file, Sources: l.sources, Uplink: uplink, Args: []string{"--var", "uplink=" + uplink}, Out: a.out,
		})
	}
	c.AddCommand(newDemoBackend(a), newDemoFlood(a), newDemoUDP(a))
	return c
}

func newDemoBackend(a *app) *cobra.Command {
	b := demo.Backend{Out: a.out}
	var http, tcp, udp []string
	c := &cobra.Command{
		Use:   "backend",
		Short: "Be a backend: answer HTTP, TCP and UDP with a name",
		Long: `Answers on any number of ports with a name, by which one sees who answered: its own, or
the address and port that was asked. It ends on SIGTERM and Ctrl-C.

HTTP, where field Server is the name, too; HTTP/2 by prior knowledge:
  GET  /          the name, a line; --status, --size and --latency say how
  GET  /bytes/N   N bytes
  GET  /chunks/N  N lines, each a chunk of its own
  GET  /events    server-sent events, one each --every; /events/N ends after N
  GET  /echo      a WebSocket that sends back what it gets
  GET  /status/N  that status
  POST /upload    the name, the number of bytes and their SHA-256 sum
TCP: each line comes back behind the name and a blank.
UDP: a datagram comes back behind the name and a line end.`,
		Example: `  lbgraph demo backend --http 8081-8083
  lbgraph demo backend --name web-1 --http 127.0.0.1:8081 --tcp 127.0.0.1:8091 --udp 127.0.0.1:8081
  lbgraph demo backend --http 8082 --latency 20ms --size 10000 --verbose
  lbgraph demo backend --http 8083 --status 503`,
		Args: takes(),
	}
	c.Flags().StringVar(&b.Name, "name", "", "what it answers with; the address and port that was asked if left out")
	c.Flags().StringArrayVar(&http, "http", nil, "`[address:]port[-port]` to serve HTTP on, 127.0.0.1 without an address; may be given again")
	c.Flags().StringArrayVar(&tcp, "tcp", nil, "`[address:]port[-port]` to serve lines of TCP on; may be given again")
	c.Flags().StringArrayVar(&udp, "udp", nil, "`[address:]port[-port]` to echo datagrams on; may be given again")
	c.Flags().IntVar(&b.Status, "status", 200, "status of GET /, 200 to 599")
	c.Flags().DurationVar(&b.Latency, "latency", 0, "`time` to wait before each answer of HTTP and each line of TCP")
	c.Flags().Int64Var(&b.Size, "size", 0, "`bytes` of the body of GET / at least")
	c.Flags().DurationVar(&b.Every, "every", 0, "`time` between events, a second if left out, and between chunks")
	c.Flags().BoolVarP(&b.Verbose, "verbose", "v", false, "print a line for each request, and each connection of TCP")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if len(http)+len(tcp)+len(udp) == 0 {
			return misuse("say where to listen, as in --http 8081 or --tcp 127.0.0.1:8091")
		}
		switch {
		case b.Status < 200 || b.Status > 599:
			return misuse("--status is %d. It can be 200 to 599", b.Status)
		case b.Size < 0 || b.Size > demo.MaxBytes:
			return misuse("--size is %d. It can be 0 to %d", b.Size, demo.MaxBytes)
		case b.Latency < 0 || b.Every < 0:
			return misuse("--latency and --every are times from 0 on")
		case strings.ContainsAny(b.Name, "\r\n\x00") || strings.TrimSpace(b.Name) != b.Name:
			return misuse("--name is %q. It is part of a line", b.Name)
		}
		if b.HTTP, err = ports("--http", http); err != nil {
			return err
		}
		if b.TCP, err = ports("--tcp", tcp); err != nil {
			return err
		}
		if b.UDP, err = ports("--udp", udp); err != nil {
			return err
		}
		return b.Serve(c.Context())
	}
	return c
}

// ports reads addresses with a port or a range of ports; one without an address is
// on the loopback.
func ports(what string, texts []string) (all []netip.AddrPort, err error) {
	for _, t := range texts {
		wrong := misuse("%s is %q. Write a port, a range or an address with one, as in 8081, 8081-8083 or 127.0.0.1:8081", what, t)
		addr, port := netip.AddrFrom4([4]byte{127, 0, 0, 1}), t
		if i := strings.LastIndexByte(t, ':'); i >= 0 {
			if addr, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(t[:i], "["), "]")); err != nil || addr.Is6() != (t[0] == '[') {
				return nil, wrong
			}
			port = t[i+1:]
		}
		low, high, is := strings.Cut(port, "-")
		if !is {
			high = low
		}
		lo, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return nil, wrong
		}
		hi, err := strconv.ParseUint(high, 10, 16)
		if err != nil || hi < lo || lo == 0 && is {
			return nil, wrong
		}
		if hi-lo >= 1000 {
			return nil, misuse("%s is %q: that is more than 1000 ports", what, t)
		}
		for p := lo; p <= hi; p++ {
			all = append(all, netip.AddrPortFrom(addr, uint16(p)))
		}
	}
	return all, nil
}

func newDemoUDP(a *app) *cobra.Command {
	var count, size, mtu int
	c := &cobra.Command{
		Use:   "udp ADDRESS:PORT",
		Short: "Ask a demo backend by UDP who it is",
		Long: `Sends datagrams, each from a socket of its own, and prints the names that come
back. With --path-mtu it sends one of that size instead, which must not be
fragmented, and prints the path MTU that the network then reports.`,
		Example: `  lbgraph demo udp 203.0.113.80:7 --count 10 --size 64`,
		Args:    takes("ADDRESS:PORT"),
	}
	c.Flags().IntVar(&count, "count", 1, "datagrams to send")
	c.Flags().IntVar(&size, "size", 64, "bytes of each")
	c.Flags().IntVar(&mtu, "path-mtu", 0, "bytes of an IPv4 packet to send unfragmented")
	c.RunE = func(c *cobra.Command, args []string) error {
		to, err := addrPorts("ADDRESS:PORT", args)
		if err != nil {
			return err
		}
		switch {
		case count < 1 || count > 1_000_000:
			return misuse("--count is %d. It can be 1 to 1000000", count)
		case size < 0 || size > 60000:
			return misuse("--size is %d. It can be 0 to 60000", size)
		case mtu != 0 && (mtu < 68 || mtu > 60000):
			return misuse("--path-mtu is %d. It can be 68 to 60000", mtu)
		case mtu != 0:
			known, err := demo.PathMTU(c.Context(), to[0], mtu)
			if err == nil {
				_, err = fmt.Fprintln(a.out, known)
			}
			return err
		}
		return demo.Ask(c.Context(), a.out, to[0], count, size)
	}
	return c
}

func addrPorts(what string, texts []string) (all []netip.AddrPort, err error) {
	for _, t := range texts {
		at, err := netip.ParseAddrPort(t)
		if err != nil {
			return nil, misuse("%s is %q. Write an address and a port, as in 203.0.113.80:80 or [2001:db8::80]:80", what, t)
		}
		all = append(all, at)
	}
	return all, nil
}
