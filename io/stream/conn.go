package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/http1"
)

// Conn is a connection with a read buffer, which goes back to a pool when nothing
// is in it. It is a net.Conn that reads what is buffered first.
//
// One goroutine reads, one writes; Interrupt, LookAtPeer and Close are for any.
type Conn struct {
	sock
	tls   *tls.Conn
	buf   []byte
	r, w  int
	try   func(fd uintptr) bool // of raw.Read, made once
	tried error

	asking   func(fd uintptr) bool // of raw.Read, made once
	question []byte
	sent     int // of question
	quiet    bool

	// Uses counts the messages that went over a connection to a backend.
	Uses int
	// Since is when an idle connection to a backend became idle.
	Since int64
}

// NewConn makes a Conn of a connection.
func NewConn(c net.Conn) *Conn {
	k := new(Conn)
	k.open(c)
	return k
}

// below is what TLS reads and writes: first what was buffered when it began.
type below struct {
	*sock
	early []byte
}

func (b *below) Read(p []byte) (int, error) {
	if len(b.early) > 0 {
		n := copy(p, b.early)
		b.early = b.early[n:]
		return n, nil
	}
	b.early = nil
	return b.sock.Read(p)
}

func (c *Conn) underTLS() *below {
	b := &below{&c.sock, append([]byte(nil), c.Buffered()...)}
	c.r, c.w = 0, 0
	c.Release()
	return b
}

// ServeTLS makes c the server's side of a TLS connection and shakes hands, by the
// time given.
func (c *Conn) ServeTLS(ctx context.Context, config *tls.Config, by int64) error {
	return c.handshake(ctx, tls.Server(c.underTLS(), config), by)
}

// DialTLS makes c the client's side of a TLS connection and shakes hands, by the
// time given.
func (c *Conn) DialTLS(ctx context.Context, config *tls.Config, by int64) error {
	return c.handshake(ctx, tls.Client(c.underTLS(), config), by)
}

func (c *Conn) handshake(ctx context.Context, t *tls.Conn, by int64) error {
	c.readBy = by
	if err := t.HandshakeContext(ctx); err != nil {
		return err
	}
	c.tls = t
	return nil
}

// TLS answers the state of TLS, nil without.
func (c *Conn) TLS() *tls.ConnectionState {
	if c.tls == nil {
		return nil
	}
	s := c.tls.ConnectionState()
	return &s
}

// Buffered answers what was read and not discarded. It stays valid until the next
// Fill or Release.
func (c *Conn) Buffered() []byte { return c.buf[c.r:c.w] }

// Discard takes n bytes from the beginning of what is buffered.
func (c *Conn) Discard(n int) { c.r += n }

