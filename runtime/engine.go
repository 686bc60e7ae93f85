package runtime

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/ring"
)

// A Driver opens the ports of one PortSpec.Driver.
type Driver interface {
	// Queues answers how many queues the port would have. It opens nothing.
	Queues(graph.PortSpec) (int, error)
	// Open opens the port on memory m, whose chunks are chunk bytes; rings is the
	// entries of each ring.
	Open(s graph.PortSpec, m Memory, chunk, rings int) (graph.Port, error)
}

// Options is what an Engine is given.
type Options struct {
	State *state.Cell
	// Watch registers f for every snapshot that is to be published, after a call
	// with the current one, and answers how to end that. state.Store.Watch is one.
	Watch   func(f func(*state.Snapshot)) (cancel func())
	Drivers map[string]Driver
	// Memory makes the memory for frames of chunk bytes.
	Memory func(frames, chunk int) (Memory, error)
	// Clock answers monotonic nanoseconds. The default is since 1970 by the machine's
	// clock at the program's start, so that captures carry a date.
	Clock func() int64
	// Kernel takes a frame for the kernel; nil where there is no way to it. It is
	// called by all loops.
	Kernel func(frame []byte) bool
	// Host is what nodes find as Env.Host.
	Host any
	// Manual leaves the loops to be stepped by Step.
	Manual bool
	Log    *zap.Logger
}

// Engine runs one packet graph on its cores. Its methods may be called from any
// goroutine, but for Step.
type Engine struct {
	opts  Options
	loops []*Loop
	alive atomic.Pointer[[]*Loop] // loops, for LastPass: it waits for nobody, and e.mu may be held for long
	mesh  [][]wire                // [from][to]
	mem   Memory
	links []packet.Link
	chunk int
	ports []*port

	mu       sync.Mutex // over what follows, and over commands
	graph    *graph.Graph
	prog     *program
	unwatch  []func()
	stopping atomic.Bool
	running  sync.WaitGroup
	started  bool
}

type port struct {
	graph.Port
	spec graph.PortSpec
}

// wire is what one core sends another.
type wire struct {
	frames *ring.Ring[uint32]
	home   *ring.Ring[uint32]
	told   *ring.Ring[told]
}

const (
	meshFrames = 2048 // least entries of a ring of frames between two cores
	meshTold   = 1024
)

var clockBase = time.Now()

