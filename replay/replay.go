// Package replay runs a file's packet graph on captures: every xdp-rx is fed from
// capture files, one a queue, and what is sent is written to another. It needs no
// host and no privilege, and the same captures always give the same result: all
// loops run on one goroutine, and the time is the captures'.
//
// A vector is up to 64 packets of one queue and one time, which is its clock. Ticks
// that are due earlier run first: every 10 ms while a node holds a packet, else every
// 100 ms as in a sleeping loop. What the cores pass each other is worked off
// before the next vector. Of packets of the same time those of the lower queue come
// first. At the end time stops: what is held then is held.
//
// The admission rule, which an XDP program applies in front of the sockets, is
// applied to every packet first.
package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/runtime"
)

// An Input is a capture for one queue of an interface.
type Input struct {
	Interface string // "" if the graph receives from one only
	File      string
}

// Options says what is replayed.
type Options struct {
	Graph string  // name of the graph; "" if the file has one packet graph
	In    []Input // the first of an interface is its queue 0, and so on
	// Out takes what is sent, in the given format; nil forgets it.
	Out    io.Writer
	Format pcap.Format
	// Down names backends that count as dead: POOL/NAME, or an address. All others
	// count as healthy.
	Down []string
	// Addrs are the addresses of all interfaces; nil is 192.0.2.1 and 2001:db8::1.
	Addrs []netip.Addr
	Log   *zap.Logger
}

// Addresses that interfaces have in a replay which says nothing of them.
var (
	defaultAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	defaultMAC   = [6]byte{2, 0, 0, 0, 0, 1}
)

// An ErrOption is a mistake in Options.
type ErrOption string

func (e ErrOption) Error() string { return string(e) }

// Run replays captures on a checked file.
func Run(f *graph.File, o Options) (*Result, error) {
	g, err := choose(f, o.Graph)
	if err != nil {
		return nil, err
	}
	if o.Addrs == nil {
		o.Addrs = defaultAddrs
	}
	r := &run{graph: g, opts: o}
	defer r.close()
	if err := r.openInputs(); err != nil {
		return nil, err
	}
	if o.Out != nil {
		r.out = pcap.NewWriter(o.Out, o.Format)
	}
	store := state.NewStore()
	defer store.Close()
	if err := store.Apply(f.Spec); err != nil {
		return nil, err
	}
	if err := takeDown(store, o.Down); err != nil {
		return nil, err
	}
	r.snap = store.Cell().Load()
	var tunnels []netip.Prefix
	for _, a := range o.Addrs {
		tunnels = append(tunnels, netip.PrefixFrom(a, a.BitLen()))
	}
	if r.rules, err = bpf.RulesOf(f.Spec, tunnels); err != nil {
		return nil, err
	}
	_, r.clock = r.earliest()
	e, err := runtime.New(g, runtime.Options{
		State: store.Cell(), Watch: store.Watch, Log: o.Log, Manual: true,
		Drivers: map[string]runtime.Driver{"xdp": r, "pcap": r, "gen": r},
		Memory: func(frames, chunk int) (runtime.Memory, error) {
			return umem.Heap(frames, uint32(chunk))
		},
		Clock: func() int64 { return r.clock },
	})
	if err != nil {
		return nil, err
	}
	defer e.Stop()
	e.Observe(r)
	r.engine = e
	if err := r.play(); err != nil {
		return nil, err
	}
	return r.result()
}

// choose finds the packet graph to be replayed.
func choose(f *graph.File, name string) (*graph.Graph, error) {
	var names []string
	var found *graph.Graph
	for _, g := range f.Graphs {
		if g.Plane != graph.PacketPlane {
			continue
		}
		names = append(names, g.Name)
		if name == "" || g.Name == name {
			found = g
		}
	}
	switch {
	case len(names) == 0:
		return nil, ErrOption("the file has no packet graph")
	case found == nil:
		return nil, ErrOption(fmt.Sprintf("there is no packet graph %q. The file has %s", name, strings.Join(names, ", ")))
	case name == "" && len(names) > 1:
		return nil, ErrOption("the file has several packet graphs: choose one of " + strings.Join(names, ", "))
	}
	return found, nil
}

// takeDown makes backends count as dead.
func takeDown(store *state.Store, names []string) error {
	s := store.Cell().Load()
	for _, name := range names {
		found := false
		var all []string
		for i := range s.Pools {
			p := &s.Pools[i]
			for _, m := range p.Members {
				if m.Backend == 0 {
					continue
				}
				full := p.Name + "/" + m.Name
				all = append(all, full)
				if name == full || name == s.Backends[m.Backend].Addr.String() {
					store.SetStatus(m.Backend, state.Down)
					found = true
				}
			}
		}
		if !found {
			return ErrOption(fmt.Sprintf("there is no backend %q. The file has %s", name, strings.Join(all, ", ")))
		}
	}
	store.Flush()
	return nil
}

