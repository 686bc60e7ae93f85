// Package fragpin is the kind frag-pin: later fragments follow their first, also
// across cores, and wait for it if they come early.
package fragpin

import (
	"fmt"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of the kind.
type Config struct {
	Entries int           `hcl:"entries,optional" range:"8,1048576" doc:"fragmented packets that a core remembers"`
	TTL     time.Duration `hcl:"ttl,optional" range:"1s,120s" doc:"time that a first fragment is remembered"`
	Hold    int           `hcl:"hold,optional" range:"0,65536" doc:"later fragments that a core holds until their first comes"`
	Wait    time.Duration `hcl:"wait,optional" range:"1ms,10s" doc:"time that a later fragment waits for its first"`
}

// Outputs.
const (
	next = iota
	pinned
	fragFull
	fragExpired
	fragICMP
)

// Counters.
const (
	pinsAdded = iota
	pinsReplaced
	pinsEvicted
	pinsLost
	deadBackend
	held
	released
	passed
)

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "frag-pin",
		Summary: "leads later fragments to the backend of their first and holds those that come before it",
		Needs:   graph.L3 | graph.VIP, Forbids: graph.Backend | graph.Sent,
		Outputs: []graph.Output{
			next:        {Name: "next", Only: graph.Flow, Doc: "whole packets and first fragments"},
			pinned:      {Name: "pinned", Only: graph.Fragment, Gives: graph.Flow | graph.Backend, Else: graph.Drop, Doc: "later fragments, with the flow and backend of their first"},
			fragFull:    {Name: "frag_full", Only: graph.Fragment, Else: graph.Drop, Doc: "a later fragment without its first, and no room to hold it"},
			fragExpired: {Name: "frag_expired", Only: graph.Fragment, Else: graph.Drop, Doc: "a later fragment whose first did not come in time"},
			fragICMP:    {Name: "frag_icmp", Only: graph.Fragment, Else: graph.Drop, Doc: "a later fragment of an ICMP message"},
		},
		Counters: []graph.Counter{
			pinsAdded:    {Name: "pins", Doc: "first fragments that were sent and are remembered"},
			pinsReplaced: {Name: "pins_replaced", Doc: "first fragments that took the place of an earlier one with the same identification"},
			pinsEvicted:  {Name: "pins_evicted", Doc: "first fragments forgotten before their time, to make room"},
			pinsLost:     {Name: "pins_lost", Doc: "first fragments that the core in charge was not told of, as it did not keep up"},
			deadBackend:  {Name: "dead_backend", Doc: "later fragments whose first went to a backend that is down by now; they wait for a new first"},
			held:         {Name: "held", Doc: "later fragments that came before their first and were held"},
			released:     {Name: "released", Doc: "held fragments that followed their first"},
			passed:       {Name: "passed", Doc: "later fragments that went to the core in charge of them"},
		},
		Frames:   func(c Config) (holds, makes int) { return c.Hold, 0 },
		Defaults: Config{Entries: 8192, TTL: 10 * time.Second, Hold: 256, Wait: 200 * time.Millisecond},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			return func(core graph.Core) (graph.Node, error) {
				return &worker{
					core: core, ttl: int64(c.TTL), wait: int64(c.Wait), table: newTable(c.Entries), shelf: newShelf(c.Hold),
					sweeper: env.State.Sweeper(), keep: int64(c.TTL),
				}, nil
			}, nil
		},
	})
}

// worker is frag-pin on one core. It keeps the pins, and holds the fragments, of the
// keys that this core is in charge of, whichever core receives them.
type worker struct {
	core      graph.Core
	ttl, wait int64
	table     *table
	shelf     *shelf
	// old is the table of the node before a reload that changed its size. It is
	// looked up, and no more written, until all it holds is expired.
	old      *table
	oldUntil int64
	// sweeper is told of a generation when keep has passed since: the pins of then,
	// and the numbers they hold, are expired.
	sweeper  interface{ Swept(generation uint64) }
	keep     int64
	noted    uint64
	notedFor int64 // when to tell
	// late are pins that the rings to their cores had no room for.
	late  [64]pin
	nlate int
	// message would escape from the stack.
	message graph.Message
}

// Process leads later fragments where they belong; everything else goes on.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	if !v.AnyFlag(packet.Later) {
		out[next] = in
		return
	}
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if v.Flags[i]&packet.Later == 0 {
			out[next] |= packet.Lane(i)
			continue
		}
		w.later(v, i, out, true)
	}
}

// Arrive takes the later fragments that other cores passed.
func (w *worker) Arrive(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for l := in; l != 0; l &= l - 1 {
		w.later(v, l.Next()&63, out, false)
	}
}

// later takes a later fragment. If pass, it goes to the core in charge.
func (w *worker) later(v *packet.Vector, i int, out []packet.Lanes, pass bool) {
	i &= 63
	// An echo is answered, and an error read, whole or not at all.
	if p := v.Proto[i]; p == packet.ProtoICMP && v.Src[i].Is4() || p == packet.ProtoICMPv6 && !v.Src[i].Is4() {
		out[fragICMP] |= packet.Lane(i)
		return
	}
	k, hash := keyOf(v, i)
	if to := w.inCharge(hash); pass && to != w.core.ID() {
		if !w.core.Pass(to, v, i, -1) {
			out[fragFull] |= packet.Lane(i)
			return
		}
		w.core.Count(passed, 1)
		return
	}
	now := w.core.Now()
	e := w.table.find(&k, hash, now)
	if e == nil && w.old != nil && now < w.oldUntil {
		e = w.old.find(&k, hash, now)
	}
	if e != nil {
		if b, status := w.core.State().Member(e.service(), e.slot()); b != e.backend() || status == state.Down {
			// What its first fragment was part of is lost. The same identification
			// may be in use again, and the new first on its way.
			w.core.Count(deadBackend, 1)
			e = nil
		}
	}
	if e != nil {
		var r packet.Record
		v.Save(i, &r)
		e.restore(&r)
		v.Load(i, &r)
		out[pinned] |= packet.Lane(i)
		return
	}
	if w.shelf.full() {
		out[fragFull] |= packet.Lane(i)
		return
	}
	w.shelf.put(&k, hash, w.core.Hold(v, i), now)
	w.core.Count(held, 1)
}