// New compiles g, opens its ports and makes its nodes. The loops stand still until
// Start. On error nothing stays open.
func New(g *graph.Graph, opts Options) (e *Engine, err error) {
	if opts.Clock == nil {
		opts.Clock = func() int64 { return clockBase.UnixNano() + int64(time.Since(clockBase)) }
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	e = &Engine{opts: opts, graph: g, chunk: g.Chunk}
	defer func() {
		if err != nil {
			e.close()
			e = nil
		}
	}()
	a, diags := graph.Analyze(g)
	if diags.HasErrors() {
		return e, diags
	}
	specs, cores, err := e.survey(g)
	if err != nil {
		return e, err
	}
	if err := e.allocate(g, specs, cores); err != nil {
		return e, err
	}
	prog, unwatch, err := e.build(a, 1)
	e.unwatch = unwatch
	if err != nil {
		return e, err
	}
	nodes, err := e.make(prog)
	if err != nil {
		return e, err
	}
	e.prog = prog
	for c, l := range e.loops {
		l.install(prog, nodes[c])
		l.serveQueues()
		l.flush()
	}
	return e, nil
}

// portFailed answers what is wrong with a port, with the place of the first node that
// asks for it.
func portFailed(g *graph.Graph, s graph.PortSpec, err error) error {
	for _, n := range g.Nodes {
		for _, p := range n.Kind.Ports(n.Config) {
			if samePort(p, s) {
				return g.Failed(n, err)
			}
		}
	}
	return err
}

// surveyed is a port that a graph asks for.
type surveyed struct {
	spec   graph.PortSpec
	queues int
}

// survey finds the ports that g asks for and the number of its cores.
func (e *Engine) survey(g *graph.Graph) (specs []surveyed, cores int, err error) {
	cores = 1
	for _, s := range portsOf(g) {
		d := e.opts.Drivers[s.Driver]
		if d == nil {
			return nil, 0, fmt.Errorf("port %q: there is no driver %q", s.Name, s.Driver)
		}
		q, err := d.Queues(s)
		if err != nil {
			return nil, 0, portFailed(g, s, err)
		}
		specs = append(specs, surveyed{s, q})
		cores = max(cores, q)
	}
	if g.Cores > 0 {
		cores = g.Cores
	}
	for _, n := range g.Nodes {
		if c := n.Kind.Cores(n.Config); c > cores {
			if g.Cores > 0 {
				return nil, 0, fmt.Errorf("node %q works on %d cores; graph %q has cores = %d", n.Name, c, g.Name, g.Cores)
			}
			cores = c
		}
	}
	if cores > 64 {
		return nil, 0, fmt.Errorf("graph %q would need %d cores; 64 is the most", g.Name, cores)
	}
	return specs, cores, nil
}

// need answers how many frames the nodes of g may hold and make on a core.
func need(g *graph.Graph) (holds, makes int) {
	for _, n := range g.Nodes {
		h, m := n.Kind.Frames(n.Config)
		holds += h
		makes += m
	}
	return holds, makes
}

// ringOf answers the entries that g needs in a ring of frames between two cores.
func ringOf(g *graph.Graph) int {
	n := meshFrames
	for _, x := range g.Nodes {
		n = max(n, x.Kind.Ring(x.Config))
	}
	return n
}

// carries tells whether packets of g fit the port.
func (p *port) carries(g *graph.Graph) error {
	if mtu := p.Info().MTU; mtu > 0 && mtu < g.NetworkMTU {
		return portFailed(g, p.spec, fmt.Errorf("interface %s: its MTU is %d, and network_mtu %d of graph %q is more: packets would not fit; lower one or raise the other",
			p.spec.Name, mtu, g.NetworkMTU, g.Name))
	}
	return nil
}

// fits tells whether g can run on the loops and ports that are there.
func (e *Engine) fits(g *graph.Graph) error {
	for _, n := range g.Nodes {
		if c := n.Kind.Cores(n.Config); c > len(e.loops) {
			return &ErrRestart{Plan{{Restart, "node " + n.Name, fmt.Sprintf("works on %d cores, and %d run", c, len(e.loops))}}}
		}
	}
	for _, p := range e.ports {
		if err := p.carries(g); err != nil {
			return err
		}
	}
	return nil
}

// allocate makes loops, rings, memory and ports.
func (e *Engine) allocate(g *graph.Graph, specs []surveyed, cores int) error {
	holds, makes := need(g)
	mesh := ringOf(g)
	own := holds + makes + 4*packet.Size + g.Frames
	if cores > 1 {
		own += mesh
	}
	for _, s := range specs {
		// Fill and transmit rings of the queues of one core; completions come out
		// of the latter.
		own += (s.queues + cores - 1) / cores * 2 * g.Rings
	}
	size := cores * own * g.Chunk
	if uint64(size) > 1<<32-1 {
		return fmt.Errorf("graph %q needs %d MiB of frames; 4095 is the most: lower rings, frames or cores", g.Name, size>>20)
	}
	var err error
	if e.mem, err = e.opts.Memory(cores*own, g.Chunk); err != nil {
		return fmt.Errorf("memory for %d frames of %d bytes: %w", cores*own, g.Chunk, err)
	}
	e.links = make([]packet.Link, cores*own)
	for range cores {
		row := make([]wire, cores)
		for to := range row {
			row[to] = wire{ring.New[uint32](pow2(mesh)), ring.New[uint32](pow2(own)), ring.New[told](meshTold)}
		}
		e.mesh = append(e.mesh, row)
	}
	for c := range cores {
		l := &Loop{
			id: c, eng: e, mem: e.mem.Bytes(), links: e.links, chunk: uint(g.Chunk),
			base: uint32(c * own), own: uint32(own), free: make([]uint32, 0, own),
			homeward: make([][]uint32, cores), entries: newFIFO(cores * own),
			holds: make([]uint64, (cores*own+63)/64),
		}
		for i := range l.homeward {
			l.homeward[i] = make([]uint32, 0, own)
		}
		for f := own - 1; f >= 0; f-- {
			l.free = append(l.free, l.base+uint32(f))
		}
		l.v.Mem, l.v.Links = l.mem, l.links
		if l.waker, err = newWaker(); err != nil {
			return err
		}
		e.loops = append(e.loops, l)
	}
	loops := e.loops
	e.alive.Store(&loops)
	for _, s := range specs {
		p, err := e.opts.Drivers[s.spec.Driver].Open(s.spec, e.mem, g.Chunk, g.Rings)
		if err != nil {
			return portFailed(g, s.spec, err)
		}
		opened := &port{p, s.spec}
		e.ports = append(e.ports, opened)
		if err := opened.carries(g); err != nil {
			return err
		}
		for q := range p.Queues() {
			l := e.loops[q%cores]
			l.queues = append(l.queues, p.Queue(q))
		}
	}
	for _, l := range e.loops {
		l.fds = append(l.fds, l.waker.fd())
		for _, q := range l.queues {
			if fd := q.FD(); fd >= 0 {
				l.fds = append(l.fds, fd)
			}
		}
	}
	return nil
}

func pow2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// build makes a program of an analysed graph: every kind builds what its cores
// share. unwatch ends the watching of snapshots, also after an error.
func (e *Engine) build(a *graph.Analysis, gen uint32) (prog *program, unwatch []func(), err error) {
	g := a.Graph
	if prog, err = compile(g, gen, a.Order); err != nil {
		return nil, nil, err
	}
	for i := range prog.nodes {
		s := &prog.nodes[i]
		env := &graph.Env{
			Graph: g.Name, Node: s.inst.Name, Cores: len(e.loops), MTU: g.NetworkMTU, State: e.opts.State, Host: e.opts.Host,
			Watch: func(f func(*state.Snapshot)) {
				if e.opts.Watch == nil {
					f(e.opts.State.Load())
					return
				}
				unwatch = append(unwatch, e.opts.Watch(f))
			},
			Port: func(spec graph.PortSpec) (graph.Port, error) {
				for p := range e.ports {
					if samePort(e.ports[p].spec, spec) {
						s.port = p
						return e.ports[p].Port, nil
					}
				}
				return nil, fmt.Errorf("port %s %q is not open: the kind does not name it in Ports", spec.Driver, spec.Name)
			},
			Ports: e.openPorts,
			Addrs: func() (all []netip.Addr) {
				for _, p := range e.ports {
					all = append(all, p.Info().Addrs...)
				}
				return all
			},
			Log: e.opts.Log.With(zap.String("graph", g.Name), zap.String("node", s.inst.Name)),
		}
		env.Overhead4, env.Overhead6 = a.Overhead(s.inst)
		if s.maker, err = s.inst.Kind.Packets(s.inst.Config, env); err != nil {
			return nil, unwatch, g.Failed(s.inst, err)
		}
	}
	return prog, unwatch, nil
}

func (e *Engine) openPorts() []graph.Port {
	ports := make([]graph.Port, len(e.ports))
	for i, p := range e.ports {
		ports[i] = p.Port
	}
	return ports
}

// make makes the nodes of prog for every core.
func (e *Engine) make(prog *program) (all [][]node, err error) {
	defer func() {
		if err != nil {
			for _, nodes := range all {
				closeNodes(nodes)
			}
		}
	}()
	lanes, words := 0, 0 // of all nodes together
	for i := range prog.nodes {
		inst := prog.nodes[i].inst
		lanes += len(inst.Outputs)
		words += 2*len(inst.Outputs) + len(inst.Kind.Counters)
	}
	for _, l := range e.loops {
		// One node more than there are, so that what another core has does not begin in
		// the last one's cache line.
		nodes := make([]node, len(prog.nodes)+1)[:len(prog.nodes)]
		out, counts := apart[packet.Lanes](lanes), apart[uint64](words)
		all = append(all, nodes)
		for i := range prog.nodes {
			s := &prog.nodes[i]
			n := &nodes[i]
			n.inst, n.targets, n.port, n.source = s.inst, s.targets, uint16(s.port), s.inst.Kind.Source
			n.core = &core{Loop: l, idx: i, gen: prog.gen}
			_, made := s.inst.Kind.Frames(s.inst.Config)
			n.makes = made > 0
			outputs := len(s.inst.Outputs)
			n.out, out = cut(out, outputs)
			n.outs, counts = cut(counts, outputs)
			n.outBytes, counts = cut(counts, outputs)
			n.counters, counts = cut(counts, len(s.inst.Kind.Counters))
			if n.Node, err = s.maker(n.core); err != nil {
				return all, fmt.Errorf("node %q on core %d: %w", s.inst.Name, l.id, err)
			}
			if n.after, _ = n.Node.(graph.AfterSender); n.after != nil {
				n.marks = n.after.Marks()
			}
			n.ticker, _ = n.Node.(graph.Ticker)
			n.arriver, _ = n.Node.(graph.Arriver)
			n.hearer, _ = n.Node.(graph.Hearer)
		}
	}
	return all, nil
}

// cut answers the first n elements of s, and the others.
func cut[T any](s []T, n int) (first, rest []T) { return s[:n:n], s[n:] }

// closeNodes closes nodes that nothing has inherited from.
func closeNodes(nodes []node) {
	for i := range nodes {
		if c, ok := nodes[i].Node.(io.Closer); ok {
			_ = c.Close()
		}
	}
}

// install makes prog the loop's program between two vectors and answers the nodes
// of the old one that nothing inherited from.
func (l *Loop) install(prog *program, nodes []node) (gone []node) {
	old, was := l.nodes, l.prog
	l.prog, l.nodes = prog, nodes
	l.setState(l.eng.opts.State.Load())
	l.sources, l.afterSenders, l.tickers = nil, nil, nil
	for i := range nodes {
		n := &nodes[i]
		if n.source {
			l.sources = append(l.sources, i)
		}
		if n.after != nil {
			l.afterSenders = append(l.afterSenders, i)
		}
		if n.ticker != nil {
			l.tickers = append(l.tickers, i)
		}
	}
	if was == nil {
		now := l.eng.opts.Clock()
		l.nextTick = now + tickEvery
		l.beat.Store(now)
	}
	holds, makes := need(prog.graph)
	l.reserve = min(holds+makes+2*packet.Size, int(l.own)/2)
	heir := make([]int, len(old))
	for i := range old {
		o := &old[i]
		heir[i] = -1
		to, ok := prog.byName[o.inst.Name]
		if ok && nodes[to].inst.Kind == o.inst.Kind {
			n := &nodes[to]
			l.takeCounters(n, o)
			if h, ok := n.Node.(graph.Inheritor); ok {
				h.Inherit(o.Node)
				heir[i] = to
				continue
			}
		} else {
			l.retire(o, func(int) bool { return true })
		}
		gone = append(gone, *o)
	}
	if was != nil {
		l.rehome(was, heir)
	}
	return gone
}

// takeCounters carries on the counts of the node's predecessor.
func (l *Loop) takeCounters(n, o *node) {
	n.calls, n.packets, n.cycles, n.timed = o.calls, o.packets, o.cycles, o.timed
	n.unanswered, n.duplicate, n.noPunt = o.unanswered, o.duplicate, o.noPunt
	copy(n.counters, o.counters)
	for i, out := range o.inst.Outputs {
		if to := n.inst.Output(out.Name); to >= 0 && (n.targets[to] == toDrop) == (o.targets[i] == toDrop) {
			n.outs[to], n.outBytes[to] = o.outs[i], o.outBytes[i]
		}
	}
	o.unanswered, o.noPunt = 0, 0
	l.retire(o, func(i int) bool {
		to := n.inst.Output(o.inst.Outputs[i].Name)
		return to < 0 || n.targets[to] != toDrop
	})
}

// retire keeps the drops of a node that goes, or of those of its outputs that go
// or lead elsewhere now, so that packets still add up.
func (l *Loop) retire(o *node, gone func(output int) bool) {
	add := func(reason string, n uint64) {
		if n == 0 {
			return
		}
		if l.retired == nil {
			l.retired = map[string]uint64{}
		}
		l.retired[o.inst.Name+"."+reason] += n
	}
	for i, to := range o.targets {
		if to == toDrop && gone(i) {
			add(o.inst.Outputs[i].Name, o.outs[i])
		}
	}
	add("unanswered", o.unanswered)
	add("no_punt", o.noPunt)
}

// rehome gives held frames to the heirs of the nodes that hold them, and drops
// those without one.
func (l *Loop) rehome(was *program, heir []int) {
	for w, bits := range l.holds {
		for m := packet.Lanes(bits); m != 0; m &= m - 1 {
			f := uint32(w*64 + m.Next())
			e := l.entry(f)
			if e.gen != was.gen {
				continue // the heir has taken it already
			}
			if to := heir[e.node]; to >= 0 {
				e.gen, e.node = l.prog.gen, int16(to)
				continue
			}
			l.unhold(f)
			l.reloadDrops++
			if l.obs != nil {
				l.obs.Ended(l.id, nil, &e.Record, Dropped, "reload")
			}
			next := e.Chain
			l.freeFrame(f)
			l.freeChain(next)
		}
	}
}

// Start runs the loops, each on a thread of its own.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started || e.opts.Manual {
		return errors.New("the engine is running already, or stepped by hand")
	}
	for _, p := range e.ports {
		if s, ok := p.Port.(graph.Starter); ok {
			if err := s.Start(); err != nil {
				return portFailed(e.graph, p.spec, err)
			}
		}
	}
	e.started = true
	e.stopping.Store(false)
	// A spinning loop keeps its processor to itself; everything else needs one too.
	if n := len(e.loops) + 1; goruntime.GOMAXPROCS(0) < n {
		goruntime.GOMAXPROCS(n)
	}
	for c, l := range e.loops {
		pin := -1
		if c < len(e.graph.Pin) {
			pin = e.graph.Pin[c]
		}
		e.running.Add(1)
		go l.loop(pin)
	}
	return nil
}