// source is one capture. It is the mem.Source of its queue, and gives packets only
// while it is the run's open one.
type source struct {
	*pcap.File
	run   *run
	queue int
	node  string // of the kind that receives; for packets that it never sees
	admit bool   // an XDP program would decide first
	last  int64  // time of the latest packet
	front int    // number of the packet in front, 0 before it is looked at
}

// at answers the time of the packet in front, which is not before those that came
// earlier in the capture.
func (s *source) at() (at int64, ok bool) {
	p, ok := s.Packet()
	return max(p.Time, s.last), ok
}

// Peek is part of mem.Source. Packets that do not get as far as a socket end here.
func (s *source) Peek() (b []byte, at int64, ok bool) {
	for s.run.open == s {
		at, ok := s.at()
		if !ok || at != s.run.clock {
			break
		}
		p, _ := s.Packet()
		if s.front == 0 {
			s.front = s.run.arrive(s, p)
		}
		if s.run.enters(s, p.Data) {
			return p.Data, at, true
		}
		s.pass()
	}
	return nil, 0, false
}

// Take is part of mem.Source.
func (s *source) Take() {
	s.run.taken = append(s.run.taken, s.front)
	s.pass()
}

// pass goes on to the next packet.
func (s *source) pass() {
	s.last, _ = s.at()
	s.front = 0
	s.File.Take()
	s.run.moved++
}

// port is what an interface or a file is in a replay.
type port struct {
	info   graph.PortInfo
	queues []*mem.Queue
	files  []*pcap.File // to be closed
}

func (p *port) Queues() int             { return len(p.queues) }
func (p *port) Queue(q int) graph.Queue { return p.queues[q] }
func (p *port) Info() graph.PortInfo    { return p.info }
func (p *port) Close() (err error) {
	for _, f := range p.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// run is one replay. It is the runtime's driver for all ports.
type run struct {
	graph  *graph.Graph
	opts   Options
	engine *runtime.Engine
	snap   *state.Snapshot
	rules  *bpf.Rules
	out    *pcap.Writer

	sources map[graph.PortSpec][]*source
	order   []*source // by queue, then as the graph names their ports
	clock   int64
	open    *source // the one that may give packets
	taken   []int   // numbers of the packets of the vector that is being received
	moved   uint64  // packets that left their captures
	record
}

// openInputs opens the captures of all ports that the graph receives from.
func (r *run) openInputs() error {
	r.sources = map[graph.PortSpec][]*source{}
	left := slices.Clone(r.opts.In)
	var interfaces []string
	for _, n := range r.graph.Nodes {
		if !n.Kind.Source {
			continue
		}
		for _, s := range n.Kind.Ports(n.Config) {
			if s.Driver == "xdp" && !slices.Contains(interfaces, s.Name) {
				interfaces = append(interfaces, s.Name)
			}
		}
	}
	for _, n := range r.graph.Nodes {
		if !n.Kind.Source {
			continue
		}
		for _, s := range n.Kind.Ports(n.Config) {
			var files []string
			switch s.Driver {
			case "pcap":
				files = append([]string{s.Name}, strings.Split(s.Args, "\n")...)
				if s.Args == "" {
					files = files[:1]
				}
			case "xdp":
				left = slices.DeleteFunc(left, func(in Input) bool {
					mine := in.Interface == s.Name || in.Interface == "" && len(interfaces) == 1
					if mine {
						files = append(files, in.File)
					}
					return mine
				})
			default:
				return ErrOption(fmt.Sprintf("node %q makes packets up. A replay feeds xdp-rx and pcap-rx from captures", n.Name))
			}
			for q, name := range files {
				f, err := pcap.OpenFile(name)
				if err != nil {
					return err
				}
				r.sources[s] = append(r.sources[s], &source{File: f, run: r, queue: q, node: n.Name, admit: s.Driver == "xdp"})
			}
			r.order = append(r.order, r.sources[s]...)
		}
	}
	slices.SortStableFunc(r.order, func(a, b *source) int { return a.queue - b.queue })
	for _, in := range left {
		switch {
		case len(interfaces) == 0:
			return ErrOption(fmt.Sprintf("graph %q receives from no interface that %s could be for", r.graph.Name, in.File))
		case in.Interface == "":
			return ErrOption(fmt.Sprintf("which interface is %s for? Write INTERFACE=FILE, with one of %s", in.File, strings.Join(interfaces, ", ")))
		default:
			return ErrOption(fmt.Sprintf("graph %q does not receive from %q. It does from %s", r.graph.Name, in.Interface, strings.Join(interfaces, ", ")))
		}
	}
	return nil
}

func (r *run) close() {
	for _, s := range r.order {
		_ = s.Close() // read only; twice is no harm
	}
}

// Queues is part of runtime.Driver.
func (r *run) Queues(s graph.PortSpec) (int, error) { return max(len(r.sources[s]), 1), nil }

// Open is part of runtime.Driver.
func (r *run) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	cfg := mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings, Clock: true}
	if s.Driver == "pcap" && s.Write {
		return pcap.OpenWrite(s.Name, cfg)
	}
	p := &port{info: graph.PortInfo{Name: s.Name, Mode: "replay"}}
	var sink mem.Sink
	if s.Driver == "xdp" {
		p.info.MAC, p.info.MTU, p.info.Addrs = defaultMAC, r.graph.NetworkMTU, r.opts.Addrs
		sink = r
	}
	for _, src := range r.sources[s] {
		p.queues = append(p.queues, mem.NewQueue(cfg, src, sink))
	}
	if len(p.queues) == 0 {
		p.queues = append(p.queues, mem.NewQueue(cfg, nil, sink))
	}
	return p, nil
}

