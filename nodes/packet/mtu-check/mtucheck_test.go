package mtucheck

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// Backends by number.
const (
	over4 = iota + 1
	over6
	narrow
	gone
)

var (
	be    = binary.BigEndian
	world = &state.Snapshot{Backends: []state.Backend{
		{},
		over4:  {Addr: netip.MustParseAddr("10.0.1.1")},
		over6:  {Addr: netip.MustParseAddr("2001:db8:1::1")},
		narrow: {Addr: netip.MustParseAddr("10.0.1.2"), MTU: 1000},
	}}
)

func rig(t testing.TB, configure func(*Config), opts ...nodetest.Option) *nodetest.Worker {
	return nodetest.New(t, "mtu-check", configure, append(opts, nodetest.WithState(world))...).Workers[0]
}

// send runs one frame on its way to a backend and answers the output.
func send(t testing.TB, w *nodetest.Worker, backend uint32, frame []byte) string {
	t.Helper()
	w.Reuse()
	in := w.Load(frame)
	w.Parse(in)
	w.V.Backend[0], w.V.VIP[0] = backend, 7
	clear(w.Counters)
	return w.Only(w.Process(in), 0)
}

// udp makes a datagram in an IP packet of n bytes. IPv4 has DF set.
func udp(t testing.TB, v6 bool, n int) []byte {
	src, dst, head := nodetest.Client4, nodetest.VIP4, 28
	if v6 {
		src, dst, head = nodetest.Client6, nodetest.VIP6, 48
	}
	data := make([]byte, n-head)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return nodetest.UDP(t, src, dst, 5001, 4500, data...)
}

// may changes the IPv4 word of flags and offset, and the ID, of a frame without tags.
func may(b []byte, word uint16) []byte {
	b = bytes.Clone(b)
	be.PutUint16(b[20:], word)
	be.PutUint16(b[24:], 0)
	be.PutUint16(b[24:], packet.Checksum(b[14:14+int(b[14]&0xf)*4]))
	return b
}

func TestFits(t *testing.T) {
	w := rig(t, nil)
	for _, x := range []struct {
		name    string
		backend uint32
		v6      bool
		limit   int
	}{
		{"GRE over IPv4", over4, false, 1476},
		{"GRE over IPv6", over6, false, 1456},
		{"IPv6 in GRE over IPv4", over4, true, 1476},
		{"IPv6 in GRE over IPv6", over6, true, 1456},
		{"learned MTU", narrow, false, 976},
		{"a backend the snapshot lacks", gone, false, 1456},
	} {
		frame := udp(t, x.v6, x.limit)
		if out := send(t, w, x.backend, frame); out != "next" || !bytes.Equal(w.V.Bytes(0), frame) || w.V.Backend[0] != x.backend {
			t.Errorf("%s: %d bytes leave by %q", x.name, x.limit, out)
		}
		if out := send(t, w, x.backend, udp(t, x.v6, x.limit+1)); out != "reply" {
			t.Errorf("%s: %d bytes leave by %q", x.name, x.limit+1, out)
		}
	}
	// Padding is not part of the packet.
	if out := send(t, w, over4, append(udp(t, false, 1476), make([]byte, 30)...)); out != "next" {
		t.Errorf("padded: leaves by %q", out)
	}
}

// A vector of all sizes, dense and sparse.
func TestVector(t *testing.T) {
	w := rig(t, func(c *Config) { c.ICMPBurst = 100 })
	var frames [][]byte
	for i := range packet.Size {
		frames = append(frames, udp(t, false, 1476-32+i))
	}
	for _, in := range []packet.Lanes{packet.All(64), 0x5555555555555555, 1 << 63, 0xfffe000000000000} {
		w.Load(frames...)
		w.Parse(packet.All(64))
		for i := range packet.Size {
			w.V.Backend[i] = over4
		}
		ans := w.Process(in)
		if want := in & packet.All(33); ans["next"] != want || ans["reply"]|ans["icmp_limited"] != in&^want {
			t.Errorf("%b: next %b, reply %b", in, ans["next"], ans["reply"])
		}
		w.Reuse()
	}
}

