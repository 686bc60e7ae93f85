package graph

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
)

// A Listen names sockets that connections are accepted from. Two equal ones are the
// same sockets, also over a reload.
type Listen struct {
	Address netip.AddrPort
	// Sockets is how many share the address by SO_REUSEPORT; 0 is one without.
	Sockets int
}

// Optional methods of what Def.Streams answers. The runtime looks for them when it
// builds a stream; Gauger is another one.
type (
	// StageInheritor takes over the state of the stage of the same name and kind
	// that it replaces, which serves sessions still. It is called before any session
	// comes to it.
	StageInheritor interface{ Inherit(old stream.Stage) }
	// StageCloser is told that no session will come to it any more.
	StageCloser interface{ Close() error }
	// StageExplainer says by which output a session would leave, or stream.Done, and
	// why, in words. It changes nothing but s, and s is a mere question: its Client has
	// no Conn, its Req neither Body nor Responder. A stage without it lets sessions
	// pass by the output next, or else ends them.
	StageExplainer interface {
		Explain(s *stream.Session) (output int, says string)
	}
)

// Pooled is a stage that gives sessions backends of one pool.
type Pooled interface{ Pool() string }

// Certified is a stage with certificates, which end some day.
type Certified interface{ Certificates() []Certificate }

// Certificate is a certificate in force.
type Certificate struct {
	File     string
	NotAfter time.Time
}

// An Outcome is how a session ended.
type Outcome uint8

// The outcomes: the first are the classes of answers.
const (
	Informed    Outcome = iota // 1xx: the connection left HTTP
	Succeeded                  // 2xx
	Redirected                 // 3xx
	Refused                    // 4xx
	ServerError                // 5xx
	Gone                       // the client left before it had its answer
	Cut                        // the answer broke off, or there was none
	Ended                      // of a connection without requests: both sides ended it
	Failed                     // or a node did, or it broke
	Outcomes    int     = iota
)

// String answers 1xx to 5xx, gone, cut, ended or failed.
func (o Outcome) String() string {
	return [Outcomes]string{"1xx", "2xx", "3xx", "4xx", "5xx", "gone", "cut", "ended", "failed"}[o]
}

// A Tally counts sessions by Outcome. In JSON it is an object of those that are not 0.
type Tally [Outcomes]uint64

// MarshalJSON is part of json.Marshaler.
func (t Tally) MarshalJSON() ([]byte, error) {
	m := map[string]uint64{}
	for i, n := range t {
		if n > 0 {
			m[Outcome(i).String()] = n
		}
	}
	return json.Marshal(m)
}

// UnmarshalJSON is part of json.Unmarshaler. Outcomes that are not known are left out.
func (t *Tally) UnmarshalJSON(b []byte) error {
	var m map[string]uint64
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for i := range t {
		t[i] = m[Outcome(i).String()]
	}
	return nil
}

// StreamStats is the counts of a stream block.
type StreamStats struct {
	Stream string
	// Accepted counts connections, Requests requests; Connections and Active are
	// those at this moment. All are sums over Listeners, and those that a reload
	// removed.
	Accepted, Requests  uint64
	Malformed           uint64 // requests that could not be read, and reached no node
	Connections, Active int64
	Listeners           []ListenerStats
	// Nodes are in the order in which sessions can pass them; Packets are sessions.
	Nodes []NodeStats
	// Routes are the nodes that sessions count for when they are over: the last
	// balance that they passed, or the node at which they ended.
	Routes   []RouteStats
	Backends []BackendStats
}

// ListenerStats is the counts of a node that accepts connections.
type ListenerStats struct {
	Node                          string
	Address                       netip.AddrPort // as it is bound
	Accepted, Requests, Malformed uint64
	AcceptErrors                  uint64
	In, Out                       uint64 // bytes of its sockets, heads and TLS included
	Connections, Active           int64
}

// RouteStats is how the sessions that count for a node ended.
type RouteStats struct {
	Node string
	// Balances: it gives sessions a backend.
	Balances bool
	Sessions Tally
	// Latency is what they took, but for connections that have left HTTP and
	// requests that could not be read: see stream.Histogram.
	Latency    [stream.HistogramBuckets]uint64
	LatencySum uint64 // nanoseconds
}

// Sum answers how many sessions there were.
func (r *RouteStats) Sum() (n uint64) {
	for _, k := range r.Sessions {
		n += k
	}
	return n
}

// BackendStats is the counts of a backend of the stream plane.
type BackendStats struct {
	Addr            netip.AddrPort
	Active          int64
	Total, Failures uint64
	Retries         uint64 // of Total: those that another backend had failed
	Ejected         bool
	Latency         [stream.HistogramBuckets]uint64
	LatencySum      uint64 // nanoseconds
}

// CheckConservation tells whether every session that began has ended: none is in
// flight, as a whole or at a backend. It holds at a quiet point.
func (s *StreamStats) CheckConservation() error {
	var errs []error
	if s.Active != 0 {
		errs = append(errs, fmt.Errorf("stream %s: %d sessions are in flight", s.Stream, s.Active))
	}
	for i := range s.Backends {
		if b := &s.Backends[i]; b.Active != 0 {
			errs = append(errs, fmt.Errorf("stream %s: %d sessions count at %v", s.Stream, b.Active, b.Addr))
		}
	}
	return errors.Join(errs...)
}

// Quantile answers the time in seconds below which that part of what a
// stream.Histogram counted lies, from 0 to 1; evenly spread within a bucket. It is 0
// where nothing was counted.
func Quantile(count *[stream.HistogramBuckets]uint64, part float64) float64 {
	sum := uint64(0)
	for _, n := range count {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	rank := part * float64(sum)
	low, below := 0.0, 0.0
	for i, n := range count[:stream.HistogramBuckets-1] {
		high := float64(stream.Bound(i)) / 1e9
		if below+float64(n) >= rank && n > 0 {
			return low + (high-low)*(rank-below)/float64(n)
		}
		below += float64(n)
		low = high
	}
	return low
}
