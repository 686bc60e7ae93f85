package replay

import (
	"errors"
	"fmt"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/runtime"
)

// Verdicts of packets and of the frames they caused.
const (
	Sent    = "sent"
	Dropped = "dropped"
	Kernel  = "kernel" // left to the kernel
	Held    = "held"   // kept by a node when time stopped
)

// Kinds of what a packet caused.
const (
	Forward  = "forward"  // the packet itself, on its way
	Reply    = "reply"    // an answer to where it came from
	Fragment = "fragment" // a piece of it
)

// Result is what became of the packets of a replay.
type Result struct {
	// Received + Made = Sent + Kernel + Held + all Drops.
	Received uint64            `json:"received"`
	Made     uint64            `json:"made"` // frames that nodes made; a reused one is none
	Sent     uint64            `json:"sent"`
	Kernel   uint64            `json:"kernel"`
	Held     uint64            `json:"held"`
	Drops    map[string]uint64 `json:"drops"` // by "node.reason"
	Packets  []Packet          `json:"packets"`
	Pools    map[string]Pool   `json:"pools"`
	// Connections is the sum over all conntrack nodes and cores.
	Connections Connections `json:"connections"`
	// Warnings says what was wrong with the captures.
	Warnings []string `json:"warnings,omitempty"`
}

// Packet is one packet of a capture.
type Packet struct {
	N       int      `json:"n"` // from 1, in the order in which they came
	Queue   int      `json:"queue"`
	Path    []string `json:"path"` // the nodes it visited
	Verdict string   `json:"verdict"`
	Node    string   `json:"node"`   // where it ended, or is held
	Reason  string   `json:"reason"` // of a drop
	VIP     string   `json:"vip"`
	Backend string   `json:"backend"` // POOL/NAME
	// Outputs are the frames it caused to be sent, and pieces that were not.
	Outputs []Output `json:"outputs"`

	vip, backend uint32
	own          int // the output that is the packet's own frame, −1 if none
	way          *step
}

// Output is a frame that a packet caused.
type Output struct {
	Kind    string `json:"kind"`
	Verdict string `json:"verdict"`
	Length  int    `json:"length"` // of the frame, Ethernet header included
	Reason  string `json:"reason,omitempty"`
}

// Pool is a pool's table.
type Pool struct {
	Digest string         `json:"digest"` // hexadecimal; equal where tables are
	Slots  map[string]int `json:"slots"`  // by backend
}

// Connections is the connection tables' counts.
type Connections struct {
	Entries uint64 `json:"entries"` // at the end
	Hits    uint64 `json:"hits"`
	Misses  uint64 `json:"misses"`
	Inserts uint64 `json:"inserts"`
}

// step is a node at the end of a path: packets of one path share it.
type step struct {
	path []string
	next map[string]*step
}

func (s *step) to(node string) *step {
	n := s.next[node]
	if n == nil {
		n = &step{path: append(s.path[:len(s.path):len(s.path)], node)}
		if s.next == nil {
			s.next = map[string]*step{}
		}
		s.next[node] = n
	}
	return n
}

// flight is a frame on its way.
type flight struct {
	packet int             // number of the packet it belongs to; 0 is none
	output int             // of a frame that was made: its index; −1 for the packet's own
	last   *graph.Instance // the node it was at last
	reply  bool
	held   bool
}

// record is what a run takes down: it observes the engine.
type record struct {
	packets []Packet
	root    step
	flights map[uint32]*flight
	made    []packet.Record // since the last Visited
	held    int
	partial int // packets that were captured in part

	passed  uint64            // by the XDP program
	refused map[string]uint64 // by the XDP program, or too long: by "node.reason"
}

// arrive enters the packet in front of a capture and answers its number.
func (r *record) arrive(s *source, p pcap.Packet) int {
	if p.Length > len(p.Data) {
		r.partial++
	}
	way := r.root.to(s.node)
	r.packets = append(r.packets, Packet{N: len(r.packets) + 1, Queue: s.queue, own: -1, way: way, Outputs: []Output{}})
	return len(r.packets)
}

// pass and refuse end packets that no node sees.
func (r *record) pass(n int, node string) {
	p := &r.packets[n-1]
	p.Verdict, p.Node = Kernel, node
	r.passed++
}

