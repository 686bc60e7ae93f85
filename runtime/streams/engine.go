// Package streams runs the stream blocks of a file: it accepts connections, speaks
// HTTP with clients, and leads connections and requests from node to node.
//
// An Engine runs all stream blocks. It owns the sockets, which stay open over a
// reload, and what is known of backends. Every connection has one goroutine, which
// waits for a request, leads it through the graph as it is at that moment, and goes
// on to the next. A request of HTTP/2 has one of its own.
package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Options is what an Engine is given.
type Options struct {
	State *state.Cell
	// Watch calls f with every snapshot before it is published, and once at once,
	// until stop.
	Watch func(f func(*state.Snapshot)) (stop func())
	// Host is what runs the controls; see graph.Env.
	Host any
	Log  *zap.Logger
	// Rehearsal: the engine will never start, but only be asked. Nodes that write what
	// they see to a file are not built.
	Rehearsal bool
}

// Engine runs stream blocks. Its methods may be called from any goroutine, but for
// Start, Swap and Stop, which exclude each other.
type Engine struct {
	opts     Options
	log      *zap.Logger
	backends registry
	http2    http2servers

	ctx      context.Context // ends when sessions are cut off
	cancel   context.CancelFunc
	stopping atomic.Bool

	mu        sync.Mutex
	blocks    map[string]*block
	listeners map[graph.Listen]*listener
	conns     conns
	serving   sync.WaitGroup // connections

	view     atomic.Pointer[[]*block] // by name: for Stats, which waits for nobody
	observer atomic.Pointer[Observer] // nil while nobody looks on
}

// A block is one stream block over its reloads.
type block struct {
	name string
	prog atomic.Pointer[program]

	mu        sync.Mutex
	listening map[string]*listening // by node, also those that a reload removed
}

func newBlock(name string) *block { return &block{name: name, listening: map[string]*listening{}} }

// listen answers what came to a listener.
func (b *block) listen(node string) *listening {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.listening[node]
	if l == nil {
		l = new(listening)
		b.listening[node] = l
	}
	return l
}

// show has Stats see the blocks as they are now. mu is held.
func (e *Engine) show() {
	all := slices.SortedFunc(maps.Values(e.blocks), func(a, b *block) int { return strings.Compare(a.name, b.name) })
	e.view.Store(&all)
}

// New prepares the stream blocks among graphs to run; sockets open with Start. On
// error nothing stays behind.
func New(graphs []*graph.Graph, o Options) (*Engine, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	e := &Engine{opts: o, log: o.Log, blocks: map[string]*block{}, listeners: map[graph.Listen]*listener{}}
	e.backends.init()
	e.conns.init()
	e.ctx, e.cancel = context.WithCancel(context.Background())
	progs, err := e.buildAll(graphs)
	if err != nil {
		e.cancel()
		return nil, err
	}
	for _, p := range progs {
		b := newBlock(p.graph.Name)
		p.block = b
		b.prog.Store(p)
		e.blocks[b.name] = b
	}
	e.show()
	return e, nil
}

func (e *Engine) buildAll(graphs []*graph.Graph) (progs []*program, err error) {
	for _, g := range graphs {
		if g.Plane != graph.StreamPlane {
			continue
		}
		var old *program
		if b := e.blocks[g.Name]; b != nil {
			old = b.prog.Load()
		}
		p, err := e.build(g, old)
		if err != nil {
			for _, p := range progs {
				p.discard()
			}
			return nil, err
		}
		progs = append(progs, p)
	}
	return progs, nil
}

// Start opens the sockets and accepts connections. On error everything is closed.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var progs []*program
	for _, b := range e.blocks {
		progs = append(progs, b.prog.Load())
	}
	if err := e.listen(progs); err != nil {
		e.cancel()
		return err
	}
	return nil
}

// Swap takes over the stream blocks among graphs: sockets and connections stay,
// and requests that begin from now on go the new ways. On error nothing has
// changed.
func (e *Engine) Swap(graphs []*graph.Graph) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	progs, err := e.buildAll(graphs)
	if err != nil {
		return err
	}
	if err := e.open(progs); err != nil {
		for _, p := range progs {
			p.discard()
		}
		return err
	}
	kept := map[string]bool{}
	for _, p := range progs {
		kept[p.graph.Name] = true
		b := e.blocks[p.graph.Name]
		if b == nil {
			b = newBlock(p.graph.Name)
			e.blocks[b.name] = b
		}
		p.block = b
		old := b.prog.Load()
		if old != nil {
			p.inherit(old) // before a session can come to p
		}
		b.prog.Store(p)
		if old != nil {
			old.discard()
		}
	}
	for name, b := range e.blocks {
		if !kept[name] {
			b.prog.Load().discard()
			delete(e.blocks, name)
		}
	}
	e.show()
	return e.listen(progs)
}

