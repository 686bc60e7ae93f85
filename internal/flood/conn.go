package flood

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// conn is a connection to the target.
type conn struct {
	net.Conn
	raw  *net.TCPConn
	r    *bufio.Reader
	stop func() bool // that the end of the run breaks it off
}

// A connectError is one of a request that found no connection.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// An answerError is an answer that came whole and is not what it should be.
type answerError struct{ kind string }

func (e *answerError) Error() string { return e.kind }

const (
	timedOut = "timed out"
	noAnswer = "closed without an answer"
	cut      = "answer cut"
)

// reach opens the first connection, to the first address of the target that takes one.
func (f *flood) reach(ctx context.Context) (*conn, error) {
	port := f.url.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[f.url.Scheme]
	}
	lookup, cancel := context.WithTimeout(ctx, f.Timeout)
	addrs, err := net.DefaultResolver.LookupNetIP(lookup, "ip", f.url.Hostname())
	cancel()
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	if err != nil {
		return nil, fmt.Errorf("there is no address for %q: %w", f.url.Hostname(), err)
	}
	var failed error
	for _, a := range addrs {
		at, err := netip.ParseAddrPort(net.JoinHostPort(a.Unmap().String(), port))
		if err != nil {
			return nil, err
		}
		f.address = at
		c, err := f.dial(ctx)
		if err == nil {
			return c, nil
		}
		failed = err
	}
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	if errors.Is(failed, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("nobody listens on %s: start a server there, or see whether the port is right", f.address)
	}
	if f.url.Scheme == "https" && !f.Insecure && strings.HasPrefix(kindOf(failed), "TLS") {
		return nil, fmt.Errorf("%s: %s. A certificate of your own making is taken with --insecure", f.address, kindOf(failed))
	}
	return nil, fmt.Errorf("%s: %s", f.address, kindOf(failed))
}

// dial opens a connection. One that the end of ctx breaks off answers os.ErrDeadlineExceeded.
func (f *flood) dial(ctx context.Context) (*conn, error) {
	d, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	raw, err := f.dialer.DialContext(d, "tcp", f.address.String())
	if err != nil {
		return nil, &connectError{err}
	}
	f.opened.Add(1)
	c := &conn{Conn: raw, raw: raw.(*net.TCPConn)}
	if f.tls != nil {
		t := tls.Client(raw, f.tls)
		if err := t.HandshakeContext(d); err != nil {
			_ = raw.Close()
			return nil, &connectError{fmt.Errorf("TLS: %w", err)}
		}
		c.Conn = t
	}
	size := 4096
	if f.url.Scheme == "tcp" { // a line comes back whole
		size = max(size, f.Size+512)
	}
	c.r = bufio.NewReaderSize(c.Conn, size)
	c.stop = context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	return c, nil
}

// closed tells whether the server has closed an idle connection.
func (c *conn) closed() bool {
	s, err := c.raw.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = s.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return gone || err != nil
}

// drop closes the worker's connection.
func (w *worker) drop() {
	if w.conn != nil {
		w.conn.close()
		w.conn = nil
	}
}

func (c *conn) close() {
	c.stop()
	_ = c.Close()
}

// exchange sends one request and reads its answer. It answers who gave it, as far as
// that is told.
func (w *worker) exchange(ctx context.Context, k int64) (by string, err error) {
	if w.conn != nil && w.conn.closed() {
		w.drop()
		w.reopened.Add(1)
	}
	if w.conn == nil {
		w.conn = w.first.Swap(nil)
	}
	if w.conn == nil {
		if w.conn, err = w.dial(ctx); err != nil {
			return "", err
		}
	}
	_ = w.conn.SetDeadline(time.Now().Add(w.Timeout))
	if ctx.Err() != nil { // the deadline that broke it off may just have been overwritten
		w.drop()
		return "", ctx.Err()
	}
	keep := false
	if w.url.Scheme == "tcp" {
		by, err = w.echo(k)
		keep = err == nil
	} else {
		by, keep, err = w.request()
	}
	if w.PerRequest || !keep {
		w.drop()
	}
	return by, err
}

// request is one of HTTP.
func (w *worker) request() (by string, keep bool, err error) {
	n, broken := w.conn.Write(w.head)
	w.sent.Add(int64(n))
	// A server may answer before it has read everything, and close.
	if _, err := w.conn.r.Peek(1); err != nil {
		if broken != nil {
			err = broken
		}
		if errors.Is(err, io.EOF) {
			return "", false, errors.New(noAnswer)
		}
		return "", false, err
	}
	asked := &http.Request{Method: w.Method}
	var res *http.Response
	for res == nil || res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
		if res, err = http.ReadResponse(w.conn.r, asked); err != nil {
			switch {
			case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
				return "", false, errors.New(cut)
			case errors.As(err, new(net.Error)):
				return "", false, err
			}
			return "", false, &answerError{"malformed answer"}
		}
	}
	got, err := io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	w.received.Add(got)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New(cut)
	}
	if err != nil {
		return "", false, err
	}
	if res.StatusCode >= 400 {
		err = &answerError{fmt.Sprintf("status %d", res.StatusCode)}
	} else if w.conn.r.Buffered() > 0 {
		return "", false, &answerError{"bytes behind the answer"}
	}
	return res.Header.Get(w.By), broken == nil && !res.Close && res.StatusCode >= 200, err
}

// echo sends a line of TCP and reads the one that comes back: the same one, behind the
// name of who answers and a blank, if it tells. Lines that have room for it begin with
// a number of their own, so that another's answer is noticed.
func (w *worker) echo(k int64) (by string, err error) {
	if w.line == nil {
		w.line = append(bytes.Repeat([]byte("x"), w.Size-1), '\n')
	}
	if number := fmt.Sprintf("%016x", k); len(w.line) > len(number) {
		copy(w.line, number)
	}
	n, err := w.conn.Write(w.line)
	w.sent.Add(int64(n))
	if err != nil {
		return "", err
	}
	got, err := w.conn.r.ReadSlice('\n')
	w.received.Add(int64(len(got)))
	switch {
	case errors.Is(err, io.EOF) && len(got) == 0:
		return "", errors.New(noAnswer)
	case errors.Is(err, io.EOF):
		return "", errors.New(cut)
	case err != nil && !errors.Is(err, bufio.ErrBufferFull):
		return "", err
	}
	name, ok := bytes.CutSuffix(got, w.line)
	if ok && len(name) > 0 {
		name, ok = bytes.CutSuffix(name, []byte(" "))
	}
	if !ok {
		return "", &answerError{"another answer than what was sent"}
	}
	return string(name), nil
}

// kindOf answers what an error is called where errors are counted: the same for all of
// a kind, without addresses.
func kindOf(err error) string {
	what := ""
	if errors.As(err, new(*connectError)) {
		what = " connecting"
	}
	if n := net.Error(nil); errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout() {
		return timedOut + what
	}
	if e := syscall.Errno(0); errors.As(err, &e) {
		switch e {
		case syscall.ECONNRESET:
			return "connection reset"
		case syscall.EPIPE:
			return noAnswer
		case syscall.EADDRNOTAVAIL:
			return "no local port is free"
		}
		return e.Error()
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 120)]
}
