package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/bench/cputime"
	"github.com/lbgraph/lbgraph/io/packet"
)

//go:generate go tool bpf2go -target bpfel -type order -type source -type sink wire wire.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu

const (
	lanes   = 2    // LANES in wire.c
	buckets = 1024 // BUCKETS
	frame   = 60   // FRAME: 64 bytes on a wire, with the checksum
)

// times are packets by how long they were under way.
type times [buckets]uint64

// bound answers the times of bucket b in ns: from lo to less than hi. There are 32
// buckets an octave, so a bound is at most 3 % off.
func bound(b int) (lo, hi float64) {
	at := func(b int) float64 {
		if b < 32 {
			return float64(b)
		}
		e := b/32 - 1
		return float64(uint64(32+b%32) << uint(e))
	}
	return at(b), at(b + 1)
}

// bucket answers the place of a time of d ns.
func bucket(d uint32) int {
	if d < 32 {
		return int(d)
	}
	e := bits.Len32(d) - 1
	return (e-4)*32 + int(d>>uint(e-5)&31)
}

func (t *times) count() (n uint64) {
	for _, x := range t {
		n += x
	}
	return n
}

func (t *times) add(o *times) {
	for i := range t {
		t[i] += o[i]
	}
}

func (t *times) sub(o *times) {
	for i := range t {
		t[i] -= o[i]
	}
}

// quantile answers the time in ns within which a share q of the packets came, by the
// upper bound of its bucket; 0 without packets.
func (t *times) quantile(q float64) float64 {
	n := t.count()
	if n == 0 {
		return 0
	}
	want := uint64(q*float64(n) + 0.999999)
	want = min(max(want, 1), n)
	for b, x := range t {
		if want <= x {
			_, hi := bound(b)
			return hi
		}
		want -= x
	}
	return 0 // not reached: the counts add up to n
}

// wire is the source and the sink. Its interfaces are in one namespace, where its
// programs run.
type wire struct {
	objs    *ebpf.Collection
	space   *space
	links   []link.Link
	threads [lanes]atomic.Int64 // of lanes that run
	stop    atomic.Bool
	running sync.WaitGroup
	failed  atomic.Pointer[error]
}

func newWire(s *space) (*wire, error) {
	_ = rlimit.RemoveMemlock() // before Linux 5.11
	spec, err := loadWire()
	if err != nil {
		return nil, err
	}
	objs, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("loading the source: %w", err)
	}
	return &wire{objs: objs, space: s}, nil
}

// forget takes all programs off; the interfaces may be gone.
func (w *wire) forget() {
	for _, l := range w.links {
		_ = l.Close()
	}
	w.links = nil
}

// listen puts the sink on an interface.
func (w *wire) listen(index int) error {
	return w.attach(w.space, wireProgLbgraphSink, index)
}

// attach puts a program on an interface of a namespace.
func (w *wire) attach(s *space, name string, index int) error {
	return s.do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: w.objs.Programs[name], Interface: index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		w.links = append(w.links, l)
		return nil
	})
}

func (w *wire) close() {
	w.forget()
	w.objs.Close()
}

// A load is how packets come.
type load struct {
	window int     // packets under way at most, of each lane: as many as come back; 0 is
	rate   float64 // packets a second of all lanes together
	flows  int     // of each lane
}

// packetTo makes the packet that a source fills in: a TCP segment without a flag but
// ACK, of a flow that goes on.
func packetTo(mac [6]byte) (f [64]byte) {
	copy(f[:], mac[:])
	copy(f[6:], []byte{2, 0, 0, 0, 0, 1, 8, 0})
	ip := f[14:frame]
	copy(ip, []byte{0x45, 0, 0, frame - 14, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 203, 0, 113, 80})
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip[:20]))
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp[2:], 80)
	tcp[12], tcp[13] = 5<<4, packet.ACK
	binary.BigEndian.PutUint16(tcp[14:], 1024)
	sum := packet.PseudoSum(packet.Addr4(binary.BigEndian.Uint32(ip[12:])), packet.Addr4(binary.BigEndian.Uint32(ip[16:])), 6, uint32(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^packet.Fold(sum+packet.Sum(tcp)))
	return f
}

