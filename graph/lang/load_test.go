package lang_test

import (
	"os"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph/lang"
)

// load reads src under a fixed name and fails the test on any diagnostic.
func TestSample(t *testing.T) {
	src, err := os.ReadFile("testdata/sample.hcl")
	if err != nil {
		t.Fatal(err)
	}
	f, diags := lang.LoadBytes("lb.hcl", src, lang.Options{})
	if len(diags) > 0 {
		var b strings.Builder
		lang.WriteDiagnostics(&b, diags, map[string][]byte{"lb.hcl": src}, false)
		t.Fatal(b.String())
	}
	var edges []string
	for _, n := range f.Graphs[0].Nodes {
		for _, e := range n.Edges {
			if e != nil {
				edges = append(edges, n.Name+"."+n.Outputs[e.Output].Name+">"+e.To.Name)
			}
		}
	}
	want := "rx.next>parse parse.next>vip-classify parse.fragment>vip-classify parse.icmp>vip-classify " +
		"vip-classify.next>frag-pin vip-classify.fragment>frag-pin vip-classify.icmp>icmp-vip frag-pin.next>ct frag-pin.pinned>mtu " +
		"ct.hit>clamp ct.miss>maglev-select clamp.next>mtu mtu.next>gre mtu.reply>tx gre.next>tx " +
		"maglev-select.next>clamp icmp-vip.next>ct icmp-vip.reply>tx"
	if got := strings.Join(edges, " "); got != want {
		t.Errorf("edges\n got %s\nwant %s", got, want)
	}
}
