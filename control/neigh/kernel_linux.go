package neigh

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernel is the kernel's tables over netlink.
type kernel struct {
	handle     *netlink.Handle
	neighbours chan netlink.NeighUpdate
	routes     chan netlink.RouteUpdate
	links      chan netlink.LinkUpdate
	done       chan struct{} // ends the subscriptions
}

func openKernel() (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	k := &kernel{handle: h}
	if err := k.subscribe(); err != nil {
		h.Close()
		return nil, err
	}
	return k, nil
}

// receiveBuffer is room for the events of a burst, in bytes.
const receiveBuffer = 1 << 20

// subscribe begins with all neighbours that there are. A channel is closed when its
// subscription ends, which is when events were lost.
func (k *kernel) subscribe() error {
	k.neighbours = make(chan netlink.NeighUpdate, 64)
	k.routes = make(chan netlink.RouteUpdate, 64)
	k.links = make(chan netlink.LinkUpdate, 64)
	k.done = make(chan struct{})
	begun := 0
	err := netlink.NeighSubscribeWithOptions(k.neighbours, k.done, netlink.NeighSubscribeOptions{ListExisting: true, ReceiveBufferSize: receiveBuffer})
	if err == nil {
		begun++
		err = netlink.RouteSubscribeWithOptions(k.routes, k.done, netlink.RouteSubscribeOptions{ReceiveBufferSize: receiveBuffer})
	}
	if err == nil {
		begun++
		err = netlink.LinkSubscribeWithOptions(k.links, k.done, netlink.LinkSubscribeOptions{ReceiveBufferSize: receiveBuffer})
	}
	if err != nil {
		close(k.done)
		if begun > 0 {
			go drain(k.neighbours)
		}
		if begun > 1 {
			go drain(k.routes)
		}
		k.neighbours, k.routes, k.links = nil, nil, nil
	}
	return err
}

// unsubscribe ends the subscriptions, whose goroutines may wait to be heard.
func (k *kernel) unsubscribe() {
	if k.neighbours == nil {
		return
	}
	close(k.done)
	go drain(k.neighbours)
	go drain(k.routes)
	go drain(k.links)
	k.neighbours, k.routes, k.links = nil, nil, nil
}

func drain[T any](ch chan T) {
	for range ch {
	}
}

func (k *kernel) close() {
	k.unsubscribe()
	k.handle.Close()
}

// route is part of asker.
func (k *kernel) route(a netip.Addr, out string) (hop, error) {
	if a.Zone() != "" {
		out = a.Zone()
	}
	routes, err := k.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{Oif: out})
	if err != nil {
		return hop{}, err
	}
	if len(routes) == 0 {
		return hop{}, unix.ENETUNREACH
	}
	r := &routes[0]
	if r.Type != unix.RTN_UNICAST {
		return hop{}, fmt.Errorf("its route is no way to another host (type %d)", r.Type)
	}
	h := hop{link: r.LinkIndex, addr: a.WithZone("")}
	gw := r.Gw
	if via, ok := r.Via.(*netlink.Via); ok { // a gateway of the other family (RFC 5549)
		gw = via.Addr
	}
	if g, ok := netip.AddrFromSlice(gw); ok {
		h.addr = g.Unmap()
	}
	return h, nil
}

// resolve is part of asker: the kernel treats the neighbour as used.
func (k *kernel) resolve(h hop) error {
	return k.handle.NeighSet(&netlink.Neigh{LinkIndex: h.link, IP: h.addr.AsSlice(), Flags: netlink.NTF_USE})
}

// probe is part of asker. It names no hardware address, so that a newer one than we
// know of stays.
func (k *kernel) probe(h hop) error {
	return k.handle.NeighSet(&netlink.Neigh{LinkIndex: h.link, IP: h.addr.AsSlice(), State: netlink.NUD_PROBE})
}

// read answers what an event says about a neighbour; ok is false where it is not
// about one.
func read(e *netlink.NeighUpdate) (u update, ok bool) {
	a, ok := netip.AddrFromSlice(e.IP)
	if !ok || e.Family != unix.AF_INET && e.Family != unix.AF_INET6 || e.Flags&netlink.NTF_PROXY != 0 {
		return u, false
	}
	u.hop = hop{e.LinkIndex, a.Unmap()}
	const valid = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	switch {
	case e.Type == unix.RTM_DELNEIGH:
	case e.State&(netlink.NUD_PERMANENT|valid) != 0 && len(e.HardwareAddr) == 6:
		u.phase, u.mac = known, [6]byte(e.HardwareAddr)
		if e.State&netlink.NUD_PERMANENT != 0 {
			u.phase = fixed
		}
	case e.State&netlink.NUD_FAILED != 0:
		u.phase = failed
	}
	return u, true
}
