package all_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	_ "github.com/lbgraph/lbgraph/control/all"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

// The graphs that the checker's own tests judge with stand-ins are judged with
// the real kinds here: good ones pass, wrong ones are refused at the same lines.
func TestGraphs(t *testing.T) {
	const dir = "../../graph/testdata"
	good, err := filepath.Glob(dir + "/good/*.hcl")
	if err != nil || len(good) < 10 {
		t.Fatalf("%d good graphs (%v)", len(good), err)
	}
	for _, path := range good {
		if _, diags := judge(path); len(diags) > 0 {
			t.Errorf("%s: %v", path, diags)
		}
	}
	wrong, err := filepath.Glob(dir + "/wrong/*.hcl")
	if err != nil || len(wrong) < 21 {
		t.Fatalf("%d wrong graphs (%v)", len(wrong), err)
	}
	place := regexp.MustCompile(`(?m)^  --> [a-z0-9_]+\.hcl:(\d+):`)
	for _, path := range wrong {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(src), "label") {
			continue // a kind of these tests alone
		}
		golden, err := os.ReadFile(strings.TrimSuffix(path, ".hcl") + ".golden")
		if err != nil {
			t.Fatal(err)
		}
		var want, got []int
		for _, m := range place.FindAllStringSubmatch(string(golden), -1) {
			n, _ := strconv.Atoi(m[1])
			want = append(want, n)
		}
		loaded, diags := judge(path)
		for _, d := range diags {
			got = append(got, d.Subject.Start.Line)
		}
		// What the loader tells is its own matter, but it has to be there.
		if !loaded && !slices.Contains(got, want[0]) || loaded && !slices.Equal(got, want) {
			t.Errorf("%s: told at lines %v, want %v: %v", path, got, want, diags)
		}
	}
}

func judge(path string) (loaded bool, diags hcl.Diagnostics) {
	f, diags := lang.Load(path, lang.Options{})
	if f != nil {
		diags = append(diags, graph.Check(f)...)
	}
	return f != nil, diags
}
