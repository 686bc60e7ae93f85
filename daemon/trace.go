package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/runtime"
)

// mostTracked bounds the packets that one tracer follows at the same time.
const mostTracked = 1024

// A tracer takes down what becomes of packets: it is the observer of an engine. A
// packet is told once it, and all that was made of it, has ended.
type tracer struct {
	engine *runtime.Engine
	graph  string
	snap   func() *state.Snapshot
	admit  func(frame []byte) bool
	tell   func(admin.Traced) // called by loops: must not block

	following atomic.Int32 // frames in flight: while there are none, most calls end here
	mu        sync.Mutex
	flight    map[uint32]*tracked
	made      [64][]uint32 // by core: since its Visited before
}

// tracked is a packet on its way, and the frames made of it.
type tracked struct {
	admin.Traced
	own          uint32 // its own frame
	frames       int    // that have not ended
	vip, backend uint32
	says, fate   string // of the last step: what its node says, and what it does besides
	mem          []byte
	links        []packet.Link
}

// Received is part of runtime.Observer.
func (t *tracer) Received(core int, source *graph.Instance, v *packet.Vector, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		i := m.Next() & 63
		b := v.Bytes(i)
		if int(t.following.Load()) >= mostTracked || !t.admit(b) {
			continue
		}
		p := &tracked{own: v.Frame[i], frames: 1, mem: v.Mem, links: v.Links}
		p.Time, p.Graph = time.Now(), t.graph
		p.Before = p.bytes(v.Start[i], v.Len[i], v.Chain[i])
		if f, ok := flowOf(b); ok {
			p.Flow = f.String()
		}
		p.at(core, source, "")
		t.mu.Lock()
		t.follow(v.Frame[i], p)
		t.mu.Unlock()
	}
}

// follow enters a frame; mu is held. A frame that is known comes again: its end
// was missed, because the observer changed.
func (t *tracer) follow(frame uint32, p *tracked) {
	if t.flight[frame] == nil {
		t.following.Add(1)
	}
	t.flight[frame] = p
}

// at notes that the packet is at a node; says may be "".
func (p *tracked) at(core int, n *graph.Instance, says string) {
	if k := len(p.Steps) - 1; k < 0 || p.Steps[k].Node != n.Name || p.Steps[k].Core != core {
		p.Steps = append(p.Steps, admin.Step{Node: n.Name, Kind: n.Kind.Name, Core: core})
		p.says, p.fate = "", ""
	}
	if says != "" {
		p.says = says
	}
	p.Steps[len(p.Steps)-1].Says = strings.Trim(p.says+", "+p.fate, ", ")
}

// stays notes that a node does something else with the packet than to pass it on. The
// node has its say after that.
func (p *tracked) stays(core int, n *graph.Instance, fate string) {
	p.at(core, n, "")
	p.fate = fate
	p.at(core, n, "")
}

// held is what a packet's fate is while a node keeps it.
const held = "held"

// bytes copies a packet, all its frames.
func (p *tracked) bytes(start, length, chain uint32) []byte {
	b := slices.Clone(p.mem[start : start+length])
	for chain != packet.NoFrame && int(chain) < len(p.links) && len(b) < 1<<16 {
		l := p.links[chain]
		b = append(b, p.mem[l.Start:l.Start+l.Len]...)
		chain = l.Next
	}
	return b
}

// Visited is part of runtime.Observer.
func (t *tracer) Visited(core int, node *graph.Instance, v *packet.Vector, lanes packet.Lanes) {
	if t.following.Load() == 0 && len(t.made[core]) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := lanes; m != 0; m &= m - 1 {
		i := m.Next() & 63
		p := t.flight[v.Frame[i]]
		if p == nil {
			continue
		}
		p.note(v.VIP[i], v.Backend[i])
		p.at(core, node, t.engine.Says(core, node, v, i))
		for _, f := range t.made[core] {
			p.frames++
			t.follow(f, p)
		}
	}
	t.made[core] = t.made[core][:0]
}

func (p *tracked) note(vip, backend uint32) {
	if vip != 0 {
		p.vip = vip
	}
	if backend != 0 {
		p.backend = backend
	}
}

