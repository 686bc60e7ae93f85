package repotest

import (
	"html"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section answers what stands below a heading, up to the next of its level.
func section(t *testing.T, file, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, file), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no %q", file, heading)
	}
	level := heading[:strings.IndexByte(heading, ' ')+1]
	text, _, _ = strings.Cut(text, "\n"+level)
	return text
}

// numbers answers the numbers that a list's items begin with.
func numbers(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^(\d+)\. \S`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// README.md says what it is and why, and shows two commands, a short file, the
// drawing of the whole one, and where to read on.
func TestReadme(t *testing.T) {
	text := read(t, "README.md")
	at := 0
	for _, want := range []string{
		`(?s)^# lbgraph\n\nA load balancer`, `\n\nWhy `, "(?m)^## See it$", `(?m)^    make demo `, `(?m)^    make test `, "(?m)^```hcl$",
		`!\[[^\]]+\]\(docs/lb\.svg\)`, `(?m)^## The command$`, `(?m)^## Read on$`,
	} {
		place := regexp.MustCompile(want).FindStringIndex(text[at:])
		if place == nil {
			t.Fatalf("README.md has no %s where it should be", want)
		}
		at += place[1]
	}
	if n := len(link.FindAllString(section(t, "README.md", "## Read on"), -1)); n < 5 {
		t.Errorf("README.md says %d times where to read on", n)
	}
	for _, f := range fences(text) {
		if n := strings.Count(f.text, "\n"); f.language == "hcl" && n > 20 {
			t.Errorf("the file in README.md has %d lines", n)
		}
	}
}

// The drawing is of lb.hcl: it has every node and every output that is drawn.
func TestDrawing(t *testing.T) {
	f, diags := judge("lb.hcl", read(t, "lb.hcl"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	var texts []string
	for _, m := range regexp.MustCompile(`<text [^>]*>([^<]*)</text>`).FindAllStringSubmatch(read(t, "docs/lb.svg"), -1) {
		texts = append(texts, html.UnescapeString(m[1]))
	}
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			if !slices.Contains(texts, n.Name) {
				t.Errorf("docs/lb.svg has no node %s", n.Name)
			}
			for i, e := range n.Edges {
				if name := n.Outputs[i].Name; e != nil && name != "next" && !slices.Contains(texts, name) {
					t.Errorf("docs/lb.svg has no edge %s.%s", n.Name, name)
				}
			}
		}
	}
}

// The walk of a packet meets every node of lb.hcl that a new flow meets, in order,
// and names the packages that carry it; every record of the design is listed.
func TestArchitecture(t *testing.T) {
	walk := section(t, "docs/architecture.md", "## The walk of one packet")
	if n := numbers(walk); len(n) < 10 {
		t.Errorf("the walk has %d steps", len(n))
	}
	at := 0
	for _, want := range []string{
		"`io/bpf`", "xdp-rx", "`io/xsk`", "**`parse`**", "**`vip-classify`**", "**`frag-pin`**", "conntrack", "**`maglev-select`**", "mss-clamp", "mtu-check", "`gre`", "xdp-tx", "`runtime`",
	} {
		n := strings.Index(walk[at:], want)
		if n < 0 {
			t.Fatalf("the walk does not come to %s where it should", want)
		}
		at += n
	}
	list, records := read(t, "docs/design/README.md"), 0
	for _, f := range tracked(t) {
		if base := filepath.Base(f); filepath.Dir(f) == "docs/design" && base != "README.md" {
			records++
			if !strings.Contains(list, "]("+base+")") {
				t.Errorf("docs/design/README.md does not list %s", base)
			}
		}
	}
	if records < 3 {
		t.Errorf("%d design records", records)
	}
}

// What a contributor looks for: a licence, how to run, test and add a node, what
// changed, and linters at versions that are pinned.
func TestForContributors(t *testing.T) {
	if text := read(t, "LICENSE"); !strings.Contains(text, "Apache License") || !strings.Contains(text, "Version 2.0, January 2004") {
		t.Error("LICENSE is no Apache License 2.0")
	}
	if got := numbers(section(t, "CONTRIBUTING.md", "## Add a node in six steps")); !slices.Equal(got, []string{"1", "2", "3", "4", "5", "6"}) {
		t.Errorf("a node is added in the steps %v", got)
	}
	for _, heading := range []string{"## Run and test", "## Tests", "## Style"} {
		if section(t, "CONTRIBUTING.md", heading) == "" {
			t.Errorf("CONTRIBUTING.md has nothing under %q", heading)
		}
	}
	if n := strings.Count(section(t, "CHANGELOG.md", "## Unreleased"), "\n* "); n < 3 {
		t.Errorf("CHANGELOG.md has %d entries", n)
	}
	mod := read(t, "go.mod")
	if !regexp.MustCompile(`(?m)^\s+honnef\.co/go/tools v\d`).MatchString(mod) || !regexp.MustCompile(`(?m)^(tool|\s)\s*honnef\.co/go/tools/cmd/staticcheck$`).MatchString(mod) {
		t.Error("go.mod does not pin staticcheck as a tool")
	}
	if lint := regexp.MustCompile(`(?m)^lint:.*\n((?:\t.*\n)+)`).FindStringSubmatch(read(t, "Makefile")); lint == nil || !strings.Contains(lint[1], "$(GO) tool staticcheck ./...") || !strings.Contains(lint[1], "$(GO) vet ./...") {
		t.Errorf("make lint runs %q", lint)
	}
}