// Fill reads once, and appends to what is buffered; by when it fails with
// ErrTimeout. io.EOF is the end.
func (c *Conn) Fill(by int64) error {
	switch {
	case c.buf == nil:
		c.buf = GetBuffer(SmallBuffer)
		c.r, c.w = 0, 0
	case c.r == c.w:
		c.r, c.w = 0, 0
	case c.w == len(c.buf) && c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	case c.w == len(c.buf):
		if len(c.buf) >= LargeBuffer {
			return errFull
		}
		b := GetBuffer(LargeBuffer)
		copy(b, c.buf)
		PutBuffer(c.buf)
		c.buf = b
	}
	c.readBy = by
	var n int
	var err error
	if c.tls != nil {
		n, err = c.tls.Read(c.buf[c.w:])
	} else {
		n, err = c.sock.Read(c.buf[c.w:])
	}
	c.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

var errFull = errors.New("the buffer is full")

// Take answers the buffer, of which the first n bytes of what is buffered are used
// on: they stand at the beginning of head. What follows them goes on in another
// buffer. The caller gives whole back by PutBuffer.
func (c *Conn) Take(n int) (head, whole []byte) {
	head, whole = c.buf[c.r:c.r+n], c.buf
	rest := c.buf[c.r+n : c.w]
	c.buf = GetBuffer(max(len(rest), SmallBuffer))
	c.r, c.w = 0, copy(c.buf, rest)
	return head, whole
}

// Release gives the read buffer back if nothing is in it.
func (c *Conn) Release() {
	if c.r == c.w && c.buf != nil {
		PutBuffer(c.buf)
		c.buf = nil
		c.r, c.w = 0, 0
	}
}

// Await waits until there is something to read, and reads it; while it waits, no
// buffer is taken. It fails as Fill does.
func (c *Conn) Await(by int64) error {
	if c.r < c.w {
		return nil
	}
	c.Release()
	c.readBy = by
	switch {
	case c.tls != nil:
		// TLS keeps what it decrypted beyond the byte that it is asked for.
		var one [1]byte
		n, err := c.tls.Read(one[:])
		if n == 0 {
			return err
		}
		c.buf = GetBuffer(SmallBuffer)
		c.buf[0] = one[0]
		c.r, c.w = 0, 1
		return nil
	case c.raw == nil:
		return c.Fill(by)
	}
	if c.try == nil {
		c.try = c.tryRead
	}
	for {
		if err := c.armRead(); err != nil {
			return err
		}
		err := c.raw.Read(c.try)
		switch {
		case err == nil:
			return c.tried
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if err := c.expired(); err != nil {
			return err
		}
	}
}

// tryRead reads into a new buffer if there is something to read.
func (c *Conn) tryRead(fd uintptr) bool {
	b := GetBuffer(SmallBuffer)
	n, err := receive(fd, b)
	if n > 0 && err == 0 {
		c.came(n)
		c.buf, c.r, c.w = b, 0, n
		c.tried = nil
		return true
	}
	PutBuffer(b)
	switch err {
	case unix.EAGAIN:
		return false
	case 0:
		c.tried = io.EOF
	default:
		c.tried = err
	}
	return true
}

// ErrNotQuiet: before a request was sent there was something to read, if only an end.
// Nothing was sent.
var ErrNotQuiet = errors.New("the connection has ended, or something came unasked")

// Ask writes p and then reads as Fill does, once there is something to read: what Write
// and Fill do, for fewer system calls. Where c has to be quiet, it fails with ErrNotQuiet
// unless nothing was there to be read before. n is how much was written: by bounds the
// wait for an answer alone, so an error with n less than len(p) is one of writing, but
// for ErrInterrupted and ErrNotQuiet. What has been written whole is given back by
// PutBuffer: others can use the buffer, which is in the cache now, while the answer is
// awaited.
//
// The poller reports an edge: it forgets that there was something to read before it is
// asked to wait, which is here before the write, so that it cannot forget the answer.
func (c *Conn) Ask(p []byte, by int64, quiet bool) (n int, err error) {
	if !c.Plain() || c.r < c.w {
		return c.askSlowly(p, by, quiet)
	}
	c.Release()
	c.readBy = by
	if err := c.armRead(); err != nil {
		return 0, err
	}
	if c.asking == nil {
		c.asking = c.ask
	}
	c.question, c.sent, c.quiet, c.tried = p, 0, quiet, nil
	err = c.raw.Read(c.asking)
	n = c.sent
	whole := n == len(p)
	c.question, c.sent = nil, 0
	switch {
	case c.tried != nil:
		return n, c.tried
	case !whole && err == nil:
		// The kernel's buffer is full: the rest as usual.
		k, err := c.Write(p[n:])
		if n += k; err != nil {
			return n, err
		}
		PutBuffer(p)
		return n, c.Fill(by)
	case errors.Is(err, os.ErrDeadlineExceeded) && !whole:
		// Before the first look: an old deadline, or this one, on a busy machine.
		return c.askSlowly(p, by, quiet)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, c.Fill(by) // which knows whose deadline it was
	}
	return n, err
}

func (c *Conn) askSlowly(p []byte, by int64, quiet bool) (n int, err error) {
	if quiet && !c.Quiet() {
		return 0, ErrNotQuiet
	}
	if n, err = c.Write(p); err != nil {
		return n, err
	}
	PutBuffer(p)
	return n, c.Fill(by)
}

// ask is Ask's part that has the socket: it is called until it answers true, and
// between two calls there was something new to read.
func (c *Conn) ask(fd uintptr) bool {
	if c.sent == len(c.question) {
		return c.tryRead(fd)
	}
	if c.quiet && !c.state.waits(fd) {
		c.tried = ErrNotQuiet
		return true
	}
	n, err := send(fd, c.question)
	switch err {
	case 0:
	case unix.EAGAIN:
		return true
	default:
		c.tried = err
		return true
	}
	c.sent = n
	c.went(n)
	if n < len(c.question) {
		return true
	}
	PutBuffer(c.question)
	// What had come before is forgotten, too: only who knows that nothing had may
	// wait for the next.
	return !c.quiet && c.tryRead(fd)
}

// Read is part of net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if c.r < c.w {
		n := copy(p, c.buf[c.r:c.w])
		c.r += n
		c.Release()
		return n, nil
	}
	if c.tls != nil {
		return c.tls.Read(p)
	}
	return c.sock.Read(p)
}

