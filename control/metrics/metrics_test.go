package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

type host struct{ sick, busy error }

func (h *host) Stats() []graph.Stats {
	s := graph.Stats{
		Graph: "edge", Received: 10, ReceivedBytes: 640, Sent: 7, SentBytes: 500, Reload: 1, CyclesPerNanosecond: 2,
		// A node that a reload removed, and one that is there again.
		Retired:    map[string]uint64{"gone.too_big": 4, "parse.truncated": 5, "parse.unanswered": 6},
		PerService: []graph.Traffic{{}, {Packets: 7, Bytes: 500}}, PerBackend: []graph.Traffic{{}, {Packets: 7, Bytes: 500}},
		Nodes: []graph.NodeStats{{
			Name: "parse", Kind: "parse", Calls: 2, Packets: 10, Unanswered: 1, DuplicateAnswer: 1, NoPunt: 1,
			Outputs:  []graph.OutputStats{{Name: "next", To: "tx", Packets: 7}, {Name: "truncated", Drop: true, Packets: 2, Bytes: 80}, {Name: "bad_length", Drop: true}},
			Counters: []graph.CounterStats{{Name: "odd", Value: 3}}, Gauges: map[string]float64{"entries": 5},
		}},
	}
	s.Latency[0], s.Latency[3] = 2, 1
	s.Lost = map[string]map[string]uint64{"eth0": {"rx_ring_full": 4}}
	s.Sizes[4], s.Sizes[6] = 1, 1
	return []graph.Stats{s}
}

func (h *host) StreamStats() []graph.StreamStats {
	s := graph.StreamStats{
		Stream: "web",
		Listeners: []graph.ListenerStats{{
			Node: "in", Accepted: 3, Connections: 2, Requests: 9, Malformed: 1, Active: 1, AcceptErrors: 4, In: 700, Out: 900,
		}},
		Nodes: []graph.NodeStats{{
			Name: "pick", Kind: "balance", Packets: 8, Outputs: []graph.OutputStats{{Name: "next", To: "out", Packets: 6}, {Name: "no_backend", Drop: true, Packets: 2}},
			Counters: []graph.CounterStats{{Name: "ejected", Value: 5}}, Gauges: map[string]float64{"waiting": 7},
			Certificates: []graph.Certificate{{File: "a.pem", NotAfter: time.Unix(1e9, 0)}, {File: "a.pem", NotAfter: time.Unix(1e9, 0)}},
		}},
		Routes:   []graph.RouteStats{{Node: "pick", Balances: true, LatencySum: 3e9}, {Node: "in"}},
		Backends: []graph.BackendStats{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Active: 1, Total: 6, Failures: 2, Retries: 1, Ejected: true, LatencySum: 5e8}},
	}
	s.Routes[0].Sessions[graph.Succeeded], s.Routes[0].Sessions[graph.Gone] = 4, 1
	s.Routes[1].Sessions[graph.Refused] = 1
	s.Routes[0].Latency[0], s.Routes[0].Latency[19] = 3, 2
	s.Backends[0].Latency[1] = 4
	return []graph.StreamStats{s, {Stream: "more", Backends: s.Backends}}
}

func (h *host) Snapshot() *state.Snapshot { return new(state.Cell).Load() }
func (h *host) Healthy() error            { return h.sick }
func (h *host) Ready() error              { return h.busy }
func (h *host) Version() string           { return "v1" }

