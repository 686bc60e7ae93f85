package graph

import (
	"fmt"
	"slices"
	"strings"
)

// A step of an advice is an output of a kind that changes what holds.
type step struct {
	kind   *Kind
	output Output
	sure   bool // what else must be drawn from the kind changes the same
}

func (s step) name() string {
	if s.output.Name == "next" {
		return s.kind.Name
	}
	return s.kind.Name + "." + s.output.Name
}

// steps answers what kinds can do with a packet of facts f: only those whose own
// needs fit it, and never what would send a packet back to where it came from. The
// sure ones come first.
func (a *Analysis) steps(f Facts, but []*Kind) []step {
	var all []step
	for _, k := range Kinds() {
		if k.Plane != a.Graph.Plane || k.Source || slices.Contains(but, k) || !f.Has(k.Needs) || f&k.Forbids != 0 {
			continue
		}
		var mine []step
		results := map[Facts]bool{}
		for _, o := range k.OutputsOf(k.NewConfig()) {
			g := f&^o.Removes | o.Gives
			if o.back() || o.reason() || !f.Has(o.Only) {
				continue
			}
			if o.Else == Must {
				results[g] = true
			}
			if g != f {
				mine = append(mine, step{kind: k, output: o})
			}
		}
		for i := range mine {
			mine[i].sure = len(results) <= 1
		}
		all = append(all, mine...)
	}
	slices.SortStableFunc(all, func(x, y step) int {
		switch {
		case x.sure == y.sure:
			return 0
		case x.sure:
			return -1
		}
		return 1
	})
	return all
}

// chains answers the shortest ways through kinds from facts f to what reached
// calls right: one way, or one for each kind if they are of one step; none is
// longer than five.
func (a *Analysis) chains(f Facts, but []*Kind, reached func(Facts) bool) [][]step {
	type state struct {
		facts Facts
		steps []step
	}
	queue, seen := []state{{facts: f}}, map[Facts]bool{f: true}
	var found [][]step
	for len(queue) > 0 && len(found) == 0 {
		s := queue[0]
		queue = queue[1:]
		if len(s.steps) == 5 {
			break
		}
		for _, t := range a.steps(s.facts, but) {
			g := s.facts&^t.output.Removes | t.output.Gives
			switch {
			case reached(g):
				another := len(s.steps) == 0 && !slices.ContainsFunc(found, func(c []step) bool { return c[0].kind == t.kind })
				if another || len(found) == 0 {
					found = append(found, append(slices.Clone(s.steps), t))
				}
			case !seen[g]:
				seen[g] = true
				queue = append(queue, state{g, append(slices.Clone(s.steps), t)})
			}
		}
	}
	if len(found) > 0 && found[0][0].sure {
		found = slices.DeleteFunc(found, func(c []step) bool { return !c[0].sure })
	}
	return found
}

// leadThrough advises what to put before n so that the packet of w fits.
func (a *Analysis) leadThrough(n *Instance, w *way) string {
	var but []*Kind
	for _, e := range w.edges() {
		but = append(but, e.From.Kind)
	}
	found := a.chains(w.facts&^marks, but, func(f Facts) bool { return takes(n.Kind, n.Outputs, f) })
	if len(found) == 0 {
		return a.leadTo(n, w)
	}
	return fmt.Sprintf(" Lead it through %s first.", chainNames(found))
}

func chainNames(found [][]step) string {
	var names []string
	if len(found) == 1 {
		for _, s := range found[0] {
			names = append(names, s.name())
		}
		return list(names, "and")
	}
	for _, c := range found {
		names = append(names, c[0].name())
	}
	return list(names, "or")
}

// undo advises how e can do without giving what n forbids, or else what leadTo does.
func (a *Analysis) undo(e *Edge, n *Instance, w *way) string {
	if how := e.From.Outputs[e.Output].Without; how != "" {
		return fmt.Sprintf(" Write %s in %q.", how, e.From.Name)
	}
	return a.leadTo(n, w)
}

// leadTo advises where the packet of w may go instead of n: to the nearest node
// behind n that takes it, or to another of the graph.
func (a *Analysis) leadTo(n *Instance, w *way) string {
	from, o := w.edge.From, w.edge.From.Outputs[w.edge.Output]
	if t := a.target(from, n, w.facts&^marks); t != nil {
		return fmt.Sprintf(" Lead it to %q instead.", t.Name)
	}
	switch o.Else {
	case Drop:
		return " Leave this edge out: it drops then."
	case Punt:
		return " Leave this edge out: it goes to the kernel then."
	}
	return " Lead it to another node."
}

// target answers a node that takes a packet of facts f that leaves from: the
// nearest behind n, or the first of the file; never one that leads to from, and
// none that takes just anything.
func (a *Analysis) target(from, n *Instance, f Facts) *Instance {
	upstream := map[*Instance]bool{}
	var up func(n *Instance)
	up = func(n *Instance) {
		upstream[n] = true
		for _, e := range a.into[n] {
			if !upstream[e.From] {
				up(e.From)
			}
		}
	}
	up(from)
	seen, queue := map[*Instance]bool{}, []*Instance{n}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		for _, e := range drawn(n) {
			if !seen[e.To] {
				seen[e.To] = true
				queue = append(queue, e.To)
			}
		}
		if n != from && !upstream[n] && n.Kind.Needs != 0 && takes(n.Kind, n.Outputs, f) {
			return n
		}
	}
	for _, n := range a.Graph.Nodes {
		if !upstream[n] && !n.Kind.Source && n.Kind.Needs != 0 && takes(n.Kind, n.Outputs, f) {
			return n
		}
	}
	return nil
}

// drawTo advises where the edge from output o of n is to lead, whose packets are
// those of w.
func (a *Analysis) drawTo(n *Instance, o int, w *way) string {
	f := n.leave(n.Outputs[o], w.facts) &^ marks
	draw := func(to *Instance) string {
		return fmt.Sprintf("Draw one, as in [%s, %s].", n.Name+"."+n.Outputs[o].Name, to.Name)
	}
	if t := a.target(n, n, f); t != nil {
		return draw(t)
	}
	but := []*Kind{n.Kind}
	for _, e := range w.edges() {
		but = append(but, e.From.Kind)
	}
	var to *Instance
	found := a.chains(f, but, func(f Facts) bool {
		if t := a.target(n, n, f); t != nil {
			to = t
		}
		return to != nil
	})
	if len(found) > 0 {
		var names []string
		for _, s := range found[0] {
			names = append(names, s.name())
		}
		return fmt.Sprintf("Draw one, as in [%s, %s, %s].", n.Name+"."+n.Outputs[o].Name, strings.Join(names, ", "), to.Name)
	}
	return "Draw one to a node that takes " + f.String() + "."
}
