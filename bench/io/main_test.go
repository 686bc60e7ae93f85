package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Every time has one bucket, whose bounds are around it and at most 1/32 apart.
func TestBuckets(t *testing.T) {
	for b := range bucket(^uint32(0)) + 1 {
		lo, hi := bound(b)
		if hi <= lo || (hi-lo)/max(lo, 32) > 1.0/32 {
			t.Fatalf("bucket %d is from %v to %v", b, lo, hi)
		}
		if bucket(uint32(lo)) != b || bucket(uint32(hi-1)) != b {
			t.Fatalf("bucket %d is from %v to %v; they are in %d and %d", b, lo, hi, bucket(uint32(lo)), bucket(uint32(hi-1)))
		}
	}
	if n := bucket(^uint32(0)); n >= buckets {
		t.Errorf("bucket %d of %d", n, buckets)
	}
}

func TestQuantiles(t *testing.T) {
	var x times
	if q := x.quantile(0.5); q != 0 {
		t.Errorf("%v of nothing", q)
	}
	for d := range uint32(1000) { // 1 to 1000 ns, each once
		x[bucket(d+1)]++
	}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 500}, {0.9, 900}, {0.99, 990}, {0.999, 999}, {1, 1000}} {
		if got := x.quantile(c.q); got < c.want || got > c.want*(1+1.0/32)+1 {
			t.Errorf("%v %% within %v ns, want %v", 100*c.q, got, c.want)
		}
	}
	y := x
	y.add(&x)
	if y.count() != 2000 || y.quantile(0.5) != x.quantile(0.5) {
		t.Errorf("%d of twice the same", y.count())
	}
	y.sub(&x)
	if y != x {
		t.Error("what is added and taken off again changes")
	}
	// One packet of a thousand is slow: it is what p99.9 leaves out.
	var z times
	z[bucket(100)], z[bucket(1e6)] = 999, 1
	if got := z.quantile(0.999); got > 110 {
		t.Errorf("99.9 %% within %v ns", got)
	}
	if got := z.quantile(0.9995); got < 1e6 {
		t.Errorf("99.95 %% within %v ns", got)
	}
}

func TestRatios(t *testing.T) {
	// The second round met a busy machine, which a ratio of medians would take for a
	// difference.
	a := []sample{{rate: 90}, {rate: 9}, {rate: 180}}
	b := []sample{{rate: 100}, {rate: 10}, {rate: 200}}
	if r := ratio(a, b, rateOf); r != 0.9 {
		t.Errorf("%v", r)
	}
	if r := ratio(a, []sample{{}, {}, {}}, rateOf); r != 0 {
		t.Errorf("%v to nothing", r)
	}
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}} {
		if m := median(c.v); m != c.want {
			t.Errorf("the median of %v is %v", c.v, m)
		}
	}
	s := sample{rate: 500_000, cpu: 0.5}
	if c := costOf(&s); c != 1000 {
		t.Errorf("half a processor for 500 000 packets a second is %v ns each", c)
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out}
	err := r.table("Title", [][]string{{"ratio", "what"}, {"0.95", "graph, 1"}, {"1.00", "reflector, 1"}})
	r.line("rate/graph, busy poll", 1234567.0, "packets/s", uint64(0), "lost", 0.95, "to-reflector")
	if err = errors.Join(err, r.flush()); err != nil {
		t.Fatal(err)
	}
	const want = "\nTitle\n\nratio  what\n0.95   graph, 1\n1.00   reflector, 1\n\n" +
		"BenchmarkIO/rate/graph/busy-poll 1 1.2346e+06 packets/s 0 lost 0.95 to-reflector\n"
	if out.String() != want {
		t.Errorf("got %q\nwant %q", out.String(), want)
	}
	for x, want := range map[float64]string{0: "0", 999: "999", 1000: "1 000", 1234567: "1 234 567"} {
		if s := thousands(x); s != want {
			t.Errorf("%v is written %q", x, s)
		}
	}
	for x, want := range map[float64]string{1500: "1.50", 123456: "123.5", 4e6: "4000"} {
		if s := micro(x); s != want {
			t.Errorf("%v ns are %q µs", x, s)
		}
	}
}

