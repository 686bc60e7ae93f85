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
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

const (
	// healthPeriod is how often the daemon is asked whether it is healthy.
	healthPeriod = 500 * time.Millisecond
	// slowPeriod is how often counts are taken and next hops looked for that are
	// not known yet.
	slowPeriod = 5 * time.Second
	// manyRoutes from a router are worth a warning: they are not used, but kept.
	manyRoutes = 10000
)

// Control is a bgp block at work. Its methods may be called from any goroutine, but
// for Start, Reconfigure and Stop, which exclude each other.
type Control struct {
	host      Host
	log       *zap.Logger
	watch     func(func(*state.Snapshot))
	speaker   speaker
	addresses addresses

	wake    chan struct{}
	calls   chan func()
	cancel  context.CancelFunc
	done    chan struct{} // closed when the loop has ended
	running atomic.Bool
	drained atomic.Bool
	leaving atomic.Bool
	snap    atomic.Pointer[state.Snapshot]
	status  atomic.Pointer[Status]

	mu     sync.Mutex // guards events
	events []event

	// What follows is the loop's.
	cfg       Config
	routerID  netip.Addr
	speaking  bool
	peers     []*session // in the order of the file
	started   time.Time
	warm      bool
	withheld  string                // why nothing at all is announced
	announced map[netip.Prefix]bool // what the speaker was told
	decided   *state.Snapshot       // what vips stands for; nil if it is to be found anew
	vips      []VIPStatus           // as if every router had a session
	told      time.Time             // when a router had a route of ours last
	rules     []rule
	slow      time.Time // of the next look at what changes slowly
	recount   bool
	trouble   string // the speaker's last refusal
}

var (
	_ graph.Reconfigurer = (*Control)(nil)
	_ graph.Drainer      = (*Control)(nil)
)

func newControl(c Config, h Host, e *graph.Env, s speaker) (*Control, error) {
	if e.State != nil {
		if err := c.covers(e.State.Load().VIPs); err != nil {
			return nil, err
		}
	}
	x := &Control{
		host: h, log: e.Log, watch: e.Watch, speaker: s, addresses: kernel{},
		wake: make(chan struct{}, 1), calls: make(chan func()), done: make(chan struct{}), announced: map[netip.Prefix]bool{},
	}
	x.status.Store(&Status{})
	if err := x.configure(c, time.Now()); err != nil {
		return nil, err
	}
	return x, nil
}