// Tokens go to the first lanes of a vector that ask for one; each error tells the length of
// its own lane's backend.
func TestVectorBeyondTheLimit(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, func(c *Config) { c.Oversize = "drop" })
	short, long, gives := udp(t, false, 576), udp(t, false, 1500), may(c["udp-1500-df"], 0)
	var frames [][]byte
	for range packet.Size / 4 {
		frames = append(frames, short, long, gives, long)
	}
	in := w.Load(frames...)
	w.Parse(in)
	for i := range packet.Size {
		w.V.Backend[i] = over4 + uint32(i/2%2)
	}
	ans := w.Process(in)
	const every, ask = 0x1111111111111111, packet.Lanes(0xaaaaaaaaaaaaaaaa)
	first := ask & packet.All(20)
	if ans["next"] != every || ans["too_big"] != every<<2 || ans["reply"] != first || ans["icmp_limited"] != ask&^first {
		t.Errorf("%v", ans)
	}
	for i := range packet.Size {
		b := w.V.Bytes(i)
		if !first.Has(i) {
			if !bytes.Equal(b, frames[i]) {
				t.Errorf("lane %d was changed", i)
			}
			continue
		}
		if want := []uint16{1476, 1456}[i/2%2]; b[34] != 3 || b[35] != 4 || be.Uint16(b[40:]) != want {
			t.Errorf("lane %d: % x, want MTU %d", i, b[34:42], want)
		}
	}
}

