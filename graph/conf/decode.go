package conf

import (
	"encoding"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Options of DecodeBlock.
type Options struct {
	// Skip names arguments and blocks that the caller reads by itself.
	Skip []string
	// Place, unless nil, is told where each argument's value and each block's head
	// stands. A path is as in "address", "timeouts.udp", "backend.web-1.weight" (a
	// labelled block), "peer[0].asn" (a repeated block or an object in a list).
	Place func(path string, at hcl.Range)
}

// Decode fills the struct that target points to, which holds the defaults, from
// body. All that is wrong is told, each at its own place; target is then only
// partly filled. A missing argument is told at the body's beginning: DecodeBlock
// knows a better place.
func Decode(body hcl.Body, ctx *hcl.EvalContext, target any) hcl.Diagnostics {
	return decode(body, body.MissingItemRange(), ctx, target, Options{})
}

// DecodeBlock is Decode for a block's body.
func DecodeBlock(b *hcl.Block, ctx *hcl.EvalContext, target any, o Options) hcl.Diagnostics {
	return decode(b.Body, Head(b), ctx, target, o)
}

func decode(body hcl.Body, head hcl.Range, ctx *hcl.EvalContext, target any, o Options) hcl.Diagnostics {
	v := reflect.ValueOf(target)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("conf: target is %T, not a pointer to a struct", target))
	}
	d := &decoder{ctx: ctx, place: o.Place}
	d.body(body, head, v.Elem(), "", o.Skip)
	return d.diags
}

// Head answers where a block's type and names stand, in either syntax.
func Head(b *hcl.Block) hcl.Range {
	switch {
	case b.DefRange.Start == b.TypeRange.Start:
		return b.DefRange
	case len(b.LabelRanges) > 0:
		return b.LabelRanges[len(b.LabelRanges)-1]
	}
	return b.TypeRange
}

// Read splits a body into arguments and blocks. In the native syntax the body
// says itself what is which; in JSON, blocks are the properties that blocks
// names, with so many labels, and all else is arguments.
func Read(body hcl.Body, blocks map[string]int) (hcl.Attributes, hcl.Blocks, hcl.Diagnostics) {
	if b, ok := body.(*hclsyntax.Body); ok {
		as := make(hcl.Attributes, len(b.Attributes))
		for n, a := range b.Attributes {
			as[n] = a.AsHCLAttribute()
		}
		bs := make(hcl.Blocks, len(b.Blocks))
		for i, x := range b.Blocks {
			bs[i] = x.AsHCLBlock()
		}
		return as, bs, nil
	}
	var schema hcl.BodySchema
	for n, labels := range blocks {
		h := hcl.BlockHeaderSchema{Type: n}
		for range labels {
			h.LabelNames = append(h.LabelNames, "name")
		}
		schema.Blocks = append(schema.Blocks, h)
	}
	content, rest, diags := body.PartialContent(&schema)
	if diags.HasErrors() {
		var told hcl.Diagnostics
		for i, d := range diags {
			if i == 0 || d.Summary != "Missing block label" || told[len(told)-1].Summary == d.Summary {
				told = append(told, d) // a value of the wrong type has no labels either
			}
		}
		return nil, nil, told
	}
	sort.SliceStable(content.Blocks, func(i, j int) bool {
		return Head(content.Blocks[i]).Start.Byte < Head(content.Blocks[j]).Start.Byte
	})
	as, diags := rest.JustAttributes()
	return as, content.Blocks, diags
}

type decoder struct {
	ctx   *hcl.EvalContext
	place func(string, hcl.Range)
	diags hcl.Diagnostics
}

// fault makes a diagnostic: at most six words, then what is wrong and what to do.
func fault(at hcl.Range, summary, detail string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at}
}

func (d *decoder) fault(at hcl.Range, summary, detail string, args ...any) {
	d.diags = append(d.diags, fault(at, summary, detail, args...))
}

