package daemon

import (
	"net/netip"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/runtime"
)

// memDriver stands in for interfaces.
type memDriver struct{ port *mem.Port }

func (d *memDriver) Queues(graph.PortSpec) (int, error) { return 1, nil }

func (d *memDriver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	p, err := mem.Open(mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings}, 1, graph.PortInfo{
		Name: s.Name, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 1},
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:f::1")},
	})
	d.port = p
	return p, err
}

// engine runs a graph over memory, stepped by hand.
func engine(t testing.TB, f *graph.File) (*runtime.Engine, *mem.Port) {
	t.Helper()
	d := &memDriver{}
	store := state.NewStore()
	t.Cleanup(store.Close)
	if err := store.Apply(f.Spec); err != nil {
		t.Fatal(err)
	}
	e, err := runtime.New(packetGraphs(f)[0], runtime.Options{
		State: store.Cell(), Watch: store.Watch, Drivers: map[string]runtime.Driver{"xdp": d}, Manual: true,
		Memory: func(frames, chunk int) (runtime.Memory, error) { return umem.Heap(frames, uint32(chunk)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s := e.Stats(); s.CheckConservation() != nil {
			t.Error(s.CheckConservation())
		}
		e.Stop()
	})
	return e, d.port
}

// mixture is packets of many kinds towards the VIPs of lb.hcl: all nodes have work.
func mixture(t testing.TB) (all [][]byte) {
	web4, web6 := netip.MustParseAddr("203.0.113.80"), netip.MustParseAddr("2001:db8::80")
	for i := range uint16(200) {
		all = append(all,
			nodetest.SYN(t, nodetest.Client4, web4, 1000+i, 80, 1460),
			nodetest.TCP(t, nodetest.Client4, web4, 1000+i, 80, nil, 1, 2, 3),
			nodetest.TCP(t, nodetest.Client6, web6, 2000+i, 443, nil, 1, 2, 3),
			nodetest.UDP(t, nodetest.Client4, web4, 3000+i, 7, 1, 2, 3),
			nodetest.TCP(t, nodetest.Client4, web4, 1000+i, 80, func(h *layers.TCP) { h.FIN, h.ACK = true, true }),
			nodetest.TCP(t, nodetest.Client4, web4, 1000+i, 81, nil), // a wrong port
		)
	}
	all = append(all, nodetest.UDP(t, nodetest.Client4, web4, 9, 7, make([]byte, 1472)...)) // too big
	c := nodetest.Cases(t)
	return append(all, c["echo6"], c["totlen-lies"], c["frag1"], c["frag2"], c["icmp6-ptb"])
}

// TestNoAllocationOverAMillionPackets: the loop and all nodes of lb.hcl, with new
// flows, replies, fragments and drops among the packets.
func TestNoAllocationOverAMillionPackets(t *testing.T) {
	e, port := engine(t, load(t))
	port.Discard()
	in := mixture(t)
	const million = 1_000_000
	port.Repeat(0, million/len(in)+20, in...)
	for range 20 * len(in) / 64 { // what grows once has grown
		e.Step(0)
	}
	var before, after goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	for e.Step(0) {
	}
	goruntime.ReadMemStats(&after)
	s := e.Stats()
	if s.Received < million {
		t.Fatalf("only %d packets were received", s.Received)
	}
	// The Go runtime itself allocates a few times in so long a run.
	if n := after.Mallocs - before.Mallocs; n > 50 {
		t.Errorf("%d allocations over %d packets", n, s.Received)
	}
	if err := s.CheckConservation(); err != nil {
		t.Error(err)
	}
	for _, n := range s.Nodes {
		if n.Packets == 0 && n.Name != "icmp-vip" {
			t.Errorf("node %q had no work", n.Name)
		}
	}
}

// TestIdle: an engine without work makes no vector of nothing, and says that it lives
// although nothing comes for longer than a loop may be silent.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("short: idles for seconds")
	}
	f := load(t)
	d := &memDriver{}
	dm, err := New(f, Options{Drivers: map[string]runtime.Driver{"xdp": d}})
	if err != nil {
		t.Fatal(err)
	}
	if err := dm.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dm.Stop(t.Context()) }()
	time.Sleep(200 * time.Millisecond)
	passes := dm.Stats()[0].Passes // which wakes the loops; health does not
	time.Sleep(staleAfter)
	// A machine that is too busy to run the loop once makes it sick for a moment.
	well, sick := 0, error(nil)
	const looks = 100
	for range looks {
		time.Sleep(staleAfter / looks)
		if err := dm.Healthy(); err != nil {
			sick = err
		} else {
			well++
		}
	}
	if well < looks/2 {
		t.Errorf("an idle daemon was healthy at %d of %d looks: %v", well, looks, sick)
	}
	if got := dm.Stats()[0].Passes; got != passes {
		t.Errorf("%d vectors without a packet", got-passes)
	}
	if err := dm.Ready(); err != nil {
		t.Errorf("an idle daemon is not ready: %v", err)
	}
	atRest(t, dm)
}
