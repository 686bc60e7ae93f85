package repotest

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every package says in one place what it is.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		files := source(t, p.Dir, p.Files)
		if len(files) == 0 {
			continue
		}
		comments, name := 0, files[0].Name.Name
		for _, f := range files {
			if f.Doc == nil {
				continue
			}
			comments++
			text := f.Doc.Text()
			if name != "main" && !strings.HasPrefix(text, "Package "+name+" ") {
				t.Errorf("%s: the package comment begins %q, not \"Package %s …\"", p.Path, firstLine(text), name)
			}
		}
		if comments != 1 {
			t.Errorf("%s has %d package comments", p.Path, comments)
		}
	}
}

// Packages named for what they are not do not exist.
func TestPackageNames(t *testing.T) {
	for _, p := range packages(t) {
		switch base := filepath.Base(p.Path); base {
		case "util", "utils", "common", "helpers", "misc", "base":
			t.Errorf("%s says nothing about what it is", p.Path)
		}
	}
}

// Whoever knows one kind of node knows the form of all.
func TestKindsHaveTheirParts(t *testing.T) {
	for _, p := range packages(t) {
		packets := matches("nodes/packet/*", p.Path)
		if !packets && !matches("nodes/stream/*", p.Path) {
			continue
		}
		t.Run(filepath.Base(p.Path), func(t *testing.T) {
			folder := filepath.Base(p.Path)
			for _, f := range source(t, p.Dir, p.Files) {
				if want := strings.ReplaceAll(folder, "-", ""); f.Name.Name != want {
					t.Errorf("package %s, want %s", f.Name.Name, want)
					break
				}
			}
			checkReadme(t, p.Dir, folder)
			var tests, benchmarks, fuzzers int
			allocs, example, arguments := false, false, false
			for _, f := range source(t, p.Dir, p.TestFiles) {
				for _, d := range f.Decls {
					fn, ok := d.(*ast.FuncDecl)
					if !ok || fn.Recv != nil {
						continue
					}
					switch name := fn.Name.Name; {
					case strings.HasPrefix(name, "Test"):
						tests++
					case strings.HasPrefix(name, "Benchmark"):
						benchmarks++
					case strings.HasPrefix(name, "Fuzz"):
						fuzzers++
					}
				}
				ast.Inspect(f, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						allocs = allocs || strings.Contains(id.Name, "Allocs")
						example = example || id.Name == "Example"
						arguments = arguments || id.Name == "WrongArguments"
					}
					return true
				})
			}
			if tests == 0 || benchmarks == 0 || fuzzers == 0 {
				t.Errorf("%d tests, %d benchmarks, %d fuzz targets; each kind has at least one of each", tests, benchmarks, fuzzers)
			}
			if packets && !allocs {
				t.Error("no test counts allocations (testing.AllocsPerRun)")
			}
			if !packets && (!example || !arguments) {
				t.Error("no test runs the example of README.md (nodetest.Example), or none has wrong arguments (nodetest.WrongArguments)")
			}
		})
	}
}

// Nothing on the path of packets waits for another core: what nodes are made of
// imports no locks. The kind sample has some, in the goroutine that writes its file.
func TestNoLocksOnThePath(t *testing.T) {
	for _, p := range packages(t) {
		if p.Path != "io/packet" && p.Path != "io/ring" && !matches("nodes/packet/*", p.Path) || p.Path == "nodes/packet/sample" {
			continue
		}
		for _, path := range p.Imports {
			if path == "sync" {
				t.Errorf("%s imports sync", p.Path)
			}
		}
	}
}

// Control kinds have a page too.
func TestControlKindsHavePages(t *testing.T) {
	for _, p := range packages(t) {
		if matches("control/*", p.Path) && p.Path != "control/state" && p.Path != "control/all" {
			checkReadme(t, p.Dir, filepath.Base(p.Path))
		}
	}
}

// checkReadme holds the reference page of a kind to its form: a title, a
// sentence, generated lists, behaviour, an example.
func checkReadme(t *testing.T, dir, kind string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Error(err)
		return
	}
	text := string(b)
	if !strings.HasPrefix(text, "# "+kind+"\n") {
		t.Errorf("%s: README.md begins %q, want %q", kind, firstLine(text), "# "+kind)
	}
	at := 0
	for _, part := range []string{"<!-- generated -->", "<!-- /generated -->", "\n## What it does\n", "\n## Example\n", "\n```hcl\n"} {
		n := strings.Index(text[at:], part)
		if n < 0 {
			t.Errorf("%s: README.md lacks %q, or has it out of order", kind, strings.TrimSpace(part))
			return
		}
		at += n
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