// Stop ends the loops, closes nodes and ports and frees the memory. It may be
// called more than once.
func (e *Engine) Stop() {
	// Commands hold the lock while loops answer them, so none waits for a loop
	// that has ended.
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopping.Store(true)
	e.wakeAll(^uint64(0))
	e.running.Wait()
	e.started = false
	e.close()
}

func (e *Engine) close() {
	for _, f := range e.unwatch {
		f()
	}
	e.unwatch = nil
	for _, l := range e.loops {
		closeNodes(l.nodes)
		l.nodes = nil
	}
	for _, p := range e.ports {
		if err := p.Close(); err != nil {
			e.opts.Log.Warn("port did not close", zap.String("port", p.spec.Name), zap.Error(err))
		}
	}
	e.ports = nil
	for _, l := range e.loops {
		l.waker.close()
	}
	e.alive.Store(nil)
	e.loops = nil
	if e.mem != nil {
		_ = e.mem.Close()
		e.mem = nil
	}
}

// Cores is the number of loops.
func (e *Engine) Cores() int { return len(e.loops) }

// Ports answers what is open, in the order in which the graph names it.
func (e *Engine) Ports() []graph.Port { return e.openPorts() }

// Step runs one step of core's loop on the caller's goroutine and tells whether
// there was work. Only for an engine with Options.Manual.
func (e *Engine) Step(core int) bool { return e.loops[core].step() }

