package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace without a name: it is gone with the process.
type space struct {
	fd   int
	link *netlink.Handle
}

func newSpace() (*space, error) {
	s := &space{fd: -1}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() (err error) {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return err
		}()
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("making a network namespace (it needs root): %w", err)
	}
	var err error
	if s.link, err = netlink.NewHandleAt(netns.NsHandle(s.fd)); err != nil {
		_ = unix.Close(s.fd)
		return nil, err
	}
	lo, err := s.link.LinkByName("lo")
	if err == nil {
		err = s.link.LinkSetUp(lo)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *space) close() {
	s.link.Close()
	_ = unix.Close(s.fd)
}

// do runs f on a thread inside the namespace, which ends with it.
func (s *space) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(s.fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering a namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// pair joins two namespaces by a veth pair of so many queues a side. addr is that of
// b's end, with its prefix length.
func pair(a *space, nameA string, b *space, nameB, addr string, queues int) (err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumRxQueues, attrs.NumTxQueues = nameA, queues, queues
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace = nameB, netlink.NsFd(b.fd)
	v.PeerNumRxQueues, v.PeerNumTxQueues = uint32(queues), uint32(queues)
	if err := a.link.LinkAdd(v); err != nil {
		return fmt.Errorf("making %s and %s: %w", nameA, nameB, err)
	}
	for _, e := range []struct {
		s    *space
		name string
	}{{a, nameA}, {b, nameB}} {
		// The kernel's own packets would mix into what is counted.
		for _, f := range []string{"disable_ipv6", "accept_ra"} {
			path := "/proc/sys/net/ipv6/conf/" + e.name + "/" + f
			value := map[string]string{"disable_ipv6": "1", "accept_ra": "0"}[f]
			if err := e.s.do(func() error { return os.WriteFile(path, []byte(value), 0o644) }); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		l, err := e.s.link.LinkByName(e.name)
		if err != nil {
			return err
		}
		if e.s == b {
			ip, err := netlink.ParseAddr(addr)
			if err != nil {
				return err
			}
			if err := e.s.link.AddrAdd(l, ip); err != nil {
				return err
			}
		}
		if err := e.s.link.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// device answers an interface's index and MAC address, and how many packets it would
// not send because the other end had no room.
func (s *space) device(name string) (index int, mac [6]byte, refused uint64, err error) {
	l, err := s.link.LinkByName(name)
	if err != nil {
		return 0, mac, 0, fmt.Errorf("interface %s: %w", name, err)
	}
	copy(mac[:], l.Attrs().HardwareAddr)
	if st := l.Attrs().Statistics; st != nil {
		refused = st.TxDropped
	}
	return l.Attrs().Index, mac, refused, nil
}

// places says which processor runs what. Where there are enough, every loop and every
// lane of the source has one of its own, and the rest of the process another.
type places struct{ cpus int }

// loop is the processor of a device's i-th loop.
func (p places) loop(i int) int { return i % p.cpus }

// source is the processor of the source's i-th lane, for a device of n loops. The
// kernel's receive side of the device runs there too.
func (p places) source(i, n int) int { return (n + i) % p.cpus }

// shared tells whether loops and sources of a device of n loops share processors.
func (p places) shared(n int) bool { return 2*n > p.cpus }

// pin has the calling thread run on one processor.
func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// prefer gives all threads that the process has, and those it will have, a priority,
// and the session too: where sessions share the processors out among themselves
// (sched(7), autogroup), threads compete within theirs alone. back undoes the latter.
func prefer(nice int) (back func()) {
	for _, tid := range threads() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice) // it may have ended, or not be allowed
	}
	const session = "/proc/self/autogroup"
	text, err := os.ReadFile(session)
	if err != nil {
		return func() {}
	}
	_, was, _ := strings.Cut(strings.TrimSpace(string(text)), "nice ")
	_ = os.WriteFile(session, []byte(strconv.Itoa(nice)), 0)
	return func() { _ = os.WriteFile(session, []byte(was), 0) }
}

func threads() (all []int) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			all = append(all, tid)
		}
	}
	return all
}

// aside keeps all threads that the process has, and those it will have, off the first
// n processors, as far as there are others.
func aside(n, cpus int) {
	var set unix.CPUSet
	for c := n; c < cpus; c++ {
		set.Set(c)
	}
	if set.Count() == 0 {
		for c := range cpus {
			set.Set(c)
		}
	}
	for _, tid := range threads() {
		_ = unix.SchedSetaffinity(tid, &set) // it may have ended
	}
}

// machine describes what the figures are of, in a line.
func machine(cpus int) string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d processors, kernel %s, load %s", cpus, unix.ByteSliceToString(u.Release[:]), first)
}
