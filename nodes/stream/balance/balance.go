// Package balance is the kind "balance": it chooses a backend of a pool.
package balance

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of balance.
type Config struct {
	Pool      string        `hcl:"pool" ref:"pool" doc:"the pool whose backends share the sessions"`
	Algorithm string        `hcl:"algorithm,optional" enum:"round-robin,least-connections,random-two,source,hash" doc:"how one is chosen, by weight in each case: in turn; the least busy; the less busy of two at random; by the client's address; by the hash key. The last two use the pool's Maglev table"`
	Key       string        `hcl:"key,optional" doc:"what hash takes of a request: target, path, host, or header:NAME"`
	Port      int           `hcl:"port,optional" range:"0,65535" doc:"port of backends that have none in the pool"`
	SlowStart time.Duration `hcl:"slow_start,optional" range:"0s,1h" doc:"time in which a backend that comes back works up to its share; not for source and hash"`
	EjectFor  time.Duration `hcl:"eject_for,optional" range:"0s,1h" doc:"time for which a backend is left out that failed eject_after sessions in a row; 0s never leaves out"`
	EjectAt   int           `hcl:"eject_after,optional" range:"1,1000" doc:"failures in a row after which it is left out; never more than half of the pool"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "balance",
		Summary: "chooses a backend of a pool for a connection or a request",
		Needs:   graph.Conn,
		Outputs: []graph.Output{
			next:      {Name: "next", Gives: graph.Pool, Doc: "sessions with a backend"},
			noBackend: {Name: "no_backend", Else: graph.Drop, Status: 503, Doc: "no backend is usable"},
		},
		Counters: []graph.Counter{
			ejected:  {Name: "ejected", Doc: "backends left out for failures in a row"},
			keptHalf: {Name: "ejection_withheld", Doc: "backends that were not left out, for half of the pool is already"},
		},
		Defaults: Config{Algorithm: "round-robin", Key: "target", SlowStart: 10 * time.Second, EjectFor: 10 * time.Second, EjectAt: 5},
		Check:    check,
		Dials:    func(c Config) (string, int) { return c.Pool, c.Port },
		Streams:  build,
	})
}

// Output numbers.
const (
	next = iota
	noBackend
)

// Counter numbers.
const (
	ejected = iota
	keptHalf
)

func check(c Config) error {
	switch name, isHeader := strings.CutPrefix(c.Key, "header:"); {
	case isHeader && !http1.ValidName(name):
		return graph.BadArgument("key", "key = %q: %q is no field name", c.Key, name)
	case !isHeader && c.Key != "target" && c.Key != "path" && c.Key != "host":
		return graph.BadArgument("key", "key = %q: write target, path, host or header:NAME", c.Key)
	}
	return nil
}

func build(c Config, e *graph.Env) (stream.Stage, error) {
	b := &balancer{c: c, env: e, turn: new(atomic.Uint64), ejections: &ejections{until: map[*stream.Backend]*atomic.Int64{}}}
	b.header, _ = strings.CutPrefix(c.Key, "header:")
	b.header = strings.ToLower(b.header)
	e.Watch(b.update)
	return b, nil
}

type balancer struct {
	c      Config
	env    *graph.Env
	header string
	turn   *atomic.Uint64
	view   atomic.Pointer[view]

	mu        sync.Mutex // while the view is made
	ejections *ejections
}

// ejections is which backends a node leaves out, over its reloads. It is the node's
// own: what another pool left out must not take more than half of this one.
type ejections struct {
	mu    sync.Mutex
	until map[*stream.Backend]*atomic.Int64 // of the backends in the pool
}

// view is the pool as a snapshot has it.
type view struct {
	snap    *state.Snapshot
	pool    uint32
	members []member // that could be used when it was made
	bySlot  []*member
	order   []uint16 // members in their turn, as often as their weights say
}

type member struct {
	*stream.Backend
	slot   uint32
	weight float64
	out    *atomic.Int64 // the time until which it is left out
}

// Inherit is part of graph.StageInheritor.
func (b *balancer) Inherit(old stream.Stage) {
	o := old.(*balancer)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn = o.turn
	if o.c.Pool == b.c.Pool {
		b.ejections = o.ejections
		b.look(b.view.Load().snap)
	}
}

// update takes over a snapshot.
func (b *balancer) update(s *state.Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(s)
}

// look makes the view of a snapshot.
func (b *balancer) look(s *state.Snapshot) {
	v := &view{snap: s}
	old := b.view.Load()
	var p *state.Pool
	for i := range s.Pools {
		if s.Pools[i].ID != 0 && s.Pools[i].Name == b.c.Pool {
			p, v.pool = &s.Pools[i], uint32(i)
		}
	}
	until := map[*stream.Backend]*atomic.Int64{}
	b.ejections.mu.Lock()
	defer b.ejections.mu.Unlock()
	if p != nil {
		v.bySlot = make([]*member, len(p.Members))
		v.members = make([]member, 0, len(p.Members)) // never moves: bySlot points into it
		for i := range p.Members {
			m := &p.Members[i]
			port := m.Port
			if port == 0 {
				port = b.c.Port
			}
			if m.Backend == 0 || port == 0 { // the checker tells of backends without a port
				continue
			}
			k := b.env.Backends(netip.AddrPortFrom(s.Backends[m.Backend].Addr, uint16(port)))
			if until[k] = b.ejections.until[k]; until[k] == nil {
				until[k] = new(atomic.Int64)
			}
			if m.Status != state.Up {
				continue
			}
			if old != nil && !old.has(k) && old.snap.Generation > 0 && len(old.members) > 0 {
				k.UpSince.Store(stream.Now())
			}
			v.members = append(v.members, member{k, uint32(i), float64(max(m.Weight, 1)), until[k]})
			v.bySlot[i] = &v.members[len(v.members)-1]
		}
	}
	b.ejections.until = until
	v.order = order(v.members)
	b.view.Store(v)
}

func (v *view) has(b *stream.Backend) bool {
	for i := range v.members {
		if v.members[i].Backend == b {
			return true
		}
	}
	return false
}

// up tells whether m may get a session now; with stream.Never for now, whether it
// may if what is left out is not.
func (v *view) up(m *member, s *stream.Session, now int64) bool {
	if _, st := v.snap.PoolMember(v.pool, m.slot); st != state.Up {
		return false
	}
	return m.out.Load() <= now && !(len(s.Tried) > 0 && s.HasTried(m.Backend))
}

// Serve is part of stream.Stage.
func (b *balancer) Serve(_ context.Context, s *stream.Session) (int, error) {
	s.Route = b.env.Node
	k := b.Pick(s)
	if k == nil {
		return noBackend, nil
	}
	s.Choose(k, b)
	return next, nil
}

// Pick is part of stream.Picker.
func (b *balancer) Pick(s *stream.Session) *stream.Backend {
	v := b.view.Load()
	if len(v.members) == 0 {
		return nil
	}
	m := b.choose(v, s, stream.Now())
	if m == nil && len(s.Tried) == 0 {
		// All that is not left out went away since. What failed often may do better
		// than nothing.
		m = b.least(v, s, stream.Never)
	}
	if m == nil {
		return nil
	}
	m.Total.Add(1)
	return m.Backend
}

func (b *balancer) choose(v *view, s *stream.Session, now int64) *member {
	switch b.c.Algorithm {
	case "round-robin":
		return b.inTurn(v, s, now)
	case "least-connections":
		return b.least(v, s, now)
	case "random-two":
		return b.two(v, s, now)
	}
	if m := b.hashed(v, s, now); m != nil {
		return m
	}
	return b.least(v, s, now)
}

// inTurn goes on in the order. A backend that works up to its share is passed over
// now and then.
func (b *balancer) inTurn(v *view, s *stream.Session, now int64) *member {
	var spare *member
	for range v.order {
		m := &v.members[v.order[(b.turn.Add(1)-1)%uint64(len(v.order))]]
		if !v.up(m, s, now) {
			continue
		}
		if share := b.share(m, now); share < 1 && rand.Float64() >= share {
			spare = m
			continue
		}
		return m
	}
	if spare != nil {
		return spare
	}
	// Others took turns meanwhile, so that all of this session's may have fallen on
	// backends that it cannot have.
	return b.least(v, s, now)
}

// share is what part of its weight a backend counts with.
func (b *balancer) share(m *member, now int64) float64 {
	since := m.UpSince.Load()
	if since == 0 || b.c.SlowStart == 0 || now-since >= int64(b.c.SlowStart) {
		return 1
	}
	return max(0.05, float64(now-since)/float64(b.c.SlowStart))
}

// load is what a further session would make of a backend's load, by its weight.
func (b *balancer) load(m *member, now int64) float64 {
	return float64(m.Active.Load()+1) / (m.weight * b.share(m, now))
}

// least takes the backend of least load; equal ones in turn.
func (b *balancer) least(v *view, s *stream.Session, now int64) *member {
	return b.leastFrom(v, s, now, b.turn.Add(1))
}

func (b *balancer) leastFrom(v *view, s *stream.Session, now int64, turn uint64) (best *member) {
	n := len(v.members)
	from := int(turn % uint64(n))
	lowest := 0.0
	for i := range n {
		m := &v.members[(from+i)%n]
		if !v.up(m, s, now) {
			continue
		}
		if l := b.load(m, now); best == nil || l < lowest {
			best, lowest = m, l
		}
	}
	return best
}

// two takes two backends at random, and the one of less load.
func (b *balancer) two(v *view, s *stream.Session, now int64) *member {
	n := len(v.members)
	var a *member
	for range 16 {
		m := &v.members[rand.IntN(n)]
		switch {
		case m == a || !v.up(m, s, now):
		case a == nil:
			a = m
		case b.load(m, now) < b.load(a, now):
			return m
		default:
			return a
		}
	}
	if a == nil {
		return b.least(v, s, now)
	}
	return a
}

// hashed takes the backend that the pool's table has for the session's key; if it
// is left out, that which it has for the hash of the hash, and so on; nil if none of
// many is to be had.
func (b *balancer) hashed(v *view, s *stream.Session, now int64) *member {
	h := b.hash(s)
	for range 16 {
		slot, _, ok := v.snap.Choose(v.pool, h)
		if ok && int(slot) < len(v.bySlot) && v.bySlot[slot] != nil {
			if m := v.bySlot[slot]; v.up(m, s, now) {
				return m
			}
		}
		h = packet.Mix(h, rehash)
	}
	return nil
}

// rehash makes another hash of a hash; it will never change, for nodes have to agree.
const rehash = 0x9e3779b97f4a7c15

func (b *balancer) hash(s *stream.Session) uint64 {
	if b.c.Algorithm == "source" || s.Req == nil {
		a := s.Client.Remote.Addr().As16()
		return fnv(a[:])
	}
	r := s.Req
	switch b.c.Key {
	case "target":
		return fnv(r.Target.In(r.Buf))
	case "path":
		return fnv(r.Path.In(r.Buf))
	case "host":
		name, _ := http1.SplitHost(r.Host.In(r.Buf))
		return fnv(name)
	}
	for i := range r.Fields {
		if f := &r.Fields[i]; http1.EqualFold(f.Name(r.Buf), b.header) {
			return fnv(f.Text(r.Buf))
		}
	}
	a := s.Client.Remote.Addr().As16()
	return fnv(a[:])
}

// fnv is FNV-1a of 64 bits, of letters in lower case, so that hosts agree; mixed, for
// its high bits are weak.
func fnv(p []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, c := range p {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return packet.Mix(h, rehash)
}

// Report is part of stream.Picker.
func (b *balancer) Report(k *stream.Backend, failed bool) {
	if !failed {
		if k.Streak.Load() != 0 {
			k.Streak.Store(0)
		}
		return
	}
	k.Failures.Add(1)
	if int(k.Streak.Add(1)) >= b.c.EjectAt && b.c.EjectFor > 0 {
		b.eject(k)
	}
}

// eject leaves k out for a while, unless that would be more than half of what is
// usable.
func (b *balancer) eject(k *stream.Backend) {
	b.mu.Lock()
	x, v := b.ejections, b.view.Load()
	b.mu.Unlock()
	x.mu.Lock() // nobody counts while another is left out
	defer x.mu.Unlock()
	now := stream.Now()
	var m *member
	out := 1
	for i := range v.members {
		switch o := &v.members[i]; {
		case o.Backend == k:
			m = o
		case o.out.Load() > now:
			out++
		}
	}
	if m == nil || m.out.Load() > now {
		return
	}
	k.Streak.Store(0)
	if 2*out > len(v.members) {
		b.env.Count(keptHalf, 1)
		return
	}
	until := now + int64(b.c.EjectFor)
	m.out.Store(until)
	k.Ejected.Store(until)
	b.env.Count(ejected, 1)
	b.env.Log.Warn("a backend is left out for failures in a row", zap.Stringer("backend", k.Addr), zap.Duration("time", b.c.EjectFor))
}
