// Package xsk is network interfaces as ports of a graph: one AF_XDP socket a
// queue, all on the graph's one memory, so that a frame received by any of them can
// be sent by any other, of this port or another.
//
// Frames stand 256 bytes behind their chunk's beginning when they are received
// (XDP_PACKET_HEADROOM), all of which may be written.
package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/umem"
)

// Errors that Open's errors wrap.
var (
	ErrNoInterface = bpf.ErrNoInterface
	ErrPrivilege   = bpf.ErrPrivilege
	ErrNoXDP       = bpf.ErrNoXDP
	ErrForeign     = bpf.ErrForeign
	ErrQueues      = bpf.ErrQueues
	ErrMTU         = bpf.ErrMTU
	// ErrBusy: another socket holds a queue.
	ErrBusy = errors.New("the queue is in use by another AF_XDP socket")
	// ErrMemory: the kernel may not lock as much memory.
	ErrMemory = errors.New("the limit on locked memory is too low (ulimit -l, LimitMEMLOCK=)")
)

// Options are what a port is opened with.
type Options struct {
	Interface string
	Queues    int      // the first so many receive queues; 0 is all
	Mode      bpf.Mode // "" is bpf.Auto
	Ring      int      // entries of each of a socket's four rings, a power of two; 0 is 2048
	Batch     int      // packets that one Receive answers at most; 0 is packet.Size
	Memory    *umem.Memory
	// Program decides which packets are ours. The caller keeps it, updates it, and
	// closes it after the port.
	Program *bpf.Admission
	// Replace takes a program of somebody else off the interface.
	Replace bool
	// Later leaves the program to be attached by Start, so that the sockets can be
	// given frames before packets come.
	Later bool
	Log   *zap.Logger // nil for none
}

// front is what the kernel leaves free in front of a received frame
// (XDP_PACKET_HEADROOM).
const front = 256

// frameOverhead is what a frame may hold beyond the MTU: an Ethernet header and two
// VLAN tags.
const frameOverhead = 14 + 2*4

// busy is how long a queue is waited for: after its socket was closed it stays
// taken for some 4 to 36 ms.
const busy = time.Second

// A Port is an interface with its sockets. The methods of graph.Port may be called
// from any goroutine.
type Port struct {
	name   string
	queues []*Queue
	info   graph.PortInfo
	attach func() error
	ctl    int             // a socket to ask about the interface, in its namespace
	prog   *bpf.Attachment // nil until it is attached
}

var _ graph.Port = (*Port)(nil)

// Open opens sockets on an interface, in the network namespace of the calling
// thread, gives them to the program and attaches it. An error leaves nothing open
// or attached.
func Open(o Options) (*Port, error) {
	p := &Port{name: o.Interface, ctl: -1}
	if err := p.open(o); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("interface %s: %w", o.Interface, err)
	}
	return p, nil
}

