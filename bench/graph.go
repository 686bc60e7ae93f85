package bench

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/runtime"
)

// A Sample is the graph that is measured where no file is named: that of lb.hcl, with
// more backends.
type Sample struct {
	Entries  int // of the connection table
	Pools    int
	Backends int // of each pool
	VIPs     int // addresses, each with the ports 80 and 443, spread over the pools
	// Main is the main path; nil is all of it. Paths are further lines of the path
	// block, Nodes further node blocks.
	Main         []string
	Paths, Nodes string
	Cores        int
}

// NewSample is the sample with a hundred backends and a table for so many flows.
func NewSample(flows int) Sample {
	s := Sample{Entries: 131072, Pools: 1, Backends: 100, VIPs: 1, Cores: 1}
	for s.Entries < flows {
		s.Entries *= 2
	}
	return s
}

// mainPath is the way of most packets in the sample.
var mainPath = []string{"rx", "parse", "vip-classify", "frag-pin", "ct.hit", "clamp", "mtu", "gre", "tx"}

// Text answers the sample as a file.
func (s Sample) Text() string {
	var b strings.Builder
	for p := range s.Pools {
		fmt.Fprintf(&b, "pool \"pool-%d\" {\n", p)
		for i := range s.Backends {
			n := p*s.Backends + i
			fmt.Fprintf(&b, "  backend \"b-%d\" { address = \"10.%d.%d.%d\" }\n", i, n>>16&0xff+1, n>>8&0xff, n&0xff)
		}
		b.WriteString("}\n")
	}
	for i := range s.VIPs {
		fmt.Fprintf(&b, "vip \"vip-%d\" {\n  address = \"203.%d.%d.%d\"\n  protocol = \"tcp\"\n  ports = [80, 443]\n  pool = pool.pool-%d\n}\n",
			i, i>>16&0xff, i>>8&0xff, i&0xff, i%s.Pools)
	}

	path := s.Main
	if path == nil {
		path = mainPath
	}
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			return !slices.ContainsFunc(path, func(p string) bool { return node(p) == name })
		})
	}
	last := path[len(path)-1]
	fmt.Fprintf(&b, "graph \"sample\" {\n  cores = %d\n  path {\n    main = [%s]\n", s.Cores, strings.Join(path, ", "))
	if at := slices.Index(path, "ct.hit"); at >= 0 && at+1 < len(path) {
		fmt.Fprintf(&b, "    new_flow = [ct.miss, maglev-select, %s]\n", node(path[at+1]))
	}
	if has("parse", "vip-classify", "frag-pin", "mtu") {
		b.WriteString("    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]\n")
	}
	if has("parse", "vip-classify", "ct") {
		fmt.Fprintf(&b, "    icmp = [parse.icmp, vip-classify.icmp, icmp-vip, ct]\n    echo = [icmp-vip.reply, %s]\n", last)
	}
	if has("mtu") {
		fmt.Fprintf(&b, "    too_big = [mtu.reply, %s]\n", last)
	}
	b.WriteString(s.Paths)
	b.WriteString("  }\n")
	for _, n := range []struct{ kind, name, args string }{
		{"xdp-rx", "rx", `interface = "bench"`},
		{"conntrack", "ct", fmt.Sprintf("entries = %d\n    timeouts { tcp_established = \"2h\" }", s.Entries)},
		{"mss-clamp", "clamp", ""},
		{"mtu-check", "mtu", "icmp_rate = 1000000\n    icmp_burst = 1000000"},
		{"gre-encap", "gre", ""},
		{"xdp-tx", "tx", `interface = "bench"`},
	} {
		if has(n.name) {
			fmt.Fprintf(&b, "  node %q %q {\n    %s\n  }\n", n.kind, n.name, n.args)
		}
	}
	b.WriteString(s.Nodes)
	b.WriteString("}\n")
	return b.String()
}

// node answers the node of an element of a path.
func node(element string) string {
	name, _, _ := strings.Cut(element, ".")
	return name
}

// Load reads and checks the sample.
func (s Sample) Load() (*graph.File, error) { return load(s.Text()) }

