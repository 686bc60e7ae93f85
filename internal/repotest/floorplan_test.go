package repotest

import (
	"path"
	"strings"
	"testing"
)

// A rule says what the packages that a pattern matches may import of this module
// ("x/..." is x and all below it), and of others. The first rule that matches a
// package counts; a package that none matches is an error, so that a new one is
// placed on purpose.
type rule struct {
	packages string
	own      string // patterns, separated by blanks
	other    string // prefixes of foreign import paths; "*" is any, "" the standard library alone
}

const (
	level0  = "io/packet io/stream io/http1 io/ring control/state"
	drivers = "io/..."
)

var floorPlan = []rule{
	// 0: what everything stands on
	{"io/packet", "", ""},
	{"io/ring", "", ""},
	{"io/http1", "", ""},
	{"io/stream", "io/http1", "golang.org/x/sys"},
	{"control/state", "io/packet", ""},
	// 1, 2: the contract, the file
	{"graph/conf", level0, "github.com/hashicorp/hcl github.com/zclconf/go-cty"},
	{"graph", level0 + " graph/conf", "github.com/hashicorp/hcl github.com/zclconf/go-cty go.uber.org/zap"},
	{"graph/...", level0 + " graph/...", "*"},
	// 3: drivers, runtime, control, nodes, each apart from the others
	{"io/umem", level0, "golang.org/x/sys"},
	{"io/bpf", level0 + " io/umem", "*"},
	{"io/...", level0 + " graph " + drivers, "*"},
	{"runtime/...", level0 + " graph graph/conf runtime/...", "*"},
	{"control/all", "control/...", ""},
	{"control/*", level0 + " graph graph/conf io/watch", "*"},
	{"nodes/all", "nodes/packet/... nodes/stream/...", ""},
	{"nodes/nodetest", level0 + " graph graph/lang io/mem runtime/streams", "*"},
	{"nodes/*/*", level0 + " graph " + drivers, "*"},
	// 4: what runs a file, and the command
	{"daemon", "io/... graph/... runtime/... control/...", "*"},
	{"cases", "", ""}, // tests alone
	{"replay", "io/... graph/... runtime/... control/...", "*"},
	{"bench", "io/... graph/... runtime/... control/... nodes/... replay", "*"},
	{"bench/figures", "bench nodes/all", ""},
	{"bench/cputime", "", "golang.org/x/sys"},
	{"bench/streams", "bench/cputime", "github.com/vishvananda/netlink golang.org/x/sys"},
	{"bench/io", "bench/cputime daemon io/... graph/... runtime/... control/... nodes/all", "*"},
	{"cmd", "io/... graph/... runtime/... control/... nodes/... daemon replay bench internal/...", "*"},
	{"cmd/lbgraph", "cmd nodes/all control/all", ""},
	// beside it: tools of the repository, which nothing but cmd imports
	{"internal/...", "io/... graph/... runtime/... control/... nodes/... cmd", "*"},
}

func TestFloorPlan(t *testing.T) {
	for _, p := range packages(t) {
		r := ruleOf(p.Path)
		if r == nil {
			t.Errorf("%s has no place in the floor plan", p.Path)
			continue
		}
		for _, to := range p.Imports {
			if why := refuse(r, p.Path, to); why != "" {
				t.Errorf("%s imports %s: %s", p.Path, to, why)
			}
		}
	}
}

// The test of the test: imports that must not be.
func TestFloorPlanRefuses(t *testing.T) {
	for _, c := range [][2]string{
		{"io/packet", module + "/graph"},
		{"io/packet", "golang.org/x/sys/unix"},
		{"control/state", module + "/graph"},
		{"graph", module + "/graph/lang"},
		{"graph", module + "/runtime"},
		{"runtime", module + "/nodes/packet/parse"},
		{"runtime", module + "/io/xsk"},
		{"control/health", module + "/runtime"},
		{"control/health", module + "/control/bgp"},
		{"nodes/packet/parse", module + "/nodes/packet/conntrack"},
		{"nodes/packet/parse", module + "/runtime"},
		{"io/xsk", module + "/nodes/packet/parse"},
		{"cmd/lbgraph", module + "/runtime"},
	} {
		if refuse(ruleOf(c[0]), c[0], c[1]) == "" {
			t.Errorf("%s may import %s", c[0], c[1])
		}
	}
}

func ruleOf(p string) *rule {
	for i := range floorPlan {
		if matches(floorPlan[i].packages, p) {
			return &floorPlan[i]
		}
	}
	return nil
}

// refuse says why a package may not import another, or nothing.
func refuse(r *rule, from, to string) string {
	if own, ok := strings.CutPrefix(to, module+"/"); ok {
		for _, pattern := range strings.Fields(r.own) {
			if matches(pattern, own) && !(kind(from) != "" && kind(own) != "" && kind(from) != kind(own)) {
				return ""
			}
		}
		return "it may import " + r.own + " of this module, and no node another"
	}
	if !strings.Contains(strings.Split(to, "/")[0], ".") {
		return "" // the standard library
	}
	for _, prefix := range strings.Fields(r.other) {
		if prefix == "*" || strings.HasPrefix(to, prefix) {
			return ""
		}
	}
	return "of other modules it may import " + r.other
}

// kind answers nodes/PLANE/NAME of a package that is or belongs to a node.
func kind(p string) string {
	if e := strings.Split(p, "/"); len(e) >= 3 && e[0] == "nodes" {
		return path.Join(e[:3]...)
	}
	return ""
}

func matches(pattern, p string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == below || strings.HasPrefix(p, below+"/")
	}
	ok, err := path.Match(pattern, p)
	return ok && err == nil
}
