package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/runtime"
)

// TestOrdersUntilReload: each order, given for good and until the next reload.
func TestOrdersUntilReload(t *testing.T) {
	text := strings.Replace(plain, `backend "web-1" { address = "10.0.1.1" }`, "backend \"web-1\" {\n    address = \"10.0.1.1\"\n    drain   = true\n  }", 1)
	r := newRig(t, text)
	member := func(i int) string {
		m := r.Snapshot().Pools[1].Members[i]
		return fmt.Sprintf("%t %d", m.Drained, m.Weight)
	}
	seven := 7
	reloads := 0
	for _, c := range []struct {
		backend       int // web-1 is drained by the file
		order         admin.Change
		ordered, file string
	}{
		{1, admin.Change{Drain: true}, "true 100", "false 100"},
		{1, admin.Change{Weight: &seven}, "false 7", "false 100"},
		{0, admin.Change{Enable: true}, "false 100", "true 100"},
	} {
		for _, until := range []bool{false, true} {
			name := fmt.Sprintf("web-%d", c.backend+1)
			c.order.UntilReload = until
			if err := r.ChangeBackend("web", name, c.order); err != nil {
				t.Fatal(err)
			}
			if got := member(c.backend); got != c.ordered {
				t.Errorf("%+v: %s, want %s", c.order, got, c.ordered)
			}
			reloads++
			r.write(text + strings.Repeat("# more\n", reloads))
			r.ReloadFile("test", false)
			want := c.ordered
			if until {
				want = c.file
			}
			if got := member(c.backend); got != want {
				t.Errorf("%+v, after a reload: %s, want %s", c.order, got, want)
			}
			if err := r.ChangeBackend("web", name, admin.Change{Restore: true}); err != nil {
				t.Fatal(err)
			}
			if got := member(c.backend); got != c.file {
				t.Errorf("%+v, restored: %s, want %s", c.order, got, c.file)
			}
		}
	}
	if err := r.ChangeBackend("web", "web-1", admin.Change{}); err == nil || !strings.Contains(err.Error(), "no order") {
		t.Errorf("no order: %v", err)
	}
	tooMuch := 1001
	if err := r.ChangeBackend("web", "web-1", admin.Change{Weight: &tooMuch}); err == nil {
		t.Error("a weight that cannot be was taken")
	}
	if r.logged("a backend is changed by command", "1001") {
		t.Error("an order that was not carried out is logged")
	}
}

// manyDriver gives each interface a port of its own.
type manyDriver struct{ ports map[string]*memDriver }

func (d *manyDriver) Queues(graph.PortSpec) (int, error) { return 1, nil }

func (d *manyDriver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	x := &memDriver{}
	p, err := x.Open(s, m, chunk, rings)
	d.ports[s.Name] = x
	return p, err
}

// twoGraphs is plain with a second graph beside the first, on eth1.
var twoGraphs = plain + strings.NewReplacer(`graph "edge"`, `graph "more"`, "eth0", "eth1").Replace(plain[strings.Index(plain, "graph"):])

