package bench

import (
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lbgraph/lbgraph/io/packet"
)

// A subject is what is measured, slice by slice: arm is not, run is. arm answers how
// many packets wait for run, 0 where only the subject knows.
type subject interface {
	arm() (packets int)
	run()
}

// bare is a port without a graph: what the measurement itself costs.
type bare struct {
	port *Port
	load *Traffic
	v    packet.Vector
	cold bool
}

// newBare makes a bare port for the packets of l.
func newBare(t *Traffic, batch int, cold bool) *bare {
	p := newPort(info, make([]byte, (frames+64)*2048), 2048, frames, batch)
	for f := range uint32(frames) {
		p.fill = append(p.fill, f)
	}
	return &bare{port: p, load: t, cold: cold}
}

func (b *bare) arm() int { return b.port.Arm(b.load, b.cold) }

func (b *bare) run() {
	for b.port.Left() > 0 {
		b.turn(b.port.Receive(&b.v))
	}
}

// turn gives the n packets of the vector back.
func (b *bare) turn(n int) {
	b.port.Transmit(&b.v, packet.All(n))
	b.port.fill = append(b.port.fill, b.port.done...)
	b.port.done = b.port.done[:0]
}

// scalar is the reference over a bare port.
type scalar struct {
	bare
	*Reference
	left int // packets that it did not take
}

func (s *scalar) arm() int {
	if s.load.over() {
		s.Flush()
	}
	return s.bare.arm()
}

func (s *scalar) run() {
	for s.port.Left() > 0 {
		n := s.port.Receive(&s.v)
		now := int64(time.Since(clock))
		for i := range n {
			start, size, ok := s.Packet(s.port.mem, int(s.v.Start[i]), int(s.v.Len[i]), now)
			if !ok {
				s.left++
				continue
			}
			s.v.Start[i], s.v.Len[i] = uint32(start), uint32(size)
		}
		s.turn(n)
	}
}

var clock = time.Now()

// quiet runs f on a thread of its own, without the collector.
func quiet(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	f()
}

// slice measures one slice, in nanoseconds a packet.
func slice(s subject) float64 {
	n := orDefault(s.arm(), frames)
	t := time.Now()
	s.run()
	return float64(time.Since(t)) / float64(n)
}

// least is the number of slices at least, of which a few may be disturbed.
const least = 15

// run measures slices of s for the time d, or least if that is longer, and answers the
// median of nanoseconds a packet.
func run(s subject, d time.Duration) float64 {
	times := make([]float64, 0, 4096)
	for end := time.Now().Add(d); len(times) < least || time.Now().Before(end) && len(times) < cap(times); {
		times = append(times, slice(s))
	}
	return median(times)
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Clone(x)
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// newScalar makes the reference for the traffic and the state of e, and makes all
// flows known to it.
func newScalar(e *Engine, entries, batch int, cold bool) *scalar {
	s := &scalar{
		bare:      *newBare(e.traffic(), batch, cold),
		Reference: NewReference(e.Store.Cell().Load(), info.Addrs[0].As4(), e.Graph.NetworkMTU, entries),
	}
	if s.load.NewFlows < 100 {
		percent := s.load.NewFlows
		s.load.NewFlows, s.load.phase = 0, opening
		for range 3 {
			for n := 0; n < s.load.Flows; n += frames {
				s.arm()
				s.run()
			}
			s.load.phase = going
		}
		s.load.NewFlows = percent
	}
	return s
}
