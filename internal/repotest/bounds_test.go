package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// hotLoops are the functions whose loops go over the lanes of a vector or the entries
// of a ring, by package: what they do there happens for every packet.
var hotLoops = map[string][]string{
	"io/xsk":                 {"Receive", "Refill", "Reclaim"},
	"io/packet":              {"Sum", "AnyFlag", "Begin", "OneService", "above"},
	"io/encap":               {"write4", "gre4", "write6"},
	"nodes/packet/parse":     {"plain"},
	"nodes/packet/conntrack": {"form", "aim", "compare", "enter"},
	"nodes/packet/mss-clamp": {"each", "plain", "syns"},
	"nodes/packet/count":     {"Process"},
	"nodes/packet/xdp-tx":    {"send"},
	"runtime":                {"receive", "sentDense", "sentSome", "release"},
}

// TestHotLoopsCheckNoBounds: the compiler has seen that the loops which all packets go
// through stay within their arrays, and checks nothing there.
func TestHotLoopsCheckNoBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("short: compiles packages anew")
	}
	args := []string{"build", "-gcflags=-d=ssa/check_bce"}
	for p := range hotLoops {
		args = append(args, "./"+p)
	}
	c := exec.Command("go", args...)
	c.Dir = root
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checks := map[string][]int{} // lines, by file
	for _, m := range regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: Found Is`).FindAllStringSubmatch(string(out), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Clean(m[1])
		checks[file] = append(checks[file], n)
	}
	if len(checks["nodes/packet/parse/parse.go"]) == 0 {
		t.Fatalf("the compiler tells of no check at all; slow paths have some:\n%.2000s", out)
	}
	for p, names := range hotLoops {
		loops := map[string]int{}
		files, err := filepath.Glob(filepath.Join(root, p, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			short := filepath.Join(p, filepath.Base(file))
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					var body *ast.BlockStmt
					switch x := n.(type) {
					case *ast.ForStmt:
						body = x.Body
					case *ast.RangeStmt:
						body = x.Body
					default:
						return true
					}
					loops[fn.Name.Name]++
					for _, name := range names {
						if name != fn.Name.Name {
							continue
						}
						for _, line := range checks[short] {
							// The line of the brace has what is looked at once.
							if line > set.Position(body.Lbrace).Line && line < set.Position(body.Rbrace).Line {
								t.Errorf("%s:%d: a loop of %s checks bounds", short, line, name)
							}
						}
					}
					return true
				})
			}
		}
		for _, name := range names {
			if loops[name] == 0 {
				t.Errorf("%s has no function %s with a loop", p, name)
			}
		}
	}
}
