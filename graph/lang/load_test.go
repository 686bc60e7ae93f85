package lang_test

import (
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// good loads src, in which nothing may be wrong.
func good(t *testing.T, src string) *graph.File {
	t.Helper()
	f, diags := lang.LoadBytes("lb.hcl", []byte(src), options(src))
	if len(diags) > 0 {
		t.Fatal(render(diags, "lb.hcl", src))
	}
	return f
}

func sample(t *testing.T) string {
	src, err := os.ReadFile("testdata/sample.hcl")
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

func TestEdges(t *testing.T) {
	f := good(t, sample(t))
	var edges []string
	for _, n := range f.Graphs[0].Nodes {
		if len(n.Edges) != len(n.Outputs) {
			t.Errorf("%s has %d edges for %d outputs", n.Name, len(n.Edges), len(n.Outputs))
		}
		for i, e := range n.Edges {
			if e != nil {
				edges = append(edges, n.Name+"."+n.Outputs[i].Name+">"+e.To.Name)
				if e.From != n || e.Output != i {
					t.Errorf("edge %v does not know where it begins", e)
				}
			}
		}
	}
	want := "rx.next>parse parse.next>vip-classify parse.fragment>vip-classify parse.icmp>vip-classify " +
		"vip-classify.next>frag-pin vip-classify.fragment>frag-pin vip-classify.icmp>icmp-vip frag-pin.next>ct frag-pin.pinned>mtu " +
		"ct.hit>clamp ct.miss>maglev-select clamp.next>mtu mtu.next>gre mtu.reply>tx gre.next>tx " +
		"maglev-select.next>clamp icmp-vip.next>ct icmp-vip.reply>tx"
	if got := strings.Join(edges, " "); got != want {
		t.Errorf("edges\n got %s\nwant %s", got, want)
	}
	ct := f.Graphs[0].Node("ct").Config.(*conntrack)
	if ct.Timeouts.TCPEstablished != 2*time.Hour || ct.Timeouts.UDP != 30*time.Second || ct.Entries != 131072 {
		t.Errorf("conntrack is %+v", ct)
	}
}

func TestSpec(t *testing.T) {
	f := good(t, `
pool "a" {
  table_size    = 251
  hash_seed     = 18446744073709551615
  health        = health.http
  fail_open     = true
  removal_grace = "1m"
  backend "b1" {
    address = "10.0.0.1"
    weight  = 0
    port    = 8080
    drain   = true
  }
  backends = [{ name = "10.0.0.2:80", address = "2001:db8::2" }]
}
vip "min" {
  address = "203.0.113.0/24"
  pool    = "a"
}
vip "max" {
  address     = "2001:db8:1::1"
  protocol    = "udp"
  ports       = [53, "1000-2000"]
  pool        = pool.a
  affinity    = "source"
  on_mismatch = "leave"
  enabled     = false
  allow       = ["192.0.2.1"]
  deny        = ["192.0.2.0/24"]
  unlisted    = "deny"
  require     = "any"
  quorum      = 2
  optional    = true
}
health "http" {}
`)
	want := state.Spec{
		Pools: []state.PoolSpec{{
			Name: "a", TableSize: 251, HashSeed: 1<<64 - 1, Health: "http", FailOpen: true, RemovalGrace: time.Minute,
			Backends: []state.BackendSpec{
				{Name: "b1", Address: netip.MustParseAddr("10.0.0.1"), Port: 8080, Drain: true},
				{Name: "10.0.0.2:80", Address: netip.MustParseAddr("2001:db8::2"), Weight: 100},
			},
		}},
		VIPs: []state.VIPSpec{
			{Name: "min", Prefix: netip.MustParsePrefix("203.0.113.0/24"), Pool: "a", Require: "all", Quorum: 1},
			{
				Name: "max", Prefix: netip.MustParsePrefix("2001:db8:1::1/128"), Protocol: 17, Ports: []state.PortRange{{Lo: 53, Hi: 53}, {Lo: 1000, Hi: 2000}},
				Pool: "a", Affinity: true, Leave: true, Disabled: true,
				Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, Deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Unlisted: "deny", Require: "any", Quorum: 2, Optional: true,
			},
		},
	}
	if !reflect.DeepEqual(f.Spec, want) {
		t.Errorf("got\n%+v\nwant\n%+v", f.Spec, want)
	}
}

func TestValues(t *testing.T) {
	ar := archive(t, "testdata/good.txtar")
	f := good(t, ar["values.hcl"])
	path := reflect.Indirect(reflect.ValueOf(f.Controls[0].Config)).FieldByName("Path").String()
	if path != "/A-B-north-south-hello" {
		t.Errorf("path is %q", path)
	}
	if p := f.Spec.VIPs[0].Ports; !reflect.DeepEqual(p, []state.PortRange{{Lo: 8080, Hi: 8080}, {Lo: 300, Hi: 400}}) {
		t.Errorf("ports are %v", p)
	}
	if g := f.Graphs[0]; g.Cores != 3 || !reflect.DeepEqual(g.Pin, []int{0, 1, 2}) || g.NetworkMTU != 1500 {
		t.Errorf("graph is %+v", g.GraphConfig)
	}
	if p := f.Spec.Pools[0]; p.TableSize != 65537 || p.Backends[0].Address != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("pool is %+v", p)
	}
}

// The JSON form of a file means the same as its native form.
func TestJSONMeansTheSame(t *testing.T) {
	ar := archive(t, "testdata/good.txtar")
	a, diags := lang.LoadBytes("a.json", []byte(ar["file.json"]), options(""))
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	b := good(t, `
health "http" { path = "/healthz" }
pool "web" {
  health = health.http
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" {
    address = "10.0.1.2"
    weight  = 50
  }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80, 443]
  pool     = pool.web
}
bgp {
  asn = 65000
  peer "r1" {
    address = "192.0.2.1"
    asn     = 65001
  }
}
metrics {}
graph "edge" {
  path {
    main = [rx, parse, ct]
    more = [ct.miss, maglev-select]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {
    timeouts { udp = "5s" }
  }
}
`)
	if !reflect.DeepEqual(a.Spec, b.Spec) {
		t.Errorf("specs\n%+v\n%+v", a.Spec, b.Spec)
	}
	if x, y := outline(a), outline(b); x != y {
		t.Errorf("outlines\n%s\n%s", x, y)
	}
}

// outline prints what a file says, without places.
func outline(f *graph.File) string {
	var out []string
	for _, c := range f.Controls {
		out = append(out, fmt.Sprintf("%s %s %+v", c.Kind.Name, c.Name, c.Config))
	}
	for _, g := range f.Graphs {
		out = append(out, fmt.Sprintf("%s %+v", g.Name, g.GraphConfig))
		for _, n := range g.Nodes {
			out = append(out, fmt.Sprintf("%s %s %+v", n.Kind.Name, n.Name, n.Config))
			for _, e := range n.Edges {
				if e != nil {
					out = append(out, fmt.Sprintf("%s.%d>%s", n.Name, e.Output, e.To.Name))
				}
			}
		}
	}
	return strings.Join(out, "\n")
}

// Places lead to what they name.
func TestPlaces(t *testing.T) {
	src := `pool "a" {
  table_size = 251
  backend "b1" { address = "10.0.0.1" }
  backends   = [{ name = "b2", address = "10.0.0.2" }]
}
vip "v" {
  address = "203.0.113.1"
  ports   = [80, "90-99"]
  pool    = pool.a
}
graph "g" {
  network_mtu = 1500
  path { main = [rx, parse] }
  node "xdp-rx" "rx" { interface = "eth0" }
}
metrics { listen = "127.0.0.1:9100" }
bgp {
  peer "r" {
    address = "192.0.2.1"
    asn     = 65000
  }
}
`
	f := good(t, src)
	for key, want := range map[string]string{
		"pool.a":               `pool "a"`,
		"pool.a.table_size":    `251`,
		"pool.a.b1":            `backend "b1"`,
		"pool.a.b1.address":    `"10.0.0.1"`,
		"pool.a.b2":            `{ name = "b2", address = "10.0.0.2" }`,
		"pool.a.b2.address":    `"10.0.0.2"`,
		"vip.v":                `vip "v"`,
		"vip.v.address":        `"203.0.113.1"`,
		"vip.v.ports[1]":       `"90-99"`,
		"vip.v.pool":           `pool.a`,
		"graph.g":              `graph "g"`,
		"graph.g.network_mtu":  `1500`,
		"graph.g.rx.interface": `"eth0"`,
		"metrics.listen":       `"127.0.0.1:9100"`,
		"bgp.peer.r.asn":       `65000`,
	} {
		r, ok := f.Places[key]
		if !ok {
			t.Errorf("no place %s", key)
		} else if got := src[r.Start.Byte:r.End.Byte]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	e := f.Graphs[0].Node("rx").Edges[0]
	if got := src[e.Range.Start.Byte:e.Range.End.Byte]; got != "rx, parse" {
		t.Errorf("the edge is %q", got)
	}
}

// Control blocks keep their order, and a file read twice means the same.
func TestOrder(t *testing.T) {
	src := "# file x.json {}\n" + sample(t) + `
health "b" {}
health "a" {}
inventory "i" { file = "x.json" }
`
	f := good(t, src)
	var names []string
	for _, c := range f.Controls {
		names = append(names, c.Kind.Name+"."+c.Name)
	}
	if got := strings.Join(names, " "); got != "health.http metrics.metrics health.b health.a inventory.i" {
		t.Errorf("controls are %s", got)
	}
	for range 20 {
		if outline(good(t, src)) != outline(f) {
			t.Fatal("the same file was read differently")
		}
	}
}

// Nesting that would overflow the stack is refused, in whatever way it is written.
func TestDepth(t *testing.T) {
	n := 100_000
	for name, src := range map[string]string{
		"parentheses.hcl": "locals { a = " + strings.Repeat("(", n),
		"not.hcl":         "locals { a = " + strings.Repeat("!", n) + "true }",
		"sum.hcl":         "locals { a = 1" + strings.Repeat("+1", n) + " }",
		"lines.hcl":       "locals { a = (1" + strings.Repeat("+\n1", n) + ") }",
		"conditions.hcl":  "locals { a = " + strings.Repeat("1?", n) + " }",
		"templates.hcl":   "locals { a = " + strings.Repeat(`"${`, n),
		"blocks.hcl":      strings.Repeat("a {\n", n),
		"objects.hcl":     "locals { a = " + strings.Repeat("{a=", n),
		"splats.hcl":      "locals { a = b" + strings.Repeat(".*.a", n) + " }",
		"arrays.json":     strings.Repeat("[", n),
		"objects.json":    strings.Repeat(`{"a":`, n),
		"string.json":     `{"locals":{"a":"${` + strings.Repeat("(", n) + `"}}`,
		"operators.json":  `{"locals":{"a":"${1` + strings.Repeat("+1", n) + `}"}}`,
		"types.json":      `{"variable":{"a":{"type":"` + strings.Repeat("list(", n) + `"}}}`,
	} {
		if _, diags := lang.LoadBytes(name, []byte(src), options("")); len(diags) != 1 || diags[0].Summary != "Nesting is too deep" {
			t.Errorf("%s: %.300v", name, diags)
		}
	}
	// Length is no depth.
	good(t, "locals {\n  a = ["+strings.Repeat("-1 + 2, ", n/10)+"]\n"+strings.Repeat("  # x\n", 2000)+"}\n")
}

func TestDepthOfVariables(t *testing.T) {
	src := "variable \"a\" { type = list(any) }\n"
	_, diags := lang.LoadBytes("lb.hcl", []byte(src), lang.Options{Vars: map[string]string{"a": strings.Repeat("[", 300_000)}})
	if len(diags) != 1 || diags[0].Summary != "Variable cannot be read" {
		t.Errorf("%.300v", diags)
	}
}

// Bytes that are no text are told, once.
func TestEncoding(t *testing.T) {
	_, diags := lang.LoadBytes("lb.hcl", []byte("locals {\n  a = \"caf\xe9\"\n}\n"), options(""))
	if got := render(diags, "lb.hcl", ""); got != "error: Invalid character encoding\n  --> lb.hcl:2:11\n  All input files must be UTF-8 encoded. Ensure that UTF-8 encoding is selected in your\n  editor.\n" {
		t.Errorf("got %q", got)
	}
}

func TestUnreadable(t *testing.T) {
	_, diags := lang.Load(t.TempDir(), lang.Options{})
	if len(diags) != 1 || diags[0].Summary != "File cannot be read" || !strings.HasPrefix(diags[0].Detail, "Is a directory.") {
		t.Errorf("got %v", diags)
	}
}

// A generated file with many pools, VIPs and backends loads in reasonable time.
func BenchmarkLoad(b *testing.B) {
	var s strings.Builder
	for p := range 200 {
		fmt.Fprintf(&s, "pool \"p%d\" {\n", p)
		for i := range 20 {
			fmt.Fprintf(&s, "  backend \"b%d\" { address = \"10.%d.%d.1\" }\n", i, p, i)
		}
		fmt.Fprintf(&s, "}\nvip \"v%d\" {\n  address  = \"203.0.113.%d\"\n  protocol = \"tcp\"\n  ports    = [80, 443]\n  pool     = pool.p%d\n}\n", p, p, p)
	}
	src := []byte(s.String())
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if f, diags := lang.LoadBytes("lb.hcl", src, lang.Options{}); f == nil {
			b.Fatal(diags)
		}
	}
}

// Ranges that share one port overlap; neighbours do not.
func TestRangesThatTouch(t *testing.T) {
	for ports, overlap := range map[string]bool{`["1-10", "10-20"]`: true, `["10-20", "1-10"]`: true, `["1-9", "10-20"]`: false, `["1-10", 10]`: false} {
		src := "pool \"web\" {\n  backend \"b\" {\n    address = \"10.0.0.1\"\n  }\n}\nvip \"web\" {\n  address  = \"203.0.113.10\"\n  protocol = \"tcp\"\n  ports    = " + ports + "\n  pool     = pool.web\n}\n"
		_, diags := lang.LoadBytes("lb.hcl", []byte(src), options(src))
		if got := strings.Contains(render(diags, "lb.hcl", src), "Port ranges overlap"); got != overlap || diags.HasErrors() != overlap {
			t.Errorf("ports %s: overlap %v, want %v\n%s", ports, got, overlap, render(diags, "lb.hcl", src))
		}
	}
}
