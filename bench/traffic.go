package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Load says what packets come.
type Load struct {
	// Flows is the number of flows that packets belong to; each comes once before any
	// comes again.
	Flows int
	// NewFlows is the percentage of packets that begin a flow which was not seen
	// before: SYNs, where it is TCP.
	NewFlows int
	// Sizes are frames' lengths in bytes without checksum, in turn; nil is 60.
	Sizes []int
	// Echo makes all packets echo requests.
	Echo bool
}

// Check answers what is wrong with l.
func (l *Load) Check() error {
	if l.Flows < 1 || l.Flows > maxFlows {
		return fmt.Errorf("there can be 1 to %d flows, not %d", maxFlows, l.Flows)
	}
	if l.NewFlows < 0 || l.NewFlows > 100 {
		return fmt.Errorf("0 to 100 percent of packets can be of new flows, not %d", l.NewFlows)
	}
	for _, s := range l.Sizes {
		if s < 60 || s > 1514 {
			return fmt.Errorf("frames have 60 to 1514 bytes, not %d", s)
		}
	}
	return nil
}

// maxFlows leaves as many numbers for new flows as there are.
const maxFlows = 1 << 26

// Traffic makes the packets of a Load towards the services of a snapshot. Packets
// are whole and right, checksums included; what follows their headers is zero
// as long as nobody writes there.
type Traffic struct {
	Load
	classes []class
	sizes   []uint32
	flow    int    // the next
	fresh   uint32 // new flows so far
	turn    int    // of sizes
	rnd     uint64
	phase   phase
	lone    bool // all packets are resets of 1024 flows that nobody knows
}

// phase says in which state the flows are that all know.
type phase uint8

const (
	going phase = iota
	opening
)

// class is the packets towards one service: a header with a SYN, and one without.
// They lack source address and port, whose sums are added.
type class struct {
	header   [2][96]byte
	length   [2]int
	v6       bool
	l4, sum  int // offset of the transport header, of its checksum in it
	portless bool
}

// NewTraffic makes the packets of l towards all enabled services of s that are of one
// address, the first port of each.
func NewTraffic(l Load, s *state.Snapshot, to [6]byte) (*Traffic, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	t := &Traffic{Load: l, rnd: 1}
	for _, n := range l.Sizes {
		t.sizes = append(t.sizes, uint32(n))
	}
	if len(t.sizes) == 0 {
		t.sizes = []uint32{60}
	}
	for i := range s.Services {
		if v := &s.Services[i]; v.ID != 0 && v.Enabled {
			t.classes = append(t.classes, newClass(v, to, l.Echo))
		}
	}
	if len(t.classes) == 0 {
		return nil, errors.New("there is no enabled VIP to make packets for")
	}
	return t, nil
}

// over tells, where all flows are new, that there were as many as Flows, and begins
// them again.
func (t *Traffic) over() bool {
	if t.NewFlows < 100 || int(t.fresh) < t.Flows {
		return false
	}
	t.fresh = 0
	return true
}

var from = [6]byte{2, 0, 0, 0, 0, 2} // the router that packets come from

func newClass(v *state.Service, to [6]byte, echo bool) (c class) {
	be := binary.BigEndian
	dst := v.Prefix.Masked().Addr()
	proto := v.Proto
	if proto == 0 {
		proto = packet.ProtoTCP
	}
	for syn := range c.header {
		h := c.header[syn][:]
		copy(h, to[:])
		copy(h[6:], from[:])
		c.v6 = dst.Is6()
		if c.v6 {
			be.PutUint16(h[12:], packet.EtherIPv6)
			h[14], h[21] = 0x60, 64
			d := dst.As16()
			copy(h[38:], d[:])
			c.l4 = packet.EtherLen + packet.IPv6Len
		} else {
			be.PutUint16(h[12:], packet.EtherIPv4)
			h[14], h[20], h[22] = 0x45, 0x40, 64
			d := dst.As4()
			copy(h[30:], d[:])
			c.l4 = packet.EtherLen + packet.IPv4Len
		}
		p := h[c.l4:]
		next := proto
		switch {
		case echo && c.v6:
			p[0], next, c.sum, c.portless = packet.ICMP6Echo, packet.ProtoICMPv6, 2, true
			c.length[syn] = packet.ICMPLen
		case echo:
			p[0], next, c.sum, c.portless = packet.ICMPEcho, packet.ProtoICMP, 2, true
			c.length[syn] = packet.ICMPLen
		case proto == packet.ProtoTCP:
			be.PutUint16(p[2:], v.Lo)
			be.PutUint16(p[14:], 65535)
			p[12], p[13] = 0x50, packet.ACK
			c.length[syn] = packet.TCPLen
			if syn == 1 {
				p[12], p[13] = 0x60, packet.SYN
				copy(p[20:], []byte{2, 4, 1460 >> 8, 1460 & 0xff})
				c.length[syn] += 4
			}
			c.sum = 16
		default:
			be.PutUint16(p[2:], v.Lo)
			c.sum, c.length[syn] = 6, packet.UDPLen
		}
		if c.v6 {
			h[20] = next
		} else {
			h[23] = next
		}
	}
	return c
}