// NextTick answers when core's nodes want to be ticked next, by the engine's
// clock. Only for an engine with Options.Manual.
func (e *Engine) NextTick(core int) int64 { return e.loops[core].nextTick }

// Observe makes o see every packet from the next vector on; nil ends it.
func (e *Engine) Observe(o Observer) {
	e.each(func(l *Loop) { l.obs = o })
}

// TimeAll makes the cycle counter run on every vector instead of one in 64.
func (e *Engine) TimeAll(on bool) {
	e.each(func(l *Loop) { l.traceAll = on })
}

// Flush makes the nodes forget their state towards backend (0: towards all).
func (e *Engine) Flush(backend uint32) {
	e.each(func(l *Loop) {
		for i := range l.nodes {
			if f, ok := l.nodes[i].Node.(graph.Flusher); ok {
				f.Flush(backend)
			}
		}
	})
}

// LastPass answers how long ago the slowest loop was last seen alive; 0 once the
// engine is stopped. One that sleeps is not expected before its time is up.
func (e *Engine) LastPass() time.Duration {
	now, oldest := e.opts.Clock(), int64(0)
	if loops := e.alive.Load(); loops != nil {
		for _, l := range *loops {
			silent := now - l.beat.Load()
			if l.sleeping.Load() {
				silent -= sleepMost * 1e6
			}
			oldest = max(oldest, silent)
		}
	}
	return time.Duration(oldest)
}

