package state

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/io/packet"
)

const (
	// Window is how long changes of health, weight and drain are collected before
	// the tables are built again and a snapshot is published.
	Window = 50 * time.Millisecond
	// Quarantine is the least time for which a dead number is not given out again,
	// besides the sweep of all tables: numbers travel in held frames, in rings
	// between cores and in the pins of fragments.
	Quarantine = 3 * time.Minute
)

// A Store turns what the operator declared, and what is found out about backends,
// into snapshots. Its methods may be called from any goroutine, but not from a
// watcher.
//
// A change of health or drain is in the current snapshot's status words when the
// method returns; tables follow within Window, each affected pool built once.
type Store struct {
	cell Cell

	work sync.Mutex // held while a snapshot is made and published
	memo memo
	// Tables that were built, and the nanoseconds it took.
	build    func(*job) // of a table, on one of several cores
	builders int        // tables that are built at a time; 0: as many as there are cores
	builds   atomic.Uint64
	building atomic.Int64
	seen     map[uint64]func(*Snapshot)
	next     uint64 // key of seen

	mu         sync.Mutex // guards what follows; held for short, after work
	gen        uint64     // of the last snapshot
	closed     bool
	applied    bool
	vips       []VIPSpec
	pools      numbers[pool]
	poolOf     map[string]*pool
	backends   numbers[backend]
	backendOf  map[netip.Addr]*backend
	services   numbers[service]
	serviceOf  map[serviceKey]*service
	targets    map[Target]*target
	overrides  map[[2]string]override
	neighbours map[netip.Addr][6]byte
	matcher    *Matcher
	touched    []*backend // whose Status is to be found again
	words      int        // length of Words
	shape      shape
	current    *Snapshot
	rebuild    *time.Timer // set while changes are collected
	expiry     *time.Timer // for the next grace to end
}

// shape is the parts of a snapshot that change rarely and are shared by successive
// ones; nil means that it must be made again.
type shape struct {
	services   []Service
	infos      []ServiceInfo
	backends   []Backend
	neighbours map[netip.Addr][6]byte
}

// A grave says since when a number is dead.
type grave struct {
	gen uint64 // the first snapshot without it; 0 while it lives
	at  time.Time
}

type serviceKey struct {
	tuple
	pool uint32
}

type tuple struct {
	prefix netip.Prefix
	proto  uint8
	lo, hi uint16
}

type service struct {
	Service
	grave
	key   serviceKey
	prev  *service
	until time.Time // end of grace, once replaced
}

type backend struct {
	Backend
	grave
	forced  Status
	members []*member // that are not dead: the reverse index
	touched bool
}

type pool struct {
	grave
	id      uint32
	name    string
	spec    PoolSpec // of the last file that had it
	inFile  bool
	members []*member // by slot; nil is free
	base    uint32
	dirty   bool // the table does not stand for the members

	table     []uint16
	digest    uint64
	usable    int
	published []Member // nil: to be made again
}

// memberKey tells a pool's members apart: by address, and where a pool has an
// address several times, as streams may, by a number. Who has a port keeps its
// number as long as it stands in the file: see keys.
type memberKey struct {
	addr netip.Addr
	ord  uint16
}

type member struct {
	grave
	key     memberKey
	slot    uint16
	pool    *pool
	backend *backend
	name    string
	weight  int
	built   int // the weight with which it is in the table
	drain   bool
	port    int
	target  *target // nil without a check
	late    bool    // added by a reload: no traffic before it is known to be healthy
	removed bool
	until   time.Time // end of grace, once removed
	status  Status
}

type target struct {
	Target
	health  Health
	members []*member
}

// override is what was ordered for a pool's backend. Each order says for itself whether
// it is kept.
type override struct {
	drain                 *bool
	weight                *int
	keepDrain, keepWeight bool
}

// kept is what is left of the orders when the file is applied again.
func (o override) kept() override {
	if !o.keepDrain {
		o.drain = nil
	}
	if !o.keepWeight {
		o.weight = nil
	}
	return o
}

// NewStore answers a store without pools and VIPs.
func NewStore() *Store {
	return &Store{
		seen: map[uint64]func(*Snapshot){}, poolOf: map[string]*pool{}, backendOf: map[netip.Addr]*backend{},
		serviceOf: map[serviceKey]*service{}, targets: map[Target]*target{}, overrides: map[[2]string]override{},
		neighbours: map[netip.Addr][6]byte{}, matcher: &Matcher{}, build: (*job).build,
	}
}

