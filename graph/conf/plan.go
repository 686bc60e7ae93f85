package conf

import (
	"encoding"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// A Defaulter sets its own defaults. It is called on the struct of a repeated
// block, of a block behind a nil pointer, and of an object in a list, before the
// file fills it.
type Defaulter interface{ SetDefaults() }

type role uint8

const (
	argument role = iota
	block
	label
)

// A field is one tagged field of a struct.
type field struct {
	name     string
	index    []int
	typ      reflect.Type
	role     role
	required bool
	repeated bool         // of a block: a slice
	elem     reflect.Type // of a block: the struct
	doc      string
	lo, hi   string
	enum     []string
	ref      string
	secret   bool
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	addrType     = reflect.TypeFor[netip.Addr]()
	prefixType   = reflect.TypeFor[netip.Prefix]()
	addrPortType = reflect.TypeFor[netip.AddrPort]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	exprType     = reflect.TypeFor[hcl.Expression]()

	plans sync.Map // reflect.Type of a struct → []*field
)

// fieldsOf answers the tagged fields of struct t in their order. A programmer's
// mistake in the tags panics; Verify finds it early.
func fieldsOf(t reflect.Type) []*field {
	if p, ok := plans.Load(t); ok {
		return p.([]*field)
	}
	fs, err := parseStruct(t, nil)
	if err != nil {
		panic("conf: " + err.Error())
	}
	plans.Store(t, fs)
	return fs
}

// Verify tells what is wrong with the tags and types of a configuration struct,
// given as the struct or a pointer to it; nil if nothing is. Decode and Document
// panic where Verify answers an error.
func Verify(target any) error {
	t := reflect.TypeOf(target)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return fmt.Errorf("%T is no struct", target)
	}
	return verify(t, map[reflect.Type]bool{})
}

func verify(t reflect.Type, seen map[reflect.Type]bool) error {
	if seen[t] {
		return fmt.Errorf("%s contains itself", t)
	}
	seen[t] = true
	defer delete(seen, t)
	fs, err := parseStruct(t, nil)
	if err != nil {
		return err
	}
	for _, f := range fs {
		if s := f.structType(); s != nil {
			if err := verify(s, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// structType answers the struct that a block or an object of this field is, or
// nil.
func (f *field) structType() reflect.Type {
	if f.role == block {
		return f.elem
	}
	t := f.typ
	for !isLeaf(t) && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
		t = t.Elem()
	}
	if t.Kind() == reflect.Struct && !isLeaf(t) {
		return t
	}
	return nil
}

func parseStruct(t reflect.Type, at []int) ([]*field, error) {
	var fs []*field
	for i := range t.NumField() {
		sf := t.Field(i)
		index := append(append([]int(nil), at...), i)
		tag, tagged := sf.Tag.Lookup("hcl")
		if !tagged {
			if sf.Anonymous && sf.Type.Kind() == reflect.Struct {
				inner, err := parseStruct(sf.Type, index)
				if err != nil {
					return nil, err
				}
				fs = append(fs, inner...)
			}
			continue
		}
		f, err := parseField(sf, tag)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t, sf.Name, err)
		}
		f.index = index
		fs = append(fs, f)
	}
	seen := map[string]bool{}
	for _, f := range fs {
		if seen[f.name] {
			return nil, fmt.Errorf("%s: two fields are called %q", t, f.name)
		}
		seen[f.name] = true
	}
	return fs, nil
}

func parseField(sf reflect.StructField, tag string) (*field, error) {
	name, form, _ := strings.Cut(tag, ",")
	f := &field{name: name, typ: sf.Type, doc: sf.Tag.Get("doc"), ref: sf.Tag.Get("ref"), secret: sf.Tag.Get("secret") == "true"}
	if name == "" || !sf.IsExported() {
		return nil, fmt.Errorf("a name and an exported field are required")
	}
	switch form {
	case "":
		f.required = true
	case "optional":
	case "label":
		f.role, f.required = label, true
		if sf.Type.Kind() != reflect.String {
			return nil, fmt.Errorf("a label is a string")
		}
		return f, nil
	case "block":
		f.role, f.elem = block, sf.Type
		switch sf.Type.Kind() {
		case reflect.Slice:
			f.repeated, f.elem = true, sf.Type.Elem()
		case reflect.Pointer:
			f.elem = sf.Type.Elem()
		}
		if f.elem.Kind() != reflect.Struct {
			return nil, fmt.Errorf("a block is a struct")
		}
		return f, nil
	default:
		return nil, fmt.Errorf("unknown form %q of the hcl tag", form)
	}
	if err := checkType(sf.Type, true); err != nil {
		return nil, err
	}
	if r, ok := sf.Tag.Lookup("range"); ok {
		lo, hi, two := strings.Cut(r, ",")
		if !two {
			return nil, fmt.Errorf("range %q: two bounds are required", r)
		}
		f.lo, f.hi = strings.TrimSpace(lo), strings.TrimSpace(hi)
		for _, b := range []string{f.lo, f.hi} {
			if _, err := bound(leafOf(sf.Type), b); err != nil {
				return nil, err
			}
		}
	}
	if e, ok := sf.Tag.Lookup("enum"); ok {
		if l := leafOf(sf.Type); reflect.PointerTo(l).Implements(textType) || l.Kind() != reflect.String && !isInt(l) && !isUint(l) || l == durationType {
			return nil, fmt.Errorf("an enum does not fit type %s", sf.Type)
		}
		for _, v := range strings.Split(e, ",") {
			f.enum = append(f.enum, strings.TrimSpace(v))
		}
	}
	return f, nil
}

// leafOf answers the type of the single values in an argument of type t.
func leafOf(t reflect.Type) reflect.Type {
	for !isLeaf(t) && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
		t = t.Elem()
	}
	return t
}

