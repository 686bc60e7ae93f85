package xsk

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/lbgraph/lbgraph/io/packet"
)

const chunk = 2048

// memQueue is a queue whose rings stand on the heap, and what the kernel does with
// them: the race detector does not see memory shared with the kernel.
type memQueue struct {
	Queue
	k kernel
}

// kernel is the other side of the four rings.
type kernel struct {
	mem                []byte
	fill, rx, tx, done struct {
		prod, cons *uint32
		own        uint32
	}
	q    *Queue
	next uint64   // number of the next packet
	sent []uint64 // numbers of the packets sent, if they are wanted
	keep bool
	bad  int // entries that a kernel would skip, and never give back
}

// newMemQueue makes rings of size entries whose indices stand at start.
func newMemQueue(mem []byte, size int, start uint32) *memQueue {
	m := &memQueue{k: kernel{mem: mem}}
	q := &m.Queue
	q.fd, q.chunk, q.shift, q.sg, q.batch = -1, chunk, 11, true, packet.Size
	// As far apart as the kernel places them.
	o := offsets{producer: 0, consumer: 64, flags: 128, desc: 192}
	heap := func(entry uintptr) []byte {
		words := make([]uint64, 24+size*int(entry)/8)
		return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	}
	q.rx, q.tx = place[desc](heap(16), o, size), place[desc](heap(16), o, size)
	q.fill, q.done = place[uint64](heap(8), o, size), place[uint64](heap(8), o, size)
	begin(&q.rx, start)
	begin(&q.tx, start+1)
	begin(&q.fill, start) // as many as received
	begin(&q.done, start+1)
	k := &m.k
	k.q = q
	k.rx.prod, k.rx.cons, k.rx.own = q.rx.prod, q.rx.cons, start
	k.tx.prod, k.tx.cons, k.tx.own = q.tx.prod, q.tx.cons, start+1
	k.fill.prod, k.fill.cons, k.fill.own = q.fill.prod, q.fill.cons, start
	k.done.prod, k.done.cons, k.done.own = q.done.prod, q.done.cons, start+1
	return m
}

func begin[T desc | uint64](r *ring[T], at uint32) {
	*r.prod, *r.cons, r.own, r.seen = at, at, at, at
}

// receive makes up to n packets, each of 1 to 4 frames, of what the fill ring
// holds. They show all at once.
func (k *kernel) receive(n int, rnd *rand.Rand) {
	avail := int(atomic.LoadUint32(k.fill.prod) - k.fill.own)
	room := len(k.q.rx.slot) - int(k.rx.own-atomic.LoadUint32(k.rx.cons))
	for ; n > 0; n-- {
		frames := 1
		if rnd.IntN(4) == 0 {
			frames += rnd.IntN(4)
		}
		if frames > min(avail, room) {
			break
		}
		avail, room = avail-frames, room-frames
		for i := range frames {
			addr := *k.q.fill.at(uint(k.fill.own))
			k.fill.own++
			d := desc{addr: addr + front, len: 16 + uint32(i)}
			if i < frames-1 {
				d.options = contd
			}
			binary.LittleEndian.PutUint64(k.mem[d.addr:], k.next)
			binary.LittleEndian.PutUint64(k.mem[d.addr+8:], uint64(i))
			*k.q.rx.at(uint(k.rx.own)) = d
			k.rx.own++
		}
		k.next++
	}
	atomic.StoreUint32(k.fill.cons, k.fill.own)
	atomic.StoreUint32(k.rx.prod, k.rx.own)
}

// send takes up to n entries of the transmit ring and completes them.
func (k *kernel) send(n int) {
	n = min(n, int(atomic.LoadUint32(k.tx.prod)-k.tx.own), len(k.q.done.slot)-int(k.done.own-atomic.LoadUint32(k.done.cons)))
	for range n {
		d := *k.q.tx.at(uint(k.tx.own))
		k.tx.own++
		if d.len == 0 || d.addr%chunk+uint64(d.len) > chunk || d.addr >= uint64(len(k.mem)) {
			k.bad++
			continue
		}
		if k.keep && d.options&contd == 0 {
			k.sent = append(k.sent, binary.LittleEndian.Uint64(k.mem[d.addr:]))
		}
		*k.q.done.at(uint(k.done.own)) = d.addr
		k.done.own++
	}
	atomic.StoreUint32(k.tx.cons, k.tx.own)
	atomic.StoreUint32(k.done.prod, k.done.own)
}

