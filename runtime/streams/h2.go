package streams

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// http2servers speak HTTP/2 by net/http: one server for each set of settings.
type http2servers struct {
	mu   sync.Mutex
	all  map[stream.HTTP]*http2server
	down bool // shutdown was called
}

type http2server struct {
	http.Server
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// A h2conn is a connection that net/http serves.
type h2conn struct {
	*stream.Conn
	conn  *conn
	at    place
	guard guard
	once  sync.Once
	done  chan struct{}
}

// Read is part of net.Conn.
func (c *h2conn) Read(p []byte) (n int, err error) {
	c.ReadBy(c.guard.by(c.conn.client.HTTP.HeadTime))
	if n, err = c.Conn.Read(p); n > 0 {
		if err := c.guard.take(p[:n]); err != nil {
			c.conn.malformed.Add(1)
			c.conn.engine.log.Debug("a connection of HTTP/2 is closed", zap.Stringer("client", c.conn.client.Remote), zap.Error(err))
			return 0, err
		}
	}
	return n, err
}

// Write is part of net.Conn.
func (c *h2conn) Write(p []byte) (n int, err error) {
	n, err = c.Conn.Write(p)
	c.guard.written.Add(int64(n))
	return n, err
}

// Close is part of net.Conn.
func (c *h2conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.done) })
	return err
}

type connKey struct{}

// http2 has net/http serve the connection as one of HTTP/2, until its end.
func (c *conn) http2(at place) {
	k := &h2conn{Conn: c.client.Conn, conn: c, at: at, guard: newGuard(), done: make(chan struct{})}
	s := c.engine.http2.server(c.engine, *c.client.HTTP)
	if s == nil {
		return
	}
	select {
	case s.conns <- k:
		<-k.done
	case <-s.closed: // no request was read: the client asks elsewhere
	}
}

// server answers the server for settings; nil once shutdown was called.
func (h *http2servers) server(e *Engine, settings stream.HTTP) *http2server {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.all[settings]; s != nil || h.down {
		return s
	}
	s := &http2server{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.Handler = http.HandlerFunc(serveH2)
	s.Protocols = new(http.Protocols)
	s.Protocols.SetUnencryptedHTTP2(true) // TLS is taken off before
	s.MaxHeaderBytes = settings.Limits.Head
	if s.MaxHeaderBytes == 0 {
		s.MaxHeaderBytes = http1.DefaultLimits.Head
	}
	s.IdleTimeout = settings.IdleTime
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: int(settings.Streams),
		WriteByteTimeout:     settings.WriteTime,
		SendPingTimeout:      settings.IdleTime,
		PingTimeout:          settings.HeadTime,
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.ErrorLog, _ = zap.NewStdLogAt(e.log.Named("http2"), zap.DebugLevel)
	if h.all == nil {
		h.all = map[stream.HTTP]*http2server{}
	}
	h.all[settings] = s
	go func() { _ = s.Serve(s) }()
	return s
}

// shutdown tells all clients to send no more requests, and answers when they have
// none in flight, or when ctx ends.
func (h *http2servers) shutdown(ctx context.Context) {
	h.mu.Lock()
	h.down = true
	all := slices.Collect(maps.Values(h.all))
	h.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { _ = s.Shutdown(ctx) })
	}
	wg.Wait()
}

// Accept is part of net.Listener.
func (s *http2server) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close is part of net.Listener. Shutdown waits until Accept has returned.
func (s *http2server) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr is part of net.Listener.
func (s *http2server) Addr() net.Addr { return &net.TCPAddr{} }

// h2exchange is one request of HTTP/2: a stream.Responder and its stream.Body.
type h2exchange struct {
	c     *conn
	s     stream.Session
	head  http1.Request
	req   stream.Request
	w     http.ResponseWriter
	r     *http.Request
	rc    *http.ResponseController
	buf   []byte // of the head
	piece []byte // of the body

	bodyBegun, begun, sent, ended, aborted bool
	in, written                            int64
	armed, bodiless                        bool
	within                                 time.Duration // what Within says

	// A client that waits for 100 (Continue) gets one of net/http's own when its body is
	// first read, unless it had an interim response before: reading waits for the
	// backend's.
	asked       chan struct{} // closed by ask; nil for others
	ask         func()
	interrupted atomic.Bool
}

