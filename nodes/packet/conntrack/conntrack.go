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
	chunk = 32
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
	sweeper interface{ Swept(generation uint64) }
	clk     clock
	last    int64 // the clock, which never goes back
	class   [256]uint8

	cur *tables
	// old is what a resized table still holds; it empties bucket by bucket.
	old    *tables
	oldClk clock
	moved  uint32 // buckets of old that are empty

	// plain tells whether assembly does what it can; tests turn it off.
	plain bool

	swept   uint32 // buckets of cur that this round of the sweep has passed
	sweptIn uint64 // generation when the round began

	second, inSecond int64 // for new_flows
	visits           float64
	visitsAt         int64

	// Of the snapshot in hand.
	snap  *state.Snapshot
	infos []state.ServiceInfo
	words []state.Word

	// Of the vector in hand, of which these lanes were looked up since the last flow
	// was entered: for those, the batch says what the table is.
	batch  batch
	looked packet.Lanes
	// Of the chunk in hand, of lanes with wide keys.
	lane [chunk]uint8
	at   [chunk]unsafe.Pointer
	far  [2 * chunk]unsafe.Pointer
}

func newNode(c Config, core graph.Core, cell *state.Cell) (*node, error) {
	t, err := newTables(c.Entries)
	if err != nil {
		return nil, err
	}
	n := &node{core: core, cfg: c, sweeper: cell.Sweeper(), clk: newClock(&c.Timeouts), cur: t, visits: visitBurst, plain: hasPlain}
	for p := range n.class {
		n.class[p] = other
	}
	n.class[packet.ProtoTCP], n.class[packet.ProtoUDP] = tcp, udp
	// The clock is set by the first vector: the core may be running another graph now.
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
	if s := n.core.State(); s != n.snap {
		n.snap, n.infos, n.words, n.looked = s, s.Infos, s.Words, 0
	}
	if now > n.last {
		gap := now - n.last
		tick := now>>minShift != n.last>>minShift // no clock has a shorter one
		n.last = now
		if tick {
			n.clk.set(now)
		}
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

// A batch is what is known of the lanes of a vector while they are looked up, and until
// flows that were not found are entered.
type batch struct {
	key   [packet.Size]uint64
	home  [packet.Size]uint32 // offset of the home line in the array of lines
	about [packet.Size]uint64 // state.ServiceInfo.Plain | FIN, SYN and RST <<4
	place [packet.Size]uint8  // place in the line; 5 + the first free one if the key is not there, 10 if none is free
}

// noKey is the key of no plain service's flow, as there is no service 0; nor is it that of
// free places.
const noKey = 1

// look finds the flows of the lanes in, enters backend and slot of those that it
// finds, and answers them. It goes over chunks of lanes in steps, so that the
// waits for memory overlap: form the keys, find their lines and ask for them,
// compare, decide. The steps are loops of their own, since each then has its values
// in registers. What is not plain (a key that is wide or away from home, a related
// packet, a service that led to another pool, a table that moves) is left to lookLater.
func (n *node) look(v *packet.Vector, in packet.Lanes) (hits packet.Lanes) {
	n.looked = in
	var later packet.Lanes
	plain := n.plain && !v.AnyFlag(packet.Related)
	// The lines of a chunk are on their way while the chunk before is decided.
	from, to := 0, 0
	for rest := in; rest != 0; {
		next := rest.Next() &^ (chunk - 1)
		now := rest & (packet.All(chunk) << next)
		rest &^= now
		end := now.End()
		if plain && now == packet.All(end)>>next<<next {
			for bad := formPlain(&n.batch, &n.cur.compact, v, n.infos, next, end); bad != 0; bad &= bad - 1 {
				if i := bad.Next(); uint64(v.VIP[i&63]) < uint64(len(n.infos)) {
					later |= packet.Lane(i)
				}
			}
		} else {
			later |= n.form(v, next, end, now)
			n.cur.compact.aim(&n.batch, next, end)
		}
		if to > 0 {
			h, l := n.decide(v, from, to)
			hits, later = hits|h, later|l
		}
		from, to = next, end
	}
	if to > 0 {
		h, l := n.decide(v, from, to)
		hits, later = hits|h, later|l
	}
	if later != 0 {
		hits |= n.lookLater(v, later)
	}
	return hits
}

// keyOf is the key of lane i for a plain service.
func keyOf(v *packet.Vector, i int) uint64 {
	return uint64(v.VIP[i&63])<<48 | uint64(v.SPort[i&63])<<32 | v.Src[i&63].Lo&0xffffffff
}

// form makes the keys of lanes from … to−1, as far as they are among in. It answers the
// lanes that it leaves to lookLater, whose key is noKey.
func (n *node) form(v *packet.Vector, from, to int, in packet.Lanes) (later packet.Lanes) {
	infos, b := n.infos, &n.batch
	for i := from; i < to; i++ {
		i := i & 63
		id := v.VIP[i]
		b.key[i] = noKey
		if !in.Has(i) || uint64(id) >= uint64(len(infos)) {
			continue
		}
		plain := infos[id].Plain
		if plain == 0 || v.Flags[i]&packet.Related != 0 {
			later |= packet.Lane(i)
			continue
		}
		b.key[i] = keyOf(v, i)
		b.about[i] = plain | uint64(v.TCP[i]&(packet.FIN|packet.SYN|packet.RST))<<4
	}
	return later
}

// decide finds the keys of lanes from … to−1 in their home lines and looks at the entries. It answers
// the lanes that stay with their entry's backend, and those that it leaves to lookLater.
func (n *node) decide(v *packet.Vector, from, to int) (hits, later packet.Lanes) {
	left := packet.All(to) >> from << from
	if n.plain && n.old == nil {
		if hits, left = decidePlain(&n.batch, &n.cur.compact, v, n.words, &n.clk, from, to); left == 0 {
			return hits, 0
		}
	} else {
		n.cur.compact.compare(&n.batch, from, to)
	}
	words, lines := n.words, unsafe.Pointer(unsafe.SliceData(n.cur.compact.lines))
	clk, moving, b := &n.clk, n.old != nil, &n.batch
	var odd packet.Lanes
	for ; left != 0; left &= left - 1 {
		i := left.Next() & 63
		l := (*line)(unsafe.Add(lines, b.home[i]))
		p := uint(b.place[i])
		if p >= uint(len(l.st)) {
			if b.key[i] != noKey && (l.over != 0 || moving) {
				later |= packet.Lane(i)
			}
			continue
		}
		w := l.st[p]
		m := b.about[i]>>8 + uint64(slotOf(w))
		if m >= uint64(len(words)) {
			continue
		}
		backend, status := words[m].Load()
		k := uint32(b.about[i]) | stateOf(w)
		age := clk.now[k&15] - uint16(w)
		if (k^established)&0x73|uint32(status) != 0 || age > clk.ttl[k&15] {
			odd |= packet.Lane(i)
			continue
		}
		if age != 0 {
			l.st[p] = w - uint32(uint16(w)) + uint32(clk.now[k&15])
		}
		v.Backend[i], v.Slot[i] = backend, slotOf(w)
		hits |= packet.Lane(i)
	}
	for ; odd != 0; odd &= odd - 1 {
		i := odd.Next() & 63
		st := &(*line)(unsafe.Add(lines, b.home[i])).st[b.place[i]]
		backend, status := words[b.about[i]>>8+uint64(slotOf(*st))].Load()
		if n.judge(v, i, st, backend, status, false) {
			hits |= packet.Lane(i)
		}
	}
	return hits, later
}

// lookLater is look for lanes that look left.
func (n *node) lookLater(v *packet.Vector, in packet.Lanes) (hits packet.Lanes) {
	var wide packet.Lanes
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if !n.infos[v.VIP[i]].Compact || v.Flags[i]&packet.V6 != 0 {
			wide |= packet.Lane(i)
			if wide.Count() == chunk {
				hits |= n.lookWide(v, wide)
				wide = 0
			}
			continue
		}
		id := n.ident(v, i, v.VIP[i], &n.cur.keys)
		if n.slow(v, i, &id) {
			hits |= packet.Lane(i)
		}
	}
	if wide != 0 {
		hits |= n.lookWide(v, wide)
	}
	return hits
}

// lookWide is look for at most chunk lanes with wide keys.
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
	room := n.cur.entries - n.cur.used()
	if n.cfg.NewFlows != 0 || n.old != nil {
		room = 0
	}
	// Nothing is entered but here. So what the look-up found to be free, and still is, is
	// the first free place of its line, and the key is as absent as it was.
	looked := n.looked
	n.looked = 0
	entered := 0
	var later packet.Lanes
	for rest := lanes; rest != 0; {
		now := rest
		if n.plain {
			var e int
			var l packet.Lanes
			e, l, rest = enterPlain(&n.batch, &n.cur.compact, v, now, looked, &n.clk, room-entered)
			entered, later = entered+e, later|l
			now = rest & -rest
		}
		e, l := n.enter(v, now, looked, room-entered)
		entered, later = entered+e, later|l
		rest &^= now
	}
	if entered > 0 {
		n.cur.count[handshake] += entered
		n.core.Count(cInserts, uint64(entered))
	}
	for ; later != 0; later &= later - 1 {
		if i := later.Next() & 63; uint64(v.VIP[i]) < uint64(len(n.infos)) && n.infos[v.VIP[i]].Base != 0 {
			id := n.ident(v, i, v.VIP[i], &n.cur.keys)
			n.learn(v, i, &id)
		}
	}
}