func TestReply(t *testing.T) {
	c := nodetest.Cases(t)
	tag := func(b []byte) []byte {
		return append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 100), b[12:]...)
	}
	for _, x := range []struct {
		name    string
		frame   []byte
		backend uint32
		mtu     int
	}{
		{"udp-1500-df", c["udp-1500-df"], over4, 1476},
		{"over IPv6", c["udp-1500-df"], over6, 1456},
		{"tagged", tag(c["udp-1500-df"]), over4, 1476},
		{"IPv6", udp(t, true, 1500), over4, 1476},
		{"IPv6, tagged, over IPv6", tag(udp(t, true, 1457)), over6, 1456},
		{"IPv6, never below 1280", udp(t, true, 1200), narrow, 1280},
		{"first fragment", may(udp(t, false, 1500), 0x6000), over4, 1476},
	} {
		w := rig(t, nil)
		if out := send(t, w, x.backend, x.frame); out != "reply" {
			t.Errorf("%s: leaves by %q", x.name, out)
			continue
		}
		got := w.V.Bytes(0)
		p, was := nodetest.Decode(got), nodetest.Decode(x.frame)
		if e := p.ErrorLayer(); e != nil {
			t.Fatalf("%s: %v", x.name, e.Error())
		}
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if eth.SrcMAC.String() != nodetest.ToMAC.String() || eth.DstMAC.String() != nodetest.FromMAC.String() {
			t.Errorf("%s: from %v to %v", x.name, eth.SrcMAC, eth.DstMAC)
		}
		if (p.Layer(layers.LayerTypeDot1Q) != nil) != (was.Layer(layers.LayerTypeDot1Q) != nil) {
			t.Errorf("%s: the tag changed", x.name)
		}
		if from, to := p.NetworkLayer().NetworkFlow().Endpoints(); was.NetworkLayer().NetworkFlow() != p.NetworkLayer().NetworkFlow().Reverse() {
			t.Errorf("%s: from %v to %v", x.name, from, to)
		}
		whole := append(bytes.Clone(was.NetworkLayer().LayerContents()), was.NetworkLayer().LayerPayload()...)
		var quoted []byte
		v := &w.V
		switch ip := p.NetworkLayer().(type) {
		case *layers.IPv4:
			h := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
			quoted = h.Payload
			if packet.Checksum(ip.Contents) != 0 || packet.Checksum(ip.Payload) != 0 {
				t.Errorf("%s: checksums", x.name)
			}
			if h.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || h.Id != 0 || int(h.Seq) != x.mtu {
				t.Errorf("%s: %v, %d %d", x.name, h.TypeCode, h.Id, h.Seq)
			}
			if ip.FragOffset != 0 || ip.Flags != 0 || ip.TTL != 64 || ip.IHL != 5 || ip.Length != 576 || v.IPLen[0] != 576 || v.Proto[0] != 1 {
				t.Errorf("%s: %+v", x.name, ip)
			}
		case *layers.IPv6:
			h := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
			quoted = h.Payload[4:]
			size := min(1280, len(whole)+48)
			if packet.Fold(packet.PseudoSum(v.Src[0], v.Dst[0], 58, uint32(len(ip.Payload)))+packet.Sum(ip.Payload)) != 0xffff {
				t.Errorf("%s: checksum", x.name)
			}
			if h.TypeCode != layers.CreateICMPv6TypeCode(2, 0) || int(be.Uint32(h.Payload)) != x.mtu {
				t.Errorf("%s: %v, %x", x.name, h.TypeCode, h.Payload[:4])
			}
			if int(ip.Length) != size-40 || ip.HopLimit != 64 || int(v.IPLen[0]) != size || v.Proto[0] != 58 {
				t.Errorf("%s: %+v", x.name, ip)
			}
		}
		if !bytes.Equal(quoted, whole[:len(quoted)]) || len(quoted) < 548 {
			t.Errorf("%s: %d bytes quoted:\n%x\n%x", x.name, len(quoted), quoted, whole)
		}
		if v.Backend[0] != 0 || v.VIP[0] != 0 || v.Flags[0]&(packet.ICMP|packet.First) != packet.ICMP || int(v.Len[0]) != int(v.L3[0])+int(v.IPLen[0]) || v.Total[0] != v.Len[0] {
			t.Errorf("%s: backend %d, service %d, flags %b, %d of %d bytes", x.name, v.Backend[0], v.VIP[0], v.Flags[0], v.Len[0], v.Total[0])
		}
		if v.Src[0].Netip().String() != p.NetworkLayer().NetworkFlow().Src().String() || v.TCP[0] != 0 || v.DPort[0] != 0 {
			t.Errorf("%s: columns are not the answer's", x.name)
		}
	}
}

