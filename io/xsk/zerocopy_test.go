package xsk

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/bpf"
)

// TestCopyWhereTheDriverCannot: a veth refuses zero-copy by name, and a port on it
// works by copying and says so. No driver that can is to be had in a test: what
// flags 0 chooses there is the kernel's own doing (xsk_bind in net/xdp/xsk.c).
func TestCopyWhereTheDriverCannot(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := memory(t, 256, 2048)
	var err error
	l.balancer.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer func() { _ = unix.Close(fd) }()
		if err = register(fd, m); err != nil {
			return
		}
		for _, opt := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
			if err = unix.SetsockoptInt(fd, unix.SOL_XDP, opt, 64); err != nil {
				return
			}
		}
		err = unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_ZEROCOPY, Ifindex: uint32(l.balancer.Index("b0")), QueueID: 0})
	})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatalf("zero-copy on a veth: %v", err)
	}
	p := l.mustOpen(Options{Ring: 64, Memory: m, Program: program(t)})
	if mode := p.Info().Mode; mode != "native, copy" {
		t.Errorf("the port's mode is %q", mode)
	}
	if p.prog.Mode != bpf.Native {
		t.Errorf("XDP runs in mode %q", p.prog.Mode)
	}
}
