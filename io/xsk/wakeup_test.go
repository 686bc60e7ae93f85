package xsk

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/packet"
)

// The kernel is called only when it asks to be, and there is something for it. What
// stands in for the socket hears every call.
func TestTheKernelIsCalledWhenItAsks(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	calls := func() (n int) {
		for {
			if _, _, err := unix.Recvfrom(ends[1], nil, unix.MSG_DONTWAIT); err != nil {
				return n
			}
			n++
		}
	}
	const frames = 64
	m := newMemQueue(make([]byte, frames*chunk), 32, 0)
	u := newUser(t, m, frames)
	m.fd = ends[0]
	put := func(n int) {
		for i := range n {
			f := u.free[i]
			u.v.Frame[i], u.v.Start[i], u.v.Len[i], u.v.Total[i], u.v.Chain[i] = f, f*chunk+front, 60, 60, packet.NoFrame
		}
		if taken := m.Transmit(&u.v, packet.All(n)); taken != packet.All(n) {
			t.Fatalf("taken %b", taken)
		}
	}
	for _, asks := range []uint32{0, wakeup} {
		atomic.StoreUint32(m.tx.flags, asks)
		m.Flush()
		if n := calls(); n != 0 {
			t.Errorf("asks %d: %d calls for nothing", asks, n)
		}
		put(3)
		m.Flush()
		if n := calls(); n != int(asks) {
			t.Errorf("asks %d: %d calls", asks, n)
		}
		m.k.send(2) // one is left: the kernel had no memory
		m.Flush()
		if n := calls(); n != int(asks) {
			t.Errorf("asks %d: %d calls for what was left", asks, n)
		}
		m.k.send(1)
		m.Flush()
		if n := calls(); n != 0 {
			t.Errorf("asks %d: %d calls when all was sent", asks, n)
		}
		u.reclaim(3)
	}
}