// TestTwoGraphs: an order is for all graphs, flows of other backends stay, and a trace or
// a sample is of the graph that it names.
func TestTwoGraphs(t *testing.T) {
	d := &manyDriver{map[string]*memDriver{}}
	r := newRig(t, twoGraphs, func(o *Options) { o.Drivers = map[string]runtime.Driver{"xdp": d} })
	put := func(port string, frames [][]byte) map[uint16]netip.Addr {
		t.Helper()
		r.port = d.ports[port]
		return r.put(frames)
	}
	f := flows(t, 300)
	was := map[string]map[uint16]netip.Addr{}
	for _, p := range []string{"eth0", "eth1"} {
		was[p] = put(p, f)
	}
	if err := r.ChangeBackend("web", "web-1", admin.Change{Drain: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.ChangeBackend("web", "web-1", admin.Change{Flush: true}); err != nil {
		t.Fatal(err)
	}
	misses := func(graph string) uint64 {
		for _, s := range r.Stats() {
			if n := s.Node("ct"); s.Graph == graph {
				return n.Counter("misses")
			}
		}
		return 0
	}
	for p, before := range was {
		moved := 0
		g := map[string]string{"eth0": "edge", "eth1": "more"}[p]
		known := misses(g)
		for port, b := range put(p, f) {
			switch {
			case b == web1:
				t.Errorf("%s: a flow of %d stayed on a backend that was flushed", p, port)
			case before[port] == web1:
				moved++
			case b != before[port]:
				t.Errorf("%s: the flow of %d went from %s to %s", p, port, before[port], b)
			}
		}
		if moved != on(before, web1) || moved == 0 || int(misses(g)-known) != moved {
			t.Errorf("%s: %d flows moved, %d were forgotten, %d were there", p, moved, misses(g)-known, on(before, web1))
		}
	}
	q := admin.Flow{Protocol: "tcp", Source: netip.MustParseAddrPort("198.51.100.7:1"), Destination: netip.MustParseAddrPort("203.0.113.80:80"), SYN: true}
	if _, err := r.Trace(q); err == nil || err.Error() != "name a graph: there are edge, more" {
		t.Errorf("a trace of no graph: %v", err)
	}
	q.Graph = "more"
	if x, err := r.Trace(q); err != nil || x.Graph != "more" || x.Verdict != "sent" {
		t.Errorf("%+v, %v", x, err)
	}
	for filter, want := range map[string]map[string]int{"": {"edge": 10, "more": 10}, "edge": {"edge": 10}, "more": {"more": 10}} {
		got := map[string]int{}
		all, err := r.sample(admin.Filter{Count: 100, Graph: filter}, func() {
			put("eth0", f[:10])
			put("eth1", f[:10])
		})
		for _, x := range all {
			got[x.Graph]++
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("samples of %q: %v, want %v; %v", filter, got, want, err)
		}
	}
	if top, err := r.Top(t.Context(), 10*time.Millisecond); err != nil || len(top.Graphs) != 2 || top.Graphs[1].Graph != "more" {
		t.Errorf("%+v, %v", top, err)
	}
}

// TestTopAddsUp: what grew between two looks, for each node, and the shares of all.
func TestTopAddsUp(t *testing.T) {
	node := func(name string, calls, packets, cycles, timed, dropped, lost uint64) graph.NodeStats {
		return graph.NodeStats{Name: name, Kind: "k", Calls: calls, Packets: packets, Cycles: cycles, Timed: timed, Unanswered: lost, NoPunt: 2 * lost,
			Outputs: []graph.OutputStats{{Name: "next", Packets: 1000 * packets}, {Name: "why", Drop: true, Packets: dropped}}}
	}
	a := graph.Stats{Received: 10, Sent: 20, Dropped: 30, Kernel: 40, Nodes: []graph.NodeStats{node("x", 1, 2, 300, 4, 5, 6), node("gone", 9, 9, 9, 9, 9, 9), node("anew", 100, 100, 1000, 100, 100, 100)}}
	b := graph.Stats{
		Graph: "g", Cores: 3, Received: 11, Sent: 22, Dropped: 33, Kernel: 44, CyclesPerNanosecond: 2,
		Nodes: []graph.NodeStats{node("x", 11, 22, 1300, 104, 10, 16), node("anew", 5, 10, 400, 20, 1, 1), node("idle", 0, 0, 0, 0, 0, 0)},
	}
	got := topGraph(&a, &b)
	// x: 1000 cycles over 100 packets are 5 ns, for 20 packets; anew began anew: 400
	// over 20 are 10 ns, for 10.
	want := admin.TopGraph{Graph: "g", Cores: 3, Received: 1, Sent: 2, Dropped: 3, Kernel: 4, Nodes: []admin.TopNode{
		{Node: "x", Kind: "k", Calls: 10, Packets: 20, Dropped: 5 + 3*10, Nanos: 5, Share: 0.5}, {Node: "anew", Kind: "k", Calls: 5, Packets: 10, Dropped: 1 + 3, Nanos: 10, Share: 0.5},
		{Node: "idle", Kind: "k"},
	}}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// What took x's place is of another kind: it has done all that it counts. An output
	// that leads on now is no drop any more, and one that did not drop had dropped nothing.
	a, b = graph.Stats{Nodes: []graph.NodeStats{node("x", 1, 2, 3, 4, 5, 6), node("y", 1, 2, 3, 4, 50, 6)}},
		graph.Stats{CyclesPerNanosecond: 2, Nodes: []graph.NodeStats{node("x", 7, 8, 9, 10, 11, 12), node("y", 1, 2, 3, 4, 60, 6)}}
	b.Nodes[0].Kind = "l"
	b.Nodes[1].Outputs = []graph.OutputStats{{Name: "next", Drop: true, Packets: 7}, {Name: "why", Packets: 60}}
	if got := topGraph(&a, &b).Nodes; got[0].Calls != 7 || got[0].Packets != 8 || got[0].Dropped != 11+3*12 || got[1].Dropped != 7 {
		t.Errorf("%+v", got)
	}
	b.CyclesPerNanosecond = 0 // it is not known
	for _, n := range topGraph(&a, &b).Nodes {
		if n.Nanos != 0 || n.Share != 0 {
			t.Errorf("without a rate: %+v", n)
		}
	}
}

// TestLockOut: a VIP that covers an address of the node's own interface is refused, of
// either family, at the start and in a reload; one beside it, or one that is disabled, is
// not.
func TestLockOut(t *testing.T) {
	vip := func(address, more string) string {
		return strings.Replace(plain, `vip "web"`, fmt.Sprintf("vip \"over\" {\n  address = %q\n  pool    = pool.web\n%s}\nvip \"web\"", address, more), 1)
	}
	r := newRig(t, plain)
	for _, c := range []struct {
		address, more string
		covers        string
	}{
		{"192.0.2.1", "", "192.0.2.1"}, {"192.0.2.0/24", "", "192.0.2.1"}, {"192.0.2.0/31", "", "192.0.2.1"}, {"2001:db8:f::/64", "", "2001:db8:f::1"}, {"2001:db8:f::1", "", "2001:db8:f::1"},
		{"192.0.2.2", "", ""}, {"192.0.2.2/31", "", ""}, {"2001:db8:f::2", "", ""}, {"192.0.2.0/24", "  enabled = false\n", ""},
	} {
		generation := r.Snapshot().Generation
		r.write(vip(c.address, c.more))
		got := r.ReloadFile("test", false)
		if c.covers == "" {
			if got.Outcome != admin.Reloaded {
				t.Errorf("%+v: %+v", c, got)
			}
			continue
		}
		want := `vip "over" (` + netip.MustParsePrefix(map[bool]string{true: c.address, false: c.address + map[bool]string{true: "/128", false: "/32"}[strings.Contains(c.address, ":")]}[strings.Contains(c.address, "/")]).String() +
			`) covers ` + c.covers + `, the address of interface eth0 itself`
		if got.Outcome != admin.Failed || !strings.Contains(got.Error, want) {
			t.Errorf("%+v: %+v, want %s", c, got, want)
		}
		if r.Snapshot().Generation != generation {
			t.Errorf("%+v: the state has changed", c)
		}
		l := Source{Path: r.path}.Load()
		if _, err := New(l.File, Options{Loaded: l, Drivers: driversOf(&memDriver{})}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v at the start: %v", c, err)
		}
	}
}

// TestPaceOfSigns: signs of life come three times within the watchdog's time, and when
// that is long, or there is none, the time of a stop is prolonged each second all the
// same.
func TestPaceOfSigns(t *testing.T) {
	t.Parallel() // it waits most of its time
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@lbgraph-pace-" + strconv.FormatInt(time.Now().UnixNano(), 36), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// hear answers how often it is said within a generous time, up to most.
	hear := func(watchdog time.Duration, leaving bool, word string, most int) (n int) {
		t.Helper()
		conn, err := net.DialUnix("unixgram", nil, l.LocalAddr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		d := &Daemon{notify: notifier{conn, watchdog}, log: zap.NewNop(), xdp: &xdpDriver{}}
		d.leaving.Store(leaving)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			d.watch(stop)
		}()
		_ = l.SetReadDeadline(time.Now().Add(15 * time.Second))
		for b := make([]byte, 100); n < most; {
			k, err := l.Read(b)
			if err != nil {
				break
			}
			if strings.HasPrefix(string(b[:k]), word) {
				n++
			}
		}
		close(stop)
		<-stopped
		d.notify.close()
		for { // what was said meanwhile
			_ = l.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := l.Read(make([]byte, 100)); err != nil {
				return n
			}
		}
	}
	// Once a second it would be 15.
	if n := hear(90*time.Millisecond, false, "WATCHDOG=1", 40); n != 40 {
		t.Errorf("%d signs of life", n)
	}
	if n := hear(time.Hour, true, "EXTEND_TIMEOUT_USEC=10000000", 2); n != 2 {
		t.Errorf("with a long watchdog the stop was prolonged %d times", n)
	}
	if n := hear(0, true, "EXTEND_TIMEOUT_USEC=10000000", 2); n != 2 {
		t.Errorf("without a watchdog the stop was prolonged %d times", n)
	}
}

// TestReloadUndoesControls: a control that is new in a file whose reload fails later is
// stopped, and checks go on through the tunnel of before.
func TestReloadUndoesControls(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var levels []string
	r := newRig(t, with(`log { level = "warn" }`), func(o *Options) {
		o.SetLog = func(_, level string) error { levels = append(levels, level); return nil }
	})
	was := r.tunnel.encap
	next := strings.Replace(with(fmt.Sprintf("log { level = \"error\" }\nmetrics { listen = %q }", address)), `"gre-encap" "gre" {}`, `"gre-encap" "gre" { ttl = 63 }`, 1)
	answers := func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	for _, at := range []string{"state", "end"} {
		r.latch = func(step string) error {
			if step == at {
				if !answers() || r.tunnel.encap.TTL != 63 {
					t.Errorf("before %q: it answers %t, the tunnel's TTL is %d", at, answers(), r.tunnel.encap.TTL)
				}
				return errors.New("a test does not let it")
			}
			return nil
		}
		r.write(next)
		if got := r.ReloadFile("test", false); got.Outcome != admin.Failed {
			t.Fatalf("%+v", got)
		}
		if answers() {
			t.Errorf("at %q: a control that was undone answers still", at)
		}
		if r.tunnel.encap != was {
			t.Errorf("at %q: the tunnel is %+v, was %+v", at, r.tunnel.encap, was)
		}
	}
	if got := strings.Join(levels, " "); got != "warn error warn error warn" {
		t.Errorf("the log was set to %s", got)
	}
	r.latch = nil
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || !answers() || r.tunnel.encap.TTL != 63 {
		t.Errorf("%+v, the tunnel is %+v", got, r.tunnel.encap)
	}
	r.write(plain)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
		t.Errorf("%+v", got)
	}
	r.background.Wait()
	if answers() {
		t.Error("a control that was removed answers still")
	}
}

// opened is how many nodes of the kind that the next test brings along are open, and
// watched how often one of them is told of a snapshot.
var opened, watched atomic.Int64

type opener struct{}

func (opener) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[0] = in }

