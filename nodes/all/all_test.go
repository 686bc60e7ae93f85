package all_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every kind that has code is imported.
func TestAllKindsAreHere(t *testing.T) {
	src, err := os.ReadFile("all.go")
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]bool{}
	for _, pattern := range []string{"../packet/*/*.go", "../stream/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				folders[strings.TrimPrefix(filepath.ToSlash(filepath.Dir(f)), "../")] = true
			}
		}
	}
	if len(folders) == 0 {
		t.Fatal("no kinds found")
	}
	for f := range folders {
		if !strings.Contains(string(src), `"github.com/lbgraph/lbgraph/nodes/`+f+`"`) {
			t.Errorf("nodes/%s is not imported", f)
		}
	}
}
