// Package cases_test holds one table of packets, and what must come of each, over
// every kind of port and with one, two and four workers.
package cases_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// Lines of the files below that some wires write anew.
const (
	rx   = `node "xdp-rx" "rx" { interface = "eth0" }`
	tx   = `node "xdp-tx" "tx" {}`
	gre1 = `node "gre-encap" "gre" {`
)

const world = `
pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
  backend "web-3" { address = "10.0.1.3" }
}
vip "tcp4" {
  address     = "203.0.113.10"
  protocol    = "tcp"
  ports       = [443]
  pool        = pool.web
}
vip "udp4" {
  address     = "203.0.113.10"
  protocol    = "udp"
  ports       = [4500]
  pool        = pool.web
}
vip "tcp6" {
  address  = "2001:db8::10"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}
vip "udp6" {
  address  = "2001:db8::10"
  protocol = "udp"
  ports    = [4500]
  pool     = pool.web
}
`

// plain is the graph of lb.hcl, small.
const plain = world + `
graph "edge" {
  network_mtu = 1500
  rings       = 256
  frames      = 256
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  ` + rx + `
  node "conntrack" "ct" { entries = 1024 }
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  ` + gre1 + `
  }
  ` + tx + `
}
`

// steering is a graph whose core 0 receives and sends, and hands the work to others.
func steering(cores int) string {
	var workers []string
	for c := 1; c < cores; c++ {
		workers = append(workers, fmt.Sprint(c))
	}
	return world + `
graph "edge" {
  cores       = ` + fmt.Sprint(cores) + `
  rings       = 256
  frames      = 256
  path {
    main      = [rx, parse, vip-classify, spread, frag-pin, ct.hit, clamp, mtu, gre, collect, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, spread]
    pinned    = [frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, spread]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, collect]
  }
  ` + rx + `
  node "handoff" "spread" { cores = [` + strings.Join(workers, ", ") + `] }
  node "conntrack" "ct" { entries = 1024 }
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  ` + gre1 + `
  }
  node "handoff" "collect" { cores = [0] }
  ` + tx + `
}
`
}

// A row is packets that come one after the other, by name, and what must come of
// them.
type row struct {
	name    string
	packets []string
	check   func(*scene)
}

// A scene is one run of a row.
type scene struct {
	*testing.T
	frames map[string][]byte
	home   map[string]string // backends of the flows that begin with syn, syn6
	result
}

// toBackend answers frame i of what left, decoded as GRE.
func (s *scene) toBackend(i int) tunnelled {
	s.Helper()
	if i >= len(s.out) {
		s.Fatalf("%d frames left; drops %v, to the kernel %d, held %d", len(s.out), s.drops, s.kernel, s.held)
	}
	return gre(s, s.out[i])
}

// left checks how many frames left.
func (s *scene) left(n int) {
	s.Helper()
	if len(s.out) != n || s.sent != uint64(n) {
		s.Fatalf("%d frames left and %d are counted, want %d; drops %v, to the kernel %d, held %d", len(s.out), s.sent, n, s.drops, s.kernel, s.held)
	}
}

// dropsOnly checks that there were no drops but n by reason ("" for none).
func (s *scene) dropsOnly(reason string, n uint64) {
	s.Helper()
	if d := s.dropped(); d != n || s.drops[reason] != n {
		s.Errorf("drops %v, want %d of %s", s.drops, n, reason)
	}
}

// counted checks a counter, where the wire tells counters.
func (s *scene) counted(name string, n uint64) {
	s.Helper()
	if s.counters == nil {
		return
	}
	if got, ok := s.counters[name]; !ok || got != n {
		s.Errorf("%s is %d, want %d", name, got, n)
	}
}

// packet is the IP packet of a frame.
func (s *scene) packet(name string) []byte { return packetOf(s.frames[name]) }

func packetOf(frame []byte) []byte {
	at := 14
	if frame[12] == 0x81 {
		at = 18
	}
	return frame[at:]
}