func load(text string) (*graph.File, error) {
	f, diags := lang.LoadBytes("sample.hcl", []byte(text), lang.Options{})
	if diags.HasErrors() {
		return nil, diags
	}
	if diags = graph.Check(f); diags.HasErrors() {
		return nil, diags
	}
	return f, nil
}

// info is what the interfaces of the bench say of themselves.
var info = graph.PortInfo{
	MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 1},
	Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:f::1")},
}

// frames is how many packets a slice has: their headers stay in the second-level
// cache.
const frames = 512

// An Engine is a graph that is measured.
type Engine struct {
	*runtime.Engine
	Graph *graph.Graph
	Store *state.Store
	port  *Port // that packets come by; nil where a source makes its own
	load  *Traffic
	cold  bool
}

// NewEngine makes an engine of the first packet graph of f, whose interfaces are the
// bench's: the first receives the packets of l, up to batch at a time. cold takes
// headers out of the caches before they are received.
func NewEngine(f *graph.File, l Load, batch int, cold bool) (e *Engine, err error) {
	e = &Engine{Store: state.NewStore(), cold: cold}
	defer func() {
		if err != nil {
			e.Close()
			e = nil
		}
	}()
	for _, g := range f.Graphs {
		if g.Plane == graph.PacketPlane {
			e.Graph = g
			break
		}
	}
	if e.Graph == nil {
		return e, fmt.Errorf("%s holds no graph block", f.Path)
	}
	if err := e.Store.Apply(f.Spec); err != nil {
		return e, err
	}
	d := &driver{info: info, frames: frames, batch: batch}
	e.Engine, err = runtime.New(e.Graph, runtime.Options{
		State: e.Store.Cell(), Watch: e.Store.Watch, Manual: true,
		Drivers: map[string]runtime.Driver{"xdp": d, "gen": genDriver{}, "pcap": pcapDriver{}},
		Memory: func(frames, chunk int) (runtime.Memory, error) {
			return umem.New(frames, uint32(chunk), false)
		},
	})
	if err != nil {
		return e, err
	}
	e.load, err = NewTraffic(l, e.Store.Cell().Load(), info.MAC)
	if err != nil {
		return e, err
	}
	for _, n := range e.Graph.Nodes {
		if e.port != nil || !n.Kind.Source {
			continue
		}
		for _, s := range n.Kind.Ports(n.Config) {
			if i := slices.IndexFunc(d.ports, func(p *Port) bool { return s.Driver == "xdp" && p.info.Name == s.Name }); i >= 0 {
				e.port = d.ports[i]
			}
		}
	}
	for range 4 * frames / 64 {
		e.Step(0) // frames come to the port
	}
	return e, nil
}

// Close ends the engine.
func (e *Engine) Close() {
	if e.Engine != nil {
		e.Stop()
	}
	e.Store.Close()
}

// arm writes the packets of the next slice. Where all are new, the graph forgets its
// flows once there were as many as the load says.
func (e *Engine) arm() int {
	if e.port == nil {
		return 0
	}
	if e.load.over() {
		e.Flush(0)
	}
	// What the slice before sent last still waits to be taken back: a step without
	// packets does that, so that all frames are here again.
	e.Step(0)
	return e.port.Arm(e.load, e.cold)
}

// run moves them through the graph.
func (e *Engine) run() {
	if e.Cores() == 1 && e.port != nil {
		for e.port.Left() > 0 {
			e.Step(0)
		}
		return
	}
	if e.port == nil { // a source that makes its own packets
		for range frames / 64 {
			for c := range e.Cores() {
				e.Step(c)
			}
		}
		return
	}
	for busy := true; busy; {
		busy = false
		for c := range e.Cores() {
			busy = e.Step(c) || busy
		}
	}
}

// Warm makes all flows known to the graph, and its caches warm.
func (e *Engine) Warm() {
	if e.port == nil {
		return
	}
	percent, cold := e.load.NewFlows, e.cold
	e.load.NewFlows, e.cold = 0, false
	if percent < 100 {
		// Begun, acknowledged, and once more.
		e.load.phase = opening
		for range 3 {
			for n := 0; n < e.load.Flows; n += frames {
				e.arm()
				e.run()
			}
			e.load.phase = going
		}
	}
	e.load.NewFlows, e.cold = percent, cold
}
