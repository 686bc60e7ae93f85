package conntrack

import (
	"math/rand/v2"
	"testing"
)

// TestScaleOfConnections: a table takes 128 thousand, a million and eight million
// connections, for as much memory each, and finds them in as few lines: as many of
// them stand where a look-up looks first.
func TestScaleOfConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("short: fills tables of up to 8 million connections")
	}
	type figures struct {
		entries         int
		bytes, away     float64 // of an entry; share of the entries that are not at home
		furthest, lines uint32
	}
	var all []figures
	for _, entries := range []int{1 << 17, 1 << 20, 1 << 23} {
		r := newRig(t, func(c *Config) { c.Entries = entries })
		n := r.node()
		n.begin(r.Clock)
		w := word(established, 0, n.clk.now[tcp<<2|established])
		flow := func(k int) *ident {
			id := &ident{compact: web<<48 | uint64(k)*0x9e3779b97f4a7c15>>16&(1<<48-1)}
			id.hash = hashCompact(&n.cur.keys, id.compact)
			return id
		}
		// Steps are bounded, so that by chance one in millions finds no room when nearly all
		// are there: its packets go by the table.
		refused := map[int]bool{}
		for k := range entries {
			if !n.insert(&n.cur.compact, flow(k), w, evictReach) {
				refused[k] = true
			}
		}
		if len(refused) > entries/1_000_000+2 {
			t.Errorf("%d of %d entries found no room", len(refused), entries)
		}
		if used := n.cur.used(); used != entries-len(refused) {
			t.Fatalf("%d of %d entries are there, %d found no room", used, entries, len(refused))
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 100_000 {
			k := rnd.IntN(entries)
			if refused[k] {
				continue
			}
			if b, s := n.cur.compact.find(flow(k)); s < 0 || n.cur.compact.lines[b].st[s] == 0 {
				t.Fatalf("%d entries: number %d is not found", entries, k)
			}
		}
		f := figures{entries: entries, bytes: float64(len(n.cur.mem)) / float64(entries), lines: n.cur.compact.size()}
		away := 0
		for b := range n.cur.compact.lines {
			l := &n.cur.compact.lines[b]
			f.furthest = max(f.furthest, l.over>>overShift)
			for s := range l.st {
				if l.st[s] != 0 && n.cur.compact.home(n.cur.compact.hashAt(uint32(b), s)) != uint32(b) {
					away++
				}
			}
		}
		f.away = float64(away) / float64(entries)
		all = append(all, f)
		t.Logf("%+v", f)
	}
	small := all[0]
	for _, f := range all[1:] {
		if f.bytes > 1.01*small.bytes {
			t.Errorf("an entry takes %.1f bytes of %d entries, %.1f of %d", f.bytes, f.entries, small.bytes, small.entries)
		}
		if f.away > 1.1*small.away || f.away > 0.25 || f.furthest > reach {
			t.Errorf("%.3f of %d entries are not at home, the furthest %d steps on; %.3f of %d", f.away, f.entries, f.furthest, small.away, small.entries)
		}
	}
}