// Held is part of runtime.Observer.
func (t *tracer) Held(core int, node *graph.Instance, r *packet.Record) {
	if t.following.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.flight[r.Frame]; p != nil {
		p.stays(core, node, held)
	}
}

// Made is part of runtime.Observer.
func (t *tracer) Made(core int, _ *graph.Instance, r *packet.Record) {
	t.made[core] = append(t.made[core], r.Frame)
}

// Passed is part of runtime.Observer.
func (t *tracer) Passed(core, to int, node *graph.Instance, r *packet.Record) {
	if t.following.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.flight[r.Frame]; p != nil {
		p.stays(core, node, fmt.Sprintf("to core %d", to))
	}
}

// Ended is part of runtime.Observer.
func (t *tracer) Ended(core int, node *graph.Instance, r *packet.Record, how runtime.Ending, reason string) {
	if t.following.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.flight[r.Frame]
	if p == nil {
		return
	}
	delete(t.flight, r.Frame)
	t.following.Add(-1)
	p.note(r.VIP, r.Backend)
	if node != nil {
		p.at(core, node, "")
	}
	if how == runtime.Sent {
		p.After = append(p.After, p.bytes(r.Start, r.Len, r.Chain))
	}
	if r.Frame == p.own {
		p.Verdict, p.Reason = how.String(), reason
		if node != nil {
			p.Node = node.Name
		}
		if how == runtime.Sent {
			p.backend = r.Backend // a reply has none
		}
	}
	if p.frames--; p.frames == 0 {
		t.finish(p)
	}
}

// finish tells a packet; mu is held.
func (t *tracer) finish(p *tracked) {
	p.VIP, p.Backend = names(t.snap(), p.vip, p.backend)
	t.tell(p.Traced)
}

// rest tells the packets that nodes hold.
func (t *tracer) rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.flight {
		if p.Verdict == "" && p.fate == held {
			p.Verdict, p.Node = held, p.Steps[len(p.Steps)-1].Node
			t.finish(p)
		}
	}
	clear(t.flight)
	t.following.Store(0)
}

// names answers what the file calls a service and a backend.
func names(s *state.Snapshot, vip, backend uint32) (v, b string) {
	if int(backend) < len(s.Backends) && backend != 0 {
		b = s.Backends[backend].Addr.String()
	}
	if int(vip) >= len(s.Services) {
		return "", b
	}
	x := &s.Services[vip]
	if int(x.Pool) < len(s.Pools) && backend != 0 {
		for _, m := range s.Pools[x.Pool].Members {
			if m.Backend == backend {
				b = s.Pools[x.Pool].Name + "/" + m.Name
			}
		}
	}
	return x.VIP, b
}

// Sample gives packets that fit f to each, as they come, until ctx ends or f.Count
// have come. What comes faster than it is taken is left out.
func (d *Daemon) Sample(ctx context.Context, f admin.Filter, each func(admin.Traced)) error {
	if !slices.Contains([]string{"", "tcp", "udp", "icmp"}, f.Protocol) {
		return fmt.Errorf("protocol is %q. It can be tcp, udp or icmp", f.Protocol)
	}
	if !slices.Contains([]string{"", "sent", "dropped", "kernel", "held"}, f.Verdict) {
		return fmt.Errorf("verdict is %q. It can be sent, dropped, kernel or held", f.Verdict)
	}
	engines := d.engines
	if f.Graph != "" {
		g, err := d.packetGraph(f.Graph)
		if err != nil {
			return err
		}
		engines = []graphEngine{{g.Name, d.engine(g.Name)}}
	}
	if !d.sampling.TryLock() {
		return errors.New("another command samples packets already")
	}
	defer d.sampling.Unlock()
	found := make(chan admin.Traced, 256)
	var tracers []*tracer
	for _, e := range engines {
		t := &tracer{
			engine: e.Engine, graph: e.name, snap: d.Snapshot, flight: map[uint32]*tracked{},
			admit: func(b []byte) bool { return fits(&f, b) },
			tell: func(p admin.Traced) {
				if f.Verdict != "" && p.Verdict != f.Verdict || f.Reason != "" && p.Reason != f.Reason {
					return
				}
				select {
				case found <- p:
				default:
				}
			},
		}
		tracers = append(tracers, t)
		e.Observe(t)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			for _, e := range engines {
				e.Observe(nil)
			}
		}
	}
	defer end()
	for n := 0; n < f.Count; {
		select {
		case p := <-found:
			n++
			each(p)
			continue
		case <-ctx.Done():
		case <-d.config.quit:
		}
		end()
		for _, t := range tracers {
			t.rest()
		}
		for ; n < f.Count; n++ {
			select {
			case p := <-found:
				each(p)
				continue
			default:
			}
			break
		}
		return nil
	}
	return nil
}

