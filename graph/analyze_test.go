package graph_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	g "github.com/lbgraph/lbgraph/graph"
)

func analyze(t *testing.T, name string) (*g.Graph, *g.Analysis) {
	t.Helper()
	gr := load(t, "testdata/good/"+name+".hcl").Graphs[0]
	a, diags := g.Analyze(gr)
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	return gr, a
}

func TestOrder(t *testing.T) {
	for name, want := range map[string]string{
		"sample":   "rx parse vip-classify frag-pin icmp-vip ct maglev-select clamp mtu gre tx",
		"steering": "rx parse vip-classify icmp-vip spread frag-pin ct maglev-select clamp mtu gre collect tx",
	} {
		_, a := analyze(t, name)
		var got []string
		at := map[*g.Instance]int{}
		for i, n := range a.Order {
			got = append(got, n.Name)
			at[n] = i
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", name, strings.Join(got, " "), want)
		}
		for _, n := range a.Order {
			for _, e := range n.Edges {
				if e != nil && at[e.To] <= at[n] {
					t.Errorf("%s: %s stands before %s", name, e.To, n)
				}
			}
		}
	}
}

// What the sample's facts are, worked out by hand from the catalogue.
func TestFactsOfTheSample(t *testing.T) {
	gr, a := analyze(t, "sample")
	for name, want := range map[string]string{
		"rx":           "nothing",
		"vip-classify": "l3, l4, flow | l3, fragment | l3, icmp",
		"ct":           "l3, l4, flow, vip | l3, icmp, flow, vip",
		"mtu":          "l3, l4, flow, vip, backend | l3, icmp, flow, vip, backend | l3, fragment, flow, vip, backend",
		"tx":           "l3, flow, vip, backend, encap, outbound | l3, icmp, outbound",
	} {
		var got []string
		for _, f := range a.Entry(gr.Node(name)) {
			got = append(got, f.String())
		}
		if strings.Join(got, " | ") != want {
			t.Errorf("%s: %s, want %s", name, strings.Join(got, " | "), want)
		}
	}
	mtu := gr.Node("mtu")
	reply := mtu.Edges[mtu.Output("reply")]
	if got := a.On(reply); !slices.Equal(got, []g.Facts{g.L3 | g.ICMP | g.Outbound}) {
		t.Errorf("on mtu.reply: %v", got)
	}
	edges, ok := a.Way(mtu, g.L3|g.Fragment|g.Flow|g.VIP|g.Backend)
	if got := strings.Join(g.Steps(edges), " "); !ok || got != "rx parse.fragment vip-classify.fragment frag-pin.pinned mtu" {
		t.Errorf("fragments come to mtu by %s (%v)", got, ok)
	}
	if _, ok := a.Way(mtu, g.Encap); ok {
		t.Error("a way that is none")
	}
}

func TestOverheadAndHeadroom(t *testing.T) {
	for _, c := range []struct{ file, node, want string }{
		{"sample", "clamp", "24 44"},
		{"sample", "mtu", "24 44"},
		{"sample", "rx", "24 44"},
		{"sample", "gre", "24 44"},
		{"sample", "tx", "0 0"},
		{"steering", "mtu", "24 44"},
		{"two_uplinks", "ttl", "20 40"},
		{"two_encaps", "mtu1", "24 44"},
		{"two_encaps", "mtu2", "20 40"},
		{"two_encaps", "ct", "24 44"}, // differs by way; nothing there asks
		{"reflector", "rx", "0 0"},
		{"replay", "mtu", "32 52"},
	} {
		gr, a := analyze(t, c.file)
		if v4, v6 := a.Overhead(gr.Node(c.node)); fmt.Sprint(v4, v6) != c.want {
			t.Errorf("%s: overhead behind %s is %d %d, want %s", c.file, c.node, v4, v6, c.want)
		}
	}
	if _, a := analyze(t, "sample"); a.Headroom != 44 {
		t.Errorf("headroom of the sample is %d, want 44", a.Headroom)
	}
	if _, a := analyze(t, "reflector"); a.Headroom != 0 {
		t.Errorf("headroom of the reflector is %d, want 0", a.Headroom)
	}
}