var rows = []row{
	{"syn", []string{"syn"}, func(s *scene) {
		s.left(1)
		s.dropsOnly("", 0)
		x := s.toBackend(0)
		if m := mss(tcp(s, x.inner)); m != 1436 {
			s.Errorf("MSS %d", m)
		}
		if x.backend != s.home["syn"] || x.tags != 0 || s.entries != 1 {
			s.Errorf("backend %s, %d tags, %d entries", x.backend, x.tags, s.entries)
		}
		s.counted("clamp.clamped", 1)
	}},
	{"data after syn", []string{"syn", "data"}, func(s *scene) {
		s.left(2)
		if a, b := s.toBackend(0).backend, s.toBackend(1).backend; a != b {
			s.Errorf("syn went to %s, data to %s", a, b)
		}
		if !bytes.Equal(s.toBackend(1).inner, s.packet("data")) && !bytes.Equal(s.toBackend(0).inner, s.packet("data")) {
			s.Error("data changed")
		}
	}},
	{"data on a node that never saw syn", []string{"data"}, func(s *scene) {
		s.left(1)
		if x := s.toBackend(0); x.backend != s.home["syn"] {
			s.Errorf("data went to %s, syn does to %s", x.backend, s.home["syn"])
		}
	}},
	{"syn6", []string{"syn6"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if m := mss(tcp(s, x.inner)); m != 1416 || x.inner[0]>>4 != 6 {
			s.Errorf("MSS %d", m)
		}
		if x.backend != s.home["syn6"] {
			s.Errorf("backend %s", x.backend)
		}
	}},
	{"rst-unknown", []string{"rst-unknown"}, noEntry},
	{"fin", []string{"fin"}, noEntry},
	{"icmp-fragneeded-8 on a node that never saw the flow", []string{"icmp-fragneeded-8"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if x.backend != s.home["syn"] || !bytes.Equal(x.inner, s.packet("icmp-fragneeded-8")) {
			s.Errorf("to %s; syn goes to %s", x.backend, s.home["syn"])
		}
		if s.entries != 0 {
			s.Errorf("an error made %d entries", s.entries)
		}
	}},
	{"icmp-fragneeded-8 after syn", []string{"syn", "icmp-fragneeded-8"}, func(s *scene) {
		s.left(2)
		if a, b := s.toBackend(0).backend, s.toBackend(1).backend; a != b || s.entries != 1 {
			s.Errorf("to %s and %s, %d entries", a, b, s.entries)
		}
	}},
	{"icmp6-ptb", []string{"icmp6-ptb"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if x.backend != s.home["syn6"] || !bytes.Equal(x.inner, s.packet("icmp6-ptb")) {
			s.Errorf("to %s; syn6 goes to %s", x.backend, s.home["syn6"])
		}
	}},
	{"echo6", []string{"echo6"}, func(s *scene) {
		s.left(1)
		s.dropsOnly("", 0)
		d := nodetest.Decode(s.out[0])
		eth, h := d.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), d.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		if !bytes.Equal(eth.DstMAC, nodetest.FromMAC) || h.SrcIP.String() != nodetest.VIP6.String() || h.DstIP.String() != nodetest.Client6.String() {
			s.Errorf("to %s, %s to %s", eth.DstMAC, h.SrcIP, h.DstIP)
		}
		icmp := d.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
		if icmp.TypeCode.Type() != layers.ICMPv6TypeEchoReply {
			s.Errorf("type %v", icmp.TypeCode)
		}
		verify(s, d, icmp.LayerContents(), icmp.LayerPayload(), 58)
		if want := s.packet("echo6")[44:]; !bytes.Equal(h.LayerPayload()[4:], want) {
			s.Error("identifier, number or data changed")
		}
		if s.made != 0 {
			s.Errorf("made %d: an answer reuses the frame", s.made)
		}
	}},
	{"frag1 then frag2", []string{"frag1", "frag2"}, wholeDatagram(3)},
	{"frag2 then frag1", []string{"frag2", "frag1"}, wholeDatagram(3)},
	{"v6-frag1 then v6-frag2", []string{"v6-frag1", "v6-frag2"}, wholeDatagram(2)},
	{"v6-frag2 then v6-frag1", []string{"v6-frag2", "v6-frag1"}, wholeDatagram(2)},
	{"frag2 alone", []string{"frag2"}, func(s *scene) {
		if s.sent+s.dropped()+s.held != 1 || s.sent != 0 {
			s.Errorf("sent %d, drops %v, held %d", s.sent, s.drops, s.held)
		}
	}},
	{"ihl6", []string{"ihl6"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if x.backend != s.home["syn"] || x.inner[0] != 0x46 || mss(tcp(s, x.inner)) != 1436 {
			s.Errorf("to %s; syn goes to %s", x.backend, s.home["syn"])
		}
		if want := s.packet("ihl6"); !bytes.Equal(x.inner[:24], want[:24]) {
			s.Error("the IP header changed")
		}
	}},
	{"wrong-port", []string{"wrong-port"}, func(s *scene) {
		s.left(0)
		s.dropsOnly("vip-classify.wrong_port", 1)
	}},
	{"udp-1500-df", []string{"udp-1500-df"}, func(s *scene) {
		s.left(1)
		tooBig(s, s.out[0])
		if s.made != 0 || s.dropped() != 0 {
			s.Errorf("made %d, drops %v", s.made, s.drops)
		}
	}},
	{"mss-odd", []string{"mss-odd"}, func(s *scene) {
		s.left(1)
		x, want := s.toBackend(0), s.packet("mss-odd")
		if m := mss(tcp(s, x.inner)); m != 1436 {
			s.Errorf("MSS %d", m)
		}
		// Nothing changed but the option and the checksum.
		for i := range want {
			if x.inner[i] != want[i] && (i < 36 || i > 37) && (i < 43 || i > 44) {
				s.Errorf("byte %d changed", i)
			}
		}
	}},
	{"mss-none", []string{"mss-none"}, func(s *scene) {
		s.left(1)
		if x := s.toBackend(0); !bytes.Equal(x.inner, s.packet("mss-none")) {
			s.Error("changed")
		}
		s.counted("clamp.no_mss", 1)
	}},
	{"vlan100-syn", []string{"vlan100-syn"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if x.tags != 1 || x.backend != s.home["syn"] || mss(tcp(s, x.inner)) != 1436 {
			s.Errorf("%d tags, to %s", x.tags, x.backend)
		}
	}},
	{"ecn-ce", []string{"ecn-ce"}, func(s *scene) {
		s.left(1)
		x := s.toBackend(0)
		if x.outer.TOS&3 != 3 || !bytes.Equal(x.inner, s.packet("ecn-ce")) {
			s.Errorf("outer ToS %#x", x.outer.TOS)
		}
	}},
	{"totlen-lies", []string{"totlen-lies"}, func(s *scene) {
		s.left(0)
		s.dropsOnly("parse.bad_length", 1)
	}},
	{"trailer-pad", []string{"trailer-pad"}, func(s *scene) {
		s.left(1)
		if x := s.toBackend(0); x.outer.Length != 20+4+40 || !bytes.Equal(x.inner, s.packet("trailer-pad")[:40]) {
			s.Errorf("outer length %d", x.outer.Length)
		}
	}},
}

