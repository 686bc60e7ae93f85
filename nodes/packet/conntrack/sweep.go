package conntrack

import (
	"fmt"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

const (
	// The sweep passes all buckets in sweepTicks ticks: 20 s while the loop is
	// awake, under 4 minutes while it sleeps. Stamps wrap after 18 minutes at the
	// earliest.
	sweepTicks = 2048
	sweepLeast = 64
	// An old table is empty after moveTicks ticks, so before its stamps wrap.
	moveTicks = 4096
	moveLeast = 256
)

// Tick is part of graph.Ticker. It sweeps a few buckets.
func (n *node) Tick(now int64) {
	n.begin(now)
	if n.old != nil {
		n.moveOn(max(moveLeast, (n.old.compact.size()+n.old.full.size())/moveTicks))
	}
	size := n.cur.compact.size() + n.cur.full.size()
	empty := n.cur.used() == 0
	if n.swept == 0 || empty {
		n.sweptIn = n.core.State().Generation
	}
	if empty {
		n.swept = size // memory that was never touched stays so
	}
	n.sweep(min(size, n.swept+max(sweepLeast, size/sweepTicks)), 0)
	if n.swept >= size {
		n.swept = 0
		if n.old == nil {
			n.sweeper.Swept(n.sweptIn)
		}
	}
}

// sweep goes on to bucket end, counted over both arrays, and removes what is over.
// gap is a time in which nothing was seen, 0 if there was none.
func (n *node) sweep(end uint32, gap int64) {
	for lines := n.cur.compact.size(); n.swept < end; n.swept++ {
		if n.swept < lines {
			n.sweepBucket(&n.cur.compact, n.swept, gap)
		} else {
			n.sweepBucket(&n.cur.full, n.swept-lines, gap)
		}
	}
}

func (n *node) sweepBucket(t *table, b uint32, gap int64) {
	n.clean(t, b, gap)
	if t.tidy(b) {
		n.clean(t, b, gap) // what came from buckets ahead would escape this round
	}
}

// clean removes what is over from one bucket.
func (n *node) clean(t *table, b uint32, gap int64) {
	st, _ := t.bucket(b)
	for s, w := range st {
		if w == 0 {
			continue
		}
		service, _ := t.about(b, s, n.infos)
		rank, _ := n.rank(t, b, s, w)
		switch to, _ := n.member(service, slotOf(w)); {
		case to == 0:
			n.wipe(n.cur, t, b, s)
			n.core.Count(cDied, 1)
		case rank == rankExpired || gap > 0 && n.outlived(t, b, s, w, gap):
			n.wipe(n.cur, t, b, s)
			n.core.Count(cExpired, 1)
		}
	}
}

// outlived tells whether an entry that was not seen for gap is over, whatever its
// stamp says.
func (n *node) outlived(t *table, b uint32, s int, w uint32, gap int64) bool {
	_, proto := t.about(b, s, n.infos)
	return gap >= n.clk.ns[n.kind(proto, w)&15]
}

// recover looks at every entry after a gap in the clock: a machine that was
// suspended, a capture with a pause.
func (n *node) recover(gap int64) {
	if n.old != nil {
		n.moveOn(^uint32(0))
	}
	if n.cur.used() == 0 {
		return
	}
	n.swept = 0
	n.sweptIn = n.core.State().Generation
	n.sweep(n.cur.compact.size()+n.cur.full.size(), gap)
}

// Inherit is part of graph.Inheritor. A table of the same size is taken over as it
// is; out of another the entries move bucket by bucket, and are found in it until
// then.
func (n *node) Inherit(old graph.Node) {
	o, ok := old.(*node)
	if !ok || o.cur == nil {
		return
	}
	if o.old != nil {
		o.begin(o.last)
		o.moveOn(^uint32(0))
	}
	n.last = max(n.last, o.last)
	n.clk.set(n.last)
	n.begin(n.last)
	n.second, n.inSecond, n.visits, n.visitsAt = o.second, o.inSecond, o.visits, o.visitsAt
	if o.cfg.Entries == n.cfg.Entries && o.clk.same(&n.clk) {
		n.cur.free()
		n.cur, n.sweeper = o.cur, o.sweeper
		n.swept, n.sweptIn = o.swept, o.sweptIn
	} else {
		n.old, n.oldClk, n.moved = o.cur, o.clk, 0
		n.sweeper = o.sweeper
	}
	o.cur, o.sweeper = nil, nil
}

// moveOn moves up to count buckets of the old table.
func (n *node) moveOn(count uint32) {
	n.oldClk.set(n.last)
	lines := n.old.compact.size()
	size := lines + n.old.full.size()
	for ; count > 0 && n.moved < size && n.old.used() > 0; count-- {
		t, b := &n.old.compact, n.moved
		if b >= lines {
			t, b = &n.old.full, b-lines
		}
		st, _ := t.bucket(b)
		for s, w := range st {
			if w != 0 {
				n.move(t, b, s)
			}
		}
		n.moved++
	}
	if n.moved >= size || n.old.used() == 0 {
		go n.old.free() // giving back memory takes its time
		n.old, n.swept = nil, 0
	}
}

// move moves one entry of the old table to the current one, and answers whether it
// is there now.
func (n *node) move(t *table, b uint32, s int) bool {
	n.oldClk.set(n.last)
	st, _ := t.bucket(b)
	w := st[s]
	_, proto := t.about(b, s, n.infos)
	c := n.kind(proto, w)
	id := t.ident(b, s, &n.cur.keys)
	stamp := uint16(n.oldClk.latest(c, w, n.last) >> (n.clk.shift[c&15] & 63))
	n.wipe(n.old, t, b, s)
	if n.clk.over(c, uint32(stamp)) {
		n.core.Count(cExpired, 1)
		return false
	}
	if !n.insert(n.cur.of(&id), &id, word(stateOf(w), slotOf(w), stamp), reach+1) {
		n.core.Count(cLost, 1)
		return false
	}
	return true
}

// Flush is part of graph.Flusher. It looks at all entries at once: 16 million take
// about a tenth of a second.
func (n *node) Flush(backend uint32) {
	n.begin(n.last)
	for _, ts := range []*tables{n.cur, n.old} {
		if ts == nil || ts.used() == 0 {
			continue
		}
		for _, t := range []*table{&ts.compact, &ts.full} {
			for b := range t.size() {
				st, _ := t.bucket(b)
				for s, w := range st {
					if w == 0 {
						continue
					}
					service, _ := t.about(b, s, n.infos)
					if to, _ := n.member(service, slotOf(w)); backend == 0 || to == backend {
						n.wipe(ts, t, b, s)
						n.core.Count(cFlushed, 1)
					}
				}
			}
		}
	}
}

// Gauges is part of graph.Gauger.
func (n *node) Gauges() map[string]float64 {
	g := map[string]float64{
		"entries": float64(n.cur.used()), "size": float64(n.cur.entries),
		"handshake": float64(n.cur.count[handshake]), "established": float64(n.cur.count[established]), "closing": float64(n.cur.count[closing]),
		"moving": 0,
	}
	if n.old != nil {
		g["handshake"] += float64(n.old.count[handshake])
		g["established"] += float64(n.old.count[established])
		g["closing"] += float64(n.old.count[closing])
		g["moving"] = float64(n.old.used())
		g["entries"] += g["moving"]
	}
	return g
}

var stateNames = [...]string{"", "handshake", "established", "closing"}

// Trace is part of graph.Tracer.
func (n *node) Trace(v *packet.Vector, lane int) string {
	i := lane & 63
	if uint64(v.VIP[i]) >= uint64(len(n.infos)) {
		return "no service"
	}
	id := n.ident(v, i, v.VIP[i], &n.cur.keys)
	t := n.cur.of(&id)
	b, s := t.find(&id)
	if s < 0 {
		return "no entry"
	}
	st, _ := t.bucket(b)
	w := st[s]
	c := n.kind(v.Proto[i], w)
	if n.clk.over(c, w) {
		return "an entry whose time is over"
	}
	left := time.Duration(n.clk.ns[c&15] - n.clk.nanos(c, w)).Round(100 * time.Millisecond)
	backend, status := n.member(v.VIP[i], slotOf(w))
	return fmt.Sprintf("%s, backend %d (%s), %s left", stateNames[stateOf(w)], backend, status, max(0, left))
}