// enter enters lanes in the place that the look-up found for them, room of them at most, and
// answers those that learn has to look at.
func (n *node) enter(v *packet.Vector, lanes, looked packet.Lanes, room int) (entered int, later packet.Lanes) {
	t, b := &n.cur.compact, &n.batch
	lines := unsafe.Pointer(unsafe.SliceData(t.lines))
	for i, end := lanes.Next(), lanes.End(); i < end; i++ {
		i := i & 63
		if !lanes.Has(i) || v.Flags[i]&(packet.Chosen|packet.Related) != packet.Chosen || v.TCP[i]&(packet.FIN|packet.RST) != 0 || v.Slot[i] >= state.MaxSlots {
			continue
		}
		key, free := keyOf(v, i), uint(b.place[i])-uint(len(line{}.key))
		l := (*line)(unsafe.Add(lines, b.home[i]))
		if b.key[i] != key || key == noKey || !looked.Has(i) || free >= uint(len(l.key)) || l.key[free] != 0 || entered == room ||
			l.over != 0 && l.over&overBit(hashCompact(t.keys, key)) != 0 {
			later |= packet.Lane(i)
			continue
		}
		l.key[free] = key
		l.st[free] = word(handshake, v.Slot[i], n.clk.now[(b.about[i]|handshake)&15])
		entered++
	}
	return entered, later
}

// Marks is part of graph.AfterSender.
func (n *node) Marks() packet.Flags { return packet.Chosen }

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
	seen := 0
	for d := uint32(0); (d < far || seen == 0 && d <= reach) && rank < rankHandshake; d++ {
		b := t.step(home, d)
		st, _ := t.bucket(b)
		for s, w := range st {
			if w == 0 {
				continue
			}
			seen++
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
	switch {
	case n.clk.over(c, w):
		return rankExpired, age
	case stateOf(w) == handshake:
		return rankHandshake, age
	case stateOf(w) == closing:
		return rankClosing, age
	}
	if b, _ := n.member(service, slotOf(w)); b == 0 {
		return rankDead, age
	}
	return rankNone, age
}

// wipe removes an entry and keeps count.
func (n *node) wipe(ts *tables, t *table, b uint32, s int) {
	st, _ := t.bucket(b)
	ts.count[stateOf(st[s])]--
	t.wipe(b, s)
}
