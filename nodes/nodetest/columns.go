package nodetest

import (
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Parse sets the header and flow columns of lanes as the facts l3, l4 and flow (or
// l3 and fragment) promise them. It reads the frames by an independent decoder, and
// fails the test on what has no IP header.
func (w *Worker) Parse(in packet.Lanes) {
	w.T.Helper()
	for l := in; l != 0; l &= l - 1 {
		w.parse(l.Next())
	}
}

func (w *Worker) parse(i int) {
	w.T.Helper()
	v := &w.V
	b := v.Bytes(i)
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	at := 0 // offset of the layer in hand
	var flags packet.Flags
	for _, l := range p.Layers() {
		switch h := l.(type) {
		case *layers.Dot1Q:
			flags |= packet.Tagged
		case *layers.IPv4:
			v.L3[i], v.IPLen[i], v.Proto[i] = uint16(at), uint32(h.Length), uint8(h.Protocol)
			v.Src[i], v.Dst[i] = packet.AddrOf(ip(h.SrcIP)), packet.AddrOf(ip(h.DstIP))
			if h.Flags&layers.IPv4DontFragment != 0 {
				flags |= packet.DF
			}
			v.ID[i] = uint32(h.Id)
			flags |= fragment(h.FragOffset != 0, h.Flags&layers.IPv4MoreFragments != 0)
			v.L4[i] = uint16(at + len(l.LayerContents()))
			if h.Protocol == layers.IPProtocolICMPv4 {
				flags |= packet.ICMP
			}
			w.ports(i, flags)
			return
		case *layers.IPv6:
			v.L3[i], v.IPLen[i], v.Proto[i] = uint16(at), uint32(h.Length)+packet.IPv6Len, uint8(h.NextHeader)
			v.Src[i], v.Dst[i] = packet.AddrOf(ip(h.SrcIP)), packet.AddrOf(ip(h.DstIP))
			flags |= packet.V6 | packet.DF
			o := at + packet.IPv6Len
			if h.NextHeader == layers.IPProtocolIPv6Fragment {
				x := b[o : o+8]
				v.Proto[i] = x[0]
				v.ID[i] = uint32(x[4])<<24 | uint32(x[5])<<16 | uint32(x[6])<<8 | uint32(x[7])
				flags |= fragment(x[2] != 0 || x[3]>>3 != 0, x[3]&1 != 0)
				o += 8
			}
			v.L4[i] = uint16(o)
			if v.Proto[i] == packet.ProtoICMPv6 {
				flags |= packet.ICMP
			}
			w.ports(i, flags)
			return
		}
		at += len(l.LayerContents())
	}
	w.T.Fatalf("lane %d holds no IP packet", i)
}

func (w *Worker) ports(i int, flags packet.Flags) {
	v, l4 := &w.V, w.V.Bytes(i)[w.V.L4[i]:]
	if flags&packet.Later == 0 && len(l4) >= 4 && (v.Proto[i] == packet.ProtoTCP || v.Proto[i] == packet.ProtoUDP) {
		v.SPort[i], v.DPort[i] = uint16(l4[0])<<8|uint16(l4[1]), uint16(l4[2])<<8|uint16(l4[3])
		if v.Proto[i] == packet.ProtoTCP && len(l4) > 13 {
			v.TCP[i] = l4[13]
		}
	}
	v.Flags[i] = flags
	v.Hash[i] = packet.FlowHash(v.Src[i], v.Dst[i], v.SPort[i], v.DPort[i], v.Proto[i])
}

func fragment(offset, more bool) packet.Flags {
	switch {
	case offset:
		return packet.Later
	case more:
		return packet.First
	}
	return 0
}

func ip(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