func TestNoReply(t *testing.T) {
	c := nodetest.Cases(t)
	from := func(v6 bool, addr string) []byte {
		src, dst := netip.MustParseAddr(addr), nodetest.VIP4
		if v6 {
			dst = nodetest.VIP6
		}
		return nodetest.UDP(t, src, dst, 1, 4500, make([]byte, 1472)...)
	}
	group := bytes.Clone(c["udp-1500-df"])
	group[0] = 0x01
	later6 := bytes.Clone(c["v6-frag2"])
	later6 = append(later6, make([]byte, 1300)...)
	be.PutUint16(later6[18:], uint16(len(later6)-54))
	error4 := may(nodetest.Frame(t, nodetest.Ether(false), nodetest.IP(nodetest.Client4, nodetest.VIP4, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4)}), 0x4000)
	error4 = append(error4[:42], make([]byte, 1458)...)
	be.PutUint16(error4[16:], 1486)
	error4 = may(error4, 0x4000)
	w := rig(t, nil)
	for name, frame := range map[string][]byte{
		"later fragment":           may(c["udp-1500-df"], 0x4001),
		"later IPv6 fragment":      later6,
		"ICMP":                     error4,
		"frame to a group":         group,
		"from a group":             from(false, "224.0.0.5"),
		"from broadcast":           from(false, "255.255.255.255"),
		"from nowhere":             from(false, "0.0.0.0"),
		"from loopback":            from(false, "127.0.0.1"),
		"from an IPv6 group":       from(true, "ff02::1"),
		"from nowhere, IPv6":       from(true, "::"),
		"from IPv6 loopback":       from(true, "::1"),
		"from within a mapped /96": from(true, "::2:1.2.3.4"),
	} {
		if out := send(t, w, over4, frame); out != "too_big" {
			t.Errorf("%s: leaves by %q", name, out)
		}
	}
	// A related error keeps its own packet's family, not an answer's.
	in := w.Load(c["udp-1500-df"])
	w.Parse(in)
	w.V.Flags[0] |= packet.Related
	w.V.Backend[0] = over4
	if out := w.Only(w.Process(in), 0); out != "too_big" {
		t.Errorf("related: leaves by %q", out)
	}
	none := rig(t, func(c *Config) { c.ICMPRate = 0 })
	if len(none.Outputs) != 4 {
		t.Errorf("with icmp_rate 0 there are %d outputs", len(none.Outputs))
	}
	if out := send(t, none, over4, c["udp-1500-df"]); out != "too_big" {
		t.Errorf("with icmp_rate 0: leaves by %q", out)
	}
	dropping := rig(t, func(c *Config) { c.Oversize = "drop" })
	if out := send(t, dropping, over4, may(c["udp-1500-df"], 0)); out != "too_big" {
		t.Errorf("oversize = drop: leaves by %q", out)
	}
}

// A thousand in a second are answered 110 times: the burst, and the rate; on any number
// of cores.
func TestRate(t *testing.T) {
	frame := udp(t, false, 1500)
	for _, cores := range []int{1, 4} {
		r := rig(t, nil, nodetest.Cores(cores)).Rig
		answered, limited := 0, 0
		for i := range 1000 {
			w := r.Workers[i%cores]
			w.Clock = int64(1e12) + int64(i)*1e6
			switch out := send(t, w, over4, frame); out {
			case "reply":
				answered++
			case "icmp_limited":
				limited++
			default:
				t.Fatalf("leaves by %q", out)
			}
		}
		if answered < 109 || answered > 110 || answered+limited != 1000 {
			t.Errorf("%d cores: %d answered, %d held back", cores, answered, limited)
		}
	}
}

// reassemble puts fragments together as a host would and answers the datagram's data.
func reassemble(t *testing.T, name string, mtu int, frames ...[]byte) (data []byte, more bool) {
	t.Helper()
	var id uint16
	for k, b := range frames {
		p := nodetest.Decode(b)
		ip, ok := p.NetworkLayer().(*layers.IPv4)
		if !ok {
			t.Fatalf("%s: piece %d is no IPv4: %x", name, k, b)
		}
		if packet.Checksum(ip.Contents) != 0 {
			t.Errorf("%s: piece %d: checksum", name, k)
		}
		if int(ip.Length) > mtu {
			t.Errorf("%s: piece %d has %d bytes", name, k, ip.Length)
		}
		if k == 0 {
			id, data = ip.Id, make([]byte, int(ip.FragOffset)*8)
		} else if ip.Id != id {
			t.Errorf("%s: piece %d: id %d, the first has %d", name, k, ip.Id, id)
		}
		if int(ip.FragOffset)*8 != len(data) {
			t.Errorf("%s: piece %d stands at %d, want %d", name, k, int(ip.FragOffset)*8, len(data))
		}
		data = append(data, ip.Payload...)
		more = ip.Flags&layers.IPv4MoreFragments != 0
		if !more && k != len(frames)-1 {
			t.Errorf("%s: piece %d of %d is the last", name, k, len(frames))
		}
	}
	return data, more
}

