package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// A session is a connection, or a request where HTTP is spoken.
var (
	accepted      = desc("stream_listener_connections_total", "Connections that a listener accepted.", "stream", "listener")
	open          = desc("stream_listener_open_connections", "Connections of a listener that are open.", "stream", "listener")
	requests      = desc("stream_listener_requests_total", "Requests that came to a listener, those that could not be read included.", "stream", "listener")
	unreadable    = desc("stream_listener_unreadable_requests_total", "Requests that could not be read, and came to no node; and connections of HTTP/2 that were closed for flooding.", "stream", "listener")
	inFlight      = desc("stream_listener_active_sessions", "Sessions of a listener that are on their way through the graph.", "stream", "listener")
	acceptErrors  = desc("stream_listener_accept_errors_total", "Connections that could not be accepted, as for lack of descriptors.", "stream", "listener")
	cameBytes     = desc("stream_listener_received_bytes_total", "Bytes that came by a listener's sockets, heads and TLS included.", "stream", "listener")
	wentBytes     = desc("stream_listener_sent_bytes_total", "Bytes sent by a listener's sockets, heads and TLS included.", "stream", "listener")
	nodeSessions  = desc("stream_node_sessions_total", "Sessions that came to a node.", "stream", "node", "kind")
	nodeLeft      = desc("stream_node_output_sessions_total", "Sessions that left a node by an output that leads to another.", "stream", "node", "output")
	nodeDropped   = desc("stream_dropped_sessions_total", "Sessions that ended at a node for a reason, by its name.", "stream", "node", "reason")
	streamEvents  = desc("stream_node_events_total", "What a node counts besides.", "stream", "node", "event")
	streamGauge   = desc("stream_node_value", "What a node measures of itself.", "stream", "node", "value")
	routeSessions = desc("stream_route_sessions_total", "Sessions that are over, by the last balance that they passed, or the node where they ended, and by how: class of the answer (1xx left HTTP), gone (the client left), cut (the answer broke off); of connections without requests ended or failed.", "stream", "route", "outcome")
	routeSeconds  = desc("stream_route_duration_seconds", "What sessions took, but for connections that left HTTP and requests that could not be read.", "stream", "route")
	peerActive    = desc("stream_backend_active_sessions", "Sessions that are at a backend.", "backend")
	peerSessions  = desc("stream_backend_sessions_total", "Sessions that a backend was chosen for.", "backend")
	peerFailures  = desc("stream_backend_failures_total", "Sessions that a backend failed.", "backend")
	peerRetries   = desc("stream_backend_retries_total", "Sessions that came to a backend because another had failed them.", "backend")
	peerEjected   = desc("stream_backend_ejected", "1 while a backend is left out for failures in a row.", "backend")
	peerSeconds   = desc("stream_backend_duration_seconds", "What a backend's answers took, and connections without requests.", "backend")
	certificate   = desc("stream_certificate_expiry_timestamp_seconds", "When a certificate in force ends, in seconds since 1970.", "stream", "node", "certificate")
)

var streamDescs = []*prometheus.Desc{
	accepted, open, requests, unreadable, inFlight, acceptErrors, cameBytes, wentBytes, nodeSessions, nodeLeft, nodeDropped, streamEvents, streamGauge,
	routeSessions, routeSeconds, peerActive, peerSessions, peerFailures, peerRetries, peerEjected, peerSeconds, certificate,
}

func (o out) streams(all []graph.StreamStats) {
	for i := range all {
		s := &all[i]
		for _, l := range s.Listeners {
			o.count(accepted, l.Accepted, s.Stream, l.Node)
			o.gauge(open, float64(l.Connections), s.Stream, l.Node)
			o.count(requests, l.Requests, s.Stream, l.Node)
			o.count(unreadable, l.Malformed, s.Stream, l.Node)
			o.gauge(inFlight, float64(l.Active), s.Stream, l.Node)
			o.count(acceptErrors, l.AcceptErrors, s.Stream, l.Node)
			o.count(cameBytes, l.In, s.Stream, l.Node)
			o.count(wentBytes, l.Out, s.Stream, l.Node)
		}
		for i := range s.Nodes {
			o.streamNode(s.Stream, &s.Nodes[i])
		}
		for i := range s.Routes {
			r := &s.Routes[i]
			for k, n := range r.Sessions {
				// How sessions end at another node depends on the node.
				if n > 0 || r.Balances {
					o.count(routeSessions, n, s.Stream, r.Node, graph.Outcome(k).String())
				}
			}
			o.seconds(routeSeconds, &r.Latency, r.LatencySum, s.Stream, r.Node)
		}
	}
	if len(all) == 0 {
		return
	}
	// Every stream has the same backends: they are counted by their addresses.
	for _, b := range all[0].Backends {
		a := b.Addr.String()
		o.gauge(peerActive, float64(b.Active), a)
		o.count(peerSessions, b.Total, a)
		o.count(peerFailures, b.Failures, a)
		o.count(peerRetries, b.Retries, a)
		out := 0.0
		if b.Ejected {
			out = 1
		}
		o.gauge(peerEjected, out, a)
		o.seconds(peerSeconds, &b.Latency, b.LatencySum, a)
	}
}

func (o out) streamNode(stream string, n *graph.NodeStats) {
	o.count(nodeSessions, n.Packets, stream, n.Name, n.Kind)
	for _, x := range n.Outputs {
		if x.Drop {
			o.count(nodeDropped, x.Packets, stream, n.Name, x.Name)
		} else {
			o.count(nodeLeft, x.Packets, stream, n.Name, x.Name)
		}
	}
	for _, x := range n.Counters {
		o.count(streamEvents, x.Value, stream, n.Name, x.Name)
	}
	for k, v := range n.Gauges {
		o.gauge(streamGauge, v, stream, n.Name, k)
	}
	// Two blocks may name one file.
	seen := map[string]bool{}
	for _, c := range n.Certificates {
		if !seen[c.File] {
			seen[c.File] = true
			o.gauge(certificate, float64(c.NotAfter.Unix()), stream, n.Name, c.File)
		}
	}
}

func (o out) seconds(d *prometheus.Desc, count *[stream.HistogramBuckets]uint64, sum uint64, labels ...string) {
	var n uint64
	buckets := map[float64]uint64{}
	for i, k := range count {
		n += k
		if i < len(count)-1 {
			buckets[float64(stream.Bound(i))/1e9] = n
		}
	}
	o.ch <- prometheus.MustNewConstHistogram(d, n, float64(sum)/1e9, buckets, labels...)
}
