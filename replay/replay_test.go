package replay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/pcap"
	_ "github.com/lbgraph/lbgraph/nodes/all"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/replay"
)

// at is a packet and when it comes.
type at struct {
	t time.Duration
	b []byte
}

const epoch = 1_700_000_000_000_000_000

// capture writes a capture of packets.
func capture(t testing.TB, packets ...at) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcap.NewWriter(f, pcap.Classic)
	for _, p := range packets {
		if err := w.Write(pcap.Packet{Time: epoch + int64(p.t), Data: p.b}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// load reads a file's text and checks it.
func load(t testing.TB, text string) *graph.File {
	t.Helper()
	f, diags := lang.Load("lb.hcl", lang.Options{ReadFile: func(string) ([]byte, error) { return []byte(text), nil }})
	if f != nil {
		diags = append(diags, graph.Check(f)...)
	}
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return f
}

// run replays captures, one a queue, and answers what left.
func run(t testing.TB, f *graph.File, o replay.Options, captures ...string) (*replay.Result, []pcap.Packet) {
	t.Helper()
	for _, c := range captures {
		o.In = append(o.In, replay.Input{File: c})
	}
	var out bytes.Buffer
	o.Out = &out
	x, err := replay.Run(f, o)
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, x)
	return x, read(t, out.Bytes())
}

func conserved(t testing.TB, x *replay.Result) {
	t.Helper()
	dropped := uint64(0)
	for _, n := range x.Drops {
		dropped += n
	}
	if x.Received+x.Made != x.Sent+x.Kernel+x.Held+dropped {
		t.Errorf("received %d + made %d is not sent %d + kernel %d + held %d + dropped %d", x.Received, x.Made, x.Sent, x.Kernel, x.Held, dropped)
	}
	// The packets tell the same as the counts.
	verdicts := map[string]uint64{}
	reasons := map[string]uint64{}
	count := func(verdict, node, reason string) {
		verdicts[verdict]++
		if verdict == replay.Dropped {
			reasons[node+"."+reason]++
		}
	}
	frames := uint64(0)
	for i, p := range x.Packets {
		if p.N != i+1 || len(p.Path) == 0 || p.Outputs == nil {
			t.Errorf("packet %d: %+v", i+1, p)
		}
		count(p.Verdict, p.Node, p.Reason)
		frames++
		for i, o := range p.Outputs {
			if i > 0 { // the first is the packet's own frame
				frames++
				verdicts[o.Verdict]++
			}
		}
	}
	if frames != x.Received+x.Made || verdicts[replay.Sent] != x.Sent || verdicts[replay.Kernel] != x.Kernel || verdicts[replay.Held] != x.Held || verdicts[replay.Dropped] != dropped {
		t.Errorf("packets have %v, counts say %+v", verdicts, x)
	}
	for reason, n := range reasons {
		if x.Drops[reason] < n {
			t.Errorf("%d packets dropped as %s, and %d counted", n, reason, x.Drops[reason])
		}
	}
}

func read(t testing.TB, b []byte) (all []pcap.Packet) {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(b))
	for err == nil {
		var p pcap.Packet
		if p, err = r.Next(); err == nil {
			p.Data = bytes.Clone(p.Data)
			all = append(all, p)
		}
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	return all
}

// world is the pool and the VIPs of the packet cases.
const world = `
pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
  backend "web-3" { address = "10.0.1.3" }
}
vip "tcp4" {
  address  = "203.0.113.10"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}
vip "udp4" {
  address  = "203.0.113.10"
  protocol = "udp"
  ports    = [4500]
  pool     = pool.web
}
vip "tcp6" {
  address  = "2001:db8::10"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}
`

// stateless is a graph without memory.
const stateless = world + `
graph "edge" {
  path {
    main    = [rx, parse, vip-classify, maglev-select, mss-clamp, mtu-check, gre-encap, tx]
    too_big = [mtu-check.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "xdp-tx" "tx" {}
}
`

func TestEveryPacketIsToldOf(t *testing.T) {
	c := nodetest.Cases(t)
	arp := append(bytes.Repeat([]byte{0xff}, 12), 8, 6, 0, 1)
	x, out := run(t, load(t, stateless), replay.Options{}, capture(t,
		at{0, c["syn"]}, at{time.Millisecond, arp}, at{2 * time.Millisecond, c["wrong-port"]}, at{3 * time.Millisecond, c["udp-1500-df"]},
		at{4 * time.Millisecond, c["frag1"]}, at{5 * time.Millisecond, c["totlen-lies"]}, at{6 * time.Millisecond, c["syn6"]}))
	if x.Received != 7 || x.Made != 1 || x.Sent != 5 || x.Kernel != 1 || x.Held != 0 {
		t.Errorf("%+v", x)
	}
	if want := map[string]uint64{"vip-classify.wrong_port": 1, "parse.bad_length": 1}; !reflect.DeepEqual(x.Drops, want) {
		t.Errorf("drops %v, want %v", x.Drops, want)
	}
	way := []string{"rx", "parse", "vip-classify", "maglev-select", "mss-clamp", "mtu-check", "gre-encap", "tx"}
	answered := []string{"rx", "parse", "vip-classify", "maglev-select", "mss-clamp", "mtu-check", "tx"}
	backend := x.Packets[0].Backend
	if !strings.HasPrefix(backend, "web/web-") {
		t.Errorf("backend %q", backend)
	}
	for i, want := range []replay.Packet{
		{Path: way, Verdict: "sent", Node: "tx", VIP: "tcp4", Backend: backend, Outputs: []replay.Output{{Kind: "forward", Verdict: "sent", Length: 58 + 24}}},
		{Path: []string{"rx"}, Verdict: "kernel", Node: "rx", Outputs: []replay.Output{}},
		{Path: []string{"rx"}, Verdict: "dropped", Node: "vip-classify", Reason: "wrong_port", VIP: "tcp4", Outputs: []replay.Output{}},
		{Path: answered, Verdict: "sent", Node: "tx", VIP: "udp4", Outputs: []replay.Output{{Kind: "reply", Verdict: "sent", Length: 590}}},
		{Path: way, Verdict: "sent", Node: "tx", VIP: "udp4", Backend: x.Packets[4].Backend, Outputs: []replay.Output{
			{Kind: "fragment", Verdict: "sent", Length: x.Packets[4].Outputs[0].Length}, {Kind: "fragment", Verdict: "sent", Length: x.Packets[4].Outputs[1].Length},
		}},
		{Path: []string{"rx", "parse"}, Verdict: "dropped", Node: "parse", Reason: "bad_length", VIP: "tcp4", Outputs: []replay.Output{}},
		{Path: way, Verdict: "sent", Node: "tx", VIP: "tcp6", Backend: x.Packets[6].Backend, Outputs: []replay.Output{{Kind: "forward", Verdict: "sent", Length: 78 + 24}}},
	} {
		want.N = i + 1
		if got := public(t, x.Packets[i]); got != public(t, want) {
			t.Errorf("packet %d:\n got %s\nwant %s", i+1, got, public(t, want))
		}
	}
	// What is written is what is told.
	var lengths []int
	for _, p := range x.Packets {
		for _, o := range p.Outputs {
			lengths = append(lengths, o.Length)
		}
	}
	if len(out) != len(lengths) {
		t.Fatalf("%d packets written, %d told", len(out), len(lengths))
	}
	for i := range out {
		if len(out[i].Data) != lengths[i] {
			t.Errorf("frame %d: %d bytes written, %d told", i, len(out[i].Data), lengths[i])
		}
	}
	if out[0].Time != epoch || out[1].Time != epoch+3e6 {
		t.Errorf("written at %d and %d", out[0].Time-epoch, out[1].Time-epoch)
	}
	if p := x.Pools["web"]; len(p.Digest) != 16 || p.Slots["web-1"]+p.Slots["web-2"]+p.Slots["web-3"] != 65537 {
		t.Errorf("%+v", p)
	}
}

// public is a packet as the document has it.
func public(t testing.TB, p replay.Packet) string {
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTheDocument(t *testing.T) {
	c := nodetest.Cases(t)
	x, _ := run(t, load(t, stateless), replay.Options{}, capture(t, at{0, c["syn"]}))
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"received", "made", "sent", "kernel", "held", "drops", "packets", "pools", "connections"} {
		if _, ok := doc[k]; !ok {
			t.Errorf("no %q", k)
		}
	}
	p := doc["packets"].([]any)[0].(map[string]any)
	for _, k := range []string{"n", "queue", "path", "verdict", "node", "reason", "vip", "backend", "outputs"} {
		if _, ok := p[k]; !ok {
			t.Errorf("no %q in packets", k)
		}
	}
	if fmt.Sprint(doc["drops"]) != "map[]" || fmt.Sprint(p["outputs"]) != "[map[kind:forward length:82 verdict:sent]]" {
		t.Errorf("%s", b)
	}
	// Nothing at all is a document too.
	x, _ = run(t, load(t, stateless), replay.Options{}, capture(t))
	if b, err = json.Marshal(x); err != nil || !bytes.Contains(b, []byte(`"drops":{},"packets":[],"pools":{"web"`)) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestRunsAreRepeatable(t *testing.T) {
	c := nodetest.Cases(t)
	var q [3][]at
	for i := range 500 {
		b := nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, uint16(1024+i), 443, 1460)
		q[i%3] = append(q[i%3], at{time.Duration(i/7) * time.Millisecond, b}, at{time.Duration(i/7) * time.Millisecond, c["frag1"]})
	}
	var files []string
	for i := range q {
		files = append(files, capture(t, q[i]...))
	}
	f := load(t, stateless)
	x, out := run(t, f, replay.Options{}, files...)
	for range 3 {
		y, again := run(t, f, replay.Options{}, files...)
		if !reflect.DeepEqual(x, y) || !reflect.DeepEqual(out, again) {
			t.Fatal("two runs differ")
		}
	}
	if x.Received != 1000 || x.Made != 500 {
		t.Errorf("received %d, made %d", x.Received, x.Made)
	}
}

// TestTheOrder: captures are merged by time; of equal times the lower queue is
// first; a capture that runs backwards stands still.
func TestTheOrder(t *testing.T) {
	syn := func(port int) []byte {
		return nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, uint16(port), 443, 1460)
	}
	x, out := run(t, load(t, stateless), replay.Options{},
		capture(t, at{5, syn(1)}, at{5, syn(2)}, at{9, syn(3)}),
		capture(t, at{5, syn(4)}, at{8, syn(5)}, at{6, syn(6)}, at{9, syn(7)}))
	var got []string
	for i, p := range out {
		inner := nodetest.Decode(append(append([]byte(nil), p.Data[:14]...), p.Data[14+24:]...))
		got = append(got, fmt.Sprintf("%d@%d/q%d", inner.Layer(layers.LayerTypeTCP).(*layers.TCP).SrcPort, p.Time-epoch, x.Packets[i].Queue))
	}
	if want := "[1@5/q0 2@5/q0 4@5/q1 5@8/q1 6@8/q1 3@9/q0 7@9/q1]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestDown(t *testing.T) {
	var syns []at
	for i := range 300 {
		syns = append(syns, at{0, nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, uint16(1024+i), 443, 1460)})
	}
	f, in := load(t, stateless), capture(t, syns...)
	share := func(down ...string) map[string]int {
		x, _ := run(t, f, replay.Options{Down: down}, in)
		n := map[string]int{}
		for _, p := range x.Packets {
			n[p.Backend]++
		}
		for _, d := range down {
			if !strings.Contains(d, "/") {
				continue
			}
			if slots := x.Pools["web"].Slots[strings.TrimPrefix(d, "web/")]; slots != 0 {
				t.Errorf("%s is down and has %d slots", d, slots)
			}
		}
		return n
	}
	if n := share(); n["web/web-1"] == 0 || n["web/web-2"] == 0 || n["web/web-3"] == 0 {
		t.Errorf("%v", n)
	}
	if n := share("web/web-2"); n["web/web-2"] != 0 || n["web/web-1"]+n["web/web-3"] != 300 {
		t.Errorf("%v", n)
	}
	if n := share("10.0.1.1", "web/web-3"); n["web/web-2"] != 300 {
		t.Errorf("%v", n)
	}
	x, _ := run(t, f, replay.Options{Down: []string{"web/web-1", "web/web-2", "web/web-3"}}, in)
	if x.Drops["maglev-select.no_backend"] != 300 {
		t.Errorf("%v", x.Drops)
	}
}

