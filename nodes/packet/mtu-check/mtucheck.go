// Package mtucheck is the kind "mtu-check": what is too long for the tunnel is
// answered with an ICMP error, fragmented before it is encapsulated, or dropped.
package mtucheck

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of mtu-check.
type Config struct {
	ICMPRate  int    `hcl:"icmp_rate,optional" range:"0,1000000" doc:"errors sent a second, all cores together; 0 sends none and has no output reply"`
	ICMPBurst int    `hcl:"icmp_burst,optional" range:"1,1000000" doc:"errors sent at once"`
	Oversize  string `hcl:"oversize,optional" enum:"fragment,drop" doc:"what becomes of long IPv4 packets that may be fragmented"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "mtu-check",
		Summary: "answers, fragments or drops packets that are too long for the tunnel",
		Needs:   graph.L3 | graph.Backend,
		Forbids: graph.Sent,
		Outputs: []graph.Output{
			next:        {Name: "next", Removes: graph.L4, Doc: "packets that fit, and the pieces of those that were fragmented"},
			tooBig:      {Name: "too_big", Else: graph.Drop, Doc: "too long, and neither to be fragmented nor to be answered"},
			icmpLimited: {Name: "icmp_limited", Else: graph.Drop, Doc: "too long, and too many errors were sent just now"},
			noFrame:     {Name: "no_frame", Else: graph.Drop, Doc: "no free frames for the pieces"},
		},
		OutputsOf: func(c Config) []graph.Output {
			if c.ICMPRate == 0 {
				return nil
			}
			return []graph.Output{{
				Name: "reply", Gives: graph.Outbound | graph.ICMP, Removes: graph.L4 | graph.Fragment | graph.Flow | graph.VIP | graph.Backend,
				Reply: true, Doc: "errors to the senders of packets that were too long",
			}}
		},
		Counters: []graph.Counter{
			fragmented: {Name: "fragmented", Doc: "packets that were fragmented"},
			pieces:     {Name: "pieces", Doc: "fragments made of them, the first ones included"},
		},
		TakesOverhead: true,
		Guards:        true,
		Frames: func(c Config) (holds, makes int) {
			if c.Oversize == "fragment" {
				return 0, 128
			}
			return 0, 0
		},
		Defaults: Config{ICMPRate: 100, ICMPBurst: 10, Oversize: "fragment"},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			s := &shared{env: env, bucket: packet.NewBucket(c.ICMPRate, c.ICMPBurst)}
			env.Watch(s.learn)
			return func(core graph.Core) (graph.Node, error) {
				return &worker{Core: core, shared: s, fragment: c.Oversize == "fragment", answer: c.ICMPRate > 0}, nil
			}, nil
		},
	})
}

// Output numbers; reply follows where there is one.
const (
	next = iota
	tooBig
	icmpLimited
	noFrame
	reply
)

// Counter numbers.
const (
	fragmented = iota
	pieces
)

// shared is what the workers of all cores have in common.
type shared struct {
	env    *graph.Env
	bucket *packet.Bucket
	least  atomic.Uint32 // the smallest inner MTU of any backend
}

// learn notes the length up to which a packet needs no look at its backend.
func (s *shared) learn(snap *state.Snapshot) {
	least := s.env.MTU
	for i := range snap.Backends {
		if b := &snap.Backends[i]; b.Addr.IsValid() {
			least = min(least, s.env.InnerMTU(b))
		}
	}
	s.least.Store(uint32(least))
}

type worker struct {
	graph.Core
	*shared
	fragment, answer bool
	id               uint16        // of the last error
	piece            packet.Record // the one in hand; on the stack it would escape
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	long := packet.Above(&v.IPLen, w.least.Load(), in)
	out[next] = in &^ long
	if long == 0 {
		return
	}
	var ask packet.Lanes
	backends := w.State().Backends
	for ; long != 0; long &= long - 1 {
		i := long.Next() & 63
		output := next
		if mtu := w.mtu(backends, v.Backend[i]); v.IPLen[i] > mtu {
			output = w.oversize(v, i, mtu)
		}
		if output == reply {
			ask |= packet.Lane(i)
			continue
		}
		out[output] |= packet.Lane(i)
	}
	for n := w.bucket.Take(w.Now(), ask.Count()); n > 0; n-- {
		i := ask.Next() & 63
		w.tell(v, i, w.mtu(backends, v.Backend[i]))
		out[reply] |= packet.Lane(i)
		ask &= ask - 1
	}
	out[icmpLimited] = ask
}

// mtu answers up to which length a packet goes to backend b in one piece.
func (w *worker) mtu(backends []state.Backend, b uint32) uint32 {
	if int(b) < len(backends) {
		return uint32(w.env.InnerMTU(&backends[b]))
	}
	return uint32(w.env.MTU - max(w.env.Overhead4, w.env.Overhead6))
}

// oversize deals with lane i, whose packet is longer than mtu, and answers its output;
// reply for one whose sender is to be told, if the limit allows it.
func (w *worker) oversize(v *packet.Vector, i int, mtu uint32) int {
	if v.Flags[i]&(packet.V6|packet.DF) == 0 {
		if !w.fragment {
			return tooBig
		}
		return w.split(v, i, mtu)
	}
	if !w.answer || !v.Answerable(i) {
		return tooBig
	}
	return reply
}

// tell makes the error about lane i, of which mtu bytes go in one piece.
func (w *worker) tell(v *packet.Vector, i int, mtu uint32) {
	w.Unchain(v, i)
	base, size := w.Chunk(v.Frame[i])
	room := base + size - v.Start[i]
	if v.Flags[i]&packet.V6 != 0 {
		// RFC 8200 §5: less than 1280 is not heeded.
		v.MakeError(i, packet.ICMP6TooBig, 0, max(mtu, 1280), 0, room)
	} else {
		w.id++
		v.MakeError(i, packet.ICMPUnreachable, packet.CodeFragNeeded, mtu, w.id, room)
	}
}

// front is where the packets of made frames begin in their chunk: as far from the beginning as
// received ones do, so that there is as much room for headers.
const front = packet.RecordSize + packet.MaxHeadroom

// split fragments the IPv4 packet of lane i (RFC 791 §3.2): its first piece stays the lane,
// the others become frames that go on behind next. It answers the lane's output. Either all
// pieces are made or none.
func (w *worker) split(v *packet.Vector, i int, mtu uint32) int {
	be := binary.BigEndian
	l3, total := uint32(v.L3[i]), v.IPLen[i]
	b := v.Bytes(i)
	head := uint32(b[l3]&0xf) * 4
	word := be.Uint16(b[l3+6:])

	// The header of the pieces behind the first, with the options that each must carry.
	var later [60]byte
	copy(later[:packet.IPv4Len], b[l3:])
	laterHead := packet.IPv4Len + copied(later[packet.IPv4Len:], b[l3+packet.IPv4Len:l3+head])
	later[0] = 0x40 | byte(laterHead/4)

	// A piece is no longer than what stands in the lane's first frame, or fits a new one.
	_, chunk := w.Chunk(v.Frame[i])
	mtu = min(mtu, v.Len[i]-l3, chunk-front-l3)
	if mtu < head+8 {
		return tooBig
	}
	first, each := (mtu-head)&^7, (mtu-laterHead)&^7
	data := total - head
	n := 0 // of new frames
	for at := first; at < data; at += each {
		n++
	}
	var frames [packet.Size * 2]uint32
	if n > len(frames) {
		return tooBig
	}
	for k := range frames[:n] {
		f, ok := w.Alloc()
		if !ok {
			for _, f := range frames[:k] {
				w.Free(f)
			}
			return noFrame
		}
		frames[k] = f
	}

	r := &w.piece
	v.Save(i, r)
	r.Chain = packet.NoFrame
	r.L4 = uint16(l3 + laterHead)
	r.Flags = r.Flags&^packet.First | packet.Later
	r.ID, r.TCP = uint32(be.Uint16(b[l3+4:])), 0
	from := cursor{v: v, rest: b[l3+head+first:], chain: v.Chain[i]}
	at := first
	for k, f := range frames[:n] {
		part := min(each, data-at)
		flags := word&^packet.IPv4Offset | packet.IPv4MF
		if k == n-1 {
			flags = word &^ packet.IPv4Offset // its own bit: the packet may be a fragment itself
		}
		base, _ := w.Chunk(f)
		r.Frame, r.Start = f, base+front
		r.IPLen = laterHead + part
		r.Len = l3 + r.IPLen
		r.Total = r.Len
		p := v.Mem[r.Start : r.Start+r.Len]
		copy(p, b[:l3])
		h := p[l3 : l3+laterHead]
		copy(h, later[:])
		seal(h, r.IPLen, flags, word&packet.IPv4Offset+uint16(at/8))
		from.read(p[l3+laterHead:])
		w.Emit(r, next)
		at += part
	}

	w.Unchain(v, i)
	seal(b[l3:l3+head], head+first, word&^packet.IPv4Offset|packet.IPv4MF, word&packet.IPv4Offset)
	v.IPLen[i] = head + first
	v.Len[i] = l3 + head + first
	v.Total[i] = v.Len[i]
	w.Count(fragmented, 1)
	w.Count(pieces, uint64(n)+1)
	return next
}

// seal sets length, flags, offset and checksum of the IPv4 header h.
func seal(h []byte, total uint32, flags, offset uint16) {
	binary.BigEndian.PutUint16(h[2:], uint16(total))
	binary.BigEndian.PutUint16(h[6:], flags|offset)
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], packet.Checksum(h))
}

// copied writes the options that every fragment carries (RFC 791 §3.1: those with the copied flag,
// the upper bit of their type) to dst, padded with zeros to whole words, and answers
// their length. Options that do not parse end the list.
func copied(dst, options []byte) uint32 {
	n := 0
	for len(options) > 1 && options[0] != 0 {
		if options[0] == 1 { // no operation
			options = options[1:]
			continue
		}
		size := int(options[1])
		if size < 2 || size > len(options) {
			break
		}
		if options[0]&0x80 != 0 {
			n += copy(dst[n:], options[:size])
		}
		options = options[size:]
	}
	return uint32(n+3) &^ 3
}

// A cursor reads a packet's bytes on through the frames of its chain.
type cursor struct {
	v     *packet.Vector
	rest  []byte
	chain uint32
}

// read fills p. The caller knows that there is enough.
func (c *cursor) read(p []byte) {
	for {
		n := copy(p, c.rest)
		p, c.rest = p[n:], c.rest[n:]
		if len(p) == 0 || c.chain == packet.NoFrame {
			return
		}
		l := &c.v.Links[c.chain]
		c.rest, c.chain = c.v.Mem[l.Start:l.Start+l.Len], l.Next
	}
}

// Trace is part of graph.Tracer.
func (w *worker) Trace(v *packet.Vector, i int) string {
	backends := w.State().Backends
	if b := int(v.Backend[i&63]); b != 0 && b < len(backends) {
		return fmt.Sprintf("%d bytes; up to %d go to %v in one piece", v.IPLen[i&63], w.env.InnerMTU(&backends[b]), backends[b].Addr)
	}
	return fmt.Sprintf("%d bytes", v.IPLen[i&63])
}
