package graph_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	g "github.com/lbgraph/lbgraph/graph"
)

// TestEveryMessageIsTold: each sentence in the source of the checker is told by one
// of the graphs in testdata/wrong, so that a golden file has it.
func TestEveryMessageIsTold(t *testing.T) {
	var told []string
	for _, path := range files(t, "wrong") {
		for _, d := range g.Check(load(t, path)) {
			told = append(told, d.Summary+"\n"+d.Detail)
		}
	}
	all := strings.Join(told, "\n\n")
	fset, verb, found := token.NewFileSet(), regexp.MustCompile(`%[a-z]`), 0
	for _, path := range []string{"check.go", "analyze.go", "advice.go"} {
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(l.Value)
			if err != nil {
				t.Fatal(err)
			}
			if len(strings.Fields(verb.ReplaceAllString(text, ""))) < 3 {
				return true
			}
			found++
			var re strings.Builder
			for i, part := range verb.Split(text, -1) {
				if i > 0 {
					re.WriteString(`[\s\S]*`)
				}
				re.WriteString(regexp.QuoteMeta(part))
			}
			if !regexp.MustCompile(re.String()).MatchString(all) {
				t.Errorf("%s: no golden file has %q", fset.Position(l.Pos()), text)
			}
			return true
		})
	}
	if found < 25 {
		t.Errorf("only %d sentences were found", found)
	}
}
