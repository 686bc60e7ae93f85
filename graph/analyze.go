package graph

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/io/packet"
)

// An Analysis is what the checker found out about a graph: in which order its
// nodes run, which facts hold where and how they came to hold, what encapsulation
// stands behind a node. The runtime compiles from it; explain and dot print it.
// It describes a graph with faults too, as far as packets get; it is not changed
// after Analyze.
type Analysis struct {
	Graph *Graph
	// Order holds the nodes that a source leads to; each stands behind all that
	// lead to it, ties in the order of the file.
	Order []*Instance
	// Headroom is the largest sum of Kind.Headroom over any way, in bytes.
	Headroom int

	at   map[*Instance]*place
	on   map[*Edge]bool // edges of Order, less those that close a cycle
	into map[*Instance][]*Edge
	ends []Facts // of packets that a dead end strands
	says diagnostics
}

// A place is what is known about a node's entry.
type place struct {
	ways   []*way       // one for each exact set, in the order they came
	seen   map[key]bool // the keys of ways
	faulty bool         // a mistake at this node, or at one before it, keeps sets from coming
	room   int          // headroom taken up to and with this node
	by     *Edge        // on the way that room was summed on
	v4, v6 int          // overhead behind the node
}

// A way says how a set of facts came to a node: over edge, from the set that
// held at the entry of edge.From. Both are nil at a source.
type way struct {
	key
	edge *Edge
	from *way
}

// key tells ways apart that are to be followed apart: the exact facts, with the
// marks below, and the source the packet came by.
type key struct {
	facts  Facts
	source *Instance
}

// Marks that travel with the facts but are none: whether the packet passed a
// guard of the MTU, and whether it goes back to where it came from.
const (
	guarded Facts = 1 << (31 - iota)
	replied
	marks = guarded | replied
)

// Analyze checks the graph by itself: its shape, and facts along every edge. The
// diagnostics hold no follow-ups: what is wrong only because of another mistake
// is not told. The Analysis is never nil.
func Analyze(g *Graph) (*Analysis, hcl.Diagnostics) {
	a := &Analysis{Graph: g, at: map[*Instance]*place{}, on: map[*Edge]bool{}, into: map[*Instance][]*Edge{}}
	for _, n := range g.Nodes {
		a.at[n] = &place{seen: map[key]bool{}}
	}
	if a.shape() {
		for _, n := range a.Order {
			a.enter(n)
		}
		a.endings()
		a.unreached()
		a.overheads()
		a.headroom()
	}
	a.says.sort()
	return a, a.says.list
}

// Entry answers the exact sets of facts that packets bring to n, in the order in
// which the file draws their ways.
func (a *Analysis) Entry(n *Instance) []Facts {
	var sets []Facts
	for _, w := range a.at[n].ways {
		if f := w.facts &^ marks; !slices.Contains(sets, f) {
			sets = append(sets, f)
		}
	}
	return sets
}

// On answers the exact sets of facts that packets carry along e, including those
// that e.To does not accept.
func (a *Analysis) On(e *Edge) []Facts {
	var sets []Facts
	for _, w := range a.at[e.From].ways {
		if o := e.From.Outputs[e.Output]; a.on[e] && w.facts.Has(o.Only) {
			if f := e.From.leave(o, w.facts) &^ marks; !slices.Contains(sets, f) {
				sets = append(sets, f)
			}
		}
	}
	return sets
}

// Way answers the edges by which packets come to n with exactly the facts f, the
// way that the file draws first; ok is false if none do.
func (a *Analysis) Way(n *Instance, f Facts) (edges []*Edge, ok bool) {
	for _, w := range a.at[n].ways {
		if w.facts&^marks == f {
			return w.edges(), true
		}
	}
	return nil, false
}

// Overhead answers the bytes that n and what stands behind it add to a packet, by
// the outer family; the largest, where ways differ.
func (a *Analysis) Overhead(n *Instance) (v4, v6 int) { return a.at[n].v4, a.at[n].v6 }

