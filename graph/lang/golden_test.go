package lang_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/lbgraph/lbgraph/graph/lang"
)

var update = flag.Bool("update", false, "write the golden files anew")

// options reads what a case says in comments at its beginning: -var name=value,
// env NAME=value, file name content.
func options(src string) lang.Options {
	env := map[string]string{}
	files := map[string]string{}
	o := lang.Options{
		Vars: map[string]string{},
		Env:  func(n string) (string, bool) { v, ok := env[n]; return v, ok },
		ReadFile: func(p string) ([]byte, error) {
			if s, ok := files[p]; ok {
				return []byte(s), nil
			}
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		},
	}
	for _, line := range strings.Split(src, "\n") {
		line, comment := strings.CutPrefix(line, "# ")
		if !comment {
			break
		}
		what, rest, _ := strings.Cut(line, " ")
		switch what {
		case "-var":
			k, v, _ := strings.Cut(rest, "=")
			o.Vars[k] = v
		case "env":
			k, v, _ := strings.Cut(rest, "=")
			env[k] = v
		case "file":
			k, v, _ := strings.Cut(rest, " ")
			files[k] = v
		}
	}
	return o
}

// archive answers the files of a txtar file.
func archive(t *testing.T, path string) map[string]string {
	t.Helper()
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, f := range ar.Files {
		m[f.Name] = string(f.Data)
	}
	return m
}

func render(diags hcl.Diagnostics, name, src string) string {
	var b strings.Builder
	lang.WriteDiagnostics(&b, diags, map[string][]byte{name: []byte(src)}, false)
	if b.Len() == 0 {
		return "(nothing)\n"
	}
	return b.String()
}

// TestDiagnostics runs every case of testdata/*.txtar: NAME.hcl or NAME.json, and
// behind it NAME.diags, which -update writes. Then every message in the source of
// this package and of conf must have been told by one of them, and every message
// must keep the rules.
func TestDiagnostics(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	if len(files) == 0 {
		t.Fatal("no cases")
	}
	var all hcl.Diagnostics
	for _, path := range files {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		golden := map[string]string{}
		cases := map[string]bool{}
		for _, f := range ar.Files {
			golden[f.Name] = string(f.Data)
			if name, isGolden := strings.CutSuffix(f.Name, ".diags"); !isGolden {
				name = strings.TrimSuffix(name, filepath.Ext(name))
				if cases[name] {
					t.Errorf("%s: two cases %s", path, name)
				}
				cases[name] = true
			}
		}
		out := &txtar.Archive{Comment: ar.Comment}
		for _, f := range ar.Files {
			ext := filepath.Ext(f.Name)
			if ext == ".diags" {
				continue
			}
			name := strings.TrimSuffix(f.Name, ext)
			src := string(f.Data)
			var got string
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+name, func(t *testing.T) {
				file, diags := lang.LoadBytes("lb"+ext, []byte(src), options(src))
				if (file == nil) != diags.HasErrors() {
					t.Errorf("file is nil: %t; diagnostics: %v", file == nil, diags)
				}
				all = append(all, diags...)
				got = render(diags, "lb"+ext, src)
				if want, ok := golden[name+".diags"]; !*update && (!ok || got != want) {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
			out.Files = append(out.Files, f, txtar.File{Name: name + ".diags", Data: []byte(got)})
		}
		if *update {
			if err := os.WriteFile(path, txtar.Format(out), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Two that no content makes.
	_, diags := lang.Load("nowhere.hcl", options(""))
	all = append(all, diags...)
	_, diags = lang.LoadBytes("big.hcl", make([]byte, 64<<20+1), options(""))
	all = append(all, diags...)

	sentence := regexp.MustCompile(`[.?:…]["”]?(\s|$)`)
	for _, d := range all {
		if n := len(strings.Fields(d.Summary)); n > 6 {
			t.Errorf("%q has %d words", d.Summary, n)
		}
		if d.Subject == nil {
			t.Errorf("%q has no place", d.Summary)
		}
		if len(sentence.FindAllString(d.Detail, -1)) < 2 {
			t.Errorf("%q says what is wrong, or what to do, but not both: %s", d.Summary, d.Detail)
		}
	}
	for _, m := range messages(t) {
		told := false
		for _, d := range all {
			told = told || d.Summary == m.summary && m.detail.MatchString(d.Detail)
		}
		if !told {
			t.Errorf("%s: no golden file has the message %q, %s", m.where, m.summary, m.detail)
		}
	}
}

type message struct {
	summary string
	detail  *regexp.Regexp
	where   token.Position
}

var verb = regexp.MustCompile(`%[a-z]`)

// messages finds the summary and detail of every call of fault and warn in the
// two packages.
func messages(t *testing.T) (all []message) {
	fset := token.NewFileSet()
	for _, dir := range []string{".", "../conf"} {
		files, _ := filepath.Glob(dir + "/*.go")
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if l, ok := n.(*ast.CompositeLit); ok {
					if s, ok := l.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Diagnostic" {
						for _, e := range l.Elts {
							if kv, ok := e.(*ast.KeyValueExpr); ok {
								if _, lit := kv.Value.(*ast.BasicLit); lit && kv.Key.(*ast.Ident).Name == "Summary" {
									t.Errorf("%s: make diagnostics by fault and warn", fset.Position(n.Pos()))
								}
							}
						}
					}
				}
				c, ok := n.(*ast.CallExpr)
				if !ok || len(c.Args) < 3 {
					return true
				}
				name := ""
				switch f := c.Fun.(type) {
				case *ast.Ident:
					name = f.Name
				case *ast.SelectorExpr:
					name = f.Sel.Name
				}
				if name != "fault" && name != "warn" {
					return true
				}
				s, ok1 := c.Args[1].(*ast.BasicLit)
				d, ok2 := c.Args[2].(*ast.BasicLit)
				if !ok1 || !ok2 {
					if _, wrapper := c.Args[1].(*ast.Ident); !wrapper {
						t.Errorf("%s: summary and detail must be literals", fset.Position(c.Pos()))
					}
					return true
				}
				summary, _ := strconv.Unquote(s.Value)
				detail, _ := strconv.Unquote(d.Value)
				var re strings.Builder
				for i, part := range verb.Split(strings.ReplaceAll(detail, "%%", "\x00"), -1) {
					if i > 0 {
						re.WriteString(".*")
					}
					re.WriteString(regexp.QuoteMeta(strings.ReplaceAll(part, "\x00", "%")))
				}
				all = append(all, message{summary, regexp.MustCompile("(?s)^" + re.String() + "$"), fset.Position(c.Pos())})
				return true
			})
		}
	}
	if len(all) < 50 {
		t.Fatalf("found %d messages only", len(all))
	}
	return all
}
