package repotest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
)

// Every reason for which a kind drops packets, or ends sessions, is earned by one in a
// test of that kind.
func TestReasonsAreEarned(t *testing.T) {
	reasons := 0
	for _, p := range packages(t) {
		k := graph.Lookup(filepath.Base(p.Path))
		if k == nil || !matches("nodes/packet/*", p.Path) && !matches("nodes/stream/*", p.Path) {
			continue
		}
		told := map[string]bool{}
		for _, f := range source(t, p.Dir, p.TestFiles) {
			ast.Inspect(f, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if s, err := strconv.Unquote(l.Value); err == nil {
						told[s[strings.LastIndexByte(s, '.')+1:]] = true
					}
				}
				return true
			})
		}
		for _, o := range k.OutputsOf(k.NewConfig()) {
			if o.Else != graph.Drop {
				continue
			}
			if reasons++; !told[o.Name] {
				t.Errorf("%s: nothing in its tests ends as %s", p.Path, o.Name)
			}
		}
	}
	if reasons < 45 {
		t.Errorf("only %d reasons were found", reasons)
	}
}

// The page of a kind names the RFCs that its code follows; kinds that read or write
// headers follow some.
func TestReadmesNameTheirRFCs(t *testing.T) {
	rfc := regexp.MustCompile(`RFC \d+`)
	none := strings.Fields("count drop handoff pcap-rx pcap-tx punt reflect sample source-filter xdp-rx xdp-tx")
	for _, p := range packages(t) {
		if !matches("nodes/packet/*", p.Path) {
			continue
		}
		page := read(t, filepath.Join(p.Path, "README.md"))
		for _, file := range p.Files {
			for _, name := range rfc.FindAllString(read(t, filepath.Join(p.Path, file)), -1) {
				if !regexp.MustCompile(name + `\b`).MatchString(page) {
					t.Errorf("%s/README.md does not name %s, which %s does", p.Path, name, file)
				}
			}
		}
		if !rfc.MatchString(page) && !slices.Contains(none, filepath.Base(p.Path)) {
			t.Errorf("%s/README.md names no RFC", p.Path)
		}
	}
}

// README.md says what this is and why, shows two commands, a short file and what its
// graph looks like, and where to read on.
func TestReadmeIsWhole(t *testing.T) {
	text := read(t, "README.md")
	at := 0
	for _, part := range []string{"# lbgraph\n", "load balancer", "\nWhy ", "    make demo", "    make test", "```hcl\n", "](docs/lb.svg)", "\n## Read on\n", "(docs/file.md)", "(docs/operations.md)", "(docs/architecture.md)", "(docs/design/README.md)", "(CONTRIBUTING.md)"} {
		n := strings.Index(text[at:], part)
		if n < 0 {
			t.Fatalf("README.md lacks %q, or has it out of order", part)
		}
		at += n
	}
	for _, f := range fences(text) {
		if n := strings.Count(f.text, "\n"); f.language == "hcl" && n > 20 {
			t.Errorf("the file that README.md shows has %d lines", n)
		}
	}
	// The drawing is of lb.hcl: it has all its nodes.
	whole, diags := judge("lb.hcl", read(t, "lb.hcl"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	drawing := read(t, "docs/lb.svg")
	for _, n := range whole.Graphs[0].Nodes {
		if !strings.Contains(drawing, ">"+strings.ReplaceAll(n.Name, "-", "&#45;")+"<") {
			t.Errorf("docs/lb.svg does not show node %q", n.Name)
		}
	}
}

// docs/architecture.md walks with a packet through the kinds of lb.hcl, and has a
// place for every folder with code; the design records are numbered without a gap,
// and listed.
func TestArchitectureIsWhole(t *testing.T) {
	text := read(t, "docs/architecture.md")
	_, walk, ok := strings.Cut(text, "\n## The walk of one packet\n")
	if !ok {
		t.Fatal("docs/architecture.md has no walk of one packet")
	}
	walk, _, _ = strings.Cut(walk, "\n## ")
	whole, diags := judge("lb.hcl", read(t, "lb.hcl"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	n := whole.Graphs[0].Nodes[0]
	for steps := 0; ; steps++ {
		if !strings.Contains(walk, n.Kind.Name) {
			t.Errorf("the walk does not pass %s", n.Kind.Name)
		}
		next := slices.IndexFunc(n.Edges, func(e *graph.Edge) bool { return e != nil })
		if next < 0 {
			if steps < 8 {
				t.Errorf("the first way of lb.hcl has %d steps", steps)
			}
			break
		}
		n = n.Edges[next].To
	}
	for _, p := range packages(t) {
		folder, _, _ := strings.Cut(p.Path, "/")
		if !strings.Contains(text, "`"+folder+"`") && !strings.Contains(text, "`"+folder+"/") && !strings.Contains(text, "\n"+folder+"/") {
			t.Errorf("docs/architecture.md does not say what %s is", folder)
		}
	}
	records, err := filepath.Glob(filepath.Join(root, "docs/design/[0-9]*.md"))
	if err != nil || len(records) < 8 {
		t.Fatalf("%d design records, %v", len(records), err)
	}
	list := read(t, "docs/design/README.md")
	for i, r := range records {
		if name := filepath.Base(r); !strings.Contains(list, "("+name+")") || name[:3] != strconv.Itoa(1001 + i)[1:] {
			t.Errorf("design record %s is not listed, or not number %d", name, i+1)
		}
	}
}

// What everybody looks for in a repository is there, and says what it must.
func TestProjectFiles(t *testing.T) {
	for file, parts := range map[string][]string{
		"LICENSE":         {"Apache License", "Version 2.0"},
		"CHANGELOG.md":    {"# Changelog\n", "\n## Unreleased\n"},
		"CONTRIBUTING.md": {"\n## Run and test\n", "\n## Add a node in six steps\n", "\n1. ", "\n2. ", "\n3. ", "\n4. ", "\n5. ", "\n6. "},
		"go.mod":          {"\ntool (", "honnef.co/go/tools/cmd/staticcheck\n"},
		"Makefile":        {"\nlint:", "go vet ./...", "tool staticcheck ./..."},
	} {
		text, at := strings.ReplaceAll(read(t, file), "$(GO)", "go"), 0
		for _, part := range parts {
			n := strings.Index(text[at:], part)
			if n < 0 {
				t.Errorf("%s lacks %q, or has it out of order", file, part)
				break
			}
			at += n
		}
	}
	_, steps, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## Add a node in six steps\n")
	steps, _, _ = strings.Cut(steps, "\n## ")
	if strings.Contains(steps, "\n7. ") {
		t.Error("six steps are seven")
	}
	if info, err := os.Stat(filepath.Join(root, ".ci/run")); err != nil || info.Mode()&0o100 == 0 {
		t.Errorf(".ci/run cannot be run: %v", err)
	}
}
