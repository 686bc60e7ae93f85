package daemon

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A flow is what a frame says at a glance: enough to pick packets to be traced.
type flow struct {
	proto    uint8
	src, dst netip.AddrPort
	later    bool // a later fragment, which has no ports
}

// flowOf looks at an Ethernet frame. ok is false for what is not IP, or cut off.
// Extension headers are looked through as far as there are any sensible ones.
func flowOf(b []byte) (f flow, ok bool) {
	at := 12
	for range 3 {
		if len(b) < at+2 {
			return f, false
		}
		switch binary.BigEndian.Uint16(b[at:]) {
		case packet.EtherVLAN, packet.EtherQinQ:
			at += packet.TagLen
			continue
		case packet.EtherIPv4:
			return flow4(b[at+2:])
		case packet.EtherIPv6:
			return flow6(b[at+2:])
		}
		break
	}
	return f, false
}

func flow4(b []byte) (f flow, ok bool) {
	if len(b) < packet.IPv4Len || b[0]>>4 != 4 {
		return f, false
	}
	f.proto = b[9]
	f.later = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	return f.ports(src, dst, b, int(b[0]&15)*4), true
}

func flow6(b []byte) (f flow, ok bool) {
	if len(b) < packet.IPv6Len || b[0]>>4 != 6 {
		return f, false
	}
	f.proto = b[6]
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	at := packet.IPv6Len
	for range 8 {
		if len(b) < at+8 {
			break
		}
		switch f.proto {
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestOpts:
			f.proto, at = b[at], at+8+8*int(b[at+1])
			continue
		case packet.ProtoFragment:
			f.later = f.later || binary.BigEndian.Uint16(b[at+2:])&0xfff8 != 0
			f.proto, at = b[at], at+8
			continue
		}
		break
	}
	return f.ports(src, dst, b, at), true
}

func (f flow) ports(src, dst netip.Addr, b []byte, at int) flow {
	var s, d uint16
	if (f.proto == packet.ProtoTCP || f.proto == packet.ProtoUDP) && !f.later && len(b) >= at+4 {
		s, d = binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:])
	}
	f.src, f.dst = netip.AddrPortFrom(src, s), netip.AddrPortFrom(dst, d)
	return f
}

// String is the flow as it is told: "tcp 198.51.100.7:4711 > 203.0.113.80:80".
func (f flow) String() string {
	if f.proto == packet.ProtoTCP || f.proto == packet.ProtoUDP {
		name := map[uint8]string{packet.ProtoTCP: "tcp", packet.ProtoUDP: "udp"}[f.proto]
		if f.later {
			return fmt.Sprintf("%s fragment %s > %s", name, f.src.Addr(), f.dst.Addr())
		}
		return fmt.Sprintf("%s %s > %s", name, f.src, f.dst)
	}
	name := map[uint8]string{packet.ProtoICMP: "icmp", packet.ProtoICMPv6: "icmpv6"}[f.proto]
	if name == "" {
		name = fmt.Sprintf("protocol %d", f.proto)
	}
	return fmt.Sprintf("%s %s > %s", name, f.src.Addr(), f.dst.Addr())
}

// fits tells whether the frame is one that the filter asks for, as far as that
// shows when it comes.
func fits(q *admin.Filter, b []byte) bool {
	if q.Protocol == "" && !q.Source.IsValid() && !q.Destination.IsValid() && q.SourcePort == 0 && q.DestinationPort == 0 {
		return true
	}
	f, ok := flowOf(b)
	if !ok {
		return false
	}
	switch q.Protocol {
	case "tcp":
		ok = f.proto == packet.ProtoTCP
	case "udp":
		ok = f.proto == packet.ProtoUDP
	case "icmp":
		ok = f.proto == packet.ProtoICMP || f.proto == packet.ProtoICMPv6
	}
	return ok && (!q.Source.IsValid() || q.Source.Contains(f.src.Addr())) && (!q.Destination.IsValid() || q.Destination.Contains(f.dst.Addr())) &&
		(q.SourcePort == 0 || q.SourcePort == f.src.Port()) && (q.DestinationPort == 0 || q.DestinationPort == f.dst.Port())
}

// frameOf makes the first packet that a traced flow would send: a SYN or an empty
// segment, or an empty datagram, with right checksums.
func frameOf(q admin.Flow, to [6]byte) ([]byte, error) {
	src, dst := q.Source.Addr().Unmap(), q.Destination.Addr().Unmap()
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() || src.Zone()+dst.Zone() != "" {
		return nil, fmt.Errorf("source and destination must be addresses of one family, with ports")
	}
	var l4 []byte
	var proto uint8
	switch q.Protocol {
	case "tcp":
		proto, l4 = packet.ProtoTCP, make([]byte, packet.TCPLen)
		l4[12], l4[13] = packet.TCPLen/4<<4, packet.ACK
		binary.BigEndian.PutUint16(l4[14:], 65535)
		if q.SYN {
			l4[13] = packet.SYN
			l4 = append(l4, 2, 4, 1460>>8, 1460&0xff) // MSS (RFC 9293 section 3.7.1)
			l4[12] = 24 / 4 << 4
		}
	case "udp":
		proto, l4 = packet.ProtoUDP, make([]byte, packet.UDPLen)
		binary.BigEndian.PutUint16(l4[4:], packet.UDPLen)
	default:
		return nil, fmt.Errorf("protocol is %q. It can be tcp or udp", q.Protocol)
	}
	binary.BigEndian.PutUint16(l4, q.Source.Port())
	binary.BigEndian.PutUint16(l4[2:], q.Destination.Port())
	check := 16
	if proto == packet.ProtoUDP {
		check = 6
	}
	// The pseudo header: RFC 9293 section 3.1, RFC 8200 section 8.1.
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(l4)))
	pseudo = append(pseudo, 0, 0, 0, proto)
	binary.BigEndian.PutUint16(l4[check:], checksum(append(pseudo, l4...)))

	b := append([]byte{}, to[:]...)
	b = append(b, 2, 0, 0, 0, 0, 0) // locally administered
	if src.Is4() {
		b = binary.BigEndian.AppendUint16(b, packet.EtherIPv4)
		ip := make([]byte, packet.IPv4Len)
		ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, proto
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		b = append(b, ip...)
	} else {
		b = binary.BigEndian.AppendUint16(b, packet.EtherIPv6)
		ip := make([]byte, packet.IPv6Len)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
		b = append(b, ip...)
	}
	return append(b, l4...), nil
}

// checksum is the Internet checksum of b (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i, x := range b {
		sum += uint32(x) << (8 * uint(^i&1))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
