package lang_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// with loads lb.hcl with files beside it.
func with(src string, files map[string]string) (*graph.File, hcl.Diagnostics) {
	return lang.LoadBytes("conf/lb.hcl", []byte(src), lang.Options{
		Env: func(string) (string, bool) { return "", false },
		ReadFile: func(p string) ([]byte, error) {
			if s, ok := files[p]; ok {
				return []byte(s), nil
			}
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		},
	})
}

const services = `{
  "pool": {
    "api": {
      "health": "http",
      "backend": {
        "api-1": { "address": "10.0.2.1" },
        "api-2": { "address": "10.0.2.2", "weight": 50, "drain": true }
      }
    }
  },
  "vip": {
    "api": { "address": "203.0.113.90", "protocol": "tcp", "ports": [443, "8000-8099"], "pool": "${pool.api}" },
    "web-alt": { "address": "203.0.113.91", "pool": "web" }
  }
}`

// An inventory's pools and VIPs are as good as the file's own, in both directions.
func TestInclude(t *testing.T) {
	f, diags := with(`
locals { where = "services.json" }
health "http" {}
inventory "racks" { file = local.where }
pool "web" {
  backend "web-1" { address = "10.0.1.1" }
}
vip "more" {
  address = "203.0.113.92"
  pool    = pool.api
}
`, map[string]string{"conf/services.json": services})
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	var names []string
	for _, p := range f.Spec.Pools {
		names = append(names, p.Name)
	}
	for _, v := range f.Spec.VIPs {
		names = append(names, v.Name+"->"+v.Pool)
	}
	if got := strings.Join(names, " "); got != "web api more->api api->api web-alt->web" {
		t.Errorf("got %s", got)
	}
	b := f.Spec.Pools[1].Backends
	if len(b) != 2 || b[0].Weight != 100 || b[1].Weight != 50 || !b[1].Drain || f.Spec.Pools[1].Health != "http" {
		t.Errorf("the pool is %+v", f.Spec.Pools[1])
	}
	if p := f.Spec.VIPs[1].Ports; fmt.Sprint(p) != "[{443 443} {8000 8099}]" {
		t.Errorf("ports are %v", p)
	}
	if at := f.Places["vip.api.address"]; at.Filename != "conf/services.json" || at.Start.Line != 12 {
		t.Errorf("the VIP stands at %v", at)
	}
	if string(f.Sources["conf/services.json"]) != services {
		t.Error("the inventory is not among the sources")
	}
}

// What is wrong in an inventory is told at its place there, and with both places
// where two files disagree.
func TestIncludeDiagnostics(t *testing.T) {
	const main = `inventory "racks" { file = "services.json" }
pool "web" {
  backend "web-1" { address = "10.0.1.1" }
}
vip "web" {
  address = "203.0.113.80"
  pool    = pool.web
}
`
	one := func(json string) map[string]string { return map[string]string{"conf/services.json": json} }
	for _, c := range []struct {
		name, main string
		files      map[string]string
		want       []string // place: summary
		detail     string
	}{
		{"no file", main, nil, []string{"conf/lb.hcl:1:1: File cannot be read"}, "conf/services.json: File does not exist."},
		{"no JSON", main, one("{\n  \"pool\": {,\n}"), []string{"conf/services.json:2:12: Invalid start of value"}, ""},
		{"cut off", main, one(services[:60]), []string{"conf/services.json:5:10: Invalid JSON string"}, ""},
		{
			"a pool of both", main, one(`{"pool": {"web": {"backend": {"x": {"address": "10.0.9.9"}}}}}`),
			[]string{"conf/services.json:1:11: Name used twice"}, `There is a pool "web" at conf/lb.hcl:2:1 already.`,
		},
		{
			"a VIP of both", main, one("{\n\"vip\": {\"web\": {\"address\": \"203.0.113.81\", \"pool\": \"${pool.web}\"}}}"),
			[]string{"conf/services.json:2:9: Name used twice"}, `There is a vip "web" at conf/lb.hcl:5:1 already.`,
		},
		{
			"an address of both", main, one("{\n\"vip\": {\"web-2\": {\"address\": \"203.0.113.80\", \"pool\": \"${pool.web}\"}}}"),
			[]string{"conf/services.json:2:30: Service declared twice"}, `belongs to vip "web" already, at conf/lb.hcl:6:13.`,
		},
		{"a bad address", main, one("{\"vip\": {\"x\": {\n  \"address\": \"203.0.113\", \"pool\": \"${pool.web}\"}}}"), []string{"conf/services.json:2:14: Not a prefix"}, ""},
		{"an unknown pool", main, one("{\"vip\": {\"x\": {\n  \"address\": \"203.0.113.1\",\n \"pool\": \"${pool.wbe}\"}}}"), []string{"conf/services.json:3:13: Unknown name"}, `Did you mean "pool.web"?`},
		{
			"a graph", main, one(`{"graph": {"edge": {}}}`), []string{"conf/services.json:1:2: Not for an included file"},
			`"graph" is none of the pools and VIPs that an included file has. Move it to conf/lb.hcl`,
		},
		{"not the JSON form", strings.Replace(main, ".json", ".hcl", 1), map[string]string{"conf/services.hcl": "health \"x\" {}\nx = 1\n"}, []string{
			"conf/services.hcl:1:1: Not for an included file", "conf/services.hcl:2:1: Not for an included file",
		}, ""},
		{"itself", strings.Replace(main, "services.json", "lb.hcl", 1), one(""), []string{"conf/lb.hcl:1:1: File includes itself"}, ""},
		{"twice", main + "inventory \"again\" { file = \"./services.json\" }\n", one("{}"), []string{"conf/lb.hcl:9:1: File included twice"}, "is included at conf/lb.hcl:1:1 already"},
		{"too late", strings.Replace(main, `"services.json"`, `"${pool.web.name}.json"`, 1), one("{}"), []string{"conf/lb.hcl:1:1: File cannot be read"}, "conf/web.json: File does not exist"},
		{
			"by a pool that an inventory has", strings.Replace(main, `"services.json"`, `pool.api.name == "" ? "a" : "services.json"`, 1), one(services),
			[]string{"conf/lb.hcl:1:28: Unknown name"}, "",
		},
		{
			"by names from elsewhere", main + "inventory \"more\" { file = \"${length(keys(pool))}.json\" }\n",
			map[string]string{"conf/services.json": `{"pool": {"api": {"backend": {"x": {"address": "10.0.9.9"}}}}, "vip": {"y": {"address": "203.0.113.1", "pool": "api"}}}`, "conf/1.json": "{}"},
			[]string{"conf/lb.hcl:9:1: File known too late"}, `Which file "more" includes depends on pools or VIPs`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, diags := with(c.main, c.files)
			if f != nil {
				t.Fatal("the file was taken")
			}
			var got []string
			for _, d := range diags {
				got = append(got, fmt.Sprintf("%s:%d:%d: %s", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column, d.Summary))
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q\n%v", got, c.want, diags)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got %q, want %q: %s", got[i], c.want[i], diags[i].Detail)
				}
			}
			if !strings.Contains(diags[0].Detail, c.detail) {
				t.Errorf("the detail is %q, want %q", diags[0].Detail, c.detail)
			}
		})
	}
}
