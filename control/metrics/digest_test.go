package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
)

// node is a daemon with a snapshot.
type node struct {
	host
	snap *state.Snapshot
}

func (n *node) Snapshot() *state.Snapshot { return n.snap }

// The page has the digest of every pool's table: nodes that were told the same, in
// whatever order, show the same; others do not.
func TestDigestsOfTables(t *testing.T) {
	pool := func(name string, seed uint64, weights ...int) state.PoolSpec {
		p := state.PoolSpec{Name: name, TableSize: 251, HashSeed: seed}
		for i, w := range weights {
			p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprint("b", i), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Weight: w})
		}
		return p
	}
	digests := func(pools ...state.PoolSpec) map[string]string {
		t.Helper()
		snap, err := state.Build(state.Spec{Pools: pools})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(Handler(&node{snap: snap}))
		defer srv.Close()
		all := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^lbgraph_pool_table_info\{digest="([0-9a-f]{16})",pool="([a-z]+)"\} 1$`).FindAllStringSubmatch(get(t, srv.URL+"/metrics", http.StatusOK), -1) {
			all[m[2]] = m[1]
		}
		if len(all) != len(pools) {
			t.Fatalf("the page has digests %v", all)
		}
		return all
	}
	web, dns := pool("web", 0, 100, 100, 50), pool("dns", 0, 1, 1)
	a := digests(web, dns)
	turned := web
	turned.Backends = slices.Clone(web.Backends)
	slices.Reverse(turned.Backends)
	if b := digests(dns, turned); b["web"] != a["web"] || b["dns"] != a["dns"] {
		t.Errorf("in another order the digests are %v, were %v", b, a)
	}
	for what, p := range map[string]state.PoolSpec{
		"a weight": pool("web", 0, 100, 100, 51), "a backend": pool("web", 0, 100, 100), "the seed": pool("web", 1, 100, 100, 50),
	} {
		if b := digests(p, dns); b["web"] == a["web"] || b["dns"] != a["dns"] {
			t.Errorf("with %s changed the digests are %v, were %v", what, b, a)
		}
	}
}
