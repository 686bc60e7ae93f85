package metrics

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// pair is a daemon of two graphs that work for the same services.
type pair struct {
	node
	stats []graph.Stats
}

func (p *pair) Stats() []graph.Stats               { return p.stats }
func (p *pair) StreamStats() []graph.StreamStats   { return nil }
func (p *pair) Collectors() []prometheus.Collector { return nil }

// page answers all lines of the page, sorted, without those of the program's version
// and of tables' digests.
func page(t *testing.T, h Host) (all []string) {
	t.Helper()
	srv := httptest.NewServer(Handler(h))
	defer srv.Close()
	for l := range strings.Lines(get(t, srv.URL+"/metrics", http.StatusOK)) {
		if l = strings.TrimSpace(strings.TrimPrefix(l, "lbgraph_")); !strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "build_info{") && !strings.HasPrefix(l, "pool_table_info{") {
			all = append(all, l)
		}
	}
	slices.Sort(all)
	return all
}

// TestWholePage: every line of a page of two packet graphs, and no other. Each count of the
// first graph is another, so that none can stand for another.
func TestWholePage(t *testing.T) {
	addr := netip.MustParseAddr
	vip := func(name, prefix string, proto uint8, ports ...state.PortRange) state.VIPSpec {
		return state.VIPSpec{Name: name, Prefix: netip.MustParsePrefix(prefix), Protocol: proto, Ports: ports, Pool: "web"}
	}
	snap, err := state.Build(state.Spec{
		Pools: []state.PoolSpec{{Name: "web", TableSize: 251, Backends: []state.BackendSpec{
			{Name: "one", Address: addr("10.0.0.1"), Weight: 100}, {Name: "two", Address: addr("10.0.0.2"), Weight: 100, Drain: true},
		}}},
		VIPs: []state.VIPSpec{
			vip("tcp", "203.0.113.1/32", 6, state.PortRange{Lo: 80, Hi: 80}), vip("udp", "203.0.113.2/32", 17, state.PortRange{Lo: 7, Hi: 9}), vip("any", "203.0.113.3/32", 0),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	first := graph.Stats{
		Graph: "edge", Received: 1001, ReceivedBytes: 1002, Made: 1003, Sent: 1004, SentBytes: 1005, Kernel: 1006, Held: 1007, Passes: 1008, Reload: 1009,
		Retired: map[string]uint64{"gone.why": 1010},
		Census:  graph.FrameCensus{Fill: 1, Rx: 2, Tx: 3, Completion: 4, Held: 5, Rings: 6, Free: 7, Owned: 28},
		Lost:    map[string]map[string]uint64{"eth0": {"rx_ring_full": 1011}},
		// Numbers past the snapshot's are of things that are not there any more.
		PerService: []graph.Traffic{{Packets: 9, Bytes: 9}, {Packets: 1, Bytes: 10}, {Packets: 2, Bytes: 20}, {Packets: 3, Bytes: 30}, {Packets: 9, Bytes: 9}},
		PerBackend: []graph.Traffic{{Packets: 9, Bytes: 9}, {Packets: 4, Bytes: 40}, {Packets: 5, Bytes: 50}, {Packets: 9, Bytes: 9}},
		// Cycles of 256 ns to 512 ns, and more than the histogram has.
		CyclesPerNanosecond: 2,
	}
	first.Latency[1], first.Latency[2], first.Latency[graph.LatencyBuckets-1] = 3, 4, 1
	first.Sizes[1], first.Sizes[3], first.Sizes[4], first.Sizes[64] = 1, 2, 4, 8
	first.Nodes = []graph.NodeStats{{
		Name: "parse", Kind: "parser", Calls: 2001, Packets: 2002, Cycles: 2003, Timed: 2004, Unanswered: 2005, NoPunt: 2006, DuplicateAnswer: 2007,
		Outputs:  []graph.OutputStats{{Name: "next", To: "tx", Packets: 2008, Bytes: 1}, {Name: "short", Drop: true, Packets: 2009, Bytes: 2010}, {Name: "never", Drop: true}},
		Counters: []graph.CounterStats{{Name: "odd", Value: 2011}}, Gauges: map[string]float64{"fill": 0.5},
	}, {Name: "tx", Kind: "sender"}}
	// The second graph knows no rate of cycles: it has no histogram of time.
	second := graph.Stats{Graph: "more", Received: 1, PerService: []graph.Traffic{{}, {Packets: 100, Bytes: 1000}}, PerBackend: []graph.Traffic{{}, {}, {Packets: 200, Bytes: 2000}}}
	second.Latency[0] = 5
	got := page(t, &pair{node{snap: snap}, []graph.Stats{first, second}})
	b, err := os.ReadFile("testdata/page.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("the page lacks %s", l)
		}
	}
	for _, l := range got {
		if !slices.Contains(want, l) {
			t.Errorf("the page has %s", l)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the page has %d lines, want %d", len(got), len(want))
	}
}

// TestPageAfterRemoval: what a reload removed leaves nothing on the page, and the numbers
// that it had count for nobody.
func TestPageAfterRemoval(t *testing.T) {
	spec := func(pools, backends int) (s state.Spec) {
		for p := range pools {
			pool := state.PoolSpec{Name: string(rune('a' + p)), TableSize: 251}
			for b := range backends {
				pool.Backends = append(pool.Backends, state.BackendSpec{Name: string(rune('a' + b)), Address: netip.AddrFrom4([4]byte{10, 0, byte(p), byte(b)}), Weight: 100})
			}
			s.Pools = append(s.Pools, pool)
			s.VIPs = append(s.VIPs, state.VIPSpec{Name: pool.Name, Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(p)}), 32), Protocol: 6, Ports: []state.PortRange{{Lo: 80, Hi: 80}}, Pool: pool.Name})
		}
		return s
	}
	store := state.NewStore()
	defer store.Close()
	if err := store.Apply(spec(3, 3)); err != nil {
		t.Fatal(err)
	}
	few := spec(3, 3)
	few.Pools, few.VIPs = few.Pools[1:], few.VIPs[1:] // the first, so that what stays keeps its numbers
	few.Pools[0].Backends = few.Pools[0].Backends[1:]
	if err := store.Apply(few); err != nil {
		t.Fatal(err)
	}
	stats := graph.Stats{Graph: "edge"}
	for range 20 {
		stats.PerService = append(stats.PerService, graph.Traffic{Packets: 5, Bytes: 50})
		stats.PerBackend = append(stats.PerBackend, graph.Traffic{Packets: 5, Bytes: 50})
	}
	lines := map[string]int{}
	for _, l := range page(t, &pair{node{snap: store.Cell().Load()}, []graph.Stats{stats}}) {
		name, _, _ := strings.Cut(l, "{")
		lines[name]++
		if strings.Contains(l, "invalid") || strings.Contains(l, `"10.0.0.`) || strings.Contains(l, `"10.0.1.0"`) || strings.Contains(l, `vip=""`) {
			t.Errorf("the page has %s", l)
		}
		if status, ok := strings.CutPrefix(l, `pool_backends{pool="b",status=`); ok && !slices.Contains([]string{`"up"} 2`, `"draining"} 0`, `"down"} 0`}, status) {
			t.Errorf("the page has %s", l)
		}
	}
	for name, want := range map[string]int{"vip_sent_packets_total": 2, "backend_sent_packets_total": 5, "backend_status": 3 * 5, "pool_backends": 3 * 2} {
		if lines[name] != want {
			t.Errorf("%d lines of %s, want %d", lines[name], name, want)
		}
	}
}
