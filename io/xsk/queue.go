package xsk

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// maxFrames is the number of frames that a packet to be sent may be spread over:
// what the kernel takes on a socket in copy mode (MAX_SKB_FRAGS and the head).
const maxFrames = 18

// A Queue is the AF_XDP socket of one queue. Its methods are those of graph.Queue:
// all come from one core, but for Stats.
type Queue struct {
	rx, tx     ring[desc]
	fill, done ring[uint64] // done is the completion ring

	fd    int
	shift uint8  // log2 of the size of a chunk
	chunk uint32 // size of a chunk
	sg    bool   // packets may be chains
	batch int    // packets that Receive answers at most
	poll  unix.PollFd
	now   unix.Timespec // 0
}

var _ graph.Queue = (*Queue)(nil)

// Receive is part of graph.Queue.
func (q *Queue) Receive(v *packet.Vector) (n int) {
	r := &q.rx
	most := q.batch
	avail := uint(r.ready(packet.Size)) // a chain may be longer than a batch
	slot, own, shift, used := r.slot, uint(r.own), q.shift&63, uint(0)
	if len(slot) == 0 {
		return 0
	}
	for n < packet.Size && n < most && used < avail {
		d := &slot[(own+used)&uint(len(slot)-1)]
		addr, size, more := d.addr, d.len, d.options&contd != 0
		v.Frame[n], v.Start[n] = uint32(addr>>shift), uint32(addr)
		v.Len[n], v.Total[n], v.Chain[n] = size, size, packet.NoFrame
		if used++; more {
			frames := q.chain(v, n, used, avail)
			if frames == 0 {
				used-- // the rest of the packet is still to come
				break
			}
			used += frames
		}
		n++
	}
	if used > 0 {
		r.release(uint32(used))
	}
	return n
}

// chain enters the rest of the packet in lane n, whose descriptors begin at used, in
// v.Links, and answers how many there are, or 0 if they are not all there.
func (q *Queue) chain(v *packet.Vector, n int, used, avail uint) (more uint) {
	next := &v.Chain[n&63]
	for used+more < avail {
		d := q.rx.at(uint(q.rx.own) + used + more)
		more++
		f := uint32(d.addr >> q.shift)
		*next = f
		l := &v.Links[f]
		l.Next, l.Start, l.Len = packet.NoFrame, uint32(d.addr), d.len
		next = &l.Next
		v.Total[n&63] += d.len
		if d.options&contd == 0 {
			return more
		}
	}
	return 0
}

// Transmit is part of graph.Queue. Besides what it has no room for, it does not
// take what the kernel could not send: frames of no length or beyond their chunk,
// chains of more than 18 frames, and any chain if the port was opened for frames
// that fit a chunk. The kernel would skip those and never give them back.
func (q *Queue) Transmit(v *packet.Vector, lanes packet.Lanes) (taken packet.Lanes) {
	t := &q.tx
	room, n := uint(t.room(packet.Size)), uint(0)
	slot, own, chunk := t.slot, uint(t.own), q.chunk
	if len(slot) == 0 {
		return 0
	}
	for l := lanes; l != 0; l &= l - 1 {
		i := l.Next() & 63
		start, size, chain := v.Start[i], v.Len[i], v.Chain[i]
		if !fits(start, size, chunk) {
			continue
		}
		if n >= room {
			break
		}
		d := &slot[(own+n)&uint(len(slot)-1)]
		if chain == packet.NoFrame {
			*d = desc{uint64(start), size, 0}
			n++
		} else {
			more := q.check(v, chain)
			if more == 0 {
				continue
			}
			if n+1+more > room {
				if room = uint(t.room(int(n + 1 + more))); n+1+more > room {
					break
				}
			}
			*d = desc{uint64(start), size, contd}
			n++
			for f := chain; f != packet.NoFrame; n++ {
				k := &v.Links[f]
				d := t.at(own + n)
				*d = desc{addr: uint64(k.Start), len: k.Len}
				if f = k.Next; f != packet.NoFrame {
					d.options = contd
				}
			}
		}
		taken |= packet.Lane(i)
	}
	if n > 0 {
		t.publish(uint32(n))
	}
	return taken
}

func fits(start, size, chunk uint32) bool {
	return size-1 < chunk && start&(chunk-1)+size <= chunk
}

// check answers the number of frames from f on, 0 if they cannot be sent.
func (q *Queue) check(v *packet.Vector, f uint32) (n uint) {
	if !q.sg {
		return 0
	}
	for ; f != packet.NoFrame; n++ {
		k := &v.Links[f]
		if n == maxFrames-1 || !fits(k.Start, k.Len, q.chunk) {
			return 0
		}
		f = k.Next
	}
	return n
}

// Flush is part of graph.Queue.
func (q *Queue) Flush() {
	if q.fill.wakes() && q.fill.own != atomic.LoadUint32(q.fill.cons) {
		// Only zero-copy drivers ask. Poll is the one call that looks at both rings; of
		// its answer nothing is wanted.
		q.poll = unix.PollFd{Fd: int32(q.fd), Events: unix.POLLIN | unix.POLLOUT}
		_, _, _ = unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&q.poll)), 1, uintptr(unsafe.Pointer(&q.now)), 0, 0, 0)
		return
	}
	// What the kernel left for want of memory, or beyond its budget, counts too.
	if q.tx.wakes() && q.tx.own != atomic.LoadUint32(q.tx.cons) {
		// An error is the kernel's "later": what it did not take stays in the ring.
		_, _, _ = unix.Syscall6(unix.SYS_SENDTO, uintptr(q.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
}

// Refill is part of graph.Queue.
func (q *Queue) Refill(free []uint32) (n int) {
	r := &q.fill
	n = min(len(free), r.room(len(free)))
	slot, own, shift := r.slot, uint(r.own), q.shift&63
	if n <= 0 || len(slot) == 0 {
		return 0
	}
	for i, f := range free[:n] {
		slot[(own+uint(i))&uint(len(slot)-1)] = uint64(f) << shift
	}
	r.publish(uint32(n))
	return n
}

// Reclaim is part of graph.Queue.
func (q *Queue) Reclaim(done []uint32) (n int) {
	r := &q.done
	n = min(len(done), r.ready(len(done)))
	slot, own, shift := r.slot, uint(r.own), q.shift&63
	if n <= 0 || len(slot) == 0 {
		return 0
	}
	for i := range done[:n] {
		done[i] = uint32(slot[(own+uint(i))&uint(len(slot)-1)] >> shift)
	}
	r.release(uint32(n))
	return n
}

// Census is part of graph.Queue. Frames that the kernel has in hand count where
// they came from, as fill and transmit, so the sum holds at every moment.
func (q *Queue) Census() graph.Census {
	rx, done := atomic.LoadUint32(q.rx.prod), atomic.LoadUint32(q.done.prod)
	return graph.Census{
		Fill: int(q.fill.own - rx), Rx: int(rx - q.rx.own),
		Tx: int(q.tx.own - done), Completion: int(done - q.done.own),
	}
}

// FD is part of graph.Queue.
func (q *Queue) FD() int { return q.fd }

// Idle is part of graph.Queue: an interface never ends.
func (q *Queue) Idle() bool { return false }
