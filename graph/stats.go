package graph

import (
	"errors"
	"fmt"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Traffic is packets and bytes.
type Traffic struct{ Packets, Bytes uint64 }

// LatencyBuckets is the number of buckets of the histogram of cycles per pass:
// bucket i counts passes of 2^(i+7) … 2^(i+8)−1 cycles, the first and the last one
// all that is less or more.
const LatencyBuckets = 24

// Stats is an engine's counts, summed over its cores at nearly one moment: each
// core's are exact between two of its vectors.
type Stats struct {
	Graph                   string
	Cores                   int
	Received, ReceivedBytes uint64
	Made                    uint64
	Sent, SentBytes         uint64
	Kernel                  uint64
	Dropped                 uint64
	Reload                  uint64            // dropped because a reload removed the node
	Retired                 map[string]uint64 // drops of removed nodes, by "node.reason"
	Held                    uint64
	Passes                  uint64
	Nodes                   []NodeStats // in the order in which they run
	PerService, PerBackend  []Traffic   // sent, by number in the snapshot
	// Latency counts timed passes by cycles, of which CyclesPerNanosecond go by.
	Latency             [LatencyBuckets]uint64
	CyclesPerNanosecond float64
	// Sizes counts vectors from sources by packets.
	Sizes  [packet.Size + 1]uint64
	Census FrameCensus
	Ports  []PortInfo
	// Lost is the packets that ports lost before they were received, by the port's
	// name and the reason.
	Lost map[string]map[string]uint64
}

// NodeStats is the counts of one node.
type NodeStats struct {
	Name, Kind     string
	Calls, Packets uint64
	// Cycles were spent on Timed packets.
	Cycles, Timed uint64
	Outputs       []OutputStats
	Counters      []CounterStats
	Gauges        map[string]float64
	// Certificates that it shows; streams only.
	Certificates []Certificate
	// What the runtime dropped for the node.
	Unanswered, DuplicateAnswer, NoPunt uint64
}

// OutputStats is the packets that left by an output.
type OutputStats struct {
	Name    string
	To      string // the next node; "" where they drop or go to the kernel
	Drop    bool   // they drop here: Name is the reason
	Packets uint64
	Bytes   uint64 // of drops
}

// CounterStats is a counter of a node.
type CounterStats struct {
	Name  string
	Value uint64
}

// FrameCensus is all frames by place.
type FrameCensus struct {
	Fill, Rx, Tx, Completion, Held, Rings, Free, Graph int
	Owned                                              int
}

// Sum answers the frames found, which are Owned at a quiet point.
func (c FrameCensus) Sum() int {
	return c.Fill + c.Rx + c.Tx + c.Completion + c.Held + c.Rings + c.Free + c.Graph
}

// Drops answers the drops by "node.reason", zero ones left out.
func (s *Stats) Drops() map[string]uint64 {
	d := map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			d[name] += n
		}
	}
	add("reload", s.Reload)
	for k, n := range s.Retired {
		add(k, n)
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, o := range n.Outputs {
			if o.Drop {
				add(n.Name+"."+o.Name, o.Packets)
			}
		}
		add(n.Name+".unanswered", n.Unanswered)
		add(n.Name+".no_punt", n.NoPunt)
	}
	return d
}

// Node answers the counts of the node of that name; the zero value if there is none.
func (s *Stats) Node(name string) NodeStats {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return NodeStats{}
}

// Counter answers the node's counter of that name.
func (n *NodeStats) Counter(name string) uint64 {
	for _, c := range n.Counters {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// CheckConservation tells whether frames and packets add up. It holds at a quiet
// point: nothing on its way in a ring between cores or into a port.
func (s *Stats) CheckConservation() error {
	var errs []error
	if got := s.Census.Sum(); got != s.Census.Owned {
		errs = append(errs, fmt.Errorf("%d frames are owned and %d found: %+v", s.Census.Owned, got, s.Census))
	}
	if in, out := s.Received+s.Made, s.Sent+s.Dropped+s.Kernel+s.Held; in != out {
		errs = append(errs, fmt.Errorf("received %d + made %d is not sent %d + dropped %d + kernel %d + held %d",
			s.Received, s.Made, s.Sent, s.Dropped, s.Kernel, s.Held))
	}
	return errors.Join(errs...)
}
