package metrics

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Collector collects what h counts, at each scrape. Label values are names in the
// configuration file, so their number is bounded by it.
func Collector(h Host) prometheus.Collector { return collector{h} }

type collector struct{ h Host }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lbgraph_"+name, help, labels, nil)
}

var (
	buildInfo     = desc("build_info", "The program's version; always 1.", "version", "goversion")
	received      = desc("received_packets_total", "Packets that sources received.", "graph")
	receivedBytes = desc("received_bytes_total", "Bytes of packets that sources received.", "graph")
	made          = desc("made_packets_total", "Packets that nodes made.", "graph")
	sent          = desc("sent_packets_total", "Packets that ports took to send.", "graph")
	sentBytes     = desc("sent_bytes_total", "Bytes of packets that ports took to send.", "graph")
	kernel        = desc("kernel_packets_total", "Packets given to the kernel.", "graph")
	dropped       = desc("dropped_packets_total", "Packets dropped, by node and reason.", "graph", "node", "reason")
	droppedBytes  = desc("dropped_bytes_total", "Bytes of packets dropped, by node and reason.", "graph", "node", "reason")
	lost          = desc("port_lost_packets_total", "Packets that the kernel dropped on a port's sockets, by reason; they do not count as received.", "graph", "port", "reason")
	held          = desc("held_packets", "Packets that nodes hold.", "graph")
	frames        = desc("frames", "Frames by the place where they are.", "graph", "place")
	passes        = desc("vectors_total", "Vectors that sources filled.", "graph")
	passSeconds   = desc("vector_duration_seconds", "Time of a vector's pass through the graph, one vector in 64.", "graph")
	vectorSize    = desc("vector_packets", "Packets of the vectors that sources filled.", "graph")
	nodeCalls     = desc("node_calls_total", "Vectors that a node processed.", "graph", "node", "kind")
	nodePackets   = desc("node_packets_total", "Packets that a node processed.", "graph", "node", "kind")
	nodeOutput    = desc("node_output_packets_total", "Packets that left a node, by output.", "graph", "node", "output")
	nodeEvents    = desc("node_events_total", "What a node counts besides drops.", "graph", "node", "event")
	nodeGauge     = desc("node_value", "What a node measures of itself.", "graph", "node", "value")
	nodeCycles    = desc("node_timed_cycles_total", "Cycles of the time-stamp counter that a node spent on its timed packets.", "graph", "node")
	nodeTimed     = desc("node_timed_packets_total", "Packets whose cycles were counted.", "graph", "node")
	vipPackets    = desc("vip_sent_packets_total", "Packets sent towards backends, by VIP.", "vip", "protocol", "port")
	vipBytes      = desc("vip_sent_bytes_total", "Bytes sent towards backends, by VIP, outer headers included.", "vip", "protocol", "port")
	backendPkts   = desc("backend_sent_packets_total", "Packets sent towards a backend.", "backend")
	backendBytes  = desc("backend_sent_bytes_total", "Bytes sent towards a backend, outer headers included.", "backend")
	backendStatus = desc("backend_status", "1 for the status a backend is in.", "backend", "status")
	poolMembers   = desc("pool_backends", "Backends of a pool by status.", "pool", "status")
	poolDigest    = desc("pool_table_info", "Digest of a pool's Maglev table, equal on nodes that agree; always 1.", "pool", "digest")
	generation    = desc("state_generation", "Number of the snapshot in force.")
)

// Describe is part of prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		buildInfo, received, receivedBytes, made, sent, sentBytes, kernel, dropped, droppedBytes, lost, held, frames, passes, passSeconds,
		vectorSize, nodeCalls, nodePackets, nodeOutput, nodeEvents, nodeGauge, nodeCycles, nodeTimed, vipPackets, vipBytes,
		backendPkts, backendBytes, backendStatus, poolMembers, poolDigest, generation,
	} {
		ch <- d
	}
	for _, d := range streamDescs {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	o := out{ch}
	o.gauge(buildInfo, 1, c.h.Version(), runtime.Version())
	snap := c.h.Snapshot()
	o.state(snap)
	services := map[[3]string]graph.Traffic{}
	backends := make([]graph.Traffic, len(snap.Backends))
	for _, s := range c.h.Stats() {
		o.graph(&s)
		for i, t := range s.PerService {
			if i == 0 || i >= len(snap.Services) || snap.Services[i].ID == 0 {
				continue
			}
			k := serviceLabels(&snap.Services[i])
			sum := services[k]
			services[k] = graph.Traffic{Packets: sum.Packets + t.Packets, Bytes: sum.Bytes + t.Bytes}
		}
		for i, t := range s.PerBackend {
			if i < len(backends) { // number 0 is nobody, and is not told
				backends[i].Packets += t.Packets
				backends[i].Bytes += t.Bytes
			}
		}
	}
	o.streams(c.h.StreamStats())
	for k, t := range services {
		o.count(vipPackets, t.Packets, k[:]...)
		o.count(vipBytes, t.Bytes, k[:]...)
	}
	for i, t := range backends {
		if i > 0 && snap.Backends[i].ID != 0 {
			o.count(backendPkts, t.Packets, snap.Backends[i].Addr.String())
			o.count(backendBytes, t.Bytes, snap.Backends[i].Addr.String())
		}
	}
}

