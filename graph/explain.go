package graph

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/lbgraph/lbgraph/graph/conf"
)

// Description is all there is to say about a kind, as explain, nodes and the
// reference pages print it and as programs read it. Facts are names.
type Description struct {
	Kind      string       `json:"kind"`
	Plane     string       `json:"plane"`
	Summary   string       `json:"summary"`
	Source    bool         `json:"source,omitempty"`
	Single    bool         `json:"single,omitempty"`
	Needs     []string     `json:"needs,omitempty"`
	Forbids   []string     `json:"forbids,omitempty"`
	Arguments []Argument   `json:"arguments,omitempty"`
	Outputs   []OutputDoc  `json:"outputs,omitempty"`
	Counters  []CounterDoc `json:"counters,omitempty"`
	// Headroom and Overhead are bytes, Frames numbers a core, all with the
	// defaults of the kind.
	Headroom   int `json:"headroom,omitempty"`
	Overhead4  int `json:"overhead_v4,omitempty"`
	Overhead6  int `json:"overhead_v6,omitempty"`
	HoldFrames int `json:"frames_held,omitempty"`
	MakeFrames int `json:"frames_made,omitempty"`
}

// Argument describes an argument or a nested block.
type Argument struct {
	Name      string     `json:"name"`
	Type      string     `json:"type"`
	Required  bool       `json:"required,omitempty"`
	Default   string     `json:"default,omitempty"`
	Bounds    string     `json:"bounds,omitempty"` // "1 to 1000", "at least 1", "tcp, udp"
	Doc       string     `json:"doc,omitempty"`
	Arguments []Argument `json:"arguments,omitempty"`
}

// OutputDoc describes an output.
type OutputDoc struct {
	Name    string   `json:"name"`
	Only    []string `json:"only,omitempty"`
	Gives   []string `json:"gives,omitempty"`
	Removes []string `json:"removes,omitempty"`
	// Fate is what becomes of packets if the file draws no edge: must (an error),
	// drop or punt. Reason: all that the output does is name why packets drop.
	Fate   string `json:"fate"`
	Reason bool   `json:"reason,omitempty"`
	Reply  bool   `json:"reply,omitempty"`
	// Status answers requests that end here, on streams.
	Status int    `json:"status,omitempty"`
	Doc    string `json:"doc,omitempty"`
}

// CounterDoc describes a counter.
type CounterDoc struct {
	Name string `json:"name"`
	Doc  string `json:"doc,omitempty"`
}

// Describe answers the description of k as it is by default.
func Describe(k *Kind) Description {
	c := k.NewConfig()
	d := Description{
		Kind: k.Name, Plane: k.Plane.String(), Summary: k.Summary, Source: k.Source, Single: k.Single,
		Needs: factNamesOf(k.Needs), Forbids: factNamesOf(k.Forbids),
		Arguments: Arguments(conf.Document(c)), Headroom: k.Headroom,
	}
	d.Overhead4, d.Overhead6 = k.Overhead(c)
	d.HoldFrames, d.MakeFrames = k.Frames(c)
	for _, o := range k.OutputsOf(c) {
		d.Outputs = append(d.Outputs, OutputDoc{o.Name, factNamesOf(o.Only), factNamesOf(o.Gives), factNamesOf(o.Removes), o.Else.String(), o.reason(), o.Reply, o.Status, o.Doc})
	}
	for _, c := range k.Counters {
		d.Counters = append(d.Counters, CounterDoc(c))
	}
	return d
}

// Arguments describes the fields of a configuration struct.
func Arguments(fields []conf.Field) []Argument {
	var all []Argument
	for _, f := range fields {
		a := Argument{Name: f.Name, Type: f.Type, Required: f.Required, Default: f.Default, Doc: f.Doc, Arguments: Arguments(f.Fields)}
		switch {
		case len(f.Enum) > 0:
			a.Bounds = list(f.Enum, "or")
		case f.Lo != "" && f.Hi != "":
			a.Bounds = f.Lo + " to " + f.Hi
		case f.Lo != "":
			a.Bounds = "at least " + f.Lo
		case f.Hi != "":
			a.Bounds = "at most " + f.Hi
		}
		all = append(all, a)
	}
	return all
}

func factNamesOf(f Facts) []string {
	if f == 0 {
		return nil
	}
	return factList(f)
}

// Effect says in words what an output does to a packet; "" for nothing.
func (o OutputDoc) Effect() string {
	var parts []string
	if len(o.Only) > 0 {
		parts = append(parts, "only with "+strings.Join(o.Only, ", "))
	}
	if len(o.Gives) > 0 {
		parts = append(parts, "gives "+strings.Join(o.Gives, ", "))
	}
	if len(o.Removes) > 0 {
		parts = append(parts, "removes "+strings.Join(o.Removes, ", "))
	}
	return strings.Join(parts, "; ")
}