func (opener) Close() error { opened.Add(-1); return nil }

// Kinds are registered once a process, however often tests run in it.
func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-opener", Summary: "counts what of it is open", Outputs: []graph.Output{{Name: "next", Doc: "all packets"}},
		Packets: func(_ struct{}, env *graph.Env) (graph.Maker, error) {
			env.Watch(func(*state.Snapshot) { watched.Add(1) })
			return func(graph.Core) (graph.Node, error) { opened.Add(1); return opener{}, nil }, nil
		},
	})
}

// TestReloadUndoesItsGraph: nodes that were built for a graph that is not taken are
// closed, and told of no snapshot any more.
func TestReloadUndoesItsGraph(t *testing.T) {
	r := newRig(t, plain)
	r.write(strings.Replace(strings.Replace(plain, "gre, tx]", "gre, opener, tx]", 1), `  node "xdp-tx"`, "  node \"test-opener\" \"opener\" {}\n  node \"xdp-tx\"", 1))
	r.latch = func(step string) error {
		if step != "state" {
			return nil
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d nodes of the new graph are open", n)
		}
		return errors.New("a test does not let it")
	}
	told := func() int64 {
		t.Helper()
		before := watched.Load()
		for _, c := range []admin.Change{{Drain: true}, {Restore: true}} {
			if err := r.ChangeBackend("web", "web-1", c); err != nil {
				t.Fatal(err)
			}
		}
		return watched.Load() - before
	}
	for range 3 {
		if got := r.ReloadFile("test", false); got.Outcome != admin.Failed {
			t.Fatalf("%+v", got)
		}
		if n, m := opened.Load(), told(); n != 0 || m != 0 {
			t.Errorf("%d nodes are open, and were told of %d snapshots", n, m)
		}
	}
	r.latch = nil
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || opened.Load() != 1 || told() != 2 {
		t.Errorf("%+v: %d nodes are open", got, opened.Load())
	}
	// Nor does a graph stay that was built to be asked.
	q := admin.Flow{Protocol: "tcp", Source: netip.MustParseAddrPort("198.51.100.7:1"), Destination: netip.MustParseAddrPort("203.0.113.80:80")}
	if x, err := r.Trace(q); err != nil || !strings.Contains(way(x), "opener") || opened.Load() != 1 || told() != 2 {
		t.Errorf("after a trace %d nodes are open: %+v, %v", opened.Load(), x.Steps, err)
	}
	r.write(plain)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || opened.Load() != 0 || told() != 0 {
		t.Errorf("%+v: %d nodes are open", got, opened.Load())
	}
}

