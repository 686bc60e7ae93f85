package mem

import (
	"sync/atomic"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Front is the offset of a received packet's first byte in its chunk, as the
// kernel's AF_XDP leaves it.
const Front = 256

// MaxFrames is the number of frames that a packet may be spread over: what the
// kernel allows a packet on an AF_XDP socket (MAX_SKB_FRAGS and the head).
const MaxFrames = 18

// A Source is where the packets come from that a Queue receives. Its methods are
// called by the queue's core.
type Source interface {
	// Peek answers the next packet and its time in nanoseconds without taking it.
	// The bytes are valid until Take. ok is false when there is none now.
	Peek() (b []byte, at int64, ok bool)
	// Take takes the packet that Peek answered.
	Take()
	// Done tells that no packet will come any more.
	Done() bool
}

// A Sink is where the packets go to that a Queue sends. It is called by the
// queue's core.
type Sink interface {
	// Put takes a packet, whose bytes are valid during the call, and the time of
	// the vector that sent it. ok is false when it cannot: then the queue takes
	// nothing more to send, and asks again for the same packet at the next Flush.
	Put(b []byte, at int64) (ok bool)
	// Flushed is called when a flush has put all it can.
	Flushed()
}

// Config is what a Queue is made with.
type Config struct {
	Mem   []byte // the memory that frames are chunks of
	Chunk int    // size of a chunk in bytes, at least 512
	Rings int    // entries of each ring; 0 is 2048
	// Clock makes a packet's time the vector's: then a vector holds packets of one
	// time only, and time does not run backwards.
	Clock bool
	// Poison fills what a received packet leaves of its chunk with 0xFF, so that
	// what reads or trusts bytes around a packet shows.
	Poison bool
	// Admit decides on every packet before it takes a frame, as the XDP program does
	// in front of a socket: what it refuses is not received. nil takes everything.
	// It may be asked more than once about a packet that it admits.
	Admit func(b []byte) bool
}

// A Queue copies packets from a Source into frames and from frames to a Sink, and
// keeps frames as an AF_XDP socket does: free ones in a fill ring, sent ones in a
// transmit ring until Flush and in a completion ring until Reclaim. All methods of
// graph.Queue come from one core.
type Queue struct {
	cfg  Config
	src  Source // nil: nothing comes
	dst  Sink   // nil: nothing is taken to send
	last int64  // time of the latest vector, with Clock

	fill  []uint32
	tx    []sent
	done  []uint32
	inTx  int // frames in tx
	links []packet.Link
	whole []byte // a chained packet in one piece

	stuck   bool         // the sink takes nothing
	take    atomic.Int32 // lanes that one Transmit takes at most, 0 is all; −1 stops the wire
	skipped atomic.Uint64
}

// sent is a packet in the transmit ring.
type sent struct {
	frame, start, len, chain uint32
	at                       int64
}

var _ graph.Queue = (*Queue)(nil)

// NewQueue makes a queue between src and dst; either may be nil.
func NewQueue(cfg Config, src Source, dst Sink) *Queue {
	if cfg.Rings == 0 {
		cfg.Rings = 2048
	}
	return &Queue{
		cfg: cfg, src: src, dst: dst,
		fill: make([]uint32, 0, cfg.Rings), tx: make([]sent, 0, cfg.Rings), done: make([]uint32, 0, cfg.Rings),
		whole: make([]byte, MaxFrames*cfg.Chunk),
	}
}

// Limit makes one Transmit take at most n lanes; 0 is no limit. It may be called
// from any goroutine.
func (q *Queue) Limit(n int) { q.take.Store(int32(max(n, 0))) }

// Stop makes the queue send nothing until Limit is called: its transmit ring fills.
// It may be called from any goroutine.
func (q *Queue) Stop() { q.take.Store(-1) }

// Skipped is the number of packets that were not received because they are longer
// than MaxFrames frames hold. It may be called from any goroutine.
func (q *Queue) Skipped() uint64 { return q.skipped.Load() }

// Receive is part of graph.Queue. A packet longer than a chunk less Front is
// spread over several frames. A packet for which there are too few frames waits.
func (q *Queue) Receive(v *packet.Vector) (n int) {
	if q.src == nil {
		return 0
	}
	room := q.cfg.Chunk - Front
	for n < packet.Size {
		b, at, ok := q.src.Peek()
		if !ok {
			break
		}
		if q.cfg.Admit != nil && !q.cfg.Admit(b) {
			q.src.Take()
			continue
		}
		frames := 1
		if len(b) > room {
			frames = (len(b) + room - 1) / room
			if frames > MaxFrames {
				q.skipped.Add(1)
				q.src.Take()
				continue
			}
		}
		if frames > len(q.fill) {
			break
		}
		if q.cfg.Clock {
			at = max(at, q.last)
			if n == 0 {
				v.Now, q.last = at, at
			} else if at != v.Now {
				break
			}
		}
		f, start, part := q.put(b, room)
		v.Frame[n], v.Start[n], v.Len[n], v.Total[n], v.Chain[n] = f, start, uint32(part), uint32(len(b)), packet.NoFrame
		if frames > 1 {
			v.Chain[n] = q.chain(v.Links, b[part:], room)
		}
		q.src.Take()
		n++
	}
	return n
}

// put copies the beginning of b to a frame from the fill ring.
func (q *Queue) put(b []byte, room int) (f, start uint32, n int) {
	f = q.fill[len(q.fill)-1]
	q.fill = q.fill[:len(q.fill)-1]
	base := int(f) * q.cfg.Chunk
	chunk := q.cfg.Mem[base : base+q.cfg.Chunk]
	n = copy(chunk[Front:], b[:min(len(b), room)])
	if q.cfg.Poison {
		for i := range chunk {
			if i < Front || i >= Front+n {
				chunk[i] = 0xff
			}
		}
	}
	return f, uint32(base + Front), n
}

// chain spreads b over frames and answers the first.
func (q *Queue) chain(links []packet.Link, b []byte, room int) (first uint32) {
	prev := packet.NoFrame
	for first = packet.NoFrame; len(b) > 0; {
		f, start, n := q.put(b, room)
		links[f] = packet.Link{Next: packet.NoFrame, Start: start, Len: uint32(n)}
		if prev == packet.NoFrame {
			first = f
		} else {
			links[prev].Next = f
		}
		prev, b = f, b[n:]
	}
	return first
}

// Transmit is part of graph.Queue.
func (q *Queue) Transmit(v *packet.Vector, lanes packet.Lanes) (taken packet.Lanes) {
	limit := int(q.take.Load())
	if limit <= 0 {
		limit = packet.Size
	}
	if q.stuck || q.dst == nil {
		return 0
	}
	q.links = v.Links
	for l := lanes; l != 0; l &= l - 1 {
		i := l.Next() & 63
		frames := 1
		for f := v.Chain[i]; f != packet.NoFrame; f = v.Links[f].Next {
			frames++
		}
		if taken.Count() >= limit || q.inTx+len(q.done)+frames > q.cfg.Rings {
			break
		}
		q.tx = append(q.tx, sent{v.Frame[i], v.Start[i], v.Len[i], v.Chain[i], v.Now})
		q.inTx += frames
		taken |= packet.Lane(i)
	}
	return taken
}

// Flush is part of graph.Queue: it gives what Transmit took to the sink.
func (q *Queue) Flush() {
	if q.take.Load() < 0 || len(q.tx) == 0 {
		return
	}
	n := 0
	for ; n < len(q.tx); n++ {
		p := &q.tx[n]
		b := q.cfg.Mem[p.start : p.start+p.len]
		if p.chain != packet.NoFrame {
			w := append(q.whole[:0], b...)
			for f := p.chain; f != packet.NoFrame; f = q.links[f].Next {
				w = append(w, q.cfg.Mem[q.links[f].Start:q.links[f].Start+q.links[f].Len]...)
			}
			b = w
		}
		if q.stuck = !q.dst.Put(b, p.at); q.stuck {
			break
		}
		q.done = append(q.done, p.frame)
		q.inTx--
		for f := p.chain; f != packet.NoFrame; f = q.links[f].Next {
			q.done = append(q.done, f)
			q.inTx--
		}
	}
	q.tx = q.tx[:copy(q.tx, q.tx[n:])]
	q.dst.Flushed()
}

// Refill is part of graph.Queue.
func (q *Queue) Refill(free []uint32) (n int) {
	n = min(len(free), q.cfg.Rings-len(q.fill))
	q.fill = append(q.fill, free[:n]...)
	return n
}

// Reclaim is part of graph.Queue.
func (q *Queue) Reclaim(done []uint32) (n int) {
	n = min(len(done), len(q.done))
	rest := len(q.done) - n
	copy(done, q.done[rest:])
	q.done = q.done[:rest]
	return n
}

// Census is part of graph.Queue. A packet takes its frame when it is received, so
// nothing is ever in Rx.
func (q *Queue) Census() graph.Census {
	return graph.Census{Fill: len(q.fill), Tx: q.inTx, Completion: len(q.done)}
}

// FD is part of graph.Queue.
func (q *Queue) FD() int {
	if f, ok := q.src.(interface{ FD() int }); ok {
		return f.FD()
	}
	return -1
}

// Idle is part of graph.Queue.
func (q *Queue) Idle() bool { return q.src == nil || q.src.Done() }