func (p *Port) open(o Options) error {
	if o.Ring == 0 {
		o.Ring = 2048
	}
	if o.Ring < 0 || o.Ring&(o.Ring-1) != 0 {
		return fmt.Errorf("rings of %d entries: it must be a power of two", o.Ring)
	}
	if o.Batch == 0 {
		o.Batch = packet.Size
	}
	if o.Batch < 1 || o.Batch > packet.Size {
		return fmt.Errorf("batches of %d packets: 1 to %d are possible", o.Batch, packet.Size)
	}
	if o.Memory == nil || o.Memory.FD() < 0 || o.Program == nil {
		return errors.New("a port needs memory that the kernel can share, and a program")
	}
	if c := o.Memory.Chunk(); c != 2048 && c != 4096 {
		return fmt.Errorf("chunks of %d bytes: AF_XDP takes 2048 or 4096", c)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	dev, err := device(o.Interface)
	if err != nil {
		return err
	}
	if p.ctl, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	n, err := receiveQueues(o.Interface)
	if err != nil {
		return err
	}
	if o.Queues > n {
		return fmt.Errorf("%w: %d wanted, it has %d", ErrQueues, o.Queues, n)
	}
	if o.Queues > 0 {
		n = o.Queues
	}
	// A zero-copy driver may refuse chains, so they are asked for only where frames
	// may not fit.
	jumbo := dev.MTU+frameOverhead > int(o.Memory.Chunk())-front
	copied := false
	for q := range n {
		sock, zc, err := p.socket(o, dev.Index, q, jumbo)
		if err != nil {
			return fmt.Errorf("queue %d: %w", q, err)
		}
		copied = copied || !zc
		if err := o.Program.SetSocket(q, sock.fd); err != nil {
			return err
		}
	}
	p.info = graph.PortInfo{Name: o.Interface, MTU: dev.MTU, Mode: "zero-copy"}
	if copied {
		p.info.Mode = "copy"
	}
	copy(p.info.MAC[:], dev.HardwareAddr)
	if p.info.Addrs, err = addresses(dev); err != nil {
		return err
	}
	p.attach = func() (err error) {
		p.prog, err = o.Program.Attach(bpf.AttachOptions{Interface: dev.Index, Mode: o.Mode, Jumbo: jumbo, Replace: o.Replace})
		if err != nil {
			return err
		}
		p.info.Mode = string(p.prog.Mode) + ", " + p.info.Mode
		if p.prog.Refused != nil {
			o.Log.Warn("native XDP is not to be had", zap.String("interface", o.Interface), zap.Error(p.prog.Refused))
		}
		o.Log.Info("interface opened", zap.String("interface", o.Interface), zap.String("mode", p.info.Mode),
			zap.Int("queues", n), zap.Int("mtu", dev.MTU), zap.Bool("chains", jumbo))
		return nil
	}
	if o.Later {
		return nil
	}
	return p.attach()
}

// Start attaches the program of a port that was opened with Options.Later, in the
// network namespace of the calling thread. It is called once, before other
// goroutines use the port.
func (p *Port) Start() error {
	if err := p.attach(); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	return nil
}

// socket opens the socket of queue q and appends it to p.queues.
func (p *Port) socket(o Options, dev, queue int, jumbo bool) (sock *Queue, zeroCopy bool, err error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, explain("socket", err)
	}
	chunk := o.Memory.Chunk()
	q := &Queue{fd: fd, chunk: chunk, shift: uint8(bits.TrailingZeros32(chunk)), sg: jumbo, batch: o.Batch}
	p.queues = append(p.queues, q) // to be closed with it
	first := p.queues[0].fd
	if fd == first {
		if err := register(fd, o.Memory); err != nil {
			return nil, false, err
		}
	}
	for _, opt := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, opt, o.Ring); err != nil {
			return nil, false, explain("ring", err)
		}
	}
	// The kernel sends 32 packets a call unless told; before Linux 6.17 it cannot be.
	_ = unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, o.Ring)
	if err := q.mmap(o.Ring); err != nil {
		return nil, false, err
	}
	addr := unix.SockaddrXDP{Flags: unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(dev), QueueID: uint32(queue)}
	if jumbo {
		addr.Flags |= unix.XDP_USE_SG
	}
	if fd != first {
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(first)
	}
	for end := time.Now().Add(busy); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Bind(fd, &addr)
		switch {
		case err == nil:
			var options uint32
			err := getsockopt(fd, unix.XDP_OPTIONS, unsafe.Pointer(&options), unsafe.Sizeof(options))
			return q, err == nil && options&unix.XDP_OPTIONS_ZEROCOPY != 0, nil
		case errors.Is(err, unix.EBUSY) && time.Now().Before(end):
			continue
		case errors.Is(err, unix.EBUSY):
			return nil, false, ErrBusy
		case jumbo && errors.Is(err, unix.EINVAL) && fd == first:
			return nil, false, fmt.Errorf("%w for chunks of %d bytes: the kernel takes no frames of several chunks (Linux 6.6)", ErrMTU, chunk)
		}
		return nil, false, explain("bind", err)
	}
}

func explain(what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (%s: %w)", ErrPrivilege, what, err)
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOPROTOOPT):
		return fmt.Errorf("%w (%s: %w)", ErrNoXDP, what, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w (%s: %w)", ErrNoInterface, what, err)
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("%w (%s: %w)", ErrMemory, what, err)
	}
	return fmt.Errorf("AF_XDP %s: %w", what, err)
}

// register makes m the memory of the socket and of those that will share it.
func register(fd int, m *umem.Memory) error {
	// struct xdp_umem_reg as Linux 5.4 has it; later kernels take the shorter form.
	reg := struct {
		addr, len              uint64
		chunk, headroom, flags uint32
		_                      uint32
	}{addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes())))), len: uint64(len(m.Bytes())), chunk: m.Chunk()}
	set := func() unix.Errno {
		_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
			uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
		return e
	}
	e := set()
	if e == unix.ENOBUFS && unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) == nil {
		e = set()
	}
	if e != 0 {
		return explain("memory", e)
	}
	return nil
}

func getsockopt(fd, opt int, p unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt),
		uintptr(p), uintptr(unsafe.Pointer(&n)), 0); e != 0 {
		return e
	}
	return nil
}

// mmap maps the four rings.
func (q *Queue) mmap(size int) error {
	var off struct{ rx, tx, fill, done offsets } // struct xdp_mmap_offsets
	if err := getsockopt(q.fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return explain("offsets", err)
	}
	return errors.Join(
		mapRing(&q.rx, q.fd, unix.XDP_PGOFF_RX_RING, off.rx, size),
		mapRing(&q.tx, q.fd, unix.XDP_PGOFF_TX_RING, off.tx, size),
		mapRing(&q.fill, q.fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.fill, size),
		mapRing(&q.done, q.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.done, size),
	)
}

