package bgp

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/control/state"
)

// What is not decided yet counts only where a check has it to decide, and where the
// backend may get new flows at all.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		name   string
		check  string
		change func(*state.Member)
		want   string
	}{
		{"unknown", "http", func(*state.Member) {}, "p/b"},
		{"healthy", "http", func(m *state.Member) { m.Health = state.Healthy }, ""},
		{"unhealthy", "http", func(m *state.Member) { m.Health = state.Unhealthy }, ""},
		{"no check", "", func(*state.Member) {}, ""},
		{"a free slot", "http", func(m *state.Member) { m.Backend = 0 }, ""},
		{"removed", "http", func(m *state.Member) { m.Removed = true }, ""},
		{"drained", "http", func(m *state.Member) { m.Drained = true }, ""},
		{"no weight", "http", func(m *state.Member) { m.Weight = 0 }, ""},
	} {
		m := state.Member{Backend: 1, Weight: 1, Name: "b"}
		c.change(&m)
		s := &state.Snapshot{Pools: []state.Pool{{}, {ID: 1, Name: "p", Check: c.check, Members: []state.Member{{Backend: 2, Weight: 1, Name: "known", Health: state.Healthy}, m}}}}
		if got := undecided(s); got != c.want {
			t.Errorf("%s: waits for %q, want %q", c.name, got, c.want)
		}
	}
}

// A node that was warm once stays so: a backend that is added, or of which nothing is
// known any more, withdraws nothing, also before announce_after has passed.
func TestControlStaysWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, web())
		r.run(func() {
			both := web6 + " " + web4
			r.health("10.9.0.1", state.Healthy)
			r.health("10.9.0.2", state.Healthy)
			r.expect("warm within a second", both)
			spec := web()
			spec.Pools[0].Backends = append(spec.Pools[0].Backends, state.BackendSpec{Name: "new", Address: netip.MustParseAddr("10.9.0.9"), Weight: 1})
			if err := r.store.Apply(spec); err != nil {
				t.Fatal(err)
			}
			r.expect("a backend is added", both)
			time.Sleep(time.Second)
			r.expect("a second later", both)
			if w := r.Status().Withheld; w != "" {
				t.Errorf("withheld: %q", w)
			}
		})
	})
}

// While nothing changes nothing is decided again; what the speaker refused to announce
// is tried again, and the status and the log, once, say why it is not announced.
func TestControlAnnounceIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		core, logs := observer.New(zap.InfoLevel)
		r.log = zap.New(core)
		r.fake.refuse = errors.New("not today")
		r.run(func() {
			time.Sleep(10 * healthPeriod)
			r.expect("refused", "")
			if s := r.Status(); len(s.VIPs) != 2 || s.VIPs[0].Announced || s.VIPs[0].Why != "not today" {
				t.Errorf("status: %+v", s.VIPs)
			}
			if n := logs.FilterMessage("a route is not announced").Len(); n != 1 {
				t.Errorf("the log says %d times that a route is refused", n)
			}
			r.fake.mu.Lock()
			r.fake.refuse = nil
			r.fake.mu.Unlock()
			time.Sleep(healthPeriod)
			r.expect("no longer refused", web6+" "+web4)
		})
	})
}

// Counts are taken when a route comes or goes, and every five seconds.
func TestControlCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, web())
		r.fake.comeUp(r1, r2)
		r.run(func() {
			if n := r.Peers()[0].Announced; n != 0 {
				t.Errorf("%d routes at first", n)
			}
			time.Sleep(slowPeriod + slowPeriod/2) // between two slow looks
			r.health("10.9.0.1", state.Healthy)
			r.health("10.9.0.2", state.Healthy)
			if n := r.Peers()[0].Announced; n != 2 {
				t.Errorf("%d routes when two were announced", n)
			}
			r.fake.mu.Lock()
			r.fake.routes[netip.MustParsePrefix("192.0.2.128/32")] = true // as if the speaker knew better
			r.fake.mu.Unlock()
			time.Sleep(slowPeriod)
			synctest.Wait()
			if n := r.Peers()[0].Announced; n != 3 {
				t.Errorf("%d routes five seconds later, want 3", n)
			}
		})
	})
}

// What has stopped says so, is stopped again without harm, and takes no snapshot more.
func TestControlStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		if err := r.Stop(context.Background()); err != nil {
			t.Errorf("stopped before it ran: %v", err)
		}
		r.did("a stop before the start", "")
		r.run(func() { r.fake.took() })
		r.did("the stop", "stop")
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		r.did("another stop", "")
		if s := r.Status(); s.Withheld != "stopped" || s.ASN != 65001 || s.RouterID != "10.0.0.1" || len(s.VIPs) != 0 {
			t.Errorf("status: %+v", s)
		}
	})
}

// The secret of a peer that is disabled need not be there.
func TestControlSecretOfADisabledPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, strings.Replace(twoPeers, "asn     = 64500", "asn = 64500\nenabled = false\npassword_env = \"LBGRAPH_TEST_NO_SECRET\"", 1), open())
		r.run(func() {
			for _, x := range r.fake.rules {
				if x.peer == r1 {
					t.Errorf("a rule for a peer that is disabled: %+v", x)
				}
			}
			if p := r.Peers()[0]; p.State != "Disabled" {
				t.Errorf("%+v", p)
			}
		})
	})
}

// A turn of the whole node is one line in the log, a turn of one route another one.
func TestControlLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, web())
		core, logs := observer.New(zap.InfoLevel)
		r.log = zap.New(core)
		r.run(func() {
			r.health("10.9.0.1", state.Healthy)
			r.health("10.9.0.2", state.Unhealthy)
			r.SetDrained(true)
			r.SetDrained(false)
			r.health("10.9.0.1", state.Unhealthy)
			r.health("10.9.0.1", state.Healthy)
			time.Sleep(time.Minute)
			var said []string
			for _, e := range logs.All() {
				if strings.Contains(e.Message, "announced") || strings.Contains(e.Message, "withdrawn") {
					said = append(said, e.Message)
				}
			}
			want := "nothing is announced, routes are announced, nothing is announced, routes are announced, route is withdrawn, route is withdrawn, route is announced, route is announced"
			if got := strings.Join(said, ", "); got != want {
				t.Errorf("the log says %s, want %s", got, want)
			}
		})
	})
}
