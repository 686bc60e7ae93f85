package cases_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/io/umem"
	_ "github.com/lbgraph/lbgraph/nodes/all"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/replay"
	"github.com/lbgraph/lbgraph/runtime"
)

// A shot is a frame that comes by a queue at a time. The next one comes when all
// of it is done.
type shot struct {
	queue int
	at    time.Duration
	b     []byte
}

// A result is what came of shots.
type result struct {
	out      [][]byte // what left, in order for each queue
	received uint64
	made     uint64
	sent     uint64
	kernel   uint64
	held     uint64
	drops    map[string]uint64
	entries  uint64            // of connection tables
	counters map[string]uint64 // "node.counter"; nil where the wire does not tell
	took     time.Duration     // from the first shot to the last, by the machine's clock
}

// dropped is the sum of all drops.
func (r *result) dropped() (n uint64) {
	for _, d := range r.drops {
		n += d
	}
	return n
}

// A wire sends shots through a file's graph with so many queues. The file's
// interface is eth0; the lines rx, tx and gre1 stand in it.
type wire func(t testing.TB, file string, queues int, shots []shot) result

var (
	addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:f::1")}
	info  = graph.PortInfo{Name: "eth0", MAC: [6]byte(nodetest.ToMAC), MTU: 1500, Addrs: addrs}
)

// load reads a file's text and checks it.
func load(t testing.TB, text string) *graph.File {
	t.Helper()
	f, diags := lang.Load("cases.hcl", lang.Options{ReadFile: func(string) ([]byte, error) { return []byte(text), nil }})
	if f != nil {
		diags = append(diags, graph.Check(f)...)
	}
	if diags.HasErrors() {
		var b strings.Builder
		_ = lang.WriteDiagnostics(&b, diags, map[string][]byte{"cases.hcl": []byte(text)}, false)
		t.Fatal(b.String())
	}
	return f
}

// collect sums up an engine's counts.
func collect(t testing.TB, s *graph.Stats, r *result) {
	t.Helper()
	if err := s.CheckConservation(); err != nil {
		t.Error(err)
	}
	r.received, r.made, r.sent, r.kernel, r.held, r.drops = s.Received, s.Made, s.Sent, s.Kernel, s.Held, s.Drops()
	r.counters = map[string]uint64{}
	for _, n := range s.Nodes {
		for _, c := range n.Counters {
			r.counters[n.Name+"."+c.Name] = c.Value
		}
		if n.Kind == "conntrack" {
			r.entries += uint64(n.Gauges["entries"])
		}
		if n.DuplicateAnswer+n.Unanswered != 0 {
			t.Errorf("node %q answered %d lanes twice and %d not at all", n.Name, n.DuplicateAnswer, n.Unanswered)
		}
	}
}

// memPort is the driver "xdp" over memory, with the admission rule in front.
type memPort struct {
	queues  int
	rules   *bpf.Rules
	port    *mem.Port
	passed  uint64
	refused map[string]uint64
}

func newMemPort(t testing.TB, f *graph.File, queues int) *memPort {
	t.Helper()
	var tunnels []netip.Prefix
	for _, a := range addrs {
		tunnels = append(tunnels, netip.PrefixFrom(a, a.BitLen()))
	}
	rules, err := bpf.RulesOf(f.Spec, tunnels)
	if err != nil {
		t.Fatal(err)
	}
	return &memPort{queues: queues, rules: rules, refused: map[string]uint64{}}
}

func (d *memPort) Queues(graph.PortSpec) (int, error) { return d.queues, nil }

func (d *memPort) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (_ graph.Port, err error) {
	d.port, err = mem.Open(mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings, Poison: true}, d.queues, info)
	return d.port, err
}

// admits decides as the XDP program would, and counts.
func (d *memPort) admits(b []byte) bool {
	switch v, reason, _ := bpf.Admit(d.rules, b); v {
	case bpf.Pass:
		d.passed++
	case bpf.Drop:
		d.refused["vip-classify."+reason.String()]++
	default:
		return true
	}
	return false
}

// addTo adds what the rule kept away from the graph.
func (d *memPort) addTo(r *result) {
	r.received += d.passed
	r.kernel += d.passed
	for reason, n := range d.refused {
		r.received += n
		r.drops[reason] += n
	}
	for q := range d.queues {
		for _, p := range d.port.Sent(q) {
			r.out = append(r.out, p.Data)
		}
	}
}

// heap makes the memory of an engine that no kernel reads.
func heap(frames, chunk int) (runtime.Memory, error) { return umem.Heap(frames, uint32(chunk)) }

// bench is a memory engine with what it was made of.
type bench struct {
	t     testing.TB
	e     *runtime.Engine
	store *state.Store
	port  *memPort
	clock int64
}

// epoch is when shots begin: a date as captures have it.
const epoch = 1_700_000_000_000_000_000