func (r *record) refuse(n int, node, reason string) {
	p := &r.packets[n-1]
	p.Verdict, p.Node, p.Reason = Dropped, node, reason
	if r.refused == nil {
		r.refused = map[string]uint64{}
	}
	r.refused[node+"."+reason]++
}

// Received is part of runtime.Observer.
func (r *run) Received(_ int, source *graph.Instance, v *packet.Vector, lanes packet.Lanes) {
	if r.flights == nil {
		r.flights = map[uint32]*flight{}
	}
	i := 0
	for m := lanes; m != 0 && i < len(r.taken); m &= m - 1 {
		r.flights[v.Frame[m.Next()&63]] = &flight{packet: r.taken[i], output: -1, last: source}
		i++
	}
	r.taken = r.taken[:0]
}

// Visited is part of runtime.Observer.
func (r *run) Visited(_ int, node *graph.Instance, v *packet.Vector, lanes packet.Lanes) {
	for m := lanes; m != 0; m &= m - 1 {
		i := m.Next() & 63
		f := r.flights[v.Frame[i]]
		if f == nil {
			continue // it ended there
		}
		if f.last != node {
			f.move(node, v.Backend[i])
		}
		p := &r.packets[f.packet-1]
		if f.output < 0 && p.way.path[len(p.way.path)-1] != node.Name {
			p.way = p.way.to(node.Name)
		}
		p.note(v.VIP[i], v.Backend[i])
		r.adopt(f)
	}
	r.made = r.made[:0]
}

// move takes down that a frame came to a node. Whether it is a reply shows by the
// output it came by; where several lead there, by the backend, which replies lose.
func (f *flight) move(node *graph.Instance, backend uint32) {
	replies, others := false, false
	for o, e := range f.last.Edges {
		if e != nil && e.To == node {
			replies = replies || f.last.Outputs[o].Reply
			others = others || !f.last.Outputs[o].Reply
		}
	}
	f.reply = f.reply || replies && (!others || backend == 0)
	f.last = node
}

// note takes down what is known of a packet's service and backend.
func (p *Packet) note(vip, backend uint32) {
	if vip != 0 {
		p.vip = vip
	}
	if backend != 0 {
		p.backend = backend
	}
}

// adopt gives the frames that were just made to the packet that caused them.
func (r *run) adopt(parent *flight) {
	for i := range r.made {
		m := &r.made[i]
		p := &r.packets[parent.packet-1]
		p.pieces()
		p.Outputs = append(p.Outputs, Output{Kind: Fragment, Verdict: Held, Length: int(m.Total)})
		r.flights[m.Frame] = &flight{packet: parent.packet, output: len(p.Outputs) - 1, last: parent.last}
	}
	r.made = r.made[:0]
}

// pieces makes the packet's own frame its first piece.
func (p *Packet) pieces() {
	if p.own < 0 {
		p.own = len(p.Outputs)
		p.Outputs = append(p.Outputs, Output{Kind: Fragment, Verdict: Held})
	}
}

// Held is part of runtime.Observer.
func (r *run) Held(_ int, node *graph.Instance, m *packet.Record) {
	if f := r.flights[m.Frame]; f != nil && !f.held {
		f.held = true
		r.held++
	}
}

// Made is part of runtime.Observer.
func (r *run) Made(_ int, _ *graph.Instance, m *packet.Record) { r.made = append(r.made, *m) }

// Passed is part of runtime.Observer.
func (r *run) Passed(int, int, *graph.Instance, *packet.Record) {}

// Ended is part of runtime.Observer.
func (r *run) Ended(_ int, node *graph.Instance, m *packet.Record, how runtime.Ending, reason string) {
	f := r.flights[m.Frame]
	if f == nil {
		return
	}
	delete(r.flights, m.Frame)
	if f.held {
		r.held--
	}
	if node != nil && f.last != node {
		f.move(node, m.Backend)
	}
	p := &r.packets[f.packet-1]
	p.note(m.VIP, m.Backend)
	if f.output >= 0 {
		p.Outputs[f.output].end(f, how, reason, m.Total)
		return
	}
	p.Verdict, p.Reason = how.String(), reason
	if node != nil {
		p.Node = node.Name
		if p.way.path[len(p.way.path)-1] != node.Name {
			p.way = p.way.to(node.Name)
		}
	}
	if how == runtime.Sent {
		p.backend = m.Backend // a reply has none
		if p.own < 0 {
			p.own = len(p.Outputs)
			p.Outputs = append(p.Outputs, Output{Kind: Forward})
		}
	}
	if p.own >= 0 {
		p.Outputs[p.own].end(f, how, reason, m.Total)
	}
}

