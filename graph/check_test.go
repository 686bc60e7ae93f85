package graph_test

import (
	"flag"
	"fmt"
	"maps"

	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/lbgraph/lbgraph/control/state"
	g "github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

var update = flag.Bool("update", false, "write the golden files anew")

// load reads what these tests need of a file, without the language around it:
// graphs with paths and nodes, control blocks without arguments, the names of pools
// and names and ports of their backends, and addresses of VIPs.
func load(t testing.TB, path string) *g.File {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parsed, diags := hclsyntax.ParseConfig(src, filepath.Base(path), hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	f := &g.File{Path: path, Sources: map[string][]byte{filepath.Base(path): src}, Places: map[string]hcl.Range{}}
	for _, b := range parsed.Body.(*hclsyntax.Body).Blocks {
		switch b.Type {
		case "graph", "stream":
			f.Graphs = append(f.Graphs, loadGraph(t, f, b))
		case "vip":
			v, _ := b.Body.Attributes["address"].Expr.Value(nil)
			f.Places["vip."+b.Labels[0]+".address"] = b.Body.Attributes["address"].Expr.Range()
			a := netip.MustParseAddr(v.AsString())
			f.Spec.VIPs = append(f.Spec.VIPs, state.VIPSpec{Name: b.Labels[0], Prefix: netip.PrefixFrom(a, a.BitLen())})
		case "pool":
			p := state.PoolSpec{Name: b.Labels[0]}
			for _, k := range b.Body.Blocks {
				x := state.BackendSpec{Name: k.Labels[0]}
				if a := k.Body.Attributes["port"]; a != nil {
					v, _ := a.Expr.Value(nil)
					n, _ := v.AsBigFloat().Int64()
					x.Port = int(n)
				}
				f.Places["pool."+p.Name+"."+x.Name] = k.DefRange()
				p.Backends = append(p.Backends, x)
			}
			f.Spec.Pools = append(f.Spec.Pools, p)
		default:
			f.Controls = append(f.Controls, instance(t, b.Type, b.Type, b.DefRange(), nil))
		}
	}
	return f
}

func instance(t testing.TB, kind, name string, at hcl.Range, body hcl.Body) *g.Instance {
	t.Helper()
	k := g.Lookup(kind)
	if k == nil {
		t.Fatalf("%s: no kind %q", at, kind)
	}
	n := &g.Instance{Kind: k, Name: name, Config: k.NewConfig(), Range: at}
	if body != nil {
		if diags := conf.Decode(body, nil, n.Config); diags.HasErrors() {
			t.Fatal(diags)
		}
	}
	n.Outputs = k.OutputsOf(n.Config)
	n.Edges = make([]*g.Edge, len(n.Outputs))
	return n
}

func loadGraph(t testing.TB, f *g.File, b *hclsyntax.Block) *g.Graph {
	t.Helper()
	gr := &g.Graph{Name: b.Labels[0], Plane: map[string]g.Plane{"graph": g.PacketPlane, "stream": g.StreamPlane}[b.Type], GraphConfig: g.GraphDefaults(), Range: b.DefRange()}
	if diags := conf.DecodeBlock(b.AsHCLBlock(), nil, &gr.GraphConfig, conf.Options{
		Skip:  []string{"path", "node"},
		Place: func(path string, at hcl.Range) { f.Places["graph."+gr.Name+"."+path] = at },
	}); diags.HasErrors() {
		t.Fatal(diags)
	}
	bodies := map[string]*hclsyntax.Block{}
	var paths []*hclsyntax.Attribute
	for _, in := range b.Body.Blocks {
		if in.Type == "node" {
			bodies[in.Labels[1]] = in
			continue
		}
		for _, a := range in.Body.Attributes {
			paths = append(paths, a)
		}
	}
	slices.SortFunc(paths, func(x, y *hclsyntax.Attribute) int { return x.SrcRange.Start.Byte - y.SrcRange.Start.Byte })
	node := func(name string, at hcl.Range) *g.Instance {
		if n := gr.Node(name); n != nil {
			return n
		}
		kind, body := name, hcl.Body(nil)
		if in := bodies[name]; in != nil {
			kind, body, at = in.Labels[0], in.Body, in.DefRange()
		}
		n := instance(t, kind, name, at, body)
		gr.Nodes = append(gr.Nodes, n)
		return n
	}
	for _, p := range paths {
		elements, diags := hcl.ExprList(p.Expr)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		var from *g.Instance
		output := ""
		var at hcl.Range
		for _, e := range elements {
			tr, diags := hcl.AbsTraversalForExpr(e)
			if diags.HasErrors() {
				t.Fatal(diags)
			}
			to := node(tr.RootName(), e.Range())
			if from != nil {
				draw(t, from, output, to, hcl.RangeBetween(at, e.Range()))
			}
			from, output, at = to, "next", e.Range()
			if len(tr) > 1 {
				output = tr[1].(hcl.TraverseAttr).Name
			}
		}
	}
	for _, in := range b.Body.Blocks {
		if in.Type == "node" {
			node(in.Labels[1], in.DefRange())
		}
	}
	return gr
}

func draw(t testing.TB, from *g.Instance, output string, to *g.Instance, at hcl.Range) {
	t.Helper()
	i := from.Output(output)
	if i < 0 {
		t.Fatalf("%s: %s has no output %q", at, from, output)
	}
	if from.Edges[i] == nil {
		from.Edges[i] = &g.Edge{From: from, Output: i, To: to, Range: at}
	} else if from.Edges[i].To != to {
		t.Fatalf("%s: two edges from %s.%s", at, from.Name, output)
	}
}

// show prints diagnostics with the text they point at.
func show(f *g.File, diags hcl.Diagnostics) string {
	var b strings.Builder
	for _, d := range diags {
		severity := "error"
		if d.Severity == hcl.DiagWarning {
			severity = "warning"
		}
		fmt.Fprintf(&b, "%s: %s\n  --> %s:%d:%d\n   | %s\n", severity, d.Summary, d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column,
			d.Subject.SliceBytes(f.Sources[d.Subject.Filename]))
		for line := range strings.SplitSeq(d.Detail, "\n") {
			b.WriteString(strings.TrimRight("  "+line, " ") + "\n")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew)\n--- got\n%s\n--- want\n%s", path, got, want)
	}
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", dir, "*.hcl"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no files in testdata/%s (%v)", dir, err)
	}
	return all
}