func (d *decoder) at(path string, at hcl.Range) {
	if d.place != nil && path != "" {
		d.place(path, at)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// body fills struct v from a block's body.
func (d *decoder) body(body hcl.Body, head hcl.Range, v reflect.Value, path string, skip []string) {
	fs := fieldsOf(v.Type())
	labels := map[string]int{}
	var names []string
	known := map[string]*field{}
	for _, f := range fs {
		if f.role == label {
			continue
		}
		names = append(names, f.name)
		known[f.name] = f
		if f.role == block {
			labels[f.name] = countLabels(f.elem)
		}
	}
	names = append(names, skip...)
	skipped := map[string]bool{}
	for _, s := range skip {
		skipped[s] = true
	}
	attrs, blocks, diags := Read(body, labels)
	d.diags = append(d.diags, diags...)
	if diags.HasErrors() {
		return
	}

	given, meant := map[string]int{}, map[string]bool{} // meant: misspelled, so not missing
	for _, name := range sortedNames(attrs) {
		a := attrs[name]
		f := known[name]
		switch {
		case skipped[name]:
		case f == nil:
			meant[Closest(name, names)] = true
			d.fault(a.NameRange, "Unknown argument", "There is no argument %q here. %s", name, DidYouMean(name, names))
		case f.role == block:
			given[name]++
			d.fault(a.NameRange, "Argument where a block belongs", "%q is a block. Write %s { … } without the equals sign.", name, name)
		default:
			given[name]++
			if d.expr(a.Expr, v.FieldByIndex(f.index), f, name, join(path, name)) == absent && f.required {
				given[name]--
			}
			d.at(join(path, name), a.Expr.Range())
		}
	}
	heads := map[string]hcl.Range{}
	for _, b := range blocks {
		f := known[b.Type]
		key := strings.Join(append([]string{b.Type}, b.Labels...), "\x00")
		first, twice := heads[key]
		switch {
		case skipped[b.Type]:
		case f == nil:
			meant[Closest(b.Type, names)] = true
			d.fault(b.TypeRange, "Unknown block", "There is no block %q here. %s", b.Type, DidYouMean(b.Type, names))
		case f.role != block:
			given[b.Type]++
			d.fault(b.TypeRange, "Block where an argument belongs", "%q is an argument. Write %s = … with an equals sign.", b.Type, b.Type)
		case given[b.Type] > 0 && !f.repeated:
			d.fault(Head(b), "Block given twice", "There can be one block %q here. Put all arguments into one.", b.Type)
		case twice && len(b.Labels) > 0:
			d.fault(Head(b), "Name used twice", "There is a %s %q at %s already. Give one of them another name.", b.Type, strings.Join(b.Labels, " "), where(first))
		default:
			heads[key] = Head(b)
			d.block(b, v.FieldByIndex(f.index), f, given[b.Type], join(path, b.Type))
			given[b.Type]++
		}
	}
	for _, f := range fs {
		if f.role == argument && f.required && given[f.name] == 0 && !meant[f.name] {
			d.fault(head, "Missing argument", "The argument %q is required: %s. Add %s = %s.", f.name, f.about(), f.name, example(f))
		}
	}
}

func where(r hcl.Range) string {
	return fmt.Sprintf("%s:%d:%d", r.Filename, r.Start.Line, r.Start.Column)
}

func countLabels(t reflect.Type) (n int) {
	for _, f := range fieldsOf(t) {
		if f.role == label {
			n++
		}
	}
	return n
}

// block fills field dst from block b, the n-th of its type.
func (d *decoder) block(b *hcl.Block, dst reflect.Value, f *field, n int, path string) {
	want := countLabels(f.elem)
	if len(b.Labels) < want {
		d.fault(Head(b), "Block without a name", "A block %q has %s behind its type. Write %s \"name\" { … }.", b.Type, names(want), b.Type)
		return
	}
	if len(b.Labels) > want {
		d.fault(b.LabelRanges[want], "Too many block names", "A block %q has %s behind its type. Leave %q out.", b.Type, names(want), b.Labels[want])
		return
	}
	if want > 0 {
		path += "." + strings.Join(b.Labels, ".")
	} else if f.repeated {
		path += "[" + strconv.Itoa(n) + "]"
	}
	var v reflect.Value
	switch {
	case f.repeated:
		if n == 0 {
			dst.Set(reflect.MakeSlice(dst.Type(), 0, 4)) // defaults are replaced, and never written to
		}
		v = fresh(f.elem)
		defer func() { dst.Set(reflect.Append(dst, v)) }()
	case dst.Kind() == reflect.Pointer:
		p := reflect.New(f.elem)
		if dst.IsNil() {
			p.Elem().Set(fresh(f.elem))
		} else {
			p.Elem().Set(dst.Elem())
		}
		dst.Set(p)
		v = p.Elem()
	default:
		v = dst
	}
	i := 0
	for _, lf := range fieldsOf(f.elem) {
		if lf.role == label {
			v.FieldByIndex(lf.index).SetString(b.Labels[i])
			i++
		}
	}
	d.at(path, Head(b))
	d.body(b.Body, Head(b), v, path, nil)
}

func names(n int) string {
	switch n {
	case 0:
		return "no name"
	case 1:
		return "one name"
	}
	return strconv.Itoa(n) + " names"
}

// fresh answers a settable struct with its own defaults.
func fresh(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	if s, ok := p.Interface().(Defaulter); ok {
		s.SetDefaults()
	}
	return p.Elem()
}

type outcome uint8

const (
	filled outcome = iota
	absent         // null: as if not written
	faulty         // told, or follows from what was told
)

// expr fills dst from an expression. Lists and objects that are written out are
// taken element by element, so that each fault has its own place.
func (d *decoder) expr(e hcl.Expression, dst reflect.Value, f *field, name, path string) outcome {
	t := dst.Type()
	if t == exprType {
		dst.Set(reflect.ValueOf(e))
		return filled
	}
	if !isLeaf(t) {
		switch t.Kind() {
		case reflect.Slice:
			if list, diags := hcl.ExprList(e); !diags.HasErrors() {
				s := reflect.MakeSlice(t, len(list), len(list))
				res := filled
				for i, x := range list {
					res = max(res, d.element(x, cty.NilVal, x.Range(), s.Index(i), f, name, path+"["+strconv.Itoa(i)+"]"))
				}
				dst.Set(s)
				return res
			}
		case reflect.Struct:
			if pairs, diags := hcl.ExprMap(e); !diags.HasErrors() {
				return d.object(pairs, e.Range(), dst, path)
			}
		}
	}
	val, diags := Value(e, d.ctx)
	d.diags = append(d.diags, diags...)
	if diags.HasErrors() {
		return faulty
	}
	return d.value(val, e.Range(), dst, f, name, path)
}

// element fills one element of a list, from an expression, else from a value.
func (d *decoder) element(e hcl.Expression, val cty.Value, at hcl.Range, dst reflect.Value, f *field, name, path string) outcome {
	if dst.Kind() == reflect.Struct && !isLeaf(dst.Type()) {
		dst.Set(fresh(dst.Type()))
	}
	d.at(path, at)
	var res outcome
	if e != nil {
		res = d.expr(e, dst, f, name, path)
	} else {
		res = d.value(val, at, dst, f, name, path)
	}
	if res == absent {
		d.fault(at, "Null in a list", "An element of %q is null. Leave it out, or give it a value.", name)
		return faulty
	}
	return res
}

// An entry is one attribute of an object.
type entry struct {
	name string
	at   hcl.Range
	expr hcl.Expression // or val
	val  cty.Value
}

func (d *decoder) object(pairs []hcl.KeyValuePair, at hcl.Range, dst reflect.Value, path string) outcome {
	var es []entry
	for _, p := range pairs {
		k, diags := Value(p.Key, d.ctx)
		d.diags = append(d.diags, diags...)
		if diags.HasErrors() || !k.IsKnown() {
			return faulty
		}
		k, err := convert.Convert(k, cty.String)
		if err != nil || k.IsNull() {
			d.fault(p.Key.Range(), "Key is no text", "The keys of an object are text. Write it in quotes.")
			return faulty
		}
		es = append(es, entry{k.AsString(), p.Key.Range(), p.Value, cty.NilVal})
	}
	return d.entries(es, at, dst, path)
}

func (d *decoder) entries(es []entry, at hcl.Range, dst reflect.Value, path string) outcome {
	before := len(d.diags)
	fs := fieldsOf(dst.Type())
	known := map[string]*field{}
	var names []string
	for _, f := range fs {
		known[f.name] = f
		names = append(names, f.name)
	}
	given, meant := map[string]bool{}, map[string]bool{}
	res := filled
	for _, e := range es {
		f := known[e.name]
		if f == nil {
			meant[Closest(e.name, names)] = true
			d.fault(e.at, "Unknown argument", "There is no argument %q here. %s", e.name, DidYouMean(e.name, names))
			continue
		}
		if given[e.name] {
			d.fault(e.at, "Key given twice", "The object has %q twice. Leave one out.", e.name)
			continue
		}
		var o outcome
		fv, p := dst.FieldByIndex(f.index), join(path, f.name)
		switch {
		case f.role == block:
			d.fault(e.at, "Argument where a block belongs", "%q is a block. Write %s { … } without the equals sign.", e.name, e.name)
			o = faulty
		case e.expr != nil:
			d.at(p, e.expr.Range())
			o = d.expr(e.expr, fv, f, f.name, p)
		default:
			d.at(p, e.at)
			o = d.value(e.val, e.at, fv, f, f.name, p)
		}
		given[e.name] = o != absent
		if o == faulty {
			res = faulty
		}
	}
	for _, f := range fs {
		if f.required && !given[f.name] && !meant[f.name] {
			d.fault(at, "Missing argument", "The argument %q is required: %s. Add %s = %s.", f.name, f.about(), f.name, example(f))
		}
	}
	if len(d.diags) > before {
		return faulty
	}
	return res
}

// value fills dst from an evaluated value.
func (d *decoder) value(val cty.Value, at hcl.Range, dst reflect.Value, f *field, name, path string) outcome {
	val, _ = val.UnmarkDeep()
	if !val.IsKnown() {
		return faulty // its cause was told
	}
	if val.IsNull() {
		return absent
	}
	t := dst.Type()
	if isLeaf(t) {
		return d.leaf(val, at, dst, f, name)
	}
	many := val.CanIterateElements()
	keyed := many && (val.Type().IsObjectType() || val.Type().IsMapType())
	switch t.Kind() {
	case reflect.Pointer:
		p := reflect.New(t.Elem())
		res := d.value(val, at, p.Elem(), f, name, path)
		if res == filled {
			dst.Set(p)
		}
		return res
	case reflect.Slice:
		if !many || keyed {
			return d.wrongType(val, at, t, name)
		}
		s := reflect.MakeSlice(t, val.LengthInt(), val.LengthInt())
		res, i := filled, 0
		for it := val.ElementIterator(); it.Next(); i++ {
			_, x := it.Element()
			p := "" // a list that is computed may be long, and all its elements stand at one place
			if !isLeaf(t.Elem()) {
				p = path + "[" + strconv.Itoa(i) + "]"
			}
			res = max(res, d.element(nil, x, at, s.Index(i), f, name, p))
		}
		dst.Set(s)
		return res
	case reflect.Map:
		if !keyed {
			return d.wrongType(val, at, t, name)
		}
		m := reflect.MakeMapWithSize(t, val.LengthInt())
		res := filled
		for it := val.ElementIterator(); it.Next(); {
			k, x := it.Element()
			e := reflect.New(t.Elem()).Elem()
			o := d.value(x, at, e, f, name, path)
			if o == absent {
				d.fault(at, "Null in a map", "The element %q of %q is null. Leave it out, or give it a value.", k.AsString(), name)
				o = faulty
			}
			m.SetMapIndex(reflect.ValueOf(k.AsString()).Convert(t.Key()), e)
			res = max(res, o)
		}
		dst.Set(m)
		return res
	default: // a struct
		if !keyed {
			return d.wrongType(val, at, t, name)
		}
		var es []entry
		for it := val.ElementIterator(); it.Next(); {
			k, x := it.Element()
			es = append(es, entry{k.AsString(), at, nil, x})
		}
		return d.entries(es, at, dst, path)
	}
}

func (d *decoder) wrongType(val cty.Value, at hcl.Range, t reflect.Type, name string) outcome {
	got := article(ctyWord(val.Type()))
	if val.Type() == cty.String && val.IsKnown() && !val.IsNull() && len(val.AsString()) <= 40 { // it may have come from elsewhere
		got = fmt.Sprintf("the text %q", val.AsString())
	}
	d.fault(at, "Wrong type", "%q takes %s, not %s. %s", name, article(word(t)), got, howTo(t))
	return faulty
}

func ctyWord(t cty.Type) string {
	switch {
	case t == cty.String:
		return "text"
	case t == cty.Number:
		return "number"
	case t == cty.Bool:
		return "boolean"
	case t.IsTupleType(), t.IsListType(), t.IsSetType():
		return "list"
	}
	return "object"
}

func article(w string) string {
	switch {
	case w == "text":
		return w
	case strings.ContainsRune("aeio", rune(w[0])):
		return "an " + w
	}
	return "a " + w
}

func (d *decoder) leaf(val cty.Value, at hcl.Range, dst reflect.Value, f *field, name string) outcome {
	t := dst.Type()
	if val.Type().IsObjectType() && t.Kind() == reflect.String && val.Type().HasAttribute("name") { // a reference, as in pool.web
		if o := val.Type(); f.ref != "" && o.HasAttribute("block") && val.GetAttr("block").AsString() != f.ref {
			d.fault(at, "Wrong reference", "%q names a block %q, and this is a block %q. Write %s.NAME.", name, f.ref, val.GetAttr("block").AsString(), f.ref)
			return faulty
		}
		val = val.GetAttr("name")
	}
	switch {
	case t == durationType:
		if val.Type() != cty.String {
			return d.wrongType(val, at, t, name)
		}
		s := val.AsString()
		x, err := time.ParseDuration(s)
		if err != nil {
			d.fault(at, "Not a duration", "%q cannot be %q. %s", name, s, howTo(t))
			return faulty
		}
		if !d.within(new(big.Float).SetInt64(int64(x)), at, t, f, name) {
			return faulty
		}
		dst.SetInt(int64(x))
		return filled
	case isInt(t), isUint(t), t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		if !reflect.PointerTo(t).Implements(textType) {
			return d.number(val, at, dst, f, name)
		}
	case t.Kind() == reflect.Bool:
		b, err := convert.Convert(val, cty.Bool)
		if err != nil {
			return d.wrongType(val, at, t, name)
		}
		dst.SetBool(b.True())
		return filled
	}
	text, err := convert.Convert(val, cty.String)
	if err != nil {
		return d.wrongType(val, at, t, name)
	}
	s := text.AsString()
	switch {
	case t == addrType:
		a, err := netip.ParseAddr(s)
		if with, wrong := netip.ParseAddrPort(s); wrong == nil {
			d.fault(at, "Not an address", "%q cannot be %q, which has a port. Write %q alone; where a port can be given it is an argument of its own.", name, s, with.Addr())
			return faulty
		}
		if err != nil {
			d.fault(at, "Not an address", "%q cannot be %q. %s", name, s, howTo(t))
			return faulty
		}
		dst.Set(reflect.ValueOf(a.Unmap()))
	case t == prefixType:
		p, err := ParsePrefix(s)
		if err != nil {
			d.fault(at, "Not a prefix", "%q cannot be %q. %s", name, s, howTo(t))
			return faulty
		}
		if m := p.Masked(); m != p {
			d.fault(at, "Host bits are set", "%q is %s, which has bits behind its prefix length. Write %s for the network, or %s for the address.", name, p, m, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
			return faulty
		}
		dst.Set(reflect.ValueOf(p))
	case t == addrPortType:
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			d.fault(at, "Not an address with port", "%q cannot be %q. %s", name, s, howTo(t))
			return faulty
		}
		dst.Set(reflect.ValueOf(netip.AddrPortFrom(a.Addr().Unmap(), a.Port())))
	case reflect.PointerTo(t).Implements(textType):
		if err := dst.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
			d.fault(at, "Value not accepted", "%q cannot be %q. %s", name, s, sentence(err.Error()))
			return faulty
		}
	default:
		if !d.allowed(s, at, f, name) || !d.declared(s, at, f, name) {
			return faulty
		}
		dst.SetString(s)
	}
	return filled
}

// ParsePrefix reads a prefix, or an address as the prefix of its full length.
// IPv4-mapped ones become IPv4.
func ParsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is no prefix", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6", s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

func (d *decoder) number(val cty.Value, at hcl.Range, dst reflect.Value, f *field, name string) outcome {
	t := dst.Type()
	n, err := convert.Convert(val, cty.Number)
	if err != nil || val.Type() == cty.Bool {
		return d.wrongType(val, at, t, name)
	}
	x := n.AsBigFloat()
	if t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64 {
		if !d.within(x, at, t, f, name) {
			return faulty
		}
		v, _ := x.Float64()
		if dst.OverflowFloat(v) || x.IsInf() {
			d.fault(at, "Out of range", "%q is %s, which does not fit. Give it a smaller number.", name, short(x))
			return faulty
		}
		dst.SetFloat(v)
		return filled
	}
	if !x.IsInt() {
		if x.IsInf() {
			d.fault(at, "Out of range", "%q is infinite. Give it a whole number.", name)
			return faulty
		}
		d.fault(at, "Not a whole number", "%q is %s. Write a whole number.", name, short(x))
		return faulty
	}
	if !d.within(x, at, t, f, name) || !d.allowed(short(x), at, f, name) {
		return faulty
	}
	if isInt(t) {
		v, acc := x.Int64()
		if acc != big.Exact || dst.OverflowInt(v) {
			d.fault(at, "Out of range", "%q is %s, which does not fit. Give it a number from %d to %d.", name, short(x), int64(-1)<<(t.Bits()-1), uint64(1)<<(t.Bits()-1)-1)
			return faulty
		}
		dst.SetInt(v)
		return filled
	}
	v, acc := x.Uint64()
	if acc != big.Exact || dst.OverflowUint(v) {
		d.fault(at, "Out of range", "%q is %s, which does not fit. Give it a number from 0 to %d.", name, short(x), ^uint64(0)>>(64-t.Bits()))
		return faulty
	}
	dst.SetUint(v)
	return filled
}

// short prints a number of any size in a few characters.
func short(x *big.Float) string {
	if x.IsInt() && x.MantExp(nil) < 128 {
		return x.Text('f', 0)
	}
	return x.Text('g', 10)
}

// within checks the bounds of a number or duration.
func (d *decoder) within(x *big.Float, at hcl.Range, t reflect.Type, f *field, name string) bool {
	lo, _ := bound(t, f.lo)
	hi, _ := bound(t, f.hi)
	show := short(x)
	if t == durationType {
		v, _ := x.Int64()
		show = durationText(time.Duration(v))
		if lo == nil && x.Sign() < 0 {
			d.fault(at, "Out of range", "%q is %s, and a duration is not negative. Write one as in \"5s\".", name, show)
			return false
		}
	}
	if (lo == nil || x.Cmp(lo) >= 0) && (hi == nil || x.Cmp(hi) <= 0) {
		return true
	}
	d.fault(at, "Out of range", "%q is %s. Give it a value %s.", name, show, bounds(f.lo, f.hi))
	return false
}

func bounds(lo, hi string) string {
	switch {
	case lo == "":
		return "of at most " + hi
	case hi == "":
		return "of at least " + lo
	}
	return "from " + lo + " to " + hi
}

func (d *decoder) allowed(s string, at hcl.Range, f *field, name string) bool {
	if f.enum == nil {
		return true
	}
	for _, e := range f.enum {
		if s == e {
			return true
		}
	}
	d.fault(at, "Unknown value", "%q cannot be %q. %s", name, s, DidYouMean(s, f.enum))
	return false
}

// declared checks that a reference, written as text, names a block that exists.
func (d *decoder) declared(s string, at hcl.Range, f *field, name string) bool {
	if f.ref == "" || s == "" && !f.required {
		return true
	}
	ns, found := lookup(d.ctx, f.ref)
	if found && (!ns.IsKnown() || ns.Type().IsObjectType() && ns.Type().HasAttribute(s)) {
		return true
	}
	d.fault(at, "Unknown name", "There is no %s %q. %s", f.ref, s, DidYouMean(s, attributes(ns)))
	return false
}

func (f *field) about() string {
	if f.doc == "" {
		return word(f.typ)
	}
	return f.doc
}

// howTo says how a value of type t is written.
func howTo(t reflect.Type) string {
	switch w := word(t); w {
	case "duration":
		return `Write a number with its unit in quotes, as in "5s" or "2h".`
	case "address":
		return `Write an IPv4 or IPv6 address in quotes, as in "192.0.2.1".`
	case "prefix":
		return `Write an IPv4 or IPv6 prefix in quotes, as in "192.0.2.0/24".`
	case "address with port":
		return `Write both in quotes, as in "192.0.2.1:80" or "[::]:80".`
	case "text":
		return `Write it in quotes.`
	case "boolean":
		return `Write true or false.`
	case "integer":
		return `Write a whole number.`
	case "number":
		return `Write a number, as in 0.5.`
	case "object":
		return `Write { name = value, … }.`
	}
	if t.Kind() == reflect.Map {
		return `Write { name = value, … }.`
	}
	return `Write [ value, … ].`
}

// example answers a value of the field's type, as in the file.
func example(f *field) string {
	if len(f.enum) > 0 {
		if word(leafOf(f.typ)) == "text" {
			return strconv.Quote(f.enum[0])
		}
		return f.enum[0]
	}
	switch word(f.typ) {
	case "duration":
		return `"5s"`
	case "address":
		return `"192.0.2.1"`
	case "prefix":
		return `"192.0.2.0/24"`
	case "address with port":
		return `"192.0.2.1:80"`
	case "text":
		if f.ref != "" {
			return f.ref + ".NAME"
		}
		return `"…"`
	case "boolean":
		return "true"
	case "integer", "number":
		if f.lo != "" {
			return f.lo
		}
		return "1"
	}
	if f.typ.Kind() == reflect.Slice {
		return "[ … ]"
	}
	return "{ … }"
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + strings.TrimSuffix(s[n:], ".") + "."
}

func sortedNames(as hcl.Attributes) []string {
	names := make([]string, 0, len(as))
	for n := range as {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool { return as[names[i]].Range.Start.Byte < as[names[j]].Range.Start.Byte })
	return names
}
