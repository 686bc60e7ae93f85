// Package mssclamp is the kind "mss-clamp": it lowers the maximum segment size that
// a TCP SYN offers to what fits through the tunnel.
package mssclamp

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of mss-clamp.
type Config struct {
	Insert bool `hcl:"insert,optional" doc:"add the option to a SYN that has none"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "mss-clamp",
		Summary: "lowers the maximum segment size in TCP SYNs to what fits through the tunnel",
		Needs:   graph.L3 | graph.Backend,
		Forbids: graph.Sent,
		Outputs: []graph.Output{{Name: "next", Doc: "all packets"}},
		Counters: []graph.Counter{
			clamped:   {Name: "clamped", Doc: "SYNs whose MSS was lowered"},
			noMSS:     {Name: "no_mss", Doc: "SYNs without an MSS option"},
			inserted:  {Name: "inserted", Doc: "SYNs that were given an MSS option"},
			malformed: {Name: "malformed", Doc: "SYNs with options that do not parse, left as they are"},
		},
		Headroom:      optionLen,
		TakesOverhead: true,
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			mtus := &atomic.Pointer[[]int32]{}
			env.Watch(func(s *state.Snapshot) {
				all := make([]int32, len(s.Backends))
				for b := range all {
					all[b] = int32(env.InnerMTU(&s.Backends[b]))
				}
				mtus.Store(&all)
			})
			return func(core graph.Core) (graph.Node, error) {
				return &worker{core: core, mtus: mtus, insert: c.Insert, lanes: hasLanes}, nil
			}, nil
		},
	})
}

// Counter numbers.
const (
	clamped = iota
	noMSS
	inserted
	malformed
)

// Kinds of TCP options (RFC 9293 §3.1), and the length of the one in question.
const (
	kindEnd   = 0
	kindNop   = 1
	kindMSS   = 2
	optionLen = 4
)

// What a receiver has to assume where no option says more (RFC 9293 §3.7.1).
const (
	defaultMSS4 = 536
	defaultMSS6 = 1220
)

type worker struct {
	core   graph.Core
	mtus   *atomic.Pointer[[]int32] // by backend: bytes of the largest IP packet that the tunnel takes
	insert bool
	lanes  bool // clampLanes does for most SYNs
	// Of the vector in hand.
	mtu    [packet.Size]int32 // by lane; 0 if the backend is unknown
	counts [malformed + 1]uint64
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	l := syns(v) & in
	if l == 0 {
		return
	}
	w.counts = [len(w.counts)]uint64{}
	mtus := *w.mtus.Load()
	if w.lanes {
		l, w.counts[clamped] = clampLanes(v, l, mtus)
	}
	if l != 0 {
		w.each(v, l, mtus)
	}
	for c, n := range w.counts {
		if n > 0 {
			w.core.Count(c, n)
		}
	}
}

// each clamps the SYNs in lanes l.
func (w *worker) each(v *packet.Vector, l packet.Lanes, mtus []int32) {
	// Two loops: in one, each look into the table waits behind the packet before.
	for m := l; m != 0; m &= m - 1 {
		i := m.Next() & 63
		w.mtu[i] = 0
		if b := uint64(v.Backend[i]); b < uint64(len(mtus)) {
			w.mtu[i] = mtus[b]
		}
		if w.mtu[i] == 0 {
			l &^= packet.Lane(i)
		}
	}
	for l = w.plain(v, l); l != 0; l &= l - 1 {
		i := l.Next() & 63
		w.clamp(v, i, int(w.mtu[i]))
	}
}

// syns answers all lanes with a SYN bit in their TCP column, eight at a time: seven of
// eight packets and more are none and must cost next to nothing.
func syns(v *packet.Vector) (l packet.Lanes) {
	for i := 0; i < packet.Size; i += 8 {
		w := binary.LittleEndian.Uint64(v.TCP[i:]) / packet.SYN & 0x0101010101010101
		// Bit 8k goes to bit 56+k.
		l |= packet.Lanes(w*0x0102040810204080>>56) << i
	}
	return l
}

// What most SYNs are: over IPv4 without options.
const (
	usualL4 = packet.EtherLen + packet.IPv4Len
	unusual = packet.V6 | packet.Later | packet.Related
)

// plain clamps the SYNs in lanes l that are what most are: over IPv4 without options, with
// the options of usual. It answers the others, to be clamped by clamp.
func (w *worker) plain(v *packet.Vector, l packet.Lanes) (rest packet.Lanes) {
	const l4 = usualL4
	le := binary.LittleEndian
	for ; l != 0; l &= l - 1 {
		i := l.Next() & 63
		n := v.Len[i]
		if v.L4[i] != l4 || v.Flags[i]&unusual != 0 || v.Proto[i] != packet.ProtoTCP || n < l4+packet.TCPLen+optionLen {
			rest |= packet.Lane(i)
			continue
		}
		// No byte behind the first option is read before n vouches for it.
		h := (*[40]byte)(v.Ptr(i, l4))
		size := uint32(h[12] >> 4 * 4)
		if size > n-l4 || !usual(h, size) {
			rest |= packet.Lane(i)
			continue
		}
		limit := w.mtu[i] - packet.IPv4Len - packet.TCPLen
		if mss := le.Uint16(h[22:]); int32(bits.ReverseBytes16(mss)) > limit {
			// The sum is the same with the bytes of all words exchanged (RFC 1071 §1).
			less := bits.ReverseBytes16(uint16(limit))
			le.PutUint16(h[22:], less)
			le.PutUint16(h[16:], packet.Update16(le.Uint16(h[16:]), mss, less))
			w.counts[clamped]++
		}
	}
	return rest
}

// clamp changes the SYN in lane i, whose backend takes IP packets of up to mtu bytes.
func (w *worker) clamp(v *packet.Vector, i, mtu int) {
	if v.Flags[i]&(packet.Later|packet.Related) != 0 || v.Proto[i] != packet.ProtoTCP {
		return
	}
	limit, assumed := mtu-packet.IPv4Len-packet.TCPLen, defaultMSS4
	if v.Flags[i]&packet.V6 != 0 {
		limit, assumed = mtu-packet.IPv6Len-packet.TCPLen, defaultMSS6
	}
	l4, n := uint32(v.L4[i]), v.Len[i]
	if l4+packet.TCPLen > n {
		return
	}
	h := unsafe.Slice((*byte)(v.Ptr(i, l4)), n-l4)
	size := int(h[12]>>4) * 4
	if size < packet.TCPLen || size > len(h) {
		return
	}
	// Options are read to their end before anything is changed, so that a SYN
	// stays as it was, or is changed whole. An MSS may come more than once, and which
	// one counts is up to the receiver: all are lowered.
	var found uint64 // offsets of values, as bits
	for at := packet.TCPLen; at < size && h[at] != kindEnd; {
		if h[at] == kindNop {
			at++
			continue
		}
		if at+2 > size || h[at+1] < 2 || at+int(h[at+1]) > size || h[at] == kindMSS && h[at+1] != optionLen {
			v.Flags[i] |= packet.Malformed
			w.counts[malformed]++
			return
		}
		if h[at] == kindMSS {
			found |= 1 << (at + 2)
		}
		at += int(h[at+1])
	}
	if found == 0 {
		w.counts[noMSS]++
		// Behind a first fragment everything would move.
		if w.insert && size+optionLen <= 60 && v.Flags[i]&packet.First == 0 && int(v.IPLen[i])+optionLen <= mtu {
			insert(v, i, uint16(min(limit, assumed)))
			w.counts[inserted]++
		}
		return
	}
	lowered := uint64(0)
	for ; found != 0; found &= found - 1 {
		at := bits.TrailingZeros64(found)
		old := binary.BigEndian.Uint16(h[at:])
		if int(old) <= limit {
			continue
		}
		lowered = 1
		binary.BigEndian.PutUint16(h[at:], uint16(limit))
		was, is := old, uint16(limit)
		if at&1 != 0 {
			was, is = bits.ReverseBytes16(was), bits.ReverseBytes16(is)
		}
		binary.BigEndian.PutUint16(h[16:], packet.Update16(binary.BigEndian.Uint16(h[16:]), was, is))
	}
	w.counts[clamped] += lowered
}

// usual tells whether the options of the TCP header h of size bytes are an MSS in front,
// and behind it nothing, or what Linux or Windows send: SYNs of most clients.
func usual(h *[40]byte, size uint32) bool {
	be := binary.BigEndian
	switch size {
	case 24: // MSS
		return be.Uint16(h[20:]) == 0x0204
	case 32: // MSS, NOP, window scale, NOP, NOP, SACK permitted
		return be.Uint64(h[20:])&^0xffff_0000_00ff == 0x0204_0000_0103_0300 && be.Uint32(h[28:]) == 0x0101_0402
	case 40: // MSS, SACK permitted, timestamps, NOP, window scale
		return be.Uint64(h[20:])&^0xffff_0000_0000 == 0x0204_0000_0402_080a && be.Uint32(h[36:])&^0xff == 0x0103_0300
	}
	return false
}

// insert puts an MSS option in front of the other options of lane i: what stands before
// moves into the headroom, so that no data is copied.
func insert(v *packet.Vector, i int, mss uint16) {
	be := binary.BigEndian
	head := int(v.L4[i]) + packet.TCPLen
	b := v.Push(i, optionLen)
	copy(b, b[optionLen:optionLen+head])
	v.IPLen[i] += optionLen
	h := b[v.L4[i]:]
	h[packet.TCPLen], h[packet.TCPLen+1] = kindMSS, optionLen
	be.PutUint16(h[packet.TCPLen+2:], mss)
	old := be.Uint16(h[12:])
	be.PutUint16(h[12:], old+optionLen/4<<12)
	// The option, and four bytes more in the pseudo-header's length.
	sum := packet.AddSum(be.Uint16(h[16:]), kindMSS<<8+optionLen+uint32(mss)+optionLen)
	be.PutUint16(h[16:], packet.Update16(sum, old, be.Uint16(h[12:])))

	ip := b[v.L3[i]:]
	if v.Flags[i]&packet.V6 != 0 {
		be.PutUint16(ip[4:], be.Uint16(ip[4:])+optionLen)
		return
	}
	old = be.Uint16(ip[2:])
	be.PutUint16(ip[2:], old+optionLen)
	be.PutUint16(ip[10:], packet.Update16(be.Uint16(ip[10:]), old, old+optionLen))
}