// each runs f on every loop between two of its vectors and waits for it; at once
// where loops do not run.
func (e *Engine) each(f func(*Loop)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.eachLocked(f)
}

func (e *Engine) eachLocked(f func(*Loop)) {
	if !e.started {
		for _, l := range e.loops {
			f(l)
		}
		return
	}
	waits := make([]chan struct{}, len(e.loops))
	for i, l := range e.loops {
		waits[i] = make(chan struct{})
		l.cmd.Store(&command{f, waits[i]})
		l.wakeUp()
	}
	for _, w := range waits {
		<-w
	}
}

// wakeAll wakes those of cores (a bit each) that sleep.
func (e *Engine) wakeAll(cores uint64) {
	for c, l := range e.loops {
		if cores>>uint(c)&1 != 0 && l.sleeping.Load() {
			l.waker.wake()
		}
	}
}

func (l *Loop) wakeUp() {
	if l.sleeping.Load() {
		l.waker.wake()
	}
}

// Idle behaviour: a loop without work spins for a while, because the next packet is
// often near and waking from poll costs microseconds; then it sleeps, first until the
// next tick, which tells what was there. From then on it wakes once a second: each time
// costs the runtime, which watches over the system call, more than it costs the loop.
const (
	spinFor    = 50e3 // ns without work until it sleeps
	sleepFirst = 10   // ms, tickEvery
	sleepMost  = 1000 // ms; so that ticks and the heartbeat go on
	sleepTicks = 10   // ticks after that time, which are as many as in ten shorter ones
	sleepTight = 1    // ms, while there are no free frames: completions must be fetched
)

