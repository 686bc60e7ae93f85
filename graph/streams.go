package graph

import (
	"errors"
	"fmt"
	"net/netip"

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
)

// StreamStats is the counts of a stream block.
type StreamStats struct {
	Stream string
	// Accepted counts connections, Requests requests; Connections and Active are
	// those at this moment.
	Accepted, Requests  uint64
	Malformed           uint64 // requests that could not be read, and reached no node
	Connections, Active int64
	// Nodes are in the order in which sessions can pass them; Packets are sessions.
	Nodes    []NodeStats
	Backends []BackendStats
}

// BackendStats is the counts of a backend of the stream plane.
type BackendStats struct {
	Addr            netip.AddrPort
	Active          int64
	Total, Failures uint64
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