func TestNodes(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out}
	err := r.nodes("graph, 1", &graph.Stats{Received: 100, CyclesPerNanosecond: 2, Nodes: []graph.NodeStats{
		{Name: "rx", Calls: 2, Packets: 100, Cycles: 300, Timed: 50}, {Name: "gre", Calls: 4, Packets: 200, Cycles: 90, Timed: 50}, {Name: "idle"},
	}})
	const want = `
What the nodes of "graph, 1" take, by samples, which an interruption spoils: 4.8 ns a packet together; the rest is the kernel and the loop.

share  ns a packet  packets a call  node
62 %   3.0          50.0            rx
38 %   0.9          50.0            gre
`
	if err != nil || out.String() != want {
		t.Errorf("%v, got %s", err, out.String())
	}
}

// Where there are processors enough, no two things that work share one.
func TestPlaces(t *testing.T) {
	for cpus := 1; cpus <= 8; cpus++ {
		p := places{cpus}
		for n := 1; n <= lanes; n++ {
			seen := map[int]int{}
			for i := range n {
				seen[p.loop(i)]++
				seen[p.source(i, n)]++
			}
			for c := range seen {
				if c < 0 || c >= cpus {
					t.Errorf("processor %d of %d", c, cpus)
				}
			}
			if shared := len(seen) < 2*n; shared != p.shared(n) {
				t.Errorf("%d loops on %d processors: %v, said to share: %v", n, cpus, seen, p.shared(n))
			}
		}
	}
}

