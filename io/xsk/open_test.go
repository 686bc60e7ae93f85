package xsk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/netnstest"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/umem"
)

// lab is a balancer's interface b0 and a client's c0 on one wire.
type lab struct {
	t        testing.TB
	client   *netnstest.NS
	balancer *netnstest.NS
	raw      int // a packet socket on c0
	mac      [6]byte
	from     [6]byte
}

func newLab(t testing.TB, queues, mtu int) *lab {
	l := &lab{t: t, client: netnstest.New(t), balancer: netnstest.New(t)}
	netnstest.Veth(
		netnstest.End{NS: l.client, Name: "c0", Queues: queues, MTU: mtu},
		netnstest.End{NS: l.balancer, Name: "b0", Addrs: []string{"10.1.0.2/24", "fd01::2/64"}, Queues: queues, MTU: mtu})
	l.mac, l.from = l.balancer.MAC("b0"), l.client.MAC("c0")
	var err error
	l.client.Do(func() {
		if l.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err == nil {
			err = unix.Bind(l.raw, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.client.Index("c0")})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(l.raw) })
	if err := unix.SetsockoptTimeval(l.raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
		t.Fatal(err)
	}
	// What the client's kernel sends is not heard.
	if err := unix.SetsockoptInt(l.raw, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(l.raw, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	return l
}

func htons(x uint16) uint16 { return x<<8 | x>>8 }

// udp makes a frame from the client to an address and port, of size bytes in all.
func (l *lab) udp(to string, port uint16, number uint32, size int) []byte {
	b := make([]byte, size)
	copy(b, l.mac[:])
	copy(b[6:], l.from[:])
	b[12] = 8
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, packet.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], []byte{10, 1, 0, 1})
	copy(ip[16:], netip.MustParseAddr(to).AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(ip[20:], 5000)
	binary.BigEndian.PutUint16(ip[22:], port)
	binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-20))
	binary.BigEndian.PutUint32(ip[28:], number)
	for i := 32; i < len(ip); i++ {
		ip[i] = byte(i) * 7
	}
	return b
}

func (l *lab) send(frames ...[]byte) {
	l.t.Helper()
	for _, b := range frames {
		if _, err := unix.Write(l.raw, b); err != nil {
			l.t.Fatalf("sending %d bytes: %v", len(b), err)
		}
	}
}

