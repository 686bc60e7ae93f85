package cmd

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/xsk"
)

func init() { add(newDecap) }

func newDecap(a *app) *cobra.Command {
	var dev, kinds, mode string
	var to []string
	var port uint16
	var replace bool
	c := &cobra.Command{
		Use:   "decap --interface NAME",
		Short: "Take the tunnels' headers off on a backend",
		Long: `Attaches a small program to an interface of a backend. It takes the outer headers
off packets that the balancer sent through a tunnel and leaves the inner ones to the
kernel, which needs no tunnel device then, only the VIPs on its loopback. It runs
until SIGTERM or SIGINT, and prints what it counted.

GRE is taken off with its 4-byte header alone, GUE as variant 0 without options.
Other packets pass as they are, fragments of tunnelled packets too; tunnelled packets
whose headers contradict each other drop.`,
		Example: `  lbgraph decap --interface eth0
  lbgraph decap --interface eth0 --address 10.0.1.1 --kinds gre --mode tc`,
		Args: takes(),
	}
	f := c.Flags()
	f.StringVar(&dev, "interface", "", "`name` of the interface")
	f.StringArrayVar(&to, "address", nil, "`address` that tunnels lead to, or any; may be given again (the interface's own)")
	f.StringVar(&kinds, "kinds", bpf.AllTunnels.String(), "`kinds` of tunnel, separated by commas")
	f.StringVar(&mode, "mode", "xdp", "where it runs: `xdp, native, generic or tc`; xdp is native where the driver can, else generic")
	f.Uint16Var(&port, "gue-port", bpf.GUEPort, "UDP `port` of GUE")
	f.BoolVar(&replace, "replace-xdp", false, "take a foreign XDP program off the interface instead of refusing to start")
	c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"xdp", "native", "generic", "tc"}, cobra.ShellCompDirectiveNoFileComp))
	asJSON := output(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		o := bpf.DecapOptions{GUEPort: port, Replace: replace}
		switch mode {
		case "xdp":
		case "native", "generic":
			o.Mode = bpf.Mode(mode)
		case "tc":
			o.TC = true
		default:
			return misuse("--mode is %q. It is xdp, native, generic or tc", mode)
		}
		if o.Tunnels, err = bpf.ParseTunnels(kinds); err != nil {
			return misuse("--kinds: %w", err)
		}
		if dev == "" {
			return misuse("say on which interface: --interface NAME")
		}
		if port == 0 {
			return misuse("--gue-port is 0. It is a port from 1 to 65535")
		}
		if o.Addresses, err = outer(dev, to); err != nil {
			return err
		}
		i, err := net.InterfaceByName(dev)
		if err != nil {
			return refused("interface %s: %w", dev, xsk.ErrNoInterface)
		}
		o.Interface = i.Index
		d, err := bpf.AttachDecap(o)
		if err != nil {
			return refused("interface %s: %w", dev, err)
		}
		defer d.Close()
		if d.Refused != nil {
			fmt.Fprintf(a.err, "lbgraph: native XDP is not to be had: %v\n", d.Refused)
		}
		addrs := "any address"
		if o.Addresses != nil {
			addrs = strings.Trim(fmt.Sprint(o.Addresses), "[]")
		}
		fmt.Fprintf(a.err, "%s to %s is taken off on %s (%s)\n", o.Tunnels, addrs, dev, d.Mode)
		look := time.NewTicker(time.Second)
		defer look.Stop()
		for err == nil && c.Context().Err() == nil {
			select {
			case <-c.Context().Done():
			case <-look.C:
				if !d.Alive() {
					err = refused("interface %s: the program is gone", dev)
				}
			}
		}
		n, e := d.Counts()
		if e != nil {
			return e
		}
		if js {
			e = a.json(decapJSON(n), nil)
		} else {
			e = a.decapText(n)
		}
		if err == nil {
			err = e
		}
		return err
	}
	return c
}

// outer answers the addresses that tunnels lead to: nil for any, the interface's
// own if none is named.
func outer(dev string, names []string) (all []netip.Addr, err error) {
	if len(names) == 1 && names[0] == "any" {
		return nil, nil
	}
	for _, n := range names {
		a, err := netip.ParseAddr(n)
		if err != nil || a.Zone() != "" {
			return nil, misuse("--address is %q. It is an IPv4 or IPv6 address, or any alone", n)
		}
		all = append(all, a)
	}
	if len(names) > 0 {
		return all, nil
	}
	if all, err = xsk.Addresses(dev); err != nil {
		return nil, refused("%w", err)
	}
	if len(all) == 0 {
		return nil, refused("interface %s has no address: say which tunnels lead to, --address ADDRESS", dev)
	}
	return all, nil
}

type decapCount struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// decapJSON answers the counters by name.
func decapJSON(n bpf.DecapCounts) any {
	by := func(in map[string]bpf.Count) map[string]decapCount {
		out := map[string]decapCount{}
		for name, c := range in {
			out[name] = decapCount(c)
		}
		return out
	}
	stripped := map[string]bpf.Count{}
	for k, c := range n.Stripped {
		stripped[k.String()] = c
	}
	return struct {
		Stripped map[string]decapCount `json:"stripped"`
		Dropped  map[string]decapCount `json:"dropped"`
		Passed   map[string]decapCount `json:"passed"`
	}{by(stripped), by(n.Dropped), by(n.Passed)}
}

// decapText prints the kinds of tunnel, and of the reasons those that occurred.
func (a *app) decapText(n bpf.DecapCounts) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(n.Stripped)) {
		fmt.Fprintf(&b, "%-8s %-13s %12d packets %15d bytes\n", "stripped", k, n.Stripped[k].Packets, n.Stripped[k].Bytes)
	}
	for _, s := range []struct {
		verb string
		of   map[string]bpf.Count
	}{{"dropped", n.Dropped}, {"passed", n.Passed}} {
		for _, reason := range slices.Sorted(maps.Keys(s.of)) {
			if c := s.of[reason]; c.Packets > 0 {
				fmt.Fprintf(&b, "%-8s %-13s %12d packets %15d bytes\n", s.verb, reason, c.Packets, c.Bytes)
			}
		}
	}
	_, err := fmt.Fprint(a.out, b.String())
	return err
}
