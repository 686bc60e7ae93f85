package repotest

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/lbgraph/lbgraph"

// pkg is what go list says about a package of the module. Paths of the module's
// own packages are relative to it ("io/packet"); the root would be "".
type pkg struct {
	Path, Dir string
	Imports   []string // of its code without tests
	Tests     []string // of its tests
	Files     []string // that are built here, without tests
	TestFiles []string
}

var load = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir                    string
			GoFiles, TestGoFiles, XTestGoFiles []string
			Imports, TestImports, XTestImports []string
		}
		if err := d.Decode(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, pkg{
			Path:      strings.TrimPrefix(p.ImportPath, module+"/"),
			Dir:       p.Dir,
			Imports:   p.Imports,
			Tests:     append(p.TestImports, p.XTestImports...),
			Files:     p.GoFiles,
			TestFiles: append(p.TestGoFiles, p.XTestGoFiles...),
		})
	}
})

const root = "../.."

// packages answers the packages that git tracks a Go file of.
func packages(t *testing.T) (known []pkg) {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dirs := map[string]bool{}
	for _, f := range tracked(t) {
		if filepath.Ext(f) == ".go" {
			dirs[filepath.ToSlash(filepath.Dir(f))] = true
		}
	}
	for _, p := range all {
		if dirs[p.Path] {
			known = append(known, p)
		}
	}
	return known
}

// tracked answers the files that git tracks, relative to the root, as far as
// they exist.
func tracked(t *testing.T) (files []string) {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for _, f := range strings.Split(string(out), "\x00") {
		if info, err := os.Lstat(filepath.Join(root, f)); f != "" && err == nil && info.Mode().IsRegular() {
			files = append(files, f)
		}
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// source parses Go files of a folder.
func source(t *testing.T, dir string, names []string) (files []*ast.File) {
	t.Helper()
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}