// Build answers the snapshot of spec on a new store: all backends are usable but
// those that the file drains.
func Build(spec Spec) (*Snapshot, error) {
	s := NewStore()
	defer s.Close()
	if err := s.Apply(spec); err != nil {
		return nil, err
	}
	return s.Cell().Load(), nil
}

// Cell answers the cell in which the store publishes.
func (s *Store) Cell() *Cell { return &s.cell }

// Close stops the store's timers; nothing is published any more.
func (s *Store) Close() {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, t := range []*time.Timer{s.rebuild, s.expiry} {
		if t != nil {
			t.Stop()
		}
	}
}

// Watch calls f with every snapshot before it is published, and at once with the
// current one. f must not call the store. stop ends it.
func (s *Store) Watch(f func(*Snapshot)) (stop func()) {
	s.work.Lock()
	defer s.work.Unlock()
	s.next++
	k := s.next
	s.seen[k] = f
	f(s.cell.Load())
	return func() {
		s.work.Lock()
		defer s.work.Unlock()
		delete(s.seen, k)
	}
}

// Apply takes over what the operator declared and publishes it. Numbers stay with
// what they stood for: a pool by its name, a backend by its address, a service by
// address, protocol, ports and pool. A backend that is gone from a pool, and the old
// pool of an address that leads to another one now, keep their flows for the pool's
// RemovalGrace. An error changes nothing.
func (s *Store) Apply(spec Spec) error {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	if err := s.apply(spec); err != nil {
		s.mu.Unlock()
		return err
	}
	s.mu.Unlock()
	s.publish()
	return nil
}

// checkSpec looks for what no snapshot can be made of.
func checkSpec(spec *Spec) error {
	pools := map[string]bool{}
	for i := range spec.Pools {
		p := &spec.Pools[i]
		switch {
		case pools[p.Name]:
			return fmt.Errorf("pool %q is declared twice", p.Name)
		case p.TableSize != 0 && !ValidTable(p.TableSize):
			return fmt.Errorf("pool %q: table size %d is not a prime from %d to %d", p.Name, p.TableSize, MinTable, MaxTable)
		case len(p.Backends) > MaxSlots:
			return fmt.Errorf("pool %q has %d backends; %d is the most", p.Name, len(p.Backends), MaxSlots)
		}
		pools[p.Name] = true
		for j := range p.Backends {
			b := &p.Backends[j]
			if !b.Address.IsValid() || b.Weight < 0 || b.Weight > 1000 {
				return fmt.Errorf("pool %q: backend %q needs an address and a weight from 0 to 1000", p.Name, b.Name)
			}
		}
	}
	services := 0
	for i := range spec.VIPs {
		v := &spec.VIPs[i]
		if !v.Prefix.IsValid() {
			return fmt.Errorf("vip %q has no address", v.Name)
		}
		if !pools[v.Pool] {
			return fmt.Errorf("vip %q: there is no pool %q", v.Name, v.Pool)
		}
		services += max(1, len(v.Ports))
	}
	if services > MaxServices {
		return fmt.Errorf("%d services; %d is the most", services, MaxServices)
	}
	return nil
}

// apply is Apply under mu, up to the publication.
func (s *Store) apply(spec Spec) error {
	if s.closed {
		return errors.New("the store is closed")
	}
	if err := checkSpec(&spec); err != nil {
		return err
	}
	now := time.Now()
	s.reap(now)
	if err := s.checkRoom(&spec); err != nil {
		return err
	}
	s.gen++ // what dies now is dead in the snapshot that follows
	for k, o := range s.overrides {
		if s.overrides[k] = o.kept(); s.overrides[k] == (override{}) {
			delete(s.overrides, k)
		}
	}
	for _, p := range s.pools.all {
		if p != nil {
			p.inFile, p.published = false, nil
		}
	}
	for i := range spec.Pools {
		s.applyPool(&spec.Pools[i], now)
	}
	for _, p := range s.pools.all {
		if p != nil && !p.inFile {
			s.removeMembers(p, nil, now)
			s.bury(p, now)
		}
	}
	s.applyVIPs(spec.VIPs, now)
	s.applied = true
	s.layout()
	for _, p := range s.pools.all {
		if p != nil {
			s.assess(p)
		}
	}
	s.arm()
	return nil
}

