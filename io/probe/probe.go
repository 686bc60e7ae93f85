// Package probe connects to a VIP on one chosen backend, through the tunnel that
// traffic takes there. So a health check finds a backend that works but has no VIP on
// its loopback, or leaves the tunnel's headers on.
//
// The kernel does the connecting: a socket's mark names the backend, marked packets
// are routed to a device of our own, and a program at that device's exit
// (bpf.AttachProbe) wraps them and sends them on. The backend answers from the VIP
// straight to this machine.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/encap"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Encap is how traffic is encapsulated: the arguments of a node that does it.
type Encap struct {
	encap.Protocol
	encap.Config
	Port uint16 // UDP destination of GUE
}

// A Dialer connects through tunnels. Its methods may be called from any goroutine.
// They act in the network namespace of the calling thread, which is that of Open.
type Dialer struct {
	dev     *device
	closing sync.RWMutex // held for reading while dev is used
	closed  bool

	mu     sync.Mutex
	encap  Encap
	snap   *state.Snapshot
	number map[netip.Addr]uint32 // of backends
	ways   map[uint32]bpf.Way    // by backend number, as the program has them
}

// Open makes the device and the routing rule, and removes what a process that died
// left. It fails with bpf.ErrBusy while another process has them. s is the state whose
// backends are connected to, until Update.
func Open(e Encap, s *state.Snapshot, log *zap.Logger) (*Dialer, error) {
	dev, err := open(log)
	if err != nil {
		return nil, fmt.Errorf("health checks through tunnels: %w", err)
	}
	d := &Dialer{dev: dev, encap: e, ways: map[uint32]bpf.Way{}}
	d.Update(s)
	return d, nil
}

// Close removes all that Open made. Connections that are left hang. It may be called
// again.
func (d *Dialer) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.dev.close()
}

// SetEncap changes how traffic is encapsulated, from the next connection on.
func (d *Dialer) SetEncap(e Encap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.encap = e
}

// Update takes over the backends of s. It is quick when they are those of before, and
// does not wait for the kernel's tables.
func (d *Dialer) Update(s *state.Snapshot) {
	d.closing.RLock()
	defer d.closing.RUnlock()
	if d.closed {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	same := d.snap != nil && len(d.snap.Backends) > 0 && len(s.Backends) > 0 && &s.Backends[0] == &d.snap.Backends[0]
	d.snap = s
	if same {
		return
	}
	d.number = make(map[netip.Addr]uint32, len(s.Backends))
	for i := range s.Backends {
		if b := &s.Backends[i]; b.ID != 0 && b.Addr.IsValid() {
			d.number[b.Addr.Unmap()] = b.ID
		}
	}
	for id, w := range d.ways {
		if d.number[w.Backend] != id && d.dev.program.Remove(uint16(id)) == nil {
			delete(d.ways, id)
		}
	}
}

// Dial connects by TCP to an address on a backend. An error that comes from this
// machine says so: no route, no address that answers could be sent to. A backend that
// has not the address, or does not take the tunnel's headers off, answers nothing until
// ctx ends: packets carry TTL 1, so that it does not forward them to another.
func (d *Dialer) Dial(ctx context.Context, backend netip.Addr, to netip.AddrPort) (net.Conn, error) {
	id, from, err := d.prepare(backend.Unmap(), to.Addr())
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) { err = mark(int(fd), bpf.ProbeMark|id, to.Addr().Is4()) }); e != nil {
				return e
			}
			return err
		},
	}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// mark makes a socket one of the backend's.
func mark(fd int, mark uint32, v4 bool) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	// Else every probe would take a port of its own until it ends, whomever it goes to.
	if e := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err == nil {
		err = e
	}
	level, option := unix.IPPROTO_IP, unix.IP_TTL
	if !v4 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	return errors.Join(err, unix.SetsockoptInt(fd, level, option, 1))
}

// prepare sees to it that the way to a backend is known to the program, and answers
// the backend's number and the address that a connection to the VIP comes from.
func (d *Dialer) prepare(backend, to netip.Addr) (id uint32, from netip.Addr, err error) {
	d.closing.RLock()
	defer d.closing.RUnlock()
	if d.closed {
		return 0, from, net.ErrClosed
	}
	d.mu.Lock()
	id, e, snap := d.number[backend], d.encap, d.snap
	d.mu.Unlock()
	switch {
	case id == 0:
		return 0, from, fmt.Errorf("%s is no backend", backend)
	case id&^0xffff != 0:
		return 0, from, fmt.Errorf("backend %s has the number %d: only the first 65535 are reached through a tunnel", backend, id)
	}
	r, err := d.dev.route(backend)
	if err != nil {
		return 0, from, fmt.Errorf("there is no way to %s: %w", backend, err)
	}
	if r.Type != unix.RTN_UNICAST {
		return 0, from, fmt.Errorf("%s is no other host: probes through a tunnel cannot reach it", backend)
	}
	own, _ := netip.AddrFromSlice(r.Src)
	own = own.Unmap()
	w := bpf.Way{Source: own, Backend: backend, Interface: r.LinkIndex, Tunnel: tunnels[e.Protocol], GUEPort: e.Port, TTL: uint8(e.TTL)}
	for _, p := range e.Sources() {
		if p.Addr().BitLen() == backend.BitLen() {
			w.Source = p.Masked().Addr()
		}
	}
	if from, err = d.from(to, own, r.LinkIndex, snap); err != nil {
		return 0, from, err
	}
	if err := d.dev.letIn(to, r.LinkIndex); err != nil {
		return 0, from, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.number[backend] != id {
		return 0, from, fmt.Errorf("%s is no backend any more", backend)
	}
	if d.ways[id] != w {
		if err := d.dev.program.Set(uint16(id), w); err != nil {
			return 0, from, err
		}
		d.ways[id] = w
	}
	return id, from, nil
}

var tunnels = [...]bpf.Tunnels{encap.GRE: bpf.GRE, encap.IPIP: bpf.IPIP, encap.GUE: bpf.GUE}

// from answers an address of this machine for the connection's own end: of the VIP's
// family, and no VIP, for answers to that would be taken for traffic. own is the one
// that the kernel would use towards the backend.
func (d *Dialer) from(to, own netip.Addr, link int, s *state.Snapshot) (netip.Addr, error) {
	usable := func(a netip.Addr) bool {
		return a.BitLen() == to.BitLen() && a.IsGlobalUnicast() && !s.MatchAddr(packet.AddrOf(a))
	}
	if usable(own) {
		return own, nil
	}
	all, err := d.dev.addresses(to.Is4())
	if err != nil {
		return own, err
	}
	best := netip.Addr{}
	for _, a := range all {
		if !usable(a.addr) {
			continue
		}
		if a.link == link {
			return a.addr, nil
		}
		if !best.IsValid() {
			best = a.addr
		}
	}
	if !best.IsValid() {
		return best, fmt.Errorf("this machine has no address of the family of %s that is no VIP: the backend could not answer", to)
	}
	return best, nil
}
