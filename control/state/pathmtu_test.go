package state

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestPathMTUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		if err := s.Apply(Spec{Pools: []PoolSpec{{Name: "web", TableSize: 251, Backends: []BackendSpec{{Name: "1", Address: a, Weight: 1}}}}}); err != nil {
			t.Fatal(err)
		}
		mtu := func() uint32 {
			time.Sleep(time.Second) // past the debouncing
			synctest.Wait()
			return s.Cell().Load().Backends[s.Backend(a)].MTU
		}
		p := &PathMTUs{Store: s, Keep: PathMTUKept}
		defer p.Close()
		step := func(name string, want uint32) {
			t.Helper()
			if got := mtu(); got != want {
				t.Errorf("%s: MTU %d, want %d", name, got, want)
			}
		}
		p.Learn(b, 1300)
		step("no backend", 0)
		if len(p.timers) != 0 {
			t.Errorf("what is no backend is kept in mind: %v", p.timers)
		}
		p.Learn(a, 1400)
		step("learned", 1400)
		time.Sleep(6 * time.Minute)
		p.Learn(a, 1450)
		step("a larger one does not raise it", 1400)
		p.Learn(a, 1300)
		step("a smaller one lowers it", 1300)
		time.Sleep(6 * time.Minute)
		step("and begins anew", 1300)
		time.Sleep(5 * time.Minute)
		step("forgotten", 0)
		p.Learn(netip.AddrFrom16(a.As16()), 1200)
		step("in IPv6 form", 1200)
	})
}