// leave answers what holds on a packet with facts f once it has left by o.
func (n *Instance) leave(o Output, f Facts) Facts {
	f = f&^o.Removes | o.Gives
	if n.Kind.Guards {
		f |= guarded
	}
	if o.back() {
		f |= replied
	}
	return f
}

// back tells that what leaves by o goes back to where it came from: an answer, or
// what may leave without an outer header.
func (o Output) back() bool { return o.Reply || o.Gives&Sent == Outbound }

// reason tells that o only names why packets drop.
func (o Output) reason() bool { return o.Else == Drop && o.Only|o.Gives|o.Removes == 0 }

// sink tells that packets end at n.
func (n *Instance) sink() bool {
	return !slices.ContainsFunc(n.Outputs, func(o Output) bool { return !o.reason() })
}

// takes tells whether n can do with a packet of facts f: its needs are met,
// nothing forbidden holds, and there is a way out for it.
func takes(k *Kind, outputs []Output, f Facts) bool {
	return f.Has(k.Needs) && f&k.Forbids == 0 && wayOut(outputs, f)
}

// wayOut tells whether a packet of facts f can leave by an output that is no
// reason; trivially so where all are reasons.
func wayOut(outputs []Output, f Facts) bool {
	through := false
	for _, o := range outputs {
		if !o.reason() {
			if f.Has(o.Only) {
				return true
			}
			through = true
		}
	}
	return !through
}

// shape finds the order of nodes and says what is wrong with the graph as a
// drawing. It answers whether facts can be followed along it.
func (a *Analysis) shape() bool {
	g := a.Graph
	var sources []*Instance
	good := true
	for _, n := range g.Nodes {
		if n.Kind.Plane != g.Plane {
			good = false
			a.says.err("Wrong plane", &n.Range, "%s works on the %s plane and cannot stand in a %s graph. %s",
				n, n.Kind.Plane, g.Plane, wrongPlane[n.Kind.Plane])
		} else if n.Kind.Source {
			sources = append(sources, n)
		}
	}
	if !good {
		return false
	}
	if len(sources) == 0 {
		a.says.err("No source in this graph", &g.Range, "Nothing brings %s into graph %q. Begin its main path with %s.",
			g.noun(2), g.Name, cmp.Or(list(namesOf(func(k *Kind) bool { return k.Source && k.Plane == g.Plane }), "or"), "a source"))
		return false
	}

	// Depth first, in the order of the file: an edge to a node that is still
	// open closes a cycle, and is left out from then on.
	const open, done = 1, 2
	mark := map[*Instance]int{}
	var post []*Instance
	var trail []*Edge
	var visit func(n *Instance)
	visit = func(n *Instance) {
		mark[n] = open
		for _, e := range drawn(n) {
			switch {
			case e.To.Kind.Source:
				a.says.err("Edge into a source", &e.Range, "%s brings in %s of its own and takes none. Leave this edge out.", e.To, g.noun(2))
			case mark[e.To] == open:
				i := slices.IndexFunc(trail, func(t *Edge) bool { return t.From == e.To })
				loop := []*Edge{e}
				if i >= 0 {
					loop = append(slices.Clone(trail[i:]), e)
				}
				a.at[e.To].faulty = true // what it would bring does not come
				a.says.err("This edge closes a cycle", &e.Range, "A %s could run in a circle for ever:\n\n%s\n\nEvery way has to lead forward. Lead %s to a node behind %q, or leave this edge out.",
					g.noun(1), wrap(loop, nil), e.From.out(e.Output), e.To.Name)
			default:
				a.on[e] = true
				a.into[e.To] = append(a.into[e.To], e)
				if mark[e.To] != done {
					trail = append(trail, e)
					visit(e.To)
					trail = trail[:len(trail)-1]
				}
			}
		}
		mark[n] = done
		post = append(post, n)
	}
	for _, n := range sources {
		if mark[n] == 0 {
			visit(n)
		}
	}
	for _, in := range a.into {
		slices.SortStableFunc(in, func(x, y *Edge) int { return byPlace(x.Range, y.Range) })
	}
	a.order(post)

	return true
}