func checkType(t reflect.Type, top bool) error {
	switch {
	case isLeaf(t):
		return nil
	case t.Kind() == reflect.Struct:
		return nil
	case t.Kind() == reflect.Pointer && isLeaf(t.Elem()):
		return nil
	case t.Kind() == reflect.Slice && top:
		return checkType(t.Elem(), false)
	case t.Kind() == reflect.Map && top && t.Key().Kind() == reflect.String && isLeaf(t.Elem()):
		return nil
	}
	return fmt.Errorf("type %s is not supported", t)
}

func isLeaf(t reflect.Type) bool {
	if t == exprType {
		return true
	}
	if t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64:
		return true
	}
	return isInt(t) || isUint(t)
}

func isInt(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
func isUint(t reflect.Type) bool {
	return t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64
}

// bound reads one bound of a range tag; nil for an empty one.
func bound(t reflect.Type, s string) (*big.Float, error) {
	if s == "" {
		return nil, nil
	}
	if t == durationType {
		d, err := time.ParseDuration(s)
		return new(big.Float).SetInt64(int64(d)), err
	}
	if !isInt(t) && !isUint(t) && t.Kind() != reflect.Float32 && t.Kind() != reflect.Float64 {
		return nil, fmt.Errorf("a range does not fit type %s", t)
	}
	b, ok := new(big.Float).SetString(s)
	if !ok {
		return nil, fmt.Errorf("range bound %q is no number", s)
	}
	return b, nil
}

// word names a type for people.
func word(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t == addrType:
		return "address"
	case t == prefixType:
		return "prefix"
	case t == addrPortType:
		return "address with port"
	case t == exprType:
		return "value"
	case t.Kind() == reflect.Pointer:
		return word(t.Elem())
	case isLeaf(t) && reflect.PointerTo(t).Implements(textType):
		return "text"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case isInt(t), isUint(t):
		return "integer"
	case t.Kind() == reflect.Slice:
		return "list of " + plural(word(t.Elem()))
	case t.Kind() == reflect.Map:
		return "map of " + plural(word(t.Elem()))
	case t.Kind() == reflect.Struct:
		return "object"
	}
	return "number"
}

func plural(w string) string {
	switch w {
	case "address":
		return "addresses"
	case "prefix":
		return "prefixes"
	case "address with port":
		return "addresses with port"
	}
	return w + "s"
}
