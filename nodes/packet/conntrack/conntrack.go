// Package conntrack is the kind "conntrack": it remembers which backend a flow
// went to, so that the flow stays there whatever happens to the table of its pool.
package conntrack

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/prefetch"
)

// Config is the arguments of the kind.
type Config struct {
	Entries  int      `hcl:"entries,optional" range:"1024,16777216" doc:"flows that a core remembers, a power of two"`
	Timeouts Timeouts `hcl:"timeouts,block" doc:"how long a flow is remembered after its last packet"`
	NewFlows int      `hcl:"new_flows,optional" range:"0," doc:"flows that a core begins to remember in a second; 0 is no cap"`
}

// Timeouts are times to live by protocol and state.
type Timeouts struct {
	TCPHandshake   time.Duration `hcl:"tcp_handshake,optional" range:"100ms,168h" doc:"TCP, while only a SYN or one packet was seen"`
	TCPEstablished time.Duration `hcl:"tcp_established,optional" range:"100ms,168h" doc:"TCP, after that"`
	TCPClosing     time.Duration `hcl:"tcp_closing,optional" range:"100ms,168h" doc:"TCP, after a FIN or RST"`
	UDP            time.Duration `hcl:"udp,optional" range:"100ms,168h" doc:"UDP"`
	Other          time.Duration `hcl:"other,optional" range:"100ms,168h" doc:"other protocols"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "conntrack",
		Summary: "remembers which backend a flow went to and leads its later packets there",
		Needs:   graph.L3 | graph.Flow | graph.VIP,
		Forbids: graph.Backend | graph.Sent,
		Outputs: []graph.Output{
			hit:  {Name: "hit", Gives: graph.Backend, Doc: "packets of known flows, with their backend"},
			miss: {Name: "miss", Doc: "packets whose backend is to be selected"},
		},
		Counters: []graph.Counter{
			cHits:        {Name: "hits", Doc: "packets that found their flow"},
			cMisses:      {Name: "misses", Doc: "packets that did not"},
			cInserts:     {Name: "inserts", Doc: "flows that were entered"},
			cRepinned:    {Name: "repinned", Doc: "entries led to another backend because theirs was down or gone"},
			cReselected:  {Name: "reselected", Doc: "entries that a SYN began anew: closing, out of time, or on a draining backend"},
			cEstablished: {Name: "established", Doc: "entries that went from handshake to established"},
			cClosed:      {Name: "closed", Doc: "entries that went to closing, by FIN or RST"},
			cExpired:     {Name: "expired", Doc: "entries removed because their time was over"},
			cDied:        {Name: "died", Doc: "entries removed because their service or backend is gone"},
			cFlushed:     {Name: "flushed", Doc: "entries removed by command"},
			cEvHandshake: {Name: "evicted_handshake", Doc: "entries in handshake that made room"},
			cEvClosing:   {Name: "evicted_closing", Doc: "closing entries that made room"},
			cFull:        {Name: "full", Doc: "flows that were not entered because there was no room; their packets go by the table"},
			cCapped:      {Name: "capped", Doc: "flows that were not entered because of new_flows; their packets go by the table"},
			cRelated:     {Name: "related", Doc: "ICMP errors that found the flow they speak of"},
			cVisits:      {Name: "visits", Doc: "ICMP errors sent to another core to look there"},
			cNoVisit:     {Name: "visits_limited", Doc: "ICMP errors that were not, because of the limit or a full ring"},
			cLost:        {Name: "resize_lost", Doc: "entries for which a smaller table had no room"},
		},
		Defaults: Config{
			Entries: 131072,
			Timeouts: Timeouts{
				TCPHandshake: 5 * time.Second, TCPEstablished: 60 * time.Second, TCPClosing: 10 * time.Second,
				UDP: 30 * time.Second, Other: 30 * time.Second,
			},
		},
		Check: func(c Config) error {
			if c.Entries&(c.Entries-1) != 0 {
				return fmt.Errorf("entries is %d and must be a power of two", c.Entries)
			}
			return nil
		},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			return func(core graph.Core) (graph.Node, error) { return newNode(c, core, env.State) }, nil
		},
	})
}

// Output numbers.
const (
	hit = iota
	miss
)

// Counter numbers.
const (
	cHits = iota
	cMisses
	cInserts
	cRepinned
	cReselected
	cEstablished
	cClosed
	cExpired
	cDied
	cFlushed
	cEvHandshake
	cEvClosing
	cFull
	cCapped
	cRelated
	cVisits
	cNoVisit
	cLost
)

const (
	// chunk is how many lanes are looked up side by side.
	chunk = 16
	// evictReach is how many buckets are searched for an entry to evict: a table full
	// of established flows must not make new ones slow.
	evictReach = 4
	// visitRate and visitBurst bound the ICMP errors that a core sends to others.
	visitRate, visitBurst = 1000, 64
	// A gap in the clock longer than this is made up for by looking at all entries
	// at once: their 16-bit stamps would become ambiguous.
	longGap = int64(30 * time.Second)
)

// node is the worker of one core.
type node struct {
	core    graph.Core
	cfg     Config
	sweeper *state.Sweeper
	clk     clock
	last    int64 // the clock, which never goes back
	class   [256]uint8

	cur *tables
	// old is what a resized table still holds; it empties bucket by bucket.
	old    *tables
	oldClk clock
	moved  uint32 // buckets of old that are empty

	swept   uint32 // buckets of cur that this round of the sweep has passed
	sweptIn uint64 // generation when the round began

	second, inSecond int64 // for new_flows
	visits           float64
	visitsAt         int64

	// Of the snapshot in hand.
	infos []state.ServiceInfo
	words []state.Word

	// Of the chunk in hand.
	lane [chunk]uint8
	id   [chunk]uint64
	hash [chunk]uint64
	at   [chunk]unsafe.Pointer
	far  [2 * chunk]unsafe.Pointer
}

func newNode(c Config, core graph.Core, cell *state.Cell) (*node, error) {
	t, err := newTables(c.Entries)
	if err != nil {
		return nil, err
	}
	n := &node{core: core, cfg: c, sweeper: cell.Sweeper(), clk: newClock(&c.Timeouts), cur: t, visits: visitBurst}
	for p := range n.class {
		n.class[p] = other
	}
	n.class[packet.ProtoTCP], n.class[packet.ProtoUDP] = tcp, udp
	n.last = core.Now()
	n.clk.set(n.last)
	return n, nil
}

// Close gives the table's memory back. The node is not used any more.
func (n *node) Close() error {
	for _, t := range []*tables{n.cur, n.old} {
		if t != nil {
			t.free()
		}
	}
	n.cur, n.old, n.sweeper = nil, nil, nil
	return nil
}

// begin takes over the clock and the snapshot of the vector in hand.
func (n *node) begin(now int64) {
	s := n.core.State()
	n.infos, n.words = s.Infos, s.Words
	if now > n.last {
		gap := now - n.last
		n.last = now
		n.clk.set(now)
		if gap > longGap {
			n.recover(gap)
		}
	}
}

// kind answers the class and state of an entry as an index of the clock.
func (n *node) kind(proto uint8, w uint32) uint32 { return uint32(n.class[proto])<<2 | w>>30 }

// Process is part of graph.Node.
func (n *node) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[miss]
	n.begin(v.Now)
	hits := n.look(v, in)
	missed := in &^ hits
	if n.core.Cores() > 1 {
		for l := missed; l != 0; l &= l - 1 {
			if i := l.Next() & 63; v.Flags[i]&packet.Related != 0 {
				v.Slot[i] = 0
				if n.mayVisit() {
					v.Slot[i] = uint32(n.core.Cores() - 1)
				}
				if n.visit(v, i) {
					missed &^= packet.Lane(i)
				} else {
					n.core.Count(cNoVisit, 1)
				}
			}
		}
	}
	n.answer(hits, missed, out)
}

func (n *node) answer(hits, missed packet.Lanes, out []packet.Lanes) {
	if hits != 0 {
		n.core.Count(cHits, uint64(hits.Count()))
		out[hit] = hits
	}
	if missed != 0 {
		n.core.Count(cMisses, uint64(missed.Count()))
		out[miss] = missed
	}
}

// Arrive is part of graph.Arriver: ICMP errors that look for their flow here.
func (n *node) Arrive(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[miss]
	n.begin(v.Now)
	hits := n.look(v, in)
	missed := in &^ hits
	for l := missed; l != 0; l &= l - 1 {
		if i := l.Next() & 63; n.visit(v, i) {
			missed &^= packet.Lane(i)
		}
	}
	n.answer(hits, missed, out)
}

// visit sends a lane to the next core, as long as its Slot says that there are
// cores left that it was not on. Slot has no other meaning before a backend is
// chosen.
func (n *node) visit(v *packet.Vector, i int) bool {
	left := v.Slot[i]
	v.Slot[i] = 0
	if left == 0 || int(left) >= n.core.Cores() {
		return false
	}
	v.Slot[i] = left - 1
	if !n.core.Pass((n.core.ID()+1)%n.core.Cores(), v, i, -1) {
		v.Slot[i] = 0
		return false
	}
	n.core.Count(cVisits, 1)
	return true
}

func (n *node) mayVisit() bool {
	n.visits = min(visitBurst, n.visits+float64(n.last-n.visitsAt)*visitRate/1e9)
	n.visitsAt = n.last
	if n.visits < 1 {
		return false
	}
	n.visits--
	return true
}

// look finds the flows of the lanes in, enters backend and slot of those that it
// finds, and answers them.
func (n *node) look(v *packet.Vector, in packet.Lanes) (hits packet.Lanes) {
	lines := n.cur.compact.lines
	for rest := in; rest != 0; {
		k := 0
		var wide packet.Lanes
		for c := 0; rest != 0 && c < chunk; c++ {
			i := rest.Next() & 63
			rest &= rest - 1
			id := v.VIP[i]
			if uint64(id) >= uint64(len(n.infos)) {
				continue
			}
			if !n.infos[id].Compact || v.Flags[i]&packet.V6 != 0 {
				wide |= packet.Lane(i)
				continue
			}
			key := uint64(id)<<48 | uint64(v.SPort[i])<<32 | v.Src[i].Lo&0xffffffff
			hash := hashCompact(&n.cur.keys, key)
			n.lane[k], n.id[k], n.hash[k] = uint8(i), key, hash
			n.at[k] = unsafe.Pointer(&lines[packet.Reduce(hash, uint32(len(lines)))])
			k++
		}
		prefetch.Lines(n.at[:k])
		for j := range k {
			i := int(n.lane[j&(chunk-1)]) & 63
			key := n.id[j&(chunk-1)]
			l := (*line)(n.at[j&(chunk-1)])
			p := l.place(key)
			if p == 0 {
				if l.over != 0 || n.old != nil || n.infos[v.VIP[i]].Prev != 0 {
					id := ident{hash: n.hash[j&(chunk-1)], compact: key}
					if n.slow(v, i, &id) {
						hits |= packet.Lane(i)
					}
				}
				continue
			}
			st := &l.st[p-1]
			w := *st
			c := n.kind(v.Proto[i], w)
			at := uint64(n.infos[v.VIP[i]].Base) + uint64(slotOf(w))
			if at >= uint64(len(n.words)) {
				continue
			}
			backend, status := n.words[at].Load()
			const odd = packet.FIN | packet.SYN | packet.RST
			age := n.clk.age(c, w)
			if uint32(v.TCP[i]&odd)|uint32(status)|(w>>30^established)|uint32(v.Flags[i]&packet.Related) == 0 && age <= n.clk.ttl[c&15] {
				if age != 0 {
					*st = w&0xffff0000 | uint32(n.clk.now[c&15])
				}
				v.Backend[i], v.Slot[i] = backend, slotOf(w)
				hits |= packet.Lane(i)
			} else if n.judge(v, i, st, backend, status, false) {
				hits |= packet.Lane(i)
			}
		}
		if wide != 0 {
			hits |= n.lookWide(v, wide)
		}
	}
	return hits
}

// lookWide is look for a few lanes with wide keys.
func (n *node) lookWide(v *packet.Vector, in packet.Lanes) (hits packet.Lanes) {
	t := &n.cur.full
	var ids [chunk]ident
	k := 0
	for l := in; l != 0 && k < chunk; l &= l - 1 {
		i := l.Next() & 63
		n.lane[k] = uint8(i)
		n.wideIdent(v, i, v.VIP[i], &n.cur.keys, &ids[k])
		n.at[k] = unsafe.Pointer(&t.wide[t.home(ids[k].hash)])
		k++
	}
	prefetch.Lines(n.at[:k])
	m := 0
	for j := range k {
		l, tag := (*wideLine)(n.at[j]), tagOf(ids[j].hash)
		for s := range l.tag {
			if l.tag[s] == tag && l.st[s] != 0 {
				n.far[m] = unsafe.Pointer(&l.key[s])
				n.far[m+1] = unsafe.Pointer(&l.key[s].rest)
				m += 2
				break
			}
		}
	}
	prefetch.Lines(n.far[:m])
	for j := range k {
		if i := int(n.lane[j]) & 63; n.slow(v, i, &ids[j]) {
			hits |= packet.Lane(i)
		}
	}
	return hits
}

// wideIdent makes the wide key of lane i under a service number.
func (n *node) wideIdent(v *packet.Vector, i int, service uint32, keys *[6]uint64, id *ident) {
	id.wide = true
	id.full = wideKey{
		src: v.Src[i], dst: v.Dst[i],
		rest: uint64(v.SPort[i])<<48 | uint64(v.DPort[i])<<32 | uint64(v.Proto[i])<<24 | uint64(service&state.MaxServices),
	}
	id.hash = hashWide(keys, &id.full)
}

// ident makes the key of lane i under a service number.
func (n *node) ident(v *packet.Vector, i int, service uint32, keys *[6]uint64) (id ident) {
	if n.infos[service].Compact && v.Flags[i]&packet.V6 == 0 {
		id.compact = uint64(service)<<48 | uint64(v.SPort[i])<<32 | v.Src[i].Lo&0xffffffff
		id.hash = hashCompact(keys, id.compact)
		return id
	}
	n.wideIdent(v, i, service, keys, &id)
	return id
}

// locate answers where id stands in the current table; what the old one still has
// is moved first. s is −1 when it stands nowhere.
func (n *node) locate(id *ident) (t *table, b uint32, s int) {
	t = n.cur.of(id)
	if b, s = t.find(id); s < 0 && n.old != nil {
		was := *id
		if was.wide {
			was.hash = hashWide(&n.old.keys, &was.full)
		} else {
			was.hash = hashCompact(&n.old.keys, was.compact)
		}
		if o := n.old.of(&was); o != nil {
			if ob, os := o.find(&was); os >= 0 && n.move(o, ob, os) {
				b, s = t.find(id)
			}
		}
	}
	return t, b, s
}

// slow finds a flow that is not in its home line, and answers whether it is a hit.
func (n *node) slow(v *packet.Vector, i int, id *ident) bool {
	service, prev := v.VIP[i], false
	t, b, s := n.locate(id)
	if s < 0 {
		if service = n.infos[service].Prev; service == 0 || uint64(service) >= uint64(len(n.infos)) {
			return false
		}
		was := n.ident(v, i, service, &n.cur.keys)
		if t, b, s = n.locate(&was); s < 0 {
			return false
		}
		prev = true
	}
	st, _ := t.bucket(b)
	backend, status := n.member(service, slotOf(st[s]))
	if !n.judge(v, i, &st[s], backend, status, prev) {
		return false
	}
	v.VIP[i] = service
	return true
}

// member answers the backend of a slot, and its status.
func (n *node) member(service, slot uint32) (uint32, state.Status) {
	if uint64(service) < uint64(len(n.infos)) {
		if base := n.infos[service].Base; base != 0 && uint64(base)+uint64(slot) < uint64(len(n.words)) {
			return n.words[base+slot].Load()
		}
	}
	return 0, state.Down
}

// stale tells whether a packet with these TCP flags must select a backend although
// its flow has an entry: the entry's time is over, its backend is down or gone, or
// the packet begins a new connection where the old one was closing or its backend
// takes no new ones. prev is an entry of a service that leads to another pool now.
func (n *node) stale(c, w uint32, flags uint8, status state.Status, prev bool) bool {
	const all = packet.SYN | packet.ACK | packet.RST | packet.FIN
	return n.clk.over(c, w) || status == state.Down ||
		flags&all == packet.SYN && (stateOf(w) == closing || status == state.Draining || prev)
}

// judge decides about a packet whose flow has the entry st, and moves the entry's
// state on. It answers whether the packet stays with the entry's backend.
func (n *node) judge(v *packet.Vector, i int, st *uint32, backend uint32, status state.Status, prev bool) bool {
	w, flags := *st, v.TCP[i]
	c := n.kind(v.Proto[i], w)
	if v.Flags[i]&packet.Related != 0 {
		// About the flow, not of it: nothing changes.
		if status == state.Down || n.clk.over(c, w) {
			return false
		}
		n.core.Count(cRelated, 1)
	} else {
		if n.stale(c, w, flags, status, prev) {
			if status == state.Down && !n.clk.over(c, w) {
				v.Flags[i] |= packet.Repinned
			}
			return false
		}
		to := stateOf(w)
		switch {
		case flags&(packet.FIN|packet.RST) != 0:
			to = closing
		case to == handshake && flags&packet.SYN == 0:
			to = established
		}
		n.change(st, word(to, slotOf(w), n.clk.now[n.kind(v.Proto[i], word(to, 0, 0))&15]))
	}
	v.Backend[i], v.Slot[i] = backend, slotOf(w)
	return true
}

// change writes the word of an entry of the current table, and keeps count.
func (n *node) change(st *uint32, w uint32) {
	from, to := stateOf(*st), stateOf(w)
	*st = w
	if from == to {
		return
	}
	n.cur.count[from]--
	n.cur.count[to]++
	switch to {
	case established:
		n.core.Count(cEstablished, 1)
	case closing:
		n.core.Count(cClosed, 1)
	}
}

// AfterSend is part of graph.AfterSender: flows whose backend was selected in this
// vector are entered, now that they were sent.
func (n *node) AfterSend(v *packet.Vector, lanes packet.Lanes) {
	n.begin(v.Now)
	for rest := lanes; rest != 0; {
		k := 0
		var ids [chunk]ident
		for ; rest != 0 && k < chunk; rest &= rest - 1 {
			i := rest.Next() & 63
			if v.Flags[i]&(packet.Chosen|packet.Related) != packet.Chosen || v.TCP[i]&(packet.FIN|packet.RST) != 0 ||
				v.Slot[i] >= state.MaxSlots || uint64(v.VIP[i]) >= uint64(len(n.infos)) || n.infos[v.VIP[i]].Base == 0 {
				continue
			}
			n.lane[k] = uint8(i)
			ids[k] = n.ident(v, i, v.VIP[i], &n.cur.keys)
			t := n.cur.of(&ids[k])
			if home := t.home(ids[k].hash); ids[k].wide {
				n.at[k] = unsafe.Pointer(&t.wide[home])
			} else {
				n.at[k] = unsafe.Pointer(&t.lines[home])
			}
			k++
		}
		prefetch.Lines(n.at[:k])
		for j := range k {
			n.learn(v, int(n.lane[j])&63, &ids[j])
		}
	}
}

// learn enters the backend that a lane was sent to. The flow may have an entry all
// the same: from another packet of this vector, or one that is stale.
func (n *node) learn(v *packet.Vector, i int, id *ident) {
	fresh := word(handshake, v.Slot[i], 0)
	fresh |= uint32(n.clk.now[n.kind(v.Proto[i], fresh)&15])
	service := v.VIP[i]
	if prev := n.infos[service].Prev; prev != 0 && uint64(prev) < uint64(len(n.infos)) {
		// The flow begins anew under the service's new number.
		was := n.ident(v, i, prev, &n.cur.keys)
		if t, b, s := n.locate(&was); s >= 0 {
			n.wipe(n.cur, t, b, s)
			if v.Flags[i]&packet.Repinned != 0 {
				n.core.Count(cRepinned, 1)
			} else {
				n.core.Count(cReselected, 1)
			}
		}
	}
	t, b, s := n.locate(id)
	if s >= 0 {
		st, _ := t.bucket(b)
		w := st[s]
		c := n.kind(v.Proto[i], w)
		_, status := n.member(service, slotOf(w))
		switch {
		case !n.stale(c, w, v.TCP[i], status, false):
			return
		case status == state.Down && !n.clk.over(c, w):
			n.core.Count(cRepinned, 1)
		default:
			n.core.Count(cReselected, 1)
		}
		n.cur.count[stateOf(w)]--
		n.cur.count[handshake]++
		st[s] = fresh
		return
	}
	if n.mayInsert() {
		if n.insert(t, id, fresh, evictReach) {
			n.core.Count(cInserts, 1)
		} else {
			n.core.Count(cFull, 1)
		}
	}
}

// mayInsert counts an insertion against new_flows.
func (n *node) mayInsert() bool {
	if n.cfg.NewFlows == 0 {
		return true
	}
	if s := n.last / 1e9; s != n.second {
		n.second, n.inSecond = s, 0
	}
	if n.inSecond >= int64(n.cfg.NewFlows) {
		n.core.Count(cCapped, 1)
		return false
	}
	n.inSecond++
	return true
}

// insert finds a place for an entry that is nowhere, if need be by evicting
// another from one of the first far buckets: one whose time is over, else the
// oldest handshake nearby, else the oldest closing one; never one that is
// established.
func (n *node) insert(t *table, id *ident, w, far uint32) bool {
	home := t.home(id.hash)
	if n.cur.used() < n.cur.entries {
		for d := uint32(0); d <= reach; d++ {
			b := t.step(home, d)
			st, _ := t.bucket(b)
			if s := freePlace(st); s >= 0 {
				t.put(b, s, id, w, d)
				n.cur.count[stateOf(w)]++
				return true
			}
		}
	}
	var atB, atD uint32
	atS, rank := -1, rankNone
	var age int64
	for d := uint32(0); d < far && rank < rankHandshake; d++ {
		b := t.step(home, d)
		st, _ := t.bucket(b)
		for s, w := range st {
			if w == 0 {
				continue
			}
			r, a := n.rank(t, b, s, w)
			if r > rank || r == rank && r != rankNone && a > age {
				atB, atD, atS, rank, age = b, d, s, r, a
			}
		}
	}
	switch rank {
	case rankNone:
		return false
	case rankClosing:
		n.core.Count(cEvClosing, 1)
	case rankHandshake:
		n.core.Count(cEvHandshake, 1)
	case rankExpired:
		n.core.Count(cExpired, 1)
	case rankDead:
		n.core.Count(cDied, 1)
	}
	n.wipe(n.cur, t, atB, atS)
	t.put(atB, atS, id, w, atD)
	n.cur.count[stateOf(w)]++
	return true
}

// Ranks of eviction: the higher goes first.
const (
	rankNone = iota
	rankClosing
	rankHandshake
	rankExpired
	rankDead
)

// rank says how ready the entry at place s of bucket b is to go, and its age.
func (n *node) rank(t *table, b uint32, s int, w uint32) (rank int, age int64) {
	service, proto := t.about(b, s, n.infos)
	c := n.kind(proto, w)
	age = n.clk.nanos(c, w)
	if b, _ := n.member(service, slotOf(w)); b == 0 {
		return rankDead, age
	}
	switch {
	case n.clk.over(c, w):
		return rankExpired, age
	case stateOf(w) == handshake:
		return rankHandshake, age
	case stateOf(w) == closing:
		return rankClosing, age
	}
	return rankNone, age
}

// wipe removes an entry and keeps count.
func (n *node) wipe(ts *tables, t *table, b uint32, s int) {
	st, _ := t.bucket(b)
	ts.count[stateOf(st[s])]--
	t.wipe(b, s)
}
