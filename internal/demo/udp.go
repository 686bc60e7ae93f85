package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Ask sends count datagrams of size bytes to a UDP backend, each from a socket of
// its own and after the answer to the one before, and writes who answered, a line
// each. A datagram that is not answered whole within two seconds is an error.
func Ask(ctx context.Context, w io.Writer, to netip.AddrPort, count, size int) error {
	for range count {
		name, err := ask(ctx, to, size)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w, name); err != nil {
			return err
		}
	}
	return nil
}

func ask(ctx context.Context, to netip.AddrPort, size int) (name string, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	question := make([]byte, size)
	if _, err := io.ReadFull(Bytes(int64(size)), question); err != nil {
		return "", err
	}
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write(question); err != nil {
		return "", err
	}
	answer := make([]byte, 64<<10)
	n, err := c.Read(answer)
	if err != nil {
		return "", err
	}
	head, body, ok := bytes.Cut(answer[:n], []byte("\n"))
	if !ok || !bytes.Equal(body, question) {
		return "", fmt.Errorf("%s: sent %d bytes, got back others", head, size)
	}
	return string(head), nil
}

// PathMTU sends a datagram that fills an IPv4 packet of mtu bytes and must not be
// fragmented, and answers the path MTU that the network then reports for to.
func PathMTU(ctx context.Context, to netip.AddrPort, mtu int) (int, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp4", to.String())
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}); err != nil || failed != nil {
		return 0, errors.Join(err, failed)
	}
	if _, err := c.Write(make([]byte, mtu-28)); err != nil && !errors.Is(err, unix.EMSGSIZE) {
		return 0, err
	}
	known := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := raw.Control(func(fd uintptr) {
			known, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		}); err != nil || failed != nil {
			return 0, errors.Join(err, failed)
		}
		if known < mtu {
			break
		}
	}
	return known, nil
}
