package lang_test

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/lbgraph/lbgraph/graph/lang"
)

// FuzzLoad feeds files of both syntaxes to the loader, the printer and the
// formatter. None may panic; there is a file exactly where there is no error; each
// diagnostic has a place in the file.
func FuzzLoad(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*.txtar")
	for _, p := range paths {
		ar, err := txtar.ParseFile(p)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range ar.Files {
			if ext := filepath.Ext(c.Name); ext != ".diags" {
				f.Add(c.Data, ext == ".json")
			}
		}
	}
	f.Fuzz(func(t *testing.T, src []byte, json bool) {
		name := "lb.hcl"
		if json {
			name = "lb.json"
		}
		file, diags := lang.LoadBytes(name, src, options(""))
		if (file == nil) != diags.HasErrors() {
			t.Fatalf("file is nil: %t; %v", file == nil, diags)
		}
		for _, d := range diags {
			if d.Subject == nil || d.Subject.Start.Byte < 0 || d.Subject.Start.Byte > len(src) {
				t.Fatalf("no place: %v", d)
			}
		}
		render(diags, name, string(src))
		if !json {
			checkFormat(t, src)
		}
	})
}
