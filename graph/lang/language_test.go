package lang_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// path answers the argument of the health block, which is any text.
func path(t *testing.T, f *graph.File) string {
	t.Helper()
	for _, c := range f.Controls {
		if c.Kind.Name == "health" {
			return reflect.Indirect(reflect.ValueOf(c.Config)).FieldByName("Path").String()
		}
	}
	t.Fatal("no health block")
	return ""
}

// A variable is what -var says, else what the environment says, else its default.
func TestVariables(t *testing.T) {
	const src = "variable \"site\" { default = \"south\" }\nhealth \"h\" { path = \"/${var.site}\" }\n"
	for _, c := range []struct{ flag, env, want string }{
		{"", "", "/south"}, {"", "east", "/east"}, {"north", "", "/north"}, {"north", "east", "/north"},
	} {
		o := lang.Options{Vars: map[string]string{}, Env: func(n string) (string, bool) { return c.env, c.env != "" && n == "LBGRAPH_VAR_site" }}
		if c.flag != "" {
			o.Vars["site"] = c.flag
		}
		f, diags := lang.LoadBytes("lb.hcl", []byte(src), o)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if got := path(t, f); got != c.want {
			t.Errorf("-var %q, environment %q: %s, want %s", c.flag, c.env, got, c.want)
		}
	}
}

// Locals know variables and each other, whatever their order; pools and VIPs are
// known by name, also as values.
func TestReferences(t *testing.T) {
	f := good(t, `
locals {
  all  = "${local.net}.${var.host}"
  who  = "${pool.p.name}-${vip.v.name}"
  pick = { a = pool.p, b = pool.q }
}
locals { net = "203.0.113" }
variable "host" { default = 7 }
pool "p" {
  backend "b" { address = "10.0.0.1" }
}
pool "q" {
  backend "b" { address = "10.0.0.1" }
}
vip "v" {
  address = local.all
  pool    = local.pick["b"]
}
vip "w" {
  address = "203.0.113.8"
  pool    = pool.p
}
health "h" { path = "/${local.who}" }
`)
	if got := path(t, f); got != "/p-v" {
		t.Errorf("names of a pool and a VIP: %s", got)
	}
	if v := f.Spec.VIPs; v[0].Prefix.String() != "203.0.113.7/32" || v[0].Pool != "q" || v[1].Pool != "p" {
		t.Errorf("%+v", v)
	}
}

// Functions and for expressions give what their names say.
func TestFunctions(t *testing.T) {
	for expression, want := range map[string]string{
		`cidrhost("10.0.0.0/24", 5)`:                                 "10.0.0.5",
		`cidrhost("10.0.0.0/24", -1)`:                                "10.0.0.255",
		`cidrhost("2001:db8::/32", 16)`:                              "2001:db8::10",
		`cidrsubnet("10.0.0.0/16", 8, 3)`:                            "10.0.3.0/24",
		`cidrnetmask("10.0.0.0/20")`:                                 "255.255.240.0",
		`env("SITE")`:                                                "north",
		`env("NOWHERE", "south")`:                                    "south",
		`file("motd.txt")`:                                           "hello",
		`join(",", [for i in range(1, 4) : "b${i}" if i != 2])`:      "b1,b3",
		`join(",", [for k, v in { a = "x", b = "y" } : "${k}${v}"])`: "ax,by",
		`{ for n in ["a", "b"] : n => upper(n) }["b"]`:               "B",
		`upper(replace("a-b", "-", "+"))`:                            "A+B",
		`format("%s/%03d", "n", 7)`:                                  "n/007",
		`tostring(length(concat([1], [2, 3])))`:                      "3",
		`tostring(max(1, 5, 3) + min(4, 2))`:                         "7",
		`jsondecode("{\"a\": [\"x\"]}").a[0]`:                        "x",
		`lookup({ a = "1" }, "b", "none")`:                           "none",
		`split(",", "a,b")[1]`:                                       "b",
		`trimspace("  a ")`:                                          "a",
		`contains(["a"], "a") ? "yes" : "no"`:                        "yes",
	} {
		src := "# env SITE=north\n# file motd.txt hello\nhealth \"h\" { path = " + expression + " }\n"
		f, diags := lang.LoadBytes("lb.hcl", []byte(src), options(src))
		if diags.HasErrors() {
			t.Errorf("%s: %v", expression, diags)
		} else if got := path(t, f); got != want {
			t.Errorf("%s is %s, want %s", expression, got, want)
		}
	}
}

// Edges are drawn by path lists and by next in a block, together; the same one may
// be drawn twice. What needs no argument needs no block, and what is not drawn is
// no edge.
func TestWaysToDraw(t *testing.T) {
	f := good(t, `
graph "g" {
  path {
    main   = [rx, parse, clamp]
    again  = [rx, parse]
    pieces = [parse.fragment, drop]
    ends   = [clamp, ct]
    hit    = [ct.hit, drop]
    miss   = [ct.miss, drop]
  }
  node "xdp-rx" "rx" {
    interface = "eth0"
    next      = parse
  }
  node "mss-clamp" "clamp" { next = ct }
  node "conntrack" "ct" {}
}
`)
	var edges []string
	for _, n := range f.Graphs[0].Nodes {
		for i, e := range n.Edges {
			if e != nil {
				edges = append(edges, fmt.Sprintf("%s.%s>%s", n.Name, n.Outputs[i].Name, e.To.Name))
			}
		}
	}
	if got, want := strings.Join(edges, " "), "rx.next>parse parse.next>clamp parse.fragment>drop clamp.next>ct ct.hit>drop ct.miss>drop"; got != want {
		t.Errorf("edges\n got %s\nwant %s", got, want)
	}
	// next alone draws, too.
	ar := archive(t, "testdata/good.txtar")
	f = good(t, ar["next.hcl"])
	for from, to := range map[string]string{"rx": "parse", "parse": "clamp", "clamp": "drop"} {
		n := f.Graphs[0].Node(from)
		if e := n.Edges[n.Output("next")]; e == nil || e.To.Name != to {
			t.Errorf("%s.next leads to %v, want %s", from, e, to)
		}
	}
}