var wrongPlane = map[Plane]string{
	PacketPlane:  "Move it to a graph block.",
	StreamPlane:  "Move it to a stream block.",
	ControlPlane: "Make it a block of its own beside the graph.",
}

// unreached tells of nodes that no source leads to: those that nothing leads to;
// then, for what circles by itself, one of each circle. A node that a dead end may
// have been meant to lead to is no mistake of its own.
func (a *Analysis) unreached() {
	g := a.Graph
	var sources, left []*Instance
	mark := map[*Instance]bool{} // reached, or told of
	for _, n := range a.Order {
		mark[n] = true
	}
	incoming := map[*Instance]bool{}
	for _, n := range g.Nodes {
		if n.Kind.Source {
			sources = append(sources, n)
		}
		if !mark[n] {
			left = append(left, n)
			for _, e := range drawn(n) {
				incoming[e.To] = true
			}
		}
	}
	var tell func(n *Instance)
	tell = func(n *Instance) {
		mark[n] = true
		for _, e := range drawn(n) {
			if !mark[e.To] {
				tell(e.To)
			}
		}
	}
	for _, circles := range []bool{false, true} {
		for _, n := range left {
			if mark[n] || incoming[n] != circles {
				continue
			}
			if !slices.ContainsFunc(a.ends, func(f Facts) bool { return takes(n.Kind, n.Outputs, f) }) {
				a.says.err(fmt.Sprintf("No %s reaches this node", g.noun(1)), &n.Range, "No way leads from %s to %s. Draw an edge to it, or leave it out.", list(names(sources), "or"), n)
			}
			tell(n)
		}
	}
}

// order sorts the nodes reached: Kahn's algorithm, the first of the file first
// among those that are ready.
func (a *Analysis) order(reached []*Instance) {
	waits := map[*Instance]int{}
	for _, n := range reached {
		waits[n] = len(a.into[n])
	}
	for range reached {
		for _, n := range a.Graph.Nodes {
			if left, here := waits[n]; here && left == 0 {
				delete(waits, n)
				a.Order = append(a.Order, n)
				for _, e := range drawn(n) {
					if a.on[e] {
						waits[e.To]--
					}
				}
				break
			}
		}
	}
}

// enter gathers the sets that come to n. A faulty one is told, once for an edge,
// and goes no further.
func (a *Analysis) enter(n *Instance) {
	p := a.at[n]
	if n.Kind.Source {
		p.add(&way{key: key{0, n}})
	}
	for _, e := range a.into[n] {
		from, o := a.at[e.From], e.From.Outputs[e.Output]
		p.faulty = p.faulty || from.faulty
		told, came := false, false
		for _, w := range from.ways {
			if !w.facts.Has(o.Only) {
				continue
			}
			came = true
			next := &way{key{e.From.leave(o, w.facts), w.source}, e, w}
			if takes(n.Kind, n.Outputs, next.facts) {
				p.add(next)
				continue
			}
			if !told {
				a.refuse(n, next)
			}
			told, p.faulty = true, true
		}
		if !came && !from.faulty && len(from.ways) > 0 {
			a.says.err("Nothing comes this way", &e.Range, "%s lets only %s with %s leave by %q, but what reaches it holds %s:\n\n%s\n\nLead %s with %s to %q, or leave this edge out.",
				e.From, a.Graph.noun(2), o.Only, o.Name, from.ways[0].facts&^marks, from.ways[0], a.Graph.noun(2), o.Only, e.From.Name)
			// Nothing behind this edge can be blamed for what it does not get.
			p.faulty = true
		}
	}
	// Nor for what a dead end keeps from it.
	for i, o := range n.Outputs {
		p.faulty = p.faulty || p.deadEnd(n, i, o) != nil
	}
}