// packetGraph answers the graph of that name; with "", the only one there is.
func (d *Daemon) packetGraph(name string) (*graph.Graph, error) {
	d.mu.Lock()
	all := packetGraphs(d.file)
	d.mu.Unlock()
	var have []string
	for _, g := range all {
		if g.Name == name || name == "" && len(all) == 1 {
			return g, nil
		}
		have = append(have, g.Name)
	}
	switch {
	case len(have) == 0:
		return nil, admin.NotFound("there is no packet graph")
	case name == "":
		return nil, admin.NotFound("name a graph: there are " + strings.Join(have, ", "))
	}
	return nil, admin.NotFound(fmt.Sprintf("there is no packet graph %q. There are %s", name, strings.Join(have, ", ")))
}

// Trace says what would become of a packet. It builds the graph a second time on
// memory of its own, with the state in force, and lets one packet through; nodes that
// remember flows are not built, but those that run are asked. So it changes nothing.
func (d *Daemon) Trace(q admin.Flow) (admin.Traced, error) {
	var out admin.Traced
	g, err := d.packetGraph(q.Graph)
	if err != nil {
		return out, err
	}
	live := d.engine(g.Name)
	r := &rehearsal{live: map[string]graph.PortInfo{}}
	for _, p := range live.Ports() {
		r.live[p.Info().Name] = p.Info()
	}
	twin := r.copy(g, live)
	e, err := runtime.New(twin, runtime.Options{
		State: d.store.Cell(), Watch: d.store.Watch, Drivers: map[string]runtime.Driver{"xdp": r, "pcap": r, "gen": r, "mem": r}, Manual: true, Log: d.log,
		Memory: func(frames, chunk int) (runtime.Memory, error) { return umem.Heap(frames, uint32(chunk)) },
	})
	if err != nil {
		return out, err
	}
	defer e.Stop()
	if r.source == nil {
		return out, fmt.Errorf("graph %q receives from nowhere", g.Name)
	}
	frame, err := frameOf(q, r.source.Info().MAC)
	if err != nil {
		return out, err
	}
	if t, decided := d.admission(g, r.source.Info().Name, frame); decided {
		return t, nil
	}
	told := false
	t := &tracer{engine: e, graph: g.Name, snap: d.Snapshot, flight: map[uint32]*tracked{}, admit: func([]byte) bool { return true }, tell: func(p admin.Traced) {
		if !told {
			out, told = p, true
		}
	}}
	e.Observe(t)
	r.source.Inject(0, frame)
	// A packet goes through in a few steps; a core is idle when it has no more.
	for range 1000 {
		busy := false
		for c := range e.Cores() {
			busy = e.Step(c) || busy
		}
		if !busy {
			break
		}
	}
	t.rest()
	if !told {
		return out, errors.New("the packet was lost on its way")
	}
	return out, nil
}

// admission says what the XDP program would do with a frame, if it would not let it
// in.
func (d *Daemon) admission(g *graph.Graph, port string, frame []byte) (t admin.Traced, decided bool) {
	rules := d.xdp.rules(port)
	if rules == nil {
		return t, false
	}
	verdict, reason, vip := bpf.Admit(rules, frame)
	if verdict == bpf.Redirect {
		return t, false
	}
	t = admin.Traced{Time: time.Now(), Graph: g.Name, Before: frame, Verdict: "kernel", Node: "XDP program", Reason: reason.String(), Steps: []admin.Step{{Node: "XDP program", Kind: "admission"}}}
	if f, ok := flowOf(frame); ok {
		t.Flow = f.String()
	}
	if verdict == bpf.Drop {
		t.Verdict = "dropped"
	}
	if vip > 0 {
		t.VIP = rules.VIPs[vip-1]
	}
	return t, true
}

