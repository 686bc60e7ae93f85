package state

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/lbgraph/lbgraph/io/packet"
)

// NoSlot in a Maglev table is a cell without a backend: no member is usable.
const NoSlot = 0xffff

// MaxSlots is the largest number of members of a pool, removed ones that still
// drain included.
const MaxSlots = 16383

// MaxServices is the largest number of services.
const MaxServices = 1<<24 - 1

// Status of a backend, as the packet plane sees it.
type Status uint32

const (
	// Up: takes new and old flows.
	Up Status = iota
	// Draining: keeps its flows and gets no new ones (drained by command, weight
	// 0, or removed from the file and within its grace).
	Draining
	// Down: gets nothing; its flows select again.
	Down
)

// String answers up, draining or down.
func (s Status) String() string { return [...]string{"up", "draining", "down"}[min(s, Down)] }

// Health is what checks found out about a backend.
type Health uint8

const (
	// Unknown: no check has decided yet.
	Unknown Health = iota
	// Healthy: enough checks in a row succeeded, or the pool has no check.
	Healthy
	// Unhealthy: enough checks in a row failed.
	Unhealthy
)

// String answers UNKNOWN, HEALTHY or UNHEALTHY.
func (h Health) String() string {
	return [...]string{"UNKNOWN", "HEALTHY", "UNHEALTHY"}[min(h, Unhealthy)]
}

// Cell is the one word behind which the current snapshot hangs. Its methods may be
// called from any goroutine.
type Cell struct {
	p        atomic.Pointer[Snapshot]
	mu       sync.Mutex
	sweepers []weak.Pointer[Sweeper]
}

// Load answers the current snapshot, never nil.
func (c *Cell) Load() *Snapshot {
	if s := c.p.Load(); s != nil {
		return s
	}
	return &empty
}

// Publish makes s the current snapshot by one atomic store.
func (c *Cell) Publish(s *Snapshot) { c.p.Store(s) }

// A Sweeper stands for one table that keeps numbers of services, pools, slots or
// backends longer than a vector, and says how far it has forgotten dead ones. A
// number is given out again only when all sweepers have passed the generation in
// which it died. A sweeper that is no longer referenced counts no more.
type Sweeper struct{ swept atomic.Uint64 }

// Swept says that the table holds no number any more that was dead in the snapshot
// of this generation.
func (s *Sweeper) Swept(generation uint64) { s.swept.Store(generation) }

// Sweeper registers a table, which is empty now. The table must keep the answer
// reachable for as long as it keeps numbers.
func (c *Cell) Sweeper() *Sweeper {
	s := new(Sweeper)
	s.Swept(c.Load().Generation)
	c.mu.Lock()
	c.sweepers = append(c.sweepers, weak.Make(s))
	c.mu.Unlock()
	return s
}

// swept answers the generation whose dead numbers no table holds any more.
func (c *Cell) swept() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	least, kept := ^uint64(0), c.sweepers[:0]
	for _, w := range c.sweepers {
		if s := w.Value(); s != nil {
			kept = append(kept, w)
			least = min(least, s.swept.Load())
		}
	}
	clear(c.sweepers[len(kept):])
	c.sweepers = kept
	return least
}

var empty = Snapshot{
	Services: make([]Service, 1), Backends: make([]Backend, 1),
	Pools: make([]Pool, 1), Status: make([]atomic.Uint32, 1),
}

// Snapshot is one consistent world. Index 0 of Services, Pools, Backends and
// Status is unused and stands for none. It is not changed after it was published,
// but for Status and Words, which are atomic.
type Snapshot struct {
	Generation uint64
	VIPs       []VIPSpec       // as declared
	Services   []Service       // by service number
	Pools      []Pool          // by pool number
	Backends   []Backend       // by backend number
	Status     []atomic.Uint32 // by backend number: the best of its pools
	// Neighbours are the hardware addresses of gateways that next_hop arguments name,
	// as far as they are known. What is derived from snapshots reads it, no packet.
	Neighbours map[netip.Addr][6]byte
	// Infos says, by service number, what a connection table must know; shorter
	// than Services where a snapshot was made by hand.
	Infos []ServiceInfo
	// Words is the members of all pools, one after the other: see Word.
	Words []Word

	match *Matcher
}

