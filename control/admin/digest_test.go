package admin

import (
	"net/netip"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
)

// status tells the digest of each pool's table, by which nodes that agree are known.
func TestDigests(t *testing.T) {
	one := state.BackendSpec{Name: "one", Address: netip.MustParseAddr("10.0.0.1"), Weight: 100}
	two := state.BackendSpec{Name: "two", Address: netip.MustParseAddr("10.0.0.2"), Weight: 100}
	digest := func(seed uint64, bs ...state.BackendSpec) string {
		t.Helper()
		snap, err := state.Build(state.Spec{Pools: []state.PoolSpec{{Name: "web", TableSize: 251, HashSeed: seed, Backends: bs}}})
		if err != nil {
			t.Fatal(err)
		}
		s := StatusOf(&host{snap: snap})
		if len(s.Pools) != 1 || len(s.Pools[0].Digest) != 16 {
			t.Fatalf("pools %+v", s.Pools)
		}
		return s.Pools[0].Digest
	}
	d := digest(0, one, two)
	if again := digest(0, two, one); again != d {
		t.Errorf("in another order the digest is %s, was %s", again, d)
	}
	for what, other := range map[string]string{"a backend less": digest(0, one), "another seed": digest(1, one, two)} {
		if other == d {
			t.Errorf("%s, and the digest is the same", what)
		}
	}
}
