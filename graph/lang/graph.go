package lang

import (
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// A builder makes one graph of its block.
type builder struct {
	*loader
	g     *graph.Graph
	key   string
	block string                     // graph or stream
	nodes map[string]*graph.Instance // by name; nil for those whose fault was told
	heads map[string]hcl.Range       // of node blocks
	first map[string]int             // byte at which a node is named first
	draws []draw
	told  map[*graph.Edge]bool     // another edge from its output was told
	bad   map[*graph.Instance]bool // configuration at fault: its outputs are not known
}

// A step is one element of a path.
type step struct {
	node   *graph.Instance
	name   string
	output string // "" for a bare name
	at     hcl.Range
}

// A draw is an edge as the file draws it.
type draw struct {
	from, to step
	at       hcl.Range
}

func (l *loader) graph(b *hcl.Block) {
	g := &graph.Graph{Name: b.Labels[0], Plane: graph.PacketPlane, GraphConfig: graph.GraphDefaults(), Range: conf.Head(b)}
	s := &builder{loader: l, g: g, key: b.Type + "." + g.Name, block: b.Type, nodes: map[string]*graph.Instance{}, heads: map[string]hcl.Range{}, first: map[string]int{}, bad: map[*graph.Instance]bool{}, told: map[*graph.Edge]bool{}}
	own := conf.Options{Skip: []string{"path", "node"}, Place: l.place(s.key)}
	if b.Type == "stream" {
		g.Plane, g.GraphConfig = graph.StreamPlane, graph.GraphConfig{}
		l.tell(conf.DecodeBlock(b, l.ctx, &struct{}{}, own))
	} else if !l.tell(conf.DecodeBlock(b, l.ctx, &g.GraphConfig, own)) {
		s.checkConfig()
	}
	attrs, blocks, diags := conf.Read(b.Body, map[string]int{"path": 0, "node": 2})
	if l.tell(diags) {
		return
	}
	for n, labels := range map[string]int{"path": 0, "node": 2} {
		if a := attrs[n]; a != nil {
			l.notArgument(a, labels)
		}
	}

	nexts := map[*hcl.Attribute]*graph.Instance{}
	var path *hcl.Block
	for _, x := range blocks {
		switch x.Type {
		case "node":
			inst := s.node(x)
			in, _, _ := conf.Read(x.Body, nil)
			if a := in["next"]; a != nil && inst != nil {
				nexts[a] = inst
			}
		case "path":
			if len(x.Labels) > 0 {
				l.labels(x, 0)
			} else if path != nil {
				l.fault(conf.Head(x), "Block given twice", "There is a block %q at %s already. Put all arguments into one.", "path", where(conf.Head(path)))
			} else {
				path = x
			}
		}
	}
	if path != nil {
		s.paths(path)
	}
	for a, from := range nexts {
		to, ok := s.step(a.Expr)
		if ok && to.output != "" {
			l.fault(to.at, "Output instead of a node", "\"next\" names the node that follows. Write next = %s.", to.name)
		} else if ok {
			s.draws = append(s.draws, draw{step{node: from, name: from.Name, output: "next", at: a.NameRange}, to, a.Range})
		}
	}
	sort.Slice(s.draws, func(i, j int) bool { return s.draws[i].at.Start.Byte < s.draws[j].at.Start.Byte })
	for _, d := range s.draws {
		s.edge(d)
	}
	sort.SliceStable(g.Nodes, func(i, j int) bool { return s.first[g.Nodes[i].Name] < s.first[g.Nodes[j].Name] })
	l.file.Graphs = append(l.file.Graphs, g)
}

// checkConfig checks what the tags of graph.GraphConfig cannot say.
func (s *builder) checkConfig() {
	c := &s.g.GraphConfig
	if c.Rings&(c.Rings-1) != 0 {
		p := 64
		for p < c.Rings {
			p *= 2
		}
		s.fault(s.at(s.key+".rings"), "Not a power of two", "%q is %d. Write %d.", "rings", c.Rings, p)
	}
	seen := map[int]bool{}
	for i, cpu := range c.Pin {
		at := s.at(fmt.Sprintf("%s.pin[%d]", s.key, i))
		if cpu < 0 {
			s.fault(at, "Out of range", "%q is %d. Give it a value %s.", "pin", cpu, "of at least 0")
		} else if seen[cpu] {
			s.fault(at, "CPU used twice", "CPU %d is pinned to two loops. Give each loop one of its own.", cpu)
		}
		seen[cpu] = true
	}
	if c.Cores > 0 && len(c.Pin) > 0 && len(c.Pin) != c.Cores {
		s.fault(s.at(s.key+".pin"), "One CPU for each core", "%d CPUs are listed for %d cores. List as many as there are cores.", len(c.Pin), c.Cores)
	}
}

// node makes the node of a block, or tells and answers nil.
func (s *builder) node(b *hcl.Block) *graph.Instance {
	if len(b.Labels) != 2 {
		if len(b.Labels) == 1 {
			s.nodes[b.Labels[0]] = nil
		}
		s.labels(b, 2)
		return nil
	}
	kind, name := b.Labels[0], b.Labels[1]
	if !s.usableName(name, b.LabelRanges[1]) {
		return nil
	}
	if first, twice := s.heads[name]; twice {
		s.fault(conf.Head(b), "Name used twice", "There is a %s %q at %s already. Give one of them another name.", "node", name, where(first))
		return nil
	}
	s.heads[name] = conf.Head(b)
	s.seen(name, conf.Head(b))
	s.nodes[name] = nil
	k := graph.Lookup(kind)
	if k == nil {
		s.fault(b.LabelRanges[0], "Unknown kind", "There is no kind of node %q. %s", kind, conf.DidYouMean(kind, s.kinds()))
		return nil
	}
	if !s.plane(k, b.LabelRanges[0]) {
		return nil
	}
	inst := &graph.Instance{Kind: k, Name: name, Config: k.NewConfig(), Range: conf.Head(b)}
	if !s.configure(b, inst, s.key+"."+name, []string{"next"}) {
		s.bad[inst] = true
		inst.Outputs = k.Outputs
		inst.Edges = make([]*graph.Edge, len(inst.Outputs))
	}
	s.nodes[name] = inst
	s.g.Nodes = append(s.g.Nodes, inst)
	return inst
}

// plane tells of a kind that does not work on what this graph carries.
func (s *builder) plane(k *graph.Kind, at hcl.Range) bool {
	if k.Plane == s.g.Plane {
		return true
	}
	if k.Plane == graph.ControlPlane {
		s.fault(at, "Wrong plane", "%q is a control kind and handles no %ss. Write it as a block of its own: %s { … }.", k.Name, s.g.Plane, k.Name)
	} else {
		s.fault(at, "Wrong plane", "%q is a %s kind, and this is a %s block. Put it into a %s block.", k.Name, k.Plane, s.block, planeBlock(k.Plane))
	}
	return false
}

// kinds answers the names of the kinds that may stand in this graph.
func (s *builder) kinds() []string {
	var names []string
	for _, k := range graph.Kinds() {
		if k.Plane == s.g.Plane {
			names = append(names, k.Name)
		}
	}
	return names
}

// paths reads the path block.
func (s *builder) paths(b *hcl.Block) {
	attrs, blocks, diags := conf.Read(b.Body, nil)
	if s.tell(diags) {
		return
	}
	for _, x := range blocks {
		s.fault(x.TypeRange, "Block where an argument belongs", "%q is an argument. Write %s = … with an equals sign.", x.Type, x.Type)
	}
	order := make([]*hcl.Attribute, 0, len(attrs))
	for _, a := range attrs {
		order = append(order, a)
	}
	sort.Slice(order, func(i, j int) bool { return order[i].Range.Start.Byte < order[j].Range.Start.Byte })
	for _, a := range order {
		es, diags := hcl.ExprList(a.Expr)
		if diags.HasErrors() {
			s.fault(a.Expr.Range(), "Path is no list", "Path %q is not a list of nodes. Write %s = [first, second, …].", a.Name, a.Name)
			continue
		}
		if len(es) < 2 {
			s.fault(a.Expr.Range(), "Path leads nowhere", "Path %q needs two nodes at least. Add where it leads, or leave it out.", a.Name)
			continue
		}
		list := make([]step, len(es))
		for i, e := range es {
			list[i], _ = s.step(e)
		}
		if last := list[len(list)-1]; last.output != "" {
			s.fault(last.at, "Path ends in an output", "%s.%s is a way out of %q, and nothing follows. Write %s, or add the node that follows.", last.name, last.output, last.name, last.name)
		}
		for i := 0; i+1 < len(list); i++ {
			s.draws = append(s.draws, draw{list[i], list[i+1], hcl.RangeBetween(list[i].at, list[i+1].at)})
		}
	}
}

// step reads one element of a path. Its node is nil, and ok false, where a fault
// was told.
func (s *builder) step(e hcl.Expression) (st step, ok bool) {
	st.at = e.Range()
	t, diags := hcl.AbsTraversalForExpr(e)
	if diags.HasErrors() || len(t) > 2 {
		s.fault(st.at, "Not a node", "A path is made of node and node.output. Write a bare name, without quotes.")
		return st, false
	}
	st.name = t.RootName()
	if len(t) == 2 {
		a, isName := t[1].(hcl.TraverseAttr)
		if !isName {
			s.fault(st.at, "Not a node", "A path is made of node and node.output. Write a bare name, without quotes.")
			return st, false
		}
		st.output = a.Name
	}
	s.seen(st.name, st.at)
	inst, seen := s.nodes[st.name]
	if seen {
		st.node = inst
		return st, inst != nil
	}
	s.nodes[st.name] = nil
	k := graph.Lookup(st.name)
	if k == nil {
		s.fault(st.at, "Unknown node", "There is no node %q. %s", st.name, conf.DidYouMean(st.name, s.names()))
		return st, false
	}
	if !s.plane(k, st.at) {
		return st, false
	}
	inst = &graph.Instance{Kind: k, Name: st.name, Config: k.NewConfig(), Range: st.at}
	var missing []string
	for _, f := range conf.Document(inst.Config) {
		if f.Required {
			missing = append(missing, f.Name+" = …")
		}
	}
	if missing != nil {
		s.fault(st.at, "Node needs a block", "%q has arguments that are required. Write node %q %q { %s }.", k.Name, k.Name, "name", strings.Join(missing, "  "))
		return st, false
	}
	if !s.accept(inst, "") {
		return st, false
	}
	s.nodes[st.name] = inst
	s.g.Nodes = append(s.g.Nodes, inst)
	st.node = inst
	return st, true
}

// seen notes the first place at which a node is named.
func (s *builder) seen(name string, at hcl.Range) {
	if b, ok := s.first[name]; !ok || at.Start.Byte < b {
		s.first[name] = at.Start.Byte
	}
}

// names answers what may stand in a path.
func (s *builder) names() []string {
	var all []string
	for n, inst := range s.nodes {
		if inst != nil {
			all = append(all, n)
		}
	}
	sort.Strings(all)
	return append(all, s.kinds()...)
}

// edge draws an edge. Of several wrong ones from an output it tells one.
func (s *builder) edge(d draw) {
	from := d.from.node
	if from == nil || d.to.node == nil {
		return
	}
	name := d.from.output
	if name == "" {
		name = "next"
	}
	o := from.Output(name)
	if o < 0 {
		s.noOutput(d.from, name)
		return
	}
	e := from.Edges[o]
	if e == nil {
		from.Edges[o] = &graph.Edge{From: from, Output: o, To: d.to.node, Range: d.at}
		return
	}
	if e.To != d.to.node && !s.told[e] {
		s.told[e] = true
		s.fault(d.at, "Two edges from one output", "%s.%s leads to %q already, at %s. Leave one out.", from.Name, name, e.To.Name, where(e.Range))
	}
}

func (s *builder) noOutput(from step, name string) {
	if s.bad[from.node] {
		return
	}
	n := from.node
	var drawn, all []string
	for _, o := range n.Outputs {
		all = append(all, o.Name)
		if o.Else == graph.Must {
			drawn = append(drawn, n.Name+"."+o.Name)
		}
	}
	who := fmt.Sprintf("%q", n.Name)
	if n.Kind.Name != n.Name {
		who += " (" + n.Kind.Name + ")"
	}
	switch {
	case from.output == "" && len(drawn) == 0:
		s.fault(from.at, "Nothing follows this node", "Packets end at %s. End the path there.", who)
	case from.output == "":
		s.fault(from.at, "Output must be named", "%s has no output \"next\". Write %s.", who, strings.Join(drawn, " or "))
	case len(all) == 0:
		s.fault(from.at, "Nothing follows this node", "Packets end at %s. End the path there.", who)
	default:
		s.fault(from.at, "Unknown output", "%s has no output %q. %s", who, name, conf.DidYouMean(name, all))
	}
}
