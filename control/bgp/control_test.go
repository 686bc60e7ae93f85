package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/osrg/gobgp/v3/pkg/log"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// fake is a speaker whose routers do what a test says.
type fake struct {
	mu     sync.Mutex
	tell   func(event)
	as     uint32
	id     netip.Addr
	peers  map[netip.Addr]transport
	routes map[netip.Prefix]bool
	rules  []rule
	calls  []string
	added  map[netip.Addr][]time.Time
	dial   map[netip.Addr]func() // what becomes of an attempt
	refuse error                 // of announce and withdraw
	stuck  bool                  // stop does not end
}

func newFake() *fake {
	return &fake{added: map[netip.Addr][]time.Time{}, dial: map[netip.Addr]func(){}}
}

func (f *fake) did(form string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(form, args...))
}

func (f *fake) start(as uint32, id netip.Addr, tell func(event)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck {
		return errors.New("not ended")
	}
	f.tell, f.as, f.id, f.peers, f.routes, f.rules = tell, as, id, map[netip.Addr]transport{}, map[netip.Prefix]bool{}, nil
	f.did("start %d %s", as, id)
	return nil
}

func (f *fake) stop(ctx context.Context) error {
	f.mu.Lock()
	stuck := f.stuck
	f.did("stop")
	f.peers, f.routes = nil, nil
	f.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (f *fake) announce(p netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.did("announce %s", p)
	f.routes[p] = true
	return nil
}

func (f *fake) withdraw(p netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.did("withdraw %s", p)
	delete(f.routes, p)
	return nil
}

func (f *fake) export(r []rule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = slices.Clone(r)
	return nil
}

func (f *fake) refresh(peer netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did("refresh %s", peer)
	return nil
}

func (f *fake) add(t transport, password string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, twice := f.peers[t.address]; twice {
		return errors.New("added twice")
	}
	f.did("add %s %q", t.address, password)
	f.peers[t.address] = t
	f.added[t.address] = append(f.added[t.address], time.Now())
	f.tell(event{peer: t.address, phase: idle})
	if dial := f.dial[t.address]; dial != nil {
		dial()
	}
	return nil
}

func (f *fake) remove(peer netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.peers[peer]; !ok {
		return errors.New("not there")
	}
	f.did("remove %s", peer)
	delete(f.peers, peer)
	return nil
}

func (f *fake) counts() (map[netip.Addr]count, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[netip.Addr]count{}
	for a := range f.peers {
		all[a] = count{announced: uint64(len(f.routes)), received: 3}
	}
	return all, nil
}

// took answers what was done since the last call.
func (f *fake) took() string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := strings.Join(f.calls, ", ")
	f.calls = nil
	return s
}

func (f *fake) announced() string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for p := range f.routes {
		all = append(all, p.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// comeUp makes every attempt succeed at once.
func (f *fake) comeUp(addrs ...netip.Addr) {
	for _, a := range addrs {
		f.dial[a] = func() {
			for _, p := range []phase{active, openSent, openConfirm, established} {
				f.tell(event{peer: a, phase: p})
			}
		}
	}
}

// fakeAddresses is a machine with one address of each family.
type fakeAddresses struct {
	mu        sync.Mutex
	four, six netip.Addr
}

func (a *fakeAddresses) set(four, six string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.four, _ = netip.ParseAddr(four)
	a.six, _ = netip.ParseAddr(six)
}

func (a *fakeAddresses) local(peer netip.AddrPort) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if peer.Addr().Is4() && a.four.IsValid() {
		return a.four, nil
	}
	if peer.Addr().Is6() && a.six.IsValid() {
		return a.six, nil
	}
	return netip.Addr{}, errors.New("no route")
}

func (a *fakeAddresses) beside(local netip.Addr, skip func(netip.Addr) bool) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	other := a.six
	if local.Is6() {
		other = a.four
	}
	if other.IsValid() && skip(other) {
		other = netip.Addr{}
	}
	return other, nil
}

var (
	r1 = netip.MustParseAddr("192.0.2.254")
	r2 = netip.MustParseAddr("2001:db8::fe")
)

