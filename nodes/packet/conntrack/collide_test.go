package conntrack

import (
	"math/rand/v2"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Flows in order find room as flows at random do, whatever the secret keys: a table
// takes as many entries as it is for, so that none is refused or evicted before.
func TestFlowsInOrderFindRoom(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Entries = 1024 })
	n := r.node()
	n.begin(r.Clock)
	w := word(established, 0, n.clk.now[tcp<<2|established]) // which is never evicted
	for _, c := range []struct {
		name string
		flow func(k uint32) (src uint32, sport uint16)
	}{
		{"ports of a client", func(k uint32) (uint32, uint16) { return 0xc6330007, uint16(1024 + k) }},
		{"every eighth port", func(k uint32) (uint32, uint16) { return 0xc6330007, uint16(1024 + 8*k) }},
		{"clients of a network", func(k uint32) (uint32, uint16) { return 0xc6330000 + k, 1024 }},
		{"clients of many networks", func(k uint32) (uint32, uint16) { return 0x0a000001 + k<<8, 1024 }},
		{"clients and ports in step", func(k uint32) (uint32, uint16) { return 0xc6330000 + k, uint16(1024 + k) }},
		{"ports of some clients", func(k uint32) (uint32, uint16) { return 0xc6330000 + k%64, uint16(1024 + k/64) }},
	} {
		rnd := rand.New(rand.NewPCG(7, 7))
		for range 300 {
			for i := range n.cur.keys {
				n.cur.keys[i] = rnd.Uint64() | 1
			}
			for _, wide := range []bool{false, true} {
				for k := range uint32(1024) {
					src, sport := c.flow(k)
					id := ident{wide: wide}
					if wide {
						id.full = wideKey{src: packet.Addr4(src), dst: packet.Addr4(0xc6120001), rest: uint64(sport)<<48 | 443<<32 | 6<<24 | net4}
						id.hash = hashWide(&n.cur.keys, &id.full)
					} else {
						id.compact = web<<48 | uint64(sport)<<32 | uint64(src)
						id.hash = hashCompact(&n.cur.keys, id.compact)
					}
					if !n.insert(n.cur.of(&id), &id, w, evictReach) {
						t.Fatalf("%s, wide %v, secret %x: no room for entry %d", c.name, wide, n.cur.keys, k)
					}
				}
				clear(n.cur.compact.lines)
				clear(n.cur.full.wide)
				n.cur.count = [4]int{}
			}
		}
	}
}

// Flows whose keys have the same home and the same bits of the hash beside it are
// still different flows: only the whole key tells them apart.
func TestEqualHashesAreNotEnough(t *testing.T) {
	for _, service := range []int{six, net4, anyIP} {
		r := newRig(t, func(c *Config) { c.Entries = 1024 })
		tb := &r.node().cur.full
		type place struct {
			home uint32
			tag  uint16
		}
		first := map[place]flow{}
		var a, b flow
		for n := 0; n < 1<<20 && b.sport == 0; n++ {
			f := flowTo(service, n&0xffff)
			f.sport = uint16(1 + n>>4)
			if service == anyIP {
				f.proto, f.dport = 17, 9
			}
			r.load(0, f, ack, 0)
			var id ident
			r.node().wideIdent(&r.V, 0, r.V.VIP[0], &r.node().cur.keys, &id)
			p := place{tb.home(id.hash), tagOf(id.hash)}
			if g, ok := first[p]; ok && g != f {
				a, b = g, f
			}
			first[p] = f
		}
		if b.sport == 0 {
			t.Fatal("no two flows meet")
		}
		r.want("the first flow", a, syn, false)
		if service != anyIP {
			r.want("its ACK", a, ack, true)
		}
		r.want("a flow of the same hash", b, ack, false)
		r.want("which then has an entry of its own", b, ack, true)
		r.want("and the first keeps its", a, ack, true)
		if r.entries() != 2 {
			t.Errorf("%d entries", r.entries())
		}
		checkTables(t, r.node())
	}
}
