package conntrack

import "testing"

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
