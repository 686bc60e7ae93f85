package neigh

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
)

// A hop is a neighbour on a link.
type hop struct {
	link int // interface index
	addr netip.Addr
}

// asker asks the kernel; kernel is the real one.
type asker interface {
	// route answers the next hop towards addr, by way of the interface out if that is
	// not empty.
	route(addr netip.Addr, out string) (hop, error)
	// resolve makes the kernel find the hardware address of a neighbour, probe makes
	// it ask the one it knows.
	resolve(hop) error
	probe(hop) error
}

// update is what the kernel says about a neighbour.
type update struct {
	hop
	phase
	mac [6]byte // of known ones
}

type phase uint8

const (
	pending phase = iota // not known yet, or forgotten
	known
	fixed  // known for ever: nobody needs to ask
	failed // it did not answer
)

// follower knows by which hop every target is reached and at which hardware address
// every hop answers, and tells what changes. It belongs to one goroutine.
type follower struct {
	ask  asker
	cfg  Config
	tell teller
	log  *zap.Logger

	targets map[netip.Addr]*target
	hops    map[hop]*neighbour // of targets
	seen    map[hop]update     // of all neighbours that the kernel has
	soon    bool               // work is due at once
	dirty   bool               // routes are to be asked for again
	next    time.Time          // not before
}

type target struct {
	addr   netip.Addr
	hop    hop
	routed bool
	lost   bool // that it has no route was told
	mac    [6]byte
	told   bool // mac was told to the state
}

type neighbour struct {
	phase
	mac    [6]byte
	gone   bool // the kernel has forgotten it
	asked  time.Time
	probed time.Time
	users  map[*target]bool
}

// teller takes what is found out; see Host.
type teller interface {
	SetNeighbour(addr netip.Addr, mac [6]byte, ok bool)
	SetRoute(addr netip.Addr, ok bool)
}

func newFollower(k asker, cfg Config, tell teller, log *zap.Logger) *follower {
	return &follower{
		ask: k, cfg: cfg, tell: tell, log: log,
		targets: map[netip.Addr]*target{}, hops: map[hop]*neighbour{}, seen: map[hop]update{},
	}
}

// setTargets says which addresses are looked for.
func (f *follower) setTargets(want map[netip.Addr]bool) {
	for a, t := range f.targets {
		if !want[a] {
			f.leave(t)
			f.publish(t, [6]byte{}, false)
			delete(f.targets, a)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		if f.targets[a] == nil {
			t := &target{addr: a}
			f.targets[a] = t
			f.find(t)
		}
	}
}

// routesChanged says that other routes may hold now.
func (f *follower) routesChanged() { f.dirty = true }

// find asks for the route to t and takes what is known about the hop.
func (f *follower) find(t *target) {
	h, err := f.ask.route(t.addr, f.cfg.Interface)
	if err != nil {
		if !t.lost {
			f.log.Warn("there is no route", zap.Stringer("to", t.addr), zap.Error(err))
			t.lost = true
			f.tell.SetRoute(t.addr, false)
		}
		f.leave(t)
		f.publish(t, [6]byte{}, false)
		return
	}
	if t.lost {
		t.lost = false
		f.tell.SetRoute(t.addr, true)
	}
	if t.routed && t.hop == h {
		return
	}
	f.leave(t)
	t.hop, t.routed = h, true
	n := f.hops[h]
	if n == nil {
		n = &neighbour{users: map[*target]bool{}}
		f.hops[h] = n
		if u, ok := f.seen[h]; ok {
			n.phase, n.mac = u.phase, u.mac
		}
	}
	n.users[t] = true
	f.soon = true
	f.publish(t, n.mac, n.reached())
}

func (n *neighbour) reached() bool { return n.phase == known || n.phase == fixed }

// leave takes t off its hop.
func (f *follower) leave(t *target) {
	if !t.routed {
		return
	}
	n := f.hops[t.hop]
	if delete(n.users, t); len(n.users) == 0 {
		delete(f.hops, t.hop)
	}
	t.routed = false
}

// neighbour takes what the kernel says.
func (f *follower) neighbour(u update) {
	if u.phase == pending {
		delete(f.seen, u.hop)
	} else {
		f.seen[u.hop] = u
	}
	n := f.hops[u.hop]
	if n == nil {
		return
	}
	if u.phase == pending {
		// The kernel has forgotten it, or looks for it: which says nothing about the
		// neighbour. What was known holds until it does not answer.
		n.gone, f.soon = true, true
		return
	}
	if u.phase == failed && n.reached() {
		f.log.Warn("a next hop does not answer", zap.Stringer("address", u.addr), zap.Int("link", u.link))
		n.asked, f.soon = time.Time{}, true
	}
	n.phase, n.gone = u.phase, false
	if n.reached() {
		n.mac = u.mac
	}
	for t := range n.users {
		f.publish(t, n.mac, n.reached())
	}
}

// publish tells the hardware address of t if that is news.
func (f *follower) publish(t *target, mac [6]byte, ok bool) {
	if t.told == ok && (!ok || t.mac == mac) {
		return
	}
	t.mac, t.told = mac, ok
	f.tell.SetNeighbour(t.addr, mac, ok)
}

// askAgain is the least time between two questions for one neighbour.
const askAgain = time.Second

// work does what is due.
func (f *follower) work(now time.Time) {
	if f.dirty && !now.Before(f.next) {
		f.dirty = false
		begin := time.Now()
		for _, t := range f.targets {
			f.find(t)
		}
		// A storm of routes may take a tenth of the time.
		f.next = now.Add(10 * time.Since(begin))
	}
	f.soon = false
	for h, n := range f.hops {
		switch {
		case !n.reached() || n.gone:
			if now.Sub(n.asked) >= askAgain {
				n.asked = now
				f.complain(h, f.ask.resolve(h))
			}
		case n.probed.IsZero():
			n.probed = now
		case n.phase == known && f.cfg.Probe > 0 && now.Sub(n.probed) >= f.cfg.Probe:
			n.probed = now
			f.complain(h, f.ask.probe(h))
		}
	}
}

// turn works if it is time to, or something is to be done at once; at is when it was to
// work next. It answers when that is now.
func (f *follower) turn(now, at time.Time, due bool) time.Time {
	if due || f.soon {
		f.work(now)
		return f.due(now)
	}
	if soon := now.Add(tickEvery); f.dirty && at.After(soon) {
		return soon
	}
	return at
}

// due answers when there will be something to do, unless something is heard before.
func (f *follower) due(now time.Time) time.Time {
	at := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	for _, n := range f.hops {
		switch {
		case !n.reached() || n.gone:
			sooner(n.asked.Add(askAgain))
		case n.phase == known && f.cfg.Probe > 0:
			sooner(n.probed.Add(f.cfg.Probe))
		}
	}
	if f.dirty {
		sooner(f.next)
	}
	if soon := now.Add(tickEvery); at.Before(soon) {
		at = soon
	}
	return at
}

func (f *follower) complain(h hop, err error) {
	if err != nil {
		f.log.Debug("the kernel takes no question", zap.Stringer("address", h.addr), zap.Int("link", h.link), zap.Error(err))
	}
}