// noEntry: forwarded by table, or dropped with a reason; the table does not grow.
func noEntry(s *scene) {
	if s.entries != 0 {
		s.Errorf("%d entries", s.entries)
	}
	if s.sent+s.dropped() != 1 {
		s.Errorf("sent %d, drops %v", s.sent, s.drops)
	}
	for i := range s.out {
		s.toBackend(i)
	}
}

// wholeDatagram: the row's fragments reach one backend, in so many frames, and make
// the datagram that was sent.
func wholeDatagram(frames int) func(*scene) {
	return func(s *scene) {
		s.Helper()
		s.left(frames)
		s.dropsOnly("", 0)
		var pieces [][]byte
		for i := range s.out {
			x := s.toBackend(i)
			pieces = append(pieces, x.inner)
			if first := s.toBackend(0).backend; x.backend != first {
				s.Errorf("piece %d went to %s, the first to %s", i, x.backend, first)
			}
		}
		names := []string{"frag1", "frag2"}
		if pieces[0][0]>>4 == 6 {
			names = []string{"v6-frag1", "v6-frag2"}
		}
		want := reassemble(s, s.packet(names[0]), s.packet(names[1]))
		if !bytes.Equal(reassemble(s, pieces...), want) {
			s.Error("the datagram changed")
		}
	}
}

// tooBig checks the answer to udp-1500-df.
func tooBig(s *scene, b []byte) {
	s.Helper()
	d := nodetest.Decode(b)
	h, ok := d.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if !ok {
		s.Fatal(d)
	}
	if h.SrcIP.String() != nodetest.VIP4.String() || h.DstIP.String() != nodetest.Client4.String() {
		s.Errorf("from %s to %s", h.SrcIP, h.DstIP)
	}
	if h.Flags != 0 || h.FragOffset != 0 || checksum(h.Contents) != 0 {
		s.Errorf("IP header %+v", h)
	}
	icmp, ok := d.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || icmp.Seq != 1476 || icmp.Id != 0 {
		s.Fatalf("ICMP %+v", icmp)
	}
	verify(s, d, icmp.LayerContents(), icmp.LayerPayload(), 1)
	if q := icmp.LayerPayload(); len(q) < 28 || len(b) > 14+576 || !bytes.HasPrefix(s.packet("udp-1500-df"), q) {
		s.Errorf("%d bytes are quoted", len(q))
	}
}