// keys answers the keys of a pool's backends, in their order. A backend has the key
// of the member of its address and port, where there is one; else the first one of
// its address that is free: a backend whose port changes stays who it is.
func keys(backends []BackendSpec, members []*member) []memberKey {
	all := make([]memberKey, len(backends))
	given := make([]bool, len(backends))
	taken := map[memberKey]bool{}
	for i := range backends {
		all[i].addr = backends[i].Address.Unmap().WithZone("")
	}
	type place struct {
		addr netip.Addr
		port int
	}
	at := map[place]memberKey{}
	for _, m := range members {
		if m != nil {
			if _, twice := at[place{m.key.addr, m.port}]; !twice || !m.removed {
				at[place{m.key.addr, m.port}] = m.key
			}
		}
	}
	for i := range backends {
		if k, ok := at[place{all[i].addr, backends[i].Port}]; ok && !taken[k] {
			all[i], given[i], taken[k] = k, true, true
		}
	}
	free := map[netip.Addr]uint16{}
	for i := range backends {
		if given[i] {
			continue
		}
		k := &all[i]
		for k.ord = free[k.addr]; taken[*k]; k.ord++ {
		}
		free[k.addr] = k.ord + 1
	}
	return all
}

// checkRoom tells whether every pool has slots for what is new, and services
// numbers.
func (s *Store) checkRoom(spec *Spec) error {
	for i := range spec.Pools {
		p := s.poolOf[spec.Pools[i].Name]
		if p == nil {
			continue
		}
		used, have := 0, map[memberKey]bool{}
		for _, m := range p.members {
			if m != nil {
				used++
				have[m.key] = true
			}
		}
		for _, k := range keys(spec.Pools[i].Backends, p.members) {
			if !have[k] {
				used++
			}
		}
		if used > MaxSlots {
			return fmt.Errorf("pool %q would have %d backends, removed ones that still drain included; %d is the most", p.name, used, MaxSlots)
		}
	}
	return nil
}

func (s *Store) applyPool(spec *PoolSpec, now time.Time) {
	p := s.poolOf[spec.Name]
	if p == nil {
		p = &pool{name: spec.Name, dirty: true}
		p.id = s.pools.put(p)
		s.poolOf[p.name] = p
	}
	before := p.spec
	p.spec, p.inFile, p.grave = *spec, true, grave{}
	p.spec.Backends = nil // members say it
	if p.spec.TableSize == 0 {
		p.spec.TableSize = DefaultTable
	}
	if p.spec.TableSize != before.TableSize || p.spec.HashSeed != before.HashSeed {
		p.dirty = true
	}
	have := map[memberKey]*member{}
	for _, m := range p.members {
		if m != nil {
			have[m.key] = m
		}
	}
	ks := keys(spec.Backends, p.members)
	// New members take their slots in the order of their addresses and ports, so that
	// equal pools have equal slots and share their tables.
	order := make([]int, len(ks))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(ks[a].addr.Compare(ks[b].addr), cmp.Compare(spec.Backends[a].Port, spec.Backends[b].Port), cmp.Compare(ks[a].ord, ks[b].ord))
	})
	keep := map[*member]bool{}
	free := 0
	for _, i := range order {
		b := &spec.Backends[i]
		m := have[ks[i]]
		if m == nil {
			for free < len(p.members) && p.members[free] != nil {
				free++
			}
			if free == len(p.members) {
				p.members = append(p.members, nil)
			}
			m = &member{key: ks[i], slot: uint16(free), pool: p, late: s.applied, status: Down}
			p.members[free] = m
		} else if m.gen != 0 {
			m.late, m.status = true, Down // its flows are gone, it begins anew
		}
		keep[m] = true
		p.dirty = p.dirty || m.port != b.Port // it is part of the table
		m.grave, m.removed, m.until = grave{}, false, time.Time{}
		m.name, m.weight, m.drain, m.port = b.Name, b.Weight, b.Drain, b.Port
		s.tie(m, b)
	}
	s.removeMembers(p, keep, now)
}

// tie connects m to its backend and to what is checked.
func (s *Store) tie(m *member, b *BackendSpec) {
	known := m.health()
	if m.backend == nil {
		known = Unknown
		k := s.backendOf[m.key.addr]
		if k == nil {
			k = &backend{Backend: Backend{Addr: m.key.addr}}
			k.ID = s.backends.put(k)
			k.MAC, k.HasMAC = s.macOf(k.Addr)
			s.backendOf[k.Addr] = k
		}
		k.grave = grave{}
		s.shape.backends = nil
		k.members = append(k.members, m)
		m.backend = k
	}
	var want *target
	if m.pool.spec.Health != "" {
		t := Target{m.pool.spec.Health, m.key.addr, b.Port}
		if want = s.targets[t]; want == nil {
			// If the check changed, or is new, under a backend that has flows: what
			// held for it holds until the new check has decided.
			want = &target{Target: t, health: known}
			s.targets[t] = want
		}
	}
	if want != m.target {
		s.untie(m)
		if m.target = want; want != nil {
			want.members = append(want.members, m)
		}
	}
}