// Stop stops accepting, lets what is in flight end until ctx does, and cuts off the
// rest. It answers when nothing runs any more.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopping.Store(true)
	for key, l := range e.listeners {
		l.close()
		delete(e.listeners, key)
	}
	done := make(chan struct{})
	go e.http2.shutdown(ctx)
	go func() {
		e.serving.Wait()
		close(done)
	}()
	var err error
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		e.conns.hurry()
		select {
		case <-done:
		case <-tick.C:
			continue
		case <-ctx.Done():
			if n := e.conns.cut(); n > 0 {
				err = fmt.Errorf("%d connections were cut off", n)
			}
		}
		tick.Stop()
		break
	}
	e.cancel()
	<-done
	for _, b := range e.blocks {
		b.prog.Load().discard()
	}
	return err
}

// A program is one stream block as it is built.
type program struct {
	graph  *graph.Graph
	block  *block
	nodes  []*node // in the order of graph.Analysis
	byName map[string]*node
	watch  []func() // stops what its nodes watch
}

type node struct {
	inst  *graph.Instance
	prog  *program
	stage stream.Stage
	outs  []out
	// routes: it gives sessions a pool, so that their outcome counts for it.
	routes bool
	*counts
}

// An out is an output of a node.
type out struct {
	name   string
	status int
	to     *node
	http   bool // a request is read behind it
	count  *atomic.Uint64
}

// counts are a node's counts, which outlive a reload.
type counts struct {
	in       atomic.Uint64
	outs     map[string]*atomic.Uint64
	counters []atomic.Uint64
	panics   atomic.Uint64
	outcomes // of sessions that count for the node
}

func (e *Engine) build(g *graph.Graph, old *program) (p *program, err error) {
	a, diags := graph.Analyze(g)
	if diags.HasErrors() {
		return nil, diags
	}
	p = &program{graph: g, byName: map[string]*node{}}
	defer func() {
		if err != nil {
			p.discard()
		}
	}()
	for _, inst := range a.Order {
		n := &node{inst: inst, prog: p, counts: &counts{outs: map[string]*atomic.Uint64{}, counters: make([]atomic.Uint64, len(inst.Kind.Counters))}}
		if old != nil {
			if was := old.byName[inst.Name]; was != nil && was.inst.Kind == inst.Kind {
				n.counts = was.counts
			}
		}
		env := &graph.Env{
			Graph: g.Name, Node: inst.Name, State: e.opts.State, Host: e.opts.Host,
			Log:      e.log.Named(inst.Kind.Name).With(zap.String("stream", g.Name), zap.String("node", inst.Name)),
			Watch:    func(f func(*state.Snapshot)) { p.watch = append(p.watch, e.opts.Watch(f)) },
			Count:    n.count,
			Backends: e.backends.get,
		}
		if e.opts.Rehearsal && inst.Kind.Writes {
			n.stage = passer{}
		} else if n.stage, err = inst.Kind.Streams(inst.Config, env); err != nil {
			return p, g.Failed(inst, err)
		}
		p.nodes = append(p.nodes, n)
		p.byName[inst.Name] = n
	}
	for _, n := range p.nodes {
		held := a.Entry(n.inst)
		for i, o := range n.inst.Outputs {
			c := n.counts.outs[o.Name]
			if c == nil {
				c = new(atomic.Uint64)
				n.counts.outs[o.Name] = c
			}
			n.routes = n.routes || o.Gives.Has(graph.Pool)
			x := out{name: o.Name, status: o.Status, count: c}
			if e := n.inst.Edges[i]; e != nil {
				x.to = p.byName[e.To.Name]
				x.http = o.Gives.Has(graph.HTTP)
				for _, f := range held {
					x.http = x.http && !f.Has(graph.HTTP)
				}
			}
			n.outs = append(n.outs, x)
		}
	}
	return p, nil
}

func (n *node) count(i int, k uint64) { n.counters[i].Add(k) }

// inherit hands the state of old's stages to those of p.
func (p *program) inherit(old *program) {
	for _, n := range p.nodes {
		was := old.byName[n.inst.Name]
		if was == nil || was.inst.Kind != n.inst.Kind {
			continue
		}
		if i, ok := n.stage.(graph.StageInheritor); ok {
			i.Inherit(was.stage)
		}
	}
}

// discard ends p, to which no session comes any more; some may be under way still.
func (p *program) discard() {
	for _, stop := range p.watch {
		stop()
	}
	p.watch = nil
	for _, n := range p.nodes {
		if c, ok := n.stage.(graph.StageCloser); ok {
			_ = c.Close()
		}
	}
}

var errNoWay = errors.New("the node is gone from the file")

// Stopping tells that Stop was called.
func (e *Engine) Stopping() bool { return e.stopping.Load() }

// Backends answers what is known of backends.
func (e *Engine) Backends() []*stream.Backend { return e.backends.all() }

// Bound answers the address that a node listens on, as it was bound; false if it
// does not listen.
func (e *Engine) Bound(stream, node string) (netip.AddrPort, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.listeners {
		if t := l.target.Load(); t != nil && t.block.name == stream && t.node == node {
			return l.bound(), true
		}
	}
	return netip.AddrPort{}, false
}
