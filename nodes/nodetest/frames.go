package nodetest

import (
	"bufio"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// The addresses of the packet cases.
var (
	Client4 = netip.MustParseAddr("198.51.100.7")
	Client6 = netip.MustParseAddr("2001:db8:c::7")
	VIP4    = netip.MustParseAddr("203.0.113.10")
	VIP6    = netip.MustParseAddr("2001:db8::10")
	Local4  = netip.MustParseAddr("192.0.2.1") // of the balancer's interface
	Local6  = netip.MustParseAddr("2001:db8:f::1")
	ToMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 1} // of the balancer
	FromMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2} // of the router
)

// Cases answers the frames of testdata/cases/packets.txt by name.
func Cases(t testing.TB) map[string][]byte {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	f, err := os.Open(filepath.Join(filepath.Dir(here), "..", "..", "testdata", "cases", "packets.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]byte{}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		w := strings.Fields(in.Text())
		if len(w) != 3 || w[0] == "#" {
			continue
		}
		b, err := hex.DecodeString(w[2])
		if err != nil {
			t.Fatalf("%s: %v", w[0], err)
		}
		all[w[0]] = b
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// Frame serialises layers with lengths and checksums filled in.
func Frame(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

// Ether is the Ethernet header of a packet from the router, for IPv4 or IPv6.
func Ether(v6 bool) *layers.Ethernet {
	e := &layers.Ethernet{DstMAC: ToMAC, SrcMAC: FromMAC, EthernetType: layers.EthernetTypeIPv4}
	if v6 {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

// IP is the IP header from src to dst; both are of one family.
func IP(src, dst netip.Addr, proto layers.IPProtocol) gopacket.SerializableLayer {
	if src.Is4() {
		return &layers.IPv4{
			Version: 4, TTL: 64, Id: 0x1234, Flags: layers.IPv4DontFragment, Protocol: proto,
			SrcIP: src.AsSlice(), DstIP: dst.AsSlice(),
		}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

// TCP makes a frame with a TCP segment; change, if not nil, may alter the header.
func TCP(t testing.TB, src, dst netip.Addr, sport, dport uint16, change func(*layers.TCP), payload ...byte) []byte {
	t.Helper()
	ip := IP(src, dst, layers.IPProtocolTCP)
	tcp := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: 1, Window: 65535}
	if change != nil {
		change(tcp)
	} else {
		tcp.ACK = true
	}
	if err := tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		t.Fatal(err)
	}
	return Frame(t, Ether(!src.Is4()), ip, tcp, gopacket.Payload(payload))
}

// SYN makes a SYN with an MSS option.
func SYN(t testing.TB, src, dst netip.Addr, sport, dport, mss uint16) []byte {
	t.Helper()
	return TCP(t, src, dst, sport, dport, func(h *layers.TCP) {
		h.SYN = true
		h.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(mss >> 8), byte(mss)}}}
	})
}

// UDP makes a frame with a UDP datagram.
func UDP(t testing.TB, src, dst netip.Addr, sport, dport uint16, payload ...byte) []byte {
	t.Helper()
	ip := IP(src, dst, layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
	if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		t.Fatal(err)
	}
	return Frame(t, Ether(!src.Is4()), ip, udp, gopacket.Payload(payload))
}

// Decode reads a frame by an independent decoder.
func Decode(b []byte) gopacket.Packet {
	return gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
}