// Whatever a file draws, the analysis ends, and what it answers holds together.
func TestRandomGraphs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var kinds []*g.Kind
	for _, k := range g.Kinds() {
		if k.Plane == g.PacketPlane {
			kinds = append(kinds, k)
		}
	}
	good := 0
	for range 3000 {
		gr := &g.Graph{Name: "random", Plane: g.PacketPlane, GraphConfig: g.GraphDefaults()}
		for i := range 2 + r.IntN(10) {
			k := kinds[r.IntN(len(kinds))]
			n := &g.Instance{Kind: k, Name: fmt.Sprintf("%s%d", k.Name, i), Config: k.NewConfig()}
			n.Outputs = k.OutputsOf(n.Config)
			n.Edges = make([]*g.Edge, len(n.Outputs))
			gr.Nodes = append(gr.Nodes, n)
		}
		for _, n := range gr.Nodes {
			for i, o := range n.Outputs {
				if o.Else == g.Must || r.IntN(3) == 0 {
					n.Edges[i] = &g.Edge{From: n, Output: i, To: gr.Nodes[r.IntN(len(gr.Nodes))]}
				}
			}
		}
		a, diags := g.Analyze(gr)
		if !diags.HasErrors() {
			good++
		}
		at := map[*g.Instance]int{}
		for i, n := range a.Order {
			if _, twice := at[n]; twice {
				t.Fatalf("%s stands twice in the order", n)
			}
			at[n] = i
		}
		for _, n := range gr.Nodes {
			_, reached := at[n]
			if !reached && len(a.Entry(n)) > 0 {
				t.Fatalf("%s is not reached, but something comes to it", n)
			}
			for _, f := range a.Entry(n) {
				if !f.Has(n.Kind.Needs) || f&n.Kind.Forbids != 0 {
					t.Fatalf("%s takes %s", n, f)
				}
				edges, ok := a.Way(n, f)
				if !ok {
					t.Fatalf("no way brings %s to %s", f, n)
				}
				// The way, walked again, gives the facts.
				held := g.Facts(0)
				for i, e := range edges {
					if i > 0 && e.From != edges[i-1].To || i == 0 && !e.From.Kind.Source {
						t.Fatalf("the way to %s is broken: %v", n, g.Steps(edges))
					}
					o := e.From.Outputs[e.Output]
					held = held&^o.Removes | o.Gives
				}
				if held != f || len(edges) > 0 && edges[len(edges)-1].To != n {
					t.Fatalf("%v gives %s, not %s", g.Steps(edges), held, f)
				}
			}
		}
		var b bytes.Buffer
		if err := g.Dot(&b, &g.File{Path: "random", Graphs: []*g.Graph{gr}}, g.DotOptions{Facts: true}); err != nil {
			t.Fatal(err)
		}
		for _, n := range gr.Nodes {
			if err := a.ExplainNode(&b, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d of 3000 graphs are good", good)
}

// Where ways meet, the one that takes most headroom counts, whichever the file draws
// first.
func TestHeadroomOfSeveralWays(t *testing.T) {
	for _, labelFirst := range []bool{true, false} {
		gr := &g.Graph{Name: "ways", Plane: g.PacketPlane, GraphConfig: g.GraphDefaults()}
		for _, name := range []string{"xdp-rx", "parse", "label", "gre-encap"} {
			k := g.Lookup(name)
			n := &g.Instance{Kind: k, Name: name, Config: k.NewConfig()}
			n.Outputs = k.OutputsOf(n.Config)
			n.Edges = make([]*g.Edge, len(n.Outputs))
			gr.Nodes = append(gr.Nodes, n)
		}
		at := 0
		draw := func(from, output, to string) {
			n := gr.Node(from)
			e := &g.Edge{From: n, Output: n.Output(output), To: gr.Node(to)}
			at++
			e.Range.Start.Byte = at
			n.Edges[e.Output] = e
		}
		draw("xdp-rx", "next", "parse")
		draw("parse", "next", "label")
		if labelFirst {
			draw("label", "next", "gre-encap")
			draw("parse", "fragment", "gre-encap")
		} else {
			draw("parse", "fragment", "gre-encap")
			draw("label", "next", "gre-encap")
		}
		label, gre := g.Lookup("label").Headroom, g.Lookup("gre-encap").Headroom
		if a, _ := g.Analyze(gr); label == 0 || gre == 0 || a.Headroom != label+gre {
			t.Errorf("label drawn first %v: headroom %d, want %d + %d", labelFirst, a.Headroom, label, gre)
		}
	}
}
