// Package icmpvip is the kind "icmp-vip": it answers echo requests to VIPs and leads ICMP
// errors to the flow that they are about.
package icmpvip

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of icmp-vip.
type Config struct {
	Echo string `hcl:"echo,optional" enum:"answer,punt,drop" doc:"what becomes of echo requests"`
}

// Host is what the kind asks of Env.Host: to take note of errors about tunnels. It is told
// on a goroutine of its own and may block.
type Host interface {
	// TunnelMTU says that the path to backend carries outer packets of mtu bytes only.
	TunnelMTU(backend netip.Addr, mtu int)
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "icmp-vip",
		Summary: "answers echo requests to VIPs and leads ICMP errors to the flow that they are about",
		Needs:   graph.L3 | graph.VIP | graph.ICMP,
		Forbids: graph.Flow | graph.Backend | graph.Sent,
		Outputs: []graph.Output{
			next:           {Name: "next", Gives: graph.Flow, Doc: "errors about a flow of a service"},
			pass:           {Name: "pass", Else: graph.Punt, Doc: "what is the kernel's: neighbour discovery, errors about tunnels that are not ours, echo requests if so configured"},
			badQuote:       {Name: "bad_quote", Else: graph.Drop, Doc: "an error that does not hold enough of the packet it is about"},
			quotedFragment: {Name: "quoted_fragment", Else: graph.Drop, Doc: "an error about a later fragment, which has no ports"},
			quotedUnknown:  {Name: "quoted_unknown", Else: graph.Drop, Doc: "an error about a packet that no service sent"},
			icmpFragment:   {Name: "icmp_fragment", Else: graph.Drop, Doc: "a fragment of an ICMP message"},
			icmpType:       {Name: "icmp_type", Else: graph.Drop, Doc: "a message that is neither an echo request nor an error about a flow"},
			echoRefused:    {Name: "echo_refused", Else: graph.Drop, Doc: "an echo request that is not to be answered, or names no host to answer"},
			badChecksum:    {Name: "bad_checksum", Else: graph.Drop, Doc: "the ICMP checksum is wrong"},
			tunnelError:    {Name: "tunnel_error", Else: graph.Drop, Doc: "an error about a packet that we sent to a backend, taken note of"},
		},
		OutputsOf: func(c Config) []graph.Output {
			if c.Echo != "answer" {
				return nil
			}
			return []graph.Output{{
				Name: "reply", Gives: graph.Outbound | graph.ICMP, Removes: graph.L4 | graph.Fragment | graph.Flow | graph.VIP | graph.Backend,
				Reply: true, Doc: "echo replies",
			}}
		},
		Counters: []graph.Counter{
			learned: {Name: "learned", Doc: "errors about the tunnel that told of a smaller MTU on the way to a backend"},
		},
		Defaults: Config{Echo: "answer"},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			s := &shared{env: env}
			s.host, _ = env.Host.(Host)
			env.Watch(s.see)
			echo := map[string]int{"answer": reply, "punt": pass, "drop": echoRefused}[c.Echo]
			return func(core graph.Core) (graph.Node, error) {
				return &worker{Core: core, shared: s, echo: echo}, nil
			}, nil
		},
	})
}

// Output numbers; reply follows where there is one.
const (
	next = iota
	pass
	badQuote
	quotedFragment
	quotedUnknown
	icmpFragment
	icmpType
	echoRefused
	badChecksum
	tunnelError
	reply
)

// learned is the number of the counter.
const learned = 0

type worker struct {
	graph.Core
	*shared
	echo int   // output of echo requests
	told int64 // when the host was told last
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for snap := w.State(); in != 0; in &= in - 1 {
		i := in.Next() & 63
		out[w.one(v, i, snap)] |= packet.Lane(i)
	}
}

