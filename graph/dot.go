package graph

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/lbgraph/lbgraph/control/state"
)

// DotOptions of Dot. The zero value is the plain drawing.
type DotOptions struct {
	// Facts writes the exact sets of facts on the edges.
	Facts bool
	// Counters, unless nil, answers how many packets came to a node (output "")
	// or left by one of its outputs; ok is false where that is not known.
	Counters func(graph, node, output string) (packets uint64, ok bool)
}

// Colours by role: fill, line.
var colours = map[string][2]string{
	"source":  {"#e2f3e7", "#2f7d4f"},
	"send":    {"#e1ecfa", "#2b62a6"},
	"choose":  {"#fdf1d8", "#b1741a"},
	"encap":   {"#efe6f8", "#6f42a0"},
	"plain":   {"#f5f6f7", "#59636e"},
	"stream":  {"#e0f2f1", "#1f7a74"},
	"end":     {"#f7e6e4", "#a4443a"},
	"control": {"#ffffff", "#8a939c"},
}

const (
	ink    = "#24292f"
	pale   = "#6b7680"
	dropC  = "#a4443a"
	punted = "#2b62a6"
)

// Dot writes f as a Graphviz drawing: each graph from its sources to its sinks, the
// main path heavy, undrawn fates as notes, and the control blocks on the state that
// nodes read. It stands below them; with both planes, between packets and streams.
func Dot(w io.Writer, f *File, o DotOptions) error {
	d := &dot{o: o}
	d.line("digraph %s {", quote(f.Path))
	d.line("  graph [rankdir=LR, fontname=\"Helvetica\", fontsize=12, fontcolor=%q, nodesep=0.22, ranksep=0.42, pad=0.25, bgcolor=\"white\", newrank=true];", ink)
	d.line("  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\", fontsize=11, fontcolor=%q, margin=\"0.13,0.07\", height=0.42, penwidth=1.2];", ink)
	d.line("  edge [fontname=\"Helvetica\", fontsize=9, fontcolor=%q, color=%q, arrowsize=0.65];", ink, pale)
	head := d.take()
	var packets, streams string
	for i, g := range f.Graphs {
		if d.graph(i, g); g.Plane == StreamPlane {
			streams += d.take()
		} else {
			packets += d.take()
		}
	}
	d.state(f)
	state := d.take()
	if packets != "" && streams != "" {
		// Graphviz places from below what it reads first.
		_, err := io.WriteString(w, head+streams+state+packets+"}\n")
		return err
	}
	_, err := io.WriteString(w, head+packets+streams+state+"}\n")
	return err
}

type dot struct {
	b       strings.Builder
	o       DotOptions
	readers []string // ids of nodes that read the state: all that give vip, backend, encap or pool
	middle  string   // the middle one of the last graph, below which the state stands
}

// take answers what was written since the last time.
func (d *dot) take() string {
	defer d.b.Reset()
	return d.b.String()
}

