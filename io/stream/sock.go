package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of connections beside those of package net.
var (
	// ErrInterrupted: Interrupt ended the read.
	ErrInterrupted = errors.New("interrupted")
	// ErrTimeout: the time to read, or to write without progress, is over.
	ErrTimeout = os.ErrDeadlineExceeded
)

// sock is a connection to which deadlines cost next to nothing: the kernel's poller
// is told of one only when the one it has is later. One that fires too early is
// set anew. It stands below TLS, which would not survive a write that fails half way.
type sock struct {
	net.Conn
	tcp *net.TCPConn // nil for what is no TCP, as in tests
	raw syscall.RawConn

	readBy    int64 // when a read fails; of the goroutine that reads
	readArmed int64 // what the poller was told
	readFired bool  // it fired: tell the poller anew

	writeIdle  int64 // time without progress after which a write fails; 0 is none
	writeArmed int64
	writeFor   int64       // what writeIdle was then
	queued     int         // bytes in the kernel's queue when a write's deadline fired last
	vector     net.Buffers // of writev
	parts      [3][]byte

	in  transfer // of the goroutine that reads
	out transfer // of the one that writes

	cut atomic.Bool // Interrupt was called

	meter *Meter // nil for none

	probe func(fd uintptr) // of raw.Control, made once
	state probeState
}

type probeState struct {
	quiet bool // whether nothing is there to be read, not even an end
	peer  Peer
	poll  [1]unix.PollFd
	peek  bool // what is asked for: quiet, or peer
	one   [1]byte
}

// transfer is a read or write in hand. It is handed to raw by a function that is made
// once.
type transfer struct {
	try func(fd uintptr) bool
	p   []byte
	n   int
	err unix.Errno
}

// done answers what came of it, as the methods of a net.Conn do.
func (t *transfer) done(s *sock, op string, err error) (int, error) {
	t.p = nil
	if err == nil && t.err != 0 {
		err = &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError(op, t.err)}
	}
	return t.n, err
}

// receive and send are system calls of sockets that do not block. The kernel answers at
// once, so the runtime is not told: it would get ready to go on with another thread, and
// wake one if the processor is taken away in the midst of the call.

func receive(fd uintptr, p []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return int(n), err
}

func send(fd uintptr, p []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return int(n), err
}

// Peer is what is known of the other side of a connection.
type Peer uint8

// States of a peer.
const (
	There Peer = iota
	Ended      // nothing more comes of it: it closed its side alone, or the connection
	Gone       // the connection is broken: what is written reaches nobody
)

func (s *sock) open(c net.Conn) {
	*s = sock{Conn: c, readBy: Never, readArmed: Never, writeArmed: Never}
	if tcp, ok := c.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			s.tcp, s.raw = tcp, raw
		}
	}
}

// Read is part of net.Conn.
func (s *sock) Read(p []byte) (n int, err error) {
	for {
		if err := s.armRead(); err != nil {
			return 0, err
		}
		n, err = s.read(p)
		s.came(n)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := s.expired(); err != nil {
			return 0, err
		}
	}
}

// read reads as the connection's Read does.
func (s *sock) read(p []byte) (int, error) {
	if s.raw == nil || len(p) == 0 {
		return s.Conn.Read(p)
	}
	t := &s.in
	if t.try == nil {
		t.try = func(fd uintptr) bool {
			t.n, t.err = receive(fd, t.p)
			return t.err != unix.EAGAIN
		}
	}
	t.p, t.n, t.err = p, 0, 0
	n, err := t.done(s, "read", s.raw.Read(t.try))
	if err != nil {
		return 0, err
	}
	if n == 0 {
		err = io.EOF
	}
	return n, err
}

// write writes as the connection's Write does.
func (s *sock) write(p []byte) (int, error) {
	if s.raw == nil || len(p) == 0 {
		return s.Conn.Write(p)
	}
	t := &s.out
	if t.try == nil {
		t.try = func(fd uintptr) bool {
			for t.err = 0; t.err == 0 && t.n < len(t.p); {
				var n int
				if n, t.err = send(fd, t.p[t.n:]); t.err == 0 {
					t.n += n
				}
			}
			return t.err != unix.EAGAIN
		}
	}
	t.p, t.n, t.err = p, 0, 0
	return t.done(s, "write", s.raw.Write(t.try))
}

// armRead comes before a read.
func (s *sock) armRead() error {
	if s.readArmed > s.readBy || s.readFired {
		s.readFired = false
		s.readArmed = s.readBy
		if err := s.Conn.SetReadDeadline(deadline(s.readBy)); err != nil {
			return err
		}
	}
	// Behind the deadline, which Interrupt sets after this.
	if s.cut.Load() {
		return ErrInterrupted
	}
	return nil
}

// expired tells whether a read whose deadline fired is over; else it is to be tried
// again.
func (s *sock) expired() error {
	s.readFired = true
	switch {
	case s.cut.Load():
		return ErrInterrupted
	case Now() >= s.readBy:
		return ErrTimeout
	}
	return nil
}

func deadline(by int64) time.Time {
	if by == Never {
		return time.Time{}
	}
	return Time(by)
}

// armWrite tells the poller when a write that makes no progress from now on fails.
func (s *sock) armWrite(fired bool) {
	if !fired && s.writeArmed != Never && s.writeFor <= s.writeIdle {
		return // it was told of one that is earlier
	}
	by := Never
	if s.writeIdle > 0 {
		by = Now() + s.writeIdle
	}
	if s.writeArmed > by || fired {
		s.writeArmed, s.writeFor = by, s.writeIdle
		_ = s.Conn.SetWriteDeadline(deadline(by)) // a closed connection fails at the write
	}
}

