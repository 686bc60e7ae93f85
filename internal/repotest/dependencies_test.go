package repotest

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const dependencies = "docs/design/008-dependencies.md"

// Every module that the code imports, or that go.mod lists as a tool, is
// explained in the record of dependencies.
func TestDependenciesAreExplained(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct{ Path string }
		Tool    []struct{ Path string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	use := func(path string) {
		best := ""
		for _, r := range mod.Require {
			if (path == r.Path || strings.HasPrefix(path, r.Path+"/")) && len(r.Path) > len(best) {
				best = r.Path
			}
		}
		if best != "" {
			used[best] = true
		}
	}
	for _, p := range packages(t) {
		for _, path := range append(p.Imports, p.Tests...) {
			use(path)
		}
	}
	for _, tool := range mod.Tool {
		use(tool.Path)
	}
	text := read(t, dependencies)
	for m := range used {
		if !strings.Contains(text, "`"+m+"`") {
			t.Errorf("%s does not say why %s is used", dependencies, m)
		}
	}
}