const twoPeers = `
asn = 65001
router_id = "10.0.0.1"
peer "r1" {
	address = "192.0.2.254"
	asn     = 64500
}
peer "r2" {
	address = "2001:db8::fe"
	asn     = 64500
}
`

// rig is a control on a fake, with a store.
type rig struct {
	*Control
	t     *testing.T
	fake  *fake
	host  *host
	store *state.Store
	addrs *fakeAddresses
}

func newRig(t *testing.T, block string, spec state.Spec) *rig {
	t.Helper()
	c, err := decode(block)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fake: newFake(), host: &host{}, store: state.NewStore(), addrs: &fakeAddresses{}}
	r.addrs.set("192.0.2.1", "2001:db8::1")
	if err := r.store.Apply(spec); err != nil {
		t.Fatal(err)
	}
	r.Control, err = newControl(c, r.host, &graph.Env{
		State: r.store.Cell(), Watch: func(f func(*state.Snapshot)) { r.store.Watch(f) }, Log: zap.NewNop(),
	}, r.fake)
	if err != nil {
		t.Fatal(err)
	}
	r.addresses = r.addrs
	return r
}

// run starts the control, and stops it when f has run.
func (r *rig) run(f func()) {
	r.t.Helper()
	if err := r.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	f()
	if err := r.Stop(context.Background()); err != nil {
		r.t.Error(err)
	}
	r.store.Close()
}

func (r *rig) health(addr string, h state.Health) {
	r.store.SetHealth(state.Target{Check: "http", Addr: netip.MustParseAddr(addr)}, h)
	r.store.Flush()
	synctest.Wait()
}

func (r *rig) expect(what, want string) {
	r.t.Helper()
	if got := r.fake.announced(); got != want {
		r.t.Errorf("%s: %q is announced, want %q", what, got, want)
	}
}

func (r *rig) did(what, want string) {
	r.t.Helper()
	if got := r.fake.took(); got != want {
		r.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestControlAnnounces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, web())
		r.fake.comeUp(r1, r2)
		r.run(func() {
			both := web6 + " " + web4
			r.expect("nothing is known", "")
			if w := r.Status().Withheld; w != "the health of web/web-1 is not known yet" {
				t.Errorf("withheld: %q", w)
			}
			r.health("10.9.0.1", state.Healthy)
			r.expect("one is known", "")
			r.health("10.9.0.2", state.Unhealthy)
			time.Sleep(healthPeriod)
			r.expect("all are known", both)
			r.health("10.9.0.1", state.Unhealthy)
			r.expect("none is healthy", "")
			if s := r.Status(); s.Withheld != "" || s.VIPs[0].Announced || !strings.Contains(s.VIPs[0].Why, "0 healthy backends") {
				t.Errorf("status: %+v", s)
			}
			r.health("10.9.0.1", state.Healthy)
			r.expect("one is healthy", both)
			r.fake.took()

			r.host.set("a loop has not passed for 1s")
			time.Sleep(healthPeriod)
			r.expect("the daemon is sick", "")
			r.host.set("a loop has not passed for 2s")
			time.Sleep(healthPeriod)
			synctest.Wait()
			if s := r.Status(); s.Withheld != "a loop has not passed for 2s" || s.VIPs[1].Why != s.Withheld {
				t.Errorf("status: %+v", s)
			}
			r.host.set("")
			time.Sleep(healthPeriod)
			r.expect("the daemon is well", both)
			r.did("all that", fmt.Sprintf("withdraw %s, withdraw %s, announce %s, announce %s", web4, web6, web4, web6))

			r.SetDrained(true)
			r.expect("drained", "")
			if !r.Status().Drained {
				t.Error("the status does not say that the node is drained")
			}
			r.SetDrained(false)
			r.expect("undrained", both)

			// Flaps of health that leave the quorum touch nothing.
			r.fake.took()
			r.health("10.9.0.2", state.Healthy)
			r.health("10.9.0.2", state.Unhealthy)
			time.Sleep(time.Minute)
			r.did("nothing", "")

			// What is refused is tried again.
			r.fake.mu.Lock()
			r.fake.refuse = errors.New("no")
			r.fake.mu.Unlock()
			r.SetDrained(true)
			r.expect("refused", both)
			r.fake.mu.Lock()
			r.fake.refuse = nil
			r.fake.mu.Unlock()
			time.Sleep(healthPeriod)
			r.expect("no longer refused", "")
			r.SetDrained(false)

			spec := web()
			spec.VIPs[1].Disabled = true
			spec.VIPs = append(spec.VIPs, vip("router", "192.0.2.0/24", "web"))
			if err := r.store.Apply(spec); err != nil {
				t.Fatal(err)
			}
			r.expect("one disabled, one that covers a peer", web4)
			if s := r.Status(); len(s.VIPs) != 2 || !strings.Contains(s.VIPs[0].Why, `covers the address of peer "r1"`) {
				t.Errorf("status: %+v", s.VIPs)
			}
		})
	})
}