// deadEnd answers a way whose packets leave by output i of n, for which there is
// no edge and has to be one; nil if none do.
func (p *place) deadEnd(n *Instance, i int, o Output) *way {
	if o.Else != Must || n.Edges[i] != nil {
		return nil
	}
	return find(p.ways, func(w *way) bool { return w.facts.Has(o.Only) })
}

func (p *place) add(w *way) {
	if !p.seen[w.key] {
		p.seen[w.key] = true
		p.ways = append(p.ways, w)
	}
}

// refuse says what is wrong with the way w to n.
func (a *Analysis) refuse(n *Instance, w *way) {
	k, noun, facts := n.Kind, a.Graph.noun(1), w.facts&^marks
	switch missing, extra := k.Needs&^facts, facts&k.Forbids; {
	case missing != 0:
		nothing := fmt.Sprintf("on this way nothing gives it %s", missing)
		if t := w.last(func(t *way) bool { return t.from.facts&^t.facts&missing != 0 }); t != nil {
			nothing = fmt.Sprintf("on this way %s takes %s from it", t.edge.From.out(t.edge.Output), t.from.facts&^t.facts&missing)
		}
		a.says.err(fmt.Sprintf("No %s on this edge", first(missing)), &w.edge.Range, "%s needs %s on every %s, but one can come by\n\n%s\n\nand %s.%s",
			n, k.Needs, noun, w, nothing, a.leadThrough(n, w))
	case extra != 0:
		giver := w.last(func(t *way) bool { return t.facts&^t.from.facts&extra != 0 })
		a.says.err(fmt.Sprintf("Unwanted %s on this edge", first(extra)), &w.edge.Range, "%s takes no %s with %s, but one can come by\n\n%s\n\nand %s has given it %s.%s",
			n, noun, list(factList(k.Forbids), "or"), w, giver.edge.From.out(giver.edge.Output), giver.facts&^giver.from.facts&extra, a.undo(giver.edge, n, w))
	default:
		var ways []string
		for _, o := range n.Outputs {
			if !o.reason() {
				ways = append(ways, fmt.Sprintf("%s for %s", o.Name, o.Only))
			}
		}
		a.says.err(fmt.Sprintf("No way out for some %s", a.Graph.noun(2)), &w.edge.Range, "%s has %s, but a %s can come by\n\n%s\n\nand holds %s.%s",
			n, list(ways, "and"), noun, w, facts, a.leadThrough(n, w))
	}
}

// endings looks for packets that an output without an edge leaves stranded, and
// for what sinks are told about what comes to them.
func (a *Analysis) endings() {
	for _, n := range a.Order {
		ways := a.at[n].ways
		for i, o := range n.Outputs {
			if w := a.at[n].deadEnd(n, i, o); w != nil {
				a.ends = append(a.ends, n.leave(o, w.facts)&^marks)
				a.says.err("Dead end", &n.Range, "%s sends %s to its output %q, from which the file draws no edge:\n\n%s\n\n%s",
					n, a.Graph.noun(2), o.Name, wrap(w.edges(), &end{n, i}), a.drawTo(n, i, w))
			}
		}
		if !n.sink() {
			continue
		}
		if n.Kind.Needs.Has(Outbound) {
			if w := find(ways, func(w *way) bool { return w.facts&(Encap|guarded) == Encap }); w != nil {
				guards := namesOf(func(k *Kind) bool { return k.Guards })
				a.says.warn("No MTU check on this way", &w.edge.Range, "Encapsulated packets that exceed network_mtu can come to %s by\n\n%s\n\nand are lost there. Lead them through %s first.", n, w, list(guards, "or"))
			}
		}
		out := n.Kind.Interface(n.Config)
		if w := find(ways, func(w *way) bool {
			in := w.source.Kind.Interface(w.source.Config)
			return w.facts.Has(replied) && in != "" && out != "" && in != out
		}); w != nil {
			reply := w.last(func(t *way) bool { return t.facts&^t.from.facts&replied != 0 })
			a.says.err("Reply on another interface", &w.edge.Range, "%s sends to %s, but replies of %s to what came in by %s can reach it by\n\n%s\n\nTheir addresses fit the network they came from only. Lead them to a node that sends to %s.",
				n, out, reply.edge.From, w.source.Kind.Interface(w.source.Config), w, w.source.Kind.Interface(w.source.Config))
		}
	}
}