// StatusOf answers the best status that backend b has in any pool at this moment.
func (s *Snapshot) StatusOf(b uint32) Status {
	if int(b) >= len(s.Status) {
		return Down
	}
	return Status(s.Status[b].Load())
}

// Match answers how the destination of a packet is served; see Matcher.Match.
func (s *Snapshot) Match(dst packet.Addr, proto uint8, port uint16) (service uint32, verdict Verdict) {
	return s.match.Match(dst, proto, port)
}

// MatchAddr tells whether dst is an address of any enabled VIP: what counts for
// fragments and ICMP, which carry no port.
func (s *Snapshot) MatchAddr(dst packet.Addr) bool { return s.match.MatchAddr(dst) }

// Matcher answers the snapshot's matcher, never nil.
func (s *Snapshot) Matcher() *Matcher {
	if s.match == nil {
		return &noMatch
	}
	return s.match
}

var noMatch Matcher

// Member answers the backend that slot of the service's pool stands for, and its
// status there. Backend 0, which is Down, stands for numbers that are dead.
func (s *Snapshot) Member(service, slot uint32) (backend uint32, status Status) {
	if uint64(service) >= uint64(len(s.Infos)) {
		return 0, Down
	}
	base := s.Infos[service].Base
	if i := uint64(base) + uint64(slot); base != 0 && i < uint64(len(s.Words)) {
		return s.Words[i].Load()
	}
	return 0, Down
}

// Choose selects a member of a pool for a new flow. It is Pool.Select, except that
// a member which went down or began to drain since the table was built is passed
// over: then some cells behind the selected one are asked, then all members in
// turn. ok is false when no member is usable.
func (s *Snapshot) Choose(pool uint32, hash uint64) (slot, backend uint32, ok bool) {
	if uint64(pool) >= uint64(len(s.Pools)) {
		return 0, 0, false
	}
	p := &s.Pools[pool]
	at, ok := p.cell(hash)
	if !ok || uint64(p.base)+uint64(len(p.Members)) > uint64(len(s.Words)) {
		return 0, 0, false
	}
	words := s.Words[p.base:][:len(p.Members)]
	for i := at; i < at+32; i++ {
		slot = uint32(p.Table[i%uint32(len(p.Table))])
		if int(slot) < len(words) {
			if b, st := words[slot].Load(); st == Up {
				return slot, b, true
			}
		}
	}
	for range words {
		if slot++; int(slot) >= len(words) {
			slot = 0
		}
		if b, st := words[slot].Load(); st == Up {
			return slot, b, true
		}
	}
	return 0, 0, false
}

// A Word is one member of a pool for the packet plane: its backend's number and
// its status in this pool, read and written together.
type Word struct{ w atomic.Uint32 }

// Load answers the member. Backend 0, Down, marks a slot that is free or dead.
func (w *Word) Load() (backend uint32, status Status) {
	v := w.w.Load()
	return v >> 2, Status(v & 3)
}

func (w *Word) store(backend uint32, status Status) { w.w.Store(backend<<2 | uint32(status)) }

// ServiceInfo is what a connection table knows of a service.
type ServiceInfo struct {
	// Base is the index in Words of slot 0 of the service's pool; 0 when the
	// service's number is dead.
	Base uint32
	// Prev is the number that this address, protocol and port had while it led to
	// another pool, as long as old flows may still stay there; 0 is none.
	Prev    uint32
	Proto   uint8 // as in Service
	Compact bool  // as in Service
	// Plain is for compact services without Prev: Base<<8 | class<<2, class being 0
	// for TCP, 1 for UDP and 2 for others. It is 0 for all other services.
	Plain uint64
}

// A Service is one address (or prefix), protocol and port (or range) that leads
// to a pool. A VIP block with a list of ports makes one service for each.
type Service struct {
	ID       uint32
	VIP      string // name of the VIP block
	Prefix   netip.Prefix
	Proto    uint8 // 0 is any
	Lo, Hi   uint16
	Pool     uint32 // pool number
	Affinity bool   // select by the client's address alone
	// Compact services are one IPv4 address, one protocol and one port, with a
	// number below 65536: a connection entry needs no more of them than the number.
	Compact bool
	// Leave: a wrong port or protocol is left to the kernel.
	Leave bool
	// Enabled services match packets. Others belong to a disabled VIP, or were
	// replaced and are kept for the flows that they have.
	Enabled bool
	// Spec is the index of the VIP block in Snapshot.VIPs; −1 for services that
	// were replaced.
	Spec int
}