func TestAddresses(t *testing.T) {
	in := capture(t, at{0, nodetest.Cases(t)["syn"]})
	for _, c := range []struct {
		addrs []netip.Addr
		want  string
	}{{nil, "192.0.2.1"}, {[]netip.Addr{netip.MustParseAddr("198.51.100.99")}, "198.51.100.99"}} {
		_, out := run(t, load(t, stateless), replay.Options{Addrs: c.addrs}, in)
		if ip := nodetest.Decode(out[0].Data).Layer(layers.LayerTypeIPv4).(*layers.IPv4); ip.SrcIP.String() != c.want {
			t.Errorf("outer source %s, want %s", ip.SrcIP, c.want)
		}
	}
}

// TestCapturesInTheFile: pcap-rx and pcap-tx read and write what they name.
func TestCapturesInTheFile(t *testing.T) {
	c := nodetest.Cases(t)
	out := filepath.Join(t.TempDir(), "out.pcapng")
	text := world + fmt.Sprintf(`
graph "edge" {
  path { main = [rx, parse, vip-classify, maglev-select, mtu-check, gre-encap, out] }
  node "pcap-rx" "rx" {
    file = %q
    more = [%q]
  }
  node "mtu-check" "mtu-check" { icmp_rate = 0 }
  node "gre-encap" "gre-encap" { source = "192.0.2.1" }
  node "pcap-tx" "out" { file = %q }
}
`, capture(t, at{2, c["syn"]}), capture(t, at{1, c["syn6"]}), out)
	x, _ := run(t, load(t, text), replay.Options{})
	if x.Received != 2 || x.Sent != 2 || x.Packets[0].Queue != 1 || x.Packets[0].VIP != "tcp6" {
		t.Errorf("%+v", x)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if ps := read(t, b); len(ps) != 2 || ps[0].Time != epoch+1 {
		t.Errorf("%d packets in the file", len(ps))
	}
}

func TestMistakes(t *testing.T) {
	c := nodetest.Cases(t)
	good := capture(t, at{0, c["syn"]})
	made := world + `
graph "edge" {
  path { main = [clients, out] }
  node "generate" "clients" {}
  node "pcap-tx" "out" { file = "/dev/null" }
}
`
	two := strings.Replace(stateless, `node "xdp-tx" "tx" {}`, "node \"xdp-tx\" \"tx\" {}\n  node \"xdp-rx\" \"rx2\" { interface = \"eth1\" }\n", 1)
	two = strings.Replace(two, "main    = [", "second = [rx2, parse]\n    main    = [", 1)
	for _, m := range []struct {
		text, want string
		o          replay.Options
	}{
		{stateless, `no packet graph "core"`, replay.Options{Graph: "core"}},
		{stateless, `no backend "web/web-9"`, replay.Options{Down: []string{"web/web-9"}}},
		{stateless, `does not receive from "eth7"`, replay.Options{In: []replay.Input{{Interface: "eth7", File: good}}}},
		{two, "INTERFACE=FILE", replay.Options{In: []replay.Input{{File: good}}}},
		{made, `"clients" makes packets up`, replay.Options{}},
	} {
		_, err := replay.Run(load(t, m.text), m.o)
		var option replay.ErrOption
		if !errors.As(err, &option) || !strings.Contains(err.Error(), m.want) {
			t.Errorf("%v, want %q", err, m.want)
		}
	}
	if _, err := replay.Run(load(t, stateless), replay.Options{In: []replay.Input{{File: "/nowhere/q0.pcap"}}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	// Both interfaces, each with its queue.
	x, err := replay.Run(load(t, two), replay.Options{In: []replay.Input{{Interface: "eth1", File: good}, {Interface: "eth0", File: good}}})
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, x)
	if x.Sent != 2 || x.Packets[0].Path[0] != "rx" && x.Packets[1].Path[0] != "rx" {
		t.Errorf("%+v", x)
	}
}

func TestBadCapturesAreToldOf(t *testing.T) {
	c := nodetest.Cases(t)
	name := capture(t, at{0, c["syn"]}, at{1, c["syn"]}, at{2, c["syn"]})
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b[:len(b)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	x, _ := run(t, load(t, stateless), replay.Options{}, name)
	if x.Received != 2 || len(x.Warnings) != 1 || !strings.Contains(x.Warnings[0], "cut short") {
		t.Errorf("%d packets, %v", x.Received, x.Warnings)
	}
	// A short snapshot length.
	var buf bytes.Buffer
	w := pcap.NewWriter(&buf, pcap.Classic)
	_ = w.Write(pcap.Packet{Time: epoch, Data: c["syn"][:40], Length: len(c["syn"])}, 0)
	_ = w.Flush()
	if err := os.WriteFile(name, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	x, _ = run(t, load(t, stateless), replay.Options{}, name)
	if len(x.Warnings) != 1 || !strings.Contains(x.Warnings[0], "in part") || x.Packets[0].Verdict != "dropped" {
		t.Errorf("%v, %+v", x.Warnings, x.Packets)
	}
	// A packet that no socket would take.
	x, _ = run(t, load(t, stateless), replay.Options{}, capture(t, at{0, make([]byte, 100_000)}, at{0, c["syn"]}))
	if x.Drops["rx.too_long"] != 1 || x.Sent != 1 {
		t.Errorf("%v", x.Drops)
	}
}

// TestLongGapsTakeNoTime: years between two packets are not ticked through.
func TestLongGapsTakeNoTime(t *testing.T) {
	c := nodetest.Cases(t)
	start := time.Now()
	x, _ := run(t, load(t, stateless), replay.Options{}, capture(t, at{0, c["syn"]}, at{20 * 365 * 24 * time.Hour, c["syn"]}))
	if x.Sent != 2 || time.Since(start) > 20*time.Second {
		t.Errorf("%d sent in %v", x.Sent, time.Since(start))
	}
}

func BenchmarkReplay(b *testing.B) {
	var syns []at
	for i := range 10000 {
		syns = append(syns, at{time.Duration(i) * time.Microsecond, nodetest.SYN(b, nodetest.Client4, nodetest.VIP4, uint16(1024+i%60000), 443, 1460)})
	}
	f, in := load(b, stateless), capture(b, syns...)
	for b.Loop() {
		run(b, f, replay.Options{}, in)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10000, "ns/packet")
}