func serveH2(w http.ResponseWriter, r *http.Request) {
	k := r.Context().Value(connKey{}).(*h2conn)
	c := k.conn
	x := &h2exchange{c: c, w: w, r: r, rc: http.NewResponseController(w)}
	x.s.Reset(&c.client)
	x.head.Reset()
	x.s.Begun = stream.Now()
	x.buf = appendHead(stream.GetBuffer(stream.SmallBuffer)[:0], r)
	defer func() { stream.PutBuffer(x.buf) }()
	x.req = stream.Request{Request: &x.head, Buf: x.buf, Proto: 20, Responder: x}
	x.s.Req = &x.req
	limits := c.client.HTTP.Limits
	if complete, err := x.head.Parse(x.buf, &limits); err != nil || !complete {
		status := http.StatusBadRequest
		var fault *http1.Error
		if errors.As(err, &fault) {
			status = fault.Status
		}
		x.s.Node, x.s.Reason, x.s.Err = c.client.Listener, "bad_request", err
		x.req.Request = nil
		c.requests.Add(1)
		c.malformed.Add(1)
		answer(&x.s, status)
		x.s.Out = x.written
		c.unread(k.at, &x.s)
		x.s.End()
		return
	}
	if r.ContentLength != 0 {
		x.req.Body = (*h2body)(x)
	}
	if x.head.Expects {
		x.asked = make(chan struct{})
		x.ask = sync.OnceFunc(func() { close(x.asked) })
	}
	c.requests.Add(1)
	c.active.Add(1)
	way := c.engine.follow(c, &x.s)
	var route *node
	if n := c.enter(k.at); n != nil {
		way.begin(k.at)
		_, route, _ = c.engine.walk(r.Context(), n, &x.s, way)
	} else {
		x.s.Err = errNoWay
		answer(&x.s, http.StatusServiceUnavailable)
	}
	if !x.begun && !x.aborted && x.s.Status != statusClientGone {
		answer(&x.s, http.StatusInternalServerError)
	}
	x.s.In, x.s.Out = x.in, x.written
	c.over(route, &x.s, way)
	x.s.End()
	c.active.Add(-1)
	stream.PutBuffer(x.piece)
	if x.aborted || !x.ended {
		panic(http.ErrAbortHandler)
	}
}