// A Pool is a set of backends and the Maglev table over its usable members.
// Members that were removed and still drain keep their slot.
type Pool struct {
	ID      uint32
	Name    string
	Members []Member // by slot; a slot is stable until swept; Backend 0 marks a free one
	Table   []uint16 // M cells of slots, or nil when no member is usable
	Seed    uint64   // mixed into the selection hash
	Digest  uint64   // of Table, Seed and the members' addresses: equal on nodes that agree

	Check    string // name of the health block, or ""
	FailOpen bool
	Usable   int // members that the table is over
	// Healthy counts the members that may get new flows and are Healthy.
	Healthy int

	base uint32
}

// A Member is a pool's use of a backend.
type Member struct {
	Backend uint32
	Weight  uint32
	Name    string // POOL/NAME is what commands call it
	Port    int    // for streams and checks; 0 if none
	Health  Health
	Status  Status // when the snapshot was built
	Drained bool   // by the file or by command
	Removed bool   // from the file, and within its grace
}

// Target is what is checked: a backend, by one health block. Pools that share both
// share the result.
type Target struct {
	Check string
	Addr  netip.Addr
	Port  int // as the backend block says; 0 if it does not
}

// Targets answers what health checks have to probe, each target once.
func (s *Snapshot) Targets() []Target {
	var all []Target
	seen := map[Target]bool{}
	for i := range s.Pools {
		p := &s.Pools[i]
		for j := range p.Members {
			m := &p.Members[j]
			if p.Check == "" || m.Backend == 0 || m.Removed {
				continue
			}
			t := Target{p.Check, s.Backends[m.Backend].Addr, m.Port}
			if !seen[t] {
				seen[t] = true
				all = append(all, t)
			}
		}
	}
	return all
}

// Find answers the pool and the member that commands call pool/name; ok is false
// when there is none.
func (s *Snapshot) Find(pool, name string) (p *Pool, slot uint32, ok bool) {
	for i := range s.Pools {
		if s.Pools[i].Name != pool || s.Pools[i].ID == 0 {
			continue
		}
		for j := range s.Pools[i].Members {
			if m := &s.Pools[i].Members[j]; m.Name == name && m.Backend != 0 && !m.Removed {
				return &s.Pools[i], uint32(j), true
			}
		}
	}
	return nil, 0, false
}

// Select answers the slot of the pool that hash leads to; ok is false, and slot NoSlot,
// when no member is usable. It is small enough to be inlined.
func (p *Pool) Select(hash uint64) (slot uint32, ok bool) {
	slot = NoSlot
	if at, ok := p.cell(hash); ok {
		slot = uint32(p.Table[at])
	}
	return slot, slot != NoSlot
}

// Cell answers the cell of the table that Select reads, so that it can be
// prefetched; nil when no member is usable.
func (p *Pool) Cell(hash uint64) *uint16 {
	at, ok := p.cell(hash)
	if !ok {
		return nil
	}
	return &p.Table[at]
}

// Of answers the backend of a slot of p, a pool of s, and its status there.
func (s *Snapshot) Of(p *Pool, slot uint32) (backend uint32, status Status) {
	if i := uint64(p.base) + uint64(slot); p.base != 0 && i < uint64(len(s.Words)) {
		return s.Words[i].Load()
	}
	return 0, Down
}

// cell answers the index of the table's cell for hash.
func (p *Pool) cell(hash uint64) (at uint32, ok bool) {
	at = packet.Reduce(packet.Mix(hash^p.Seed, SelectK), uint32(len(p.Table)))
	return at, int(at) < len(p.Table)
}

// SelectK spreads the flow hash, mixed with the pool's seed, over the table. It is
// part of the selection's definition and will never change.
const SelectK = 0xc0ac29b7c97c50dd

// A Backend is one address that flows are sent to, shared by all pools that name
// it.
type Backend struct {
	ID   uint32
	Addr netip.Addr
	// MAC is the next hop's hardware address where control/neigh resolved it;
	// valid if HasMAC.
	MAC    [6]byte
	HasMAC bool
	// NoRoute is set where the kernel has no way to the backend, as far as
	// control/neigh follows it.
	NoRoute bool
	// MTU is the path MTU learned from errors about the tunnel; 0 if none.
	MTU uint32
}