// all answers the lane's frame and those that were emitted.
func all(t *testing.T, w *nodetest.Worker) (frames [][]byte) {
	t.Helper()
	frames = append(frames, bytes.Clone(w.V.Bytes(0)))
	for i := range w.Entered {
		e := &w.Entered[i]
		if e.Output != "next" || !e.Made {
			t.Errorf("a piece is %+v", e)
		}
		r := &e.Record
		if r.Len != r.Total || r.Chain != packet.NoFrame || r.Start%nodetest.Chunk != 256 || r.Start/nodetest.Chunk != r.Frame {
			t.Errorf("a piece stands at %+v", r)
		}
		if r.Backend != w.V.Backend[0] || r.VIP != w.V.VIP[0] || r.Src != w.V.Src[0] || r.Dst != w.V.Dst[0] || r.Hash != w.V.Hash[0] ||
			r.L3 != w.V.L3[0] || r.IPLen != r.Len-uint32(r.L3) || r.Flags&packet.Later == 0 || r.Flags&packet.First != 0 || r.Port != w.V.Port[0] {
			t.Errorf("a piece's columns are %+v", r)
		}
		frames = append(frames, w.Packet(r))
	}
	if n := uint64(len(frames)); w.Counter("fragmented") != 1 || w.Counter("pieces") != n {
		t.Errorf("%d pieces, counters %v", n, w.Counters)
	}
	return frames
}

func TestFragment(t *testing.T) {
	c := nodetest.Cases(t)
	big := udp(t, false, 1477)
	options := func() []byte {
		b := udp(t, false, 1480)
		// Record route (not copied), no operation, loose source route (copied), end.
		opts := []byte{7, 7, 4, 0, 0, 0, 0, 1, 0x83, 3, 4, 0}
		b = append(append(bytes.Clone(b[:34]), opts...), b[34:]...)
		b[14] = 0x48
		be.PutUint16(b[16:], uint16(len(b)-14))
		return b
	}()
	long := udp(t, false, 3700)
	for _, x := range []struct {
		name    string
		frame   []byte
		word    uint16
		backend uint32
		mtu, n  int
	}{
		{"frag1", c["frag1"], 0x2000, over4, 1476, 2},
		{"by one byte", big, 0, over4, 1476, 2},
		{"over IPv6", c["udp-1500-df"], 0, over6, 1456, 2},
		{"learned MTU", c["udp-1500-df"], 0, narrow, 976, 2},
		{"three pieces", long, 0, over4, 1476, 3},
		{"middle fragment", big, 0x2000 | 185, over4, 1476, 2},
		{"last fragment", big, 185, over4, 1476, 2},
		{"reserved bit", big, 0x8000, over4, 1476, 2},
		{"options", options, 0, over4, 1476, 2},
	} {
		w := rig(t, nil)
		frame := may(x.frame, x.word)
		if out := send(t, w, x.backend, frame); out != "next" {
			t.Errorf("%s: leaves by %q", x.name, out)
			continue
		}
		frames := all(t, w)
		if len(frames) != x.n {
			t.Errorf("%s: %d pieces, want %d", x.name, len(frames), x.n)
		}
		data, more := reassemble(t, x.name, x.mtu, frames...)
		ip := nodetest.Decode(frame).NetworkLayer().(*layers.IPv4)
		if at := int(ip.FragOffset) * 8; !bytes.Equal(data[at:], ip.Payload) || more != (x.word&0x2000 != 0) {
			t.Errorf("%s: %d bytes and more %v became %d bytes and more %v", x.name, len(ip.Payload), x.word&0x2000 != 0, len(data)-at, more)
		}
		for _, f := range frames {
			if !bytes.Equal(f[:14], frame[:14]) {
				t.Errorf("%s: Ethernet header %x", x.name, f[:14])
			}
		}
		if x.name == "options" {
			later := nodetest.Decode(frames[1]).NetworkLayer().(*layers.IPv4)
			if later.IHL != 6 || !bytes.Equal(later.Contents[20:], []byte{0x83, 3, 4, 0}) {
				t.Errorf("options of the second piece: %x", later.Contents[20:])
			}
			if b := frames[0]; b[14] != 0x48 || !bytes.Equal(b[34:46], options[34:46]) {
				t.Errorf("options of the first piece: %x", b[34:46])
			}
		}
	}
}

