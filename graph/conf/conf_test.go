package conf_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"github.com/lbgraph/lbgraph/graph/conf"
)

type level int

func (l *level) UnmarshalText(b []byte) error {
	switch string(b) {
	case "low":
		*l = 1
	case "high":
		*l = 2
	default:
		return fmt.Errorf("write low or high")
	}
	return nil
}

func (l level) String() string { return [...]string{"none", "low", "high"}[l] }

type common struct {
	Name string `hcl:"name,optional" doc:"a name"`
	Skip int    // no tag: none of the file's business
}

type rule struct {
	Host  string `hcl:"host,label" doc:"what it is for"`
	Path  string `hcl:"path,optional" doc:"a path"`
	Tries int    `hcl:"tries,optional" range:"1,9" doc:"how often"`
}

func (r *rule) SetDefaults() { r.Tries = 3 }

type limits struct {
	Idle time.Duration `hcl:"idle,optional" range:"1s,1h" doc:"while idle"`
	Max  *int          `hcl:"max,optional" doc:"at most"`
}

type all struct {
	common
	Text     string            `hcl:"text" doc:"a text" enum:"a,b"`
	Flag     bool              `hcl:"flag,optional"`
	Int      int               `hcl:"int,optional" range:",100"`
	Byte     uint8             `hcl:"byte,optional"`
	Big      uint64            `hcl:"big,optional"`
	Float    float64           `hcl:"float,optional" range:"0.5,"`
	Wait     time.Duration     `hcl:"wait,optional"`
	Back     time.Duration     `hcl:"back,optional" range:"-1h,1h"`
	Addr     netip.Addr        `hcl:"addr,optional"`
	Prefix   netip.Prefix      `hcl:"prefix,optional"`
	Listen   netip.AddrPort    `hcl:"listen,optional"`
	Level    level             `hcl:"level,optional"`
	Maybe    *bool             `hcl:"maybe,optional"`
	Ints     []int             `hcl:"ints,optional" range:"0,9"`
	Waits    []time.Duration   `hcl:"waits,optional"`
	Prefixes []netip.Prefix    `hcl:"prefixes,optional"`
	Map      map[string]string `hcl:"map,optional"`
	Numbers  map[string]int    `hcl:"numbers,optional"`
	Pool     string            `hcl:"pool,optional" ref:"pool"`
	Pools    []string          `hcl:"pools,optional" ref:"pool"`
	Secret   string            `hcl:"secret,optional" secret:"true"`
	One      limits            `hcl:"one,optional"`
	Rules    []rule            `hcl:"rules,optional"`
	Limits   limits            `hcl:"limits,block" doc:"bounds"`
	Extra    *limits           `hcl:"extra,block" doc:"more bounds"`
	Rule     []rule            `hcl:"rule,block" doc:"a rule"`
}

func body(t *testing.T, src string) hcl.Body {
	t.Helper()
	parse := hclsyntax.ParseConfig
	if strings.HasPrefix(src, "{") {
		parse = func(b []byte, name string, _ hcl.Pos) (*hcl.File, hcl.Diagnostics) { return json.Parse(b, name) }
	}
	f, diags := parse([]byte(src), "x", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return f.Body
}

var ctx = &hcl.EvalContext{Variables: map[string]cty.Value{
	"pool": cty.ObjectVal(map[string]cty.Value{
		"web": cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("web"), "block": cty.StringVal("pool")}),
		"api": cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("api"), "block": cty.StringVal("pool")}),
	}),
}}