// untie forgets what is checked for m.
func (s *Store) untie(m *member) {
	t := m.target
	if t == nil {
		return
	}
	m.target = nil
	t.members = slices.DeleteFunc(t.members, func(o *member) bool { return o == m })
	if len(t.members) == 0 {
		delete(s.targets, t.Target)
	}
}

func (s *Store) macOf(a netip.Addr) (mac [6]byte, ok bool) {
	mac, ok = s.neighbours[a]
	return
}

// removeMembers begins the grace of all members of p that are not to be kept.
func (s *Store) removeMembers(p *pool, keep map[*member]bool, now time.Time) {
	for _, m := range p.members {
		if m != nil && !m.removed && m.gen == 0 && !keep[m] {
			m.removed, m.until = true, now.Add(p.spec.RemovalGrace)
			if p.spec.RemovalGrace <= 0 {
				s.kill(m, now)
			}
		}
	}
}

// kill ends a member: its flows select again.
func (s *Store) kill(m *member, now time.Time) {
	m.grave, m.removed = grave{s.gen, now}, true
	if m.status == Up {
		m.pool.dirty = true
	}
	s.untie(m)
	b := m.backend
	m.backend = nil
	b.members = slices.DeleteFunc(b.members, func(o *member) bool { return o == m })
	if len(b.members) == 0 {
		b.grave = m.grave
		s.shape.backends = nil
	}
	s.bury(m.pool, now)
}

// bury ends a pool that is gone from the file, once all its members are dead.
func (s *Store) bury(p *pool, now time.Time) {
	if !p.inFile && p.gen == 0 && !slices.ContainsFunc(p.members, func(o *member) bool { return o != nil && o.gen == 0 }) {
		p.grave = grave{s.gen, now}
	}
}

func (s *Store) applyVIPs(vips []VIPSpec, now time.Time) {
	live := map[tuple]*service{} // what each tuple led to so far
	for _, v := range s.services.all {
		if v != nil && v.gen == 0 && v.until.IsZero() {
			live[v.key.tuple] = v
		}
	}
	wanted := map[*service]bool{}
	var rules []rule
	for i := range vips {
		v := &vips[i]
		ports := v.Ports
		if len(ports) == 0 {
			ports = []PortRange{{0, 65535}}
		}
		p := s.poolOf[v.Pool]
		for _, r := range ports {
			k := serviceKey{tuple{v.Prefix.Masked(), v.Protocol, r.Lo, r.Hi}, p.id}
			sv := s.serviceOf[k]
			if sv == nil {
				sv = &service{key: k}
				sv.ID = s.services.put(sv)
				s.serviceOf[k] = sv
			}
			if old := live[k.tuple]; old != nil && old != sv {
				sv.prev = old
			}
			if !wanted[sv] {
				wanted[sv] = true
				sv.grave, sv.until = grave{}, time.Time{}
				sv.Service = Service{
					ID: sv.ID, VIP: v.Name, Prefix: k.prefix, Proto: v.Protocol, Lo: r.Lo, Hi: r.Hi, Pool: p.id,
					Affinity: v.Affinity, Leave: v.Leave, Enabled: !v.Disabled, Spec: i,
					Compact: sv.ID < 1<<16 && v.Protocol != 0 && r.Lo == r.Hi && k.prefix.IsSingleIP() && k.prefix.Addr().Is4(),
				}
			}
			if !v.Disabled {
				rules = append(rules, rule{k.prefix, v.Protocol, r.Lo, r.Hi, sv.ID, v.Leave})
			}
		}
	}
	replaced := map[*service]bool{}
	for sv := range wanted {
		if sv.prev != nil {
			replaced[sv.prev] = true
		}
	}
	for _, v := range s.services.all {
		if v == nil || v.gen != 0 || wanted[v] {
			continue
		}
		v.Enabled, v.Spec = false, -1
		switch keep := s.pools.all[v.Pool].spec.RemovalGrace; {
		case !v.until.IsZero(): // its grace goes on
		case !replaced[v] || keep <= 0:
			v.grave = grave{s.gen, now} // gone from the file, or replaced without grace: nothing leads there
		default:
			v.until = now.Add(keep)
		}
	}
	s.vips = slices.Clone(vips)
	s.matcher = newMatcher(rules)
	s.shape.services, s.shape.infos = nil, nil
	s.settlePrev()
}

