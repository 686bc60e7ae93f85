package runtime

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// latencyBuckets is the number of buckets of the histogram of cycles per pass:
// bucket i counts passes of 2^(i+7) … 2^(i+8)−1 cycles, the first and the last one
// all that is less or more.
const latencyBuckets = 24

func bucket(c uint64) int {
	return min(max(bits.Len64(c)-8, 0), latencyBuckets-1)
}

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
	// Latency counts timed passes by cycles; see CyclesPerNanosecond.
	Latency [latencyBuckets]uint64
	// Sizes counts vectors from sources by packets.
	Sizes  [packet.Size + 1]uint64
	Census Census
	Ports  []graph.PortInfo
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

// Census is all frames by place.
type Census struct {
	Fill, Rx, Tx, Completion, Held, Rings, Free, Graph int
	Owned                                              int
}

// Sum answers the frames found, which are Owned at a quiet point.
func (c Census) Sum() int {
	return c.Fill + c.Rx + c.Tx + c.Completion + c.Held + c.Rings + c.Free + c.Graph
}

// Stats answers the counts.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statsLocked()
}

func (e *Engine) statsLocked() Stats {
	s := Stats{Graph: e.graph.Name, Cores: len(e.loops)}
	for _, p := range e.ports {
		s.Ports = append(s.Ports, p.Info())
	}
	var mu sync.Mutex // loops answer at the same time
	e.eachLocked(func(l *Loop) {
		mu.Lock()
		defer mu.Unlock()
		l.addTo(&s)
	})
	s.Census.Owned = len(e.links)
	for i := range e.mesh {
		for j := range e.mesh[i] {
			s.Census.Rings += e.mesh[i][j].frames.Len() + e.mesh[i][j].home.Len()
		}
	}
	s.Dropped = s.Reload
	for _, n := range s.Retired {
		s.Dropped += n
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		s.Dropped += n.Unanswered + n.NoPunt
		for _, o := range n.Outputs {
			if o.Drop {
				s.Dropped += o.Packets
			}
		}
	}
	return s
}

func (l *Loop) addTo(s *Stats) {
	s.Received += l.received
	s.ReceivedBytes += l.receivedBytes
	s.Made += l.made
	s.Sent += l.sent
	s.SentBytes += l.sentBytes
	s.Kernel += l.kernel
	s.Reload += l.reloadDrops
	s.Held += uint64(l.held)
	for k, n := range l.retired {
		if s.Retired == nil {
			s.Retired = map[string]uint64{}
		}
		s.Retired[k] += n
	}
	s.Passes += l.passes
	s.PerService = addTraffic(s.PerService, l.perService)
	s.PerBackend = addTraffic(s.PerBackend, l.perBackend)
	for i, n := range l.latency {
		s.Latency[i] += n
	}
	for i, n := range l.sizes {
		s.Sizes[i] += n
	}
	for _, q := range l.queues {
		c := q.Census()
		s.Census.Fill += c.Fill
		s.Census.Rx += c.Rx
		s.Census.Tx += c.Tx
		s.Census.Completion += c.Completion
	}
	s.Census.Held += l.held
	s.Census.Free += len(l.free)
	s.Census.Rings += l.away + l.entries.len()
	s.Census.Graph += l.lent
	if s.Nodes == nil {
		s.Nodes = make([]NodeStats, len(l.nodes))
	}
	for i := range l.nodes {
		n, t := &l.nodes[i], &s.Nodes[i]
		if t.Name == "" {
			t.Name, t.Kind = n.inst.Name, n.inst.Kind.Name
			for o, out := range n.inst.Outputs {
				os := OutputStats{Name: out.Name, Drop: n.targets[o] == toDrop}
				if to := n.targets[o]; to >= 0 {
					os.To = l.nodes[to].inst.Name
				}
				t.Outputs = append(t.Outputs, os)
			}
			for _, c := range n.inst.Kind.Counters {
				t.Counters = append(t.Counters, CounterStats{Name: c.Name})
			}
		}
		t.Calls += n.calls
		t.Packets += n.packets
		t.Cycles += n.cycles
		t.Timed += n.timed
		t.Unanswered += n.unanswered
		t.DuplicateAnswer += n.duplicate
		t.NoPunt += n.noPunt
		for o := range n.outs {
			t.Outputs[o].Packets += n.outs[o]
			t.Outputs[o].Bytes += n.outBytes[o]
		}
		for c := range n.counters {
			t.Counters[c].Value += n.counters[c]
		}
		if g, ok := n.Node.(graph.Gauger); ok {
			if t.Gauges == nil {
				t.Gauges = map[string]float64{}
			}
			for k, v := range g.Gauges() {
				t.Gauges[k] += v
			}
		}
	}
}

func addTraffic(sum, t []Traffic) []Traffic {
	sum = grown(sum, len(t))
	for i := range t {
		sum[i].Packets += t[i].Packets
		sum[i].Bytes += t[i].Bytes
	}
	return sum
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

var rate struct {
	once          sync.Once
	perNanosecond float64
}

// CyclesPerNanosecond answers the rate of the cycle counter, measured once over
// ten milliseconds.
func CyclesPerNanosecond() float64 {
	rate.once.Do(func() {
		t, c := time.Now(), cycles()
		time.Sleep(10 * time.Millisecond)
		rate.perNanosecond = float64(cycles()-c) / float64(time.Since(t))
	})
	return rate.perNanosecond
}