// A node that does not come to know all health announces after a time all the same;
// what is unknown counts as not healthy.
func TestControlWarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, web())
		r.run(func() {
			r.health("10.9.0.1", state.Healthy)
			time.Sleep(29 * time.Second)
			r.expect("29 s", "")
			time.Sleep(2 * time.Second)
			r.expect("31 s", web6+" "+web4)
			// Once warm, it does not wait for backends that are added.
			spec := web()
			spec.Pools[0].Backends = append(spec.Pools[0].Backends, state.BackendSpec{Name: "new", Address: netip.MustParseAddr("10.9.0.9"), Weight: 1})
			if err := r.store.Apply(spec); err != nil {
				t.Fatal(err)
			}
			r.expect("a backend is added", web6+" "+web4)
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "announce_after = \"0s\"\n"+twoPeers, web())
		r.run(func() {
			r.expect("nothing is known", "")
			r.health("10.9.0.2", state.Healthy)
			r.expect("no wait", web6+" "+web4)
		})
	})
}

func TestControlDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "drain_time = \"7s\"\n"+twoPeers, open())
		r.fake.comeUp(r1)
		r.run(func() {
			r.expect("at first", web6+" "+web4)
			began := time.Now()
			ended := make(chan error)
			go func() { ended <- r.Drain(context.Background()) }()
			r.expect("withdrawn at once", "")
			if err := <-ended; err != nil || time.Since(began) != 7*time.Second {
				t.Errorf("drained after %v: %v", time.Since(began), err)
			}
			r.SetDrained(false)
			time.Sleep(time.Minute)
			r.expect("for good", "")
			if p := r.Peers()[0]; p.State != "Established" || p.Failures != 0 {
				t.Errorf("the session: %+v", p)
			}
			if err := r.Drain(context.Background()); err != nil || time.Since(began) != 67*time.Second {
				t.Errorf("draining again took %v: %v", time.Since(began), err)
			}
		})
		if err := r.Drain(context.Background()); err == nil {
			t.Error("what has stopped can be drained")
		}
		r.SetDrained(true) // does not hang
	})
	// ctx ends the wait; without a session there is none.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "drain_time = \"1h\"\n"+twoPeers, open())
		r.fake.comeUp(r2)
		r.run(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := r.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			r.expect("withdrawn", "")
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "drain_time = \"1h\"\n"+twoPeers, open())
		r.run(func() {
			began := time.Now()
			if err := r.Drain(context.Background()); err != nil || time.Since(began) != 0 {
				t.Errorf("draining without a session took %v: %v", time.Since(began), err)
			}
		})
	})
	// What a router was told until a moment ago may still bring packets, whether it was
	// withdrawn or its session ended.
	for what, end := range map[string]func(*rig){
		"drained by command": func(r *rig) { r.SetDrained(true) },
		"the session ended": func(r *rig) {
			r.fake.mu.Lock()
			delete(r.fake.dial, r1)
			r.fake.mu.Unlock()
			r.fake.tell(event{peer: r1, fault: "hold timer expired"})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, "drain_time = \"7s\"\n"+twoPeers, open())
			r.fake.comeUp(r1)
			r.run(func() {
				r.expect("at first", web6+" "+web4)
				time.Sleep(time.Minute)
				began := time.Now()
				end(r)
				time.Sleep(2 * time.Second)
				if err := r.Drain(context.Background()); err != nil || time.Since(began) > 7*time.Second || time.Since(began) < 7*time.Second-healthPeriod {
					t.Errorf("%s: drained after %v: %v", what, time.Since(began), err)
				}
			})
		})
	}
}