// TestReloadUndoesItsState: what a reload published, and the graph it changed over to,
// are taken back when a later step fails; also for packets.
func TestReloadUndoesItsState(t *testing.T) {
	r := newRig(t, plain)
	f := flows(t, 300)
	r.put(f)
	second := nodetest.TCP(t, nodetest.Client4, netip.MustParseAddr("203.0.113.81"), 9, 80, nil)
	next := strings.Replace(variants(plain)[4], `vip "web"`, "vip \"more\" {\n  address = \"203.0.113.81\"\n  pool    = pool.web\n}\nvip \"web\"", 1)
	ttl := func(frames ...[]byte) byte {
		t.Helper()
		r.port.port.Inject(0, frames...)
		var out byte
		n := 0
		r.until("packets come out", func() bool {
			for _, p := range r.port.port.Sent(0) {
				out = p.Data[14+8]
				n++
			}
			return n == len(frames)
		})
		return out
	}
	r.latch = func(step string) error {
		if step != "end" {
			return nil
		}
		if x := ttl(f[0], second); x != 63 {
			t.Errorf("before its end the new graph sends with TTL %d", x)
		}
		return errors.New("a test does not let it")
	}
	r.write(next)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Failed {
		t.Fatalf("%+v", got)
	}
	if x := ttl(f[0]); x != 64 {
		t.Errorf("after it failed the graph sends with TTL %d", x)
	}
	before := r.Stats()[0].Dropped
	r.port.port.Inject(0, second)
	r.until("the new VIP is not served", func() bool { return r.Stats()[0].Dropped == before+1 })
	// The flows are known still.
	ct := r.Stats()[0]
	misses := ct.Node("ct")
	r.put(f)
	ct = r.Stats()[0]
	after := ct.Node("ct")
	if after.Counter("misses") != misses.Counter("misses") {
		t.Errorf("%d flows were forgotten", after.Counter("misses")-misses.Counter("misses"))
	}
}

