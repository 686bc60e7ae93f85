package cases_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// tunnelled is what an independent decoder finds in a frame that goes to a
// backend.
type tunnelled struct {
	backend string
	outer   *layers.IPv4
	inner   []byte // the IP packet
	tags    int
}

// gre decodes a frame that leaves in GRE over IPv4, and checks all of its outer
// header that is the same for every case.
func gre(t testing.TB, b []byte) (x tunnelled) {
	t.Helper()
	d := nodetest.Decode(b)
	if e := d.ErrorLayer(); e != nil {
		t.Fatalf("a frame that does not decode: %v\n%s", e.Error(), d.Dump())
	}
	eth := d.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !bytes.Equal(eth.DstMAC, nodetest.FromMAC) || !bytes.Equal(eth.SrcMAC, nodetest.ToMAC) {
		t.Errorf("from %s to %s: not back to who sent it", eth.SrcMAC, eth.DstMAC)
	}
	for _, l := range d.Layers() {
		switch l := l.(type) {
		case *layers.Dot1Q:
			x.tags++
			if l.VLANIdentifier != 100 {
				t.Errorf("VLAN %d", l.VLANIdentifier)
			}
		case *layers.IPv4:
			if x.outer == nil {
				x.outer = l
			}
		}
	}
	g, ok := d.Layer(layers.LayerTypeGRE).(*layers.GRE)
	if !ok || x.outer == nil {
		t.Fatalf("no GRE over IPv4:\n%s", d.String())
	}
	o := x.outer
	if o.Version != 4 || o.IHL != 5 || o.TTL != 64 || o.Flags&layers.IPv4DontFragment == 0 || o.FragOffset != 0 || o.Protocol != layers.IPProtocolGRE || o.SrcIP.String() != "192.0.2.1" {
		t.Errorf("outer header %+v", o)
	}
	if sum := checksum(o.Contents); sum != 0 {
		t.Errorf("outer header checksum is off by %#x", sum)
	}
	if g.ChecksumPresent || g.KeyPresent || g.SeqPresent || g.Version != 0 {
		t.Errorf("GRE header %+v", g)
	}
	if int(o.Length) > 1500 || int(o.Length) != 20+len(o.Payload) || len(b) != len(eth.Contents)+4*x.tags+int(o.Length) {
		t.Errorf("outer length %d of a frame of %d", o.Length, len(b))
	}
	x.inner = g.LayerPayload()
	if want := map[byte]layers.EthernetType{4: layers.EthernetTypeIPv4, 6: layers.EthernetTypeIPv6}[x.inner[0]>>4]; g.Protocol != want {
		t.Errorf("GRE protocol %v in front of IP version %d", g.Protocol, x.inner[0]>>4)
	}
	if n := ipLength(x.inner); n != len(x.inner) || int(o.Length) != 24+n {
		t.Errorf("outer length %d, inner %d", o.Length, n)
	}
	x.backend = o.DstIP.String()
	return x
}

// ipLength is what an IP header says its packet's length is.
func ipLength(b []byte) int {
	if b[0]>>4 == 6 {
		return 40 + int(b[4])<<8 + int(b[5])
	}
	return int(b[2])<<8 + int(b[3])
}

// ip decodes an IP packet.
func ip(t testing.TB, b []byte) gopacket.Packet {
	t.Helper()
	first := layers.LayerTypeIPv4
	if b[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	d := gopacket.NewPacket(b, first, gopacket.DecodeOptions{})
	if e := d.ErrorLayer(); e != nil {
		t.Fatalf("an inner packet that does not decode: %v\n%s", e.Error(), d.Dump())
	}
	return d
}

// tcp decodes a TCP segment in an IP packet and verifies its checksum.
func tcp(t testing.TB, b []byte) *layers.TCP {
	t.Helper()
	d := ip(t, b)
	h, ok := d.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok {
		t.Fatalf("no TCP:\n%s", d.String())
	}
	verify(t, d, h.LayerContents(), h.LayerPayload(), 6)
	return h
}

// verify checks the checksum of what stands behind the IP header.
func verify(t testing.TB, d gopacket.Packet, head, payload []byte, proto byte) {
	t.Helper()
	f := d.NetworkLayer().NetworkFlow()
	n := len(head) + len(payload)
	pseudo := append(append([]byte{}, f.Src().Raw()...), f.Dst().Raw()...)
	pseudo = append(pseudo, 0, proto, byte(n>>8), byte(n))
	if proto == 1 {
		pseudo = nil // ICMP over IPv4 has none
	}
	if len(pseudo)%2 != 0 {
		t.Fatal("odd")
	}
	if sum := checksum(append(append(pseudo, head...), payload...)); sum != 0 {
		t.Errorf("checksum of protocol %d is off by %#x", proto, sum)
	}
}

// checksum is RFC 1071 as its text has it: the complement of the sum of words.
func checksum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// mss answers the MSS option of a segment, 0 if it has none.
func mss(h *layers.TCP) int {
	for _, o := range h.Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			return int(o.OptionData[0])<<8 | int(o.OptionData[1])
		}
	}
	return 0
}

// reassemble puts fragments of IPv4 or IPv6 packets together, and answers the
// datagram's payload. All must be of one datagram, without gap or overlap.
func reassemble(t testing.TB, packets ...[]byte) []byte {
	t.Helper()
	whole := map[int]byte{}
	end, id := -1, ""
	for i, b := range packets {
		var at, head int
		var more bool
		var this string
		if b[0]>>4 == 4 {
			h := ip(t, b).Layer(layers.LayerTypeIPv4).(*layers.IPv4)
			if sum := checksum(h.Contents); sum != 0 {
				t.Errorf("piece %d: header checksum is off by %#x", i, sum)
			}
			at, head, more = int(h.FragOffset)*8, int(h.IHL)*4, h.Flags&layers.IPv4MoreFragments != 0
			this = fmt.Sprint(h.SrcIP, h.DstIP, h.Protocol, h.Id)
		} else {
			h, ok := ip(t, b).Layer(layers.LayerTypeIPv6Fragment).(*layers.IPv6Fragment)
			if !ok {
				t.Fatalf("piece %d is no fragment", i)
			}
			at, head, more = int(h.FragmentOffset)*8, 48, h.MoreFragments
			this = fmt.Sprint(netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), h.NextHeader, h.Identification)
		}
		if id == "" {
			id = this
		}
		if this != id {
			t.Errorf("piece %d is of %s, the first of %s", i, this, id)
		}
		for j, x := range b[head:ipLength(b)] {
			if _, twice := whole[at+j]; twice {
				t.Fatalf("byte %d came twice", at+j)
			}
			whole[at+j] = x
		}
		if !more {
			end = at + ipLength(b) - head
		}
	}
	if end != len(whole) {
		t.Fatalf("%d bytes of %d came", len(whole), end)
	}
	all := make([]byte, end)
	for i := range all {
		x, ok := whole[i]
		if !ok {
			t.Fatalf("byte %d is missing", i)
		}
		all[i] = x
	}
	return all
}