// Attempts come a second apart, then twice as long each time up to a minute; a
// session that stood for a while makes the next attempt an early one, one that did
// not does not. What one router does is nothing to the other.
func TestControlBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		r.fake.comeUp(r2)
		r.fake.dial[r1] = func() {
			r.fake.tell(event{peer: r1, phase: active})
			r.fake.tell(event{peer: r1, fault: "connection refused"})
		}
		r.run(func() {
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			r.fake.mu.Lock()
			at := r.fake.added[r1]
			r.fake.mu.Unlock()
			for i := 1; i < len(at); i++ {
				// gobgp's own 1 to 2 s come on top.
				lo, hi := at[i].Sub(at[i-1])+time.Second, at[i].Sub(at[i-1])+2*time.Second
				most := min(time.Second<<(i-1), time.Minute)
				if least := most*4/5 - time.Second; lo < least || hi > max(most, 2*time.Second) {
					t.Errorf("gap %d is from %v to %v, want within %v and %v", i, lo, hi, least, most)
				}
			}
			if len(at) < 13 || len(at) > 19 {
				t.Errorf("%d attempts in ten minutes", len(at))
			}
			p := r.Peers()[0]
			if p.State != "Idle" || p.Failures != uint64(len(at)) || !strings.Contains(p.LastError, "nothing listens on port 179") || p.Backoff <= 0 || p.Backoff > 60 {
				t.Errorf("status: %+v", p)
			}
			if p := r.Peers()[1]; p.State != "Established" || p.Sessions != 1 || p.Failures != 0 || p.Uptime != 600 {
				t.Errorf("the other: %+v", p)
			}

			// It comes up, and goes down again at once, thrice: still backing off.
			r.fake.mu.Lock()
			r.fake.comeUp(r1)
			r.fake.mu.Unlock()
			for range 3 {
				for r.Peers()[0].State != "Established" {
					time.Sleep(time.Second)
				}
				r.fake.tell(event{peer: r1, reason: "notification-received code 6(cease)"})
				r.fake.tell(event{peer: r1, phase: idle})
				synctest.Wait()
				if p := r.Peers()[0]; p.Backoff < 40 || p.LastError != "notification-received code 6(cease)" {
					t.Errorf("after a session that did not last: %+v", p)
				}
			}
			for r.Peers()[0].State != "Established" {
				time.Sleep(time.Second)
			}
			time.Sleep(settledTime)
			r.fake.tell(event{peer: r1, phase: idle})
			synctest.Wait()
			if p := r.Peers()[0]; p.State != "Established" {
				t.Errorf("after a session that lasted: %+v", p)
			}
			if s := r.Peers()[1]; s.Sessions != 1 || s.Failures != 0 {
				t.Errorf("the other: %+v", s)
			}
		})
	})
}

// An attempt that comes to nothing is given up: 10 s after the connection, or if
// gobgp says nothing at all.
func TestControlGivesUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		phases []phase
		after  time.Duration
		want   string
	}{
		{"no OPEN", []phase{active, openSent}, answerTime, "accepted the connection and did not answer for 10s"},
		{"no KEEPALIVE", []phase{active, openSent, openConfirm}, answerTime, "accepted the connection and did not answer for 10s"},
		{"nothing", nil, attemptTime, "came to nothing"},
		{"no connection", []phase{active}, attemptTime, "came to nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, twoPeers, open())
				r.fake.dial[r1] = func() {
					for _, p := range c.phases {
						r.fake.tell(event{peer: r1, phase: p})
					}
				}
				r.run(func() {
					time.Sleep(c.after - time.Millisecond)
					synctest.Wait()
					if p := r.Peers()[0]; p.Failures != 0 {
						t.Errorf("too early: %+v", p)
					}
					time.Sleep(2 * time.Millisecond)
					synctest.Wait()
					if p := r.Peers()[0]; p.Failures != 1 || !strings.Contains(p.LastError, c.want) {
						t.Errorf("%+v", p)
					}
				})
			})
		})
	}
}

func TestControlReconfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		r3 := netip.MustParseAddr("192.0.2.253")
		r.fake.comeUp(r1, r2, r3)
		change := func(block string) error {
			t.Helper()
			c, err := decode(block)
			if err != nil {
				t.Fatal(err)
			}
			return r.Reconfigure(&c)
		}
		must := func(block string) {
			t.Helper()
			if err := change(block); err != nil {
				t.Error(err)
			}
		}
		r.run(func() {
			r.did("the start", fmt.Sprintf("start 65001 10.0.0.1, add %s \"\", add %s \"\", announce %s, announce %s", r1, r2, web4, web6))
			must(twoPeers)
			r.did("nothing changes", "")
			must("med = 3\ndrain_time = \"1s\"\n" + twoPeers)
			r.did("what routes carry", fmt.Sprintf("refresh %s, refresh %s", r1, r2))
			one := strings.Replace(twoPeers, "asn     = 64500", "asn = 64500\nmed = 4", 1)
			must("med = 3\n" + one)
			r.did("what routes carry to one", fmt.Sprintf("refresh %s", r1))
			for _, x := range r.fake.rules {
				if want := map[netip.Addr]uint32{r1: 4, r2: 3}[x.peer]; *x.med != want {
					t.Errorf("rule for %s: MED %d, want %d", x.peer, *x.med, want)
				}
			}
			must(twoPeers)
			r.fake.took()
			must(strings.Replace(twoPeers, "asn     = 64500", "asn = 64501", 1))
			r.did("one session", fmt.Sprintf("remove %s, add %s \"\"", r1, r1))
			must(strings.Replace(twoPeers, "asn     = 64500", "asn = 64500\nenabled = false", 1))
			r.did("one disabled", fmt.Sprintf("remove %s", r1))
			if p := r.Peers()[0]; p.State != "Disabled" {
				t.Errorf("%+v", p)
			}
			must(twoPeers + "peer \"r3\" {\naddress = \"192.0.2.253\"\nasn = 1\n}\n")
			r.did("one enabled, one new", fmt.Sprintf("add %s \"\", add %s \"\"", r1, r3))
			must(twoPeers)
			r.did("one removed", fmt.Sprintf("remove %s", r3))
			if p := r.Peers()[1]; p.Sessions != 1 || p.Failures != 0 {
				t.Errorf("the one that nobody touched: %+v", p)
			}
			if err := change(strings.Replace(twoPeers, "asn     = 64500", "asn = 64500\npassword_env = \"LBGRAPH_TEST_NO_SECRET\"", 1)); err == nil || !strings.Contains(err.Error(), `peer "r1"`) {
				t.Errorf("no secret: %v", err)
			}
			if err := change(strings.Replace(twoPeers, "2001:db8::fe", "2001:db8:80::1", 1)); err == nil || !strings.Contains(err.Error(), `vip "web6" covers`) {
				t.Errorf("a VIP's address as peer: %v", err)
			}
			if err := change(strings.Replace(twoPeers, "router_id", "announce_after = \"1s\" # ", 1)); err != nil {
				t.Errorf("another identifier: %v", err)
			}
			r.did("all anew", fmt.Sprintf("stop, start 65001 192.0.2.1, add %s \"\", add %s \"\", announce %s, announce %s", r1, r2, web4, web6))
			must(strings.Replace(twoPeers, "asn = 65001", "asn = 65002", 1))
			r.did("another AS", fmt.Sprintf("stop, start 65002 10.0.0.1, add %s \"\", add %s \"\", announce %s, announce %s", r1, r2, web4, web6))

			// A router that holds the stop up delays the rest, and stops nothing for good.
			r.fake.mu.Lock()
			r.fake.stuck = true
			r.fake.mu.Unlock()
			must(twoPeers)
			r.expect("between", "")
			r.fake.mu.Lock()
			r.fake.stuck = false
			r.fake.mu.Unlock()
			time.Sleep(slowPeriod)
			r.expect("at last", web6+" "+web4)
		})
	})
}