// heard answers the next frame from the VIP that comes to the client, nil if none
// does in time.
func (l *lab) heard() []byte {
	b := make([]byte, 65536)
	for {
		n, err := unix.Read(l.raw, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		if n > 34 && binary.BigEndian.Uint16(b[12:]) == 0x0800 && bytes.Equal(b[26:29], []byte{203, 0, 113}) {
			return b[:n]
		}
	}
}

// rules are those of the tests: 203.0.113.10 udp/4500.
func rules(t testing.TB) *bpf.Rules {
	r, err := bpf.RulesOf(state.Spec{VIPs: []state.VIPSpec{{
		Name: "vip", Prefix: netip.MustParsePrefix("203.0.113.10/32"), Protocol: 17, Ports: []state.PortRange{{Lo: 4500, Hi: 4500}},
	}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func program(t testing.TB) *bpf.Admission {
	a, err := bpf.NewAdmission()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	if err := a.Update(rules(t)); err != nil {
		t.Fatal(err)
	}
	return a
}

func memory(t testing.TB, frames int, chunk uint32) *umem.Memory {
	m, err := umem.New(frames, chunk, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func (l *lab) open(o Options) (p *Port, err error) {
	if o.Interface == "" {
		o.Interface = "b0"
	}
	l.balancer.Do(func() { p, err = Open(o) })
	if err == nil {
		l.t.Cleanup(func() { _ = p.Close() })
	}
	return p, err
}

func (l *lab) mustOpen(o Options) *Port {
	l.t.Helper()
	p, err := l.open(o)
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// core runs all queues of a port as a loop would, and sends everything back.
type core struct {
	t     testing.TB
	port  *Port
	mem   *umem.Memory
	v     packet.Vector
	free  []uint32
	done  [64]uint32
	got   int
	chain int // received in more than one frame
	lost  int // not taken by Transmit
	out   int // queue to send by; −1 is the one it came by
	prep  func(v *packet.Vector, lane int)
}

func newCore(t testing.TB, p *Port, m *umem.Memory) *core {
	c := &core{t: t, port: p, mem: m, out: -1}
	c.v.Mem, c.v.Links = m.Bytes(), make([]packet.Link, m.Frames())
	for f := range m.Frames() {
		c.free = append(c.free, uint32(f))
	}
	return c
}

func (c *core) release(i int) {
	c.free = append(c.free, c.v.Frame[i])
	for f := c.v.Chain[i]; f != packet.NoFrame; f = c.v.Links[f].Next {
		c.free = append(c.free, f)
	}
}

// pass is one look at every queue.
func (c *core) pass() (n int) {
	for _, q := range c.port.queues {
		for k := q.Reclaim(c.done[:]); k > 0; k = q.Reclaim(c.done[:]) {
			c.free = append(c.free, c.done[:k]...)
		}
		c.free = c.free[q.Refill(c.free[:min(len(c.free), 256)]):]
		k := q.Receive(&c.v)
		n += k
		out := q
		if c.out >= 0 {
			out = c.port.queues[c.out]
		}
		for j := range k {
			packet.SwapMACs(c.v.Bytes(j))
			copyAddrs(c.v.Bytes(j)[14:])
			if c.v.Chain[j] != packet.NoFrame {
				c.chain++
			}
			if c.prep != nil {
				c.prep(&c.v, j)
			}
		}
		taken := out.Transmit(&c.v, packet.All(k))
		for l := packet.All(k) &^ taken; l != 0; l &= l - 1 {
			c.lost++
			c.release(l.Next())
		}
		out.Flush()
		if out != q {
			q.Flush()
		}
	}
	c.got += n
	return n
}

// copyAddrs exchanges the addresses of an IPv4 header.
func copyAddrs(ip []byte) {
	s, d := [4]byte(ip[12:]), [4]byte(ip[16:])
	copy(ip[12:], d[:])
	copy(ip[16:], s[:])
}

// check counts the frames.
func (c *core) check() {
	c.t.Helper()
	sum := len(c.free)
	for i, q := range c.port.queues {
		k := q.Census()
		sum += k.Fill + k.Rx + k.Tx + k.Completion
		if min(k.Fill, k.Rx, k.Tx, k.Completion) < 0 {
			c.t.Errorf("queue %d: %+v", i, k)
		}
	}
	if sum != c.mem.Frames() {
		c.t.Errorf("%d frames of %d", sum, c.mem.Frames())
	}
}

// until runs passes until f holds, for at most three seconds.
func (c *core) until(what string, f func() bool) {
	c.t.Helper()
	for end := time.Now().Add(3 * time.Second); !f(); {
		if time.Now().After(end) {
			c.t.Errorf("waited in vain until %s (%d received)", what, c.got)
			return
		}
		if c.pass() == 0 {
			fds := make([]unix.PollFd, 0, len(c.port.queues))
			for _, q := range c.port.queues {
				fds = append(fds, unix.PollFd{Fd: int32(q.FD()), Events: unix.POLLIN})
			}
			_, _ = unix.Poll(fds, 5)
		}
		c.check()
	}
}

func modes(t *testing.T, f func(t *testing.T, mode bpf.Mode)) {
	for _, m := range []bpf.Mode{bpf.Native, bpf.Generic} {
		t.Run(string(m), func(t *testing.T) { f(t, m) })
	}
}

func TestThereAndBack(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 1, 1500)
		m := memory(t, 2048, 2048)
		prog := program(t)
		p := l.mustOpen(Options{Mode: mode, Ring: 512, Memory: m, Program: prog})
		info := p.Info()
		if info.Name != "b0" || info.MAC != l.mac || info.MTU != 1500 || info.Mode != string(mode)+", copy" || p.Queues() != 1 {
			t.Errorf("%+v, %d queues", info, p.Queues())
		}
		if len(info.Addrs) < 2 || info.Addrs[0] != netip.MustParseAddr("10.1.0.2") || info.Addrs[1] != netip.MustParseAddr("fd01::2") {
			t.Errorf("addresses %v", info.Addrs)
		}
		if !p.Attached() {
			t.Error("not attached")
		}
		c := newCore(t, p, m)
		c.pass() // fills
		for round := range 10 {
			for i := range 100 {
				l.send(l.udp("203.0.113.10", 4500, uint32(round*100+i), 60+i*14))
			}
			c.until("the round is received", func() bool { return c.got >= (round+1)*100 })
		}
		for i := range 1000 {
			b := l.heard()
			if b == nil {
				t.Fatalf("frame %d does not come back", i)
			}
			want := l.udp("203.0.113.10", 4500, uint32(i), 60+i%100*14)
			packet.SwapMACs(want)
			copyAddrs(want[14:])
			if !bytes.Equal(b, want) {
				t.Fatalf("frame %d comes back as %x, want %x", i, b, want)
			}
		}
		c.until("all is quiet", func() bool {
			k := p.queues[0].Census()
			return k.Tx+k.Rx+k.Completion == 0
		})
		if c.lost != 0 {
			t.Errorf("%d not taken", c.lost)
		}
		s, err := p.Stats(0)
		if err != nil || s.RxDropped+s.RxInvalid+s.TxInvalid+s.RxRingFull+s.FillRingEmpty != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		n, err := prog.Counts()
		if err != nil || n.Redirected.Packets != 1000 || n.VIPs["vip"] != (bpf.VIPCount{Packets: 1000, Bytes: n.Redirected.Bytes}) {
			t.Errorf("%+v, %v", n, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if dev := l.balancer.Exec("ip", "-d", "link", "show", "b0"); strings.Contains(dev, "xdp") {
			t.Errorf("left behind: %s", dev)
		}
	})
}

// What is not ours reaches the kernel; a wrong port does not.
func TestTheRestPasses(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 1, 1500)
		m := memory(t, 1024, 2048)
		prog := program(t)
		p := l.mustOpen(Options{Mode: mode, Ring: 256, Memory: m, Program: prog})
		c := newCore(t, p, m)
		c.pass()
		l.client.Exec("ip", "addr", "add", "10.1.0.1/24", "dev", "c0")
		var in, wrong int
		var err error
		l.balancer.Exec("ip", "addr", "add", "203.0.113.10/32", "dev", "lo")
		l.balancer.Do(func() {
			if in, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
				err = unix.Bind(in, &unix.SockaddrInet4{Port: 4500})
			}
			if wrong, _ = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
				err = unix.Bind(wrong, &unix.SockaddrInet4{Port: 81})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = unix.Close(in), unix.Close(wrong) }()
		l.send(l.udp("203.0.113.10", 81, 1, 80), l.udp("10.1.0.2", 4500, 2, 80), l.udp("203.0.113.10", 4500, 3, 80))
		c.until("the VIP's packet is received", func() bool { return c.got >= 1 })
		b := make([]byte, 100)
		_ = unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
		if n, err := unix.Read(in, b); err != nil || n != 80-42 || binary.BigEndian.Uint32(b) != 2 {
			t.Errorf("the kernel hears %x, %v", b[:max(n, 0)], err)
		}
		for _, s := range []int{in, wrong} {
			if n, _, err := unix.Recvfrom(s, b, unix.MSG_DONTWAIT); err != unix.EAGAIN {
				t.Errorf("the kernel hears %d bytes too many (%v)", n, err)
			}
		}
		n, err := prog.Counts()
		if err != nil || n.Redirected.Packets != 1 || n.Dropped[bpf.WrongPort].Packets != 1 || n.VIPs["vip"] != (bpf.VIPCount{Packets: 2, Bytes: 160, Dropped: 1}) {
			t.Errorf("%+v, %v", n, err)
		}
	})
}

// Frames received on one socket leave by another.
func TestQueuesShareTheMemory(t *testing.T) {
	l := newLab(t, 4, 1500)
	m := memory(t, 4096, 2048)
	p := l.mustOpen(Options{Ring: 256, Memory: m, Program: program(t)})
	if p.Queues() != 4 || p.Info().Mode != "native, copy" {
		t.Fatalf("%d queues, %s", p.Queues(), p.Info().Mode)
	}
	c := newCore(t, p, m)
	c.out = 3
	c.pass()
	by := map[int]bool{}
	queue := 0
	for i := range 400 {
		// The client's kernel spreads packets by CPU or hash; either is fine.
		b := l.udp("203.0.113.10", 4500, uint32(i), 80)
		binary.BigEndian.PutUint16(b[34:], uint16(i))
		l.send(b)
	}
	for i, q := range p.queues {
		if q.Census().Rx > 0 {
			by[i] = true
			queue = i
		}
	}
	c.until("all are received", func() bool { return c.got >= 400 })
	for i := range 400 {
		if l.heard() == nil {
			t.Fatalf("%d of 400 come back", i)
		}
	}
	c.until("all is quiet", func() bool { k := p.queues[3].Census(); return k.Tx+k.Completion == 0 })
	t.Logf("received by %d queues, the last of them %d", len(by), queue)
	if len(by) == 0 || len(by) == 1 && queue == 3 {
		t.Error("nothing crossed from one socket to another")
	}
}

// Long packets come and go as chains.
func TestJumbo(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 1, 9000)
		m := memory(t, 4096, 2048)
		p := l.mustOpen(Options{Mode: mode, Ring: 1024, Memory: m, Program: program(t)})
		if !strings.HasPrefix(p.Info().Mode, string(mode)) {
			t.Errorf("mode %s", p.Info().Mode)
		}
		c := newCore(t, p, m)
		c.prep = func(v *packet.Vector, i int) {
			total := v.Len[i]
			for f := v.Chain[i]; f != packet.NoFrame; f = v.Links[f].Next {
				total += v.Links[f].Len
			}
			if total != v.Total[i] {
				t.Errorf("a packet of %d bytes says %d", total, v.Total[i])
			}
		}
		c.pass()
		sizes := []int{60, 1792, 1793, 3584, 3585, 5000, 9014}
		for round := range 30 {
			for i, size := range sizes {
				l.send(l.udp("203.0.113.10", 4500, uint32(round*len(sizes)+i), size))
			}
			c.until("the round is received", func() bool { return c.got >= (round+1)*len(sizes) })
		}
		for i := range 30 * len(sizes) {
			want := l.udp("203.0.113.10", 4500, uint32(i), sizes[i%len(sizes)])
			packet.SwapMACs(want)
			copyAddrs(want[14:])
			if b := l.heard(); !bytes.Equal(b, want) {
				t.Fatalf("frame %d of %d bytes comes back with %d", i, len(want), len(b))
			}
		}
		c.until("all is quiet", func() bool { k := p.queues[0].Census(); return k.Tx+k.Rx+k.Completion == 0 })
		if c.chain != 30*5 || c.lost != 0 {
			t.Errorf("%d chains, %d not taken", c.chain, c.lost)
		}
	})
}

// A port can be opened again at once, although the kernel frees queues late.
func TestCloseAndReopen(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 2, 1500)
		m := memory(t, 1024, 2048)
		prog := program(t)
		for i := range 8 {
			p := l.mustOpen(Options{Mode: mode, Ring: 128, Memory: m, Program: prog})
			c := newCore(t, p, m)
			c.pass()
			l.send(l.udp("203.0.113.10", 4500, uint32(i), 80))
			c.until("a packet is received", func() bool { return c.got >= 1 })
			if l.heard() == nil {
				t.Fatalf("round %d: nothing comes back", i)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// VIP traffic that finds no socket ends in the program.
func TestNoSocket(t *testing.T) {
	l := newLab(t, 4, 1500)
	m := memory(t, 1024, 2048)
	prog := program(t)
	p := l.mustOpen(Options{Ring: 128, Queues: 1, Memory: m, Program: prog})
	if p.Queues() != 1 {
		t.Fatalf("%d queues", p.Queues())
	}
	c := newCore(t, p, m)
	c.pass()
	for i := range 200 {
		b := l.udp("203.0.113.10", 4500, uint32(i), 80)
		binary.BigEndian.PutUint16(b[34:], uint16(i*77))
		l.send(b)
	}
	c.until("all are received or dropped", func() bool {
		n, err := prog.Counts()
		if err != nil {
			t.Fatal(err)
		}
		return c.got+int(n.Dropped[bpf.NoSocket].Packets) == 200 && n.VIPs["vip"].Packets == 200
	})
}

// TestBusy: who opens a queue that is taken waits, and has it as soon as it is free;
// if it stays taken, that is said.
func TestBusy(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := memory(t, 256, 2048)
	p := l.mustOpen(Options{Ring: 64, Memory: m, Program: program(t)})
	begin := time.Now()
	_, err := l.open(Options{Ring: 64, Memory: m, Program: program(t)})
	if !errors.Is(err, ErrBusy) || time.Since(begin) < busy/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	if !p.Attached() {
		t.Error("the first port suffered")
	}
	for range 5 {
		var next *Port
		more, prog := memory(t, 256, 2048), program(t)
		opened := make(chan error, 1)
		begin := time.Now()
		go func() {
			var err error
			next, err = l.open(Options{Ring: 64, Memory: more, Program: prog})
			opened <- err
		}()
		select {
		case err := <-opened:
			t.Fatalf("a queue that is taken: %v after %v", err, time.Since(begin))
		case <-time.After(busy / 5):
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		free := time.Since(begin)
		if err = <-opened; err == nil {
			c := newCore(t, next, more)
			c.pass()
			l.send(l.udp("203.0.113.10", 4500, 1, 80))
			c.until("a packet is received", func() bool { return c.got >= 1 })
			return
		}
		if free < busy/2 {
			break
		}
		// The machine was too busy to free it in time.
		p = l.mustOpen(Options{Ring: 64, Memory: m, Program: program(t)})
	}
	t.Errorf("a queue that is free again: %v", err)
}

// A process that is killed leaves nothing behind, and its place can be taken at
// once.
func TestKilled(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 2, 1500)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "XSK_TEST_OPEN="+string(mode))
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		child.Stderr = os.Stderr
		l.balancer.Start(child)
		ready := make([]byte, 6)
		if _, err := io.ReadFull(out, ready); err != nil || string(ready) != "ready\n" {
			t.Fatalf("the child says %q, %v", ready, err)
		}
		if s := l.balancer.Exec("ip", "-d", "link", "show", "b0"); !strings.Contains(s, "xdp") {
			t.Fatalf("the child attached nothing: %s", s)
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		m := memory(t, 1024, 2048)
		p := l.mustOpen(Options{Mode: mode, Ring: 128, Memory: m, Program: program(t)})
		c := newCore(t, p, m)
		c.pass()
		l.send(l.udp("203.0.113.10", 4500, 1, 80))
		c.until("a packet is received", func() bool { return c.got >= 1 })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if s := l.balancer.Exec("ip", "-d", "link", "show", "b0"); strings.Contains(s, "xdp") {
			t.Errorf("left behind: %s", s)
		}
	})
}

// TestMain is also the process that TestKilled kills.
func TestMain(m *testing.M) {
	mode := os.Getenv("XSK_TEST_OPEN")
	if mode == "" {
		os.Exit(m.Run())
	}
	mem, err := umem.New(1024, 2048, false)
	var prog *bpf.Admission
	if err == nil {
		prog, err = bpf.NewAdmission()
	}
	if err == nil {
		_, err = Open(Options{Interface: "b0", Mode: bpf.Mode(mode), Ring: 128, Memory: mem, Program: prog})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	time.Sleep(time.Minute)
}

// foreign attaches a program that is not ours.
func (l *lab) foreign(flags link.XDPAttachFlags) (*ebpf.Program, link.Link) {
	l.t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = prog.Close() })
	var on link.Link
	l.balancer.Do(func() {
		on, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.balancer.Index("b0"), Flags: flags})
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = on.Close() })
	return prog, on
}