// settlePrev cuts what replaced services that are dead, or current again, are kept
// for.
func (s *Store) settlePrev() {
	for _, v := range s.services.all {
		if v != nil && v.prev != nil && (v.gen != 0 || v.prev.gen != 0 || v.prev.until.IsZero()) {
			v.prev = nil
		}
	}
}

// numbers gives out numbers from 1 on, the lowest free one first.
type numbers[T any] struct {
	all  []*T // by number; nil is free
	free int  // no number from 1 to here is free
}

func (n *numbers[T]) put(v *T) uint32 {
	if len(n.all) == 0 {
		n.all = make([]*T, 1)
	}
	for n.free++; n.free < len(n.all); n.free++ {
		if n.all[n.free] == nil {
			n.all[n.free] = v
			return uint32(n.free)
		}
	}
	n.all = append(n.all, v)
	return uint32(n.free)
}

func (n *numbers[T]) drop(i int) {
	n.all[i] = nil
	n.free = min(n.free, i-1)
}

// reap frees the numbers of what is dead for long enough and swept everywhere.
func (s *Store) reap(now time.Time) {
	swept := s.cell.swept()
	over := func(g grave) bool { return g.gen != 0 && g.gen <= swept && now.Sub(g.at) >= Quarantine }
	for i, v := range s.services.all {
		if v != nil && over(v.grave) {
			delete(s.serviceOf, v.key)
			s.services.drop(i)
		}
	}
	named := map[uint32]bool{} // pools that a service still leads to
	for _, v := range s.services.all {
		if v != nil {
			named[v.key.pool] = true
		}
	}
	for i, p := range s.pools.all {
		if p == nil {
			continue
		}
		for j, m := range p.members {
			if m != nil && over(m.grave) {
				p.members[j] = nil
			}
		}
		for n := len(p.members); n > 0 && p.members[n-1] == nil; n-- {
			p.members = p.members[:n-1]
		}
		if over(p.grave) && len(p.members) == 0 && !named[p.id] {
			delete(s.poolOf, p.name)
			s.pools.drop(i)
		}
	}
	for i, b := range s.backends.all {
		if b != nil && over(b.grave) {
			delete(s.backendOf, b.Addr)
			s.backends.drop(i)
		}
	}
}

// layout gives every pool its place in Words.
func (s *Store) layout() {
	at := uint32(1)
	for _, p := range s.pools.all {
		if p != nil {
			p.base = at
			at += uint32(len(p.members))
		}
	}
	s.words = int(at)
	s.shape.infos = nil
}

// drained and weightOf answer what holds for m, by file or by command.
func (s *Store) drained(m *member) bool {
	if len(s.overrides) > 0 {
		if o := s.overrides[[2]string{m.pool.name, m.name}]; o.drain != nil {
			return *o.drain
		}
	}
	return m.drain
}

func (s *Store) weightOf(m *member) int {
	if len(s.overrides) > 0 {
		if o := s.overrides[[2]string{m.pool.name, m.name}]; o.weight != nil {
			return *o.weight
		}
	}
	return m.weight
}

func (m *member) health() Health {
	if m.target == nil {
		return Healthy
	}
	return m.target.health
}

// assess finds the status of all members of p, and whether its table is still
// right.
func (s *Store) assess(p *pool) {
	up := 0
	for _, m := range p.members {
		if m == nil || m.gen != 0 {
			continue
		}
		st, weight := Up, s.weightOf(m)
		if m.removed || weight == 0 || s.drained(m) {
			st = Draining
		}
		st = max(st, m.backend.forced)
		if h := m.health(); h == Unhealthy || h == Unknown && m.late && !m.removed {
			st = Down
		}
		s.set(m, st)
		if st == Up {
			up++
			p.dirty = p.dirty || weight != m.built
		}
	}
	if up > 0 || !p.spec.FailOpen {
		return
	}
	for _, m := range p.members {
		if m != nil && m.gen == 0 && !m.removed && !s.drained(m) && s.weightOf(m) > 0 && m.backend.forced != Draining {
			s.set(m, Up)
		}
	}
}

func (s *Store) set(m *member, st Status) {
	if m.status == st {
		return
	}
	m.pool.dirty = m.pool.dirty || m.status == Up || st == Up
	m.status = st
	if !m.backend.touched {
		m.backend.touched = true
		s.touched = append(s.touched, m.backend)
	}
}

// changed assesses pools after a change, shows the packet plane at once what
// became of their members, and has them built again.
func (s *Store) changed(pools map[*pool]bool) {
	for p := range pools {
		s.assess(p)
		p.published = nil
		if p.in(s.current) {
			p.post(s.current)
		}
	}
	for _, b := range s.touched {
		b.touched = false
		if s.current != nil {
			b.post(s.current)
		}
	}
	s.touched = s.touched[:0]
	s.later()
}