// chain spreads a frame over several in lane 0.
func chain(t *testing.T, w *nodetest.Worker, b []byte, parts ...int) {
	t.Helper()
	w.Reuse()
	w.Load(b[:parts[0]])
	w.V.Total[0] = uint32(len(b))
	next := &w.V.Chain[0]
	at := parts[0]
	for _, n := range parts[1:] {
		f, ok := w.Alloc()
		if !ok {
			t.Fatal("no frame")
		}
		base, _ := w.Chunk(f)
		*next = f
		w.V.Links[f] = packet.Link{Next: packet.NoFrame, Start: base + 256, Len: uint32(n)}
		copy(w.V.Mem[base+256:], b[at:at+n])
		next, at = &w.V.Links[f].Next, at+n
	}
	if at != len(b) {
		t.Fatalf("%d bytes in parts, want %d", at, len(b))
	}
	w.Parse(1)
	w.V.IPLen[0] = uint32(len(b)) - 14
	w.V.Backend[0] = over4
	clear(w.Counters)
}

func TestChained(t *testing.T) {
	frame := may(udp(t, false, 9000), 0)
	w := rig(t, nil)
	chain(t, w, frame, 3800, 3800, 1414)
	if out := w.Only(w.Process(1), 0); out != "next" {
		t.Fatalf("leaves by %q", out)
	}
	frames := all(t, w)
	data, more := reassemble(t, "chain", 1476, frames...)
	if !bytes.Equal(data, frame[34:]) || more || w.V.Chain[0] != packet.NoFrame {
		t.Errorf("%d bytes became %d, more %v, chain %d", len(frame)-34, len(data), more, w.V.Chain[0])
	}

	// A network of jumbo frames: pieces are bounded by what a frame holds.
	w = rig(t, nil, nodetest.MTU(8000))
	chain(t, w, frame, 3800, 3800, 1414)
	if out := w.Only(w.Process(1), 0); out != "next" {
		t.Fatalf("leaves by %q", out)
	}
	if data, _ := reassemble(t, "jumbo network", nodetest.Chunk-256-14, all(t, w)...); !bytes.Equal(data, frame[34:]) {
		t.Errorf("%d bytes became %d", len(frame)-34, len(data))
	}

	// A packet that begins further in front than new ones do: a piece must not run past its chunk.
	w = rig(t, nil, nodetest.MTU(8000))
	chain(t, w, frame, 3800, 3800, 1414)
	v := &w.V
	copy(v.Mem[v.Start[0]-100:], v.Bytes(0))
	v.Start[0] -= 100
	f := v.Chain[0]
	copy(v.Mem[v.Start[0]+3800:], v.Mem[v.Links[f].Start:][:90])
	v.Len[0], v.Links[f].Start, v.Links[f].Len = 3890, v.Links[f].Start+90, 3710
	if out := w.Only(w.Process(1), 0); out != "next" {
		t.Fatalf("leaves by %q", out)
	}
	if data, _ := reassemble(t, "further in front", nodetest.Chunk-256-14, all(t, w)...); !bytes.Equal(data, frame[34:]) {
		t.Errorf("%d bytes became %d", len(frame)-34, len(data))
	}

	w = rig(t, nil)
	chain(t, w, udp(t, false, 9000), 3800, 3800, 1414)
	if out := w.Only(w.Process(1), 0); out != "reply" || w.V.Chain[0] != packet.NoFrame || w.V.Total[0] != 590 {
		t.Errorf("with DF: leaves by %q, %d bytes, chain %d", out, w.V.Total[0], w.V.Chain[0])
	}

	// It is the whole that counts, also where no backend takes less than a frame holds.
	wide := nodetest.WithState(&state.Snapshot{Backends: world.Backends[:over4+1]})
	for n, want := range map[int]string{7976: "next", 7977: "reply"} {
		w = nodetest.New[Config](t, "mtu-check", nil, nodetest.MTU(8000), wide).Workers[0]
		chain(t, w, udp(t, false, n), 3800, 3800, n+14-7600)
		if out := w.Only(w.Process(1), 0); out != want {
			t.Errorf("%d bytes in a network of 8000: leaves by %q, want %q", n, out, want)
		}
	}
}

