package bgp

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addresses finds this machine's addresses.
type addresses interface {
	// local answers the address from which peer is reached.
	local(peer netip.AddrPort) (netip.Addr, error)
	// beside answers an address of the other family on the interface that has local;
	// it is invalid if there is none. Addresses that skip says are passed over.
	beside(local netip.Addr, skip func(netip.Addr) bool) (netip.Addr, error)
}

// kernel is the addresses that the kernel knows.
type kernel struct{}

func (kernel) local(peer netip.AddrPort) (netip.Addr, error) {
	// Connecting a datagram socket looks the route up and sends nothing.
	c, err := net.Dial("udp", peer.String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("there is no route to %s: %w", peer.Addr(), err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

func (kernel) beside(local netip.Addr, skip func(netip.Addr) bool) (netip.Addr, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing addresses: %w", err)
	}
	addr := func(a *netlink.Addr) netip.Addr {
		ip, _ := netip.AddrFromSlice(a.IP)
		return ip.Unmap()
	}
	link := -1
	for i := range all {
		// What is on the loopback beside our address are services, VIPs among them.
		if addr(&all[i]) == local && !local.IsLoopback() {
			link = all[i].LinkIndex
		}
	}
	const unfit = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY
	for i := range all {
		if a := addr(&all[i]); all[i].LinkIndex == link && all[i].Flags&unfit == 0 && hop(a, local.Is4()) && !skip(a) {
			return a, nil
		}
	}
	return netip.Addr{}, nil
}
