package lang

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// variable is the arguments of a variable block.
type variable struct {
	Default     hcl.Expression `hcl:"default,optional" doc:"value where neither -var nor the environment gives one"`
	Type        hcl.Expression `hcl:"type,optional" doc:"string, number, bool, list(…), map(…), object({…})"`
	Description string         `hcl:"description,optional" doc:"what it is for"`
}

// evaluation makes the context in which all expressions are evaluated.
func (l *loader) evaluation(by map[string]hcl.Blocks) {
	funcs := functions(l.path, l.o)
	vars := map[string]cty.Value{}
	known := map[string]bool{}
	for _, b := range by["variable"] {
		known[b.Labels[0]] = true
		vars[b.Labels[0]] = l.variable(b, &hcl.EvalContext{Functions: funcs})
	}
	for _, name := range sortedKeys(l.o.Vars) {
		if !known[name] {
			l.fault(hcl.Range{Filename: "-var " + name}, "Unknown variable", "No variable %q is declared. %s", name, conf.DidYouMean(name, sortedKeys(known)))
		}
	}

	l.ctx = &hcl.EvalContext{Functions: funcs, Variables: map[string]cty.Value{"var": cty.ObjectVal(vars)}}
	l.namespace("pool", by["pool"])
	l.namespace("vip", by["vip"])
	controls := map[string]hcl.Blocks{}
	for _, b := range by[""] {
		if len(b.Labels) > 0 {
			controls[b.Type] = append(controls[b.Type], b)
		}
	}
	for _, k := range graph.Kinds() {
		if k.Plane == graph.ControlPlane {
			l.namespace(k.Name, controls[k.Name])
		}
	}
	for typ := range l.faulty { // any name may be meant
		if typ == "variable" {
			typ = "var"
		}
		l.ctx.Variables[typ] = cty.DynamicVal
	}
	l.locals(by["locals"])
	if l.faulty["locals"] {
		l.ctx.Variables["local"] = cty.DynamicVal
	}
}

// namespace makes typ.NAME answer an object with the block's name, for every
// block of that type.
func (l *loader) namespace(typ string, bs hcl.Blocks) {
	if len(bs) == 0 {
		if _, always := rootBlocks[typ]; !always && typ != "health" {
			return
		}
	}
	all := map[string]cty.Value{}
	for _, b := range bs {
		all[b.Labels[0]] = cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal(b.Labels[0]), "block": cty.StringVal(typ)})
	}
	l.ctx.Variables[typ] = cty.ObjectVal(all)
}

func (l *loader) variable(b *hcl.Block, ctx *hcl.EvalContext) cty.Value {
	name := b.Labels[0]
	var v variable
	if l.tell(conf.DecodeBlock(b, ctx, &v, conf.Options{})) {
		return cty.DynamicVal
	}
	want := cty.DynamicPseudoType
	if v.Type != nil {
		t, diags := typeexpr.TypeConstraint(v.Type)
		if l.tell(diags) {
			return cty.DynamicVal
		}
		want = t
	}
	value := cty.NilVal
	if v.Default != nil {
		if refs := v.Default.Variables(); len(refs) > 0 {
			l.fault(refs[0].SourceRange(), "Default refers to something", "The default of %q needs %q, and defaults come before all else. Use locals for it.", name, refs[0].RootName())
			return cty.DynamicVal
		}
		d, diags := conf.Value(v.Default, ctx)
		if l.tell(diags) {
			return cty.DynamicVal
		}
		c, err := convert.Convert(d, want)
		if err != nil {
			l.fault(v.Default.Range(), "Default has another type", "The default of %q is no %s. Change the default or the type.", name, typeexpr.TypeString(want))
			return cty.DynamicVal
		}
		value = c
		if v.Type == nil {
			want = c.Type()
		}
	}
	raw, from := "", ""
	if s, ok := l.o.Vars[name]; ok {
		raw, from = s, "-var"
	} else if s, ok := l.o.Env("LBGRAPH_VAR_" + name); ok {
		raw, from = s, "LBGRAPH_VAR_"+name
	}
	if from == "" {
		if value == cty.NilVal {
			l.fault(conf.Head(b), "Variable without a value", "%q has no default. Give -var %s=VALUE, or set LBGRAPH_VAR_%s.", name, name, name)
			return cty.DynamicVal
		}
		return value
	}
	given := cty.StringVal(raw)
	if want != cty.DynamicPseudoType && !want.IsPrimitiveType() {
		var e hcl.Expression
		_, deep := tooDeep([]byte(raw), from, false)
		diags := hcl.Diagnostics{{Severity: hcl.DiagError}}
		if !deep {
			e, diags = hclsyntax.ParseExpression([]byte(raw), from, hcl.InitialPos)
		}
		if !diags.HasErrors() {
			given, diags = e.Value(nil)
		}
		if diags.HasErrors() {
			l.fault(conf.Head(b), "Variable cannot be read", "%s gives %q the value %q, which is no expression. Write it as in the file.", from, name, raw)
			return cty.DynamicVal
		}
	}
	c, err := convert.Convert(given, want)
	if err != nil && v.Type == nil { // the default's type was a guess
		c, err = given, nil
	}
	if err != nil {
		l.fault(conf.Head(b), "Variable has another type", "%s gives %q the value %q, which is no %s. Give it another value.", from, name, raw, typeexpr.TypeString(want))
		return cty.DynamicVal
	}
	return c
}

// locals evaluates all locals, each after those that it refers to.
func (l *loader) locals(bs hcl.Blocks) {
	exprs := map[string]*hcl.Attribute{}
	for _, b := range bs {
		attrs, blocks, diags := conf.Read(b.Body, nil)
		l.tell(diags)
		for _, x := range blocks {
			l.fault(x.TypeRange, "Block where an argument belongs", "%q is an argument. Write %s = … with an equals sign.", x.Type, x.Type)
		}
		for n, a := range attrs {
			if first, twice := exprs[n]; twice {
				l.fault(a.NameRange, "Name used twice", "There is a %s %q at %s already. Give one of them another name.", "local", n, where(first.NameRange))
				continue
			}
			exprs[n] = a
		}
	}
	values := map[string]cty.Value{}
	for n := range exprs {
		values[n] = cty.DynamicVal
	}
	l.ctx.Variables["local"] = cty.ObjectVal(values)

	const (
		begun = 1
		done  = 2
	)
	mark := map[string]int{}
	var eval func(name string, way []string)
	eval = func(name string, way []string) {
		way = append(way, name)
		if mark[name] == begun {
			l.fault(exprs[name].NameRange, "Locals refer to each other", "The value of %q needs itself, by %s. Break the circle.", name, strings.Join(way, " -> "))
			return
		}
		if mark[name] == done {
			return
		}
		mark[name] = begun
		for _, t := range exprs[name].Expr.Variables() {
			if t.RootName() != "local" || len(t) < 2 {
				continue
			}
			if s, ok := t[1].(hcl.TraverseAttr); ok && exprs[s.Name] != nil {
				eval(s.Name, way)
			}
		}
		mark[name] = done
		v, diags := conf.Value(exprs[name].Expr, l.ctx)
		l.tell(diags)
		values[name] = v
		l.ctx.Variables["local"] = cty.ObjectVal(values)
	}
	for _, n := range sortedKeys(exprs) {
		if mark[n] == 0 {
			eval(n, nil)
		}
	}
}