// Next writes the next packet to b and answers its length.
func (t *Traffic) Next(b []byte) (size int) {
	size = int(t.sizes[t.turn])
	if t.turn++; t.turn == len(t.sizes) {
		t.turn = 0
	}
	if t.lone {
		n := maxFlows + t.fresh%1024
		t.fresh++
		t.classes[n%uint32(len(t.classes))].write(b, size, 0, n)
		tcp := b[packet.EtherLen+packet.IPv4Len:]
		sum := packet.Update16(binary.BigEndian.Uint16(tcp[16:]), packet.ACK, packet.RST)
		tcp[13] = packet.RST
		binary.BigEndian.PutUint16(tcp[16:], sum)
		return size
	}
	syn := 0
	if t.NewFlows > 0 {
		t.rnd = t.rnd*6364136223846793005 + 1442695040888963407
		if int(packet.Reduce(t.rnd, 100)) < t.NewFlows {
			syn = 1
		}
	}
	var n uint32
	if syn == 1 {
		n = maxFlows + t.fresh%(1<<32-maxFlows)
		t.fresh++
	} else {
		n = uint32(t.flow)
		if t.flow++; t.flow == t.Flows {
			t.flow = 0
		}
		if t.phase == opening {
			syn = 1
		}
	}
	c := &t.classes[n%uint32(len(t.classes))]
	size = max(size, c.l4+c.length[syn])
	c.write(b, size, syn, n)
	return size
}

// write makes the packet of flow n. Flows differ in address and port, and flows that
// follow each other have neither near each other.
func (c *class) write(b []byte, size, syn int, n uint32) {
	be := binary.BigEndian
	h := b[:len(c.header[syn])]
	copy(h, c.header[syn][:c.l4+c.length[syn]])
	clear(h[c.l4+c.length[syn]:])
	x := bits.Reverse32(n * 0x9e3779b1)
	client := x & 0x1ffff // of 198.18.0.0/15, or the last bits of 2001:2::/48
	port := uint16(1024 + x>>17)
	length := uint16(size - c.l4)
	sum := uint32(0)
	if c.v6 {
		be.PutUint16(h[18:], length)
		be.PutUint32(h[22:], 0x20010002)
		be.PutUint32(h[34:], client)
		sum = packet.PseudoSum(packet.Addr6(h[22:]), packet.Addr6(h[38:]), h[20], uint32(length))
	} else {
		be.PutUint16(h[16:], uint16(size-packet.EtherLen))
		be.PutUint32(h[26:], 198<<24|18<<16|client)
		be.PutUint16(h[24:], packet.Checksum(h[14:34]))
		sum = packet.PseudoSum(packet.Addr4(be.Uint32(h[26:])), packet.Addr4(be.Uint32(h[30:])), h[23], uint32(length))
	}
	p := h[c.l4:]
	if c.portless {
		be.PutUint16(p[4:], port)
		if !c.v6 {
			sum = 0
		}
	} else {
		be.PutUint16(p, port)
		if c.sum == 6 {
			be.PutUint16(p[4:], length)
		}
	}
	be.PutUint16(p[c.sum:], packet.AddSum(0xffff, sum+packet.Sum(p[:c.length[syn]])))
}
