package state

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// published follows the snapshots that s publishes, and when.
func published(s *Store) func() []time.Duration {
	begun := time.Now()
	var at []time.Duration
	first := true
	s.Watch(func(*Snapshot) {
		if !first { // the call with the current one
			at = append(at, time.Since(begun))
		}
		first = false
	})
	return func() []time.Duration {
		synctest.Wait()
		return at
	}
}

func flap(s *Store) {
	h := Healthy
	if m := &s.Cell().Load().Pools[1].Members[0]; m.Health == Healthy {
		h = Unhealthy
	}
	s.SetHealth(webTarget(1), h)
}

// The window begins with the first change and is not prolonged by others; one that was
// cut short by Flush takes nothing from the next.
func TestWindow(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		apply(t, s, onePool(backends(2)...))
		at := published(s)
		for range 10 { // every 30 ms, 300 ms long
			s.SetHealth(webTarget(1), Healthy)
			time.Sleep(15 * ms)
			s.SetHealth(webTarget(1), Unhealthy)
			time.Sleep(15 * ms)
		}
		time.Sleep(time.Second)
		got := at()
		// A change comes within 15 ms behind each window.
		for i, x := range got {
			last := time.Duration(0)
			if i > 0 {
				last = got[i-1]
			}
			if gap := x - last; gap < 50*ms || gap > 65*ms {
				t.Errorf("snapshots were published at %v", got)
				break
			}
		}
		if len(got) < 5 || len(got) > 6 {
			t.Errorf("changes every 15 ms for 300 ms made %d snapshots", len(got))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		apply(t, s, onePool(backends(2)...))
		at := published(s)
		flap(s)
		time.Sleep(30 * ms)
		s.Flush()
		s.Flush() // nothing is left to be published
		flap(s)
		time.Sleep(time.Second)
		if got := at(); len(got) != 2 || got[0] != 30*ms || got[1] != 80*ms {
			t.Errorf("published at %v, want 30 ms and 80 ms", got)
		}
	})
}

// What says nothing new publishes nothing.
func TestNoNewsAreNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		a, mac := netip.MustParseAddr("10.0.0.1"), [6]byte{2, 0, 0, 0, 0, 1}
		say := func() {
			s.SetHealth(webTarget(1), Healthy)
			s.SetHealth(Target{"other", a, 0}, Unhealthy) // no pool's
			s.SetNeighbour(a, mac, true)
			s.SetNeighbour(netip.MustParseAddr("10.0.0.2"), mac, false)
			s.SetMTU(a, 1400)
			s.SetRoute(a, false)
			s.SetRoute(netip.MustParseAddr("10.0.0.2"), true)
			s.SetRoute(netip.MustParseAddr("10.0.9.9"), false) // nobody's
			s.SetStatus(s.Backend(a), Draining)
		}
		apply(t, s, onePool(backends(2)...))
		say()
		time.Sleep(time.Second)
		n := s.Cell().Load()
		if b := n.Backends[s.Backend(a)]; !b.HasMAC || b.MAC != mac || b.MTU != 1400 || !b.NoRoute || n.StatusOf(b.ID) != Draining {
			t.Fatalf("%+v", b)
		}
		if b := n.Backends[s.Backend(netip.MustParseAddr("10.0.0.2"))]; b.HasMAC || b.NoRoute {
			t.Fatalf("%+v", b)
		}
		say()
		time.Sleep(time.Second)
		if s.Cell().Load() != n {
			t.Error("the same again was published")
		}
		mac[5]++
		s.SetNeighbour(a, mac, true)
		time.Sleep(time.Second)
		s.SetRoute(a, true)
		time.Sleep(time.Second)
		if b := s.Cell().Load().Backends[s.Backend(a)]; b.MAC != mac || b.NoRoute {
			t.Errorf("another hardware address, and a route: %+v", b)
		}
	})
}

// A change of health that leaves the status is in the next snapshot all the same: BGP
// goes by it.
func TestHealthWithoutAnotherStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		apply(t, s, onePool(backends(2)...))
		s.SetHealth(webTarget(1), Healthy)
		time.Sleep(2 * Window)
		p := poolNamed(t, s.Cell().Load(), "web")
		if p.Healthy != 1 || p.Members[0].Health != Healthy || p.Members[1].Health != Unknown {
			t.Errorf("%d healthy: %+v", p.Healthy, p.Members)
		}
	})
}

// Nothing is published before there is a file, and what was said before counts then.
func TestBeforeTheFirstFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		a, mac := netip.MustParseAddr("10.0.0.1"), [6]byte{2, 0, 0, 0, 0, 1}
		s.SetNeighbour(a, mac, true)
		time.Sleep(time.Second)
		if g := s.Cell().Load().Generation; g != 0 {
			t.Errorf("generation %d without a file", g)
		}
		n := apply(t, s, onePool(backends(1)...))
		if b := n.Backends[s.Backend(a)]; !b.HasMAC || b.MAC != mac {
			t.Errorf("a backend whose hardware address was known: %+v", b)
		}
	})
}

// A store that is closed publishes nothing, also if a timer had fired already.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		spec := onePool(backends(2)...)
		apply(t, s, spec)
		n := apply(t, s, onePool(backends(1)...)) // the other drains
		flap(s)
		s.Close()
		s.Flush()
		s.expire()
		flap(s)
		if err := s.Apply(spec); err == nil {
			t.Error("a file was taken")
		}
		time.Sleep(time.Hour)
		if s.Cell().Load() != n {
			t.Error("something was published")
		}
	})
}
