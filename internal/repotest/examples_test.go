package repotest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	_ "github.com/lbgraph/lbgraph/control/all"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

// judge loads and checks a file as the command does. What it includes is read from
// the repository.
func judge(path, text string) (*graph.File, hcl.Diagnostics) {
	o := lang.Options{
		Env: func(string) (string, bool) { return "", false },
		ReadFile: func(path string) ([]byte, error) {
			if !strings.HasPrefix(path, root) {
				path = filepath.Join(root, path)
			}
			return os.ReadFile(path)
		},
	}
	f, diags := lang.LoadBytes(path, []byte(text), o)
	if diags.HasErrors() {
		return nil, diags
	}
	return f, append(diags, graph.Check(f)...)
}

// The worked example and every file in examples/ are right, without a warning.
func TestExamplesPass(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "examples", "*.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range append(files, filepath.Join(root, "lb.hcl")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, diags := judge(path, string(b)); len(diags) > 0 {
			t.Errorf("%s", describe(path, string(b), diags))
		}
	}
}

func describe(path, text string, diags hcl.Diagnostics) string {
	var b strings.Builder
	if err := lang.WriteDiagnostics(&b, diags, map[string][]byte{path: []byte(text)}, false); err != nil {
		return err.Error()
	}
	return b.String()
}

// So is what README.md shows as a whole file.
func TestReadmeExamplePasses(t *testing.T) {
	text := read(t, "README.md")
	shown := 0
	for _, f := range fences(text) {
		if f.language == "hcl" && strings.Contains(f.text, "graph ") {
			shown++
			if _, diags := judge("README.md", f.text); len(diags) > 0 {
				t.Errorf("%s", describe("README.md", f.text, diags))
			}
		}
	}
	if shown == 0 {
		t.Error("README.md shows no file")
	}
}

// lb.hcl has a block of each sort that a balancer in service has; the drawing shows
// them, and README.md speaks of them.
func TestExampleHasControls(t *testing.T) {
	whole, diags := judge("lb.hcl", read(t, "lb.hcl"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	drawing, readme := read(t, "docs/lb.svg"), read(t, "README.md")
	for kind, words := range map[string]string{
		"health": "health checks", "bgp": "BGP", "inventory": "inventory", "reload": "reload",
		"metrics": "metrics", "admin": "socket for operators", "log": "log",
	} {
		if !slices.ContainsFunc(whole.Controls, func(c *graph.Instance) bool { return c.Kind.Name == kind }) {
			t.Errorf("lb.hcl has no %s block", kind)
		}
		if !strings.Contains(drawing, ">"+kind+"<") {
			t.Errorf("docs/lb.svg does not show %s", kind)
		}
		if !strings.Contains(readme, words) {
			t.Errorf("README.md does not speak of %s", words)
		}
	}
}

// Every edge of lb.hcl that must be drawn is taken out in turn, the rest of its
// path being kept; the checker then points at the node that lost its way.
func TestEveryRequiredEdgeIsMissed(t *testing.T) {
	const path = "lb.hcl"
	text := read(t, path)
	whole, diags := judge(path, text)
	if diags.HasErrors() {
		t.Fatalf("%s", describe(path, text, diags))
	}
	broken := 0
	for _, g := range whole.Graphs {
		for _, n := range g.Nodes {
			for _, e := range n.Edges {
				if e == nil || n.Outputs[e.Output].Else != graph.Must {
					continue
				}
				name := n.Name + "." + n.Outputs[e.Output].Name
				cut, line := without(text, n.Range.Start.Line, n.Name, n.Outputs[e.Output].Name, e.To.Name)
				if line == 0 {
					t.Errorf("%s -> %s stands in no path", name, e.To.Name)
					continue
				}
				broken++
				_, diags := judge(path, cut)
				hit := false
				for _, d := range diags {
					hit = hit || d.Severity == hcl.DiagError && d.Subject != nil && d.Subject.Start.Line == line
				}
				if !hit {
					t.Errorf("without %s -> %s there is no error at line %d, but\n%s", name, e.To.Name, line, describe(path, cut, diags))
				}
			}
		}
	}
	if broken < 10 {
		t.Errorf("only %d edges were taken out", broken)
	}
}

var pathLine = regexp.MustCompile(`^(\s+[a-z_]+\s*= )\[([^\]]*)\](.*)$`)

// without answers the file without the edge from an output of a node to another,
// which may be drawn several times; the rest of each path goes on in a path of its
// own, at the end of the block. It also answers where line at is now; 0 if no such
// edge is drawn.
func without(text string, at int, node, output, to string) (cut string, line int) {
	var lines, rest []string
	for i, l := range strings.Split(text, "\n") {
		if strings.TrimSpace(l) == "}" && len(rest) > 0 {
			for k, r := range rest {
				lines = append(lines, fmt.Sprintf("    rest%d = [%s]", k, r))
			}
			if i+1 < at {
				line = at + len(rest)
			}
			rest = nil
		}
		if m := pathLine.FindStringSubmatch(l); m != nil {
			elements := strings.Split(m[2], ", ")
			for k := 0; k+1 < len(elements); k++ {
				from, out, _ := strings.Cut(elements[k], ".")
				next, _, _ := strings.Cut(elements[k+1], ".")
				if out == "" {
					out = "next"
				}
				if from != node || out != output || next != to {
					continue
				}
				line = max(line, at)
				l = "" // what is left of a path of one node
				if k > 0 {
					l = m[1] + "[" + strings.Join(append(elements[:k:k], from), ", ") + "]" + m[3]
				}
				if len(elements) > k+2 {
					rest = append(rest, strings.Join(elements[k+1:], ", "))
				}
				break
			}
		}
		lines = append(lines, l)
	}
	return strings.Join(lines, "\n"), line
}
