package bpf

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Mode says where XDP programs run.
type Mode string

const (
	// Auto is Native where the driver can, else Generic.
	Auto Mode = "auto"
	// Native runs in the driver, before the kernel makes a packet of the frame.
	Native Mode = "native"
	// Generic runs behind the driver, in the kernel's own receive path.
	Generic Mode = "generic"
)

// ParseMode reads a mode; "" is Auto.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return Auto, nil
	case Auto, Native, Generic:
		return m, nil
	}
	return "", fmt.Errorf("XDP mode %q: it is auto, native or generic", s)
}

// AttachOptions say how a program is attached.
type AttachOptions struct {
	Interface int // its index, in the namespace of the calling thread
	Mode      Mode
	// Jumbo is for sockets that take frames of several chunks.
	Jumbo bool
	// Replace takes a program of somebody else off.
	Replace bool
}

// An Attachment is a program on an interface. It ends with Close or with the
// process.
type Attachment struct {
	// Mode is Native or Generic.
	Mode Mode
	// Refused is why native mode did not do where Auto fell back to generic.
	Refused error
	link    link.Link
}

// busy is how long a program of our own is waited for to go: the kernel takes
// those of a dead process off with a delay.
const busy = time.Second

// Attach puts the program on an interface.
func (a *Admission) Attach(o AttachOptions) (*Attachment, error) {
	return attach(a.plain, a.frags, o)
}

// attach tries the plain program first, since with it the other end of a veth pair
// cuts what it sends to the MTU, and then the one for frames of several buffers, nil
// where the kernel has none: without it drivers refuse an MTU beyond a page.
func attach(plain, frags *ebpf.Program, o AttachOptions) (*Attachment, error) {
	try := []*ebpf.Program{plain, frags}
	if o.Jumbo && frags != nil {
		try = try[1:]
	} else if frags == nil {
		try = try[:1]
	}
	var refused error
	if o.Mode != Generic {
		for _, p := range try {
			l, err := attachAs(p, o, link.XDPDriverMode)
			if err == nil {
				return &Attachment{Mode: Native, link: l}, nil
			}
			for _, end := range []error{ErrForeign, ErrNoInterface, ErrPrivilege} {
				if errors.Is(err, end) {
					return nil, err
				}
			}
			if refused == nil {
				refused = err
			}
		}
		if o.Mode == Native {
			return nil, fmt.Errorf("native XDP: %w", refused)
		}
	}
	l, err := attachAs(try[0], o, link.XDPGenericMode)
	if err != nil {
		return nil, fmt.Errorf("generic XDP: %w", err)
	}
	return &Attachment{Mode: Generic, Refused: refused, link: l}, nil
}

func attachAs(p *ebpf.Program, o AttachOptions, flags link.XDPAttachFlags) (link.Link, error) {
	for end := time.Now().Add(busy); ; time.Sleep(busy / 50) {
		other, err := attached(o.Interface)
		if err != nil {
			return nil, err
		}
		if other != nil {
			switch {
			case o.Replace:
				if err := other.remove(); err != nil {
					return nil, err
				}
			case other.ours() && time.Now().Before(end):
				continue
			default:
				return nil, other
			}
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: o.Interface, Flags: flags})
		switch {
		case err == nil:
			return l, nil
		case (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)) && time.Now().Before(end):
			continue
		}
		return nil, explain(err)
	}
}

// occupant is the program that stands on an interface; it is an error for those
// who want the place.
type occupant struct {
	dev  netlink.Link
	id   uint32
	name string
}

func (o *occupant) Error() string {
	return fmt.Sprintf("%v to %s: program %d (%s); take it off, or say that it may be replaced",
		ErrForeign, o.dev.Attrs().Name, o.id, o.name)
}

func (o *occupant) Unwrap() error { return ErrForeign }

// ours tells whether it is one of this package's programs.
func (o *occupant) ours() bool { return strings.HasPrefix(o.name, "lbgraph_") }

// attached answers the program on an interface, nil if there is none.
func attached(index int) (*occupant, error) {
	dev, err := netlink.LinkByIndex(index)
	if err != nil {
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("%w (index %d)", ErrNoInterface, index)
		}
		return nil, fmt.Errorf("asking for interface %d: %w", index, err)
	}
	x := dev.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil, nil
	}
	o := &occupant{dev: dev, id: x.ProgId, name: "unknown"}
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId)); err == nil {
		if info, err := p.Info(); err == nil && info.Name != "" {
			o.name = info.Name
		}
		_ = p.Close()
	}
	return o, nil
}

// remove takes the program off, whichever way it was attached.
func (o *occupant) remove() error {
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		// Interfaces of other namespaces may have the same index.
		if err != nil || info.XDP() == nil || int(info.XDP().Ifindex) != o.dev.Attrs().Index || uint32(info.Program) != o.id {
			continue
		}
		if err := it.Link.Detach(); err != nil {
			return fmt.Errorf("taking XDP program %d off: %w", o.id, explain(err))
		}
	}
	if left, err := attached(o.dev.Attrs().Index); err != nil || left == nil {
		return err
	}
	for _, flags := range []int{unix.XDP_FLAGS_DRV_MODE, unix.XDP_FLAGS_SKB_MODE, unix.XDP_FLAGS_HW_MODE} {
		_ = netlink.LinkSetXdpFdWithFlags(o.dev, -1, flags)
	}
	left, err := attached(o.dev.Attrs().Index)
	if err == nil && left != nil {
		return left
	}
	return err
}

// Alive tells whether the program still stands on the interface: that may have
// gone, or somebody may have taken the program off.
func (a *Attachment) Alive() bool {
	info, err := a.link.Info()
	return err == nil && info.XDP() != nil && info.XDP().Ifindex != 0
}

// Close takes the program off.
func (a *Attachment) Close() error { return a.link.Close() }
