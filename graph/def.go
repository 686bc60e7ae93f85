package graph

import (
	"fmt"
	"net/netip"
	"sort"

	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Plane tells what a kind works on.
type Plane uint8

// The three planes.
const (
	PacketPlane Plane = iota + 1
	StreamPlane
	ControlPlane
)

// String answers packet, stream or control.
func (p Plane) String() string { return [...]string{"", "packet", "stream", "control"}[p] }

// Fate is what becomes of packets that leave by an output for which the file
// draws no edge.
type Fate uint8

const (
	// Must: the file has to draw the edge.
	Must Fate = iota
	// Drop: they drop; the output's name is the reason.
	Drop
	// Punt: they go to the kernel where there is a way, else drop as no_punt.
	Punt
)

// String answers must, drop or punt.
func (f Fate) String() string { return [...]string{"must", "drop", "punt"}[f] }

// An Output is a way out of a node.
type Output struct {
	Name           string
	Only           Facts // held on entry by every packet that leaves here
	Gives, Removes Facts
	Else           Fate
	Reply          bool // the packet goes back to where it came from
	// Status is what a request that ends here is answered with; streams only. 0
	// closes the connection.
	Status int
	Doc    string
	// Without is what to write in the node so that it does not give what it gives; for
	// diagnostics. "" if it always does.
	Without string
}

// A Counter is something counted that is no drop.
type Counter struct{ Name, Doc string }

// Def says everything about a kind of node. C is its configuration: a struct
// whose fields carry the tags that package conf describes; struct{} for none.
type Def[C any] struct {
	Kind    string
	Summary string // one sentence without full stop
	Source  bool   // begins a pipeline

	Needs, Forbids Facts // must hold, must not hold, on every packet that arrives
	Outputs        []Output
	// OutputsOf answers outputs that the configuration names, or that exist only
	// if it asks for them; they follow Outputs.
	OutputsOf func(C) []Output
	Counters  []Counter
	// Headroom is the bytes written in front of the frame.
	Headroom int
	// Overhead answers the bytes added to a packet, by the outer family.
	Overhead func(C) (v4, v6 int)
	// Frames answers how many frames a core may hold, and make in one pass.
	Frames func(C) (holds, makes int)
	// TakesOverhead tells that the kind works with the bytes that encapsulation
	// behind it adds (Env.Overhead4 and 6): the checker sees to it that they are
	// the same on every way.
	TakesOverhead bool
	// Guards tells that what leaves the kind fits the network's MTU once it is
	// encapsulated. The checker warns of encapsulated packets that passed no guard.
	Guards bool
	// Interface answers the interface that a source receives from or a sink sends
	// to; "" where replies may leave whatever interface they came by. The checker
	// sees to it that replies leave by the interface they came by.
	Interface func(C) string
	// Ports answers the ports that the kind will ask Env.Port for: the Engine
	// sizes its memory and counts its cores before it opens any.
	Ports func(C) []PortSpec
	// Cores answers the least number of cores that the kind works on.
	Cores func(C) int
	// Ring answers the entries that each ring between two cores needs.
	Ring func(C) int
	// Tunnel answers where the outer headers that the kind writes come from, besides
	// the interfaces' own addresses, and the UDP port they lead to; 0 if they are no
	// UDP. ICMP errors about them are the balancer's.
	Tunnel func(C) (sources []netip.Prefix, udp uint16)
	// Wants answers the control kind that has to stand in the file, and the argument
	// that asks for it as it stands there; "" for none.
	Wants func(C) (control, argument string)
	// Includes answers the files with more pools and VIPs that a control's block
	// names, as it names them: they are read with the configuration.
	Includes func(C) []string

	Defaults C
	// Check looks at what tags cannot say. It answers a sentence for the operator; by
	// BadArgument where one argument is at fault, for the diagnostic to point at.
	Check func(C) error
	// Single allows one instance of the kind in a file.
	Single bool
	// Writes tells that a packet kind writes what it sees to a file of its own and
	// lets all pass by its first output: trace leaves it out.
	Writes bool
	// Live tells that a control takes a changed configuration while it runs: it is a
	// Reconfigurer, and may be added and removed by a reload.
	Live bool

	// Peers answers addresses that the node must be able to reach: no VIP may cover
	// them.
	Peers func(C) []netip.Addr

	// Listens answers the sockets that a source of the stream plane accepts
	// connections from. The runtime owns them.
	Listens func(C) []Listen
	// Dials answers the pool whose backends the kind has connected to, and the port of
	// those that have none in the pool; 0 if each must have its own.
	Dials func(C) (pool string, port int)

	// Exactly one of these builds the kind, and says its plane. What Streams answers
	// may have the optional methods of stages.
	Packets func(C, *Env) (Maker, error)
	Streams func(C, *Env) (stream.Stage, error)
	Control func(C, *Env) (Control, error)
}

// Register makes a kind known. It is called from init functions; a programmer's
// mistake panics.
func Register[C any](d Def[C]) {
	k, err := newKind(d)
	if err != nil {
		panic(fmt.Sprintf("graph.Register(%q): %v", d.Kind, err))
	}
	if _, twice := kinds[k.Name]; twice {
		panic(fmt.Sprintf("graph.Register(%q): registered twice", d.Kind))
	}
	kinds[k.Name] = k
}

var kinds = map[string]*Kind{}

// Lookup answers the kind of that name, or nil.
func Lookup(name string) *Kind { return kinds[name] }

// Kinds answers all registered kinds, by name.
func Kinds() []*Kind {
	all := make([]*Kind, 0, len(kinds))
	for _, k := range kinds {
		all = append(all, k)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Kind is a registered Def, without its type parameter.
type Kind struct {
	Name, Summary  string
	Plane          Plane
	Source, Single bool
	Live, Writes   bool
	Needs, Forbids Facts
	Outputs        []Output
	Counters       []Counter
	Headroom       int
	TakesOverhead  bool
	Guards         bool

	// NewConfig answers a pointer to a new copy of the defaults.
	NewConfig func() any
	// The functions below take what NewConfig answered, filled in.
	CheckConfig func(any) error
	OutputsOf   func(any) []Output // all outputs, Outputs first
	Overhead    func(any) (v4, v6 int)
	Frames      func(any) (holds, makes int)
	Ports       func(any) []PortSpec
	Cores       func(any) int
	Ring        func(any) int
	Tunnel      func(any) (sources []netip.Prefix, udp uint16)
	Peers       func(any) []netip.Addr
	Wants       func(any) (control, argument string)
	Includes    func(any) []string // nil where the kind includes no files
	Interface   func(any) string
	Packets     func(any, *Env) (Maker, error)
	Listens     func(any) []Listen
	Dials       func(any) (pool string, port int) // nil where the kind chooses no backend
	Streams     func(any, *Env) (stream.Stage, error)
	Control     func(any, *Env) (Control, error)
}

// Sink tells that packets end here: the kind has no output with an edge to draw.
func (k *Kind) Sink() bool {
	for _, o := range k.Outputs {
		if o.Else == Must {
			return false
		}
	}
	return true
}

func newKind[C any](d Def[C]) (*Kind, error) {
	if d.Kind == "" || d.Summary == "" {
		return nil, fmt.Errorf("kind and summary are required")
	}
	builders := 0
	for _, given := range []bool{d.Packets != nil, d.Streams != nil, d.Control != nil} {
		if given {
			builders++
		}
	}
	if builders != 1 {
		return nil, fmt.Errorf("exactly one of Packets, Streams and Control builds a kind")
	}
	if d.Listens != nil && (d.Streams == nil || !d.Source) {
		return nil, fmt.Errorf("only a source of the stream plane listens")
	}
	k := &Kind{
		Name: d.Kind, Summary: d.Summary, Source: d.Source, Single: d.Single, Live: d.Live, Writes: d.Writes,
		Needs: d.Needs, Forbids: d.Forbids, Outputs: d.Outputs, Counters: d.Counters, Headroom: d.Headroom,
		TakesOverhead: d.TakesOverhead, Guards: d.Guards,
	}
	seen := map[string]bool{}
	for _, o := range d.Outputs {
		if o.Name == "" || seen[o.Name] {
			return nil, fmt.Errorf("output %q: names are required and unique", o.Name)
		}
		seen[o.Name] = true
		if o.Gives&o.Removes != 0 {
			return nil, fmt.Errorf("output %q gives and removes %s", o.Name, o.Gives&o.Removes)
		}
	}
	if d.Needs&d.Forbids != 0 {
		return nil, fmt.Errorf("needs and forbids %s", d.Needs&d.Forbids)
	}
	if err := conf.Verify(&d.Defaults); err != nil {
		return nil, err
	}
	k.NewConfig = func() any { c := d.Defaults; return &c }
	k.CheckConfig = func(c any) error {
		if d.Check == nil {
			return nil
		}
		return d.Check(*c.(*C))
	}
	k.OutputsOf = func(c any) []Output {
		if d.OutputsOf == nil {
			return d.Outputs
		}
		return append(append([]Output(nil), d.Outputs...), d.OutputsOf(*c.(*C))...)
	}
	k.Overhead = func(c any) (int, int) {
		if d.Overhead == nil {
			return 0, 0
		}
		return d.Overhead(*c.(*C))
	}
	k.Frames = func(c any) (int, int) {
		if d.Frames == nil {
			return 0, 0
		}
		return d.Frames(*c.(*C))
	}
	k.Interface = func(c any) string {
		if d.Interface == nil {
			return ""
		}
		return d.Interface(*c.(*C))
	}
	k.Ports = func(c any) []PortSpec {
		if d.Ports == nil {
			return nil
		}
		return d.Ports(*c.(*C))
	}
	k.Peers = func(c any) []netip.Addr {
		if d.Peers == nil {
			return nil
		}
		return d.Peers(*c.(*C))
	}
	k.Tunnel = func(c any) ([]netip.Prefix, uint16) {
		if d.Tunnel == nil {
			return nil, 0
		}
		return d.Tunnel(*c.(*C))
	}
	k.Ring = func(c any) int {
		if d.Ring == nil {
			return 0
		}
		return d.Ring(*c.(*C))
	}
	k.Wants = func(c any) (string, string) {
		if d.Wants == nil {
			return "", ""
		}
		return d.Wants(*c.(*C))
	}
	if d.Includes != nil {
		k.Includes = func(c any) []string { return d.Includes(*c.(*C)) }
	}
	k.Cores = func(c any) int {
		if d.Cores == nil {
			return 1
		}
		return d.Cores(*c.(*C))
	}
	k.Listens = func(c any) []Listen {
		if d.Listens == nil {
			return nil
		}
		return d.Listens(*c.(*C))
	}
	if d.Dials != nil {
		k.Dials = func(c any) (string, int) { return d.Dials(*c.(*C)) }
	}
	switch {
	case d.Packets != nil:
		k.Plane = PacketPlane
		k.Packets = func(c any, e *Env) (Maker, error) { return d.Packets(*c.(*C), e) }
	case d.Streams != nil:
		k.Plane = StreamPlane
		k.Streams = func(c any, e *Env) (stream.Stage, error) { return d.Streams(*c.(*C), e) }
	default:
		k.Plane = ControlPlane
		k.Control = func(c any, e *Env) (Control, error) { return d.Control(*c.(*C), e) }
	}
	return k, nil
}

// An ArgumentError is what Def.Check says of one argument.
type ArgumentError struct {
	// Argument is its path in the block, as in "key", "rule.api.host" (blocks with
	// labels) and "certificate[1].key" (blocks without).
	Argument string
	Err      error
}

// Error answers the sentence.
func (e *ArgumentError) Error() string { return e.Err.Error() }

// Unwrap answers the cause.
func (e *ArgumentError) Unwrap() error { return e.Err }

// BadArgument makes an ArgumentError of a sentence.
func BadArgument(argument, format string, args ...any) error {
	return &ArgumentError{argument, fmt.Errorf(format, args...)}
}