// Put is part of mem.Sink: the wire of all interfaces.
func (r *run) Put(b []byte, at int64) bool {
	if r.out != nil {
		// The writer keeps its error.
		_ = r.out.Write(pcap.Packet{Time: at, Data: b}, 0)
	}
	return true
}

// Flushed is part of mem.Sink.
func (r *run) Flushed() {}

// play runs all packets.
func (r *run) play() error {
	for {
		s, at := r.earliest()
		if s == nil {
			return r.settle()
		}
		if err := r.tickUntil(at); err != nil {
			return err
		}
		r.clock = at
		before := r.moved
		r.open = s
		r.engine.Step(s.queue % r.engine.Cores())
		r.open = nil
		if r.moved == before {
			return fmt.Errorf("packet %d finds no free frame: raise the graph's frames", s.front)
		}
		if err := r.settle(); err != nil {
			return err
		}
	}
}

// earliest answers the capture with the earliest packet.
func (r *run) earliest() (first *source, at int64) {
	for _, s := range r.order {
		if t, ok := s.at(); ok {
			if t = max(t, r.clock); first == nil || t < at {
				first, at = s, t
			}
		}
	}
	return first, at
}

// Times between ticks. Nothing that a node forgets by its ticks is older than
// forgotten.
const (
	idleTick  = 100 * time.Millisecond
	busyTick  = 10 * time.Millisecond
	forgotten = 4 * time.Hour
)

// tickUntil runs the ticks that are due before a time.
func (r *run) tickUntil(at int64) error {
	asleep := false
	for idle := r.clock; ; asleep = r.held == 0 {
		next := int64(math.MaxInt64)
		for c := range r.engine.Cores() {
			next = min(next, r.engine.NextTick(c))
		}
		if asleep {
			next += int64(idleTick - busyTick)
		} else {
			idle = r.clock
		}
		if next >= at || next-idle > int64(forgotten) {
			return nil
		}
		r.clock = next
		if err := r.settle(); err != nil {
			return err
		}
	}
}

// settle steps all cores until nothing is on its way.
func (r *run) settle() error {
	// Nothing goes round for ever: the graph has no loop, and visits of other cores
	// end after one round.
	for range 100_000 {
		busy := false
		for c := range r.engine.Cores() {
			busy = r.engine.Step(c) || busy
		}
		if !busy {
			return nil
		}
	}
	return errors.New("the cores pass packets to each other without end")
}

// enters decides on the packet in front of s as an XDP program and the kernel would;
// what does not enter has got its verdict.
func (r *run) enters(s *source, b []byte) bool {
	if len(b) > mem.MaxFrames*(r.graph.Chunk-mem.Front) {
		r.refuse(s.front, s.node, "too_long")
		return false
	}
	if !s.admit {
		return true
	}
	verdict, reason, vip := bpf.Admit(r.rules, b)
	if vip > 0 {
		r.packets[s.front-1].VIP = r.rules.VIPs[vip-1]
	}
	switch verdict {
	case bpf.Pass:
		r.pass(s.front, s.node)
	case bpf.Drop:
		r.refuse(s.front, r.nodeWith(reason.String(), s.node), reason.String())
	}
	return verdict == bpf.Redirect
}

// nodeWith names the first node that drops by reason too: what the XDP program drops
// counts there.
func (r *run) nodeWith(reason, otherwise string) string {
	for _, n := range r.graph.Nodes {
		if o := n.Output(reason); o >= 0 && n.Outputs[o].Else == graph.Drop {
			return n.Name
		}
	}
	return otherwise
}

var (
	_ runtime.Driver   = (*run)(nil)
	_ runtime.Observer = (*run)(nil)
	_ mem.Source       = (*source)(nil)
)