// TestTargetsAreTold: whoever watches for targets of checks is told after each reload
// that is taken, when its file is in force, until he is told no more.
func TestTargetsAreTold(t *testing.T) {
	r := newRig(t, plain)
	var seen []int
	stop := r.WatchTargets(func() { seen = append(seen, len(r.Snapshot().Backends)) })
	var others int
	stopOther := r.WatchTargets(func() { others++ })
	r.write("nonsense")
	r.ReloadFile("test", false)
	r.latch = func(step string) error {
		if step == "end" {
			return errors.New("a test does not let it")
		}
		return nil
	}
	r.write(variants(plain)[5])
	r.ReloadFile("test", false)
	r.latch = nil
	if len(seen) != 0 {
		t.Errorf("reloads that were not taken are told of: %v", seen)
	}
	r.ReloadFile("test", false)
	if len(seen) != 1 || seen[0] < 1+4 || others != 1 { // number 0 is nobody
		t.Errorf("after a reload to four backends: %v, %d", seen, others)
	}
	stop()
	r.write(plain)
	r.ReloadFile("test", false)
	if len(seen) != 1 || others != 2 {
		t.Errorf("after the end: %v, %d", seen, others)
	}
	stopOther()
}

// TestGatewaysFollowTheFile: those that next_hop arguments name, and no other.
func TestGatewaysFollowTheFile(t *testing.T) {
	hop := func(a string) string {
		return strings.Replace(with("neigh {}"), `"gre-encap" "gre" {}`, fmt.Sprintf(`"gre-encap" "gre" { next_hop = %q }`, a), 1)
	}
	r := newRig(t, hop("192.0.2.254"))
	for _, c := range []struct{ text, want string }{{"", "[192.0.2.254]"}, {hop("192.0.2.253"), "[192.0.2.253]"}, {plain, "[]"}, {hop("192.0.2.252"), "[192.0.2.252]"}} {
		if c.text != "" {
			r.write(c.text)
			if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
				t.Fatalf("%+v", got)
			}
		}
		if got := fmt.Sprint(r.Gateways()); got != c.want {
			t.Errorf("gateways are %s, want %s", got, c.want)
		}
	}
}

