package probe

import (
	"net/netip"
	"testing"
)

// What a connection through the tunnel costs before it is made: the kernel's routes
// are asked each time.
func BenchmarkPrepare(b *testing.B) {
	w := newWorld(b, 1)
	d := w.open(gre, w.all())
	w.node.Do(func() {
		for b.Loop() {
			if _, _, err := d.prepare(netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr(vip4)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
