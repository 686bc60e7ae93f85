// Package netnstest gives tests network namespaces of their own, joined by veth
// pairs. A namespace has no name in the file system: it is held by a descriptor
// and by what runs inside it, so it is gone when the test's process is, however
// that ends.
//
// Tests that call New are skipped without root, and under -short.
package netnstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// An NS is a network namespace. Its methods may be called from any goroutine.
type NS struct {
	// Link configures the namespace over netlink.
	Link *netlink.Handle
	t    testing.TB
	fd   int
}

// New makes a namespace whose loopback is up. It ends with the test, after all
// that was cleaned up later.
func New(t testing.TB) *NS {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("short: makes network namespaces")
	case os.Geteuid() != 0:
		t.Skip("root: network namespaces need it")
	}
	n := &NS{t: t, fd: -1}
	err := onThread(func() (err error) {
		old, err := open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(old) }()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		n.fd, err = open("/proc/thread-self/ns/net")
		return errors.Join(err, back(old))
	})
	if err == nil {
		n.Link, err = netlink.NewHandleAt(netns.NsHandle(n.fd))
	}
	if err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() {
		n.Link.Close()
		_ = unix.Close(n.fd)
	})
	lo, err := n.Link.LinkByName("lo")
	n.check(err, "loopback")
	n.check(n.Link.LinkSetUp(lo), "loopback")
	return n
}

// Path names the namespace for nsenter --net and the like, while the test runs.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// Do runs f inside the namespace. Sockets that f opens stay there; goroutines
// that f starts do not. f must not end its goroutine (t.FailNow, t.Skip).
func (n *NS) Do(f func()) {
	n.t.Helper()
	err := onThread(func() error {
		old, err := open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(old) }()
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		f()
		return back(old)
	})
	n.check(err, "entering the namespace")
}

// errStuck says that a thread could not leave the namespace.
var errStuck = errors.New("cannot leave the namespace")

func back(old int) error {
	if err := unix.Setns(old, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", errStuck, err)
	}
	return nil
}

// onThread runs f on a thread that runs nothing else meanwhile. A thread that is
// stuck in a namespace ends with its goroutine.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := f()
		if !errors.Is(err, errStuck) {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func open(path string) (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) }

func (n *NS) check(err error, what string) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// Exec runs a command in the namespace for at most 30 seconds and answers what
// it wrote on standard output; a failing one fails the test.
func (n *NS) Exec(name string, args ...string) string {
	n.t.Helper()
	out, err := n.Try(name, args...)
	n.check(err, "running a command")
	return out
}

// Try is Exec for commands that may fail; the error carries standard error.
func (n *NS) Try(name string, args ...string) (string, error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr, c.WaitDelay = &out, &errs, time.Second
	var err error
	n.Do(func() { err = c.Start() })
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.Bytes(), errs.Bytes())
	}
	return out.String(), err
}

