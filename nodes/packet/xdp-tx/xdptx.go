// Package xdptx is the kind "xdp-tx": it sends packets by the AF_XDP sockets of an
// interface.
package xdptx

import (
	"errors"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of an xdp-tx.
type Config struct {
	Interface string `hcl:"interface,optional" doc:"interface to send by; without it each packet leaves by the interface that received it"`
}

func (c Config) ports() []graph.PortSpec {
	if c.Interface == "" {
		return nil
	}
	return []graph.PortSpec{{Driver: "xdp", Name: c.Interface}}
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "xdp-tx",
		Summary: "sends packets by the AF_XDP sockets of an interface",
		Needs:   graph.Outbound,
		Outputs: []graph.Output{
			txFull:    {Name: "tx_full", Else: graph.Drop, Doc: "the transmit ring had no room, also after the kernel was woken"},
			txTooLong: {Name: "tx_too_long", Else: graph.Drop, Doc: "the packet is longer than the interface's MTU"},
		},
		Interface: func(c Config) string { return c.Interface },
		Ports:     Config.ports,
		Packets:   build,
	})
}

// Output numbers.
const (
	txFull = iota
	txTooLong
)

func build(c Config, env *graph.Env) (graph.Maker, error) {
	var fixed graph.Port
	for _, s := range c.ports() {
		var err error
		if fixed, err = env.Port(s); err != nil {
			return nil, err
		}
	}
	return func(core graph.Core) (graph.Node, error) {
		w := &worker{core: core}
		if fixed != nil {
			w.ports = []way{wayOf(fixed, core)}
			return w, nil
		}
		for _, p := range env.Ports() {
			w.ports = append(w.ports, wayOf(p, core))
		}
		if len(w.ports) == 0 {
			return nil, errors.New("the graph receives from no interface that packets could leave by; name one: interface = \"eth0\"")
		}
		return w, nil
	}, nil
}

// way is how one core sends by one port.
type way struct {
	queues []graph.Queue // of this core; none: its packets go to core owner
	owner  int
	limit  uint32 // longest untagged frame
}

func wayOf(p graph.Port, core graph.Core) (w way) {
	for q := core.ID(); q < p.Queues(); q += core.Cores() {
		w.queues = append(w.queues, p.Queue(q))
	}
	// Where a core has no queue, there are fewer queues than cores, and core q has
	// queue q.
	w.owner = core.ID() % max(p.Queues(), 1)
	w.limit = ^uint32(0)
	if mtu := p.Info().MTU; mtu > 0 {
		w.limit = uint32(mtu) + packet.EtherLen
	}
	return w
}

type worker struct {
	core  graph.Core
	ports []way // one if all packets leave by the same; else by Port column
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[txTooLong]
	if len(w.ports) == 1 {
		w.send(&w.ports[0], v, in, out)
		return
	}
	for in != 0 {
		port := v.Port[in.Next()&63]
		var same packet.Lanes
		for m := in; m != 0; m &= m - 1 {
			if i := m.Next() & 63; v.Port[i] == port {
				same |= packet.Lane(i)
			}
		}
		in &^= same
		// The loop sets Port: a number without a port would be its mistake.
		if int(port) < len(w.ports) {
			w.send(&w.ports[port], v, same, out)
		}
	}
}

// send sends lanes by one port.
func (w *worker) send(by *way, v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	long := tooLong(v, in, by.limit)
	out[txTooLong] |= long
	in &^= long
	if len(by.queues) == 0 {
		for m := in; m != 0; m &= m - 1 {
			if i := m.Next(); !w.core.Pass(by.owner, v, i, -1) {
				out[txFull] |= packet.Lane(i)
			}
		}
		return
	}
	left := in
	for _, q := range by.queues {
		taken := q.Transmit(v, left)
		if left &^= taken; left != 0 {
			// The kernel makes room when it is woken.
			q.Flush()
			more := q.Transmit(v, left)
			taken |= more
			left &^= more
		}
		w.core.Sent(v, taken)
		if left == 0 {
			return
		}
	}
	out[txFull] |= left
}

// tooLong answers the lanes that the interface would not carry: the kernel drops
// those in silence. Every VLAN tag may add its 4 bytes.
func tooLong(v *packet.Vector, in packet.Lanes, limit uint32) (long packet.Lanes) {
	long = packet.Above(&v.Total, limit, in)
	for m := long; m != 0; m &= m - 1 {
		i := m.Next() & 63
		b := v.Bytes(i)
		n := v.Total[i]
		for at := 12; at+2 <= len(b) && n > limit && (b[at] == 0x81 && b[at+1] == 0 || b[at] == 0x88 && b[at+1] == 0xa8); at += packet.TagLen {
			n -= packet.TagLen
		}
		if n <= limit {
			long &^= packet.Lane(i)
		}
	}
	return long
}