func (o *Output) end(f *flight, how runtime.Ending, reason string, length uint32) {
	if f.reply {
		o.Kind = Reply
	}
	o.Verdict, o.Reason, o.Length = how.String(), reason, int(length)
}

// result sums up. It fails if the engine's own counts say otherwise, or do not add up.
func (r *run) result() (*Result, error) {
	for _, f := range r.flights {
		p := &r.packets[f.packet-1]
		if f.output < 0 {
			p.Verdict, p.Node = Held, f.last.Name
		}
	}
	for i := range r.packets {
		p := &r.packets[i]
		p.Path = p.way.path
		r.name(p)
	}
	s := r.engine.Stats()
	if err := s.CheckConservation(); err != nil {
		return nil, fmt.Errorf("the counts do not add up: %w", err)
	}
	x := &Result{
		Received: s.Received + r.passed, Made: s.Made, Sent: s.Sent, Kernel: s.Kernel + r.passed, Held: s.Held,
		Drops: s.Drops(), Packets: r.packets, Pools: map[string]Pool{},
	}
	if x.Packets == nil {
		x.Packets = []Packet{}
	}
	for reason, n := range r.refused {
		x.Received += n
		x.Drops[reason] += n
	}
	if int(x.Received) != len(x.Packets) {
		return nil, fmt.Errorf("the counts do not add up: received %d, and %d packets came", x.Received, len(x.Packets))
	}
	x.Connections = connections(&s)
	r.pools(x)
	for _, src := range r.order {
		if err := src.Err(); err != nil {
			x.Warnings = append(x.Warnings, err.Error())
		}
	}
	if r.partial > 0 {
		x.Warnings = append(x.Warnings, fmt.Sprintf("%d packets are in the captures only in part, and count as truncated: capture with a snapshot length of 0", r.partial))
	}
	if r.out != nil {
		if err := r.out.Flush(); err != nil {
			return nil, errors.Join(errors.New("the output cannot be written"), err)
		}
	}
	return x, nil
}

// name names the VIP and the backend of a packet.
func (r *run) name(p *Packet) {
	s := r.snap
	if int(p.vip) < len(s.Services) && p.vip != 0 {
		v := &s.Services[p.vip]
		p.VIP = v.VIP
		if int(v.Pool) < len(s.Pools) {
			for _, m := range s.Pools[v.Pool].Members {
				if m.Backend == p.backend && p.backend != 0 {
					p.Backend = s.Pools[v.Pool].Name + "/" + m.Name
					return
				}
			}
		}
	}
	if int(p.backend) < len(s.Backends) && p.backend != 0 {
		p.Backend = s.Backends[p.backend].Addr.String()
	}
}

func (r *run) pools(x *Result) {
	for i := range r.snap.Pools {
		p := &r.snap.Pools[i]
		if p.ID == 0 {
			continue
		}
		t := Pool{Digest: fmt.Sprintf("%016x", p.Digest), Slots: map[string]int{}}
		for _, m := range p.Members {
			if m.Backend != 0 {
				t.Slots[m.Name] = 0
			}
		}
		for _, slot := range p.Table {
			if int(slot) < len(p.Members) {
				t.Slots[p.Members[slot].Name]++
			}
		}
		x.Pools[p.Name] = t
	}
}

// connections sums up the nodes that are connection tables.
func connections(s *graph.Stats) (c Connections) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Kind != "conntrack" {
			continue
		}
		c.Hits += n.Counter("hits")
		c.Misses += n.Counter("misses")
		c.Inserts += n.Counter("inserts")
		c.Entries += uint64(n.Gauges["entries"])
	}
	return c
}