// A sum is the overhead on one way from a node to where packets leave.
type sum struct {
	v4, v6 int
	edges  []*Edge
}

// overheads sums, backwards, what encapsulation stands behind each node, on the
// ways of packets that keep their backend and leave.
func (a *Analysis) overheads() {
	memo := map[*Instance]map[Facts][]sum{}
	told := map[*Edge]bool{}
	for _, n := range slices.Backward(a.Order) {
		memo[n] = map[Facts][]sum{}
		v4, v6 := n.Kind.Overhead(n.Config)
		var all []sum
		for _, f := range a.Entry(n) {
			var sums []sum
			if n.sink() && f.Has(Outbound) {
				sums = append(sums, sum{})
			}
			for _, e := range drawn(n) {
				o := n.Outputs[e.Output]
				if !a.on[e] || !f.Has(o.Only) || o.Removes.Has(Backend) {
					continue
				}
				for _, s := range memo[e.To][n.leave(o, f)&^marks] {
					s.edges = append([]*Edge{e}, s.edges...)
					if o.Gives.Has(Encap) {
						s.v4, s.v6 = s.v4+v4, s.v6+v6
					}
					sums = addSum(sums, s)
				}
			}
			memo[n][f] = sums
			for _, s := range sums {
				all = addSum(all, s)
			}
		}
		p := a.at[n]
		for _, s := range all {
			p.v4, p.v6 = max(p.v4, s.v4), max(p.v6, s.v6)
		}
		if n.Kind.TakesOverhead && len(all) > 1 && !told[fork(all)] {
			told[fork(all)] = true
			a.says.err("Differing overheads behind this node", &n.Range, "%s has to know how much longer packets become behind it, but by\n\n%s\n\nit is %s, and by\n\n%s\n\nit is %s. Let both add the same, or put one %s on each way, behind the point where they part.",
				n, wrap(all[0].edges, nil), all[0], wrap(all[1].edges, nil), all[1], n.Kind.Name)
		}
	}
}

// fork answers the edge of the first way by which the second parts from it.
func fork(all []sum) *Edge {
	for i, e := range all[0].edges {
		if i == len(all[1].edges) || e != all[1].edges[i] {
			return e
		}
	}
	return nil
}

func (s sum) String() string {
	return fmt.Sprintf("%d bytes over IPv4 and %d over IPv6", s.v4, s.v6)
}

func addSum(sums []sum, s sum) []sum {
	if slices.ContainsFunc(sums, func(t sum) bool { return t.v4 == s.v4 && t.v6 == s.v6 }) {
		return sums
	}
	return append(sums, s)
}

// headroom sums, forwards, the bytes that nodes write in front of a frame.
func (a *Analysis) headroom() {
	for _, n := range a.Order {
		p := a.at[n]
		for _, e := range a.into[n] {
			if r := a.at[e.From].room; p.by == nil || r > p.room {
				p.room, p.by = r, e
			}
		}
		before := p.room
		p.room += n.Kind.Headroom
		a.Headroom = max(a.Headroom, p.room)
		if before <= packet.MaxHeadroom && p.room > packet.MaxHeadroom {
			var edges []*Edge
			for e := p.by; e != nil; e = a.at[e.From].by {
				edges = append([]*Edge{e}, edges...)
			}
			a.says.err("Too much headroom", &n.Range, "The nodes of the way\n\n%s\n\nwrite up to %d bytes in front of a packet, where a frame has room for %d. Encapsulate less.",
				wrap(edges, nil), p.room, packet.MaxHeadroom)
		}
	}
}

