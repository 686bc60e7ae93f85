package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Tunnels is a set of kinds of tunnel.
type Tunnels uint32

// The kinds of tunnel that Decap knows.
const (
	GRE  Tunnels = 1 << iota // RFC 2784 with the 4-byte header
	IPIP                     // IP in IP, all four pairs of families
	GUE                      // Generic UDP Encapsulation, variant 0, without options

	AllTunnels = GRE | IPIP | GUE
)

var tunnelNames = [...]string{"gre", "ipip", "gue"}

// String lists the kinds as ParseTunnels reads them.
func (k Tunnels) String() string {
	var names []string
	for i, n := range tunnelNames {
		if k&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, ",")
}

// ParseTunnels reads kinds of tunnel separated by commas: gre, ipip, gue.
func ParseTunnels(s string) (k Tunnels, err error) {
next:
	for _, w := range strings.Split(s, ",") {
		for i, n := range tunnelNames {
			if strings.TrimSpace(w) == n {
				k |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("tunnel %q: it is gre, ipip or gue", strings.TrimSpace(w))
	}
	return k, nil
}

// DecapOptions say what is taken off, and where.
type DecapOptions struct {
	Interface int          // its index, in the namespace of the calling thread
	Addresses []netip.Addr // what outer packets must be sent to; nil is any
	Tunnels   Tunnels
	GUEPort   uint16 // 0 is GUEPort
	// TC runs at the TC ingress hook and not at XDP's: for drivers whose XDP does
	// not do, and where other XDP programs stand.
	TC      bool
	Mode    Mode // of XDP; "" is Auto
	Replace bool // takes an XDP program of somebody else off

	clsact bool // in tests: as before Linux 6.6
}

// A Decap takes tunnels' headers off what comes in by one interface. It ends with
// Close or with the process, but for TC before Linux 6.6: what a killed process left
// there is taken over by the next.
type Decap struct {
	objs *ebpf.Collection
	link link.Link // at XDP
	tc   *tcHook
	// Mode says where it runs: "native", "generic", "tc".
	Mode string
	// Refused is why native mode did not do where Auto fell back to generic.
	Refused error
}

// AttachDecap loads the program and attaches it.
func AttachDecap(o DecapOptions) (*Decap, error) {
	d := &Decap{}
	if err := d.attach(o); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Decap) attach(o DecapOptions) error {
	if err := d.load(o); err != nil {
		return fmt.Errorf("loading the decapsulation program: %w", explain(err))
	}
	if o.TC {
		var err error
		if d.tc, err = attachTC(d.objs.Programs["lbgraph_dectc"], "lbgraph_dectc", o.Interface, false, o.clsact); err != nil {
			return fmt.Errorf("attaching to TC: %w", explain(err))
		}
		d.Mode = "tc"
		return nil
	}
	if o.Mode == "" {
		o.Mode = Auto
	}
	p := d.objs.Programs
	a, err := attach(p["lbgraph_decap"], p["lbgraph_decaps"], AttachOptions{Interface: o.Interface, Mode: o.Mode, Replace: o.Replace})
	if err != nil {
		return err
	}
	d.link, d.Mode, d.Refused = a.link, string(a.Mode), a.Refused
	return nil
}

func (d *Decap) load(o DecapOptions) error {
	_ = rlimit.RemoveMemlock()
	spec, err := loadDecap()
	if err != nil {
		return err
	}
	if o.GUEPort == 0 {
		o.GUEPort = GUEPort
	}
	for name, x := range map[string]any{
		"kinds": uint32(o.Tunnels), "any": b2u(o.Addresses == nil), "gue_port": o.GUEPort,
	} {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("the object has no variable %s", name)
		}
		if err := v.Set(x); err != nil {
			return err
		}
	}
	if d.objs, err = ebpf.NewCollection(spec); err != nil && !errors.Is(err, unix.EPERM) {
		delete(spec.Programs, "lbgraph_decaps") // Linux < 5.18
		d.objs, err = ebpf.NewCollection(spec)
	}
	if err != nil {
		return err
	}
	for _, a := range o.Addresses {
		if err := d.objs.Maps["addresses"].Put(words(a), uint32(1)); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// Alive tells whether the program still stands on the interface: that may have
// gone, or somebody may have taken the program off. Of TC before Linux 6.6 it does
// not know.
func (d *Decap) Alive() bool {
	if d.tc != nil {
		return d.tc.alive()
	}
	if d.link == nil {
		return false
	}
	info, err := d.link.Info()
	return err == nil && info.XDP() != nil && info.XDP().Ifindex != 0
}

// DecapCounts is what a Decap counted, by name.
type DecapCounts struct {
	// Stripped is packets whose outer header was taken off, by kind of tunnel.
	Stripped map[Tunnels]Count
	// Dropped is tunnelled packets that contradict themselves, by reason.
	Dropped map[string]Count
	// Passed is tunnelled packets left to the kernel as they are, by reason.
	Passed map[string]Count
}

// decapReasons are the counters behind those of the kinds, in the order of the
// enum in decap.c; the first so many of them drop.
var decapReasons = [...]string{"truncated", "bad_length", "bad_checksum", "bad_inner", "bad_ecn", "fragment", "options", "unable"}

const decapDrops = 5

// Counts reads the counters.
func (d *Decap) Counts() (DecapCounts, error) {
	c := DecapCounts{Stripped: map[Tunnels]Count{}, Dropped: map[string]Count{}, Passed: map[string]Count{}}
	for i := range len(tunnelNames) + len(decapReasons) {
		var all []decapCount
		if err := d.objs.Maps["counts"].Lookup(uint32(i), &all); err != nil {
			return c, fmt.Errorf("reading counters: %w", err)
		}
		var sum Count
		for _, x := range all {
			sum.Packets += x.Packets
			sum.Bytes += x.Bytes
		}
		switch reason := i - len(tunnelNames); {
		case reason < 0:
			c.Stripped[1<<i] = sum
		case reason < decapDrops:
			c.Dropped[decapReasons[reason]] = sum
		default:
			c.Passed[decapReasons[reason]] = sum
		}
	}
	return c, nil
}

// Close takes the program off. It may be called again.
func (d *Decap) Close() error {
	var err error
	defer func() { *d = Decap{Mode: d.Mode, Refused: d.Refused} }()
	if d.link != nil {
		err = d.link.Close()
	}
	if d.tc != nil {
		err = errors.Join(err, d.tc.close())
	}
	if d.objs != nil {
		d.objs.Close()
	}
	return err
}