// homes finds the backends of the cases' flows by the table alone: what every wire,
// every number of workers and every node must agree on.
func homes(t testing.TB, frames map[string][]byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{"syn", "syn6"} {
		r := overMemory(t, plain, 1, []shot{{0, 0, frames[name]}})
		if len(r.out) != 1 {
			t.Fatalf("%s: %d frames left; drops %v", name, len(r.out), r.drops)
		}
		all[name] = gre(t, r.out[0]).backend
	}
	return all
}

// place spreads packets over queues.
type place struct {
	name   string
	queues int
	queue  func(i int) int
}

func workers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}

func places(most int) (all []place) {
	for _, n := range []int{1, 2, 4} {
		if n > most {
			break
		}
		all = append(all, place{workers(n), n, func(int) int { return 0 }})
		if n > 1 {
			all = append(all, place{workers(n) + ", each its own", n, func(i int) int { return (i + 1) % n }})
		}
	}
	return all
}

// table runs all rows over a wire.
func table(t *testing.T, over wire, file string, places []place) {
	frames := nodetest.Cases(t)
	home := homes(t, frames)
	for _, p := range places {
		for _, row := range rows {
			t.Run(p.name+"/"+row.name, func(t *testing.T) {
				var shots []shot
				for i, name := range row.packets {
					if frames[name] == nil {
						t.Fatalf("there is no packet %q", name)
					}
					shots = append(shots, shot{p.queue(i), time.Duration(i) * 10 * time.Millisecond, frames[name]})
				}
				s := &scene{T: t, frames: frames, home: home, result: over(t, file, p.queues, shots)}
				if s.received != uint64(len(shots)) {
					t.Errorf("received %d of %d", s.received, len(shots))
				}
				if s.received+s.made != s.sent+s.dropped()+s.kernel+s.held {
					t.Errorf("received %d + made %d is not sent %d + dropped %v + kernel %d + held %d", s.received, s.made, s.sent, s.drops, s.kernel, s.held)
				}
				row.check(s)
			})
		}
	}
}

func TestMemory(t *testing.T)  { table(t, overMemory, plain, places(4)) }
func TestThreads(t *testing.T) { table(t, overThreads, plain, places(4)) }
func TestPcap(t *testing.T)    { table(t, overReplay, plain, places(4)) }
func TestFiles(t *testing.T)   { table(t, overFiles, plain, places(1)) }

// TestSteering: one queue, whose core hands the work to one or three others.
func TestSteering(t *testing.T) {
	for name, over := range map[string]wire{"memory": overMemory, "threads": overThreads, "pcap": overReplay, "files": overFiles} {
		for _, cores := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, %d cores", name, cores), func(t *testing.T) {
				table(t, over, steering(cores), places(1))
			})
		}
	}
}

// Every case of the file is in a row.
func TestAllCasesAreThere(t *testing.T) {
	used := map[string]bool{}
	for _, r := range rows {
		for _, name := range r.packets {
			used[name] = true
		}
	}
	for name := range nodetest.Cases(t) {
		if !used[name] {
			t.Errorf("no row has %q", name)
		}
	}
}

