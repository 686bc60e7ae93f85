package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// Class says what a change costs.
type Class uint8

// The classes of a change.
const (
	// Keep: nothing changes.
	Keep Class = iota
	// Live: the change is made between two vectors; state is kept by name and kind.
	Live
	// Restart: the change needs a restart of the daemon; a reload refuses it.
	Restart
)

// String answers keep, live or restart.
func (c Class) String() string { return [...]string{"keep", "live", "restart"}[c] }

// An Action is one line of a Plan.
type Action struct {
	Class Class
	What  string // "node gre", "edge ct.miss", "graph edge"
	Why   string // what changes, "" for Keep
}

// A Plan is what a reload would do, in the order of the new file, removals last.
type Plan []Action

// Class answers the costliest class of the plan.
func (p Plan) Class() (c Class) {
	for _, a := range p {
		c = max(c, a.Class)
	}
	return c
}

// String prints a line for each action that is no Keep.
func (p Plan) String() string {
	var b strings.Builder
	for _, a := range p {
		if a.Class != Keep {
			fmt.Fprintf(&b, "%-8s %s: %s\n", a.Class, a.What, a.Why)
		}
	}
	return b.String()
}

// Diff plans the change from one packet graph to another. It needs no host.
func Diff(old, to *graph.Graph) Plan {
	var p Plan
	what := "graph " + to.Name
	before := len(p)
	for _, c := range []struct {
		name     string
		was, new any
	}{
		{"cores", old.Cores, to.Cores},
		{"chunk", old.Chunk, to.Chunk},
		{"rings", old.Rings, to.Rings},
		{"frames", old.Frames, to.Frames},
		{"pin", fmt.Sprint(old.Pin), fmt.Sprint(to.Pin)},
	} {
		if c.was != c.new {
			p = append(p, Action{Restart, what, fmt.Sprintf("%s changes from %v to %v", c.name, c.was, c.new)})
		}
	}
	for _, c := range []struct {
		name     string
		was, new any
	}{{"network_mtu", old.NetworkMTU, to.NetworkMTU}, {"gather", old.Gather, to.Gather}} {
		if c.was != c.new {
			p = append(p, Action{Live, what, fmt.Sprintf("%s changes from %v to %v", c.name, c.was, c.new)})
		}
	}
	if len(p) == before {
		p = append(p, Action{Class: Keep, What: what})
	}
	oldPorts, newPorts := portsOf(old), portsOf(to)
	for _, s := range newPorts {
		if !contains(oldPorts, s) {
			p = append(p, Action{Restart, "port " + s.Name, fmt.Sprintf("is opened (%s)", describe(s))})
		}
	}
	for _, s := range oldPorts {
		if !contains(newPorts, s) {
			p = append(p, Action{Restart, "port " + s.Name, fmt.Sprintf("is closed (%s)", describe(s))})
		}
	}
	if hOld, mOld := need(old); true {
		if h, m := need(to); h+m > hOld+mOld+old.Frames/2 {
			p = append(p, Action{Restart, what, fmt.Sprintf("its nodes may hold %d frames and %d were set aside: raise frames", h+m, hOld+mOld+old.Frames/2)})
		}
	}
	if a, b := ringOf(old), ringOf(to); b > a {
		p = append(p, Action{Restart, what, fmt.Sprintf("rings between cores grow from %d to %d", a, b)})
	}
	for _, n := range to.Nodes {
		was := old.Node(n.Name)
		name := "node " + n.Name
		switch {
		case was == nil:
			p = append(p, Action{Live, name, "is added (" + n.Kind.Name + ")"})
		case was.Kind != n.Kind:
			p = append(p, Action{Live, name, fmt.Sprintf("becomes %s (was %s), its state is lost", n.Kind.Name, was.Kind.Name)})
		default:
			if ch := conf.Changes(was.Config, n.Config); len(ch) > 0 {
				p = append(p, Action{Live, name, strings.Join(ch, ", ")})
			} else {
				p = append(p, Action{Class: Keep, What: name})
			}
			p = append(p, edges(was, n)...)
		}
	}
	for _, n := range old.Nodes {
		if to.Node(n.Name) == nil {
			p = append(p, Action{Live, "node " + n.Name, "is removed (" + n.Kind.Name + ")"})
		}
	}
	return p
}

func edges(was, n *graph.Instance) (p Plan) {
	dest := func(i *graph.Instance, o int) string {
		if o >= 0 && o < len(i.Edges) && i.Edges[o] != nil {
			return i.Edges[o].To.Name
		}
		return "nowhere"
	}
	for o, out := range n.Outputs {
		a, b := dest(was, was.Output(out.Name)), dest(n, o)
		if a != b {
			p = append(p, Action{Live, "edge " + n.Name + "." + out.Name, fmt.Sprintf("leads to %s (was %s)", b, a)})
		}
	}
	return p
}