// FateWords says what becomes of packets without an edge.
func (o OutputDoc) FateWords() string {
	if o.Status > 0 {
		return fmt.Sprintf("is answered with %d", o.Status)
	}
	return map[string]string{"must": "must be drawn", "drop": "drops", "punt": "to the kernel"}[o.Fate]
}

// Takes says in words what the kind asks of packets.
func (d Description) Takes() string {
	noun := map[string]string{"packet": "packet", "stream": "connection"}[d.Plane]
	var parts []string
	switch {
	case d.Source:
		return "Begins a graph: no edge leads to it."
	case noun == "":
		return ""
	case len(d.Needs) == 0 && len(d.Forbids) == 0:
		return "Takes every " + noun + "."
	case len(d.Needs) > 0:
		parts = append(parts, "Needs "+list(d.Needs, "and")+" on every "+noun+".")
	}
	if len(d.Forbids) > 0 {
		parts = append(parts, "Takes no "+noun+" with "+list(d.Forbids, "or")+".")
	}
	return strings.Join(parts, " ")
}

// Costs says in words what the kind takes of frames, "" for nothing.
func (d Description) Costs() string {
	var parts []string
	if d.Headroom > 0 {
		parts = append(parts, fmt.Sprintf("Writes up to %d bytes in front of a packet.", d.Headroom))
	}
	if d.Overhead4 > 0 || d.Overhead6 > 0 {
		parts = append(parts, fmt.Sprintf("Makes packets %d bytes longer over IPv4 and %d over IPv6.", d.Overhead4, d.Overhead6))
	}
	if d.HoldFrames > 0 {
		parts = append(parts, fmt.Sprintf("May hold %d packets on each core.", d.HoldFrames))
	}
	if d.MakeFrames > 0 {
		parts = append(parts, fmt.Sprintf("May make %d packets of its own in a pass.", d.MakeFrames))
	}
	return strings.Join(parts, " ")
}

// Text answers how an argument's value is given: type, bounds, default.
func (a Argument) Text() string {
	s := a.Type
	if a.Bounds != "" {
		s += ", " + a.Bounds
	}
	switch {
	case a.Required:
		s += ", required"
	case a.Default != "" && a.Default != `""` && a.Default != "[]" && a.Default != "{}":
		s += ", default " + a.Default
	}
	return s
}

// Explain writes what there is to say about a kind.
func Explain(w io.Writer, k *Kind) error {
	d := Describe(k)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s.\n", d.Kind, d.Summary)
	if t := d.Takes(); t != "" {
		fmt.Fprintf(&b, "%s\n", t)
	}
	if c := d.Costs(); c != "" {
		fmt.Fprintf(&b, "%s\n", c)
	}
	if d.Single {
		b.WriteString("A file can have one of it.\n")
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.TabIndent)
	if len(d.Arguments) > 0 {
		fmt.Fprint(t, "\nArguments\n")
		explainArguments(t, d.Arguments, "  ")
	}
	t.Flush()
	if len(d.Outputs) > 0 {
		noun := "packets"
		if d.Plane == "stream" {
			noun = "connections and requests"
		}
		fmt.Fprintf(t, "\nOutputs, and what becomes of %s where none is drawn\n", noun)
		for _, o := range d.Outputs {
			row(t, "  "+o.Name, o.FateWords(), o.Effect(), o.Doc)
		}
	}
	t.Flush()
	if len(d.Counters) > 0 {
		fmt.Fprint(t, "\nCounters\n")
		for _, c := range d.Counters {
			row(t, "  "+c.Name, c.Doc)
		}
	}
	t.Flush()
	_, err := io.WriteString(w, trimLines(b.String()))
	return err
}

func explainArguments(t io.Writer, all []Argument, indent string) {
	for _, a := range all {
		row(t, indent+a.Name, a.Text(), a.Doc)
		explainArguments(t, a.Arguments, indent+"  ")
	}
}

func row(t io.Writer, cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }

// trimLines drops the blanks that aligned columns leave at the ends of lines.
func trimLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// NodePlace is what is known about a node's place in its graph, as programs read
// it.
type NodePlace struct {
	Graph     string `json:"graph"`
	Node      string `json:"node"`
	Kind      string `json:"kind"`
	Entry     []Came `json:"entry"`
	Exits     []Exit `json:"exits"`
	Overhead4 int    `json:"overhead_v4"` // bytes that it and what stands behind it add
	Overhead6 int    `json:"overhead_v6"`
}

// Came is one exact set of facts, and the way by which packets come to hold it
// that the file draws first.
type Came struct {
	Facts []string `json:"facts"`
	Steps []Step   `json:"way"`
}

// Step is a node of a way, NODE.OUTPUT where it is left by another output than
// next, and what this changes.
type Step struct {
	At      string   `json:"at"`
	Gives   []string `json:"gives,omitempty"`
	Removes []string `json:"removes,omitempty"`
}