// user is what a loop does with a queue: it keeps the free frames and sends back
// what it receives.
type user struct {
	t      testing.TB
	q      *Queue
	free   []uint32
	v      packet.Vector
	left   packet.Lanes // received and not yet sent
	frames int
	next   uint64 // number of the packet that must come next
}

func newUser(t testing.TB, m *memQueue, frames int) *user {
	u := &user{t: t, q: &m.Queue, frames: frames}
	u.v.Mem, u.v.Links = m.k.mem, make([]packet.Link, frames)
	for f := range frames {
		u.free = append(u.free, uint32(f))
	}
	return u
}

// receive takes packets and checks that they are whole and in order.
func (u *user) receive() {
	u.t.Helper()
	if u.left != 0 {
		return
	}
	n := u.q.Receive(&u.v)
	u.left = packet.All(n)
	for i := range n {
		part := func(start, size uint32, k uint64) {
			u.t.Helper()
			b := u.v.Mem[start : start+size]
			if got, at := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]); got != u.next || at != k || size != 16+uint32(k) {
				u.t.Fatalf("packet %d part %d of %d bytes; want packet %d part %d", got, at, size, u.next, k)
			}
		}
		if u.v.Start[i] != u.v.Frame[i]*chunk+front {
			u.t.Fatalf("frame %d starts at %d", u.v.Frame[i], u.v.Start[i])
		}
		part(u.v.Start[i], u.v.Len[i], 0)
		total, k := u.v.Len[i], uint64(1)
		for f := u.v.Chain[i]; f != packet.NoFrame; f, k = u.v.Links[f].Next, k+1 {
			part(u.v.Links[f].Start, u.v.Links[f].Len, k)
			total += u.v.Links[f].Len
		}
		if u.v.Total[i] != total {
			u.t.Fatalf("a packet of %d bytes says %d", total, u.v.Total[i])
		}
		u.next++
	}
}

func (u *user) send() { u.left &^= u.q.Transmit(&u.v, u.left) }

func (u *user) refill(n int) { u.free = u.free[u.q.Refill(u.free[:min(n, len(u.free))]):] }

func (u *user) reclaim(n int) {
	done := make([]uint32, n)
	u.free = append(u.free, done[:u.q.Reclaim(done)]...)
}

// check counts the frames.
func (u *user) check() {
	u.t.Helper()
	c := u.q.Census()
	sum := c.Fill + c.Rx + c.Tx + c.Completion + len(u.free)
	for l := u.left; l != 0; l &= l - 1 {
		sum++
		for f := u.v.Chain[l.Next()&63]; f != packet.NoFrame; f = u.v.Links[f].Next {
			sum++
		}
	}
	if sum != u.frames || min(c.Fill, c.Rx, c.Tx, c.Completion) < 0 {
		u.t.Fatalf("%d frames of %d: %+v, %d free", sum, u.frames, c, len(u.free))
	}
}

// whole sees to it that no frame is there twice.
func (u *user) whole() {
	u.t.Helper()
	seen := make([]bool, u.frames)
	for _, f := range u.free {
		if seen[f] {
			u.t.Fatalf("frame %d is free twice", f)
		}
		seen[f] = true
	}
}

var starts = []uint32{0, 1<<31 - 3, ^uint32(0) - 2, ^uint32(0) - 40}