// Write is part of net.Conn. It fails when there was no progress for the time that
// SetWriteIdle says.
func (s *sock) Write(p []byte) (n int, err error) {
	s.armWrite(false)
	for begun := int64(0); ; {
		k, err := s.write(p[n:])
		s.went(k)
		n += k
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if begun, err = s.again(begun, k); err != nil {
			return n, err
		}
	}
}

// again tells whether a write whose deadline fired may go on: since begun it made
// progress, of k bytes, or the peer has taken some of what is queued: the kernel asks
// for more only when a third of its buffer is free, which a slow reader may take long
// to read. 0 is a write's first attempt, whose deadline may be an old one.
func (s *sock) again(begun int64, k int) (int64, error) {
	now, queued := Now(), s.Queued()
	if k == 0 && begun != 0 && now-begun >= s.writeIdle && queued >= s.queued {
		return begun, ErrTimeout
	}
	s.queued = queued
	s.armWrite(true)
	return now, nil
}

// Queued answers how many bytes were written and not yet taken by the peer.
func (s *sock) Queued() (n int) {
	s.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}

// writeParts writes s.parts by one system call, if there is room.
func (s *sock) writeParts() error {
	s.armWrite(false)
	s.vector = s.parts[:]
	defer func() { s.parts = [3][]byte{} }()
	for begun := int64(0); ; {
		k, err := s.vector.WriteTo(s.Conn)
		s.went(int(k))
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if begun, err = s.again(begun, int(k)); err != nil {
			return err
		}
	}
}

// SetWriteIdle sets the time without progress after which writes fail; 0 is none.
func (s *sock) SetWriteIdle(d time.Duration) { s.writeIdle = int64(d) }

// Interrupt makes the read in hand, and all that follow until Resume, answer
// ErrInterrupted. Any goroutine may call it.
func (s *sock) Interrupt() {
	s.cut.Store(true)
	_ = s.Conn.SetReadDeadline(past) // a closed connection is interrupted anyway
}

var past = time.Unix(1, 0)

// Interrupted tells whether Interrupt was called.
func (s *sock) Interrupted() bool { return s.cut.Load() }

// Resume takes Interrupt back. It is for the goroutine that reads.
func (s *sock) Resume() { s.cut.Store(false) }

// LookAtPeer tells what is known of the peer. Whoever closes a connection over bytes
// that it has not read breaks it; otherwise it ends, and breaks when something is
// written to it. Any goroutine may call it, one at a time.
func (s *sock) LookAtPeer() Peer {
	s.state.peer = There
	s.look(false)
	return s.state.peer
}

// Quiet tells that nothing is there to be read, not even an end: what an idle
// connection to a backend has to be before it is used again. Like LookAtPeer.
func (s *sock) Quiet() bool {
	s.state.quiet = s.raw == nil // a closed one is not quiet
	s.look(true)
	return s.state.quiet
}

func (s *sock) look(peek bool) {
	if s.raw == nil {
		return
	}
	if s.probe == nil {
		s.probe = s.state.look
	}
	s.state.peek = peek
	if s.raw.Control(s.probe) != nil {
		s.state.peer = Gone // closed by us
	}
}

func (p *probeState) look(fd uintptr) {
	if p.peek {
		p.quiet = p.waits(fd)
		return
	}
	p.peer = There
	p.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP}
	switch n, err := unix.Poll(p.poll[:], 0); {
	case err != nil || n == 0:
	case p.poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0:
		p.peer = Gone
	case p.poll[0].Revents&unix.POLLRDHUP != 0:
		p.peer = Ended
	}
}

// waits tells whether a read would have to wait. It asks the kernel itself, for the
// wrapper allocates an address.
func (p *probeState) waits(fd uintptr) bool {
	_, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&p.one[0])), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return err == unix.EAGAIN
}

// Control calls f with the socket, which stays open as long; not for what is no TCP.
func (s *sock) Control(f func(fd uintptr)) {
	if s.raw != nil {
		_ = s.raw.Control(f) // of a closed one there is nothing to tell
	}
}

// WatchPeer calls gone, once, when the connection is broken, or when the peer has ended
// its side and ended, which is called once at that moment, says that this is enough.
// Else ask is called a little later, which may write something to find out. None of
// them is called behind stop. Nobody may read in between.
func (s *sock) WatchPeer(ended func() bool, ask, gone func()) (stop func()) {
	if s.raw == nil {
		return func() {}
	}
	var stopped atomic.Bool
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var p probeState
		half := false
		for {
			err := s.raw.Read(func(fd uintptr) bool {
				p.look(fd)
				return stopped.Load() || p.peer == Gone || p.peer == Ended && !half
			})
			switch {
			case stopped.Load():
				return
			case err == nil && (p.peer == Gone || ended()):
				gone()
				return
			case err == nil:
				half = true
				select {
				case <-quit:
					return
				case <-time.After(AskAfter):
					ask()
				}
			case !errors.Is(err, os.ErrDeadlineExceeded):
				return
			default:
				_ = s.Conn.SetReadDeadline(time.Time{}) // an old one
				if stopped.Load() {
					return
				}
			}
		}
	}()
	return func() {
		stopped.Store(true)
		close(quit)
		_ = s.Conn.SetReadDeadline(past)
		<-done
		s.readFired = true // whichever deadline the poller has now, it is not the one that readArmed says
	}
}

// AskAfter is how long an answer may take until a client that has ended its side is
// asked whether it still waits.
const AskAfter = 150 * time.Millisecond

// ContinueAfter is how long a body is held back for a backend to say 100 (Continue),
// where it is not the client that waits: some never say so.
const ContinueAfter = time.Second