// Start begins to speak, once. It does not wait for sessions.
func (c *Control) Start(context.Context) error {
	id, err := c.cfg.identifier(c.addresses)
	if err == nil {
		c.routerID = id
		err = c.speak()
	}
	if err != nil {
		return fmt.Errorf("bgp: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.started = cancel, time.Now()
	c.watch(func(s *state.Snapshot) {
		if ctx.Err() == nil {
			c.snap.Store(s)
			c.poke()
		}
	})
	c.report(c.started)
	c.running.Store(true)
	go c.loop(ctx)
	return nil
}

// speak starts the speaker.
func (c *Control) speak() error {
	err := c.speaker.start(c.cfg.ASN, c.routerID, func(e event) {
		c.mu.Lock()
		c.events = append(c.events, e)
		c.mu.Unlock()
		c.poke()
	})
	c.speaking = err == nil
	return err
}

// identifier answers the BGP identifier (RFC 6286).
func (c *Config) identifier(find addresses) (netip.Addr, error) {
	if c.RouterID.IsValid() {
		return c.RouterID, nil
	}
	errs := []error{errors.New("no peer is reached over IPv4, so that no identifier can be derived; set router_id")}
	for i := range c.Peers {
		p := &c.Peers[i]
		switch {
		case p.LocalAddress.Is4():
			return p.LocalAddress, nil
		case p.Address.Is4():
			a, err := find.local(netip.AddrPortFrom(p.Address, p.Port))
			if err == nil {
				return a, nil
			}
			errs = append(errs, err)
		}
	}
	return netip.Addr{}, errors.Join(errs...)
}

// Stop ends all sessions; routers drop the routes with them. It is quick: whoever
// wants traffic to move away first calls Drain.
func (c *Control) Stop(ctx context.Context) error {
	if !c.running.CompareAndSwap(true, false) {
		return nil
	}
	c.cancel()
	<-c.done
	c.status.Store(&Status{ASN: c.cfg.ASN, RouterID: c.routerID.String(), Withheld: "stopped"})
	if err := c.speaker.stop(ctx); err != nil {
		return fmt.Errorf("bgp: %w", err)
	}
	return nil
}

// Drain withdraws all routes, and answers when drain_time has passed: until then
// packets that are still under way, or sent by routers that have not heard, are to
// be forwarded. What was withdrawn before, or went with its session, counts from then on;
// it answers at once if no router was told a route. Nothing is announced any more
// afterwards.
func (c *Control) Drain(ctx context.Context) error {
	var wait time.Duration
	err := c.do(ctx, func() {
		c.leaving.Store(true)
		now := time.Now()
		if c.note(now); !c.told.IsZero() {
			wait = c.cfg.DrainTime - now.Sub(c.told)
		}
	})
	if err != nil || wait <= 0 {
		return err
	}
	c.log.Info("routes are withdrawn; forwarding goes on", zap.Duration("for", wait))
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetDrained withdraws all routes, or lets them be announced again. It answers when
// peers are being told.
func (c *Control) SetDrained(drained bool) {
	c.drained.Store(drained)
	_ = c.do(context.Background(), func() {}) // what does not run has told nobody anything
}

// Reconfigure takes over a changed block. Sessions of peers that stay as they are
// stay up, also if what routes carry changes; all begin anew if asn or router_id do.
func (c *Control) Reconfigure(config any) error {
	next := *config.(*Config)
	var err error
	ran := c.do(context.Background(), func() {
		if snap := c.snap.Load(); snap != nil {
			if err = next.covers(snap.VIPs); err != nil {
				return
			}
		}
		err = c.configure(next, time.Now())
	})
	return errors.Join(ran, err)
}

// errStopped says that there is no loop.
var errStopped = errors.New("bgp does not run")

// do has the loop run f and look at everything.
func (c *Control) do(ctx context.Context, f func()) error {
	if !c.running.Load() {
		return errStopped
	}
	ran := make(chan struct{})
	select {
	case c.calls <- func() { f(); c.step(time.Now()); close(ran) }:
		<-ran
		return nil
	case <-c.done:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Control) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Control) loop(ctx context.Context) {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-c.calls:
			f()
		case <-c.wake:
		case <-timer.C:
		}
		now := time.Now()
		timer.Reset(max(0, c.step(now).Sub(now)))
	}
}

// note remembers that a router has a route now.
func (c *Control) note(now time.Time) {
	if len(c.announced) > 0 && slices.ContainsFunc(c.peers, func(s *session) bool { return s.phase == established }) {
		c.told = now
	}
}

// step does all there is to do, and answers when to look again.
func (c *Control) step(now time.Time) time.Time {
	c.note(now)
	c.mu.Lock()
	events := c.events
	c.events = nil
	c.mu.Unlock()
	for _, e := range events {
		c.take(e, now)
	}
	slow := !now.Before(c.slow)
	if slow {
		c.slow, c.recount = now.Add(slowPeriod), true
	}
	if !c.speaking && slow {
		if err := c.speak(); err != nil {
			c.refused("BGP does not start", err)
		}
	}
	if c.speaking {
		if slow {
			c.rule()
		}
		for _, s := range c.peers {
			c.tend(s, now)
		}
		c.tell(now)
		if c.recount {
			c.recount = false
			c.count()
		}
	}
	c.report(now)
	next := now.Add(healthPeriod)
	for _, s := range c.peers {
		if t := s.due(); c.speaking && !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return next
}

func (c *Control) at(peer netip.Addr) *session {
	for _, s := range c.peers {
		if s.address == peer {
			return s
		}
	}
	return nil
}

// configure takes over a configuration, changing no more than differs.
func (c *Control) configure(next Config, now time.Time) error {
	var peers []*session
	for i := range next.Peers {
		p := &next.Peers[i]
		t, a := next.resolve(p)
		// A secret that cannot be used is told before anything changes.
		if t.enabled {
			if _, err := t.password(); err != nil {
				return fmt.Errorf("peer %q: %w", p.Name, err)
			}
		}
		peers = append(peers, &session{name: p.Name, transport: t, attributes: a, since: now, retry: now, log: c.log.With(zap.String("peer", p.Name), zap.Stringer("address", p.Address))})
	}
	anew := c.running.Load() && (next.ASN != c.cfg.ASN || next.RouterID != c.cfg.RouterID)
	if anew {
		id, err := next.identifier(c.addresses)
		if err != nil {
			return err
		}
		c.routerID = id
	}
	old := c.peers
	for i, s := range peers {
		at := slices.IndexFunc(old, func(o *session) bool { return o.name == s.name && o.transport == s.transport })
		if at < 0 {
			continue
		}
		if !old[at].attributes.equal(s.attributes) {
			old[at].attributes, old[at].hops = s.attributes, [2]netip.Addr{}
		}
		peers[i] = old[at]
	}
	c.cfg, c.peers = next, peers
	c.slow, c.decided = time.Time{}, nil
	switch {
	case !c.running.Load():
	case anew:
		c.anew(now)
	default:
		for _, s := range old {
			if s.added && !slices.Contains(peers, s) {
				if err := c.speaker.remove(s.address); err != nil {
					s.log.Error("the speaker does not forget a peer", zap.Error(err))
				}
				s.log.Info("the session has ended, as the file says")
			}
		}
	}
	return nil
}

// anew stops the speaker; step starts it as another.
func (c *Control) anew(now time.Time) {
	c.log.Info("all sessions begin anew: asn or router_id has changed")
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if err := c.speaker.stop(ctx); err != nil {
		c.log.Warn("BGP starts again later", zap.Error(err))
	}
	c.speaking, c.rules = false, nil
	for _, s := range c.peers {
		s.end(now)
	}
	clear(c.announced)
}

// rule finds next hops, and tells the speaker what routes carry to whom.
func (c *Control) rule() {
	var rules []rule
	for _, s := range c.peers {
		if !s.enabled {
			continue
		}
		c.findHops(s)
		for i, six := range []bool{false, true} {
			if s.hops[i].IsValid() {
				rules = append(rules, rule{s.address, six, s.hops[i], s.attributes})
			}
		}
	}
	same := func(a, b rule) bool {
		return a.peer == b.peer && a.six == b.six && a.hop == b.hop && a.attributes.equal(b.attributes)
	}
	if slices.EqualFunc(rules, c.rules, same) {
		return
	}
	if err := c.speaker.export(rules); err != nil {
		c.refused("attributes of routes are not taken", err)
		return
	}
	of := func(rules []rule, peer netip.Addr) (mine []rule) {
		for _, r := range rules {
			if r.peer == peer {
				mine = append(mine, r)
			}
		}
		return mine
	}
	for _, s := range c.peers {
		if s.phase == established && !slices.EqualFunc(of(rules, s.address), of(c.rules, s.address), same) {
			if err := c.speaker.refresh(s.address); err != nil {
				c.refused("routes are not sent again", err)
			}
		}
	}
	c.rules = rules
}

// findHops finds the next hops of routes to s: what the file says, else the address
// of the session, or beside it.
func (c *Control) findHops(s *session) {
	if s.hops[0].IsValid() && s.hops[1].IsValid() {
		return
	}
	var vips []state.VIPSpec
	if snap := c.snap.Load(); snap != nil {
		vips = snap.VIPs
	}
	skip := func(a netip.Addr) bool {
		return slices.ContainsFunc(vips, func(v state.VIPSpec) bool { return v.Prefix.Contains(a) })
	}
	local, err := s.local, error(nil)
	if !local.IsValid() {
		local, err = c.addresses.local(netip.AddrPortFrom(s.address, s.port))
	}
	for i, set := range []netip.Addr{s.hop4, s.hop6} {
		switch {
		case s.hops[i].IsValid():
		case set.IsValid():
			s.hops[i] = set
		case err != nil:
		case local.Is6() == (i == 1):
			s.hops[i] = local
		default:
			s.hops[i], err = c.addresses.beside(local, skip)
		}
		family := [...]string{"IPv4", "IPv6"}[i]
		needed := slices.ContainsFunc(vips, func(v state.VIPSpec) bool { return canonical(v.Prefix).Addr().Is6() == (i == 1) })
		if mute := !s.hops[i].IsValid() && needed && err == nil; mute != s.mute[i] {
			s.mute[i] = mute
			if mute {
				s.log.Warn(family+" routes have no next hop and are not announced to the peer",
					zap.String("do", fmt.Sprintf("give the interface with %s an %s address, or set next_hop_%s", local, family, strings.ToLower(family))))
			}
		}
	}
}

// hold says why nothing at all is announced, or nothing.
func (c *Control) hold(snap *state.Snapshot, now time.Time) string {
	switch {
	case c.leaving.Load():
		return "the daemon stops"
	case c.drained.Load():
		return "the node is drained"
	case snap == nil:
		return "the state is not known yet"
	}
	if err := c.host.Healthy(); err != nil {
		return err.Error()
	}
	if !c.warm {
		who := undecided(snap)
		if who != "" && now.Sub(c.started) < c.cfg.AnnounceAfter {
			return fmt.Sprintf("the health of %s is not known yet", who)
		}
		c.warm = true
	}
	return ""
}

// tell makes what routers are told agree with what is so.
func (c *Control) tell(now time.Time) {
	snap := c.snap.Load()
	hold := c.hold(snap, now)
	turned := (hold == "") != (c.withheld == "")
	if snap == nil || snap == c.decided && hold == c.withheld {
		c.withheld = hold
		return
	}
	c.decided, c.withheld = snap, hold
	all := Decide(snap)
	want := map[netip.Prefix]*Decision{}
	for i := range all {
		d := &all[i]
		for _, s := range c.peers {
			if d.Prefix.Contains(s.address) {
				d.Announce, d.Why = false, fmt.Sprintf("it covers the address of peer %q", s.name)
			}
		}
		if hold != "" {
			d.Announce, d.Why = false, hold
		}
		want[d.Prefix] = d
	}
	var gone, come []string
	// Withdrawals first: they are what somebody waits for.
	for _, p := range slices.SortedFunc(maps.Keys(c.announced), netip.Prefix.Compare) {
		d := want[p]
		if d == nil {
			d = &Decision{Prefix: p, Why: "no VIP has it any more"}
		}
		if d.Announce {
			continue
		}
		if err := c.speaker.withdraw(p); err != nil {
			c.refused("a route is not withdrawn", err)
			c.decided = nil // to try again
			continue
		}
		delete(c.announced, p)
		if gone = append(gone, p.String()); !turned {
			c.log.Info("route is withdrawn", zap.Stringer("route", p), zap.String("why", d.Why))
		}
	}
	for i := range all {
		d := &all[i]
		if !d.Announce || c.announced[d.Prefix] {
			continue
		}
		if err := c.speaker.announce(d.Prefix); err != nil {
			c.refused("a route is not announced", err)
			c.decided, d.Why = nil, err.Error()
			continue
		}
		c.announced[d.Prefix] = true
		if come = append(come, d.Prefix.String()); !turned {
			c.log.Info("route is announced", zap.Stringer("route", d.Prefix), zap.Strings("vips", d.VIPs))
		}
	}
	switch {
	case turned && hold != "":
		c.log.Warn("nothing is announced", zap.String("why", hold), zap.Strings("withdrawn", gone))
	case turned:
		c.log.Info("routes are announced", zap.Strings("routes", come))
	}
	c.recount = c.recount || len(gone)+len(come) > 0
	c.vips = make([]VIPStatus, len(all))
	for i, d := range all {
		c.vips[i] = VIPStatus{Route: d.Prefix, VIPs: d.VIPs, Announced: c.announced[d.Prefix], Why: d.Why}
	}
}

// refused tells what the speaker did not do, once: it is tried again at every step.
func (c *Control) refused(what string, err error) {
	if text := what + err.Error(); text != c.trouble {
		c.trouble = text
		c.log.Error(what, zap.Error(err))
	}
}

// count takes the speaker's counts.
func (c *Control) count() {
	all, err := c.speaker.counts()
	if err != nil {
		c.refused("routes are not counted", err)
		return
	}
	for _, s := range c.peers {
		before := s.received
		s.count = all[s.address]
		if s.received >= manyRoutes && before < manyRoutes {
			s.log.Warn("the router sends many routes, which are not used but take memory; let it send none", zap.Uint64("routes", s.received))
		}
	}
}
