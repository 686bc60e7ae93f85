package runtime

import (
	"math/bits"
	"sync"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func bucket(c uint64) int {
	return min(max(bits.Len64(c)-8, 0), graph.LatencyBuckets-1)
}

// Traffic is packets and bytes.
type Traffic = graph.Traffic

// Stats is an engine's counts; see graph.Stats.
type Stats = graph.Stats

// Stats answers the counts.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statsLocked()
}

func (e *Engine) statsLocked() Stats {
	s := Stats{Graph: e.graph.Name, Cores: len(e.loops), CyclesPerNanosecond: CyclesPerNanosecond()}
	for _, p := range e.ports {
		s.Ports = append(s.Ports, p.Info())
		if x, ok := p.Port.(graph.Loser); ok {
			if s.Lost == nil {
				s.Lost = map[string]map[string]uint64{}
			}
			s.Lost[p.spec.Name] = x.Lost()
		}
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
	s.Census.Held += l.heldFrames()
	s.Census.Free += len(l.free)
	s.Census.Rings += l.away + l.entries.len()
	s.Census.Graph += l.lent
	if s.Nodes == nil {
		s.Nodes = make([]graph.NodeStats, len(l.nodes))
	}
	for i := range l.nodes {
		n, t := &l.nodes[i], &s.Nodes[i]
		if t.Name == "" {
			t.Name, t.Kind = n.inst.Name, n.inst.Kind.Name
			for o, out := range n.inst.Outputs {
				os := graph.OutputStats{Name: out.Name, Drop: n.targets[o] == toDrop}
				if to := n.targets[o]; to >= 0 {
					os.To = l.nodes[to].inst.Name
				}
				t.Outputs = append(t.Outputs, os)
			}
			for _, c := range n.inst.Kind.Counters {
				t.Counters = append(t.Counters, graph.CounterStats{Name: c.Name})
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

// heldFrames counts the frames of the packets that nodes hold.
func (l *Loop) heldFrames() (n int) {
	for w, bits := range l.holds {
		for m := packet.Lanes(bits); m != 0; m &= m - 1 {
			n++
			for f := l.entry(uint32(w*64 + m.Next())).Chain; f != packet.NoFrame; f = l.links[f].Next {
				n++
			}
		}
	}
	return n
}

func addTraffic(sum, t []Traffic) []Traffic {
	sum = grown(sum, len(t))
	for i := range t {
		sum[i].Packets += t[i].Packets
		sum[i].Bytes += t[i].Bytes
	}
	return sum
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
