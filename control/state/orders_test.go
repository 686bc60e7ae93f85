package state

import (
	"net/netip"
	"strings"
	"testing"
)

// Orders hold whatever the file says, until they are taken back or, if they are not to
// be kept, until the next file.
func TestOrdersAgainstTheFile(t *testing.T) {
	s := NewStore()
	defer s.Close()
	spec := onePool(backends(3)...)
	spec.Pools[0].Backends[1].Drain = true
	apply(t, s, spec)
	expect := func(what, want string) {
		t.Helper()
		s.Flush()
		n := s.Cell().Load()
		var says []string
		for _, m := range poolNamed(t, n, "web").Members {
			says = append(says, map[bool]string{false: "takes", true: "drained"}[m.Drained])
		}
		if got := strings.Join(says, " ") + ", " + statuses(t, n, "web"); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect("the file", "takes drained takes, up draining up")
	must(s.Drain("web", "b1", true, true))
	must(s.Drain("web", "b2", false, true))
	must(s.Drain("web", "b3", true, false))
	expect("orders", "drained takes drained, draining up draining")
	apply(t, s, spec)
	expect("the file again", "drained takes takes, draining up up")
	must(s.Restore("web", "b1"))
	must(s.Restore("web", "b2"))
	expect("taken back", "takes drained takes, up draining up")
	// Each order says for itself whether it is kept; of two of a kind the last one does.
	weight := func(want uint32) {
		t.Helper()
		if w := poolNamed(t, s.Cell().Load(), "web").Members[0].Weight; w != want {
			t.Errorf("the weight is %d, want %d", w, want)
		}
	}
	must(s.Drain("web", "b1", true, true))
	must(s.SetWeight("web", "b1", 7, false))
	apply(t, s, spec)
	expect("the drain is kept, the weight is not", "drained drained takes, draining draining up")
	weight(100)
	must(s.SetWeight("web", "b1", 7, true))
	must(s.Drain("web", "b1", true, false))
	apply(t, s, spec)
	expect("the weight is kept, the drain is not", "takes drained takes, up draining up")
	weight(7)
	must(s.Restore("web", "b1"))
	s.Flush()
	weight(100)
	// No weight is as good as a drain, and no failure.
	must(s.SetWeight("web", "b1", 0, true))
	expect("weight 0", "takes drained takes, draining draining up")
	s.SetHealth(webTarget(1), Healthy)
	s.SetHealth(webTarget(2), Healthy)
	s.SetHealth(webTarget(3), Healthy)
	s.Flush()
	if h := poolNamed(t, s.Cell().Load(), "web").Healthy; h != 1 {
		t.Errorf("%d may get new flows and are healthy, want b3 alone", h)
	}
}

// Orders for what is not there are refused: also for what drains out of the file.
func TestOrdersForNobody(t *testing.T) {
	s := NewStore()
	defer s.Close()
	spec := onePool(backends(2)...)
	spec.Pools = append(spec.Pools, PoolSpec{Name: "old", TableSize: 251, Backends: backends(1), RemovalGrace: spec.Pools[0].RemovalGrace})
	apply(t, s, spec)
	spec = onePool(backends(1)...)
	n := apply(t, s, spec)
	for want, err := range map[string]error{
		`pool "web" has no backend "b2"`:  s.Drain("web", "b2", true, true),
		`there is no pool "old"`:          s.Drain("old", "b1", true, true),
		`there is no pool "none"`:         s.Restore("none", "b1"),
		`weight -1 is not from 0 to 1000`: s.SetWeight("web", "b1", -1, true),
		`weight 1001 is not from 0 to`:    s.SetWeight("web", "b1", 1001, true),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	s.Flush()
	if s.Cell().Load() != n {
		t.Error("what was refused is published")
	}
}

// A status that a backend is held at is at all its pools, and the worse of it and what
// is found out counts.
func TestHeldStatus(t *testing.T) {
	s := NewStore()
	defer s.Close()
	spec := onePool(backends(2)...)
	api := spec.Pools[0]
	api.Name = "api"
	spec.Pools = append(spec.Pools, api)
	apply(t, s, spec)
	b := s.Backend(netip.MustParseAddr("10.0.0.1"))
	expect := func(what, want string) {
		t.Helper()
		n := s.Cell().Load()
		if got := statuses(t, n, "web"); got != want || statuses(t, n, "api") != want {
			t.Errorf("%s: web %s, api %s, want %s", what, got, statuses(t, n, "api"), want)
		}
	}
	s.SetStatus(b, Draining)
	expect("held draining", "draining up")
	s.SetHealth(webTarget(1), Unhealthy)
	expect("and unhealthy", "down up")
	s.SetStatus(b, Up)
	expect("let go", "down up")
	s.SetHealth(webTarget(1), Healthy)
	expect("healthy", "up up")
	s.SetStatus(b, Down)
	expect("held down", "down up")
	apply(t, s, spec)
	expect("and a file", "down up")
	s.SetStatus(0, Down) // stands for none
	s.SetStatus(99, Down)
	expect("others", "down up")
}