// A script of what user and kernel do in turn keeps frames and order, wherever the
// indices stand.
func FuzzRings(f *testing.F) {
	f.Add(uint32(0), []byte{0, 1, 2, 3, 4, 5})
	for _, s := range starts {
		rnd := rand.New(rand.NewPCG(1, uint64(s)))
		script := make([]byte, 3000)
		for i := range script {
			script[i] = byte(rnd.Uint32())
		}
		f.Add(s, script)
	}
	f.Fuzz(func(t *testing.T, start uint32, script []byte) {
		const frames = 100
		m := newMemQueue(make([]byte, frames*chunk), 32, start)
		m.k.keep = true
		u := newUser(t, m, frames)
		rnd := rand.New(rand.NewPCG(uint64(start), uint64(len(script))))
		for _, b := range script {
			switch n := int(b >> 3); b & 7 {
			case 0:
				u.refill(n)
			case 1, 2:
				m.k.receive(n, rnd)
			case 3:
				u.receive()
			case 4:
				u.send()
			case 5:
				m.k.send(n)
			case 6:
				u.reclaim(n)
			case 7:
				u.receive()
				u.send()
			}
			u.check()
		}
		for u.send(); u.left != 0; u.send() {
			m.k.send(32)
			u.reclaim(32)
		}
		for range 10 {
			m.k.send(32)
			u.reclaim(32)
		}
		u.check()
		u.whole()
		for i, n := range m.k.sent {
			if n != uint64(i) {
				t.Fatalf("packet %d was sent in place of %d", n, i)
			}
		}
		if m.k.bad != 0 || uint64(len(m.k.sent)) != u.next {
			t.Fatalf("%d of %d packets sent, %d entries invalid", len(m.k.sent), u.next, m.k.bad)
		}
	})
}

// The kernel on another core.
func TestRingsAcrossCores(t *testing.T) {
	for _, start := range starts {
		const frames, packets = 400, 30000
		m := newMemQueue(make([]byte, frames*chunk), 64, start)
		u := newUser(t, m, frames)
		var stop atomic.Bool
		done := make(chan int)
		go func() {
			rnd := rand.New(rand.NewPCG(7, 7))
			for !stop.Load() {
				m.k.receive(1+rnd.IntN(40), rnd)
				m.k.send(1 + rnd.IntN(40))
				runtime.Gosched()
			}
			m.k.send(64)
			done <- m.k.bad
		}()
		for u.next < packets {
			u.refill(len(u.free))
			u.receive()
			u.send()
			u.reclaim(64)
			u.check()
			runtime.Gosched()
		}
		stop.Store(true)
		if bad := <-done; bad != 0 {
			t.Errorf("%d invalid entries", bad)
		}
		u.check()
	}
}

// What the kernel would skip stays with the caller.
func TestTransmitTakesOnlyWhatCanBeSent(t *testing.T) {
	const frames = 64
	m := newMemQueue(make([]byte, frames*chunk), 64, 0)
	var v packet.Vector
	v.Mem, v.Links = m.k.mem, make([]packet.Link, frames)
	set := func(i int, start, size, chain uint32) {
		v.Frame[i], v.Start[i], v.Len[i], v.Total[i], v.Chain[i] = start/chunk, start, size, size, chain
	}
	v.Links[40] = packet.Link{Next: packet.NoFrame, Start: 40*chunk + 256, Len: 100}
	v.Links[41] = packet.Link{Next: packet.NoFrame, Start: 41*chunk + 256, Len: 1793} // beyond its chunk
	for f := uint32(42); f < 60; f++ {
		v.Links[f] = packet.Link{Next: f + 1, Start: f*chunk + 256, Len: 10}
	}
	v.Links[59].Next = packet.NoFrame // 18 frames, and the first
	set(0, 0*chunk+256, 60, packet.NoFrame)
	set(1, 1*chunk+256, 0, packet.NoFrame)
	set(2, 2*chunk+256, 1793, packet.NoFrame)
	set(3, 3*chunk+256, 1792, packet.NoFrame)
	set(4, 4*chunk, 2048, packet.NoFrame)
	set(5, 5*chunk+256, 60, 40)
	set(6, 6*chunk+256, 60, 41)
	set(7, 7*chunk+256, 60, 42)
	set(8, 8*chunk+256, 60, 43) // 18 frames in all
	if got, want := m.Transmit(&v, packet.All(9)), packet.Lanes(0b100111001); got != want {
		t.Errorf("taken %b, want %b", got, want)
	}
	if c := m.Census(); c.Tx != 3+2+18 {
		t.Errorf("%+v", c)
	}
	m.k.send(64)
	if m.k.bad != 0 {
		t.Errorf("%d invalid entries", m.k.bad)
	}
	m.sg = false
	if got := m.Transmit(&v, packet.Lane(0)|packet.Lane(5)); got != packet.Lane(0) {
		t.Errorf("a port without chains takes %b", got)
	}
}