// post writes the status of p's members to the words of n.
func (p *pool) post(n *Snapshot) {
	for i, m := range p.members {
		w := &n.Words[int(p.base)+i]
		if m == nil || m.gen != 0 {
			w.store(0, Down)
		} else {
			w.store(m.backend.ID, m.status)
		}
	}
}

// post writes the best status that b has in any pool to n.
func (b *backend) post(n *Snapshot) {
	best := Down
	for _, m := range b.members {
		best = min(best, m.status)
	}
	if int(b.ID) < len(n.Status) {
		n.Status[b.ID].Store(uint32(best))
	}
}

// postAll writes the status of everything to n.
func (s *Store) postAll(n *Snapshot) {
	for _, p := range s.pools.all {
		if p != nil {
			p.post(n)
		}
	}
	for _, b := range s.backends.all {
		if b != nil {
			b.post(n)
		}
	}
}

// in tells whether snapshot n has p's members where p has them now.
func (p *pool) in(n *Snapshot) bool {
	return n != nil && int(p.id) < len(n.Pools) && n.Pools[p.id].base == p.base && len(n.Pools[p.id].Members) == len(p.members)
}

// later has a snapshot published when Window has passed.
func (s *Store) later() {
	if s.rebuild == nil && s.applied {
		s.rebuild = time.AfterFunc(Window, s.Flush)
	}
}

// Flush builds and publishes at once what was collected; it does nothing if
// nothing was.
func (s *Store) Flush() {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	idle := s.rebuild == nil || s.closed
	if s.rebuild != nil {
		s.rebuild.Stop()
		s.rebuild = nil
	}
	if !idle {
		s.gen++
	}
	s.mu.Unlock()
	if !idle {
		s.publish()
	}
}

// arm sets the timer for the next end of a grace.
func (s *Store) arm() {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, p := range s.pools.all {
		if p == nil {
			continue
		}
		for _, m := range p.members {
			if m != nil && m.gen == 0 {
				sooner(m.until)
			}
		}
	}
	for _, v := range s.services.all {
		if v != nil && v.gen == 0 {
			sooner(v.until)
		}
	}
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if !next.IsZero() {
		s.expiry = time.AfterFunc(time.Until(next), s.expire)
	}
}

// expire ends what has drained for its grace.
func (s *Store) expire() {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	now := time.Now()
	s.gen++
	for _, p := range s.pools.all {
		if p == nil {
			continue
		}
		for _, m := range p.members {
			if m != nil && m.gen == 0 && m.removed && !now.Before(m.until) {
				s.kill(m, now)
				p.published = nil
			}
		}
	}
	for _, v := range s.services.all {
		if v != nil && v.gen == 0 && !v.until.IsZero() && !now.Before(v.until) {
			v.grave = grave{s.gen, now}
			s.shape.services, s.shape.infos = nil, nil
		}
	}
	s.settlePrev()
	s.arm()
	s.mu.Unlock()
	s.publish()
}

// job is one table to be built, for all pools that share it.
type job struct {
	key   string
	set   []candidate
	size  int
	pools []*pool
	memoTable
}

// publish builds the tables that are due, and publishes a snapshot of generation
// gen. work is held, mu is not.
func (s *Store) publish() {
	s.mu.Lock()
	jobs := map[string]*job{}
	var due []*job
	for _, p := range s.pools.all {
		if p == nil || !p.dirty {
			continue
		}
		p.dirty, p.published = false, nil
		set := s.candidates(p)
		key := tableKey(p.spec.TableSize, set)
		j := jobs[key]
		if j == nil {
			j = &job{key: key, set: set, size: p.spec.TableSize}
			jobs[key] = j
			var known bool
			if j.memoTable, known = s.memo.find(key); !known {
				due = append(due, j)
			}
		}
		j.pools = append(j.pools, p)
	}
	s.mu.Unlock()

	if begun := time.Now(); len(due) > 0 {
		s.buildAll(due)
		s.builds.Add(uint64(len(due)))
		s.building.Add(int64(time.Since(begun)))
	}
	for _, j := range due {
		s.memo.add(j.key, j.memoTable)
	}

	s.mu.Lock()
	for _, j := range jobs {
		for _, p := range j.pools {
			p.table, p.usable, p.digest = j.table, len(j.set), withSeed(j.digest, p.spec.HashSeed)
			p.published = nil
		}
	}
	n := s.snapshot()
	s.mu.Unlock()

	for _, k := range slices.Sorted(maps.Keys(s.seen)) {
		s.seen[k](n)
	}
	s.mu.Lock()
	s.postAll(n) // what happened to members in the meantime
	s.current = n
	s.cell.Publish(n)
	s.mu.Unlock()
}