// inCharge answers the core that keeps the pin of a key.
func (w *worker) inCharge(hash uint64) int {
	return int(packet.Reduce(hash, uint32(w.core.Cores())))
}

// AfterSend pins the first fragments that were sent, here or with the core in charge.
func (w *worker) AfterSend(v *packet.Vector, lanes packet.Lanes) {
	for l := lanes; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if v.Flags[i]&packet.First == 0 || v.Backend[i] == 0 {
			continue
		}
		p, hash := keyOf(v, i)
		p.fill(v, i)
		if to := w.inCharge(hash); to != w.core.ID() {
			w.tell(to, &p)
			continue
		}
		w.pin(&p, hash)
	}
}

// Marks is part of graph.AfterSender.
func (w *worker) Marks() packet.Flags { return packet.First }

func (w *worker) tell(to int, p *pin) {
	w.message = graph.Message(*p)
	if w.core.Tell(to, &w.message) {
		return
	}
	if w.nlate == len(w.late) {
		w.core.Count(pinsLost, 1)
		return
	}
	w.late[w.nlate] = *p
	w.nlate++
}

// Hear takes a pin from the core that sent the first fragment.
func (w *worker) Hear(_ int, m *graph.Message) {
	p := pin(*m)
	w.pin(&p, p.hash())
}

// pin remembers p and lets go what waits for it.
func (w *worker) pin(p *pin, hash uint64) {
	now := w.core.Now()
	w.core.Count(pinsAdded, 1)
	switch w.table.insert(p, hash, now, now+w.ttl) {
	case replaced:
		w.core.Count(pinsReplaced, 1)
	case evicted:
		w.core.Count(pinsEvicted, 1)
	}
	if w.shelf.n == 0 {
		return
	}
	w.shelf.take(p, hash, func(f uint32) {
		p.restore(w.core.Held(f))
		w.core.Release(f, pinned)
		w.core.Count(released, 1)
	})
}

// Tick drops what waited too long and tells again what was not heard.
func (w *worker) Tick(now int64) {
	for {
		f, since, ok := w.shelf.oldest()
		if !ok || now-since < w.wait {
			break
		}
		w.shelf.drop()
		w.core.DropHeld(f, fragExpired)
	}
	late := w.late[:w.nlate]
	w.nlate = 0
	for i := range late {
		w.tell(w.inCharge(late[i].hash()), &late[i])
	}
	w.table.sweep(len(w.table.tags)/ways/128+1, now)
	if now >= w.notedFor {
		if w.notedFor != 0 {
			w.sweeper.Swept(w.noted)
		}
		// A pin may be a while on its way from another core.
		w.noted, w.notedFor = w.core.State().Generation, now+w.keep+int64(time.Second)
	}
	if now >= w.oldUntil {
		w.old = nil
	}
}

// Inherit takes over pins and held fragments. A table of another size is looked up
// until all it holds is expired; what does not fit a smaller shelf drops.
func (w *worker) Inherit(from graph.Node) {
	o, ok := from.(*worker)
	if !ok {
		return
	}
	now := w.core.Now()
	if len(o.table.tags) == len(w.table.tags) {
		w.table, w.old, w.oldUntil = o.table, o.old, o.oldUntil
	} else {
		w.old, w.oldUntil = o.table, now+o.ttl
	}
	w.late, w.nlate = o.late, o.nlate
	w.sweeper, w.keep, w.noted, w.notedFor = o.sweeper, max(o.keep, w.keep), o.noted, o.notedFor
	if len(o.shelf.slots) == len(w.shelf.slots) {
		w.shelf = o.shelf
		return
	}
	for i := o.shelf.first; i != none; i = o.shelf.slots[i].next {
		h := &o.shelf.slots[i]
		if w.shelf.full() {
			w.core.DropHeld(h.frame, fragFull)
			continue
		}
		w.shelf.put(&h.key, h.key.hash(), h.frame, h.since)
	}
}

// Flush forgets the pins to backend; 0 is all.
func (w *worker) Flush(backend uint32) {
	w.table.flush(backend)
	if w.old != nil {
		w.old.flush(backend)
	}
}

// Gauges tells how full pins and shelf are.
func (w *worker) Gauges() map[string]float64 {
	return map[string]float64{
		"pins":       float64(w.table.used),
		"pins_room":  float64(len(w.table.tags)),
		"held":       float64(w.shelf.n),
		"held_limit": float64(len(w.shelf.slots)),
	}
}

// Trace tells what became of a fragment.
func (w *worker) Trace(v *packet.Vector, i int) string {
	switch f := v.Flags[i&63]; {
	case f&packet.Pinned != 0:
		return fmt.Sprintf("pinned to backend %d", v.Backend[i&63])
	case f&packet.Later != 0:
		return "later fragment"
	case f&packet.First != 0:
		return "first fragment"
	}
	return ""
}