// one answers the output of lane i.
func (w *worker) one(v *packet.Vector, i int, snap *state.Snapshot) int {
	if v.Flags[i]&(packet.First|packet.Later) != 0 {
		return icmpFragment
	}
	b := v.Bytes(i)
	if int(v.L4[i])+packet.ICMPLen > len(b) {
		return icmpType
	}
	typ := b[v.L4[i]]
	if v.Flags[i]&packet.V6 != 0 {
		switch {
		case typ == packet.ICMP6Echo:
			return w.answer(v, i, b, packet.ICMP6EchoReply)
		case 133 <= typ && typ <= 137: // RFC 4861: neighbours, routers, redirects
			return pass
		}
	} else if typ == packet.ICMPEcho {
		return w.answer(v, i, b, packet.ICMPEchoReply)
	}
	quote, ok := v.Errs(i)
	if !ok {
		return icmpType
	}
	if !intact(v, i, b) {
		return badChecksum
	}
	if !snap.MatchAddr(v.Dst[i]) {
		return w.tunnel(v, i, b)
	}
	q, ok := packet.ParseQuote(quote, v.Flags[i]&packet.V6 != 0)
	switch {
	case !ok:
		return badQuote
	case q.Later:
		return quotedFragment
	case q.Src != v.Dst[i]: // RFC 792: errors go to the source of the packet
		return quotedUnknown
	}
	service, verdict := snap.Match(q.Src, q.Proto, q.SPort)
	if verdict != state.Served || q.Proto == packet.ProtoICMP || q.Proto == packet.ProtoICMPv6 {
		return quotedUnknown
	}
	// The quote is on its way from the VIP to the client.
	v.Src[i], v.Dst[i], v.SPort[i], v.DPort[i] = q.Dst, q.Src, q.DPort, q.SPort
	v.Proto[i], v.TCP[i], v.VIP[i] = q.Proto, 0, service
	v.Hash[i] = packet.FlowHash(q.Dst, q.Src, q.DPort, q.SPort, q.Proto)
	v.Flags[i] |= packet.Related
	return next
}

// answer makes an echo request the reply of the given type, in place: whatever stands in
// it goes back as it came (RFC 1122 §3.2.2.6, RFC 4443 §4.2), a chain of frames included.
func (w *worker) answer(v *packet.Vector, i int, b []byte, typ byte) int {
	if w.echo != reply {
		return w.echo
	}
	if !v.FromHost(i) {
		return echoRefused
	}
	if !intact(v, i, b) {
		return badChecksum
	}
	be := binary.BigEndian
	packet.SwapMACs(b)
	v.Swap(i)
	ip, icmp := b[v.L3[i]:], b[v.L4[i]:]
	if v.Flags[i]&packet.V6 != 0 {
		ip[7] = packet.OwnTTL
		v.Src[i].Put16(ip[8:])
		v.Dst[i].Put16(ip[24:])
	} else {
		old := be.Uint16(ip[8:])
		ip[8] = packet.OwnTTL
		be.PutUint16(ip[10:], packet.Update16(be.Uint16(ip[10:]), old, be.Uint16(ip[8:])))
		be.PutUint32(ip[12:], v.Src[i].V4())
		be.PutUint32(ip[16:], v.Dst[i].V4())
	}
	old := be.Uint16(icmp)
	icmp[0] = typ
	be.PutUint16(icmp[2:], packet.Update16(be.Uint16(icmp[2:]), old, be.Uint16(icmp)))
	v.VIP[i], v.Backend[i], v.Slot[i], v.TCP[i] = 0, 0, 0, 0
	v.Hash[i] = packet.FlowHash(v.Src[i], v.Dst[i], 0, 0, v.Proto[i])
	return reply
}

// intact tells whether the checksum of the ICMP message in lane i is right, whose first
// frame is b.
func intact(v *packet.Vector, i int, b []byte) bool {
	n := uint32(v.L3[i]) + v.IPLen[i] - uint32(v.L4[i]) // of the message
	part := b[v.L4[i]:]
	var sum uint32
	if v.Flags[i]&packet.V6 != 0 {
		sum = packet.PseudoSum(v.Src[i], v.Dst[i], packet.ProtoICMPv6, n)
	}
	odd := false
	for f := v.Chain[i]; ; {
		part = part[:min(uint32(len(part)), n)]
		s := uint16(packet.Sum(part))
		if odd {
			s = bits.ReverseBytes16(s)
		}
		sum += uint32(s)
		odd = odd != (len(part)&1 != 0)
		n -= uint32(len(part))
		if n == 0 {
			return packet.Fold(sum) == 0xffff
		}
		if f == packet.NoFrame {
			return false
		}
		l := &v.Links[f]
		part, f = v.Mem[l.Start:l.Start+l.Len], l.Next
	}
}

// Trace is part of graph.Tracer.
func (w *worker) Trace(v *packet.Vector, i int) string {
	i &= 63
	if b := v.Bytes(i); v.Flags[i]&packet.Related == 0 {
		if int(v.L4[i])+2 > len(b) {
			return "no ICMP header"
		}
		return fmt.Sprintf("type %d code %d", b[v.L4[i]], b[v.L4[i]+1])
	}
	return fmt.Sprintf("about protocol %d from %v port %d to %v port %d", v.Proto[i], v.Dst[i], v.DPort[i], v.Src[i], v.SPort[i])
}