// A chain of which a part is not there yet waits.
func TestHalfAPacketWaits(t *testing.T) {
	const frames = 16
	m := newMemQueue(make([]byte, frames*chunk), 16, ^uint32(0))
	u := newUser(t, m, frames)
	u.refill(16)
	put := func(f, size uint32, options uint32) {
		b := m.k.mem[f*chunk+front:]
		binary.LittleEndian.PutUint64(b[8:], uint64(size-16))
		*m.rx.at(uint(m.k.rx.own)) = desc{uint64(f*chunk + front), size, options}
		m.k.rx.own++
		atomic.StoreUint32(m.rx.prod, m.k.rx.own)
	}
	put(0, 16, contd)
	put(1, 17, contd)
	if n := m.Receive(&u.v); n != 0 || m.Census().Rx != 2 {
		t.Fatalf("%d packets of half a one", n)
	}
	put(2, 18, 0)
	u.receive()
	if u.left != 1 || u.v.Total[0] != 51 {
		t.Errorf("%b, %d bytes", u.left, u.v.Total[0])
	}
}

// One Receive answers a batch at most, in order, and chains of more descriptors than
// a batch whole.
func TestBatch(t *testing.T) {
	const frames = 32
	m := newMemQueue(make([]byte, frames*chunk), 32, ^uint32(3))
	m.batch = 2
	u := newUser(t, m, frames)
	u.refill(frames)
	for f := range uint32(8) {
		options := uint32(0)
		if f >= 2 && f < 6 {
			options = contd // frames 2 to 6 are one packet
		}
		*m.rx.at(uint(m.k.rx.own)) = desc{uint64(f*chunk + front), 16, options}
		m.k.rx.own++
		atomic.StoreUint32(m.rx.prod, m.k.rx.own)
	}
	var got [][2]uint32
	for {
		n := m.Receive(&u.v)
		if n == 0 {
			break
		}
		if n > 2 {
			t.Errorf("%d packets in a batch of 2", n)
		}
		for i := range n {
			got = append(got, [2]uint32{u.v.Frame[i], u.v.Total[i]})
		}
	}
	if want := [][2]uint32{{0, 16}, {1, 16}, {2, 80}, {7, 16}}; !slices.Equal(got, want) {
		t.Errorf("frames and lengths %v, want %v", got, want)
	}
}

func TestNoAllocations(t *testing.T) {
	const frames = 256
	m := newMemQueue(make([]byte, frames*chunk), 128, 0)
	u := newUser(t, m, frames)
	rnd, done := rand.New(rand.NewPCG(1, 2)), make([]uint32, 64)
	if n := testing.AllocsPerRun(200, func() {
		u.free = u.free[:copy(u.free, u.free[u.q.Refill(u.free):])]
		m.k.receive(64, rnd)
		n := u.q.Receive(&u.v)
		u.q.Transmit(&u.v, packet.All(n))
		m.k.send(64)
		u.free = append(u.free, done[:u.q.Reclaim(done)]...)
		u.q.Census()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The graph's side of a packet's way in and out, without the kernel's.
func BenchmarkRings(b *testing.B) {
	const frames = 256
	m := newMemQueue(make([]byte, frames*chunk), 128, 0)
	var v packet.Vector
	v.Mem, v.Links = m.k.mem, make([]packet.Link, frames)
	var f [64]uint32
	for i := range f {
		f[i] = uint32(i)
	}
	for b.Loop() {
		m.Refill(f[:])
		// The kernel: what was filled is received, what was sent is done.
		for range 64 {
			*m.rx.at(uint(m.k.rx.own)) = desc{*m.fill.at(uint(m.k.rx.own)) + front, 60, 0}
			m.k.rx.own++
		}
		*m.rx.prod, *m.fill.cons = m.k.rx.own, m.k.rx.own
		n := m.Receive(&v)
		m.Transmit(&v, packet.All(n))
		for range n {
			*m.done.at(uint(m.k.tx.own)) = m.tx.at(uint(m.k.tx.own)).addr
			m.k.tx.own++
		}
		*m.tx.cons, *m.done.prod = m.k.tx.own, m.k.tx.own
		m.Reclaim(f[:])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(64*b.N), "ns/packet")
}