func (l *Loop) loop(pin int) {
	defer l.eng.running.Done()
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if pin >= 0 {
		if err := pinThread(pin); err != nil {
			l.eng.opts.Log.Warn("the loop is not pinned", zap.Int("core", l.id), zap.Int("cpu", pin), zap.Error(err))
		}
		defer unpinThread()
	}
	last, rests := l.eng.opts.Clock(), false
	for !l.eng.stopping.Load() {
		if l.step() {
			last, rests = l.now, false
			if gather := int64(l.prog.graph.Gather); gather > 0 && !l.full {
				l.wait(gather)
			}
			continue
		}
		if l.now-last <= spinFor {
			continue
		}
		ms := l.rest(rests)
		if l.sleep(ms) {
			last, rests = l.eng.opts.Clock(), false
			continue
		}
		rests = true
		if ms == sleepMost {
			l.now = l.eng.opts.Clock()
			for range sleepTicks {
				l.tick()
			}
		}
	}
}

// rest answers for how many milliseconds to sleep; again is whether the sleep before
// this one ended by time alone.
func (l *Loop) rest(again bool) int {
	switch {
	case len(l.free) <= l.reserve:
		return sleepTight
	case again:
		return sleepMost
	}
	return sleepFirst
}

// wait lets a fuller vector gather for at most ns nanoseconds.
func (l *Loop) wait(ns int64) {
	for end := l.now + ns; l.eng.opts.Clock() < end && !l.eng.stopping.Load() && l.cmd.Load() == nil; {
		goruntime.Gosched()
	}
}

// sleep waits until a port, another core or a command has something, or ms milliseconds
// are over: then it answers false, and one look is enough before it sleeps again.
func (l *Loop) sleep(ms int) bool {
	l.sleeping.Store(true)
	defer l.sleeping.Store(false)
	// Who sends to this core looks at sleeping after it has put something into a
	// ring; so this core looks at the rings after it has set sleeping.
	if l.cmd.Load() != nil || l.eng.stopping.Load() {
		return true
	}
	for from := range l.eng.mesh {
		w := &l.eng.mesh[from][l.id]
		if w.frames.Len()+w.told.Len()+w.home.Len() > 0 {
			return true
		}
	}
	woken := pollFDs(l.fds, ms)
	l.waker.drain()
	return woken
}
