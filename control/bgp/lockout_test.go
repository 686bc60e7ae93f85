package bgp

import (
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// A VIP over a router's address is refused before anything runs: the session's own
// packets would be balanced.
func TestVIPOverPeer(t *testing.T) {
	const file = `pool "web" {
  backend "web-1" { address = "10.0.1.1" }
}
vip "web" {
  address  = "ADDRESS"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
bgp {
  asn       = 65000
  router_id = "192.0.2.1"
  peer "tor" {
    address = "192.0.2.254"
    asn     = 65001
  }
}
`
	for address, want := range map[string]bool{"192.0.2.254": true, "192.0.2.0/24": true, "203.0.113.80": false} {
		f, diags := lang.LoadBytes("lb.hcl", []byte(strings.Replace(file, "ADDRESS", address, 1)), lang.Options{})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		diags = graph.Check(f)
		told := false
		for _, d := range diags {
			if d.Summary == "VIP covers a peer" && d.Subject.Start.Line == 5 {
				told = true
			}
		}
		if told != want {
			t.Errorf("VIP %s: %v", address, diags)
		}
	}
}
