package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func promises(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Every group of promises has rows, numbered without a gap.
func TestGroupsAreComplete(t *testing.T) {
	var want []string
	for group, n := range map[string]int{"A": 15, "B": 9, "C": 12} {
		for i := 1; i <= n; i++ {
			want = append(want, fmt.Sprintf("%s%d", group, i))
		}
	}
	want = append(want, "D", "K", "P", "I2", "I2F", "I2I", "I2R", "I2N", "I2C", "I2B", "I2M", "I3", "I4", "I5", "I6", "S1", "S2", "S3", "S4")
	count := map[string]int{}
	for _, r := range promises(t) {
		group, number, _ := strings.Cut(r.id, ".")
		count[group]++
		if number != fmt.Sprint(count[group]) {
			t.Errorf("line %d: %s, want %s.%d", r.line, r.id, group, count[group])
		}
		if !slices.Contains(want, group) {
			t.Errorf("line %d: %s belongs to no known group", r.line, r.id)
		}
	}
	for _, group := range want {
		if count[group] == 0 {
			t.Errorf("%s has no rows", group)
		}
	}
}

// A row that is held names tests, and they are in the source.
func TestHeldRowsNameTests(t *testing.T) {
	known := map[string]map[string]bool{} // by package
	for _, r := range promises(t) {
		if r.status != "held" {
			continue
		}
		for _, named := range strings.Split(r.test, ";") {
			f := strings.Fields(strings.ReplaceAll(named, "`", ""))
			switch {
			case len(f) == 2 && f[0] == "make":
			case len(f) == 1 && strings.HasPrefix(f[0], ".ci/"):
				if _, err := os.Stat(filepath.Join(root, f[0])); err != nil {
					t.Errorf("line %d: %s: %v", r.line, r.id, err)
				}
			case len(f) == 2:
				if known[f[0]] == nil {
					known[f[0]] = functions(t, f[0])
				}
				name, _, _ := strings.Cut(f[1], "/")
				if !known[f[0]][name] {
					t.Errorf("line %d: %s: %s has no %s", r.line, r.id, f[0], name)
				}
			default:
				t.Errorf("line %d: %s: %q is no package and test", r.line, r.id, named)
			}
		}
	}
}

func functions(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"| A1.1 | x | 2 | open | |\n| A1.1 | y | 2 | open | |\n", // twice
		"| A1.1 | x | 2 | done | a TestA |\n",                    // no such status
		"| A1.1 | x | 9 | open | |\n",                            // no such issue
		"| A1.1 | x | 2 | held | |\n",                            // held by nothing
		"| A1.1 | x | 2 | limit | |\n",                           // a limit without a reason
		"| A1.1 |  | 2 | open | |\n",                             // no promise
		"| A1.1 | x | 2 |\n",                                     // a column short
	} {
		if rows, err := parse(text); err == nil {
			t.Errorf("%q gives %v", text, rows)
		}
	}
}

func TestJudge(t *testing.T) {
	rows, err := parse("| A1.1 | x | 2 | held | `a TestRan`; make demo |\n| A1.2 | x | 2 | held | a TestSkipped/sub |\n" +
		"| A1.3 | x | 2 | held | a TestGone |\n| A1.4 | x | 2 | held | a TestTwice |\n| A1.5 | x | 2 | open | a TestGone |\n")
	if err != nil {
		t.Fatal(err)
	}
	got := judge(rows, "a\tTestRan\tpass\t\na\tTestSkipped/sub\tskip\tshort: x\na\tTestTwice\tpass\t\na\tTestTwice\tskip\tshort: x\n")
	want := []string{"A1.2: a TestSkipped/sub was skipped", "A1.3: a TestGone did not run"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