func newBench(t testing.TB, text string, queues int, threads bool) *bench {
	t.Helper()
	f := load(t, text)
	store := state.NewStore()
	t.Cleanup(store.Close)
	if err := store.Apply(f.Spec); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: store, port: newMemPort(t, f, queues), clock: epoch}
	o := runtime.Options{
		State: store.Cell(), Watch: store.Watch, Drivers: map[string]runtime.Driver{"xdp": b.port}, Memory: heap,
		Clock: func() int64 { return b.clock }, Manual: true,
	}
	if threads {
		o.Clock, o.Manual = nil, false
	}
	var err error
	if b.e, err = runtime.New(f.Graphs[0], o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.e.Stop)
	if threads {
		if err := b.e.Start(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// settle steps all cores until nothing is on its way.
func (b *bench) settle() {
	b.t.Helper()
	quiet := 0
	for range 100_000 {
		busy := false
		for c := range b.e.Cores() {
			busy = b.e.Step(c) || busy
		}
		if busy {
			quiet = 0
		} else if quiet++; quiet == 2 { // once more, so that frames come home
			return
		}
	}
	b.t.Fatal("the engine does not settle")
}

// until runs all ticks that are due before a time, and makes it the time.
func (b *bench) until(at time.Duration) {
	for {
		next := int64(1<<63 - 1)
		for c := range b.e.Cores() {
			next = min(next, b.e.NextTick(c))
		}
		if next > epoch+int64(at) {
			b.clock = max(b.clock, epoch+int64(at))
			return
		}
		b.clock = next
		b.settle()
	}
}

// overMemory steps an engine by hand.
func overMemory(t testing.TB, file string, queues int, shots []shot) (r result) {
	t.Helper()
	b := newBench(t, file, queues, false)
	for _, s := range shots {
		b.until(s.at)
		if b.port.admits(s.b) {
			b.port.port.Inject(s.queue, s.b)
		}
		b.settle()
		st := b.e.Stats()
		if err := st.CheckConservation(); err != nil {
			t.Fatal(err)
		}
	}
	st := b.e.Stats()
	collect(t, &st, &r)
	b.port.addTo(&r)
	return r
}

// wait waits until an engine has done all it was given, and answers its counts then.
//
// Loops answer one after the other and go on at once. A message to another core is in
// no count: the core that hears it may let go what it holds after it was looked at. It
// has heard it by the look after next, and what it let go moves on with each turn. So
// nothing is on its way where three looks in a row find the same.
func wait(t testing.TB, stats func() graph.Stats, received uint64) graph.Stats {
	t.Helper()
	type found struct {
		made, sent, dropped, kernel, held uint64
		census                            graph.FrameCensus
	}
	var before found
	alike := 0
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Microsecond) {
		s := stats()
		err := s.CheckConservation()
		now := found{s.Made, s.Sent, s.Dropped, s.Kernel, s.Held, s.Census}
		switch {
		case s.Received != received || err != nil || s.Census.Rings != 0 || s.Census.Tx != 0 || s.Census.Rx != 0:
			alike = 0
		case alike == 0 || now != before:
			alike = 1
		default:
			alike++
		}
		if before = now; alike == 3 {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("received %d of %d; %v; %+v", s.Received, received, err, s.Census)
		}
	}
}

// overThreads lets an engine's loops run. Times are not kept: a shot follows when
// the one before is done.
func overThreads(t testing.TB, file string, queues int, shots []shot) (r result) {
	t.Helper()
	b := newBench(t, file, queues, true)
	n := uint64(0)
	for _, s := range shots {
		if b.port.admits(s.b) {
			b.port.port.Inject(s.queue, s.b)
			n++
		}
		wait(t, b.e.Stats, n)
	}
	st := b.e.Stats()
	collect(t, &st, &r)
	b.port.addTo(&r)
	return r
}

// captures writes shots to a capture for each queue. Those of one time are set apart
// by a nanosecond.
func captures(t testing.TB, queues int, shots []shot) (names []string) {
	t.Helper()
	var files []*os.File
	var writers []*pcap.Writer
	dir := t.TempDir()
	for q := range queues {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("q%d.pcap", q)))
		if err != nil {
			t.Fatal(err)
		}
		files, writers, names = append(files, f), append(writers, pcap.NewWriter(f, pcap.Classic)), append(names, f.Name())
	}
	for i, s := range shots {
		if err := writers[s.queue].Write(pcap.Packet{Time: epoch + int64(s.at) + int64(i), Data: s.b}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for q := range queues {
		if err := writers[q].Flush(); err != nil {
			t.Fatal(err)
		}
		if err := files[q].Close(); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// readAll answers the packets of a capture.
func readAll(t testing.TB, b []byte) (all [][]byte) {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(b))
	for err == nil {
		var p pcap.Packet
		if p, err = r.Next(); err == nil {
			all = append(all, bytes.Clone(p.Data))
		}
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	return all
}

// overReplay replays captures, which checks conservation itself.
func overReplay(t testing.TB, file string, queues int, shots []shot) (r result) {
	t.Helper()
	var out bytes.Buffer
	o := replay.Options{Out: &out, Addrs: addrs}
	for _, name := range captures(t, queues, shots) {
		o.In = append(o.In, replay.Input{File: name})
	}
	x, err := replay.Run(load(t, file), o)
	if err != nil {
		t.Fatal(err)
	}
	return result{
		out: readAll(t, out.Bytes()), received: x.Received, made: x.Made, sent: x.Sent, kernel: x.Kernel, held: x.Held,
		drops: x.Drops, entries: x.Connections.Entries,
	}
}

// overFiles runs the daemon from capture to capture: the file's rx and tx become
// pcap-rx and pcap-tx.
func overFiles(t testing.TB, file string, queues int, shots []shot) (r result) {
	t.Helper()
	in := captures(t, queues, shots)
	out := filepath.Join(t.TempDir(), "out.pcap")
	more := make([]string, 0, queues)
	for _, name := range in[1:] {
		more = append(more, fmt.Sprintf("%q", name))
	}
	file = strings.NewReplacer(
		rx, fmt.Sprintf("node \"pcap-rx\" \"rx\" {\n file = %q\n more = [%s]\n}", in[0], strings.Join(more, ", ")),
		tx, fmt.Sprintf("node \"pcap-tx\" \"tx\" { file = %q }", out),
		gre1, gre1+"\n    source = \"192.0.2.1\"",
	).Replace(file)
	d, err := daemon.New(load(t, file), daemon.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := wait(t, func() graph.Stats { return d.Stats()[0] }, uint64(len(shots)))
	if err := d.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	collect(t, &s, &r)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	r.out = readAll(t, b)
	return r
}