func TestGoodGraphsPass(t *testing.T) {
	all := files(t, "good")
	if len(all) < 10 {
		t.Errorf("%d graphs; the sample and nine more are promised", len(all))
	}
	for _, path := range all {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := load(t, path)
			if diags := g.Check(f); len(diags) > 0 {
				t.Error(show(f, diags))
			}
		})
	}
}

func TestWrongGraphsAreRefused(t *testing.T) {
	all := files(t, "wrong")
	if len(all) < 21 {
		t.Errorf("%d graphs; 21 are promised", len(all))
	}
	for _, path := range all {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := load(t, path)
			diags := g.Check(f)
			src := f.Sources[filepath.Base(path)]
			if warned := strings.HasPrefix(string(src), "# A warning"); warned == diags.HasErrors() {
				t.Errorf("errors: %v, warning only: %v", diags.HasErrors(), warned)
			}
			for _, d := range diags {
				if n := len(strings.Fields(d.Summary)); n > 6 {
					t.Errorf("%q has %d words", d.Summary, n)
				}
			}
			golden(t, strings.TrimSuffix(path, ".hcl")+".golden", show(f, diags))
		})
	}
}

// optional are the stages that a graph is whole without.
var optional = []string{"mss-clamp", "mtu-check", "frag-pin", "source-filter", "ttl", "handoff", "count", "sample"}

// TestBentEdges bends every edge of every good graph to every other node of its
// graph. What is still accepted must be harmless: a packet that leaves has passed
// the same stages as before, less optional ones, in the same order; and unless
// the graph has sinks that take anything, such as a capture file, no packet that
// left before ends elsewhere now.
func TestBentEdges(t *testing.T) {
	bends, accepted := 0, 0
	for _, path := range files(t, "good") {
		f := load(t, path)
		for _, gr := range f.Graphs {
			before := stages(gr)
			greedy := slices.ContainsFunc(gr.Nodes, func(n *g.Instance) bool { return n.Kind.Sink() && n.Kind.Needs == 0 })
			for _, n := range gr.Nodes {
				for i, e := range n.Edges {
					if e == nil {
						continue
					}
					for _, to := range gr.Nodes {
						if to == e.To {
							continue
						}
						bends++
						bent := *e
						bent.To = to
						n.Edges[i] = &bent
						if diags := g.Check(f); !diags.HasErrors() {
							accepted++
							now := stages(gr)
							for _, s := range now {
								if !slices.Contains(before, s) {
									t.Errorf("%s: %s.%s bent from %s to %s is accepted, and what leaves may have passed %s", path, n.Name, n.Outputs[i].Name, e.To.Name, to.Name, s)
								}
							}
							if !greedy && len(now) < len(before) {
								t.Errorf("%s: %s.%s bent from %s to %s is accepted, and leaves only\n%s\nof\n%s", path, n.Name, n.Outputs[i].Name, e.To.Name, to.Name, strings.Join(now, "\n"), strings.Join(before, "\n"))
							}
						}
						n.Edges[i] = e
					}
				}
			}
		}
	}
	t.Logf("%d bends, %d accepted", bends, accepted)
	if bends < 382 {
		t.Errorf("%d bends; 382 are promised", bends)
	}
}

// stages answers, for every way on which a packet can come to a node that
// transmits, its kinds, less the optional ones and what these answer themselves.
func stages(gr *g.Graph) []string {
	seen := map[string]bool{}
	var walk func(n *g.Instance, f g.Facts, passed string)
	walk = func(n *g.Instance, f g.Facts, passed string) {
		skip := slices.Contains(optional, n.Kind.Name)
		if n.Kind.Sink() && n.Kind.Needs.Has(g.Outbound) {
			seen[passed+n.Kind.Name] = true
		}
		for i, o := range n.Outputs {
			if e := n.Edges[i]; e != nil && f.Has(o.Only) {
				p := passed
				switch {
				case skip && o.Reply:
					continue
				case o.Gives.Has(g.Backend) && !skip:
					p += "choose " // conntrack spares maglev-select and is spared by it
				case !skip && n.Kind.Name != "conntrack":
					p += n.Kind.Name + "." + o.Name + " "
				}
				walk(e.To, f&^o.Removes|o.Gives, p)
			}
		}
	}
	for _, n := range gr.Nodes {
		if n.Kind.Source {
			walk(n, 0, "")
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