// Without frames the whole packet drops, and what was taken goes back.
func TestNoFrame(t *testing.T) {
	w := rig(t, nil)
	in := w.Load(may(udp(t, false, 3700), 0))
	w.Parse(in)
	w.V.Backend[0] = over4
	before := bytes.Clone(w.V.Bytes(0))
	var taken []uint32
	for {
		f, ok := w.Alloc()
		if !ok {
			break
		}
		taken = append(taken, f)
	}
	w.Free(taken[0])
	if out := w.Only(w.Process(in), 0); out != "no_frame" {
		t.Errorf("leaves by %q", out)
	}
	if f, ok := w.Alloc(); !ok || f != taken[0] || len(w.Entered) != 0 || !bytes.Equal(before, w.V.Bytes(0)) {
		t.Errorf("frame %d, %v; %d pieces", f, ok, len(w.Entered))
	}
}

// A new snapshot's learned MTUs count at once.
func TestLearned(t *testing.T) {
	w := rig(t, nil)
	frame := udp(t, false, 1300)
	if out := send(t, w, over4, frame); out != "next" {
		t.Errorf("leaves by %q", out)
	}
	w.Publish(&state.Snapshot{Backends: []state.Backend{{}, {Addr: netip.MustParseAddr("10.0.1.1"), MTU: 1300}}})
	if out := send(t, w, over4, frame); out != "reply" || be.Uint16(w.V.Bytes(0)[40:]) != 1276 {
		t.Errorf("leaves by %q, MTU %d", out, be.Uint16(w.V.Bytes(0)[40:]))
	}
}

// Whatever may be fragmented, in whatever pieces it came: what leaves fits, and is the same data.
func FuzzFragment(f *testing.F) {
	f.Add([]byte{}, uint16(1500), uint16(0))
	f.Add([]byte{7, 7, 4, 0, 0, 0, 0, 1, 0x83, 3, 4, 0}, uint16(1477), uint16(0x2005))
	f.Add([]byte{0x83, 0}, uint16(3000), uint16(0x8000))
	f.Add([]byte{0x94, 40, 0, 0}, uint16(3000), uint16(0))
	w := rig(f, nil)
	f.Fuzz(func(t *testing.T, opts []byte, n, word uint16) {
		w.T = t
		size := 48 + int(n)%3700
		opts = opts[:min(len(opts), 40)&^3]
		if int(word&0x1fff)*8+size > 65535 {
			return // parse refuses it
		}
		b := udp(t, false, size)
		b = append(append(bytes.Clone(b[:34]), opts...), b[34:]...)
		b[14] = 0x45 + byte(len(opts)/4)
		b[23] = 253 // what is inside does not matter, and the decoder shall not look
		be.PutUint16(b[16:], uint16(size+len(opts)))
		b = may(b, word&^0x4000)
		in := w.Load(b)
		w.V.L3[0], w.V.IPLen[0], w.V.Backend[0] = 14, uint32(size+len(opts)), narrow
		clear(w.Counters)
		if out := w.Only(w.Process(in), 0); out != "next" {
			t.Fatalf("leaves by %q", out)
		}
		if size+len(opts) <= 976 {
			if !bytes.Equal(w.V.Bytes(0), b) {
				t.Fatal("changed what fits")
			}
			return
		}
		head := 34 + len(opts)
		data, at := []byte(nil), word&0x1fff
		frames := [][]byte{bytes.Clone(w.V.Bytes(0))}
		for i := range w.Entered {
			frames = append(frames, w.Packet(&w.Entered[i].Record))
		}
		for k, p := range frames {
			h := int(p[14]&0xf) * 4
			flags := be.Uint16(p[20:])
			if packet.Checksum(p[14:14+h]) != 0 || int(be.Uint16(p[16:])) != len(p)-14 || len(p)-14 > 976 {
				t.Fatalf("piece %d: %x", k, p[:14+h])
			}
			if flags&0x1fff != (at+uint16(len(data)/8))&0x1fff || (flags&0x2000 != 0) != (k < len(frames)-1 || word&0x2000 != 0) || flags&0x8000 != word&0x8000 {
				t.Fatalf("piece %d: flags and offset %x", k, flags)
			}
			data = append(data, p[14+h:]...)
		}
		if !bytes.Equal(data, b[head:]) {
			t.Fatalf("%d bytes became %d", len(b)-head, len(data))
		}
		w.Reuse()
	})
}