// candidates answers p's usable members in the order of their ranks.
func (s *Store) candidates(p *pool) []candidate {
	set := make([]candidate, 0, len(p.members))
	for _, m := range p.members {
		if m != nil && m.gen == 0 && m.status == Up {
			m.built = s.weightOf(m)
			set = append(set, candidate{packet.AddrOf(m.key.addr), uint16(m.port), m.key.ord, m.slot, uint32(m.built)})
		}
	}
	sortCandidates(set)
	return set
}

// Builds answers how many tables were built so far, those that were remembered left
// out, and how long that took.
func (s *Store) Builds() (n uint64, took time.Duration) {
	return s.builds.Load(), time.Duration(s.building.Load())
}

// buildAll has tables built on several cores.
func (s *Store) buildAll(due []*job) {
	var next atomic.Int64
	var wg sync.WaitGroup
	builders := s.builders
	if builders == 0 {
		builders = runtime.GOMAXPROCS(0)
	}
	for range min(len(due), builders) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(due) {
					return
				}
				s.build(due[i])
			}
		})
	}
	wg.Wait()
}

func (j *job) build() {
	if len(j.set) == 0 {
		return
	}
	j.table = make([]uint16, j.size)
	fillTable(j.table, j.set)
	j.digest = digest(j.table, j.set)
}

// snapshot makes the snapshot of generation gen.
func (s *Store) snapshot() *Snapshot {
	if s.shape.services == nil {
		s.shape.services = make([]Service, max(1, len(s.services.all)))
		for i, v := range s.services.all {
			if v != nil && v.gen == 0 {
				s.shape.services[i] = v.Service
			}
		}
	}
	if s.shape.infos == nil {
		s.shape.infos = make([]ServiceInfo, max(1, len(s.services.all)))
		for i, v := range s.services.all {
			if v != nil && v.gen == 0 {
				s.shape.infos[i] = v.info(s.pools.all[v.Pool].base)
			}
		}
	}
	if s.shape.backends == nil {
		s.shape.backends = make([]Backend, max(1, len(s.backends.all)))
		for i, b := range s.backends.all {
			if b != nil && b.gen == 0 {
				s.shape.backends[i] = b.Backend
			}
		}
	}
	if s.shape.neighbours == nil {
		s.shape.neighbours = maps.Clone(s.neighbours)
	}
	n := &Snapshot{
		Generation: s.gen, VIPs: s.vips, Services: s.shape.services, Infos: s.shape.infos, Backends: s.shape.backends,
		Neighbours: s.shape.neighbours, match: s.matcher,
		Pools: make([]Pool, max(1, len(s.pools.all))), Words: make([]Word, s.words), Status: make([]atomic.Uint32, max(1, len(s.backends.all))),
	}
	n.Status[0].Store(uint32(Down))
	for i, p := range s.pools.all {
		if p == nil || p.gen != 0 {
			continue
		}
		if p.published == nil {
			p.published = make([]Member, len(p.members))
			for j, m := range p.members {
				if m != nil && m.gen == 0 {
					p.published[j] = Member{
						Backend: m.backend.ID, Weight: uint32(s.weightOf(m)), Name: m.name, Port: m.port,
						Health: m.health(), Status: m.status, Drained: s.drained(m), Removed: m.removed,
					}
				}
			}
		}
		n.Pools[i] = Pool{
			ID: p.id, Name: p.name, Members: p.published, Table: p.table, Seed: p.spec.HashSeed, Digest: p.digest,
			Check: p.spec.Health, FailOpen: p.spec.FailOpen, Usable: p.usable, base: p.base,
		}
		for j := range p.published {
			m := &p.published[j]
			if m.Backend != 0 && m.Health == Healthy && !m.Removed && !m.Drained && m.Weight > 0 {
				n.Pools[i].Healthy++
			}
		}
	}
	s.postAll(n)
	return n
}

func (v *service) info(base uint32) ServiceInfo {
	i := ServiceInfo{Base: base, Proto: v.Proto, Compact: v.Compact}
	switch {
	case v.prev != nil:
		i.Prev = v.prev.ID
	case v.Compact:
		i.Plain = uint64(base)<<8 | uint64(portClass(v.Proto))<<2
	}
	return i
}

