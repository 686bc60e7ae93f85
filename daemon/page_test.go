package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// TestPage: what nodes that remember, clamp, cut and answer count is on the page, with
// the figures of what was sent.
func TestPage(t *testing.T) {
	r, _ := newFull(t)
	put := func(n int, frames ...[]byte) {
		t.Helper()
		was := r.port.port.SentPackets()
		r.port.port.Inject(0, frames...)
		r.until("packets come out", func() bool { return r.port.port.SentPackets() >= was+uint64(n) })
	}
	syn := nodetest.SYN(t, nodetest.Client4, vip80, 1, 80, 1460)
	put(1, syn)
	put(100, flows(t, 100)...)
	put(100, flows(t, 100)...)
	c := nodetest.Cases(t)
	put(1, nodetest.UDP(t, nodetest.Client4, vip80, 9, 7, make([]byte, 1472)...)) // refused by ICMP
	r.port.port.Inject(0, c["totlen-lies"])
	r.until("a lie is dropped", func() bool { s := r.Stats()[0]; return s.Dropped == 1 })
	got := scrape(t, r.Daemon)
	event := func(node, name string) string {
		return fmt.Sprintf(`lbgraph_node_events_total{event=%q,graph="edge",node=%q}`, name, node)
	}
	value := func(node, name string) string {
		return fmt.Sprintf(`lbgraph_node_value{graph="edge",node=%q,value=%q}`, node, name)
	}
	for series, want := range map[string]float64{
		event("ct", "hits"): 100, event("ct", "misses"): 102, event("ct", "inserts"): 101, event("ct", "established"): 100, event("ct", "closed"): 0,
		event("ct", "repinned"): 0, event("ct", "reselected"): 0, event("ct", "expired"): 0, event("ct", "died"): 0, event("ct", "flushed"): 0,
		event("ct", "evicted_handshake"): 0, event("ct", "evicted_closing"): 0, event("ct", "full"): 0, event("ct", "capped"): 0, event("ct", "related"): 0,
		value("ct", "entries"): 101, value("ct", "handshake"): 1, value("ct", "established"): 100, value("ct", "closing"): 0, value("ct", "size"): 131072,
		event("clamp", "clamped"): 1,
		`lbgraph_node_output_packets_total{graph="edge",node="mtu",output="reply"}`: 1,
		`lbgraph_start_time_seconds`: float64(r.started.UnixMilli()) / 1e3,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", series, v, ok, want)
		}
	}
	// What is not exact by nature is there, and is not nothing.
	for _, prefix := range []string{
		`lbgraph_vector_duration_seconds_count{graph="edge"}`, `lbgraph_vector_duration_seconds_bucket{graph="edge"`, `lbgraph_build_info{goversion="go`,
		`lbgraph_pool_table_info{digest="`, `lbgraph_table_builds_total`, `lbgraph_table_build_seconds_total`, `lbgraph_node_timed_packets_total{graph="edge",node="gre"}`,
	} {
		found := false
		for series, v := range got {
			found = found || strings.HasPrefix(series, prefix) && v > 0
		}
		if !found {
			t.Errorf("the page lacks %s", prefix)
		}
	}
	for _, node := range []string{"frag-pin", "icmp-vip"} {
		found := false
		for series := range got {
			found = found || strings.HasPrefix(series, "lbgraph_node_") && strings.Contains(series, fmt.Sprintf("node=%q", node)) && !strings.Contains(series, "calls") && !strings.Contains(series, "timed")
		}
		if !found {
			t.Errorf("the page has nothing on %s", node)
		}
	}
}

// TestPageOfControls: routes, checks and reloads are on the page; and its series are as
// many as the file has things, whatever the packets say.
func TestPageOfControls(t *testing.T) {
	r := newRig(t, everything(t))
	var got map[string]float64
	r.until("controls have begun", func() bool {
		got = scrape(t, r.Daemon)
		return got[`lbgraph_bgp_withheld`] == 1 && got[`lbgraph_health_state{backend="10.0.1.3",health="http",port="0",state="UNKNOWN"}`] == 1
	})
	for series, want := range map[string]float64{
		`lbgraph_bgp_peer_up{peer="tor"}`: 0, `lbgraph_bgp_peer_enabled{peer="tor"}`: 1, `lbgraph_bgp_route_announced{route="203.0.113.80/32"}`: 0,
		`lbgraph_bgp_withheld`: 1, `lbgraph_reloads_total{outcome="reloaded"}`: 0, `lbgraph_reloads_total{outcome="wrong"}`: 0, `lbgraph_reloads_total{outcome="refused"}`: 0,
		`lbgraph_reloads_total{outcome="failed"}`: 0, `lbgraph_configuration_last_good`: 0,
		`lbgraph_health_state{backend="10.0.1.1",health="http",port="0",state="UNKNOWN"}`: 1,
		`lbgraph_health_state{backend="10.0.1.1",health="http",port="0",state="HEALTHY"}`: 0,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", series, v, ok, want)
		}
	}
	series := len(scrape(t, r.Daemon))
	// A thousand clients and destinations later there are as many.
	r.port.port.Inject(0, flows(t, 1000)...)
	r.until("packets are done", func() bool { s := r.Stats()[0]; return s.Received == 1000 && s.Sent+s.Dropped == 1000 })
	after := scrape(t, r.Daemon)
	// A node may tell drops that have no output only once there are any.
	if n := len(after) - series; n > 3 {
		t.Errorf("%d series more after a thousand flows", n)
	}
}

// leaver is a control that takes a while to send traffic elsewhere.
type leaver struct {
	graph.Control
	draining, drained chan struct{}
}

func (l *leaver) Drain(ctx context.Context) error {
	close(l.draining)
	select {
	case <-l.drained:
		return errors.New("a router did not hear")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestRunLeaves: at the end of a run traffic is sent elsewhere first, while what comes is
// forwarded; nothing is reloaded any more; and what goes wrong then is no failure.
func TestRunLeaves(t *testing.T) {
	r := &rig{t: t, path: t.TempDir() + "/lb.hcl", port: &memDriver{}}
	r.write(with("drain { enabled = false }"))
	l := Source{Path: r.path}.Load()
	d, err := New(l.File, Options{Loaded: l, Drivers: driversOf(r.port)})
	if err != nil {
		t.Fatal(err)
	}
	r.Daemon = d
	x := &leaver{d.controls[0].Control, make(chan struct{}), make(chan struct{})}
	d.controls[0].Control = x
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for d.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-x.draining
	if d.Healthy() != nil || d.Ready() == nil {
		t.Errorf("while it leaves: healthy %v, ready %v", d.Healthy(), d.Ready())
	}
	was := r.port.port.SentPackets()
	r.port.port.Inject(0, flows(t, 50)...)
	for end := time.Now().Add(5 * time.Second); r.port.port.SentPackets() < was+50 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := r.port.port.SentPackets() - was; n != 50 {
		t.Errorf("%d of 50 packets are forwarded while it leaves", n)
	}
	// What would be a change, so that it is no matter of chance.
	generation := d.Snapshot().Generation
	r.write(strings.Replace(with("drain { enabled = false }"), "10.0.1.3", "10.0.1.9", 1))
	if got := d.ReloadFile("test", false); got.Outcome != "failed" || !strings.Contains(got.Error, "stops") || d.Snapshot().Generation != generation {
		t.Errorf("a reload: %+v", got)
	}
	atRest(t, d)
	select {
	case err := <-ended:
		t.Fatalf("it ended before: %v", err)
	default:
	}
	close(x.drained)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