// begin has n lanes send to an interface, each on a processor of its own, until end.
func (w *wire) begin(l load, n int, device int, mac [6]byte, cpu func(lane int) int, nice int) error {
	for lane := range uint32(lanes) {
		if err := errors.Join(w.objs.Maps[wireMapSources].Put(lane, &wireSource{}), w.objs.Maps[wireMapSinks].Put(lane, &wireSink{})); err != nil {
			return err
		}
	}
	if err := w.objs.Maps[wireMapTimes].Put(uint32(0), &times{}); err != nil {
		return err
	}
	o := wireOrder{Window: uint64(l.window), Device: uint32(device), Flows: uint32(l.flows), Frame: packetTo(mac)}
	if l.window == 0 {
		o.Interval = uint64(float64(n) * 1e9 / l.rate)
		if o.Interval == 0 {
			return fmt.Errorf("%.0f packets a second are too many", l.rate)
		}
	}
	if err := errors.Join(w.objs.Maps[wireMapOrders].Put(uint32(0), &o), w.objs.Maps[wireMapGoing].Put(uint32(0), uint32(1))); err != nil {
		return err
	}
	w.stop.Store(false)
	for lane := range n {
		w.running.Add(1)
		go w.run(lane, cpu(lane), nice)
	}
	return nil
}

// run is a lane. Its thread stands in the namespace, and ends with it.
func (w *wire) run(lane, cpu, nice int) {
	defer w.running.Done()
	runtime.LockOSThread()
	err := unix.Setns(w.space.fd, unix.CLONE_NEWNET)
	if err == nil {
		err = pin(cpu)
	}
	if err == nil && nice != 0 {
		err = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
	}
	w.threads[lane].Store(int64(unix.Gettid()))
	prog := w.objs.Programs[[lanes]string{wireProgLbgraphSource0, wireProgLbgraphSource1}[lane]]
	for err == nil && !w.stop.Load() {
		// Some 30 ms where nothing is due.
		_, err = prog.Run(&ebpf.RunOptions{Data: make([]byte, frame), Repeat: 1 << 20, BatchSize: batch, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("the source: %w", err)
		w.failed.Store(&err)
	}
}

// batch is how many runs a source makes before the kernel sees what it sent.
const batch = 64

// counts is what source and sink know.
type counts struct {
	sent, received, bytes, gre uint64
	idle                       int64 // ns, of all lanes
	behind                     uint64
	times                      times
}

func (w *wire) counts() (c counts, err error) {
	for lane := range uint32(lanes) {
		var s wireSource
		var k wireSink
		// The sink first, so that nothing seems to have come that was not sent.
		if err := errors.Join(w.objs.Maps[wireMapSinks].Lookup(lane, &k), w.objs.Maps[wireMapSources].Lookup(lane, &s)); err != nil {
			return c, err
		}
		c.sent += s.Sent
		c.received += k.Packets
		c.bytes += k.Bytes
		c.gre += k.Gre
		c.idle += int64(s.Idle)
		c.behind += s.Behind
	}
	return c, w.objs.Maps[wireMapTimes].Lookup(uint32(0), &c.times)
}

// used answers the processor time of the lanes that run, in ns.
func (w *wire) used() (sum int64) {
	for i := range w.threads {
		if tid := w.threads[i].Load(); tid != 0 {
			t, _ := cputime.Thread(int(tid)) // it may have ended
			sum += t.Nanoseconds()
		}
	}
	return sum
}

// end stops sending, and waits for the lanes and for what is under way: at most
// patience without anything coming.
func (w *wire) end(patience time.Duration) (counts, error) {
	err := w.objs.Maps[wireMapGoing].Put(uint32(0), uint32(0))
	w.stop.Store(true)
	w.running.Wait()
	for i := range w.threads {
		w.threads[i].Store(0)
	}
	if f := w.failed.Swap(nil); f != nil {
		err = errors.Join(err, *f)
	}
	c, e := w.counts()
	for last := time.Now(); err == nil && e == nil && c.received < c.sent && time.Since(last) < patience; {
		time.Sleep(2 * time.Millisecond)
		was := c.received
		if c, e = w.counts(); c.received > was {
			last = time.Now()
		}
	}
	return c, errors.Join(err, e)
}