func serviceLabels(s *state.Service) [3]string {
	proto := "any"
	switch s.Proto {
	case 6:
		proto = "tcp"
	case 17:
		proto = "udp"
	}
	port := fmt.Sprint(s.Lo)
	switch {
	case s.Lo == 0 && s.Hi == 65535:
		port = "all"
	case s.Lo != s.Hi:
		port = fmt.Sprintf("%d-%d", s.Lo, s.Hi)
	}
	return [3]string{s.VIP, proto, port}
}

type out struct{ ch chan<- prometheus.Metric }

func (o out) count(d *prometheus.Desc, n uint64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (o out) gauge(d *prometheus.Desc, n float64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
}

func (o out) graph(s *graph.Stats) {
	g := s.Graph
	o.count(received, s.Received, g)
	o.count(receivedBytes, s.ReceivedBytes, g)
	o.count(made, s.Made, g)
	o.count(sent, s.Sent, g)
	o.count(sentBytes, s.SentBytes, g)
	o.count(kernel, s.Kernel, g)
	for port, reasons := range s.Lost {
		for reason, n := range reasons {
			o.count(lost, n, g, port, reason)
		}
	}
	o.gauge(held, float64(s.Held), g)
	o.count(passes, s.Passes, g)
	for _, f := range []struct {
		place string
		n     int
	}{
		{"fill", s.Census.Fill},
		{"rx", s.Census.Rx},
		{"tx", s.Census.Tx},
		{"completion", s.Census.Completion},
		{"held", s.Census.Held},
		{"rings", s.Census.Rings},
		{"free", s.Census.Free},
	} {
		o.gauge(frames, float64(f.n), g, f.place)
	}
	for i := range s.Nodes {
		o.node(g, &s.Nodes[i])
	}
	o.drops(s)
	o.histograms(s)
}

func (o out) node(g string, n *graph.NodeStats) {
	o.count(nodeCalls, n.Calls, g, n.Name, n.Kind)
	o.count(nodePackets, n.Packets, g, n.Name, n.Kind)
	o.count(nodeCycles, n.Cycles, g, n.Name)
	o.count(nodeTimed, n.Timed, g, n.Name)
	for _, x := range n.Outputs {
		if x.Drop {
			o.count(droppedBytes, x.Bytes, g, n.Name, x.Name)
		} else {
			o.count(nodeOutput, x.Packets, g, n.Name, x.Name)
		}
	}
	for _, x := range n.Counters {
		o.count(nodeEvents, x.Value, g, n.Name, x.Name)
	}
	if n.DuplicateAnswer > 0 {
		o.count(nodeEvents, n.DuplicateAnswer, g, n.Name, "duplicate_answer")
	}
	for k, v := range n.Gauges {
		o.gauge(nodeGauge, v, g, n.Name, k)
	}
}

// drops tells the drops by every reason that has an output, and by others once they
// happen: what nodes dropped that a reload removed is among them, so that packets add
// up.
func (o out) drops(s *graph.Stats) {
	all := s.Drops()
	for i := range s.Nodes {
		for _, x := range s.Nodes[i].Outputs {
			if x.Drop {
				all[s.Nodes[i].Name+"."+x.Name] += 0
			}
		}
	}
	for name, n := range all {
		node, reason, ok := strings.Cut(name, ".")
		if !ok {
			node, reason = "", name
		}
		o.count(dropped, n, s.Graph, node, reason)
	}
}

func (o out) histograms(s *graph.Stats) {
	rate := s.CyclesPerNanosecond * 1e9
	if rate > 0 {
		var count uint64
		sum := 0.0
		buckets := map[float64]uint64{}
		for i, n := range s.Latency {
			count += n
			most := float64(uint64(1) << (i + 8))
			sum += float64(n) * most * 0.75 // the middle of the bucket
			if i < len(s.Latency)-1 {
				buckets[most/rate] = count
			}
		}
		o.ch <- prometheus.MustNewConstHistogram(passSeconds, count, sum/rate, buckets, s.Graph)
	}
	var count, packets uint64
	buckets := map[float64]uint64{}
	for i, n := range s.Sizes {
		count += n
		packets += n * uint64(i)
		if i > 0 && i&(i-1) == 0 {
			buckets[float64(i)] = count
		}
	}
	o.ch <- prometheus.MustNewConstHistogram(vectorSize, count, float64(packets), buckets, s.Graph)
}

var statuses = map[state.Status]string{state.Up: "up", state.Draining: "draining", state.Down: "down"}

func (o out) state(s *state.Snapshot) {
	o.gauge(generation, float64(s.Generation))
	for i := range s.Backends {
		b := &s.Backends[i]
		if b.ID == 0 {
			continue
		}
		for st, name := range statuses {
			is := 0.0
			if s.StatusOf(b.ID) == st {
				is = 1
			}
			o.gauge(backendStatus, is, b.Addr.String(), name)
		}
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		if p.ID == 0 {
			continue
		}
		n := map[state.Status]int{}
		for _, m := range p.Members {
			if m.Backend != 0 {
				n[s.StatusOf(m.Backend)]++
			}
		}
		for st, name := range statuses {
			o.gauge(poolMembers, float64(n[st]), p.Name, name)
		}
		o.gauge(poolDigest, 1, p.Name, fmt.Sprintf("%016x", p.Digest))
	}
}