// TestLogStaysAtAStop: the log block's end at a stop does not change how the last lines
// are said; a daemon without a log that can change takes the block all the same.
func TestLogStaysAtAStop(t *testing.T) {
	var levels []string
	r := &rig{t: t, path: t.TempDir() + "/lb.hcl"}
	r.write(with(`log { level = "warn" }`))
	l := Source{Path: r.path}.Load()
	for _, set := range []func(format, level string) error{func(_, level string) error { levels = append(levels, level); return nil }, nil} {
		d, err := New(l.File, Options{Loaded: l, Drivers: driversOf(&memDriver{}), SetLog: set})
		if err == nil {
			err = d.Start(t.Context())
		}
		if err == nil {
			conserved(t, d)
			err = d.Stop(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(levels, " "); got != "warn" {
		t.Errorf("the log was set to %s", got)
	}
}

// TestFits: each field of a filter, alone.
func TestFits(t *testing.T) {
	tcp := nodetest.TCP(t, nodetest.Client4, vip80, 1000, 80, nil)
	six := nodetest.TCP(t, nodetest.Client6, netip.MustParseAddr("2001:db8::80"), 1000, 443, nil)
	udp := nodetest.UDP(t, nodetest.Client4, vip80, 1001, 7)
	// What stands where a first fragment has its ports is none of the others'.
	_, later := inFragments(nodetest.UDP(t, nodetest.Client4, vip80, 1001, 7, bytes.Repeat([]byte{1000 >> 8, 1000 & 0xff, 0, 7}, 150)...), 304)
	icmp := nodetest.Cases(t)["echo6"]
	arp := append(make([]byte, 12), 8, 6, 0, 1)
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		name string
		q    admin.Filter
		want string // tcp, six, udp, later, icmp, arp
	}{
		{"nothing", admin.Filter{}, "tcp six udp later icmp arp"},
		{"tcp", admin.Filter{Protocol: "tcp"}, "tcp six"}, {"udp", admin.Filter{Protocol: "udp"}, "udp later"}, {"icmp", admin.Filter{Protocol: "icmp"}, "icmp"},
		{"source", admin.Filter{Source: prefix(nodetest.Client4.String() + "/32")}, "tcp udp later"}, {"source 6", admin.Filter{Source: prefix(nodetest.Client6.String() + "/128")}, "six icmp"},
		{"destination", admin.Filter{Destination: prefix("203.0.113.0/24")}, "tcp udp later"}, {"another", admin.Filter{Destination: prefix("203.0.114.0/24")}, ""},
		{"source port", admin.Filter{SourcePort: 1000}, "tcp six"}, {"destination port", admin.Filter{DestinationPort: 7}, "udp"}, {"both", admin.Filter{Protocol: "tcp", DestinationPort: 443}, "six"},
	} {
		var got []string
		for _, f := range []struct {
			name  string
			frame []byte
		}{{"tcp", tcp}, {"six", six}, {"udp", udp}, {"later", later}, {"icmp", icmp}, {"arp", arp}} {
			if fits(&c.q, f.frame) {
				got = append(got, f.name)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s fit, want %s", c.name, s, c.want)
		}
	}
}

// TestFlowOf: tags and extension headers are looked through, and what is cut off, or has
// more of them than is sensible, is told as far as it is known.
func TestFlowOf(t *testing.T) {
	tcp := nodetest.TCP(t, nodetest.Client4, vip80, 1000, 80, nil)
	tag := func(b []byte, types ...byte) []byte {
		out := append([]byte{}, b[:12]...)
		for _, x := range types {
			out = append(out, map[byte]byte{'v': 0x81, 'q': 0x88}[x], map[byte]byte{'v': 0, 'q': 0xa8}[x], 0, 5)
		}
		return append(out, b[12:]...)
	}
	six := nodetest.TCP(t, nodetest.Client6, netip.MustParseAddr("2001:db8::80"), 1000, 443, nil)
	// extended puts extension headers behind the IPv6 header: type and bytes of each.
	extended := func(heads ...[]byte) []byte {
		at := 14 + packet.IPv6Len
		out := append([]byte{}, six[:at]...)
		next := six[14+6]
		var all []byte
		for i := len(heads) - 1; i >= 0; i-- {
			h := append([]byte{next}, heads[i][1:]...)
			next = heads[i][0]
			all = append(h, all...)
		}
		out[14+6] = next
		return append(append(out, all...), six[at:]...)
	}
	eight := func(kind byte) []byte { return []byte{kind, 0, 0, 0, 0, 0, 0, 0} }
	sixteen := append([]byte{packet.ProtoDestOpts, 1}, make([]byte, 14)...)
	const four, s6 = "tcp 198.51.100.7:1000 > 203.0.113.80:80", "tcp [2001:db8:c::7]:1000 > [2001:db8::80]:443"
	options := append(append(append([]byte{}, tcp[:14]...), tcp[14:34]...), append([]byte{1, 1, 1, 0}, tcp[34:]...)...)
	options[14] = 0x46
	for _, c := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"plain", tcp, four}, {"a tag", tag(tcp, 'v'), four}, {"two tags", tag(tcp, 'q', 'v'), four}, {"three tags", tag(tcp, 'q', 'v', 'v'), ""}, {"options", options, four},
		{"no ports", tcp[:14+20+2], "tcp 198.51.100.7:0 > 203.0.113.80:0"}, {"cut off", tcp[:14+19], ""}, {"no type", tcp[:13], ""}, {"nothing", nil, ""},
		{"IPv6", six, s6}, {"IPv6 cut off", six[:14+39], ""}, {"hop by hop", extended(eight(packet.ProtoHopByHop)), s6}, {"routing, and long options", extended(eight(packet.ProtoRouting), sixteen), s6},
		{"a first fragment", extended([]byte{packet.ProtoFragment, 0, 0, 1, 0, 0, 0, 9}), s6}, {"a later fragment", extended([]byte{packet.ProtoFragment, 0, 0, 8, 0, 0, 0, 9}), "tcp fragment 2001:db8:c::7 > 2001:db8::80"},
		{"an extension cut off", extended(eight(packet.ProtoHopByHop))[:14+40+4], "protocol 0 2001:db8:c::7 > 2001:db8::80"},
		{"of another version", append(append([]byte{}, tcp[:14]...), append([]byte{0x65}, tcp[15:]...)...), ""},
	} {
		got := ""
		if f, ok := flowOf(c.frame); ok {
			got = f.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
