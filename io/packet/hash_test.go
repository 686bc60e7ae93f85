package packet_test

import (
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Neighbouring ports, addresses and identifications fall evenly into few classes,
// whichever bits decide.
func TestFlowHashIsEven(t *testing.T) {
	const n, classes = 6000, 6
	dst := packet.Addr4(0xcb00710a)
	for name, flow := range map[string]func(i int) uint64{
		"source port":      func(i int) uint64 { return packet.FlowHash(packet.Addr4(0xc6336407), dst, uint16(1000+i), 443, 17) },
		"destination port": func(i int) uint64 { return packet.FlowHash(packet.Addr4(0xc6336407), dst, 1000, uint16(i), 17) },
		"source":           func(i int) uint64 { return packet.FlowHash(packet.Addr4(uint32(i)), dst, 1000, 443, 17) },
		"IPv6 source":      func(i int) uint64 { return packet.FlowHash(packet.Addr{Hi: uint64(i), Lo: 1}, dst, 1000, 443, 17) },
	} {
		for shift := 0; shift <= 32; shift += 8 {
			var count [classes]int
			for i := range n {
				h := flow(i)
				count[packet.Reduce(h<<shift, classes)]++
			}
			// Each is binomial with mean 1000 and deviation 29.
			for c, got := range count {
				if got < 850 || got > 1150 {
					t.Errorf("%s, bits from %d on: %d of %d in class %d of %d", name, 63-shift, got, n, c, classes)
				}
			}
		}
	}
}
