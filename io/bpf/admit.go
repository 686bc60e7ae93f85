package bpf

import (
	"encoding/binary"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Verdict is what becomes of a frame.
type Verdict uint8

const (
	// Pass: the kernel keeps it.
	Pass Verdict = iota
	// Redirect: the graph gets it.
	Redirect
	// Drop: it ends here; a Reason says why.
	Drop
)

// String answers pass, redirect or drop.
func (v Verdict) String() string { return [...]string{"pass", "redirect", "drop"}[v] }

// Reason says why a frame drops.
type Reason uint8

const (
	// NoReason goes with Pass and Redirect.
	NoReason Reason = iota
	// WrongPort: a VIP's address, but no service of that protocol and port.
	WrongPort
	// NoSocket: ours, but no AF_XDP socket serves the queue it came by. Only the
	// XDP program says so.
	NoSocket
)

// String answers the reason's name in drop counters, "" for none.
func (r Reason) String() string { return [...]string{"", "wrong_port", "no_socket"}[r] }

// maxHeaders bounds the walk over IPv6 extension headers.
const maxHeaders = 8

// Admit is the admission rule, as the XDP program in admission.c has it too: what
// becomes of an Ethernet frame, and which VIP (1 is rules.VIPs[0], 0 none) it
// counts for.
//
//   - What is not IP, or behind more than two VLAN tags, passes.
//   - The longest prefix that covers the destination decides. If there is none, the
//     packet passes, but for an ICMP error (destination unreachable, time exceeded,
//     parameter problem; ICMPv6 1 to 4) to one of our tunnel sources that quotes a
//     GRE, IP-in-IP or GUE packet from that very address: it is redirected.
//   - ICMPv6 133 to 137 (neighbour and router discovery, RFC 4861) passes.
//   - All other ICMP, and fragments that are not the first, are redirected.
//   - So is what is malformed such that it cannot be judged: a wrong version, lengths
//     that contradict each other, a header that ends early, extension headers out of
//     place, twice or more than eight. The graph counts why. Where not even the
//     destination can be read it passes.
//   - Of the rest (ports count for TCP and UDP, port 0 for all else) what the
//     destination serves is redirected; what it does not serve drops as wrong_port,
//     or passes if all VIPs of the destination say so.
//
// IPv4 header checksums and lengths beyond the frame are not looked at: the graph
// does that. Admit does not allocate.
func Admit(rules *Rules, frame []byte) (Verdict, Reason, uint32) {
	if len(frame) < packet.EtherLen {
		return Pass, NoReason, 0
	}
	kind := 12
	for range 2 {
		if k := binary.BigEndian.Uint16(frame[kind:]); k != packet.EtherVLAN && k != packet.EtherQinQ {
			break
		}
		if kind += packet.TagLen; kind+2 > len(frame) {
			return Pass, NoReason, 0
		}
	}
	ip := frame[kind+2:]
	switch binary.BigEndian.Uint16(frame[kind:]) {
	case packet.EtherIPv4:
		return rules.admit4(ip)
	case packet.EtherIPv6:
		return rules.admit6(ip)
	}
	return Pass, NoReason, 0
}

func (r *Rules) admit4(ip []byte) (Verdict, Reason, uint32) {
	if len(ip) < packet.IPv4Len {
		return Pass, NoReason, 0
	}
	dst := packet.Addr4(binary.BigEndian.Uint32(ip[16:]))
	t := find(&r.byAddr, r.lens[0], dst, 0)
	size, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	place := binary.BigEndian.Uint16(ip[6:])
	proto := ip[9]
	lies := ip[0]>>4 != 4 || size < packet.IPv4Len || total < size
	if t == 0 {
		if lies || proto != packet.ProtoICMP || place&(packet.IPv4MF|packet.IPv4Offset) != 0 ||
			find(&r.tunnel, r.tunLens[0], dst, 0) == 0 {
			return Pass, NoReason, 0
		}
		end := min(total, len(ip))
		if size+packet.ICMPLen > end {
			return Pass, NoReason, 0
		}
		if k := ip[size]; k != 3 && k != 11 && k != 12 || !r.ours4(ip[size+packet.ICMPLen:end], [4]byte(ip[16:])) {
			return Pass, NoReason, 0
		}
		return Redirect, NoReason, 0
	}
	if lies || place&packet.IPv4Offset != 0 || proto == packet.ProtoICMP {
		return Redirect, NoReason, r.targets[t-1].vip
	}
	port := uint16(0)
	if proto == packet.ProtoTCP || proto == packet.ProtoUDP {
		if size+4 > min(total, len(ip)) {
			return Redirect, NoReason, r.targets[t-1].vip
		}
		port = binary.BigEndian.Uint16(ip[size+2:])
	}
	return r.judge(t-1, proto, port)
}

func (r *Rules) admit6(ip []byte) (Verdict, Reason, uint32) {
	if len(ip) < packet.IPv6Len {
		return Pass, NoReason, 0
	}
	dst := packet.Addr6(ip[24:])
	t := find(&r.byAddr, r.lens[1], dst, 1)
	unclear, vip := Pass, uint32(0)
	switch {
	case t != 0:
		unclear, vip = Redirect, r.targets[t-1].vip
	case find(&r.tunnel, r.tunLens[1], dst, 1) == 0:
		return Pass, NoReason, 0
	}
	if ip[0]>>4 != 6 {
		return unclear, NoReason, vip
	}
	proto, off := ip[6], packet.IPv6Len
	limit := packet.IPv6Len + int(binary.BigEndian.Uint16(ip[4:]))
	end := min(limit, len(ip))
	seen := false // a fragment header
walk:
	for n := 0; ; n++ {
		switch proto {
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestOpts, packet.ProtoFragment:
		default:
			break walk
		}
		if n == maxHeaders || off+8 > end {
			return unclear, NoReason, vip
		}
		h := ip[off:]
		if proto == packet.ProtoFragment {
			if seen || binary.BigEndian.Uint16(h[2:])&0xfff8 != 0 {
				return unclear, NoReason, vip // a later fragment, or two headers
			}
			seen = true
			off += 8
		} else {
			if proto == packet.ProtoHopByHop && n != 0 {
				return unclear, NoReason, vip
			}
			if off += (int(h[1]) + 1) * 8; off > limit {
				return unclear, NoReason, vip
			}
		}
		proto = h[0]
	}
	if proto == packet.ProtoICMPv6 {
		if off+1 > end {
			return unclear, NoReason, vip
		}
		k := ip[off]
		switch {
		case k >= 133 && k <= 137:
			return Pass, NoReason, 0
		case t != 0:
			return unclear, NoReason, vip
		case seen || k < 1 || k > 4 || off+packet.ICMPLen > end || !r.ours6(ip[off+packet.ICMPLen:end], [16]byte(ip[24:])):
			return Pass, NoReason, 0
		}
		return Redirect, NoReason, 0
	}
	if t == 0 {
		return Pass, NoReason, 0
	}
	port := uint16(0)
	if proto == packet.ProtoTCP || proto == packet.ProtoUDP {
		if off+4 > end {
			return unclear, NoReason, vip
		}
		port = binary.BigEndian.Uint16(ip[off+2:])
	}
	return r.judge(t-1, proto, port)
}

// judge decides on a packet to target t whose protocol and port are known.
func (r *Rules) judge(t uint32, proto uint8, port uint16) (Verdict, Reason, uint32) {
	k := portKey(t, proto, port)
	if vip := r.byPort.get(k, hashPort(k)); vip != 0 {
		return Redirect, NoReason, vip
	}
	to := &r.targets[t]
	any := uint32(0)
	for i := range to.ranges {
		x := &to.ranges[i]
		if port < x.lo || port > x.hi {
			continue
		}
		if x.proto == proto {
			return Redirect, NoReason, x.vip
		}
		if x.proto == 0 && any == 0 {
			any = x.vip
		}
	}
	if to.any {
		k := portKey(t, 0, port)
		if vip := r.byPort.get(k, hashPort(k)); vip != 0 {
			return Redirect, NoReason, vip
		}
	}
	switch {
	case any != 0:
		return Redirect, NoReason, any
	case to.leave:
		return Pass, NoReason, to.vip
	}
	return Drop, WrongPort, to.vip
}

// ours4 tells whether the packet that an ICMP error to src quotes is one that we
// sent from there through a tunnel.
func (r *Rules) ours4(q []byte, src [4]byte) bool {
	if len(q) < packet.IPv4Len || q[0]>>4 != 4 || q[0]&0xf < 5 ||
		[4]byte(q[12:]) != src || binary.BigEndian.Uint16(q[6:])&packet.IPv4Offset != 0 {
		return false
	}
	return r.tunnelled(q[9], q, int(q[0]&0xf)*4)
}

// ours6 is ours4 for IPv6.
func (r *Rules) ours6(q []byte, src [16]byte) bool {
	return len(q) >= packet.IPv6Len && q[0]>>4 == 6 && [16]byte(q[8:]) == src && r.tunnelled(q[6], q, packet.IPv6Len)
}

func (r *Rules) tunnelled(proto uint8, q []byte, l4 int) bool {
	switch proto {
	case packet.ProtoGRE, packet.ProtoIPIP, packet.ProtoIPv6:
		return true
	case packet.ProtoUDP:
		if l4+4 > len(q) {
			return false
		}
		port := binary.BigEndian.Uint16(q[l4+2:])
		for _, p := range r.gue {
			if p == port {
				return port != 0
			}
		}
	}
	return false
}
