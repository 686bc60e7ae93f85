package neigh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
)

// fake is a kernel whose tables the test writes. It notes what was asked.
type fake struct {
	routes map[netip.Addr]hop
	asked  []string
}

func (k *fake) route(a netip.Addr, out string) (hop, error) {
	if h, ok := k.routes[a]; ok && out != "none" {
		return h, nil
	}
	return hop{}, errors.New("unreachable")
}

func (k *fake) resolve(h hop) error {
	k.asked = append(k.asked, "resolve "+h.addr.String())
	return nil
}
func (k *fake) probe(h hop) error { k.asked = append(k.asked, "probe "+h.addr.String()); return nil }

var (
	b1, b2, gw1, gw2 = netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.2.253")
	macA, macB       = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}
)

// bench is a follower of two backends behind gw1.
type bench struct {
	t    *testing.T
	k    *fake
	f    *follower
	told []string
	now  time.Time
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, k: &fake{routes: map[netip.Addr]hop{b1: {2, gw1}, b2: {2, gw1}}}, now: time.Unix(1000, 0)}
	b.f = newFollower(b.k, Config{Probe: 5 * time.Second}, b, zap.NewNop())
	return b
}

func (b *bench) SetNeighbour(a netip.Addr, mac [6]byte, ok bool) {
	if !ok {
		b.told = append(b.told, a.String()+" lost")
		return
	}
	b.told = append(b.told, fmt.Sprintf("%s %x", a, mac[5]))
}

func (b *bench) SetRoute(a netip.Addr, ok bool) {
	b.told = append(b.told, fmt.Sprintf("%s route %v", a, ok))
}

// after lets time pass, works, and checks what was told and asked since the last call.
func (b *bench) after(d time.Duration, told, asked []string) {
	b.t.Helper()
	b.now = b.now.Add(d)
	b.f.work(b.now)
	slices.Sort(b.told)
	if !slices.Equal(b.told, told) || !slices.Equal(b.k.asked, asked) {
		b.t.Errorf("told %q, asked %q; want %q, %q", b.told, b.k.asked, told, asked)
	}
	b.told, b.k.asked = nil, nil
}

func TestFollow(t *testing.T) {
	b := newBench(t)
	up := func(a netip.Addr, p phase, mac [6]byte) { b.f.neighbour(update{hop{2, a}, p, mac}) }
	b.f.setTargets(map[netip.Addr]bool{b1: true, b2: true})
	b.after(0, nil, []string{"resolve 192.0.2.254"})
	up(gw1, pending, [6]byte{}) // the kernel looks for it
	b.after(500*time.Millisecond, nil, nil)
	b.after(500*time.Millisecond, nil, []string{"resolve 192.0.2.254"})
	up(gw2, known, macB) // somebody else
	b.f.neighbour(update{hop{3, gw1}, known, macB})
	b.after(0, nil, nil)
	up(gw1, known, macA)
	b.after(0, []string{"10.0.1.1 a", "10.0.1.2 a"}, nil)
	up(gw1, known, macA)
	b.after(4*time.Second, nil, nil)
	b.after(time.Second, nil, []string{"probe 192.0.2.254"})

	// Its hardware address changes, announced.
	up(gw1, known, macB)
	b.after(0, []string{"10.0.1.1 b", "10.0.1.2 b"}, nil)
	// The kernel forgets it: nothing is lost, and it is asked for.
	up(gw1, pending, [6]byte{})
	b.after(0, nil, []string{"resolve 192.0.2.254"})
	up(gw1, known, macB)
	b.after(0, nil, nil)
	// It does not answer: that is lost, and asked again at once.
	up(gw1, failed, [6]byte{})
	b.after(0, []string{"10.0.1.1 lost", "10.0.1.2 lost"}, []string{"resolve 192.0.2.254"})
	up(gw1, failed, [6]byte{})
	b.after(999*time.Millisecond, nil, nil)
	b.after(time.Millisecond, nil, []string{"resolve 192.0.2.254"})
	up(gw1, known, macA)
	b.after(0, []string{"10.0.1.1 a", "10.0.1.2 a"}, nil)

	// One backend's route changes to a gateway that the kernel knows.
	b.k.routes[b2] = hop{2, gw2}
	b.f.routesChanged()
	b.after(0, []string{"10.0.1.2 b"}, nil)
	// The other's goes.
	delete(b.k.routes, b1)
	b.f.routesChanged()
	b.after(time.Second, []string{"10.0.1.1 lost", "10.0.1.1 route false"}, nil)
	b.f.routesChanged()
	b.after(time.Second, nil, nil)
	b.k.routes[b1] = hop{2, b1} // it is on the link now
	b.f.routesChanged()
	b.after(time.Second, []string{"10.0.1.1 route true"}, []string{"resolve 10.0.1.1"})
	up(b1, fixed, macA)
	b.after(time.Hour, []string{"10.0.1.1 a"}, []string{"probe 192.0.2.253"})
	b.after(time.Hour, nil, []string{"probe 192.0.2.253"}) // what is fixed is not asked

	// A backend that nobody needs is forgotten.
	b.f.setTargets(map[netip.Addr]bool{b2: true})
	b.after(0, []string{"10.0.1.1 lost"}, nil)
	if len(b.f.hops) != 1 || len(b.f.targets) != 1 {
		t.Errorf("%d hops, %d targets are left", len(b.f.hops), len(b.f.targets))
	}
	b.f.cfg.Interface = "none"
	b.f.routesChanged()
	b.after(time.Second, []string{"10.0.1.2 lost", "10.0.1.2 route false"}, nil)
	if len(b.f.hops) != 0 {
		t.Errorf("%d hops are left", len(b.f.hops))
	}
}

