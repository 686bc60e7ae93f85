package mem_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
)

const chunk = 2048

// rig is a port and what an engine has: memory, links and free frames.
type rig struct {
	t     testing.TB
	mem   []byte
	links []packet.Link
	free  []uint32
	port  *mem.Port
	q     graph.Queue
	v     packet.Vector
	total int
}

func newRig(t testing.TB, frames, queues int, change func(*mem.Config)) *rig {
	r := &rig{t: t, mem: make([]byte, frames*chunk), links: make([]packet.Link, frames), total: frames}
	for f := range frames {
		r.free = append(r.free, uint32(f))
	}
	cfg := mem.Config{Mem: r.mem, Chunk: chunk, Rings: 256}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.port, err = mem.Open(cfg, queues, graph.PortInfo{Name: "m0", MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.port.Close() })
	r.q = r.port.Queue(0)
	r.v.Mem, r.v.Links = r.mem, r.links
	return r
}

func (r *rig) refill() { r.free = r.free[r.q.Refill(r.free):] }

func (r *rig) reclaim() {
	var done [64]uint32
	for n := r.q.Reclaim(done[:]); n > 0; n = r.q.Reclaim(done[:]) {
		r.free = append(r.free, done[:n]...)
	}
}

// check counts all frames, of which inGraph are in the test's hands.
func (r *rig) check(inGraph int) {
	r.t.Helper()
	c := r.q.Census()
	if sum := c.Fill + c.Rx + c.Tx + c.Completion + len(r.free) + inGraph; sum != r.total {
		r.t.Fatalf("%d frames of %d: %+v, %d free, %d in the graph", sum, r.total, c, len(r.free), inGraph)
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

func TestFramesStandAsTheKernelLeavesThem(t *testing.T) {
	r := newRig(t, 64, 1, func(c *mem.Config) { c.Poison = true })
	r.refill()
	r.port.Inject(0, pattern(60, 1), pattern(1514, 2))
	if n := r.q.Receive(&r.v); n != 2 {
		t.Fatalf("%d packets", n)
	}
	for i, want := range [][]byte{pattern(60, 1), pattern(1514, 2)} {
		base := r.v.Frame[i] * chunk
		if r.v.Start[i] != base+mem.Front || r.v.Len[i] != uint32(len(want)) || r.v.Total[i] != r.v.Len[i] || r.v.Chain[i] != packet.NoFrame {
			t.Errorf("lane %d: start %d, length %d of %d, chain %d", i, r.v.Start[i]-base, r.v.Len[i], r.v.Total[i], r.v.Chain[i])
		}
		if !bytes.Equal(r.v.Bytes(i), want) {
			t.Errorf("lane %d: wrong bytes", i)
		}
		for j, b := range r.mem[base : base+chunk] {
			if (j < mem.Front || j >= mem.Front+len(want)) && b != 0xff {
				t.Fatalf("lane %d: byte %d of the chunk is %#x, not poisoned", i, j, b)
			}
		}
	}
	if !r.port.Drained() {
		t.Error("not drained")
	}
	r.check(2)
}

func TestJumboPacketsAreChains(t *testing.T) {
	r := newRig(t, 64, 1, nil)
	r.refill()
	long := pattern(9014, 3)
	r.port.Inject(0, long, make([]byte, mem.MaxFrames*(chunk-mem.Front)+1), pattern(64, 4))
	if n := r.q.Receive(&r.v); n != 2 {
		t.Fatalf("%d packets; the one that no chain holds is skipped", n)
	}
	if r.port.Skipped() != 1 {
		t.Errorf("%d skipped", r.port.Skipped())
	}
	if r.v.Total[0] != 9014 || r.v.Len[0] != chunk-mem.Front || r.v.Chain[0] == packet.NoFrame {
		t.Errorf("total %d, first %d", r.v.Total[0], r.v.Len[0])
	}
	got, frames := append([]byte(nil), r.v.Bytes(0)...), 1
	for f := r.v.Chain[0]; f != packet.NoFrame; f = r.links[f].Next {
		got = append(got, r.mem[r.links[f].Start:r.links[f].Start+r.links[f].Len]...)
		frames++
	}
	if !bytes.Equal(got, long) || frames != 6 {
		t.Errorf("%d bytes in %d frames", len(got), frames)
	}
	r.check(7)
	if taken := r.q.Transmit(&r.v, 3); taken != 3 {
		t.Fatalf("taken %b", taken)
	}
	if c := r.q.Census(); c.Tx != 7 {
		t.Errorf("%+v before the flush", c)
	}
	r.check(0)
	r.q.Flush()
	r.check(0)
	r.reclaim()
	r.check(0)
	sent := r.port.Sent(0)
	if len(sent) != 2 || !bytes.Equal(sent[0].Data, long) || !bytes.Equal(sent[1].Data, pattern(64, 4)) {
		t.Errorf("%d packets sent, or not those", len(sent))
	}
}

func TestAPacketWaitsForFrames(t *testing.T) {
	r := newRig(t, 8, 1, nil)
	r.q.Refill(r.free[:4])
	r.free = r.free[4:]
	r.port.Inject(0, pattern(9014, 1))
	if n := r.q.Receive(&r.v); n != 0 {
		t.Fatalf("%d packets out of too few frames", n)
	}
	r.refill()
	if n := r.q.Receive(&r.v); n != 1 {
		t.Fatalf("%d packets", n)
	}
	r.check(6)
}

func TestLimitsAndStops(t *testing.T) {
	r := newRig(t, 256, 1, nil)
	r.refill()
	frames := make([][]byte, 64)
	for i := range frames {
		frames[i] = pattern(64, byte(i))
	}
	r.port.Inject(0, frames...)
	n := r.q.Receive(&r.v)
	if n != 64 {
		t.Fatal(n)
	}
	r.port.Limit(7)
	left := packet.All(n)
	taken := r.q.Transmit(&r.v, left)
	if taken != packet.All(7) {
		t.Fatalf("took %b, not the first seven", taken)
	}
	left &^= taken
	r.check(left.Count())
	r.port.Stop()
	if more := r.q.Transmit(&r.v, left); more != left {
		t.Errorf("took %b of %b", more, left)
	}
	r.q.Flush()
	if c := r.q.Census(); c.Tx != 64 || r.port.SentPackets() != 0 {
		t.Errorf("a stopped port sent: %+v", c)
	}
	r.port.Limit(0)
	r.q.Flush()
	for i, p := range r.port.Sent(0) {
		if !bytes.Equal(p.Data, frames[i]) {
			t.Fatalf("packet %d is out of order", i)
		}
	}
	r.reclaim()
	r.check(0)
}

func TestTheTransmitRingFills(t *testing.T) {
	r := newRig(t, 512, 1, func(c *mem.Config) { c.Rings = 64 })
	r.refill()
	r.port.Repeat(0, 100, pattern(64, 0))
	n := r.q.Receive(&r.v)
	if taken := r.q.Transmit(&r.v, packet.All(n)); taken.Count() != 64 {
		t.Fatal(taken.Count())
	}
	r.q.Flush() // in completion now
	r.refill()
	n = r.q.Receive(&r.v)
	if taken := r.q.Transmit(&r.v, packet.All(n)); n != 36 || taken != 0 {
		t.Errorf("took %b of %d with a full completion ring", taken, n)
	}
	r.check(n)
}

func TestAVectorHoldsOneTime(t *testing.T) {
	r := newRig(t, 64, 1, func(c *mem.Config) { c.Clock = true })
	r.refill()
	r.port.InjectAt(0, 100, pattern(64, 1), pattern(64, 2))
	r.port.InjectAt(0, 200, pattern(64, 3))
	r.port.InjectAt(0, 150, pattern(64, 4)) // runs backwards
	for _, want := range []struct {
		n   int
		now int64
	}{{2, 100}, {2, 200}, {0, 200}} {
		if n := r.q.Receive(&r.v); n != want.n || r.v.Now != want.now {
			t.Errorf("%d packets at %d, want %d at %d", n, r.v.Now, want.n, want.now)
		}
	}
}

func TestAdmission(t *testing.T) {
	var seen []int
	r := newRig(t, 64, 1, func(c *mem.Config) {
		c.Admit = func(b []byte) bool { seen = append(seen, len(b)); return len(b) != 61 }
	})
	r.refill()
	r.port.Inject(0, pattern(60, 0), pattern(61, 0), pattern(62, 0), pattern(61, 0))
	if n := r.q.Receive(&r.v); n != 2 || r.v.Len[0] != 60 || r.v.Len[1] != 62 {
		t.Errorf("%d packets, of %d and %d bytes", n, r.v.Len[0], r.v.Len[1])
	}
	if len(seen) != 4 || !r.port.Drained() {
		t.Errorf("asked about %v", seen)
	}
	r.check(2)
}

// deaf is a sink that takes what it is told to.
type deaf struct{ takes int }

func (d *deaf) Put([]byte, int64) bool { d.takes--; return d.takes >= 0 }
func (d *deaf) Flushed()               {}

func TestASinkThatTakesNothingStopsTheQueue(t *testing.T) {
	r := newRig(t, 64, 1, nil)
	sink := &deaf{takes: 3}
	r.q = mem.NewQueue(mem.Config{Mem: r.mem, Chunk: chunk, Rings: 64}, nil, sink)
	for i := range 8 {
		r.v.Frame[i], r.v.Start[i], r.v.Len[i], r.v.Total[i], r.v.Chain[i] = r.free[i], r.free[i]*chunk, 60, 60, packet.NoFrame
	}
	r.free = r.free[8:]
	if taken := r.q.Transmit(&r.v, packet.All(8)); taken != packet.All(8) {
		t.Fatalf("%b", taken)
	}
	r.q.Flush()
	if taken := r.q.Transmit(&r.v, packet.Lane(9)); taken != 0 {
		t.Error("a queue with a stuck sink takes more")
	}
	if c := r.q.Census(); c.Tx != 5 || c.Completion != 3 {
		t.Errorf("%+v", c)
	}
	sink.takes = 5
	r.q.Flush()
	if c := r.q.Census(); c.Tx != 0 {
		t.Errorf("%+v", c)
	}
	r.reclaim()
	r.check(0)
}

func TestPollWakes(t *testing.T) {
	r := newRig(t, 64, 1, nil)
	r.refill()
	ready := func() bool {
		p := []unix.PollFd{{Fd: int32(r.q.FD()), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	if ready() {
		t.Error("ready with nothing to receive")
	}
	r.port.Inject(0, pattern(64, 0))
	if !ready() {
		t.Error("not ready with a packet waiting")
	}
	r.q.Receive(&r.v)
	if ready() {
		t.Error("ready after all was received")
	}
	r.port.End()
	if !ready() || !r.q.Idle() {
		t.Error("the end does not show")
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg    mem.Config
		queues int
	}{{mem.Config{Mem: make([]byte, 4096), Chunk: 2048}, 0}, {mem.Config{Mem: make([]byte, 4096), Chunk: 128}, 1}, {mem.Config{Chunk: 2048}, 1}} {
		if _, err := mem.Open(c.cfg, c.queues, graph.PortInfo{}); err == nil {
			t.Errorf("%d queues of %d-byte chunks in %d bytes opened", c.queues, c.cfg.Chunk, len(c.cfg.Mem))
		}
	}
}

// TestConservation moves random packets through a port that takes and stops at
// random, and counts the frames at every step.
func TestConservation(t *testing.T) {
	r := newRig(t, 512, 1, nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	var injected, sent, dropped uint64
	for range 5000 {
		switch rnd.IntN(8) {
		case 0, 1:
			for range rnd.IntN(80) {
				r.port.Inject(0, pattern(1+rnd.IntN(4000), 0))
				injected++
			}
		case 2:
			r.port.Limit(rnd.IntN(65))
		case 3:
			r.port.Stop()
		}
		r.refill()
		n := r.q.Receive(&r.v)
		lanes := packet.All(n)
		held := 0
		for i := range n {
			held++
			for f := r.v.Chain[i]; f != packet.NoFrame; f = r.links[f].Next {
				held++
			}
		}
		r.check(held)
		left := lanes &^ r.q.Transmit(&r.v, lanes)
		for l := left; l != 0; l &= l - 1 {
			dropped++
			r.free = append(r.free, r.v.Frame[l.Next()])
			for f := r.v.Chain[l.Next()]; f != packet.NoFrame; f = r.links[f].Next {
				r.free = append(r.free, f)
			}
		}
		r.check(0)
		if rnd.IntN(3) > 0 {
			r.q.Flush()
		}
		r.reclaim()
		r.check(0)
		for range r.port.Sent(0) {
			sent++
		}
	}
	r.port.Limit(0)
	for !r.port.Drained() || r.q.Census().Tx > 0 {
		r.refill()
		n := r.q.Receive(&r.v)
		taken := r.q.Transmit(&r.v, packet.All(n))
		if taken != packet.All(n) {
			t.Fatal("a free port does not take everything")
		}
		r.q.Flush()
		r.reclaim()
	}
	sent += uint64(len(r.port.Sent(0)))
	if injected != sent+dropped || sent != r.port.SentPackets() || len(r.free)+r.q.Census().Fill != r.total {
		t.Errorf("%d injected, %d sent, %d dropped", injected, sent, dropped)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r := newRig(t, 256, 1, nil)
	r.port.Discard()
	r.port.Repeat(0, 1<<40, pattern(64, 0), pattern(1500, 1), pattern(4000, 2))
	free := make([]uint32, 256)
	if a := testing.AllocsPerRun(1000, func() { r.turn(free) }); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// turn receives and sends one vector.
func (r *rig) turn(free []uint32) int {
	n := copy(free, r.free)
	took := r.q.Refill(free[:n])
	r.free = r.free[:copy(r.free, r.free[took:])]
	n = r.q.Receive(&r.v)
	r.q.Transmit(&r.v, packet.All(n))
	r.q.Flush()
	k := r.q.Reclaim(free)
	r.free = append(r.free, free[:k]...)
	return n
}

func BenchmarkPort(b *testing.B) {
	r := newRig(b, 256, 1, nil)
	r.port.Discard()
	r.port.Repeat(0, 1<<40, pattern(64, 0))
	free := make([]uint32, 256)
	b.ReportAllocs()
	packets := 0
	for b.Loop() {
		packets += r.turn(free)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
}
