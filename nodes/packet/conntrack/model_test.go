package conntrack

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// checkTables looks at all memory: every entry is found from its home, no key
// stands twice, counts are right, free places are clean.
func checkTables(t testing.TB, n *node) {
	t.Helper()
	seen := map[string]bool{}
	for _, ts := range []*tables{n.cur, n.old} {
		if ts == nil {
			continue
		}
		var count [4]int
		for _, a := range []*table{&ts.compact, &ts.full} {
			for b := range a.size() {
				st, _ := a.bucket(b)
				for s, w := range st {
					if w == 0 {
						if a.wide == nil && a.lines[b].key[s] != 0 || a.wide != nil && (a.wide[b].key[s] != wideKey{} || a.wide[b].tag[s] != 0) {
							t.Fatalf("bucket %d place %d is free but has a key", b, s)
						}
						continue
					}
					count[stateOf(w)]++
					id := a.ident(b, s, &ts.keys)
					if fb, fs := a.find(&id); fb != b || fs != s {
						t.Fatalf("the entry at %d/%d is found at %d/%d", b, s, fb, fs)
					}
					k := fmt.Sprint(id.wide, id.compact, id.full)
					if seen[k] {
						t.Fatalf("key %s stands twice", k)
					}
					seen[k] = true
				}
			}
		}
		if count != ts.count {
			t.Fatalf("counted %v, kept %v", count, ts.count)
		}
	}
}

// modelEntry is what a plain map remembers.
type modelEntry struct {
	backend uint32
	state   int
	seen    int64
	maybe   bool // either answer is right
}

// The table against a plain map, over random packets, time, drains, deaths,
// removals, flushes and reloads. Nothing is evicted, as there is room; so a live key
// must be found with its backend, and a dead one must not.
//
// A run is its seed's alone, the tables' secret keys too: LBGRAPH_SEED=n runs seed
// n again. LBGRAPH_SOAK=1 runs thousands.
func TestModel(t *testing.T) {
	from, seeds := 0, 12
	switch s := os.Getenv("LBGRAPH_SEED"); {
	case s != "":
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		from, seeds = n, 1
	case os.Getenv("LBGRAPH_SOAK") != "":
		seeds = 6000
	case testing.Short():
		seeds = 3
	}
	for seed := from; seed < from+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, uint64(seed))
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Logf("LBGRAPH_SEED=%d runs this again", seed)
					}
				}()
				runModel(t, rand.New(rand.NewPCG(uint64(seed), 99)), seed%3)
			})
		})
	}
}

// lost counts the flows for which no room was found.
func (r *rigged) lost() uint64 {
	return r.Counter("full") + r.Counter("evicted_handshake") + r.Counter("evicted_closing") + r.Counter("resize_lost")
}