// A route is announced when a router has a session over which it goes, and to as many
// as have.
func TestControlRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		r.addrs.set("192.0.2.1", "")
		says := func(when, want string) {
			t.Helper()
			synctest.Wait()
			var all []string
			for _, v := range r.Status().VIPs {
				if v.Announced != (v.Routers > 0) {
					t.Errorf("%s: %+v", when, v)
				}
				all = append(all, strings.TrimSpace(fmt.Sprint(v.Route, " ", v.Routers, " ", v.Why)))
			}
			slices.Sort(all)
			if got := strings.Join(all, "; "); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
			metrics := map[string]float64{}
			for _, v := range r.Status().VIPs {
				metrics[v.Route.String()] = float64(min(v.Routers, 1))
			}
			if got := routeMetrics(t, r.Control); !maps.Equal(got, metrics) {
				t.Errorf("%s: the metrics are %v, want %v", when, got, metrics)
			}
		}
		up := func(addr netip.Addr) {
			for _, p := range []phase{active, openSent, openConfirm, established} {
				r.fake.tell(event{peer: addr, phase: p})
			}
		}
		r.run(func() {
			says("no session", web6+" 0 no session is up; "+web4+" 0 no session is up")
			up(r1)
			says("one session, over IPv4", web6+" 0 no router that has a session has an IPv6 next hop; "+web4+" 1")
			r.addrs.set("192.0.2.1", "2001:db8::1")
			time.Sleep(slowPeriod)
			says("an IPv6 address came", web6+" 1; "+web4+" 1")
			r.fake.mu.Lock()
			r.fake.comeUp(r2)
			r.fake.mu.Unlock()
			time.Sleep(time.Minute)
			says("two sessions", web6+" 2; "+web4+" 2")
			r.host.set("sick")
			time.Sleep(healthPeriod)
			says("withheld", web6+" 0 sick; "+web4+" 0 sick")
			r.host.set("")
			time.Sleep(healthPeriod)
			says("well again", web6+" 2; "+web4+" 2")
			r.fake.tell(event{peer: r1, phase: idle})
			says("one left", web6+" 1; "+web4+" 1")
			r.fake.mu.Lock()
			r.fake.dial = nil
			r.fake.mu.Unlock()
			r.fake.tell(event{peer: r2, phase: idle})
			says("both left", web6+" 0 no session is up; "+web4+" 0 no session is up")
		})
	})
}

// routeMetrics answers what the collector says of routes.
func routeMetrics(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "lbgraph_bgp_route_announced" {
				all[m.Label[0].GetValue()] = m.Gauge.GetValue()
			}
		}
	}
	return all
}

