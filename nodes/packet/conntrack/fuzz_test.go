package conntrack

import (
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// Columns of any value, in any order, with time between: the tables stay sound, and
// what is answered is consistent.
func FuzzProcess(f *testing.F) {
	for _, c := range nodetest.Cases(f) {
		f.Add(c)
	}
	r := newRig(f, func(c *Config) { c.Entries = 1024 })
	f.Fuzz(func(t *testing.T, b []byte) {
		r.t, r.T = t, t
		n, err := newNode(Config{Entries: 1024, Timeouts: r.node().cfg.Timeouts}, r.Worker, r.r.Cell)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.node().Close()
		r.Node = n
		for len(b) >= 8 {
			n := min(packet.Size, len(b)/8)
			for i := range n {
				x := b[8*i : 8*i+8]
				r.load(i, flowTo(web+int(x[0])%6, int(x[1])), x[2], packet.Flags(x[3])<<8|packet.Flags(x[4]))
				if x[5] == 0 {
					r.V.VIP[i] = uint32(x[6])
				}
			}
			for l := r.pass(packet.All(n)); l != 0; l &= l - 1 {
				if i := l.Next() & 63; r.V.Backend[i] == 0 {
					t.Fatalf("lane %d hit without a backend", i)
				}
			}
			switch x := b[7]; {
			case x < 8:
				r.wait(time.Duration(x) * time.Second)
			case x < 16:
				r.Clock += int64(x) * 5e9
			case x == 16:
				r.node().Flush(uint32(b[6]))
			case x == 17:
				r.reload(func(c *Config) { c.Entries = 1024 << (b[6] & 1) })
			}
			b = b[8*n:]
		}
		checkTables(t, r.node())
	})
}