func TestArguments(t *testing.T) {
	good := config{rounds: 1, time: time.Second, flows: 1, window: 1, file: "nothing.hcl"}
	for _, c := range []struct {
		change func(*config)
		want   string
	}{
		{func(c *config) { c.rounds = 0 }, "-rounds"},
		{func(c *config) { c.time = time.Millisecond }, "-time"},
		{func(c *config) { c.flows = 65000 }, "-flows"},
		{func(c *config) { c.window = 4096 }, "-window"},
		{func(*config) {}, "nothing.hcl"},
	} {
		x := good
		c.change(&x)
		if err := x.run(t.Context(), os.Stderr); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}

func testLab(t *testing.T) *lab {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("short: makes network namespaces")
	case os.Geteuid() != 0:
		t.Skip("root: network namespaces need it")
	}
	l, err := newLab("../../lb.hcl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	_, err = l.wire.objs.Programs[wireProgLbgraphSource0].Run(&ebpf.RunOptions{Data: make([]byte, frame), Repeat: 1, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
	if errors.Is(err, unix.EINVAL) {
		t.Skip("kernel: no XDP programs on live frames (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestNetSource: what the source makes are whole TCP segments of as many flows as are
// wanted, in the eyes of another decoder.
func TestNetSource(t *testing.T) {
	l := testLab(t)
	const flows = 300
	o := wireOrder{Window: 1 << 20, Device: 7, Flows: flows, Frame: packetTo([6]byte{2, 0, 0, 0, 0, 9})}
	if err := errors.Join(l.wire.objs.Maps[wireMapOrders].Put(uint32(0), &o), l.wire.objs.Maps[wireMapGoing].Put(uint32(0), uint32(1))); err != nil {
		t.Fatal(err)
	}
	for lane, name := range []string{wireProgLbgraphSource0, wireProgLbgraphSource1} {
		seen := map[uint16]int{}
		for range 2 * flows {
			run := ebpf.RunOptions{Data: make([]byte, frame), DataOut: make([]byte, 256)}
			verdict, err := l.wire.objs.Programs[name].Run(&run)
			if err != nil || verdict != 4 { // XDP_REDIRECT
				t.Fatalf("verdict %d, %v", verdict, err)
			}
			p := gopacket.NewPacket(run.DataOut, layers.LayerTypeEthernet, gopacket.Default)
			ip, tcp := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4), p.Layer(layers.LayerTypeTCP).(*layers.TCP)
			seen[uint16(tcp.SrcPort)]++
			if len(run.DataOut) != frame || packet.Checksum(run.DataOut[14:34]) != 0 || ip.SrcIP.String() != fmt.Sprintf("198.18.0.%d", lane+1) || tcp.DstPort != 80 {
				t.Fatalf("%v", p)
			}
			was := tcp.Checksum
			if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
				t.Fatal(err)
			}
			if sum, err := tcp.ComputeChecksum(); err != nil || sum != 0 && sum != was {
				t.Fatalf("checksum %04x, want %04x: %v, %v", was, sum, err, p)
			}
		}
		if len(seen) != flows {
			t.Errorf("%d flows", len(seen))
		}
		for port, n := range seen {
			if n != 2 || port < 1024 {
				t.Fatalf("port %d came %d times", port, n)
			}
		}
	}
}

// TestNetSink: the sink counts packets of each lane, bare and in GRE, and places the
// time that they were under way as bucket does.
func TestNetSink(t *testing.T) {
	l := testLab(t)
	sink := l.wire.objs.Programs[wireProgLbgraphSink]
	now := func() uint32 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return uint32(ts.Nano())
	}
	for i, ago := range []uint32{0, 1e3, 1e5, 1e7, 1e9, 3e9} {
		for _, gre := range []bool{false, true} {
			before, err := l.wire.counts()
			if err != nil {
				t.Fatal(err)
			}
			full := packetTo([6]byte{})
			b := full[:frame]
			b[14+15] += byte(i % 2) // the lane
			stamp := now() - ago
			copy(b[54:], []byte{byte(stamp >> 24), byte(stamp >> 16), byte(stamp >> 8), byte(stamp)})
			if gre {
				outer := make([]byte, 24)
				outer[9] = 47
				b = append(append(bytes.Clone(b[:14]), outer...), b[14:]...)
			}
			begun := now()
			if verdict, err := sink.Run(&ebpf.RunOptions{Data: b, DataOut: make([]byte, 256)}); err != nil || verdict != 1 {
				t.Fatalf("verdict %d, %v", verdict, err)
			}
			ended := now()
			after, err := l.wire.counts()
			if err != nil {
				t.Fatal(err)
			}
			if after.received != before.received+1 || after.bytes != before.bytes+uint64(len(b)) || (after.gre > before.gre) != gre {
				t.Errorf("before %d packets, %d bytes, %d in GRE; after %d, %d, %d", before.received, before.bytes, before.gre, after.received, after.bytes, after.gre)
			}
			after.times.sub(&before.times)
			for b, n := range after.times {
				if n != 0 && (n != 1 || b < bucket(begun-stamp) || b > bucket(ended-stamp)) {
					t.Errorf("%d ns ago: %d packets in bucket %d, want one in %d to %d", ago, n, b, bucket(begun-stamp), bucket(ended-stamp))
				}
			}
			if after.times.count() != 1 {
				t.Errorf("%d times", after.times.count())
			}
		}
	}
	other := packetTo([6]byte{})
	other[14+12] = 10
	if verdict, err := sink.Run(&ebpf.RunOptions{Data: other[:frame], DataOut: make([]byte, 256)}); err != nil || verdict != 2 {
		t.Errorf("a packet of somebody else: verdict %d, %v", verdict, err)
	}
}

// TestNetDevices: packets come back from everything that is measured, none is lost, and
// in the graph all ten kinds of lb.hcl see them.
func TestNetDevices(t *testing.T) {
	l := testLab(t)
	var all []*device
	for loops := 1; loops <= lanes; loops++ {
		three, err := l.trio(loops)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, three...)
	}
	for way := range ways {
		d, err := l.reflector(wayNames[way], 1, 4, way)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	for _, d := range all {
		for _, o := range []load{{window: 32, flows: 100}, {rate: 2000, flows: 100}} {
			begun := time.Now()
			s, err := l.take(t.Context(), d, o, 200*time.Millisecond, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s.received == 0 || s.lost != 0 || s.sent != s.received+s.refused || s.times.count() == 0 || s.rate <= 0 {
				t.Errorf("%s, %+v: %d sent, %d came back, %d were refused, %d lost; %v", d.name, o, s.sent, s.received, s.refused, s.lost, d.lost())
			}
			want := float64(frame)
			if d.gre {
				want += 24
			}
			if s.size != want {
				t.Errorf("%s: packets of %v bytes came back", d.name, s.size)
			}
			if took := time.Since(begun); o.rate > 0 && float64(s.sent) > o.rate*took.Seconds()+lanes {
				t.Errorf("%s: %d packets in %v at %v a second", d.name, s.sent, took, o.rate)
			}
		}
		if d.graph == nil {
			continue
		}
		st := d.graph.Stats()[0]
		if err := st.CheckConservation(); err != nil {
			t.Error(err)
		}
		for _, n := range []string{"rx", "parse", "vip-classify", "frag-pin", "ct", "maglev-select", "clamp", "mtu", "gre", "tx"} {
			if st.Node(n).Packets == 0 {
				t.Errorf("%s: node %q saw no packet", d.name, n)
			}
		}
		if cores := len(l.fit(l.file, d.loops, 0).Graphs[0].Pin); cores != d.loops {
			t.Errorf("%d loops are pinned, want %d", cores, d.loops)
		}
	}
}

// TestNetParts: every part makes its table and its lines, and at a modest rate neither
// reloads nor storms of health lose a packet.
func TestNetParts(t *testing.T) {
	testLab(t)
	binary := filepath.Join(t.TempDir(), "lbgraph")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/lbgraph").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := config{
		file: "../../lb.hcl", binary: binary, rounds: 2, time: 100 * time.Millisecond, idle: time.Second, window: 32, flows: 500,
		modest: 2000, reloads: 10 * time.Millisecond,
	}
	for _, p := range []struct {
		name  string
		lines int
	}{{"rate", 6}, {"batch", 20}, {"latency", 9}, {"reload", 3}, {"idle", 1}} {
		x := c
		x.only = regexp.MustCompile("^" + p.name)
		if p.name == "latency" || p.name == "reload" {
			x.maximum = 5000
		}
		var out bytes.Buffer
		if err := x.run(t.Context(), &out); err != nil {
			t.Fatalf("%s: %v\n%s", p.name, err, out.String())
		}
		lines := regexp.MustCompile(`(?m)^BenchmarkIO/`+p.name+`\S* 1( \S+ \S+)+$`).FindAllString(out.String(), -1)
		if len(lines) != p.lines {
			t.Errorf("%s: %d lines, want %d:\n%s", p.name, len(lines), p.lines, out.String())
		}
		if strings.Contains(out.String(), "NaN") {
			t.Errorf("%s:\n%s", p.name, out.String())
		}
		if p.name != "reload" {
			continue
		}
		for _, line := range lines {
			if !strings.Contains(line, " 1 0 lost ") || !strings.Contains(line, " p99.9-added-ns ") {
				t.Errorf("%s\n%s", line, out.String())
			}
		}
		done := regexp.MustCompile(`reloaded \((\d+) times.*turns \((\d+) times.*, (\d+) tables built`).FindStringSubmatch(out.String())
		if done == nil || done[1] == "0" || done[2] == "0" || done[3] == "0" {
			t.Errorf("nothing was reloaded or built: %q", done)
		}
	}
}