func (h *host) Collectors() []prometheus.Collector {
	return []prometheus.Collector{prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lbgraph_else", Help: "Something else."}, func() float64 { return 9 })}
}

// TestConventions lints names, help and types as Prometheus' own linter does.
func TestConventions(t *testing.T) {
	problems, err := testutil.CollectAndLint(Collector(&host{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestFigures(t *testing.T) {
	srv := httptest.NewServer(Handler(&host{}))
	defer srv.Close()
	body := get(t, srv.URL+"/metrics", http.StatusOK)
	for _, line := range []string{
		`lbgraph_received_packets_total{graph="edge"} 10`,
		`lbgraph_sent_bytes_total{graph="edge"} 500`,
		`lbgraph_port_lost_packets_total{graph="edge",port="eth0",reason="rx_ring_full"} 4`,
		`lbgraph_dropped_packets_total{graph="edge",node="parse",reason="truncated"} 7`,
		`lbgraph_dropped_packets_total{graph="edge",node="parse",reason="bad_length"} 0`,
		`lbgraph_dropped_packets_total{graph="edge",node="gone",reason="too_big"} 4`,
		`lbgraph_dropped_bytes_total{graph="edge",node="parse",reason="truncated"} 80`,
		`lbgraph_dropped_packets_total{graph="edge",node="parse",reason="unanswered"} 7`,
		`lbgraph_dropped_packets_total{graph="edge",node="parse",reason="no_punt"} 1`,
		`lbgraph_dropped_packets_total{graph="edge",node="",reason="reload"} 1`,
		`lbgraph_node_output_packets_total{graph="edge",node="parse",output="next"} 7`,
		`lbgraph_node_events_total{event="odd",graph="edge",node="parse"} 3`,
		`lbgraph_node_events_total{event="duplicate_answer",graph="edge",node="parse"} 1`,
		`lbgraph_node_value{graph="edge",node="parse",value="entries"} 5`,
		`lbgraph_vector_packets_bucket{graph="edge",le="4"} 1`,
		`lbgraph_vector_packets_sum{graph="edge"} 10`,
		`lbgraph_vector_duration_seconds_count{graph="edge"} 3`,
		`lbgraph_stream_listener_connections_total{listener="in",stream="web"} 3`,
		`lbgraph_stream_listener_open_connections{listener="in",stream="web"} 2`,
		`lbgraph_stream_listener_requests_total{listener="in",stream="web"} 9`,
		`lbgraph_stream_listener_unreadable_requests_total{listener="in",stream="web"} 1`,
		`lbgraph_stream_listener_active_sessions{listener="in",stream="web"} 1`,
		`lbgraph_stream_listener_accept_errors_total{listener="in",stream="web"} 4`,
		`lbgraph_stream_listener_received_bytes_total{listener="in",stream="web"} 700`,
		`lbgraph_stream_listener_sent_bytes_total{listener="in",stream="web"} 900`,
		`lbgraph_stream_node_sessions_total{kind="balance",node="pick",stream="web"} 8`,
		`lbgraph_stream_node_output_sessions_total{node="pick",output="next",stream="web"} 6`,
		`lbgraph_stream_dropped_sessions_total{node="pick",reason="no_backend",stream="web"} 2`,
		`lbgraph_stream_node_events_total{event="ejected",node="pick",stream="web"} 5`,
		`lbgraph_stream_node_value{node="pick",stream="web",value="waiting"} 7`,
		`lbgraph_stream_route_sessions_total{outcome="2xx",route="pick",stream="web"} 4`,
		`lbgraph_stream_route_sessions_total{outcome="gone",route="pick",stream="web"} 1`,
		`lbgraph_stream_route_sessions_total{outcome="failed",route="pick",stream="web"} 0`,
		`lbgraph_stream_route_sessions_total{outcome="4xx",route="in",stream="web"} 1`,
		`lbgraph_stream_route_duration_seconds_bucket{route="pick",stream="web",le="0.000131072"} 3`,
		`lbgraph_stream_route_duration_seconds_bucket{route="pick",stream="web",le="34.359738368"} 3`,
		`lbgraph_stream_route_duration_seconds_count{route="pick",stream="web"} 5`,
		`lbgraph_stream_route_duration_seconds_sum{route="pick",stream="web"} 3`,
		`lbgraph_stream_backend_active_sessions{backend="10.0.0.1:80"} 1`,
		`lbgraph_stream_backend_sessions_total{backend="10.0.0.1:80"} 6`,
		`lbgraph_stream_backend_failures_total{backend="10.0.0.1:80"} 2`,
		`lbgraph_stream_backend_retries_total{backend="10.0.0.1:80"} 1`,
		`lbgraph_stream_backend_ejected{backend="10.0.0.1:80"} 1`,
		`lbgraph_stream_backend_duration_seconds_bucket{backend="10.0.0.1:80",le="0.000131072"} 0`,
		`lbgraph_stream_backend_duration_seconds_bucket{backend="10.0.0.1:80",le="0.000262144"} 4`,
		`lbgraph_stream_certificate_expiry_timestamp_seconds{certificate="a.pem",node="pick",stream="web"} 1e+09`,
		`lbgraph_else 9`,
		`lbgraph_build_info{goversion="` + runtime.Version() + `",version="v1"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
}

func TestVerdicts(t *testing.T) {
	h := &host{}
	srv := httptest.NewServer(Handler(h))
	defer srv.Close()
	get(t, srv.URL+"/healthz", http.StatusOK)
	get(t, srv.URL+"/readyz", http.StatusOK)
	h.sick, h.busy = errors.New("core 1 has not passed for 2s"), errors.New("draining")
	if b := get(t, srv.URL+"/healthz", http.StatusServiceUnavailable); !strings.Contains(b, "core 1") {
		t.Errorf("healthz says %q", b)
	}
	if b := get(t, srv.URL+"/readyz", http.StatusServiceUnavailable); !strings.Contains(b, "draining") {
		t.Errorf("readyz says %q", b)
	}
}

func get(t *testing.T, url string, code int) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != code {
		t.Errorf("%s answers %d: %s", url, r.StatusCode, b)
	}
	return string(b)
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k := graph.Lookup("metrics")
	c := k.NewConfig().(*Config)
	c.Listen = l.Addr().String()
	ctl, err := k.Control(c, &graph.Env{Host: &host{}, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctl.Start(context.Background()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
	if err := ctl.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	c.Listen = "127.0.0.1:0"
	ctl, _ = k.Control(c, &graph.Env{Host: &host{}, Log: zap.NewNop()})
	if err := ctl.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := ctl.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	// Another address, and one that is taken.
	ctl, _ = k.Control(c, &graph.Env{Host: &host{}, Log: zap.NewNop()})
	if err := ctl.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := ctl.(*server)
	was := s.now
	c.Listen = l.Addr().String()
	if err := s.Reconfigure(c); err == nil || s.now != was {
		t.Errorf("an address that is taken: %v", err)
	}
	c.Listen = "127.0.0.1:0"
	if err := s.Reconfigure(c); err != nil || s.now == was {
		t.Errorf("another address: %v", err)
	}
	select {
	case <-was.done:
	case <-time.After(10 * time.Second):
		t.Error("the old address is served still")
	}
	if err := ctl.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	c.Listen = "nonsense"
	if k.CheckConfig(c) == nil {
		t.Error("an address without a port was taken")
	}
}
