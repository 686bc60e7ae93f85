// Package ttl is the kind "ttl": it counts the balancer as a hop.
package ttl

import (
	"encoding/binary"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of ttl.
type Config struct {
	Answer   bool `hcl:"answer,optional" doc:"send time exceeded to the senders of packets that end here; gives the output reply"`
	ICMPRate int  `hcl:"icmp_rate,optional" range:"1,1000000" doc:"errors sent a second, all cores together"`
}

// burst is how many errors may be sent at once.
const burst = 10

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "ttl",
		Summary: "decrements TTL or hop limit and drops packets that have come too far",
		Needs:   graph.L3 | graph.Backend,
		Forbids: graph.Sent,
		Outputs: []graph.Output{
			next:        {Name: "next", Doc: "packets that may go on"},
			expired:     {Name: "expired", Else: graph.Drop, Doc: "the TTL or hop limit was 1 or 0, and no error is sent about it"},
			icmpLimited: {Name: "icmp_limited", Else: graph.Drop, Doc: "likewise, and too many errors were sent just now"},
		},
		OutputsOf: func(c Config) []graph.Output {
			if !c.Answer {
				return nil
			}
			return []graph.Output{{
				Name: "reply", Gives: graph.Outbound | graph.ICMP, Removes: graph.L4 | graph.Fragment | graph.Flow | graph.VIP | graph.Backend,
				Reply: true, Doc: "errors to the senders of packets that have come too far",
			}}
		},
		Defaults: Config{ICMPRate: 100},
		Packets: func(c Config, _ *graph.Env) (graph.Maker, error) {
			bucket := packet.NewBucket(c.ICMPRate, burst)
			return func(core graph.Core) (graph.Node, error) { return &worker{core, bucket, c.Answer, 0}, nil }, nil
		},
	})
}

// Output numbers; reply follows where there is one.
const (
	next = iota
	expired
	icmpLimited
	reply
)

type worker struct {
	graph.Core
	bucket *packet.Bucket
	answer bool
	id     uint16 // of the last error
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	var ended packet.Lanes
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if !decrement(v, i) {
			ended |= packet.Lane(i)
		}
	}
	out[next] = in &^ ended
	if ended != 0 {
		w.end(v, ended, out)
	}
}

// decrement counts a hop on lane i; false when it has none left.
func decrement(v *packet.Vector, i int) bool {
	h := v.Bytes(i)[v.L3[i]:]
	if v.Flags[i]&packet.V6 != 0 {
		if h[7] <= 1 {
			return false
		}
		h[7]--
		return true
	}
	// TTL and protocol are one word of the checksum (RFC 1141 did this very case).
	old := binary.BigEndian.Uint16(h[8:])
	if old>>8 <= 1 {
		return false
	}
	binary.BigEndian.PutUint16(h[8:], old-0x100)
	binary.BigEndian.PutUint16(h[10:], packet.Update16(binary.BigEndian.Uint16(h[10:]), old, old-0x100))
	return true
}

// end deals with lanes that end here.
func (w *worker) end(v *packet.Vector, ended packet.Lanes, out []packet.Lanes) {
	var ask packet.Lanes
	if w.answer {
		for l := ended; l != 0; l &= l - 1 {
			if i := l.Next() & 63; v.Answerable(i) {
				ask |= packet.Lane(i)
			}
		}
	}
	out[expired] = ended &^ ask
	for n := w.bucket.Take(w.Now(), ask.Count()); n > 0; n-- {
		i := ask.Next() & 63
		w.exceeded(v, i)
		out[reply] |= packet.Lane(i)
		ask &= ask - 1
	}
	out[icmpLimited] = ask
}

// exceeded makes the error about lane i.
func (w *worker) exceeded(v *packet.Vector, i int) {
	w.Unchain(v, i)
	base, size := w.Chunk(v.Frame[i])
	typ := byte(packet.ICMPTimeExceeded)
	if v.Flags[i]&packet.V6 != 0 {
		typ = packet.ICMP6TimeExceeded
	}
	w.id++
	v.MakeError(i, typ, 0, 0, w.id, base+size-v.Start[i])
}
