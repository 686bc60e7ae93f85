package conf

import (
	"encoding"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Field documents one argument, block or label of a configuration struct.
type Field struct {
	Name     string
	Type     string // "integer", "list of addresses", "block", "blocks", "label", …
	Required bool
	Block    bool
	Label    bool
	Default  string // as it would stand in the file; "" if required, a block, or none
	Lo, Hi   string // bounds; "" where there is none
	Enum     []string
	Ref      string // type of block that it names
	Doc      string
	Fields   []Field // of a block or an object
}

// Document answers the fields of a configuration struct, given as a pointer to
// it (or the struct itself) with its defaults, in the order of the struct.
func Document(config any) []Field {
	v := reflect.Indirect(reflect.ValueOf(config))
	return document(v)
}

func document(v reflect.Value) []Field {
	var all []Field
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.index)
		d := Field{
			Name: f.name, Type: word(f.typ), Required: f.required && f.role == argument, Block: f.role == block, Label: f.role == label,
			Lo: f.lo, Hi: f.hi, Enum: f.enum, Ref: f.ref, Doc: f.doc,
		}
		switch f.role {
		case label:
			d.Type = "label"
		case block:
			d.Type = "block"
			if f.repeated {
				d.Type = "blocks"
			}
			inner := fv
			if f.repeated || fv.Kind() == reflect.Pointer && fv.IsNil() {
				inner = fresh(f.elem)
			}
			d.Fields = document(reflect.Indirect(inner))
		default:
			if s := f.structType(); s != nil {
				inner := fv
				if fv.Kind() != reflect.Struct {
					inner = fresh(s)
				}
				d.Fields = document(inner)
			} else if !f.required {
				d.Default = text(fv)
			}
		}
		all = append(all, d)
	}
	return all
}

// text prints a value as it would stand in the file; "" for none.
func text(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return strconv.Quote(durationText(x))
	case netip.Addr:
		if !x.IsValid() {
			return ""
		}
		return strconv.Quote(x.String())
	case netip.AddrPort:
		if !x.IsValid() {
			return ""
		}
		return strconv.Quote(x.String())
	case netip.Prefix:
		if !x.IsValid() {
			return ""
		}
		return strconv.Quote(x.String())
	}
	if isLeaf(v.Type()) && v.Kind() != reflect.Interface && reflect.PointerTo(v.Type()).Implements(textType) {
		switch x := v.Interface().(type) {
		case encoding.TextMarshaler:
			if b, err := x.MarshalText(); err == nil {
				return strconv.Quote(string(b))
			}
		case fmt.Stringer:
			return strconv.Quote(x.String())
		}
		return strconv.Quote(fmt.Sprint(v.Interface()))
	}
	switch v.Kind() {
	case reflect.Interface: // an expression has no default
		return ""
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		return text(v.Elem())
	case reflect.Slice:
		var parts []string
		for i := range v.Len() {
			parts = append(parts, text(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		var parts []string
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			parts = append(parts, fmt.Sprintf("%s = %s", k, text(v.MapIndex(k))))
		}
		if parts == nil {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	case reflect.Struct:
		var parts []string
		for _, f := range fieldsOf(v.Type()) {
			parts = append(parts, fmt.Sprintf("%s = %s", f.name, text(v.FieldByIndex(f.index))))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	if v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	return fmt.Sprint(v.Interface())
}

// durationText is the shortest form: "2h", not "2h0m0s".
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Equal tells whether two configurations of one type say the same. An empty list
// or map is the same as none.
func Equal(a, b any) bool { return len(Changes(a, b)) == 0 }

// Changes lists what differs between two configurations of one type (structs or
// pointers to them), an argument a line, as in "timeouts.udp: "30s" -> "1m"".
// Repeated blocks with a label are matched by it, others by their place.
// Configurations of different types, or nil ones, differ as a whole.
func Changes(before, after any) []string {
	a, b := reflect.ValueOf(before), reflect.ValueOf(after)
	for a.IsValid() && a.Kind() == reflect.Pointer {
		a = a.Elem()
	}
	for b.IsValid() && b.Kind() == reflect.Pointer {
		b = b.Elem()
	}
	if !a.IsValid() && !b.IsValid() {
		return nil
	}
	if !a.IsValid() || !b.IsValid() || a.Type() != b.Type() || a.Kind() != reflect.Struct {
		return []string{"another kind of configuration"}
	}
	var out []string
	changes(a, b, "", &out)
	return out
}

func changes(a, b reflect.Value, path string, out *[]string) {
	for _, f := range fieldsOf(a.Type()) {
		x, y := a.FieldByIndex(f.index), b.FieldByIndex(f.index)
		p := join(path, f.name)
		if f.role == block && (f.repeated || x.Kind() == reflect.Pointer) {
			xs, order := elements(x, f)
			ys, more := elements(y, f)
			for _, k := range append(order, more...) {
				u, had := xs[k]
				w, has := ys[k]
				switch {
				case had && has:
					changes(u, w, p+k, out)
				case had:
					*out = append(*out, p+k+": removed")
				case has:
					*out = append(*out, p+k+": added")
				}
				delete(xs, k)
				delete(ys, k)
			}
			continue
		}
		if f.role == block {
			changes(x, y, p, out)
			continue
		}
		if s, t := text(x), text(y); s != t {
			if f.secret {
				s, t = "(secret)", "(secret)"
			}
			*out = append(*out, fmt.Sprintf("%s: %s -> %s", p, orNone(s), orNone(t)))
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// elements answers a field's blocks by a suffix to its path, and the suffixes in
// order.
func elements(v reflect.Value, f *field) (map[string]reflect.Value, []string) {
	m := map[string]reflect.Value{}
	if v.Kind() == reflect.Pointer {
		if !v.IsNil() {
			m[""] = v.Elem()
		}
		return m, slices.Collect(maps.Keys(m))
	}
	var order []string
	for i := range v.Len() {
		e := v.Index(i)
		k := ""
		for _, lf := range fieldsOf(f.elem) {
			if lf.role == label {
				k += "." + e.FieldByIndex(lf.index).String()
			}
		}
		if _, twice := m[k]; k == "" || twice {
			k += "[" + strconv.Itoa(i) + "]"
		}
		m[k] = e
		order = append(order, k)
	}
	return m, order
}

// Refs answers the names that the ref fields for blocks of type typ hold, in a
// configuration and all its blocks.
func Refs(config any, typ string) []string {
	var all []string
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
			return
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
			return
		}
		for _, f := range fieldsOf(v.Type()) {
			fv := v.FieldByIndex(f.index)
			if f.structType() != nil {
				walk(fv)
				continue
			}
			if f.ref != typ {
				continue
			}
			switch x := fv.Interface().(type) {
			case string:
				if x != "" {
					all = append(all, x)
				}
			case []string:
				all = append(all, x...)
			}
		}
	}
	walk(reflect.ValueOf(config))
	return all
}