// shape 0 has flows of all kinds; 1 and 2 have one kind, so many that many entries
// are away from home.
func runModel(t *testing.T, rnd *rand.Rand, shape int) {
	r := newRig(t, func(c *Config) {
		c.Entries, c.Timeouts.TCPHandshake = 1024, 20*time.Second
		if shape > 0 {
			c.Timeouts.TCPHandshake = 10 * time.Minute
		}
	})
	model := map[flow]modelEntry{}
	status := map[int]state.Status{}
	hits, misses, unsure, most := 0, 0, 0, 0
	ttl := func(f flow, e modelEntry) int64 {
		tm := &r.node().cfg.Timeouts
		switch {
		case f.proto == 17:
			return int64(tm.UDP)
		case f.proto != 6:
			return int64(tm.Other)
		}
		return int64([]time.Duration{0, tm.TCPHandshake, tm.TCPEstablished, tm.TCPClosing}[e.state])
	}
	of := func(b uint32) state.Status {
		for i := 1; i <= 4; i++ {
			if r.store.Backend(backendAddr(i)) == b {
				return status[i]
			}
		}
		return state.Down
	}
	for step := range 12000 {
		switch x := rnd.IntN(1000); {
		case x < 955: // a packet
			f := flowTo(web+rnd.IntN(5), rnd.IntN([]int{30, 180}[rnd.IntN(2)]))
			if shape > 0 {
				f = flowTo([]int{web, six}[shape-1], rnd.IntN(950))
			}
			tcp := []uint8{syn, syn, ack, ack, ack, ack | packet.PSH, fin, rst, syn | ack}[rnd.IntN(9)]
			if f.proto != 6 {
				tcp = 0
			}
			var flags packet.Flags
			if rnd.IntN(20) == 0 {
				flags = packet.Related
			}
			e, known := model[f]
			age := r.Clock - e.seen
			// Between a time to live and two ticks more either answer is right; and a
			// tick of the clock of the longest time more, if the entry came by that.
			slack := max(int64(2)<<minShift, ttl(f, e)/maxTicks*4) + int64(10*time.Minute)/maxTicks*2
			gone := known && age > ttl(f, e)+slack
			fuzzy := known && !gone && (e.maybe || age >= ttl(f, e))
			want := known && !gone && of(e.backend) != state.Down
			if flags == 0 && want && tcp == syn && (e.state == closing || of(e.backend) == state.Draining) {
				want = false
			}
			r.load(0, f, tcp, flags)
			found := r.pass(1) != 0
			if fuzzy {
				unsure++
				want = want && found
			}
			if found != want {
				t.Logf("%v %v shift %v old %v, %d entries lost", r.node().Trace(&r.V, 0), r.node().cfg, r.node().clk.shift, r.node().old != nil, r.lost())
				t.Fatalf("step %d: %v flags %x %x: hit %v, want %v; model %+v age %v", step, f, tcp, flags, found, want, e, time.Duration(age))
			}
			b := r.V.Backend[0]
			switch {
			case found:
				hits++
				if b != e.backend {
					t.Fatalf("step %d: %v went to backend %d, its entry is at %d", step, f, b, e.backend)
				}
				if flags&packet.Related != 0 {
					break
				}
				e.seen, e.maybe = r.Clock, false
				if tcp&(packet.FIN|packet.RST) != 0 {
					e.state = closing
				} else if e.state == handshake && tcp&packet.SYN == 0 {
					e.state = established
				}
				model[f] = e
			default:
				misses++
				if b != 0 && flags&packet.Related == 0 && tcp&(packet.FIN|packet.RST) == 0 {
					model[f] = modelEntry{backend: b, state: handshake, seen: r.Clock}
				}
			}
		case x < 965: // time
			d := time.Duration(rnd.Int64N(int64([]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 8 * time.Second, 70 * time.Second}[min(rnd.IntN(8), rnd.IntN(8), rnd.IntN(8), 4)])))
			if rnd.IntN(2) == 0 {
				r.wait(d)
			} else {
				r.Clock += int64(d)
			}
		case x < 985: // a backend's status
			i, s := 1+rnd.IntN(4), []state.Status{state.Up, state.Up, state.Draining, state.Down}[rnd.IntN(4)]
			status[i] = s
			r.store.SetStatus(r.store.Backend(backendAddr(i)), s)
			if rnd.IntN(2) == 0 { // the table follows later
				r.store.Flush()
			}
			r.r.Publish(r.store.Cell().Load())
		case x < 986:
			b := r.store.Backend(backendAddr(1 + rnd.IntN(4)))
			r.node().Flush(b)
			for f, e := range model {
				if e.backend == b {
					delete(model, f)
				}
			}
		case x < 992: // reload
			entries := []int{1024, 1024, 2048, 4096}[rnd.IntN(4)]
			est := []time.Duration{60 * time.Second, 60 * time.Second, 10 * time.Minute}[rnd.IntN(3)]
			// What is over may come back under a longer time, if no sweep passed.
			for f, e := range model {
				if r.Clock-e.seen >= ttl(f, e) {
					e.maybe = true
					model[f] = e
				}
			}
			r.reload(func(c *Config) { c.Entries, c.Timeouts.TCPEstablished = entries, est })
		default:
			checkTables(t, r.node())
		}
		most = max(most, r.node().cur.used())
	}
	checkTables(t, r.node())
	if lost := r.lost(); lost != 0 {
		t.Errorf("%d entries were lost", lost)
	}
	if hits < 2000 || misses < 1000 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
	if shape > 0 && most < 500 {
		t.Errorf("%d entries at most", most)
	}
	t.Logf("%d hits, %d misses, %d at the edge, %d entries at most, counters %v", hits, misses, unsure, most, r.Counters)
}