// A VIP may leave wrong ports to the kernel, and tags may be stripped.
func TestByConfiguration(t *testing.T) {
	frames := nodetest.Cases(t)
	leave := strings.ReplaceAll(plain, "pool        = pool.web", "pool        = pool.web\n  on_mismatch = \"leave\"")
	strip := strings.Replace(plain, gre1, gre1+"\n    vlan = \"strip\"", 1)
	insert := strings.Replace(plain, `node "mss-clamp" "clamp" {}`, `node "mss-clamp" "clamp" { insert = true }`, 1)
	drop := strings.Replace(plain, `node "mtu-check" "mtu" {}`, `node "mtu-check" "mtu" { oversize = "drop" }`, 1)
	for _, w := range []struct {
		name string
		over wire
	}{{"memory", overMemory}, {"threads", overThreads}, {"pcap", overReplay}} {
		t.Run(w.name, func(t *testing.T) {
			r := w.over(t, leave, 1, []shot{{0, 0, frames["wrong-port"]}})
			if r.kernel != 1 || r.dropped() != 0 || len(r.out) != 0 {
				t.Errorf("left to the kernel %d, drops %v, sent %d", r.kernel, r.drops, r.sent)
			}
			r = w.over(t, strip, 1, []shot{{0, 0, frames["vlan100-syn"]}})
			if len(r.out) != 1 || gre(t, r.out[0]).tags != 0 {
				t.Errorf("%d frames, or a tag", len(r.out))
			}
			r = w.over(t, insert, 1, []shot{{0, 0, frames["mss-none"]}})
			if len(r.out) != 1 {
				t.Fatalf("%d frames, drops %v", len(r.out), r.drops)
			}
			if m := mss(tcp(t, gre(t, r.out[0]).inner)); m != 536 { // what no option means (RFC 9293 §3.7.1)
				t.Errorf("MSS %d", m)
			}
			r = w.over(t, drop, 1, []shot{{0, 0, frames["frag1"]}})
			if len(r.out) != 0 || r.drops["mtu.too_big"] != 1 {
				t.Errorf("%d frames, drops %v", len(r.out), r.drops)
			}
		})
	}
}

// TestAThousandTooBig: 1000 packets that are too big in a second, at 100 answers a
// second and a burst of 10.
func TestAThousandTooBig(t *testing.T) {
	frames := nodetest.Cases(t)
	for _, w := range []struct {
		name   string
		over   wire
		queues int
	}{{"memory", overMemory, 1}, {"memory, 4 workers", overMemory, 4}, {"pcap", overReplay, 1}, {"pcap, 2 workers", overReplay, 2}} {
		t.Run(w.name, func(t *testing.T) {
			var shots []shot
			for i := range 1000 {
				shots = append(shots, shot{i % w.queues, time.Duration(i) * time.Millisecond, frames["udp-1500-df"]})
			}
			s := &scene{T: t, frames: frames, result: w.over(t, plain, w.queues, shots)}
			limited(s, time.Second)
		})
	}
}

// limited checks the answers to a thousand packets that came within so long.
func limited(s *scene, d time.Duration) {
	s.Helper()
	most := 115 + int(100*(d-time.Second).Seconds())
	if n := len(s.out); n < 100 || n > most || uint64(n)+s.drops["mtu.icmp_limited"] != 1000 || s.dropped() != s.drops["mtu.icmp_limited"] {
		s.Errorf("%d answers, drops %v", n, s.drops)
	}
	for _, b := range s.out {
		tooBig(s, b)
	}
}

// TestTruncations cuts every frame at every byte: it drops with a named reason, is
// left to the kernel where not even its destination is there, or goes on where all
// of its packet is still there. Nothing is read past its end: there is 0xFF.
func TestTruncations(t *testing.T) {
	frames := nodetest.Cases(t)
	for name, b := range frames {
		t.Run(name, func(t *testing.T) {
			whole := len(b)
			if p := packetOf(b); ipLength(p) <= len(p) {
				whole = len(b) - len(p) + ipLength(p) // Ethernet padding may go
			}
			for _, queues := range []int{1, 4} {
				b4 := newBench(t, plain, queues, false)
				for n := range len(b) {
					q := n % queues
					if b4.port.admits(b[:n]) {
						b4.port.port.Inject(q, b[:n:n])
					}
					if n%64 == 63 {
						b4.settle()
					}
				}
				b4.settle()
				st := b4.e.Stats()
				var r result
				collect(t, &st, &r)
				b4.port.addTo(&r)
				if r.received != uint64(len(b)) || r.received+r.made != r.sent+r.dropped()+r.kernel+r.held {
					t.Errorf("%d workers: received %d, sent %d, drops %v, kernel %d, held %d", queues, r.received, r.sent, r.drops, r.kernel, r.held)
				}
				if most := len(b) - whole; int(r.sent) > most || r.held > uint64(most) {
					t.Errorf("%d workers: %d sent and %d held; %d are whole", queues, r.sent, r.held, most)
				}
				for _, f := range r.out {
					gre(t, f)
				}
				for reason := range r.drops {
					if strings.HasSuffix(reason, "unanswered") || strings.HasSuffix(reason, ".") {
						t.Errorf("%d drops of %q", r.drops[reason], reason)
					}
				}
			}
		})
	}
}
