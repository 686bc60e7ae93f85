package repotest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSoakRunsWhatIsLong: make soak runs every test that does more when it soaks, and
// every fuzz target for a minute.
func TestSoakRunsWhatIsLong(t *testing.T) {
	b, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, ok := strings.Cut(string(b), "\nsoak:")
	recipe, _, _ = strings.Cut(recipe, "\n\n")
	m := regexp.MustCompile(`\n\tLBGRAPH_SOAK=1 .* -run '([^']*)' \./\.\.\.`).FindStringSubmatch(recipe)
	if !ok || m == nil || !strings.Contains(recipe, "\n\t.ci/fuzz 60s\n") {
		t.Fatalf("make soak does %q", recipe)
	}
	runs := regexp.MustCompile(strings.ReplaceAll(m[1], "$$", "$"))
	function := regexp.MustCompile(`(?m)^func (\w+)\(`)
	found := 0
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(b)
		for _, at := range regexp.MustCompile(`Getenv\("LBGRAPH_SOAK"\)`).FindAllStringIndex(text, -1) {
			found++
			all := function.FindAllStringSubmatch(text[:at[0]], -1)
			if name := all[len(all)-1][1]; !runs.MatchString(name) {
				t.Errorf("%s: make soak does not run %s", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 3 {
		t.Errorf("only %d long tests were found", found)
	}
}