const native = `
name = "n"
text = "a"
flag = true
int = -5
byte = 255
big = 18446744073709551615
float = 0.5
wait = "1m30s"
back = "-5s"
addr = "::ffff:192.0.2.1"
prefix = "192.0.2.1"
listen = "[::1]:80"
level = "high"
maybe = false
ints = [1, "2", 3.0]
waits = ["1s", "2m"]
prefixes = ["10.0.0.0/8", "2001:db8::1"]
map = { a = "x", b = 2 }
numbers = { one = 1 }
pool = pool.web
pools = [pool.web, "api"]
secret = "s"
one = { idle = "5s" }
rules = [{ host = "h", path = "/p" }, { host = "i", tries = 9 }]
limits {
  idle = "2s"
  max  = 0
}
extra {
}
rule "a" {
  path = "/a"
}
rule "b" {
  tries = 1
}
`

const jsonForm = `{
"name": "n", "text": "a", "flag": true, "int": -5, "byte": 255, "big": 18446744073709551615, "float": 0.5,
"wait": "1m30s", "back": "-5s", "addr": "::ffff:192.0.2.1", "prefix": "192.0.2.1", "listen": "[::1]:80", "level": "high", "maybe": false,
"ints": [1, "2", 3.0], "waits": ["1s", "2m"], "prefixes": ["10.0.0.0/8", "2001:db8::1"], "map": {"a": "x", "b": 2}, "numbers": {"one": 1},
"pool": "${pool.web}", "pools": ["${pool.web}", "api"], "secret": "s", "one": {"idle": "5s"},
"rules": [{"host": "h", "path": "/p"}, {"host": "i", "tries": 9}],
"limits": {"idle": "2s", "max": 0}, "extra": {}, "rule": {"a": {"path": "/a"}, "b": {"tries": 1}}
}`

func want() all {
	zero, no := 0, false
	return all{
		common: common{Name: "n", Skip: 7}, Text: "a", Flag: true, Int: -5, Byte: 255, Big: 1<<64 - 1, Float: 0.5,
		Wait: 90 * time.Second, Back: -5 * time.Second, Addr: netip.MustParseAddr("192.0.2.1"), Prefix: netip.MustParsePrefix("192.0.2.1/32"),
		Listen: netip.MustParseAddrPort("[::1]:80"), Level: 2, Maybe: &no, Ints: []int{1, 2, 3}, Waits: []time.Duration{time.Second, 2 * time.Minute},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::1/128")},
		Map:      map[string]string{"a": "x", "b": "2"}, Numbers: map[string]int{"one": 1}, Pool: "web", Pools: []string{"web", "api"}, Secret: "s",
		One: limits{Idle: 5 * time.Second}, Rules: []rule{{"h", "/p", 3}, {"i", "", 9}},
		Limits: limits{Idle: 2 * time.Second, Max: &zero}, Extra: &limits{}, Rule: []rule{{"a", "/a", 3}, {"b", "", 1}},
	}
}

func TestDecode(t *testing.T) {
	for name, src := range map[string]string{"native": native, "json": jsonForm} {
		got := all{common: common{Skip: 7}}
		if diags := conf.Decode(body(t, src), ctx, &got); diags.HasErrors() {
			t.Fatalf("%s: %v", name, diags)
		}
		if w := want(); !reflect.DeepEqual(got, w) {
			t.Errorf("%s\n got %+v\nwant %+v", name, got, w)
		}
	}
}

// What the file does not say keeps its default, and null is the same as silence;
// what it says never writes into what the defaults share.
func TestDefaults(t *testing.T) {
	ten := 10
	def := all{
		Text: "b", Int: 4, Maybe: new(bool), Ints: []int{7}, Map: map[string]string{"k": "v"},
		Extra: &limits{Idle: time.Minute, Max: &ten}, Rule: []rule{{Host: "default"}}, Limits: limits{Idle: time.Hour},
	}
	got := def
	if diags := conf.Decode(body(t, `text = "a"`+"\nint = null\nmap = null\nlimits {}\n"), nil, &got); diags.HasErrors() {
		t.Fatal(diags)
	}
	w := def
	w.Text = "a"
	if !reflect.DeepEqual(got, w) {
		t.Errorf("got %+v", got)
	}
	got = def
	src := "text = \"a\"\nint = 5\nmaybe = true\nints = [1, 2]\nmap = { k = \"w\" }\nextra {\n  idle = \"5s\"\n  max = 3\n}\nrule \"x\" {}\n"
	if diags := conf.Decode(body(t, src), nil, &got); diags.HasErrors() {
		t.Fatal(diags)
	}
	if got.Extra.Idle != 5*time.Second || *got.Extra.Max != 3 || len(got.Rule) != 1 || got.Rule[0].Host != "x" {
		t.Errorf("got %+v", got)
	}
	if *def.Maybe || def.Ints[0] != 7 || def.Map["k"] != "v" || def.Extra.Idle != time.Minute || ten != 10 || def.Rule[0].Host != "default" {
		t.Errorf("the defaults changed: %+v", def)
	}
}

