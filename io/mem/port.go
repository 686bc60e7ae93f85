// Package mem is ports whose packets come from memory and go to memory, for tests,
// benchmarks and replay. Its Queue copies packets into frames as the kernel does
// for an AF_XDP socket; the pcap and gen ports are made of it too.
package mem

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
)

// A Packet is one that a port sent.
type Packet struct {
	Data []byte
	At   int64 // time of the vector that sent it, in nanoseconds
}

// A Port is an in-memory port. The methods that graph.Port does not have are the
// other end of its wire; they may be called from any goroutine.
type Port struct {
	info graph.PortInfo
	ends []*end
}

var _ graph.Port = (*Port)(nil)

// Open makes a port of so many queues.
func Open(cfg Config, queues int, info graph.PortInfo) (*Port, error) {
	if queues <= 0 || cfg.Chunk < 2*Front || len(cfg.Mem) < cfg.Chunk {
		return nil, fmt.Errorf("memory port %q: %d queues, chunks of %d bytes in %d", info.Name, queues, cfg.Chunk, len(cfg.Mem))
	}
	p := &Port{info: info}
	if p.info.Mode == "" {
		p.info.Mode = "memory"
	}
	for range queues {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			_ = p.Close()
			return nil, fmt.Errorf("memory port %q: eventfd: %w", info.Name, err)
		}
		e := &end{fd: fd}
		e.q = NewQueue(cfg, e, e)
		p.ends = append(p.ends, e)
	}
	return p, nil
}

// Queues is part of graph.Port.
func (p *Port) Queues() int { return len(p.ends) }

// Queue is part of graph.Port.
func (p *Port) Queue(q int) graph.Queue { return p.ends[q].q }

// Info is part of graph.Port.
func (p *Port) Info() graph.PortInfo { return p.info }

// Close is part of graph.Port. What was sent can still be read.
func (p *Port) Close() error {
	for _, e := range p.ends {
		e.mu.Lock()
		if e.fd >= 0 {
			_ = unix.Close(e.fd)
			e.fd = -1
		}
		e.mu.Unlock()
	}
	return nil
}

// Inject gives frames, which the port does not copy, to queue q, to be received
// in their order; with Config.Clock at time 0 or that of the packet before.
func (p *Port) Inject(q int, frames ...[]byte) { p.ends[q].inject(0, 1, frames) }

// InjectAt is Inject for frames that arrive at a time, in nanoseconds.
func (p *Port) InjectAt(q int, at int64, frames ...[]byte) { p.ends[q].inject(at, 1, frames) }

// Repeat gives frames to queue q, so many times over.
func (p *Port) Repeat(q, times int, frames ...[]byte) { p.ends[q].inject(0, times, frames) }

// End says that nothing more will be injected: queues are Idle once they are
// empty.
func (p *Port) End() {
	for _, e := range p.ends {
		e.mu.Lock()
		e.ended.Store(true)
		e.wake()
		e.mu.Unlock()
	}
}

// Drained tells that everything injected so far was received.
func (p *Port) Drained() bool {
	for _, e := range p.ends {
		if e.batches.Load() != 0 {
			return false
		}
	}
	return true
}

// Sent answers what queue q sent since the last call, in order.
func (p *Port) Sent(q int) []Packet {
	e := p.ends[q]
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.out
	e.out = nil
	return out
}

// SentPackets is the number of packets that the port sent since it was opened.
func (p *Port) SentPackets() (n uint64) {
	for _, e := range p.ends {
		n += e.sent.Load()
	}
	return n
}

// Discard makes the port keep nothing of what it sends but their number.
func (p *Port) Discard() {
	for _, e := range p.ends {
		e.discard.Store(true)
	}
}

// Limit makes every queue take at most n lanes in one transmit; 0 is no limit, and
// ends Stop.
func (p *Port) Limit(n int) {
	for _, e := range p.ends {
		e.q.Limit(n)
	}
}

// Stop makes all queues send nothing until Limit is called: their transmit rings
// fill.
func (p *Port) Stop() {
	for _, e := range p.ends {
		e.q.Stop()
	}
}

// Skipped is the number of packets that were too long to be received.
func (p *Port) Skipped() (n uint64) {
	for _, e := range p.ends {
		n += e.q.Skipped()
	}
	return n
}

// end is the other end of one queue's wire.
type end struct {
	q       *Queue
	cur     batch // being received; the core's own
	mu      sync.Mutex
	in      []batch // behind cur
	out     []Packet
	fd      int // eventfd that poll waits on; −1 once closed
	woken   bool
	batches atomic.Int64 // cur and in
	ended   atomic.Bool
	discard atomic.Bool
	sent    atomic.Uint64
	put     uint64 // sent, and what the flush in hand adds to it; the core's own
}

// batch is packets that were injected together.
type batch struct {
	frames [][]byte
	at     int64
	times  int // rounds left, this one included
	next   int
}

func (e *end) inject(at int64, times int, frames [][]byte) {
	if len(frames) == 0 || times <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.in = append(e.in, batch{frames: frames, at: at, times: times})
	e.batches.Add(1)
	e.wake()
}

// wake makes poll return; e.mu is held.
func (e *end) wake() {
	if !e.woken && e.fd >= 0 {
		_, err := unix.Write(e.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		e.woken = err == nil
	}
}

// Peek is part of Source.
func (e *end) Peek() (b []byte, at int64, ok bool) {
	if e.cur.times == 0 && !e.more() {
		return nil, 0, false
	}
	return e.cur.frames[e.cur.next], e.cur.at, true
}

// more begins the next batch, if there is one.
func (e *end) more() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.in) == 0 {
		if e.woken && e.fd >= 0 {
			var count [8]byte
			_, _ = unix.Read(e.fd, count[:])
			e.woken = false
		}
		return false
	}
	e.cur = e.in[0]
	e.in = e.in[:copy(e.in, e.in[1:])]
	return true
}

// Take is part of Source.
func (e *end) Take() {
	c := &e.cur
	if c.next++; c.next == len(c.frames) {
		c.next = 0
		if c.times--; c.times == 0 {
			c.frames = nil
			e.batches.Add(-1)
		}
	}
}

// Done is part of Source.
func (e *end) Done() bool { return e.ended.Load() && e.batches.Load() == 0 }

// FD is what poll waits on.
func (e *end) FD() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fd
}

// Put is part of Sink.
func (e *end) Put(b []byte, at int64) bool {
	e.put++
	if !e.discard.Load() {
		e.mu.Lock()
		e.out = append(e.out, Packet{append([]byte(nil), b...), at})
		e.mu.Unlock()
	}
	return true
}

// Flushed tells the other side what was sent: once a flush, for an atomic store
// costs as much as all else that is done to a short packet.
func (e *end) Flushed() { e.sent.Store(e.put) }
