//go:build !purego

package conntrack

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

func needPlain(t *testing.T) {
	t.Helper()
	if !hasPlain {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: AVX2 is %v, BMI1 is %v; CI runs it emulated", cpu.X86.HasAVX2, cpu.X86.HasBMI1)
	}
}

// Assembly finds and decides what the plain Go code does: two nodes with the same keys, of
// which one does without, answer the same and keep the same table, over vectors of all
// sizes, with holes, of all kinds of flows, states, times and backends.
func TestPlainIsWhatDecideIs(t *testing.T) {
	needPlain(t)
	rnd := rand.New(rand.NewPCG(7, 7))
	shrunk := func(c *Config) { c.Entries = 1024 }
	fast, slow := newRig(t, shrunk), newRig(t, shrunk)
	slow.node().cur.keys = fast.node().cur.keys
	slow.node().plain = false
	both := []*rigged{fast, slow}
	hits, away := 0, 0
	for step := range 6000 {
		if rnd.IntN(10) == 0 {
			d := []time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second, 6 * time.Second, 65 * time.Second}[min(rnd.IntN(5), rnd.IntN(5))]
			for _, r := range both {
				r.wait(d)
			}
		}
		if rnd.IntN(20) == 0 {
			i, s := 1+rnd.IntN(4), []state.Status{state.Up, state.Up, state.Draining, state.Down}[rnd.IntN(4)]
			for _, r := range both {
				r.store.SetStatus(r.store.Backend(backendAddr(i)), s)
				r.sync()
			}
		}
		n := 1 + rnd.IntN(packet.Size)
		in := packet.All(n)
		if rnd.IntN(3) == 0 {
			in &= packet.Lanes(rnd.Uint64() | rnd.Uint64())
		}
		odd := rnd.IntN(3) == 0 // else the vector is what the assembly is for
		for i := range n {
			service := web
			var flags packet.Flags
			if odd && rnd.IntN(4) == 0 {
				service += rnd.IntN(5)
			}
			if odd && rnd.IntN(20) == 0 {
				flags = packet.Related
			}
			if !odd && rnd.IntN(8) == 0 {
				service = dns
			}
			f := flowTo(service, rnd.IntN(700))
			tcp := []uint8{syn, ack, ack, ack, ack, ack | packet.PSH, ack, fin, rst}[rnd.IntN(9)]
			for _, r := range both {
				r.load(i, f, tcp, flags)
				if step%50 == 0 && i == 3 {
					r.V.VIP[i] = 1 << 20 // a number that no service has
				}
			}
		}
		h := fast.pass(in)
		if g := slow.pass(in); g != h {
			t.Fatalf("step %d, lanes %x: hits %x, without assembly %x", step, in, h, g)
		}
		if fast.V.Backend != slow.V.Backend || fast.V.Slot != slow.V.Slot || fast.V.VIP != slow.V.VIP || fast.V.Flags != slow.V.Flags {
			t.Fatalf("step %d, lanes %x: columns differ", step, in)
		}
		hits += h.Count()
		if step%100 == 0 {
			for b := range fast.node().cur.compact.lines {
				x, y := fast.node().cur.compact.lines[b], slow.node().cur.compact.lines[b]
				if x != y {
					t.Fatalf("step %d: line %d is %+v, without assembly %+v", step, b, x, y)
				}
				if x.over != 0 {
					away++
				}
			}
		}
	}
	checkTables(t, fast.node())
	for c, x := range fast.Counters {
		if y := slow.Counters[c]; x != y {
			t.Errorf("counter %v is %d, without assembly %d", c, x, y)
		}
	}
	if hits < 50000 || away == 0 {
		t.Errorf("%d hits, %d lines whose keys are elsewhere", hits, away)
	}
}

// Assembly reads nothing behind the end of what it is given, though more stands there.
func TestPlainStaysWithinItsSlices(t *testing.T) {
	needPlain(t)
	r := newRig(t, nil)
	f := flowTo(web, 1)
	r.want("SYN", f, syn, false)
	r.want("ACK", f, ack, true)
	r.load(0, f, ack, 0)
	n, vip := r.node(), int(r.V.VIP[0])
	n.begin(r.Clock)
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos[:vip], 0, 1); bad != 1 || n.batch.key[0] != noKey {
		t.Errorf("service %d of %d has key %x", vip, vip, n.batch.key[0])
	}
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos[:vip+1], 0, 1); bad != 0 || n.batch.key[0] != keyOf(&r.V, 0) {
		t.Errorf("service %d of %d has key %x", vip, vip+1, n.batch.key[0])
	}
	hits, left := decidePlain(&n.batch, &n.cur.compact, &r.V, n.words, &n.clk, 0, 1)
	if hits != 1 || left != 0 {
		t.Fatalf("hits %x, left %x", hits, left)
	}
	word := int(n.infos[vip].Base + r.V.Slot[0])
	r.V.Backend[0] = 0
	if hits, left = decidePlain(&n.batch, &n.cur.compact, &r.V, n.words[:word], &n.clk, 0, 1); hits != 0 || left != 1 || r.V.Backend[0] != 0 {
		t.Errorf("word %d of %d: hits %x, left %x, backend %d", word, word, hits, left, r.V.Backend[0])
	}
	if hits, left = decidePlain(&n.batch, &n.cur.compact, &r.V, n.words, &n.clk, 1, 1); hits != 0 || left != 0 {
		t.Errorf("no lanes: hits %x, left %x", hits, left)
	}
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos, 1, 1); bad != 0 || n.batch.key[1] != 0 {
		t.Errorf("no lanes: bad %x, key %x", bad, n.batch.key[1])
	}
}