// With probe = 0s the kernel's own ageing is all there is; what it forgets is still
// asked for.
func TestNoProbe(t *testing.T) {
	b := newBench(t)
	b.f.cfg.Probe = 0
	b.f.setTargets(map[netip.Addr]bool{b1: true})
	b.f.neighbour(update{hop{2, gw1}, known, macA})
	b.after(0, []string{"10.0.1.1 a"}, nil)
	b.after(time.Hour, nil, nil)
	b.f.neighbour(update{hop{2, gw1}, pending, macA})
	b.after(0, nil, []string{"resolve 192.0.2.254"})
}

// A neighbour that the kernel has forgotten is still known to whoever comes to need it.
func TestAForgottenNeighbourIsKnown(t *testing.T) {
	b := newBench(t)
	b.f.setTargets(map[netip.Addr]bool{b1: true})
	b.f.neighbour(update{hop{2, gw1}, known, macA})
	b.after(0, []string{"10.0.1.1 a"}, nil)
	b.f.neighbour(update{hop{2, gw1}, pending, [6]byte{}})
	b.f.setTargets(map[netip.Addr]bool{b1: true, b2: true})
	b.after(0, []string{"10.0.1.2 a"}, []string{"resolve 192.0.2.254"})
}

// Between two looks nothing is done: due is when the next one would do something.
func TestDue(t *testing.T) {
	b := newBench(t)
	at := func(what string, want time.Duration) {
		t.Helper()
		b.f.work(b.now)
		if got := b.f.due(b.now).Sub(b.now); got != want {
			t.Errorf("%s: due in %v, want %v", what, got, want)
		}
	}
	at("no targets", time.Hour)
	b.f.setTargets(map[netip.Addr]bool{b1: true, b2: true})
	at("one that is not known", askAgain)
	b.now = b.now.Add(askAgain - time.Millisecond)
	at("about to be asked again", tickEvery)
	b.f.neighbour(update{hop{2, gw1}, known, macA})
	at("known", 5*time.Second)
	b.now = b.now.Add(3 * time.Second)
	at("known for a while", 2*time.Second)
	b.f.neighbour(update{hop{2, gw1}, pending, [6]byte{}})
	at("forgotten", askAgain)
	b.f.neighbour(update{hop{2, gw1}, fixed, macA})
	at("known for ever", time.Hour)
	b.f.neighbour(update{hop{2, gw1}, known, macA})
	b.f.cfg.Probe = 0
	at("never asked", time.Hour)
	b.f.next = b.now.Add(300 * time.Millisecond) // the last storm of routes took 30
	b.f.routesChanged()
	at("routes changed, and it is too early", 300*time.Millisecond)
	b.now = b.now.Add(300 * time.Millisecond)
	b.f.next = b.now
	at("and then done", time.Hour)
}

// What is heard is worked on soon, and what is urgent at once.
func TestTurn(t *testing.T) {
	b := newBench(t)
	b.f.setTargets(map[netip.Addr]bool{b1: true})
	at := b.f.turn(b.now, b.now, false) // a new target is urgent
	if !slices.Equal(b.k.asked, []string{"resolve 192.0.2.254"}) || at.Sub(b.now) != askAgain {
		t.Errorf("asked %q, next in %v", b.k.asked, at.Sub(b.now))
	}
	b.f.neighbour(update{hop{2, gw1}, known, macA})
	b.f.cfg.Probe = 0
	at = b.f.turn(at, at, true)
	if at.Sub(b.now) != askAgain+time.Hour {
		t.Errorf("with nothing to do: next in %v", at.Sub(b.now))
	}
	b.k.routes[b1] = hop{2, gw2}
	b.f.routesChanged()
	now := b.now.Add(time.Minute)
	next := b.f.turn(now, at, false)
	if next.Sub(now) != tickEvery || b.f.targets[b1].hop.addr != gw1 {
		t.Errorf("routes changed: next in %v, hop %v", next.Sub(now), b.f.targets[b1].hop)
	}
	// Others do not put it off, nor is it done before.
	if again := b.f.turn(now.Add(tickEvery/2), next, false); again != next {
		t.Errorf("another change: next in %v", again.Sub(now))
	}
	if b.f.turn(next, next, true); b.f.targets[b1].hop.addr != gw2 {
		t.Errorf("hop %v", b.f.targets[b1].hop)
	}
}