func TestPlaces(t *testing.T) {
	got := map[string]string{}
	f, _ := hclsyntax.ParseConfig([]byte("b {"+native+"}\n"), "x", hcl.InitialPos)
	content, _ := f.Body.Content(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "b"}}})
	var a all
	diags := conf.DecodeBlock(content.Blocks[0], ctx, &a, conf.Options{Place: func(p string, at hcl.Range) { got[p] = string(at.SliceBytes(f.Bytes)) }})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	for p, w := range map[string]string{
		"text": `"a"`, "ints[1]": `"2"`, "limits": "limits", "limits.idle": `"2s"`, "rule.b": `rule "b"`, "rule.b.tries": "1",
		"rules[1]": `{ host = "i", tries = 9 }`, "rules[1].tries": "9", "one.idle": `"5s"`,
	} {
		if got[p] != w {
			t.Errorf("%s is %q, want %q", p, got[p], w)
		}
	}
}

func TestDocument(t *testing.T) {
	a := all{Int: 4, Wait: 2 * time.Hour, Addr: netip.MustParseAddr("192.0.2.1"), Level: 1, Ints: []int{1, 2}, Map: map[string]string{"b": "2", "a": "1"}, Limits: limits{Idle: 90 * time.Minute}}
	var out []string
	var walk func(fs []conf.Field, indent string)
	walk = func(fs []conf.Field, indent string) {
		for _, f := range fs {
			out = append(out, strings.TrimRight(fmt.Sprintf("%s%s: %s required=%t default=%s %s..%s %v %s", indent, f.Name, f.Type, f.Required, f.Default, f.Lo, f.Hi, f.Enum, f.Doc), " "))
			walk(f.Fields, indent+"  ")
		}
	}
	walk(conf.Document(&a), "")
	want := `name: text required=false default="" .. [] a name
text: text required=true default= .. [a b] a text
flag: boolean required=false default=false .. []
int: integer required=false default=4 ..100 []
byte: integer required=false default=0 .. []
big: integer required=false default=0 .. []
float: number required=false default=0 0.5.. []
wait: duration required=false default="2h" .. []
back: duration required=false default="0s" -1h..1h []
addr: address required=false default="192.0.2.1" .. []
prefix: prefix required=false default= .. []
listen: address with port required=false default= .. []
level: text required=false default="low" .. []
maybe: boolean required=false default= .. []
ints: list of integers required=false default=[1, 2] 0..9 []
waits: list of durations required=false default=[] .. []
prefixes: list of prefixes required=false default=[] .. []
map: map of texts required=false default={ a = "1", b = "2" } .. []
numbers: map of integers required=false default={} .. []
pool: text required=false default="" .. []
pools: list of texts required=false default=[] .. []
secret: text required=false default="" .. []
one: object required=false default= .. []
  idle: duration required=false default="0s" 1s..1h [] while idle
  max: integer required=false default= .. [] at most
rules: list of objects required=false default= .. []
  host: label required=false default= .. [] what it is for
  path: text required=false default="" .. [] a path
  tries: integer required=false default=3 1..9 [] how often
limits: block required=false default= .. [] bounds
  idle: duration required=false default="1h30m" 1s..1h [] while idle
  max: integer required=false default= .. [] at most
extra: block required=false default= .. [] more bounds
  idle: duration required=false default="0s" 1s..1h [] while idle
  max: integer required=false default= .. [] at most
rule: blocks required=false default= .. [] a rule
  host: label required=false default= .. [] what it is for
  path: text required=false default="" .. [] a path
  tries: integer required=false default=3 1..9 [] how often`
	if got := strings.Join(out, "\n"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// A default as Document prints it, put into a file, decodes to the default.
func TestDefaultsReadBack(t *testing.T) {
	a := want()
	var src strings.Builder
	for _, f := range conf.Document(&a) {
		if f.Default != "" && f.Ref == "" {
			fmt.Fprintf(&src, "%s = %s\n", f.Name, f.Default)
		}
	}
	got := all{common: common{Skip: 7}}
	if diags := conf.Decode(body(t, src.String()+"text = \"a\"\n"), nil, &got); diags.HasErrors() {
		t.Fatal(diags)
	}
	w := want()
	w.Pool, w.Pools, w.One, w.Rules, w.Limits, w.Extra, w.Rule = "", nil, limits{}, nil, limits{}, nil, nil
	if !reflect.DeepEqual(got, w) {
		t.Errorf("got\n%+v\nwant\n%+v", got, w)
	}
}

func TestChanges(t *testing.T) {
	a, b := want(), want()
	if ch := conf.Changes(&a, &b); ch != nil || !conf.Equal(a, &b) {
		t.Errorf("equal ones differ: %v", ch)
	}
	b.Skip = 8
	b.Ints, a.Ints = nil, []int{}
	if !conf.Equal(a, b) {
		t.Error("an empty list is not none, or a field without a tag counts")
	}
	b.Wait = time.Hour
	b.Addr = netip.Addr{}
	b.Secret = "t"
	b.Maybe = nil
	b.Limits.Idle = 3 * time.Second
	b.Extra = nil
	b.Rule = []rule{{"b", "/b", 1}, {"c", "", 3}}
	b.Rules = nil
	want := []string{
		`wait: "1m30s" -> "1h"`,
		`addr: "192.0.2.1" -> none`,
		`maybe: false -> none`,
		`secret: (secret) -> (secret)`,
		`rules: [{ host = "h", path = "/p", tries = 3 }, { host = "i", path = "", tries = 9 }] -> []`,
		`limits.idle: "2s" -> "3s"`,
		`extra: removed`,
		`rule.a: removed`,
		`rule.b.path: "" -> "/b"`,
		`rule.c: added`,
	}
	if got := conf.Changes(&a, &b); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if conf.Equal(a, limits{}) || conf.Equal(nil, &a) || !conf.Equal(nil, nil) {
		t.Error("what has no common type is equal, or nothing is not nothing")
	}
}

func TestRefs(t *testing.T) {
	type target struct {
		Pool string `hcl:"pool" ref:"pool"`
		VIP  string `hcl:"vip" ref:"vip"`
	}
	c := struct {
		all
		Targets []target `hcl:"target,block"`
		Lone    *target  `hcl:"lone,block"`
	}{all: want(), Targets: []target{{"p1", "v"}, {"p2", ""}}}
	if got := conf.Refs(&c, "pool"); !reflect.DeepEqual(got, []string{"web", "web", "api", "p1", "p2"}) {
		t.Errorf("got %v", got)
	}
}

func TestVerify(t *testing.T) {
	if err := conf.Verify(&all{}); err != nil {
		t.Error(err)
	}
	type loop struct {
		Inner []loop `hcl:"inner,block"`
	}
	for name, bad := range map[string]any{
		"no struct": 5,
		"nothing":   nil,
		"channel": struct {
			C chan int `hcl:"c"`
		}{},
		"nested list": struct {
			L [][]int `hcl:"l"`
		}{},
		"map of lists": struct {
			M map[string][]int `hcl:"m"`
		}{},
		"map by numbers": struct {
			M map[int]string `hcl:"m"`
		}{},
		"twice": struct {
			A int `hcl:"a"`
			B int `hcl:"a"`
		}{},
		"form": struct {
			A int `hcl:"a,sometimes"`
		}{},
		"no name": struct {
			A int `hcl:",optional"`
		}{},
		"unexported": struct {
			a int `hcl:"a"`
		}{},
		"label": struct {
			A int `hcl:"a,label"`
		}{},
		"block": struct {
			A int `hcl:"a,block"`
		}{},
		"enum of floats": struct {
			A []float64 `hcl:"a" enum:"1,2"`
		}{},
		"one bound": struct {
			A int `hcl:"a" range:"1"`
		}{},
		"bound": struct {
			A int `hcl:"a" range:"x,"`
		}{},
		"duration bound": struct {
			A time.Duration `hcl:"a" range:"1,"`
		}{},
		"range of text": struct {
			A string `hcl:"a" range:"1,2"`
		}{},
		"inside": struct {
			A []struct {
				C chan int `hcl:"c"`
			} `hcl:"a,block"`
		}{},
		"itself": loop{},
		"enum of durations": struct {
			A time.Duration `hcl:"a" enum:"1s,2s"`
		}{},
	} {
		if err := conf.Verify(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestProgrammersMistakesPanic(t *testing.T) {
	for name, target := range map[string]any{"value": all{}, "nil": (*all)(nil), "tags": &struct {
		A chan int `hcl:"a"`
	}{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			conf.Decode(body(t, "\n"), nil, target)
		}()
	}
}

// Unknown values come from what was told before, and are passed over.
func TestUnknownValues(t *testing.T) {
	var a all
	c := &hcl.EvalContext{Variables: map[string]cty.Value{"x": cty.DynamicVal, "pool": cty.DynamicVal}}
	src := "text = x\nint = x + 1\nints = [x]\nmap = { a = x }\naddr = \"10.0.0.${x}\"\npool = pool.gone\npools = [\"any\"]\nrules = x.y\none = { idle = x }\n"
	if diags := conf.Decode(body(t, src), c, &a); len(diags) > 0 {
		t.Error(diags)
	}
}

func TestDidYouMean(t *testing.T) {
	for _, c := range []struct {
		given string
		known []string
		want  string
	}{
		{"colour", []string{"color", "size"}, `Did you mean "color"?`},
		{"tcp_Established", []string{"tcp-established"}, `Did you mean "tcp-established"?`},
		{"ab", []string{"ba", "cd"}, `Choose among "ba", "cd".`},
		{"RX", []string{"rx", "tx"}, `Did you mean "rx"?`},
		{"encap", []string{"gre-encap", "gue-encap"}, `Did you mean "gre-encap"?`},
		{"gre", []string{"drop", "gre_encap"}, `Did you mean "gre_encap"?`},
		{"web", []string{"pool.web", "vip.api"}, `Did you mean "pool.web"?`},
		{"x", []string{"one"}, `There is only "one".`},
		{"x", nil, `Declare it first.`},
		{"zzz", strings.Split("a1 b1 c1 d1 e1 f1 g1 h1 i1 j1 k1 l1 m1 n1", " "), `Choose among "a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1", "i1", "j1", "k1", "l1", and 2 more.`},
		{strings.Repeat("x", 100), []string{"one"}, `There is only "one".`},
		{"", []string{"one"}, `There is only "one".`},
	} {
		if got := conf.DidYouMean(c.given, c.known); got != c.want {
			t.Errorf("%q among %q: %s", c.given, c.known, got)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	f, _ := hclsyntax.ParseConfig([]byte(native), "x", hcl.InitialPos)
	b.ReportAllocs()
	for b.Loop() {
		var a all
		if diags := conf.Decode(f.Body, ctx, &a); diags.HasErrors() {
			b.Fatal(diags)
		}
	}
}