// drawn answers the edges of n in the order of its outputs.
func drawn(n *Instance) []*Edge {
	return slices.DeleteFunc(slices.Clone(n.Edges), func(e *Edge) bool { return e == nil })
}

// find answers the first way that is so, or nil.
func find(ways []*way, is func(*way) bool) *way {
	if i := slices.IndexFunc(ways, is); i >= 0 {
		return ways[i]
	}
	return nil
}

// edges answers the edges of the way from its source on.
func (w *way) edges() []*Edge {
	var edges []*Edge
	for ; w.edge != nil; w = w.from {
		edges = append(edges, w.edge)
	}
	slices.Reverse(edges)
	return edges
}

// last answers the last step of the way that is so, or nil. Each has an edge.
func (w *way) last(is func(*way) bool) *way {
	for ; w.edge != nil; w = w.from {
		if is(w) {
			return w
		}
	}
	return nil
}

// String shows the way as the witness of a diagnostic.
func (w *way) String() string {
	if w.edge == nil {
		return "    " + w.source.Name
	}
	return wrap(w.edges(), nil)
}

// An end is an output that the file draws no edge from.
type end struct {
	node   *Instance
	output int
}

// wrap shows edges as one way, node by node, in lines of at most 76 columns,
// with the output named where it is not next; a way that leads nowhere ends in
// an output.
func wrap(edges []*Edge, at *end) string {
	steps := Steps(edges)
	if at != nil {
		steps = append(steps[:max(len(steps)-1, 0)], at.node.out(at.output))
	}
	var b strings.Builder
	column := 0
	for i, s := range steps {
		if i > 0 {
			b.WriteString(" ->")
			column += 3
		}
		switch {
		case i == 0:
			b.WriteString("    ")
			column = 4
		case column+1+len(s) > 73:
			b.WriteString("\n      ")
			column = 6
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(s)
		column += len(s)
	}
	return b.String()
}

// Steps names the nodes of a way, from that of the first edge to that which the
// last one leads to; NODE.OUTPUT where a node is left by another output than next.
func Steps(edges []*Edge) []string {
	var steps []string
	for _, e := range edges {
		steps = append(steps, e.From.out(e.Output))
	}
	if len(edges) > 0 {
		steps = append(steps, edges[len(edges)-1].To.Name)
	}
	return steps
}

// out names an output of n as a path does.
func (n *Instance) out(output int) string {
	if o := n.Outputs[output].Name; o != "next" {
		return n.Name + "." + o
	}
	return n.Name
}

// String answers "name" (kind), or "name" where both are the same.
func (n *Instance) String() string {
	if n.Name == n.Kind.Name {
		return fmt.Sprintf("%q", n.Name)
	}
	return fmt.Sprintf("%q (%s)", n.Name, n.Kind.Name)
}

// noun answers what moves along the edges of g.
func (g *Graph) noun(n int) string {
	s := "packet"
	if g.Plane == StreamPlane {
		s = "connection"
	}
	if n != 1 {
		s += "s"
	}
	return s
}

// byPlace orders by position in the file.
func byPlace(a, b hcl.Range) int {
	return cmp.Or(cmp.Compare(a.Filename, b.Filename), cmp.Compare(a.Start.Byte, b.Start.Byte))
}

func first(f Facts) Facts { return 1 << bits.TrailingZeros32(uint32(f)) }

func factList(f Facts) []string { return strings.Split(f.String(), ", ") }

func names(nodes []*Instance) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}

// namesOf answers the names of the registered kinds that are so.
func namesOf(is func(*Kind) bool) []string {
	var all []string
	for _, k := range Kinds() {
		if is(k) {
			all = append(all, k.Name)
		}
	}
	return all
}

// list joins words as a sentence does: a, b or c.
func list(words []string, and string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + and + " " + words[last]
}
