package runtime

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// waker is an eventfd that a sleeping loop polls.
type waker struct{ event int }

func newWaker() (waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return waker{}, fmt.Errorf("eventfd: %w", err)
	}
	return waker{fd}, nil
}

func (w waker) fd() int { return w.event }

func (w waker) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// The only failure is a counter that is full, which wakes as well.
	_, _ = unix.Write(w.event, one[:])
}

func (w waker) drain() {
	var n [8]byte
	_, _ = unix.Read(w.event, n[:])
}

func (w waker) close() { _ = unix.Close(w.event) }

// pollFDs waits until one of fds is readable, at most ms milliseconds, after which it
// answers false. A signal does not end it.
func pollFDs(fds []int, ms int) bool {
	var room [16]unix.PollFd
	p := room[:0]
	for _, fd := range fds {
		p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); ; {
		n, err := unix.Poll(p, ms)
		if err == unix.EINTR {
			// Go's runtime sends signals to its threads, which are nothing to look for.
			ms = int((max(0, time.Until(end)) + time.Millisecond - 1) / time.Millisecond)
			continue
		}
		if err != nil {
			// A descriptor was closed under us: do not spin on it.
			time.Sleep(time.Millisecond)
		}
		return n != 0
	}
}

func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// unpinThread gives the thread back to all CPUs that the process may use.
func unpinThread() {
	var set unix.CPUSet
	if unix.SchedGetaffinity(unix.Getpid(), &set) == nil {
		_ = unix.SchedSetaffinity(0, &set)
	}
}