// rules answers the rules of an interface, nil if it is none of ours.
func (d *xdpDriver) rules(port string) *bpf.Rules {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		if p.Info().Name == port {
			if r, err := rulesOf(d.file, p.Info().Addrs); err == nil {
				return r
			}
		}
	}
	return nil
}

// rehearsal is what a graph is built on to be tried: ports of memory that look like
// those that are open.
type rehearsal struct {
	live   map[string]graph.PortInfo
	source *mem.Port // the first that is received from
}

// Queues is part of runtime.Driver.
func (r *rehearsal) Queues(graph.PortSpec) (int, error) { return 1, nil }

// Open is part of runtime.Driver.
func (r *rehearsal) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	info, ok := r.live[s.Name]
	if !ok {
		info = graph.PortInfo{Name: s.Name}
	}
	p, err := mem.Open(mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings}, 1, info)
	if err == nil && r.source == nil && !s.Write {
		r.source = p
	}
	return p, err
}

// copy answers a graph like g that needs little memory, in which nodes that remember
// ask those of live, and nodes that write files let packets pass.
func (r *rehearsal) copy(g *graph.Graph, live *runtime.Engine) *graph.Graph {
	twin := *g
	twin.Nodes, twin.Rings, twin.Frames, twin.Pin = nil, 64, 64, nil
	of := map[*graph.Instance]*graph.Instance{}
	for _, n := range g.Nodes {
		c := *n
		c.Kind = understudy(n, live)
		of[n] = &c
		twin.Nodes = append(twin.Nodes, &c)
	}
	for _, n := range twin.Nodes {
		n.Edges = slices.Clone(n.Edges)
		for i, e := range n.Edges {
			if e != nil {
				n.Edges[i] = &graph.Edge{From: of[e.From], Output: e.Output, To: of[e.To], Range: e.Range}
			}
		}
	}
	return &twin
}

// understudy answers the kind that stands in for a node's.
func understudy(n *graph.Instance, live *runtime.Engine) *graph.Kind {
	peeks := false
	var mu sync.Mutex
	live.Look(n.Name, func(_ int, x graph.Node) {
		_, ok := x.(graph.Peeker)
		mu.Lock()
		defer mu.Unlock()
		peeks = peeks || ok
	})
	k := *n.Kind
	switch {
	case peeks:
		k.Packets = func(any, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return &asker{n.Name, live}, nil }, nil
		}
	case n.Kind.Source:
		k.Packets = func(c any, env *graph.Env) (graph.Maker, error) {
			var ports []graph.Port
			for _, s := range n.Kind.Ports(c) {
				p, err := env.Port(s)
				if err != nil {
					return nil, err
				}
				ports = append(ports, p)
			}
			return func(c graph.Core) (graph.Node, error) { return receiver{ports, c.ID()}, nil }, nil
		}
	case n.Kind.Writes:
		k.Packets = func(any, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return passer{}, nil }, nil
		}
	}
	return &k
}

// receiver receives on core 0, whatever the kind would do besides.
type receiver struct {
	ports []graph.Port
	core  int
}

// Process is part of graph.Node.
func (r receiver) Process(v *packet.Vector, _ packet.Lanes, out []packet.Lanes) {
	for _, p := range r.ports {
		if r.core > 0 {
			return
		}
		if n := p.Queue(0).Receive(v); n > 0 {
			out[0] = packet.All(n)
			return
		}
	}
}

// passer lets all pass.
type passer struct{}

// Process is part of graph.Node.
func (passer) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[0] = in }

// asker answers what the node of that name in the live engine would.
type asker struct {
	name string
	live *runtime.Engine
}

// Process is part of graph.Node.
func (a *asker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for m := in; m != 0; m &= m - 1 {
		i := m.Next() & 63
		output, sure := 0, false
		answer := *v
		var mu sync.Mutex
		a.live.Look(a.name, func(_ int, n graph.Node) {
			p, ok := n.(graph.Peeker)
			if !ok {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if sure {
				return
			}
			try := *v
			output, sure = p.Peek(&try, i)
			answer = try
		})
		v.VIP[i], v.Backend[i], v.Slot[i], v.Flags[i] = answer.VIP[i], answer.Backend[i], answer.Slot[i], answer.Flags[i]
		out[output] |= packet.Lane(i)
	}
}
