package state

import (
	"net/netip"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/io/packet"
)

// NoSlot in a Maglev table is a cell without a backend: no member is usable.
const NoSlot = 0xffff

// MaxSlots is the largest number of members of a pool, removed ones that still
// drain included.
const MaxSlots = 16383

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

// Cell is the one word behind which the current snapshot hangs. Load and Publish
// may be called from any goroutine.
type Cell struct{ p atomic.Pointer[Snapshot] }

// Load answers the current snapshot, never nil.
func (c *Cell) Load() *Snapshot {
	if s := c.p.Load(); s != nil {
		return s
	}
	return &empty
}

// Publish makes s the current snapshot by one atomic store.
func (c *Cell) Publish(s *Snapshot) { c.p.Store(s) }

var empty = Snapshot{
	Services: make([]Service, 1), Backends: make([]Backend, 1),
	Pools: make([]Pool, 1), Status: make([]atomic.Uint32, 1), match: &Matcher{},
}

// Snapshot is one consistent world. Index 0 of Services, Pools, Backends and
// Status is unused and stands for none.
type Snapshot struct {
	Generation uint64
	Services   []Service       // by service number
	Pools      []Pool          // by pool number
	Backends   []Backend       // by backend number
	Status     []atomic.Uint32 // by backend number; shared by successive snapshots
	// Neighbours are the hardware addresses of gateways that next_hop arguments name,
	// as far as they are known. What is derived from snapshots reads it, no packet.
	Neighbours map[netip.Addr][6]byte
	match      *Matcher
}

// StatusOf answers the status of backend b at this moment.
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
}

// A Pool is a set of backends and the Maglev table over its usable members.
// Members that were removed and still drain keep their slot.
type Pool struct {
	ID      uint32
	Name    string
	Members []Member // by slot; a slot is stable until swept; Backend 0 marks a free one
	Table   []uint16 // M cells: slot, or NoSlot in all of them
	Seed    uint64   // mixed into the selection hash
	Digest  uint64   // of Table and the members' addresses: equal on nodes that agree
}

// A Member is a pool's use of a backend.
type Member struct {
	Backend uint32
	Weight  uint32
	Name    string // POOL/NAME is what commands call it
}

// Select answers the slot of the pool that hash leads to; ok is false when no
// member is usable.
func (p *Pool) Select(hash uint64) (slot uint32, ok bool) {
	if len(p.Table) == 0 {
		return 0, false
	}
	s := p.Table[packet.Reduce(packet.Mix(hash^p.Seed, selectK), uint32(len(p.Table)))]
	return uint32(s), s != NoSlot
}

// selectK spreads the flow hash, mixed with the pool's seed, over the table. It is
// part of the selection's definition and will never change.
const selectK = 0xc0ac29b7c97c50dd

// A Backend is one address that flows are sent to, shared by all pools that name
// it.
type Backend struct {
	ID   uint32
	Addr netip.Addr
	// MAC is the next hop's hardware address where control/neigh resolved it;
	// valid if HasMAC.
	MAC    [6]byte
	HasMAC bool
	// MTU is the path MTU learned from errors about the tunnel; 0 if none.
	MTU uint32
}
