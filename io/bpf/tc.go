package bpf

import (
	"errors"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tcHook is a program at one of TC's hooks of an interface. It ends with close or
// with the process, but before Linux 6.6: what a killed process left there is taken
// over by the next.
type tcHook struct {
	link   link.Link
	filter *netlink.BpfFilter // before Linux 6.6
	net    *netlink.Handle
}

// filterHandle and filterPriority are where our TC filter stands before Linux 6.6;
// a later one of ours takes its place.
const (
	filterHandle   = 0x1b6
	filterPriority = 0x1b6
)

// attachTC puts p at the ingress or egress hook of an interface. With clsact it does
// so as before Linux 6.6, where there is no TCX.
func attachTC(p *ebpf.Program, name string, index int, egress, clsact bool) (*tcHook, error) {
	h := &tcHook{}
	if !clsact {
		at := ebpf.AttachTCXIngress
		if egress {
			at = ebpf.AttachTCXEgress
		}
		var err error
		if h.link, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: at, Anchor: link.Head()}); err == nil {
			return h, nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return nil, err
		}
		h.link = nil
	}
	var err error
	if h.net, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if err = h.attach(p, name, index, egress); err != nil {
		h.net.Close()
		return nil, err
	}
	return h, nil
}

func (h *tcHook) attach(p *ebpf.Program, name string, index int, egress bool) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := h.net.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	parent := uint32(netlink.HANDLE_MIN_INGRESS)
	if egress {
		parent = netlink.HANDLE_MIN_EGRESS
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: parent, Handle: filterHandle, Protocol: unix.ETH_P_ALL, Priority: filterPriority,
		},
		Fd: p.FD(), Name: name, DirectAction: true,
	}
	if err := h.net.FilterReplace(f); err != nil {
		return err
	}
	h.filter = f
	return nil
}

// alive tells whether the program still stands there. Before Linux 6.6 it does not
// know.
func (h *tcHook) alive() bool {
	if h.link == nil {
		return true
	}
	info, err := h.link.Info()
	return err == nil && info.TCX() != nil && info.TCX().Ifindex != 0
}

func (h *tcHook) close() error {
	if h.link != nil {
		return h.link.Close()
	}
	// The qdisc stays: others may use it by now.
	err := h.net.FilterDel(h.filter)
	h.net.Close()
	return err
}

// tcxOurs tells whether a program of this package stands at the TCX egress hook of an
// interface; a process that lives holds it there.
func tcxOurs(index int) bool {
	q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return false // before Linux 6.6
	}
	for _, a := range q.Programs {
		p, err := ebpf.NewProgramFromID(a.ID)
		if err != nil {
			continue
		}
		info, err := p.Info()
		_ = p.Close()
		if err == nil && strings.HasPrefix(info.Name, "lbgraph_") {
			return true
		}
	}
	return false
}