// portsOf answers the ports that g asks for. A spec that leaves something open is
// the port of another that does not.
func portsOf(g *graph.Graph) (all []graph.PortSpec) {
	for _, n := range g.Nodes {
	specs:
		for _, s := range n.Kind.Ports(n.Config) {
			for i := range all {
				if samePort(all[i], s) {
					all[i].Mode = cmp.Or(all[i].Mode, s.Mode)
					all[i].Queues = cmp.Or(all[i].Queues, s.Queues)
					continue specs
				}
			}
			all = append(all, s)
		}
	}
	return all
}

// samePort tells whether a and b name one port, where each may leave the mode and
// the number of queues to the other.
func samePort(a, b graph.PortSpec) bool {
	return a.Driver == b.Driver && a.Name == b.Name && a.Write == b.Write && a.Args == b.Args &&
		(a.Mode == b.Mode || a.Mode == "" || b.Mode == "") && (a.Queues == b.Queues || a.Queues == 0 || b.Queues == 0)
}

func contains(all []graph.PortSpec, s graph.PortSpec) bool {
	return slices.Contains(all, s)
}

func describe(s graph.PortSpec) string {
	d := s.Driver
	if s.Queues > 0 {
		d += fmt.Sprintf(", %d queues", s.Queues)
	}
	if s.Mode != "" {
		d += ", mode " + s.Mode
	}
	return d
}

// ErrRestart is what Swap answers to a change that needs a restart.
type ErrRestart struct{ Plan Plan }

// Error names what must restart and the safe order.
func (e *ErrRestart) Error() string {
	var what []string
	for _, a := range e.Plan {
		if a.Class == Restart {
			what = append(what, a.What+" "+a.Why)
		}
	}
	return strings.Join(what, "; ") + ": drain the node, restart the daemon, undrain"
}

// A Change is a graph that is built beside the one that runs. Whoever has it calls
// Commit or Abort, once.
type Change struct {
	e       *Engine
	graph   *graph.Graph
	prog    *program
	was     *program
	nodes   [][]node
	unwatch []func()
}

// Swap replaces the graph by g: it is Prepare and Commit. On error nothing has
// changed.
func (e *Engine) Swap(g *graph.Graph) error {
	c, err := e.Prepare(g)
	if err != nil {
		return err
	}
	return c.Commit()
}

// Prepare builds g, which is all that can fail in a reload. Nothing of it runs yet.
func (e *Engine) Prepare(g *graph.Graph) (*Change, error) {
	a, diags := graph.Analyze(g)
	if diags.HasErrors() {
		return nil, diags
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := Diff(e.graph, g); p.Class() == Restart {
		return nil, &ErrRestart{p}
	}
	if err := e.fits(g); err != nil {
		return nil, err
	}
	c := &Change{e: e, graph: g, was: e.prog}
	var err error
	if c.prog, c.unwatch, err = e.build(a, e.prog.gen+1); err == nil {
		c.nodes, err = e.make(c.prog)
	}
	if err != nil {
		c.forget(c.unwatch)
		return nil, err
	}
	return c, nil
}

func (c *Change) forget(unwatch []func()) {
	for _, f := range unwatch {
		f()
	}
}

// Abort gives back what was built.
func (c *Change) Abort() {
	c.forget(c.unwatch)
	for _, n := range c.nodes {
		closeNodes(n)
	}
}

// Commit brings the graph into force: every core changes over between two of its
// vectors, and nodes of the same name and kind pass on their state. It fails only,
// and aborts, where another change was made since Prepare, or the engine stopped.
func (c *Change) Commit() error {
	e, prog := c.e, c.prog
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.prog != c.was || e.loops == nil {
		c.Abort()
		return errors.New("the graph was changed or stopped meanwhile")
	}
	prog.prev.Store(e.prog)
	gone := make([][]node, len(e.loops))
	var all sync.WaitGroup
	all.Add(len(e.loops))
	e.eachLocked(func(l *Loop) {
		if e.started {
			l.emptyRings()
		}
		gone[l.id] = l.install(prog, c.nodes[l.id])
		all.Done()
		if e.started {
			// No core goes on before all have changed over: what it would pass to
			// another would be unknown there.
			all.Wait()
		}
	})
	// Every core has passed: nothing uses what the old program closed over.
	c.forget(e.unwatch)
	for _, n := range gone {
		closeNodes(n)
	}
	e.graph, e.prog, e.unwatch = c.graph, prog, c.unwatch
	p := prog
	for range keptPrograms {
		if p = p.prev.Load(); p == nil {
			return nil
		}
	}
	p.prev.Store(nil)
	return nil
}
