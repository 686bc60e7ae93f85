package conntrack

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
)

// The place of a backend that is gone is given to another one only when no entry
// leads to it any more; so no flow ever comes to a backend that it was not begun at.
func TestAPlaceIsGivenOutAgainOnlyWhenItsEntriesAreGone(t *testing.T) {
	synctest.Test(t, placeIsGivenOutAgain)
}

func placeIsGivenOutAgain(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Entries = 16384 }) // several ticks to sweep
	r.node().sweeper = r.store.Cell().Sweeper()           // as in an engine
	var flows []flow
	for n := 0; len(flows) < 200; n++ {
		f := flowTo(web, n)
		r.send(f, syn)
		if _, b := r.send(f, ack); b == r.store.Backend(backendAddr(4)) {
			flows = append(flows, f)
		}
	}
	_, old, _ := r.State().Find("web", "b4")
	// b4 goes, without grace; from then on another backend each time wants a place.
	replace := func(i int) (slot uint32) {
		t.Helper()
		spec := testSpec(3)
		spec.Pools[0].RemovalGrace = 0
		spec.Pools[0].Backends = append(spec.Pools[0].Backends, state.BackendSpec{Name: "new", Address: netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}), Weight: 100})
		if err := r.store.Apply(spec); err != nil {
			t.Fatal(err)
		}
		r.sync()
		_, slot, ok := r.State().Find("web", "new")
		if !ok {
			t.Fatal("the new backend is not there")
		}
		return slot
	}
	i := 0
	for ; replace(i&255) != old; i++ {
		if i > 200 {
			t.Fatal("the place is never given out again")
		}
		time.Sleep(state.Quarantine) // of the store's clock
		r.Clock += 10e6
		r.node().Tick(r.Clock)
	}
	if i < 2 {
		t.Errorf("given out after %d ticks, before the table can have been swept", i)
	}
	if died := int(r.Counter("died")); died < len(flows) {
		t.Errorf("%d entries died, there were %d", died, len(flows))
	}
	for _, f := range flows {
		r.want("a flow of the backend that is gone", f, ack, false)
	}
	checkTables(t, r.node())
}