// appendHead writes a request of HTTP/2 as one of HTTP/1.1, to be read by the same
// strict reader.
func appendHead(dst []byte, r *http.Request) []byte {
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = append(dst, r.RequestURI...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	dst = http1.AppendField(dst, "Host", r.Host)
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect":
			continue
		}
		for _, v := range values {
			dst = http1.AppendField(dst, name, v)
		}
	}
	for name := range r.Trailer {
		dst = http1.AppendField(dst, "Trailer", name)
	}
	switch {
	case r.ContentLength < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case r.ContentLength > 0 || r.Header["Content-Length"] != nil:
		dst = http1.AppendLength(dst, r.ContentLength)
	}
	if r.ContentLength != 0 && expects(r.Body) {
		dst = append(dst, "Expect: 100-continue\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// expects tells whether a client waits for 100 (Continue). net/http takes the field
// Expect away, and keeps what it said in a field of the body's reader.
func expects(body io.Reader) bool {
	v := reflect.Indirect(reflect.ValueOf(body))
	if v.Kind() != reflect.Struct {
		return false
	}
	f := v.FieldByName("needsContinue")
	return f.Kind() == reflect.Bool && f.Bool()
}

// Inform is part of stream.Responder.
func (x *h2exchange) Inform(r *stream.Response) error {
	if r.Status == http.StatusContinue && x.ask == nil || r.Head == nil {
		return nil
	}
	h := x.w.Header()
	stream.EachField(stream.AppendResponse(nil, &r.Head.Head, r.Buf, r.Drop|http1.HopByHop, r.Edits), h.Add)
	x.w.WriteHeader(r.Status)
	clear(h)
	if r.Status == http.StatusContinue {
		x.ask()
	}
	return nil
}

// Begin is part of stream.Responder.
func (x *h2exchange) Begin(r *stream.Response) error {
	x.begun = true
	h := x.w.Header()
	// What is not there is not to be added.
	h["Date"], h["Content-Type"] = nil, nil
	if r.Head != nil {
		stream.EachField(stream.AppendResponse(nil, &r.Head.Head, r.Buf, r.Drop|http1.HopByHop, r.Edits), h.Add)
	} else {
		stream.EachField(stream.AppendAnswer(nil, r.Fields, r.Edits), h.Add)
	}
	x.bodiless = r.Bodiless
	switch {
	case r.Bodiless:
		if r.Length >= 0 && r.Status != http.StatusNoContent {
			h.Set("Content-Length", strconv.FormatInt(r.Length, 10))
		}
	case r.Framing >= 0:
		h.Set("Content-Length", strconv.FormatInt(int64(r.Framing), 10))
	}
	x.w.WriteHeader(r.Status)
	return nil
}

// Write is part of stream.Responder.
func (x *h2exchange) Write(p []byte) error {
	if x.bodiless || len(p) == 0 {
		return nil
	}
	if err := x.write(p); err != nil {
		return err
	}
	return x.Flush()
}

func (x *h2exchange) write(p []byte) error {
	x.sent = true
	if t := x.c.client.HTTP.WriteTime; t > 0 {
		x.armed = true
		_ = x.rc.SetWriteDeadline(time.Now().Add(t)) // of a stream that is gone, the write tells
	}
	n, err := x.w.Write(p)
	x.written += int64(n)
	return err
}

// Flush is part of stream.Responder.
func (x *h2exchange) Flush() error {
	x.sent = true
	err := x.rc.Flush()
	if x.armed { // it would end a stream that merely has nothing to write for a while
		x.armed = false
		_ = x.rc.SetWriteDeadline(time.Time{})
	}
	return err
}

// End is part of stream.Responder.
func (x *h2exchange) End(p, trailers []byte) error {
	if len(p) > 0 && !x.bodiless {
		if err := x.write(p); err != nil {
			return err
		}
	}
	stream.EachField(trailers, func(name, value string) {
		x.w.Header().Add(http.TrailerPrefix+textproto.CanonicalMIMEHeaderKey(name), value)
	})
	x.ended = true
	return nil
}

// Begun is part of stream.Responder.
func (x *h2exchange) Begun() bool { return x.begun }

// Abort is part of stream.Responder. The stream is reset when the handler ends.
func (x *h2exchange) Abort() { x.aborted = true }

// RawChunks is part of stream.Responder.
func (x *h2exchange) RawChunks() bool { return false }

// Gone is part of stream.Responder.
func (x *h2exchange) Gone() bool { return x.r.Context().Err() != nil }

// Watch is part of stream.Responder.
func (x *h2exchange) Watch(f func()) (stop func()) {
	done := make(chan struct{})
	end := context.AfterFunc(x.r.Context(), func() {
		defer close(done)
		f()
	})
	return func() {
		if !end() {
			<-done // f runs, or has run: it may use what the caller is about to give away
		}
	}
}

// Upgrade is part of stream.Responder.
func (x *h2exchange) Upgrade() *stream.Conn { return nil }

// Sink is part of stream.Responder.
func (x *h2exchange) Sink() *stream.Conn { return nil }

// SinkSpliced is part of stream.Responder.
func (x *h2exchange) SinkSpliced(int64) {}

// Close is part of stream.Responder.
func (x *h2exchange) Close() {}

// h2body is the body of a request of HTTP/2: a stream.Body.
type h2body h2exchange

// Next is part of stream.Body.
func (b *h2body) Next(bool) ([]byte, error) {
	settings := b.c.client.HTTP
	if !b.bodyBegun {
		b.bodyBegun = true
		b.piece = stream.GetBuffer(stream.SmallBuffer)
		if b.asked != nil {
			late := time.NewTimer(stream.ContinueAfter) // a backend that never says so
			defer late.Stop()
			select {
			case <-b.asked:
			case <-late.C:
			}
		}
		if settings.BodyRate > 0 && b.head.Length > 0 {
			_ = b.rc.SetReadDeadline(time.Now().Add(bodyTime(settings, b.head.Length)))
		}
	}
	if b.interrupted.Load() {
		return nil, stream.ErrInterrupted
	}
	if settings.BodyRate == 0 || b.head.Length < 0 {
		_ = b.rc.SetReadDeadline(time.Now().Add(cmp.Or(b.within, settings.BodyTime)))
	}
	n, err := b.r.Body.Read(b.piece)
	b.in += int64(n)
	if n > 0 {
		return b.piece[:n], nil
	}
	return nil, err
}

// AppendTrailers is part of stream.Body.
func (b *h2body) AppendTrailers(dst []byte) []byte {
	for name, values := range b.r.Trailer {
		for _, v := range values {
			if id := http1.Identify([]byte(name)); id == http1.Other && http1.ValidName(name) && http1.ValidValue(v) {
				dst = http1.AppendField(dst, name, v)
			}
		}
	}
	return dst
}

// Chunks is part of stream.Body.
func (b *h2body) Chunks() bool { return false }

// Whole is part of stream.Body.
func (b *h2body) Whole() bool { return false }

// Begun is part of stream.Body.
func (b *h2body) Begun() bool { return b.bodyBegun }

// Within is part of stream.Body.
func (b *h2body) Within(d time.Duration) { b.within = d }

// Source is part of stream.Body.
func (b *h2body) Source() (c *stream.Conn, n, idle, by int64) { return nil, 0, 0, 0 }

// Spliced is part of stream.Body.
func (b *h2body) Spliced(int64) {}

// Interrupt is part of stream.Body.
func (b *h2body) Interrupt() {
	b.interrupted.Store(true)
	if b.ask != nil {
		b.ask()
	}
	_ = b.rc.SetReadDeadline(time.Unix(1, 0))
	_ = b.r.Body.Close()
}
