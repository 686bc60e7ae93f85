package cmd

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/bgp"
)

// TestStatusOfRoutes: to how many routers a route is announced, or why to none.
func TestStatusOfRoutes(t *testing.T) {
	route := func(p string, routers int, why string) bgp.VIPStatus {
		return bgp.VIPStatus{Route: netip.MustParsePrefix(p), VIPs: []string{"web"}, Announced: routers > 0, Routers: routers, Why: why}
	}
	var b strings.Builder
	details(&b, map[string]any{"bgp": bgp.Status{ASN: 65001, VIPs: []bgp.VIPStatus{
		route("203.0.113.80/32", 2, ""), route("203.0.113.81/32", 1, ""), route("2001:db8::80/128", 0, bgp.NoSession),
	}}})
	want := `
bgp, AS 65001
  203.0.113.80/32   announced to 2 routers
  203.0.113.81/32   announced to 1 router
  2001:db8::80/128  not announced: no session is up
`
	if b.String() != want {
		t.Errorf("got\n%s, want\n%s", b.String(), want)
	}
}
