package conf

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// Value evaluates an expression. A name that nothing declares is told once, with
// what was probably meant. With errors the value is unknown.
func Value(e hcl.Expression, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if diags := unknownNames(e, ctx); len(diags) > 0 {
		return cty.DynamicVal, diags
	}
	v, diags := e.Value(ctx)
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	return v, diags
}

func unknownNames(e hcl.Expression, ctx *hcl.EvalContext) hcl.Diagnostics {
	var diags hcl.Diagnostics
	told := map[string]bool{}
	for _, t := range e.Variables() {
		root := t.RootName()
		at := t.SourceRange()
		v, found := lookup(ctx, root)
		if !found {
			if told[root] {
				continue
			}
			told[root] = true
			hint := closeTo(root, everyName(ctx))
			if hint == "" && len(t) == 1 {
				hint = fmt.Sprintf("Text stands in quotes, as in %q.", root)
			} else if hint == "" {
				hint = oneOf(roots(ctx))
			}
			diags = append(diags, fault(at, "Unknown name", "There is no %q. %s", root, hint))
			continue
		}
		if len(t) < 2 || !v.Type().IsObjectType() {
			continue
		}
		step := ""
		switch s := t[1].(type) {
		case hcl.TraverseAttr:
			step = s.Name
		case hcl.TraverseIndex:
			if s.Key.Type() == cty.String {
				step = s.Key.AsString()
			}
		}
		if step == "" || v.Type().HasAttribute(step) || told[root+"."+step] {
			continue
		}
		told[root+"."+step] = true
		at = hcl.RangeBetween(t[0].SourceRange(), t[1].SourceRange())
		hint := Closest(step, attributes(v))
		if hint != "" {
			hint = fmt.Sprintf("Did you mean %q?", root+"."+hint)
		} else {
			var all []string
			for _, n := range attributes(v) {
				all = append(all, root+"."+n)
			}
			hint = oneOf(all)
		}
		diags = append(diags, fault(at, "Unknown name", "There is no %q. %s", root+"."+step, hint))
	}
	return diags
}

func lookup(ctx *hcl.EvalContext, name string) (cty.Value, bool) {
	for ; ctx != nil; ctx = ctx.Parent() {
		if v, ok := ctx.Variables[name]; ok {
			return v, true
		}
	}
	return cty.NilVal, false
}

func attributes(v cty.Value) []string {
	if v == cty.NilVal || !v.Type().IsObjectType() {
		return nil
	}
	var names []string
	for n := range v.Type().AttributeTypes() {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func roots(ctx *hcl.EvalContext) []string {
	var names []string
	for ; ctx != nil; ctx = ctx.Parent() {
		for n := range ctx.Variables {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	return names
}

// everyName answers all names that an expression may begin with, and the full
// names of declared things by their last word: a forgotten "pool." is the most
// common of mistakes.
func everyName(ctx *hcl.EvalContext) []string {
	all := roots(ctx)
	for _, r := range roots(ctx) {
		v, _ := lookup(ctx, r)
		for _, n := range attributes(v) {
			all = append(all, r+"."+n)
		}
	}
	return all
}

// DidYouMean answers the second sentence of a message about an unknown name:
// what was probably meant, else what there is.
func DidYouMean(given string, known []string) string {
	if s := closeTo(given, known); s != "" {
		return s
	}
	return oneOf(known)
}

func closeTo(given string, known []string) string {
	if best := Closest(given, known); best != "" {
		return fmt.Sprintf("Did you mean %q?", best)
	}
	return ""
}

// Closest answers the known name that was probably meant by given, or "".
func Closest(given string, known []string) string {
	limit := max(len(given)/3, 1) + 1
	if len(given) < 3 {
		limit = 1 // only another spelling
	}
	best, least := "", limit
	for _, k := range known {
		d := distance(fold(given), fold(k))
		if part(fold(given), fold(k)) {
			d = min(d, limit-1)
		}
		if d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	return best
}

func oneOf(known []string) string {
	if len(known) == 0 {
		return "Declare it first."
	}
	seen := map[string]bool{}
	var quoted []string
	for _, k := range known {
		if !seen[k] {
			seen[k] = true
			quoted = append(quoted, fmt.Sprintf("%q", k))
		}
	}
	if len(quoted) == 1 {
		return "There is only " + quoted[0] + "."
	}
	more := ""
	if n := len(quoted) - 12; n > 0 {
		quoted, more = quoted[:12], fmt.Sprintf(", and %d more", n)
	}
	return "Choose among " + strings.Join(quoted, ", ") + more + "."
}

// part tells whether given is what stands behind the dot of k, or one of the words
// that k is made of, as in pool.web and gre_encap.
func part(given, k string) bool {
	if i := strings.LastIndexByte(k, '.'); i >= 0 && k[i+1:] == given {
		return true
	}
	return len(given) >= 3 && slices.Contains(strings.Split(k, "_"), given)
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }

// distance counts the letters to insert, delete, replace or swap with their
// neighbour that make b of a.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	var rows [3][65]int
	prev2, prev, cur := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
