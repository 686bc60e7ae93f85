// Package decap is the kind decap: it takes outer headers off, as a backend does.
package decap

import (
	"encoding/binary"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of the kind.
type Config struct {
	Port int `hcl:"port,optional" range:"1,65535" doc:"UDP port of GUE"`
}

// Outputs.
const (
	next = iota
	other
	badTunnel
)

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "decap",
		Summary: "takes GRE, IP-in-IP and GUE headers off, as backends do",
		Needs:   graph.L3 | graph.L4, Forbids: graph.VIP | graph.Sent,
		Outputs: []graph.Output{
			next:      {Name: "next", Removes: graph.L3 | graph.L4 | graph.Flow, Doc: "inner packets, to be parsed"},
			other:     {Name: "other", Else: graph.Punt, Doc: "packets that are in no tunnel, or carry something else than IP"},
			badTunnel: {Name: "bad_tunnel", Else: graph.Drop, Doc: "a tunnel header that is cut short, contradicts itself or is a fragment's"},
		},
		Defaults: Config{Port: 6080},
		Packets: func(c Config, _ *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return worker{uint16(c.Port)}, nil }, nil
		},
	})
}

type worker struct{ port uint16 }

// Process takes the outer headers off and moves the Ethernet header to the inner packet.
func (w worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		out[w.strip(v, i)] |= packet.Lane(i)
	}
}

func (w worker) strip(v *packet.Vector, i int) (output int) {
	b := v.Bytes(i)
	l3, l4 := int(v.L3[i]), int(v.L4[i])
	end := min(l3+int(v.IPLen[i]), len(b)) // Ethernet padding is behind
	if l4 > end || l3 < packet.EtherLen {
		return badTunnel
	}
	kind, size, output := w.inner(v, i, b[l4:end])
	if output != next {
		return output
	}
	if v.Flags[i]&packet.First != 0 {
		return badTunnel
	}
	at := l4 + size
	p := b[at:end]
	least, version := packet.IPv4Len, byte(4)
	if kind == packet.EtherIPv6 {
		least, version = packet.IPv6Len, 6
	}
	if len(p) < least || p[0]>>4 != version || !congestion(b[l3:], p) {
		return badTunnel
	}
	n := uint32(at - l3)
	if v.Chain[i] == packet.NoFrame {
		v.Len[i] = uint32(end)
		v.Total[i] = uint32(end)
	}
	binary.BigEndian.PutUint16(b[at-2:], kind)
	copy(b[n:], b[:l3-2])
	v.Start[i] += n
	v.Len[i] -= n
	v.Total[i] -= n
	return next
}

// inner answers the EtherType of what the tunnel header at the beginning of b leads
// to, and the header's size. b is what follows the IP headers of lane i.
func (w worker) inner(v *packet.Vector, i int, b []byte) (kind uint16, size, output int) {
	switch v.Proto[i] {
	case packet.ProtoIPIP:
		return packet.EtherIPv4, 0, next
	case packet.ProtoIPv6:
		return packet.EtherIPv6, 0, next
	case packet.ProtoGRE:
		return gre(v, i, b)
	case packet.ProtoUDP:
		if v.DPort[i] == w.port {
			return gue(b)
		}
	}
	return 0, 0, other
}

// gre reads a GRE header: RFC 2784, and key and sequence number of RFC 2890, which are
// skipped.
func gre(v *packet.Vector, i int, b []byte) (kind uint16, size, output int) {
	const checksum, key, sequence = 0x8000, 0x2000, 0x1000
	if len(b) < 4 {
		return 0, 0, badTunnel
	}
	flags := binary.BigEndian.Uint16(b)
	if flags&^(checksum|key|sequence) != 0 { // RFC 1701 routing, another version, or reserved bits
		return 0, 0, badTunnel
	}
	size = 4
	for _, f := range [...]uint16{checksum, key, sequence} {
		if flags&f != 0 {
			size += 4
		}
	}
	if size > len(b) {
		return 0, 0, badTunnel
	}
	// A chain's checksum would take all its frames to verify; inner packets have their own.
	if flags&checksum != 0 && v.Chain[i] == packet.NoFrame && packet.Sum(b) != 0xffff {
		return 0, 0, badTunnel
	}
	switch kind = binary.BigEndian.Uint16(b[2:]); kind {
	case packet.EtherIPv4, packet.EtherIPv6:
		return kind, size, next
	}
	return 0, 0, other
}

// gue reads a UDP header and a header of GUE, variant 0; optional fields are skipped.
func gue(b []byte) (kind uint16, size, output int) {
	const control = 0x20
	if len(b) < packet.UDPLen+4 {
		return 0, 0, badTunnel
	}
	h := b[packet.UDPLen:]
	size = packet.UDPLen + 4 + int(h[0]&0x1f)*4
	switch {
	case h[0]>>6 != 0 || size > len(b):
		return 0, 0, badTunnel
	case h[0]&control != 0:
		return 0, 0, other
	case h[1] == packet.ProtoIPIP:
		return packet.EtherIPv4, size, next
	case h[1] == packet.ProtoIPv6:
		return packet.EtherIPv6, size, next
	}
	return 0, 0, other
}

// congestion gives the inner packet the mark that a router on the way set on the
// outer one (RFC 6040 §4.2); false if it must not go on, as its sender knows no marks.
func congestion(outer, inner []byte) bool {
	const ce = 3
	if tos(outer)&ce != ce || tos(inner)&ce == ce {
		return true
	}
	if tos(inner)&ce == 0 {
		return false
	}
	if inner[0]>>4 == 6 {
		inner[1] |= ce << 4
		return true
	}
	was := binary.BigEndian.Uint16(inner)
	inner[1] |= ce
	sum := binary.BigEndian.Uint16(inner[10:])
	binary.BigEndian.PutUint16(inner[10:], packet.Update16(sum, was, binary.BigEndian.Uint16(inner)))
	return true
}

// tos answers the ToS byte or traffic class of an IP header.
func tos(b []byte) byte {
	if b[0]>>4 == 6 {
		return b[0]<<4 | b[1]>>4
	}
	return b[1]
}