// Write is part of net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Write(p)
	}
	return c.sock.Write(p)
}

// WriteParts writes a, b and c one after the other, by one system call where that
// is possible.
func (c *Conn) WriteParts(a, b, d []byte) error {
	if c.tls == nil {
		c.parts = [3][]byte{a, b, d}
		return c.writeParts()
	}
	for _, p := range [3][]byte{a, b, d} {
		if len(p) > 0 {
			if _, err := c.tls.Write(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetReadDeadline, SetWriteDeadline and SetDeadline are part of net.Conn: for those
// who read and write by the methods of that interface alone.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readArmed, c.readBy = Never, Never
	return c.sock.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is part of net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeArmed = Never
	return c.sock.Conn.SetWriteDeadline(t)
}

// SetDeadline is part of net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// ReadBy sets the time by which reads of Read fail.
func (c *Conn) ReadBy(by int64) { c.readBy = by }

// CloseWrite ends the sending side: the peer reads an end.
func (c *Conn) CloseWrite() error {
	if c.tls != nil {
		return c.tls.CloseWrite()
	}
	if h, ok := c.Conn().(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// Conn answers the connection below.
func (c *Conn) Conn() net.Conn { return c.sock.Conn }

// Close is part of net.Conn. The buffer is for the garbage collector: somebody may
// be reading into it.
func (c *Conn) Close() error {
	if c.tls != nil {
		return c.tls.Close()
	}
	return c.sock.Conn.Close()
}

// Reset closes the connection such that the peer learns that something went wrong:
// by a reset.
func (c *Conn) Reset() {
	if c.tcp != nil {
		_ = c.tcp.SetLinger(0)
	}
	_ = c.sock.Conn.Close()
}

// Plain tells that what is read and written is what the socket carries.
func (c *Conn) Plain() bool { return c.tls == nil && c.tcp != nil }

// Peer answers the address of the other side; the zero value if it has none.
func (c *Conn) Peer() netip.AddrPort { return addrPort(c.sock.Conn.RemoteAddr()) }

// Here answers the address of this side.
func (c *Conn) Here() netip.AddrPort { return addrPort(c.sock.Conn.LocalAddr()) }

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// IsTimeout tells whether err is a time-out.
func IsTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// BodyReader reads the body of one message from a connection.
type BodyReader struct {
	c        *Conn
	body     http1.Body
	trailers http1.Trailers
	limits   *http1.Limits
	last     int // bytes of the piece answered last, with its framing
	// Idle is the time without progress after which a read fails, By the time by
	// which the body has to be there.
	Idle time.Duration
	By   int64
	// Count is the bytes of content, or of content and framing, that were answered.
	Count int64
	tail  int // size of the trailer section, which stays buffered until Finish
}

// Begin makes b ready for a body that follows in c.
func (b *BodyReader) Begin(c *Conn, f http1.Framing, l *http1.Limits) {
	b.c, b.limits, b.By, b.Idle = c, l, Never, time.Hour
	b.last, b.tail, b.Count = 0, 0, 0
	b.body.Begin(f)
}

// Ended tells that the whole body was read.
func (b *BodyReader) Ended() bool { return b.body.Ended() }

// Release forgets the connection.
func (b *BodyReader) Release() { b.c = nil }

// Whole tells that the whole body is buffered, and has no trailers.
func (b *BodyReader) Whole() bool {
	return b.body.Ended() || b.body.Counted() && b.body.Left() <= int64(len(b.c.Buffered()))
}

// Next answers the next piece of the body: of its content, or with raw as it is
// framed. It stays valid until the next call. io.EOF follows the last piece;
// io.ErrUnexpectedEOF tells of a body that was cut, an *http1.Error of one that is
// malformed.
func (b *BodyReader) Next(raw bool) (piece []byte, err error) {
	b.c.Discard(b.last)
	b.last = 0
	for {
		p := b.c.Buffered()
		switch {
		case b.body.Ended():
			return nil, io.EOF
		case b.body.AtTrailers():
			complete, err := b.trailers.Parse(p, b.limits)
			if err != nil {
				return nil, err
			}
			if complete {
				b.tail = b.trailers.Size
				b.body.EndTrailers()
				return nil, io.EOF
			}
		case len(p) > 0:
			n := 0
			if raw {
				n, err = b.body.Scan(p)
				piece = p[:n]
			} else {
				piece, n, err = b.body.Next(p)
			}
			if err != nil {
				return nil, err
			}
			if b.body.AtTrailers() {
				b.trailers.Reset()
			}
			b.last = n
			if len(piece) > 0 {
				b.Count += int64(len(piece))
				return piece, nil
			}
			b.c.Discard(n)
			b.last = 0
			if n > 0 {
				continue
			}
		}
		by := b.By
		if b.Idle > 0 {
			by = min(by, Now()+int64(b.Idle))
		}
		if err := b.c.Fill(by); err != nil {
			if err == io.EOF {
				if b.body.Open() {
					b.body.Begin(0)
					return nil, io.EOF
				}
				return nil, io.ErrUnexpectedEOF
			}
			if err == errFull {
				return nil, http1.ErrHeadTooLarge
			}
			return nil, err
		}
	}
}

// Unspliced answers how many bytes of content are to come before the framing goes
// on, when nothing is buffered; they may go another way (Spliced).
func (b *BodyReader) Unspliced() int64 {
	b.c.Discard(b.last)
	b.last = 0
	if len(b.c.Buffered()) > 0 {
		return 0
	}
	return b.body.Left()
}

// Spliced says that n bytes went another way.
func (b *BodyReader) Spliced(n int64) {
	b.body.Skip(n)
	b.Count += n
}

// Counted tells that the body has a known length.
func (b *BodyReader) Counted() bool { return b.body.Counted() }

// Last tells that the piece that Next answered was the last one. Where only the
// peer can tell, it is false.
func (b *BodyReader) Last() bool {
	if b.body.AtTrailers() {
		complete, err := b.trailers.Parse(b.c.Buffered()[b.last:], b.limits)
		if err != nil || !complete {
			return false // Next comes to it
		}
		b.tail = b.trailers.Size
		b.body.EndTrailers()
	}
	return b.body.Ended()
}

// AppendTrailers appends the field lines of the trailer section, once Next has
// answered io.EOF or Last is true, but for those that must not stand there.
func (b *BodyReader) AppendTrailers(dst []byte) []byte {
	if b.tail == 0 {
		return dst
	}
	return b.trailers.AppendFields(dst, b.c.Buffered()[b.last:], http1.TrailerDrop, nil)
}

// Finish discards the trailer section of a body that has ended, behind which the
// next message begins.
func (b *BodyReader) Finish() {
	b.c.Discard(b.last + b.tail)
	b.last, b.tail = 0, 0
}