// SetHealth takes what a check found out. A target that no pool names is ignored.
func (s *Store) SetHealth(t Target, h Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Addr = t.Addr.Unmap()
	k := s.targets[t]
	if k == nil || k.health == h {
		return
	}
	k.health = h
	pools := map[*pool]bool{}
	for _, m := range k.members {
		if h == Healthy {
			m.late = false
		}
		pools[m.pool] = true
	}
	s.changed(pools)
}

// SetStatus holds backend b at a status in all its pools, unless it is worse
// anyway; Up lets go.
func (s *Store) SetStatus(b uint32, st Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(b) >= uint64(len(s.backends.all)) || s.backends.all[b] == nil || s.backends.all[b].forced == st {
		return
	}
	k := s.backends.all[b]
	k.forced = st
	pools := map[*pool]bool{}
	for _, m := range k.members {
		pools[m.pool] = true
	}
	s.changed(pools)
}

// Drain drains a pool's backend by command, or lets it take new flows again,
// whatever the file says; keep makes it survive Apply.
func (s *Store) Drain(pool, name string, drain, keep bool) error {
	return s.override(pool, name, func(o *override) { o.drain, o.keepDrain = &drain, keep })
}

// SetWeight sets the weight, 0 to 1000, of a pool's backend by command; keep makes
// it survive Apply.
func (s *Store) SetWeight(pool, name string, weight int, keep bool) error {
	if weight < 0 || weight > 1000 {
		return fmt.Errorf("weight %d is not from 0 to 1000", weight)
	}
	return s.override(pool, name, func(o *override) { o.weight, o.keepWeight = &weight, keep })
}

// Restore takes back what Drain and SetWeight ordered for a pool's backend.
func (s *Store) Restore(pool, name string) error {
	return s.override(pool, name, func(o *override) { *o = override{} })
}

func (s *Store) override(poolName, name string, change func(*override)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.poolOf[poolName]
	if p == nil || !p.inFile {
		return fmt.Errorf("there is no pool %q", poolName)
	}
	for _, m := range p.members {
		if m == nil || m.removed || m.name != name {
			continue
		}
		k := [2]string{poolName, name}
		o := s.overrides[k]
		change(&o)
		s.overrides[k] = o
		s.changed(map[*pool]bool{p: true})
		return nil
	}
	return fmt.Errorf("pool %q has no backend %q", poolName, name)
}

// SetNeighbour says at which hardware address a gateway or a backend answers; ok
// is false when that is no longer known.
func (s *Store) SetNeighbour(a netip.Addr, mac [6]byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a = a.Unmap().WithZone("")
	if old, had := s.neighbours[a]; had == ok && (!ok || old == mac) {
		return
	}
	if ok {
		s.neighbours[a] = mac
	} else {
		delete(s.neighbours, a)
	}
	s.shape.neighbours = nil
	if b := s.backendOf[a]; b != nil {
		b.MAC, b.HasMAC = s.macOf(a)
		s.shape.backends = nil
	}
	s.later()
}

// SetMTU says which path MTU was learned for a backend; 0 forgets it.
func (s *Store) SetMTU(a netip.Addr, mtu uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.backendOf[a.Unmap()]; b != nil && b.MTU != mtu {
		b.MTU = mtu
		s.shape.backends = nil
		s.later()
	}
}

// Backend answers the number of the backend of that address, 0 if there is none.
func (s *Store) Backend(a netip.Addr) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.backendOf[a.Unmap()]; b != nil && b.gen == 0 {
		return b.ID
	}
	return 0
}

// memoBytes bounds the tables that are remembered.
const memoBytes = 96 << 20

// memo remembers tables by the set of members that they are over: a backend that
// comes back finds the table of before.
type memo struct {
	tables map[string]*memoEntry
	bytes  int
	clock  uint64
}

type memoTable struct {
	table  []uint16
	digest uint64
}

type memoEntry struct {
	memoTable
	used uint64
}

func (m *memo) find(key string) (memoTable, bool) {
	m.clock++
	e := m.tables[key]
	if e == nil {
		return memoTable{}, false
	}
	e.used = m.clock
	return e.memoTable, true
}

func (m *memo) add(key string, t memoTable) {
	if m.tables == nil {
		m.tables = map[string]*memoEntry{}
	}
	m.clock++
	m.tables[key] = &memoEntry{t, m.clock}
	m.bytes += 2 * len(t.table)
	for m.bytes > memoBytes && len(m.tables) > 1 {
		oldest := ""
		for k, e := range m.tables {
			if oldest == "" || e.used < m.tables[oldest].used {
				oldest = k
			}
		}
		m.bytes -= 2 * len(m.tables[oldest].table)
		delete(m.tables, oldest)
	}
}
