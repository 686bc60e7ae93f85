package repotest

import (
	"go/ast"
	"strings"
	"testing"
)

// Every test that moves packets through an engine ends with the conservation check,
// by itself or by the function that makes the engine. A replay checks itself.
func TestConservationIsAsserted(t *testing.T) {
	engines := 0
	for _, p := range packages(t) {
		files := source(t, p.Dir, p.TestFiles)
		funcs, calls, makes := map[string]*ast.FuncDecl{}, map[string]map[string]bool{}, map[string]bool{}
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				name := fn.Name.Name
				funcs[name] = fn
				if calls[name] == nil {
					calls[name] = map[string]bool{}
				}
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.AssignStmt:
						if len(n.Rhs) == 1 && makesEngine(p.Path, n.Rhs[0]) && !isBlank(n.Lhs[0]) {
							makes[name] = true
						}
					case *ast.Ident:
						calls[name][n.Name] = true
					}
					return true
				})
			}
		}
		// asserts: the check is named in the function, or in one that it names.
		asserts := map[string]bool{}
		for changed := true; changed; {
			changed = false
			for name, named := range calls {
				for other := range named {
					if !asserts[name] && (other == "CheckConservation" || asserts[other]) {
						asserts[name], changed = true, true
					}
				}
			}
		}
		var engine func(name string, seen map[string]bool) bool
		engine = func(name string, seen map[string]bool) bool {
			if seen[name] || funcs[name] == nil {
				return false
			}
			seen[name] = true
			if makes[name] {
				return true
			}
			for other := range calls[name] {
				if engine(other, seen) {
					return true
				}
			}
			return false
		}
		for name := range funcs {
			if !strings.HasPrefix(name, "Test") || !engine(name, map[string]bool{}) {
				continue
			}
			engines++
			if !asserts[name] {
				t.Errorf("%s: %s runs an engine and does not check conservation", p.Path, name)
			}
		}
	}
	if engines < 40 {
		t.Errorf("only %d tests with engines were found", engines)
	}
}

// makesEngine tells whether an expression is a call of runtime.New or daemon.New.
func makesEngine(pkg string, e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	if !ok || len(c.Args) != 2 {
		return false
	}
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name == "New" && (pkg == "runtime" || pkg == "daemon")
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && f.Sel.Name == "New" && (x.Name == "runtime" || x.Name == "daemon")
	}
	return false
}

// isBlank tells whether what is assigned is thrown away: such a call is made to fail.
func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}
