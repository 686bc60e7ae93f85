package runtime

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// What was sent is counted by service and backend, whichever lanes it is and however many
// services they have; numbers that nothing stands behind count in the whole alone.
func TestSentCounts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	l := &Loop{perService: make([]Traffic, 5), perBackend: make([]Traffic, 9)}
	c := &core{Loop: l}
	services, backends := make([]Traffic, 5), make([]Traffic, 9)
	var all Traffic
	add := func(to []Traffic, i uint32, n uint64) {
		if uint64(i) < uint64(len(to)) {
			to[i].Packets++
			to[i].Bytes += n
		}
	}
	var v packet.Vector
	for step := range 3000 {
		lanes := packet.All(rnd.IntN(packet.Size + 1))
		switch step % 4 {
		case 0:
			lanes = packet.Lanes(rnd.Uint64() & rnd.Uint64())
		case 1: // all but few
			lanes = packet.All(packet.Size) &^ packet.Lane(rnd.IntN(packet.Size)) &^ packet.Lane(rnd.IntN(packet.Size))
		}
		one := rnd.IntN(2) == 0
		first := uint32(rnd.IntN(7))
		for i := range packet.Size {
			v.VIP[i], v.Backend[i], v.Total[i] = uint32(rnd.IntN(7)), uint32(rnd.IntN(12)), uint32(rnd.IntN(9000))
			if one && (lanes.Has(i) || rnd.IntN(2) == 0) {
				v.VIP[i] = first
			}
			if lanes.Has(i) {
				n := uint64(v.Total[i])
				all.Packets++
				all.Bytes += n
				add(services, v.VIP[i], n)
				add(backends, v.Backend[i], n)
			}
		}
		l.gone, l.done, l.marked = 0, 0, packet.Lanes(rnd.Uint64())
		c.Sent(&v, lanes)
		if l.gone != lanes || l.done != lanes&l.marked {
			t.Fatalf("step %d: of %x, %x are gone and %x of %x done", step, lanes, l.gone, l.done, l.marked)
		}
		if l.sent != all.Packets || l.sentBytes != all.Bytes || !slices.Equal(l.perService, services) || !slices.Equal(l.perBackend, backends) {
			t.Fatalf("step %d, lanes %x: %d packets, %d bytes, by service %v, by backend %v; want %v, %v, %v", step, lanes,
				l.sent, l.sentBytes, l.perService, l.perBackend, all, services, backends)
		}
	}
}
