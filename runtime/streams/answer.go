package streams

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// answering is the way back to a client of HTTP/1: a stream.Responder.
type answering struct {
	x         *exchange
	out       []byte // what is held back: the head, until the first bytes of the body are there
	mode      mode
	left      int64 // of a body of known length
	written   int64 // of bodies
	oldClient bool  // HTTP/1.0: no chunks, no interim responses
	begun     bool
	sent      bool
	ended     bool
	aborted   bool
	closing   bool // the connection ends with this answer
	failed    error

	// The client's end may be seen by the goroutine of a Watch: mu guards begun, and
	// what is written before.
	mu    sync.Mutex
	half  bool // the client ended its side before the answer began
	asked bool // whether it is still there
}

// mode is how a body is written.
type mode uint8

const (
	bodiless mode = iota
	measured      // of known length
	asIs          // in chunks, as they come
	chunking      // in chunks of our own
	untilEnd      // up to the end of the connection
)

func (a *answering) reset(x *exchange) { *a = answering{x: x} } // nobody watches

func (a *answering) client() *stream.Conn { return a.x.c.client.Conn }

func (a *answering) release() {
	stream.PutBuffer(a.out)
	a.out = nil
}

var errOverrun = errors.New("the body is longer than its Content-Length")

// Inform is part of stream.Responder.
func (a *answering) Inform(r *stream.Response) error {
	if a.oldClient {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.room()
	a.statusLine(r)
	if r.Head != nil {
		a.out = stream.AppendResponse(a.out, &r.Head.Head, r.Buf, r.Drop|http1.HopByHop, r.Edits)
	}
	a.out = append(a.out, "\r\n"...)
	_, err := a.client().Write(a.out)
	a.out = a.out[:0]
	a.failed = err
	return err
}

func (a *answering) room() {
	if a.out == nil {
		a.out = stream.GetBuffer(stream.SmallBuffer)[:0]
	}
}

func (a *answering) statusLine(r *stream.Response) {
	a.out = append(a.out, "HTTP/1.1 "...)
	if r.Head != nil {
		a.out = append(a.out, r.Head.Line.In(r.Buf)...)
	} else {
		a.out = strconv.AppendInt(a.out, int64(r.Status), 10)
		a.out = append(a.out, ' ')
		a.out = append(a.out, http.StatusText(r.Status)...)
	}
	a.out = append(a.out, "\r\n"...)
}

// Begin is part of stream.Responder.
func (a *answering) Begin(r *stream.Response) error {
	a.mu.Lock()
	a.begun = true
	a.mu.Unlock()
	a.room()
	a.statusLine(r)
	if r.Head != nil {
		a.out = stream.AppendResponse(a.out, &r.Head.Head, r.Buf, r.Drop|http1.HopByHop, r.Edits)
	} else {
		a.out = stream.AppendAnswer(a.out, r.Fields, r.Edits)
	}
	if r.Status == http.StatusSwitchingProtocols {
		a.out = append(a.out, "Connection: Upgrade\r\nUpgrade: "...)
		a.out = append(a.out, r.Upgrade...)
		a.out = append(a.out, "\r\n\r\n"...)
		return nil
	}
	switch {
	case r.Bodiless:
		a.mode = bodiless
		// 204 and interim responses have no length (RFC 9110 section 8.6).
		if r.Length >= 0 && r.Status != http.StatusNoContent {
			a.out = http1.AppendLength(a.out, r.Length)
		}
	case r.Framing >= 0:
		a.mode, a.left = measured, int64(r.Framing)
		a.out = http1.AppendLength(a.out, a.left)
	case a.oldClient:
		a.mode = untilEnd
		a.closing = true
	default:
		a.mode = chunking
		if r.Framing == http1.Chunked {
			a.mode = asIs
		}
		a.out = append(a.out, "Transfer-Encoding: chunked\r\n"...)
	}
	// Where the next request begins is known only if this one has ended.
	// Somebody may be reading the body still who has said so by Close.
	if !a.closing && (!a.x.body.whole() || a.x.c.engine.stopping.Load()) {
		a.closing = true
	}
	switch {
	case a.closing:
		a.out = append(a.out, "Connection: close\r\n"...)
	case a.oldClient:
		a.out = append(a.out, "Connection: keep-alive\r\n"...)
	}
	a.out = append(a.out, "\r\n"...)
	return nil
}

// Write is part of stream.Responder.
func (a *answering) Write(p []byte) error {
	if a.failed != nil || len(p) == 0 {
		return a.failed
	}
	c := a.client()
	a.written += int64(len(p))
	switch a.mode {
	case bodiless:
		return nil
	case measured:
		if int64(len(p)) > a.left {
			a.failed = errOverrun
			return errOverrun
		}
		a.left -= int64(len(p))
	case chunking:
		a.out = http1.AppendChunk(a.out, len(p))
		if len(a.out)+len(p)+2 <= cap(a.out) {
			a.out = append(a.out, p...)
			a.out = append(a.out, "\r\n"...)
			return a.Flush()
		}
		a.failed = c.WriteParts(a.out, p, crlf)
		a.sent, a.out = true, a.out[:0]
		return a.failed
	}
	switch {
	case len(a.out) == 0:
		_, a.failed = c.Write(p)
		a.sent = true
		return a.failed
	case len(a.out)+len(p) <= cap(a.out):
		a.out = append(a.out, p...)
		return a.Flush()
	}
	a.failed = c.WriteParts(a.out, p, nil)
	a.sent, a.out = true, a.out[:0]
	return a.failed
}

var crlf = []byte("\r\n")

// Flush is part of stream.Responder.
func (a *answering) Flush() error {
	if a.failed == nil && len(a.out) > 0 {
		a.sent = true
		_, a.failed = a.client().Write(a.out)
	}
	a.out = a.out[:0]
	return a.failed
}

// End is part of stream.Responder.
func (a *answering) End(p, trailers []byte) error {
	if a.failed != nil {
		return a.failed
	}
	switch a.mode {
	case bodiless, measured, untilEnd:
		if a.mode == measured && int64(len(p)) < a.left {
			a.Abort()
			return errShort
		}
		a.ended = true
		if len(p) > 0 {
			return a.Write(p)
		}
		return a.Flush()
	case chunking:
		if len(p) > 0 {
			a.out = http1.AppendChunk(a.out, len(p))
		}
	}
	a.ended = true
	a.written += int64(len(p))
	if len(a.out)+len(p)+len(trailers)+8 <= cap(a.out) {
		a.out = append(a.out, p...)
		a.tail(len(p), trailers)
		return a.Flush()
	}
	head := len(a.out)
	a.tail(len(p), trailers)
	a.failed = a.client().WriteParts(a.out[:head], p, a.out[head:])
	a.sent, a.out = true, a.out[:0]
	return a.failed
}

// tail appends what follows the last n bytes of a body in chunks.
func (a *answering) tail(n int, trailers []byte) {
	if a.mode == chunking {
		if n > 0 {
			a.out = append(a.out, "\r\n"...)
		}
		a.out = append(a.out, "0\r\n"...)
	}
	a.out = append(a.out, trailers...)
	a.out = append(a.out, "\r\n"...)
}

var errShort = errors.New("the body is shorter than its Content-Length")

// Begun is part of stream.Responder.
func (a *answering) Begun() bool { return a.begun }

// Abort is part of stream.Responder.
func (a *answering) Abort() {
	if a.aborted {
		return
	}
	a.aborted = true
	c := a.client()
	if !a.begun || a.failed != nil {
		c.Reset()
		return
	}
	_ = a.Flush()
	if a.mode != untilEnd {
		// What is missing shows: there is no last chunk, or less than the length.
		return
	}
	// An end would look like that of the body: reset, once what came has gone out.
	for i := 0; i < 50 && c.Queued() > 0; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	c.Reset()
}

// RawChunks is part of stream.Responder.
func (a *answering) RawChunks() bool { return !a.oldClient }

// Gone is part of stream.Responder.
func (a *answering) Gone() bool {
	switch a.client().LookAtPeer() {
	case stream.Gone:
		return true
	case stream.Ended:
		if a.sideEnded() {
			return true
		}
		if stream.Now()-a.x.s.Begun >= int64(stream.AskAfter) {
			a.ask()
		}
	}
	return false
}

// Watch is part of stream.Responder.
func (a *answering) Watch(f func()) (stop func()) {
	return a.client().WatchPeer(a.sideEnded, a.ask, f)
}

// sideEnded takes note that the client has ended its side, and tells whether it is gone
// for that. It may have done so behind its request, and wait for the answer; in the
// midst of an answer that is nobody's habit. With TLS sides end by a word of TLS, not
// by the end of the connection below.
func (a *answering) sideEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.half && !a.begun {
		a.half = a.client().Plain()
	}
	return !a.half
}

// ask finds out whether a client that has ended its side still waits: it takes an
// interim response, which means nothing (RFC 9110 section 15.2), and one that has
// closed the connection answers it by a reset. HTTP/1.0 has none.
func (a *answering) ask() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun || a.asked || a.oldClient {
		return
	}
	a.asked = true
	_, _ = a.client().Write(processing) // an error shows in the state of the connection
}

var processing = []byte("HTTP/1.1 102 Processing\r\n\r\n")

// Upgrade is part of stream.Responder.
func (a *answering) Upgrade() *stream.Conn {
	a.ended = true
	// What is read from now on takes the head's buffer, and the log reads the head
	// at the end.
	a.x.req.Buf = append([]byte(nil), a.x.req.Buf...)
	return a.client()
}

// Sink is part of stream.Responder.
func (a *answering) Sink() *stream.Conn {
	if a.mode != measured && a.mode != untilEnd || !a.client().Plain() || a.Flush() != nil {
		return nil
	}
	return a.client()
}

// SinkSpliced is part of stream.Responder.
func (a *answering) SinkSpliced(n int64) {
	a.written += n
	if a.mode == measured {
		a.left -= n
	}
}

// Close is part of stream.Responder.
func (a *answering) Close() { a.closing = true }