func mapRing[T desc | uint64](r *ring[T], fd int, at int64, o offsets, size int) error {
	var entry T
	mem, err := unix.Mmap(fd, at, int(o.desc)+size*int(unsafe.Sizeof(entry)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return explain("ring", err)
	}
	*r = place[T](mem, o, size)
	return nil
}

// device finds an interface.
func device(name string) (*net.Interface, error) {
	dev, err := net.InterfaceByName(name)
	if err == nil {
		return dev, nil
	}
	// That error does not tell an unknown name from a failure.
	if all, e := net.Interfaces(); e != nil {
		return nil, e
	} else if slices.ContainsFunc(all, func(i net.Interface) bool { return i.Name == name }) {
		return nil, err
	}
	return nil, ErrNoInterface
}

func addresses(dev *net.Interface) (all []netip.Addr, err error) {
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

// Queues answers how many receive queues an interface works with.
func Queues(name string) (int, error) {
	_, err := device(name)
	n := 0
	if err == nil {
		n, err = receiveQueues(name)
	}
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return n, nil
}

// Addresses answers an interface's addresses, in the kernel's order.
func Addresses(name string) ([]netip.Addr, error) {
	dev, err := device(name)
	var all []netip.Addr
	if err == nil {
		all, err = addresses(dev)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return all, nil
}

// receiveQueues answers how many receive queues an interface works with.
func receiveQueues(name string) (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(s) }()
	channels := struct { // struct ethtool_channels
		cmd                                 uint32
		maxRx, maxTx, maxOther, maxCombined uint32
		rx, tx, other, combined             uint32
	}{cmd: unix.ETHTOOL_GCHANNELS}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&channels)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); e != 0 {
		return 1, nil // drivers with one queue need not answer
	}
	return max(1, int(channels.rx+channels.combined)), nil
}

// Queues is part of graph.Port.
func (p *Port) Queues() int { return len(p.queues) }

// Queue is part of graph.Port.
func (p *Port) Queue(q int) graph.Queue { return p.queues[q] }

// Info is part of graph.Port.
func (p *Port) Info() graph.PortInfo { return p.info }

// Attached tells whether the program still stands on the interface.
func (p *Port) Attached() bool { return p.prog != nil && p.prog.Alive() }

// Up tells whether the interface is up and has a carrier.
func (p *Port) Up() bool {
	req, err := unix.NewIfreq(p.name)
	if err != nil || unix.IoctlIfreq(p.ctl, unix.SIOCGIFFLAGS, req) != nil {
		return false
	}
	const up = unix.IFF_UP | unix.IFF_RUNNING
	return req.Uint16()&up == up
}

// Stats is what the kernel counted on one socket (struct xdp_statistics). Packets
// lost are RxDropped + RxRingFull.
type Stats struct {
	RxDropped     uint64 // packets too long for a chunk, or for want of free frames
	RxInvalid     uint64 // entries of the fill ring that name no frame
	TxInvalid     uint64 // entries of the transmit ring that name no frame
	RxRingFull    uint64 // packets dropped because the receive ring was full
	FillRingEmpty uint64 // looks at the fill ring that found nothing
	TxRingEmpty   uint64 // looks at the transmit ring that found nothing
}

// Stats reads the counters of queue q's socket.
func (p *Port) Stats(q int) (s Stats, err error) {
	err = getsockopt(p.queues[q].fd, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	if err != nil {
		err = explain("statistics", err)
	}
	return s, err
}

// Lost is part of graph.Loser: what the kernel dropped on the port's sockets. It
// answers what it could read.
func (p *Port) Lost() map[string]uint64 {
	lost := map[string]uint64{}
	for q := range p.queues {
		s, err := p.Stats(q)
		if err != nil {
			continue
		}
		lost["rx_dropped"] += s.RxDropped
		lost["rx_ring_full"] += s.RxRingFull
		lost["fill_ring_empty"] += s.FillRingEmpty
		lost["fill_invalid"] += s.RxInvalid
		lost["tx_invalid"] += s.TxInvalid
	}
	return lost
}

// Close takes the program off and closes the sockets. What they held of the memory
// is free again only then.
func (p *Port) Close() error {
	var err error
	if p.prog != nil {
		err = p.prog.Close()
		p.prog = nil
	}
	for _, q := range p.queues {
		// A socket stays bound while any of its rings is mapped.
		for _, m := range []*[]byte{&q.rx.mapped, &q.tx.mapped, &q.fill.mapped, &q.done.mapped} {
			if *m != nil {
				err = errors.Join(err, unix.Munmap(*m))
				*m = nil
			}
		}
	}
	for _, q := range p.queues {
		err = errors.Join(err, unix.Close(q.fd))
	}
	p.queues = nil
	if p.ctl >= 0 {
		err = errors.Join(err, unix.Close(p.ctl))
		p.ctl = -1
	}
	return err
}