func TestTrace(t *testing.T) {
	w := rig(t, nil)
	tr := w.Node.(graph.Tracer)
	send(t, w, over6, udp(t, false, 1000))
	if got, want := tr.Trace(&w.V, 0), "1000 bytes; up to 1456 go to 2001:db8:1::1 in one piece"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	send(t, w, over6, udp(t, false, 1500))
	if got, want := tr.Trace(&w.V, 0), "576 bytes"; got != want {
		t.Errorf("of an answer: %q, want %q", got, want)
	}
}

func TestNoAllocation(t *testing.T) {
	c := nodetest.Cases(t)
	w := rig(t, func(c *Config) { c.ICMPRate = 1000000 })
	w.Entered = make([]nodetest.Entered, 0, 1<<12)
	in := w.Load(c["syn"], c["udp-1500-df"], udp(t, true, 1500), may(udp(t, false, 1500), 0))
	w.Parse(in)
	saved := w.V
	if n := testing.AllocsPerRun(100, func() {
		w.V = saved
		for i := range 4 {
			w.V.Backend[i] = over4
		}
		w.Clock += 1e9
		w.Run(in)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCheck reports nanoseconds a packet: of ones that fit, of an error made in
// place of a long packet, of one held back, and of a packet that becomes two.
func BenchmarkCheck(b *testing.B) {
	run := func(name string, rate int, frame []byte) {
		b.Run(name, func(b *testing.B) {
			w := rig(b, func(c *Config) { c.ICMPRate, c.ICMPBurst = rate, rate })
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = frame
			}
			in := w.Load(frames...)
			w.Parse(in)
			for i := range packet.Size {
				w.V.Backend[i] = over4
			}
			lens, flags, src, dst := w.V.Len, w.V.Flags, w.V.Src, w.V.Dst
			ip := w.V.IPLen
			b.ReportAllocs()
			for b.Loop() {
				if name != "fits" && name != "limited" {
					// The columns of what came; the bytes do not matter to an error.
					w.V.Len, w.V.Flags, w.V.Src, w.V.Dst, w.V.IPLen = lens, flags, src, dst, ip
					for i := range packet.Size {
						w.V.Backend[i] = over4
					}
					w.Clock += 1e9
				}
				for i := range w.Entered {
					w.Free(w.Entered[i].Record.Frame)
				}
				w.Entered = w.Entered[:0]
				w.Run(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
	run("fits", 100, udp(b, false, 576))
	run("icmp4", 1000000, udp(b, false, 1500))
	run("icmp6", 1000000, udp(b, true, 1500))
	run("limited", 1, udp(b, false, 1500))
	run("fragmented", 0, may(udp(b, false, 1500), 0))
}
