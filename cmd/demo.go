package cmd

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/internal/demo"
)

func init() { add(newDemo) }

func newDemo(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "demo [FILE]",
		Short: "Show balancers at work, in network namespaces of their own",
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
	c.AddCommand(newDemoBackend(), newDemoUDP(a))
	return c
}

func newDemoBackend() *cobra.Command {
	var b demo.Backend
	var http, udp []string
	c := &cobra.Command{
		Use:   "backend",
		Short: "Be a backend: answer HTTP and UDP with a name",
		Long: `Answers GET / with its name, GET /bytes/N with N bytes, POST /upload with its
name, the number of bytes and their SHA-256 sum; and datagrams with its name, a
line end, and what it got. It ends on SIGTERM.`,
		Example: `  lbgraph demo backend --name web-1 --http 127.0.0.1:8081 --udp 127.0.0.1:8081`,
		Args:    takes(),
	}
	c.Flags().StringVar(&b.Name, "name", "backend", "what it answers with")
	c.Flags().StringArrayVar(&http, "http", nil, "`address:port` to serve HTTP on; may be given again")
	c.Flags().StringArrayVar(&udp, "udp", nil, "`address:port` to echo datagrams on; may be given again")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if len(http)+len(udp) == 0 {
			return misuse("say where to listen: --http ADDRESS:PORT or --udp ADDRESS:PORT")
		}
		if b.HTTP, err = addrPorts("--http", http); err != nil {
			return err
		}
		if b.UDP, err = addrPorts("--udp", udp); err != nil {
			return err
		}
		return b.Serve(c.Context())
	}
	return c
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