// Exit is an output and where packets go from it.
type Exit struct {
	Output string     `json:"output"`
	To     string     `json:"to,omitempty"`   // node
	Fate   string     `json:"fate,omitempty"` // without an edge: must, drop or punt
	Facts  [][]string `json:"facts"`          // exact sets; none if no packet leaves here
}

// Place answers what is known about n's place.
func (a *Analysis) Place(n *Instance) NodePlace {
	p := NodePlace{Graph: a.Graph.Name, Node: n.Name, Kind: n.Kind.Name}
	p.Overhead4, p.Overhead6 = a.Overhead(n)
	entry := a.Entry(n)
	for _, f := range entry {
		edges, _ := a.Way(n, f)
		c := Came{Facts: factNamesOf(f)}
		held := Facts(0)
		for _, e := range edges {
			now := e.From.leave(e.From.Outputs[e.Output], held) &^ marks
			c.Steps = append(c.Steps, Step{e.From.out(e.Output), factNamesOf(now &^ held), factNamesOf(held &^ now)})
			held = now
		}
		c.Steps = append(c.Steps, Step{At: n.Name})
		p.Entry = append(p.Entry, c)
	}
	for i, o := range n.Outputs {
		x := Exit{Output: o.Name}
		if e := n.Edges[i]; e != nil {
			x.To = e.To.Name
		} else {
			x.Fate = o.Else.String()
		}
		seen := map[Facts]bool{}
		for _, f := range entry {
			if g := n.leave(o, f) &^ marks; f.Has(o.Only) && !seen[g] {
				seen[g] = true
				x.Facts = append(x.Facts, factNamesOf(g))
			}
		}
		p.Exits = append(p.Exits, x)
	}
	return p
}

// ExplainNode writes which facts hold on what comes to n, by which way they came
// to hold, and what leaves where.
func (a *Analysis) ExplainNode(w io.Writer, n *Instance) error {
	p := a.Place(n)
	var b strings.Builder
	fmt.Fprintf(&b, "%s in graph %q, %s:%d\nIt %s.\n", n, p.Graph, n.Range.Filename, n.Range.Start.Line, n.Kind.Summary)
	if t := Describe(n.Kind).Takes(); t != "" {
		fmt.Fprintf(&b, "%s\n", t)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(p.Entry) == 0 {
		fmt.Fprintf(&b, "\nNo %s comes to it.\n", a.Graph.noun(1))
	}
	for i, c := range p.Entry {
		if n.Kind.Source {
			break
		}
		if i == 0 {
			b.WriteString("\nWhat comes in holds exactly\n")
		}
		fmt.Fprintf(&b, "\n  %s\n", factText(c.Facts))
		for _, s := range c.Steps {
			var change []string
			if len(s.Gives) > 0 {
				change = append(change, "+ "+strings.Join(s.Gives, ", "))
			}
			if len(s.Removes) > 0 {
				change = append(change, "- "+strings.Join(s.Removes, ", "))
			}
			row(t, "      "+s.At, strings.Join(change, "  "))
		}
		t.Flush()
	}
	if len(p.Exits) > 0 {
		b.WriteString("\nWhat leaves\n\n")
	}
	requests := slices.ContainsFunc(a.Entry(n), func(f Facts) bool { return f.Has(HTTP) })
	var reasons, answers []string
	for i, x := range p.Exits {
		if o := n.Outputs[i]; x.To == "" && o.reason() {
			if requests && answered(o) {
				answers = append(answers, fmt.Sprintf("%d as %s", o.Status, o.Name))
			} else {
				reasons = append(reasons, x.Output)
			}
			continue
		}
		to := map[string]string{"must": "nowhere", "drop": "drops", "punt": "to the kernel"}[x.Fate]
		if x.To != "" {
			to = "to " + x.To
		}
		holds := "-"
		for i, f := range x.Facts {
			if i > 0 {
				row(t, "  "+x.Output, to, holds)
				x.Output, to = "", ""
			}
			holds = factText(f)
		}
		row(t, "  "+x.Output, to, holds)
	}
	t.Flush()
	if len(reasons) > 0 {
		verb := "drops"
		if a.Graph.Plane == StreamPlane {
			verb = "closes"
		}
		fmt.Fprintf(&b, "  %s as %s\n", verb, list(reasons, "or"))
	}
	if len(answers) > 0 {
		fmt.Fprintf(&b, "  answers %s\n", list(answers, "or"))
	}
	if p.Overhead4 > 0 || p.Overhead6 > 0 {
		fmt.Fprintf(&b, "\nFrom here on, encapsulation adds %d bytes over IPv4 and %d over IPv6.\n", p.Overhead4, p.Overhead6)
	}
	_, err := io.WriteString(w, trimLines(b.String()))
	return err
}

func factText(names []string) string { return cmp.Or(strings.Join(names, ", "), "nothing") }
