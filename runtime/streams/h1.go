package streams

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// exchange is one request of HTTP/1 and the way back to its client. It is taken
// from a pool when a request comes.
type exchange struct {
	c    *conn
	s    stream.Session
	head http1.Request
	req  stream.Request
	body body
	answering
	whole []byte // the buffer that holds the head, where the body has another one
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// lameDuck is how long a connection that stays open while the engine stops may wait
// for another request: clients send one just when it is closed, otherwise.
const lameDuck = time.Second

// http reads requests of a connection and leads them on from a place, until the
// connection ends.
func (c *conn) http(at place) {
	if c.client.H2 {
		c.http2(at)
		return
	}
	settings := c.client.HTTP
	c.client.SetWriteIdle(settings.WriteTime)
	for first := true; ; first = false {
		if c.await() != nil {
			return
		}
		if first && settings.H2 && c.preface() {
			c.http2(at)
			return
		}
		ex := exchanges.Get().(*exchange)
		ex.c = c
		keep := ex.serve(at)
		ex.release()
		if !keep {
			return
		}
	}
}

// await waits for the first bytes of a request.
func (c *conn) await() error {
	now := stream.Now()
	by := now + int64(c.client.HTTP.IdleTime)
	for {
		c.phase.Store(idle)
		if c.engine.stopping.Load() {
			by = min(by, now+int64(lameDuck))
		}
		err := c.client.Await(by)
		if c.phase.CompareAndSwap(idle, busy) {
			return err
		}
		// hurry found it waiting, and will have interrupted it in a moment.
		for !c.client.Interrupted() {
			runtime.Gosched()
		}
		c.client.Resume()
		c.phase.Store(busy)
		if !errors.Is(err, stream.ErrInterrupted) {
			return err
		}
	}
}

const prefaceText = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// preface tells whether the client begins to speak HTTP/2 of its own accord (RFC 9113
// section 3.3).
func (c *conn) preface() bool {
	by := stream.Now() + int64(c.client.HTTP.HeadTime)
	for {
		b := c.client.Buffered()
		n := min(len(b), len(prefaceText))
		if string(b[:n]) != prefaceText[:n] {
			return false
		}
		if n == len(prefaceText) {
			return true
		}
		if n >= 4 && string(b[:4]) != "PRI " || c.client.Fill(by) != nil {
			return false
		}
	}
}

// serve serves one request, of which the first bytes are there. keep tells that
// another may follow.
func (x *exchange) serve(at place) (keep bool) {
	c := x.c
	x.s.Reset(&c.client)
	x.head.Reset()
	x.answering.reset(x)
	x.req.Request, x.req.Proto, x.req.Responder = &x.head, 11, x
	x.s.Req = &x.req
	if err := x.read(); err != nil {
		x.malformed(at, err)
		return false
	}
	x.s.Begun = stream.Now()
	if x.head.Minor == 0 {
		x.req.Proto = 10
	}
	x.oldClient = x.head.Minor == 0
	x.closing = x.head.Close || c.engine.stopping.Load()
	x.body.begin(x)

	c.requests.Add(1)
	c.active.Add(1)
	w := c.engine.follow(c, &x.s)
	var route *node
	if n := c.enter(at); n != nil {
		w.begin(at)
		_, route, _ = c.engine.walk(c.engine.ctx, n, &x.s, w)
	} else {
		x.s.Err = errNoWay
		answer(&x.s, 503)
	}
	if !x.begun && !x.aborted && x.s.Status != statusClientGone {
		// No node answered, and none refused: a mistake of a node.
		answer(&x.s, 500)
	}
	if !x.s.Upgraded {
		x.s.In, x.s.Out = x.body.count(), x.written
	}
	c.over(route, &x.s, w)
	x.s.End()
	c.active.Add(-1)
	return x.finish()
}

// enter answers the node to which requests come in the program of this moment.
func (c *conn) enter(at place) *node {
	n := c.block.prog.Load().byName[at.node]
	if n == nil {
		return nil
	}
	for i := range n.outs {
		if n.outs[i].name == at.output {
			return n.outs[i].to
		}
	}
	return nil
}

// read reads the head.
func (x *exchange) read() error {
	c := &x.c.client
	limits := &c.HTTP.Limits
	for by := int64(0); ; {
		complete, err := x.head.Parse(c.Buffered(), limits)
		if err != nil {
			return err
		}
		if complete {
			break
		}
		if by == 0 {
			by = stream.Now() + int64(c.HTTP.HeadTime)
		}
		if err := c.Fill(by); err != nil {
			return err
		}
	}
	x.req.Buf = c.Buffered()[:x.head.Size]
	return nil
}

// malformed answers a request that cannot be read, which would have gone on from a
// place. Whoever merely left gets nothing.
func (x *exchange) malformed(at place, err error) {
	var fault *http1.Error
	status := 0
	switch {
	case errors.As(err, &fault):
		status = fault.Status
	case stream.IsTimeout(err):
		status = 408
	default:
		return
	}
	x.closing = true
	x.s.Begun = stream.Now()
	x.s.Node, x.s.Reason, x.s.Err = x.c.client.Listener, "bad_request", err
	x.c.requests.Add(1)
	x.c.malformed.Add(1)
	// Fields and method may be anything: the answer has a body in any case.
	x.req.Request = nil
	answer(&x.s, status)
	x.s.Out = x.written
	x.c.unread(at, &x.s)
	x.s.End()
	x.linger()
}

// finish ends an exchange and tells whether the connection may go on.
func (x *exchange) finish() (keep bool) {
	c := &x.c.client
	switch {
	case x.s.Upgraded:
		return false
	case x.aborted:
		return false
	case !x.ended:
		x.Abort()
		return false
	}
	if x.closing {
		if !x.body.whole() {
			x.linger()
		} else if len(c.Buffered()) > 0 {
			x.linger() // a further request, which nobody will answer
		}
		return false
	}
	// Begin has seen to it that closing is set where the body is not all there.
	return x.body.finish()
}

// linger lets the client read the answer before the connection closes: a socket
// that is closed over unread bytes is reset, and the answer with it.
func (x *exchange) linger() {
	c := &x.c.client
	if c.CloseWrite() != nil {
		return
	}
	if c.Interrupted() {
		c.Resume()
	}
	end := stream.Now() + int64(lingerTime)
	for now := stream.Now(); now < end && !x.c.engine.stopping.Load(); now = stream.Now() {
		c.Discard(len(c.Buffered()))
		if c.Fill(min(end, now+int64(lingerIdle))) != nil {
			return
		}
	}
}

// How long a closing connection takes what its client still sends, and waits for
// more of it.
const (
	lingerTime = 10 * time.Second
	lingerIdle = 2 * time.Second
)

func (x *exchange) release() {
	stream.PutBuffer(x.whole)
	x.whole = nil
	x.answering.release()
	x.s.Reset(nil)
	x.req = stream.Request{}
	x.body.reader.Release()
	x.body.x = nil
	x.c.client.Release()
	x.c = nil
	exchanges.Put(x)
}

// body is the request's body. It is part of stream.Body.
type body struct {
	x      *exchange
	reader stream.BodyReader
	begun  bool
}

// begin finds out about the body behind the head, which is parsed.
func (b *body) begin(x *exchange) {
	b.x, b.begun = x, false
	c := &x.c.client
	f := x.head.Body()
	if f == 0 || f > 0 && int64(len(c.Buffered())-x.head.Size) >= int64(f) {
		// The head stays where it is: nothing more is read while it is used.
		c.Discard(x.head.Size)
	} else {
		x.req.Buf, x.whole = c.Take(x.head.Size)
	}
	b.reader.Begin(c.Conn, f, &c.HTTP.Limits)
	if !x.head.HasBody() {
		return
	}
	x.req.Body = b
	b.reader.Idle = c.HTTP.BodyTime
	if f > 0 && c.HTTP.BodyRate > 0 {
		b.reader.Idle = 0
		b.reader.By = stream.Now() + int64(bodyTime(c.HTTP, int64(f)))
		if x.head.Expects {
			b.reader.By += int64(c.HTTP.HeadTime) // for the backend to say 100
		}
	}
}

// bodyTime answers the time that a body of known length has. A length beyond what a
// duration holds has any time.
func bodyTime(h *stream.HTTP, length int64) time.Duration {
	d := float64(h.BodyTime) + float64(length)/float64(h.BodyRate)*float64(time.Second)
	return time.Duration(min(d, float64(100*365*24*time.Hour)))
}

func (b *body) Next(raw bool) ([]byte, error) {
	b.begun = true
	return b.reader.Next(raw)
}

func (b *body) AppendTrailers(dst []byte) []byte { return b.reader.AppendTrailers(dst) }
func (b *body) Chunks() bool                     { return b.x.head.Chunked }
func (b *body) Whole() bool                      { return b.reader.Whole() }
func (b *body) Begun() bool                      { return b.begun }
func (b *body) Interrupt()                       { b.x.c.client.Interrupt() }
func (b *body) Spliced(n int64)                  { b.reader.Spliced(n) }
func (b *body) count() int64                     { return b.reader.Count }

func (b *body) Within(d time.Duration) {
	if b.reader.Idle > 0 {
		b.reader.Idle = d
	}
}

func (b *body) Source() (c *stream.Conn, n, idle, by int64) {
	if !b.x.c.client.Plain() {
		return nil, 0, 0, 0
	}
	return b.x.c.client.Conn, b.reader.Unspliced(), int64(b.reader.Idle), b.reader.By
}

// whole tells that the body was read, or can be without waiting.
func (b *body) whole() bool { return b.reader.Ended() || b.reader.Whole() }

// finish discards what nobody read of a body, and tells whether the next request
// stands behind it.
func (b *body) finish() bool {
	for {
		if _, err := b.reader.Next(false); err == io.EOF {
			b.reader.Finish()
			return true
		} else if err != nil {
			return false
		}
	}
}