// Start starts a command in the namespace. When the test ends and it still runs,
// it gets SIGTERM and, 5 seconds later, SIGKILL. The caller may Wait for it.
func (n *NS) Start(c *exec.Cmd) {
	n.t.Helper()
	if c.SysProcAttr == nil {
		// Pdeathsig is no use here: it fires when the thread ends.
		c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	}
	var err error
	n.Do(func() { err = c.Start() })
	n.check(err, "starting "+c.Path)
	n.t.Cleanup(func() {
		if c.ProcessState != nil {
			return
		}
		_ = c.Process.Signal(unix.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		kill.Stop()
	})
}

// Sysctl sets a kernel parameter of the namespace, such as
// "net.ipv4.ip_forward". A dot in an interface's name is written as a slash.
func (n *NS) Sysctl(name, value string) {
	n.t.Helper()
	path := filepath.Join("/proc/sys", strings.NewReplacer(".", "/", "/", ".").Replace(name))
	var err error
	n.Do(func() { err = os.WriteFile(path, []byte(value), 0o644) })
	n.check(err, "sysctl "+name)
}

// An End is one end of a veth pair as it is to be made.
type End struct {
	NS    *NS
	Name  string
	Addrs []string // with prefix length: "10.0.0.1/24"; IPv6 skips duplicate detection
	// Queues is the number of receive and of transmit queues; 0 is 1. XDP in
	// native mode needs at least as many here as the other end has.
	Queues int
	MTU    int // 0 is 1500
	// Offload leaves checksum and segmentation offload on. Packets that the kernel
	// sends through an end with offload carry no TCP or UDP checksum, and may be
	// larger than the MTU; VLAN tags stand beside the frame.
	Offload bool
}

// Veth makes a pair, brings both ends up, and waits until they carry packets.
func Veth(a, b End) {
	t := a.NS.t
	t.Helper()
	q := func(e End) int { return max(e.Queues, 1) }
	mtu := func(e End) int {
		if e.MTU == 0 {
			return 1500
		}
		return e.MTU
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumRxQueues, attrs.NumTxQueues = a.Name, mtu(a), q(a), q(a)
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU, v.PeerNamespace = b.Name, uint32(mtu(b)), netlink.NsFd(b.NS.fd)
	v.PeerNumRxQueues, v.PeerNumTxQueues = uint32(q(b)), uint32(q(b))
	a.NS.check(a.NS.Link.LinkAdd(v), "making "+a.Name+" and "+b.Name)
	t.Cleanup(func() {
		// A process that outlives the test would keep the namespaces.
		if l, err := a.NS.Link.LinkByName(a.Name); err == nil {
			_ = a.NS.Link.LinkDel(l)
		}
	})
	for _, e := range []End{a, b} {
		l := e.NS.link(e.Name)
		if !e.Offload {
			var err error
			e.NS.Do(func() { err = offloadsOff(e.Name) })
			e.NS.check(err, "switching offloads of "+e.Name+" off")
		}
		// Without it the kernel's own router solicitations and listener reports
		// mix into what a test counts.
		e.NS.Sysctl("net.ipv6.conf."+strings.ReplaceAll(e.Name, ".", "/")+".router_solicitations", "0")
		for _, s := range e.Addrs {
			addr, err := netlink.ParseAddr(s)
			e.NS.check(err, "address "+s)
			if addr.IP.To4() == nil {
				addr.Flags |= unix.IFA_F_NODAD
			}
			e.NS.check(e.NS.Link.AddrAdd(l, addr), "address "+s)
		}
		e.NS.check(e.NS.Link.LinkSetUp(l), e.Name)
	}
	for _, e := range []End{a, b} {
		for end := time.Now().Add(5 * time.Second); e.NS.link(e.Name).Attrs().OperState != netlink.OperUp; {
			if time.Now().After(end) {
				t.Fatalf("%s does not come up", e.Name)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func (n *NS) link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.Link.LinkByName(name)
	n.check(err, "interface "+name)
	return l
}

// MAC answers the hardware address of an interface.
func (n *NS) MAC(name string) [6]byte {
	n.t.Helper()
	return [6]byte(n.link(name).Attrs().HardwareAddr)
}

// Index answers the number of an interface.
func (n *NS) Index(name string) int {
	n.t.Helper()
	return n.link(name).Attrs().Index
}

// Route adds a route to dst through the gateway via; dst "0.0.0.0/0" and "::/0"
// are the default routes. With an empty via, dst is on the link dev.
func (n *NS) Route(dst, via, dev string) {
	n.t.Helper()
	p, err := netip.ParsePrefix(dst)
	n.check(err, "route to "+dst)
	r := netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if via != "" {
		r.Gw = net.ParseIP(via)
	}
	if dev != "" {
		r.LinkIndex = n.link(dev).Attrs().Index
	}
	n.check(n.Link.RouteAdd(&r), "route to "+dst)
}

// Neigh sets the hardware address of a neighbour for good, so that no ARP or
// neighbour discovery mixes into what a test counts.
func (n *NS) Neigh(dev, ip string, mac [6]byte) {
	n.t.Helper()
	a := net.ParseIP(ip)
	family := unix.AF_INET6
	if a.To4() != nil {
		family = unix.AF_INET
	}
	n.check(n.Link.NeighSet(&netlink.Neigh{
		LinkIndex: n.link(dev).Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: a, HardwareAddr: mac[:],
	}), "neighbour "+ip)
}

// The ethtool commands (linux/ethtool.h) that switch off what lets the kernel
// hand over unfinished or merged packets.
var offloads = [...]uint32{
	0x1f, // ETHTOOL_STSO: TCP segmentation
	0x24, // ETHTOOL_SGSO: generic segmentation
	0x2c, // ETHTOOL_SGRO: generic receive merging
	0x17, // ETHTOOL_STXCSUM: transmit checksums
	0x26, // ETHTOOL_SFLAGS: VLAN tags kept outside the frame
}

func offloadsOff(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	for _, cmd := range offloads {
		value := struct{ cmd, data uint32 }{cmd: cmd}
		req := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(req.name[:unix.IFNAMSIZ-1], name)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); e != 0 {
			return fmt.Errorf("ethtool command %#x: %w", cmd, e)
		}
	}
	return nil
}