func TestForeignProgram(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 1, 1500)
		m := memory(t, 256, 2048)
		// It stands in the other mode.
		flags := link.XDPGenericMode
		if mode == bpf.Generic {
			flags = link.XDPDriverMode
		}
		prog, on := l.foreign(flags)
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		o := Options{Mode: mode, Ring: 64, Memory: m, Program: program(t)}
		_, err = l.open(o)
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "somebody") || !strings.Contains(err.Error(), "interface b0") {
			t.Errorf("%v", err)
		}
		if want := "program " + strconv.Itoa(int(id)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
		if x, err := on.Info(); err != nil || x.XDP().Ifindex == 0 {
			t.Errorf("the foreign program was taken off: %v", err)
		}
		o.Replace = true
		p := l.mustOpen(o)
		c := newCore(t, p, m)
		c.pass()
		l.send(l.udp("203.0.113.10", 4500, 1, 80))
		c.until("a packet is received", func() bool { return c.got >= 1 })
	})
}

// Each thing that can stand in the way is told apart and leaves nothing behind.
func TestRefusals(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := memory(t, 256, 2048)
	prog := program(t)
	heap, err := umem.Heap(256, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    Options
		want error // nil is any
		text string
	}{
		{"unknown interface", Options{Interface: "nothere"}, ErrNoInterface, "interface nothere: no such interface"},
		{"too many queues", Options{Queues: 2}, ErrQueues, "2 wanted, it has 1"},
		{"ring", Options{Ring: 100}, nil, "power of two"},
		{"heap", Options{Memory: heap}, nil, "memory that the kernel can share"},
	} {
		if c.o.Memory == nil {
			c.o.Memory = m
		}
		c.o.Program = prog
		_, err := l.open(c.o)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	l.balancer.Do(func() {
		if n, err := Queues("b0"); n != 1 || err != nil {
			t.Errorf("%d queues, %v", n, err)
		}
		if _, err := Queues("nothere"); !errors.Is(err, ErrNoInterface) {
			t.Errorf("%v", err)
		}
		if a, err := Addresses("b0"); len(a) < 2 || a[1] != netip.MustParseAddr("fd01::2") || err != nil {
			t.Errorf("%v, %v", a, err)
		}
		if _, err := Addresses("nothere"); !errors.Is(err, ErrNoInterface) {
			t.Errorf("%v", err)
		}
	})
	// Nothing is in the way of an open that does work.
	l.mustOpen(Options{Ring: 64, Memory: m, Program: prog})
}

// The other end of a veth pair has more transmit queues than this one receives by.
func TestFewerQueuesThanThePeer(t *testing.T) {
	l := &lab{t: t, client: netnstest.New(t), balancer: netnstest.New(t)}
	netnstest.Veth(netnstest.End{NS: l.client, Name: "c0", Queues: 4}, netnstest.End{NS: l.balancer, Name: "b0", Queues: 2})
	m := memory(t, 256, 2048)
	if _, err := l.open(Options{Mode: bpf.Native, Ring: 64, Memory: m, Program: program(t)}); !errors.Is(err, ErrQueues) {
		t.Errorf("%v", err)
	}
	core, logs := observer.New(zap.InfoLevel)
	p := l.mustOpen(Options{Ring: 64, Memory: m, Program: program(t), Log: zap.New(core)})
	if p.Info().Mode != "generic, copy" {
		t.Errorf("mode %s", p.Info().Mode)
	}
	if w := logs.FilterLevelExact(zap.WarnLevel).All(); len(w) != 1 || !strings.Contains(fmt.Sprint(w[0].ContextMap()["error"]), ErrQueues.Error()) {
		t.Errorf("it warns %v", w)
	}
	if i := logs.FilterMessage("interface opened").All(); len(i) != 1 || i[0].ContextMap()["mode"] != "generic, copy" {
		t.Errorf("it logs %v", i)
	}
}

// Without privilege there is one clear error.
func TestPrivilege(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := memory(t, 256, 2048)
	prog := program(t)
	var open, load error
	l.balancer.Do(func() {
		// Capabilities are the thread's alone.
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var old, none [2]unix.CapUserData
		if err := unix.Capget(&head, &old[0]); err != nil {
			t.Error(err)
			return
		}
		none = old
		none[0].Effective, none[1].Effective = 1<<unix.CAP_SYS_ADMIN, 0 // to leave the namespace
		if err := unix.Capset(&head, &none[0]); err != nil {
			t.Error(err)
			return
		}
		_, open = Open(Options{Interface: "b0", Ring: 64, Memory: m, Program: prog})
		if err := unix.Capset(&head, &old[0]); err != nil {
			t.Error(err)
		}
	})
	l.balancer.Do(func() {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var old, none [2]unix.CapUserData
		_ = unix.Capget(&head, &old[0])
		none = old
		// Loading needs CAP_BPF or CAP_SYS_ADMIN.
		none[0].Effective, none[1].Effective = 0, 0
		_ = unix.Capset(&head, &none[0])
		var a *bpf.Admission
		if a, load = bpf.NewAdmission(); load == nil {
			_ = a.Close()
		}
		_ = unix.Capset(&head, &old[0])
	})
	if !errors.Is(open, ErrPrivilege) {
		t.Errorf("opening: %v", open)
	}
	if !errors.Is(load, ErrPrivilege) {
		t.Errorf("loading: %v", load)
	}
}

// With large chunks the plain program's limit lies below the chunk's.
func TestNativeBeyondAPage(t *testing.T) {
	for mtu, want := range map[int]string{1500: "native, copy", 3600: "native, copy", 3818: "native, copy", 3819: "native, copy", 9000: "native, copy"} {
		l := newLab(t, 1, mtu)
		m := memory(t, 1024, 4096)
		p := l.mustOpen(Options{Ring: 128, Memory: m, Program: program(t)})
		if p.Info().Mode != want {
			t.Errorf("MTU %d: %s", mtu, p.Info().Mode)
		}
		c := newCore(t, p, m)
		c.pass()
		l.send(l.udp("203.0.113.10", 4500, 1, mtu+14))
		c.until("the packet is received", func() bool { return c.got >= 1 })
		if b := l.heard(); len(b) != mtu+14 {
			t.Errorf("MTU %d: %d bytes come back", mtu, len(b))
		}
		if long := mtu+frameOverhead > 4096-front; long != p.queues[0].sg || c.chain > 0 && !long {
			t.Errorf("MTU %d: chains %v, %d of them", mtu, p.queues[0].sg, c.chain)
		}
	}
}

// More comes than the rings hold: what is lost is counted, and no frame is.
func TestOverload(t *testing.T) {
	modes(t, func(t *testing.T, mode bpf.Mode) {
		l := newLab(t, 1, 1500)
		m := memory(t, 192, 2048)
		prog := program(t)
		p := l.mustOpen(Options{Mode: mode, Ring: 64, Memory: m, Program: prog})
		c := newCore(t, p, m)
		sent := 0
		for range 20 {
			for range 150 {
				l.send(l.udp("203.0.113.10", 4500, uint32(sent), 100))
				sent++
			}
			c.pass()
			c.check()
		}
		var s Stats
		c.until("all is received or lost", func() bool {
			var err error
			if s, err = p.Stats(0); err != nil {
				t.Fatal(err)
			}
			return c.got+int(s.RxRingFull+s.RxDropped) >= sent && p.queues[0].Census().Rx == 0
		})
		c.until("all is quiet", func() bool { k := p.queues[0].Census(); return k.Tx+k.Rx+k.Completion == 0 })
		if lost := p.Lost(); lost["rx_ring_full"] != s.RxRingFull || lost["rx_dropped"] != s.RxDropped {
			t.Errorf("lost %v, want %+v", lost, s)
		}
		if s.RxInvalid+s.TxInvalid != 0 || c.got == 0 || c.got == sent || c.got+int(s.RxRingFull+s.RxDropped) != sent {
			t.Errorf("%d of %d received: %+v", c.got, sent, s)
		}
		t.Logf("%d of %d received: %+v", c.got, sent, s)
	})
}