// Next hops are of the route's family: the session's address, one beside it, or what
// the file says; without any, the family is not announced.
func TestControlNextHops(t *testing.T) {
	hops := func(r *rig) string {
		synctest.Wait()
		r.fake.mu.Lock()
		defer r.fake.mu.Unlock()
		var all []string
		for _, x := range r.fake.rules {
			all = append(all, fmt.Sprintf("%s>%s", x.hop, x.peer))
			if x.hop.Is6() != x.six {
				t.Errorf("rule %+v", x)
			}
		}
		return strings.Join(all, " ")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers, open())
		r.fake.comeUp(r1, r2)
		r.addrs.set("192.0.2.1", "")
		r.run(func() {
			// r2 is not even reached.
			if got, want := hops(r), "192.0.2.1>192.0.2.254"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if p := r.Peers()[0]; p.NextHopIPv4 != "192.0.2.1" || p.NextHopIPv6 != "" {
				t.Errorf("%+v", p)
			}
			r.fake.took()
			r.addrs.set("192.0.2.1", "2001:db8::1")
			time.Sleep(slowPeriod)
			if got, want := hops(r), "192.0.2.1>192.0.2.254 2001:db8::1>192.0.2.254 192.0.2.1>2001:db8::fe 2001:db8::1>2001:db8::fe"; got != want {
				t.Errorf("an address came: %s, want %s", got, want)
			}
			r.did("an address came", fmt.Sprintf("refresh %s, refresh %s", r1, r2))
			// At the next connection the addresses may be others.
			r.addrs.set("192.0.2.2", "2001:db8::1")
			time.Sleep(settledTime)
			r.fake.tell(event{peer: r1, phase: idle})
			if got, want := hops(r), "192.0.2.2>192.0.2.254 2001:db8::1>192.0.2.254 192.0.2.1>2001:db8::fe 2001:db8::1>2001:db8::fe"; got != want {
				t.Errorf("another address: %s, want %s", got, want)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		// The address beside is a VIP: none of a next hop.
		spec := open()
		spec.VIPs = append(spec.VIPs, vip("trap", "2001:db8::1", "web"))
		r := newRig(t, "next_hop_ipv4 = \"10.1.1.1\"\n"+strings.Replace(twoPeers, "asn     = 64500", "asn = 64500\nlocal_address = \"192.0.2.7\"", 1), spec)
		r.run(func() {
			if got, want := hops(r), "10.1.1.1>192.0.2.254 10.1.1.1>2001:db8::fe 2001:db8::1>2001:db8::fe"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	})
}

func TestIdentifier(t *testing.T) {
	find := &fakeAddresses{}
	find.set("192.0.2.1", "2001:db8::1")
	for block, want := range map[string]string{
		twoPeers: "10.0.0.1",
		strings.Replace(twoPeers, "router_id", "#", 1): "192.0.2.1",
		strings.Replace(strings.Replace(twoPeers, "router_id", "#", 1), "asn     = 64500", "asn = 64500\nlocal_address = \"192.0.2.9\"", 1): "192.0.2.9",
	} {
		c, err := decode(block)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := c.identifier(find); err != nil || id.String() != want {
			t.Errorf("%v, %v, want %s", id, err, want)
		}
	}
	c, _ := decode(strings.Replace(strings.Replace(twoPeers, "router_id", "#", 1), "192.0.2.254", "2001:db8::fd", 1))
	if _, err := c.identifier(find); err == nil || !strings.Contains(err.Error(), "set router_id") {
		t.Errorf("IPv6 only: %v", err)
	}
}

// What is built into nothing says so.
func TestControlIsRefused(t *testing.T) {
	c, err := decode(twoPeers)
	if err != nil {
		t.Fatal(err)
	}
	k := graph.Lookup("bgp")
	if k.Plane != graph.ControlPlane || !k.Single || !k.Live {
		t.Errorf("%+v", k)
	}
	if _, err := k.Control(&c, &graph.Env{Log: zap.NewNop()}); err == nil {
		t.Error("built without a daemon")
	}
	snap, err := state.Build(state.Spec{Pools: []state.PoolSpec{pool("p", "10.0.0.1")}, VIPs: []state.VIPSpec{vip("a", "192.0.2.0/24", "p")}})
	if err != nil {
		t.Fatal(err)
	}
	var cell state.Cell
	cell.Publish(snap)
	if _, err := k.Control(&c, &graph.Env{State: &cell, Host: &host{}, Log: zap.NewNop()}); err == nil || !strings.Contains(err.Error(), `vip "a" covers 192.0.2.254`) {
		t.Errorf("a VIP over a peer: %v", err)
	}
	c.Peers[0].PasswordFile = "/nowhere"
	if _, err := k.Control(&c, &graph.Env{Host: &host{}, Log: zap.NewNop()}); err == nil || !strings.Contains(err.Error(), `peer "r1": password_file`) {
		t.Errorf("no secret: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoPeers+"peer \"off\" {\naddress = \"192.0.2.252\"\nasn = 1\nenabled = false\n}\n", open())
		r.fake.comeUp(r1)
		r.run(func() {
			if problems, err := testutil.CollectAndLint(r.Control); err != nil || len(problems) > 0 {
				t.Errorf("%v, %v", problems, err)
			}
			want := `
# HELP lbgraph_bgp_peer_announced_routes Routes that a router was told.
# TYPE lbgraph_bgp_peer_announced_routes gauge
lbgraph_bgp_peer_announced_routes{peer="off"} 0
lbgraph_bgp_peer_announced_routes{peer="r1"} 2
lbgraph_bgp_peer_announced_routes{peer="r2"} 2
# HELP lbgraph_bgp_peer_enabled 0 for a peer that the file disables.
# TYPE lbgraph_bgp_peer_enabled gauge
lbgraph_bgp_peer_enabled{peer="off"} 0
lbgraph_bgp_peer_enabled{peer="r1"} 1
lbgraph_bgp_peer_enabled{peer="r2"} 1
# HELP lbgraph_bgp_peer_up 1 while the session with a router is established.
# TYPE lbgraph_bgp_peer_up gauge
lbgraph_bgp_peer_up{peer="off"} 0
lbgraph_bgp_peer_up{peer="r1"} 1
lbgraph_bgp_peer_up{peer="r2"} 0
# HELP lbgraph_bgp_route_announced 1 while a route is announced: at least one router with a session is told of it.
# TYPE lbgraph_bgp_route_announced gauge
lbgraph_bgp_route_announced{route="2001:db8:80::1/128"} 1
lbgraph_bgp_route_announced{route="203.0.113.80/32"} 1
# HELP lbgraph_bgp_withheld 1 while nothing at all is announced: drained, not healthy, or not warm yet.
# TYPE lbgraph_bgp_withheld gauge
lbgraph_bgp_withheld 0
`
			names := []string{"lbgraph_bgp_peer_announced_routes", "lbgraph_bgp_peer_enabled", "lbgraph_bgp_peer_up", "lbgraph_bgp_route_announced", "lbgraph_bgp_withheld"}
			if err := testutil.CollectAndCompare(prometheus.Collector(r.Control), strings.NewReader(want), names...); err != nil {
				t.Error(err)
			}
		})
	})
}

// gobgp's last words end nothing, and what it says only there becomes events.
func TestLogger(t *testing.T) {
	var l logger
	var got []event
	l.use(zap.NewNop(), func(e event) { got = append(got, e) })
	l.Fatal("unknown msg type", log.Fields{"Topic": "Peer"})
	l.Panic("code logic bug", log.Fields{"Key": 7})
	l.Debug("failed to connect", log.Fields{"Key": r1.String(), "Error": errors.New("refused")})
	l.Debug("state changed", log.Fields{"Key": r1.String(), "new": "BGP_FSM_IDLE", "reason": "hold-timer-expired"})
	l.Debug("state changed", log.Fields{"Key": r1.String(), "new": "BGP_FSM_ACTIVE", "reason": "x"})
	l.Debug("failed to connect", log.Fields{"Key": "no address"})
	if want := []event{{peer: r1, fault: "refused"}, {peer: r1, reason: "hold-timer-expired"}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if l.GetLevel() < log.DebugLevel {
		t.Error("gobgp would not tell of failed connections")
	}
}

// Only one speaks in a process at a time.
func TestSpeakerIsOne(t *testing.T) {
	a, b := newGoBGP(zap.NewNop()), newGoBGP(zap.NewNop())
	id := netip.MustParseAddr("10.0.0.1")
	if err := a.start(65001, id, func(event) {}); err != nil {
		t.Fatal(err)
	}
	if err := b.start(65001, id, func(event) {}); err == nil {
		t.Error("two speak")
	}
	if err := a.stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := b.start(65002, id, func(event) {}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(b.announce(netip.MustParsePrefix(web4)), b.withdraw(netip.MustParsePrefix(web4))); err != nil {
		t.Error(err)
	}
	if err := errors.Join(b.stop(context.Background()), b.stop(context.Background())); err != nil {
		t.Error(err)
	}
}
