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

// A look-up reads sixteen buckets at most, whoever chooses the keys: of the flows
// that share a home only those are entered that find room within reach of it.
func TestProbesAreBounded(t *testing.T) {
	for _, service := range []int{web, six} {
		r := newRig(t, func(c *Config) { c.Entries = 1024 })
		r.node().begin(r.Clock)
		tb := &r.node().cur.compact
		if service == six {
			tb = &r.node().cur.full
		}
		var flows []flow
		for n := 0; len(flows) < 400; n++ {
			f := flowTo(service, n&0xffff)
			f.sport = uint16(1 + n>>4)
			r.load(0, f, ack, 0)
			if id := r.node().ident(&r.V, 0, r.V.VIP[0], &r.node().cur.keys); tb.home(id.hash) == 0 {
				flows = append(flows, f)
			}
		}
		for _, f := range flows {
			for _, flags := range []uint8{syn, ack} {
				if _, b := r.send(f, flags); b == 0 {
					t.Fatal("a packet that found no room was not sent")
				}
			}
		}
		st, _ := tb.bucket(0)
		most := (reach + 1) * len(st)
		if n := r.entries(); n != most || r.Counter("full") == 0 {
			t.Errorf("%d flows of one home are entered, %d have room; %d found none", n, most, r.Counter("full"))
		}
		near := map[uint32]bool{}
		for d := range uint32(reach + 1) {
			near[tb.step(0, d)] = true
		}
		for b := range tb.size() {
			st, _ := tb.bucket(b)
			for s, w := range st {
				if w != 0 && (!near[b] || stateOf(w) != established) {
					t.Errorf("an entry at %d/%d, in state %d", b, s, stateOf(w))
				}
			}
		}
		checkTables(t, r.node())
	}
}
