package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/encap"
)

func tunnelFile(t *testing.T, check, nodes string) *graph.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "lb.hcl")
	src := `
pool "web" {
  health = health.web
  backend "one" { address = "10.0.1.1" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
health "web" { ` + check + ` }
graph "edge" {
  node "xdp-rx" "rx" { interface = "eth0" }
  ` + nodes + `
}
`
	if err := os.WriteFile(name, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	f, diags := lang.Load(name, lang.Options{})
	if diags = append(diags, graph.Check(f)...); diags.HasErrors() {
		t.Fatal(diags)
	}
	return f
}

const (
	oneGRE = `
  path { main = [rx, parse, vip-classify, maglev-select, gre, xdp-tx] }
  node "gre-encap" "gre" { source = "192.0.2.1" }`
	oneGUE = `
  path { main = [rx, parse, vip-classify, maglev-select, gue, xdp-tx] }
  node "gue-encap" "gue" {
    source = "192.0.2.9"
    port   = 7777
    ttl    = 9
  }`
)

// TestHowChecksEncapsulate: as the file's nodes do. A file with a check through the
// tunnel that does not say how is refused, and nothing changes.
func TestHowChecksEncapsulate(t *testing.T) {
	d := &Daemon{}
	const through = `through = "tunnel"`
	if err := d.followTunnel(tunnelFile(t, through, oneGUE)); err != nil {
		t.Fatal(err)
	}
	e := d.tunnel.encap
	if e.Protocol != encap.GUE || e.Port != 7777 || e.TTL != 9 || e.Source.String() != "192.0.2.9/32" {
		t.Errorf("GUE: %+v", e)
	}
	f := tunnelFile(t, through, oneGRE)
	if err := d.followTunnel(f); err != nil {
		t.Fatal(err)
	}
	was := d.tunnel.encap
	if was.Protocol != encap.GRE || was.Port != 0 || was.TTL != 64 || was.Source.String() != "192.0.2.1/32" {
		t.Errorf("GRE: %+v", was)
	}
	// As a second graph would, or two branches of one.
	gue := tunnelFile(t, through, oneGUE)
	f.Graphs = append(f.Graphs, gue.Graphs...)
	if err := d.followTunnel(f); err == nil || !strings.Contains(err.Error(), "nodes gre and gue encapsulate in different ways") {
		t.Errorf("two ways: %v", err)
	}
	f.Graphs = nil
	if err := d.followTunnel(f); err == nil || !strings.Contains(err.Error(), "health web checks through the tunnel: no node encapsulates") {
		t.Errorf("no way: %v", err)
	}
	if d.tunnel.encap != was || d.tunnel.err != nil {
		t.Errorf("after the errors: %+v, %v", d.tunnel.encap, d.tunnel.err)
	}
	// Without such a check nobody minds, until there is one.
	direct := tunnelFile(t, "", oneGRE)
	direct.Graphs = nil
	if err := d.followTunnel(direct); err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenTunnel(); err == nil || !strings.Contains(err.Error(), "no node encapsulates") {
		t.Errorf("opened: %v", err)
	}
}
