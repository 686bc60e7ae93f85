package xsk

import (
	"fmt"
	"net"
	"net/netip"
)

// Queues answers how many receive queues an interface works with.
func Queues(name string) (int, error) {
	if _, err := net.InterfaceByName(name); err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, ErrNoInterface)
	}
	return receiveQueues(name)
}

// Addresses answers an interface's own addresses, in the kernel's order.
func Addresses(name string) (all []netip.Addr, err error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return nil, ErrNoInterface
	}
	addrs, err := dev.Addrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if x, ok := netip.AddrFromSlice(n.IP); ok {
				all = append(all, x.Unmap())
			}
		}
	}
	return all, err
}