func (d *dot) line(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

func quote(s string) string { return strconv.Quote(s) }

// rich makes an HTML label of lines: the first bold, the others small.
func rich(lines ...string) string {
	s := "<<b>" + html.EscapeString(lines[0]) + "</b>"
	for _, l := range lines[1:] {
		s += fmt.Sprintf("<br/><font point-size=\"8.5\" color=%q>%s</font>", pale, html.EscapeString(l))
	}
	return s + ">"
}

// card makes an HTML label of lines, and more rows below.
func (d *dot) card(lines []string, more string) string {
	s := "<<table border=\"0\" cellborder=\"0\" cellspacing=\"0\" cellpadding=\"2\"><tr><td>"
	l := rich(lines...)
	return s + l[1:len(l)-1] + "</td></tr>" + more + "</table>>"
}

// role answers what colours a node.
func role(n *Instance) string {
	gives := Facts(0)
	for _, o := range n.Outputs {
		if !o.back() {
			gives |= o.Gives
		}
	}
	switch {
	case n.Kind.Source:
		return "source"
	case n.sink() && (n.Kind.Needs.Has(Outbound) || n.Kind.Needs.Has(Pool)):
		return "send"
	case gives.Has(Pool):
		return "choose"
	case n.Kind.Plane == StreamPlane:
		return "stream"
	case n.sink():
		return "end"
	case gives.Has(Encap):
		return "encap"
	case gives&(VIP|Backend) != 0:
		return "choose"
	}
	return "plain"
}

func (d *dot) graph(number int, g *Graph) {
	a, _ := Analyze(g)
	heavy, spine := mainPath(g)
	id := func(n *Instance) string { return quote(g.Name + "/" + n.Name) }
	d.line("")
	d.line("  subgraph cluster_%d {", number)
	block := "graph"
	if g.Plane == StreamPlane {
		block = "stream"
	}
	d.line("    label=<<b>%s %s</b>>; labeljust=l; style=\"rounded\"; color=\"#d0d7de\"; margin=14;", block, html.EscapeString(g.Name))
	first := len(d.readers)
	for _, n := range g.Nodes {
		lines := []string{n.Name}
		if n.Kind.Name != n.Name {
			lines = append(lines, n.Kind.Name)
		}
		if c, ok := d.count(g, n, ""); ok {
			lines = append(lines, c)
		}
		r := role(n)
		group := ""
		if spine[n] {
			group = ", group=main"
		}
		d.line("    %s [label=%s, fillcolor=%q, color=%q%s];", id(n), d.card(lines, d.fates(g, a, n)), colours[r][0], colours[r][1], group)
		if r == "choose" || r == "encap" {
			d.readers = append(d.readers, id(n))
		}
	}
	for _, n := range g.Nodes {
		// Edges of one look to one node are drawn as one.
		looks := map[string][]string{}
		var order []string
		straight := map[*Instance]bool{}
		for _, e := range drawn(n) {
			straight[e.To] = straight[e.To] || heavy[e]
		}
		for _, e := range drawn(n) {
			o := n.Outputs[e.Output]
			var label, look []string
			if o.Name != "next" {
				label = append(label, html.EscapeString(o.Name))
			}
			if c, ok := d.count(g, n, o.Name); ok {
				label = append(label, c)
			}
			if d.o.Facts {
				for _, f := range a.On(e) {
					label = append(label, fmt.Sprintf("<font point-size=\"7.5\" color=%q>%s</font>", pale, strings.ReplaceAll(f.String(), ", ", " ")))
				}
			}
			switch {
			case heavy[e]:
				look = append(look, "penwidth=2.6", "weight=60", fmt.Sprintf("color=%q", ink), "arrowsize=0.75")
			case o.back():
				look = append(look, fmt.Sprintf("color=%q, fontcolor=%q", colours["source"][1], colours["source"][1]))
			case o.reason():
				look = append(look, fmt.Sprintf("color=%q, fontcolor=%q", dropC, dropC), "style=dashed")
			}
			if straight[e.To] && !heavy[e] {
				look = append(look, "tailport=ne", "headport=nw")
			}
			key := fmt.Sprintf("    %s -> %s [%s", id(n), id(e.To), strings.Join(look, ", "))
			if _, had := looks[key]; !had {
				order = append(order, key)
			}
			looks[key] = append(looks[key], label...)
		}
		for _, key := range order {
			if looks[key] != nil {
				key += ", label=<" + strings.Join(looks[key], "<br/>") + ">"
			}
			d.line("%s];", strings.Replace(key, "[, ", "[", 1))
		}
	}
	d.line("  }")
	if n := len(d.readers) - first; n > 0 {
		d.middle = d.readers[first+n/2]
	}
}

// fates answers the rows of a node's label that say what becomes of packets, or of
// sessions, at undrawn outputs.
func (d *dot) fates(g *Graph, a *Analysis, n *Instance) string {
	requests := slices.ContainsFunc(a.Entry(n), func(f Facts) bool { return f.Has(HTTP) })
	text := ""
	for _, f := range []struct {
		title, paint string
		is           func(Output) bool
	}{
		{"drops", dropC, func(o Output) bool { return o.Else == Drop && g.Plane != StreamPlane }},
		{"closes", dropC, func(o Output) bool { return o.Else == Drop && g.Plane == StreamPlane && !(requests && answered(o)) }},
		{"answers", dropC, func(o Output) bool { return o.Else == Drop && requests && answered(o) }},
		{"to the kernel", punted, func(o Output) bool { return o.Else == Punt }},
	} {
		var names []string
		for i, o := range n.Outputs {
			if !f.is(o) || n.Edges[i] != nil {
				continue
			}
			name := o.Name
			if f.title == "answers" {
				name = fmt.Sprintf("%d %s", o.Status, o.Name)
			}
			if c, ok := d.count(g, n, o.Name); ok {
				name += " " + c
			}
			names = append(names, name)
		}
		if names == nil {
			continue
		}
		text += fmt.Sprintf("<tr><td align=\"left\" balign=\"left\"><font point-size=\"7.5\" color=%q><font color=%q>%s</font>", pale, f.paint, f.title)
		for _, row := range rows(names, 22) {
			text += "<br/>" + html.EscapeString(row)
		}
		text += "</font></td></tr>"
	}
	if text != "" {
		text = "<hr/>" + text
	}
	return text
}

// answered tells whether requests that end at an undrawn output are answered; 499 is
// for clients that are gone.
func answered(o Output) bool { return o.Status > 0 && o.Status != 499 }

// rows joins words to lines of at most so many letters.
func rows(words []string, width int) []string {
	var all []string
	for _, w := range words {
		if n := len(all); n > 0 && len(all[n-1])+2+len(w) <= width {
			all[n-1] += ", " + w
		} else {
			all = append(all, w)
		}
	}
	return all
}

func (d *dot) count(g *Graph, n *Instance, output string) (string, bool) {
	if d.o.Counters == nil {
		return "", false
	}
	c, ok := d.o.Counters(g.Name, n.Name, output)
	return short(c), ok
}

// short prints a count in at most four digits.
func short(n uint64) string {
	f, unit := float64(n), 0
	for ; f >= 1000 && unit < 5; unit++ {
		f /= 1000
	}
	if unit == 0 {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatFloat(f, 'f', max(0, 2-len(strconv.Itoa(int(f)))+1), 64) + []string{"", "k", "M", "G", "T", "P"}[unit]
}

// mainPath answers the edges and nodes from each source on that follow the first
// output that is drawn.
func mainPath(g *Graph) (map[*Edge]bool, map[*Instance]bool) {
	edges, nodes := map[*Edge]bool{}, map[*Instance]bool{}
	for _, n := range g.Nodes {
		if !n.Kind.Source {
			continue
		}
		for !nodes[n] {
			nodes[n] = true
			out := drawn(n)
			i := slices.IndexFunc(out, func(e *Edge) bool { return !n.Outputs[e.Output].reason() })
			if i < 0 {
				break
			}
			edges[out[i]] = true
			n = out[i].To
		}
	}
	return edges, nodes
}

// state draws VIPs and pools as what readers read, and the control blocks on it.
func (d *dot) state(f *File) {
	if len(f.Controls) == 0 && len(f.Spec.VIPs) == 0 && len(f.Spec.Pools) == 0 {
		return
	}
	var lines []string
	for _, v := range f.Spec.VIPs {
		lines = append(lines, fmt.Sprintf("vip %s  %s", v.Name, service(v)))
	}
	for _, p := range f.Spec.Pools {
		lines = append(lines, fmt.Sprintf("pool %s  %s", p.Name, backends(len(p.Backends))))
	}
	if more := len(lines) - 8; more > 1 {
		lines = append(lines[:8], fmt.Sprintf("and %d more", more))
	}
	d.line("")
	d.line("  state [shape=cylinder, style=filled, margin=\"0.16,0.14\", label=%s, fillcolor=%q, color=%q];", rich(append([]string{"state"}, lines...)...), colours["choose"][0], colours["choose"][1])
	if d.middle != "" {
		d.line("  { rank=same; state; %s; }", d.middle)
	}
	for _, id := range d.readers {
		d.line("  state -> %s [style=dashed, color=\"#c9a35f\", penwidth=0.8, arrowsize=0.5, constraint=false];", id)
	}
	for _, c := range f.Controls {
		lines := []string{c.Kind.Name}
		if c.Name != c.Kind.Name && c.Name != "" {
			lines = append(lines, c.Name)
		}
		id := quote("control " + c.Kind.Name + " " + c.Name)
		d.line("  %s [label=%s, fillcolor=%q, color=%q, style=\"rounded,filled,dashed\"];", id, rich(lines...), colours["control"][0], colours["control"][1])
		d.line("  %s -> state [style=dashed, arrowhead=none, color=%q];", id, colours["control"][1])
	}
}

func backends(n int) string {
	if n == 1 {
		return "1 backend"
	}
	return strconv.Itoa(n) + " backends"
}

func service(v state.VIPSpec) string {
	s := v.Prefix.String()
	if v.Prefix.IsSingleIP() {
		s = v.Prefix.Addr().String()
	}
	switch v.Protocol {
	case 6:
		s += " tcp"
	case 17:
		s += " udp"
	}
	for i, p := range v.Ports {
		s += map[bool]string{true: "/", false: ","}[i == 0]
		if s += strconv.Itoa(int(p.Lo)); p.Hi != p.Lo {
			s += "-" + strconv.Itoa(int(p.Hi))
		}
	}
	return s
}
