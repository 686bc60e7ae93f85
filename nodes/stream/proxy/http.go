package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// tick is how often a session that waits for its backend looks whether its client is
// still there. After ticks of them a goroutine watches instead.
const (
	tick  = int64(stream.AskAfter)
	ticks = 5
)

// A call is one request at one backend. It comes from a pool.
type call struct {
	head http1.Response
	res  stream.Response
	body stream.BodyReader
	turn
}

// turn is what a call has of its request alone.
type turn struct {
	p   *proxy
	s   *stream.Session
	up  *stream.Conn
	out []byte // the request's head

	upgrade   bool
	whole     []byte // the request's body, where it is buffered as a whole
	begun     int64  // of the session's time here
	sentAt    int64
	continued bool // 100 came
	interim   bool // so did any answer but the final one

	up2 upload

	waits int    // ticks so far
	stop  func() // ends the watch
	gone  atomic.Bool
}

// upload is the request's body on its way to the backend.
type upload struct {
	running bool
	done    chan struct{}
	// What follows is valid once done is closed.
	sent    bool // all of it
	readErr error
}

var calls = sync.Pool{New: func() any { return new(call) }}

// A failure is why a call ended: an output, and whether another backend may be
// asked.
type failure struct {
	output int
	status int // of the answer, if not the output's
	err    error
	again  bool // nothing came back, and the request may be sent again
	stale  bool // on a connection that had been open
}

// request passes a request on.
func (p *proxy) request(ctx context.Context, s *stream.Session) (int, error) {
	c := calls.Get().(*call)
	c.p, c.s, c.begun = p, s, stream.Now()
	defer c.release()
	r := s.Req
	c.upgrade = r.WantsUpgrade && r.Body == nil && r.Proto == 11 && p.allows(r.UpgradeTo.In(r.Buf))
	if r.Body != nil && r.Body.Whole() {
		w, err := r.Body.Next(true)
		if err != nil && err != io.EOF {
			return badBody, err
		}
		c.whole = w
	}
	for fresh := false; ; {
		f := c.try(ctx, fresh)
		if f == nil {
			return stream.Done, nil
		}
		fresh = false
		switch {
		case f.output == clientGone || f.output == clientSlow || f.output == badBody || f.output == bodyTimeout:
			// Not the backend's fault.
			s.Status = f.status
			return f.output, f.err
		case s.Req.Begun():
			s.Picker.Report(s.Backend, true)
			return f.output, f.err
		case f.stale && f.again:
			p.env.Count(stale, 1)
			fresh = true // the same one, which did nothing wrong
			continue
		case f.again && p.another(s):
			continue
		case !f.again:
			s.Picker.Report(s.Backend, true)
		}
		return f.output, f.err
	}
}

// try asks the session's backend; nil if the session has its answer.
func (c *call) try(ctx context.Context, fresh bool) *failure {
	p, s := c.p, c.s
	s.Tries++
	for {
		c.up, c.sentAt = nil, c.begun
		if s.Tries > 1 {
			c.sentAt = stream.Now()
		}
		if !fresh && p.c.Proxy == "off" {
			c.up = p.idle.get(s.Backend, c.sentAt)
		}
		open := c.up != nil
		if !open {
			if f := c.dial(ctx); f != nil {
				return f
			}
			c.sentAt = stream.Now()
		}
		s.Connected = c.sentAt - c.begun
		c.up.Uses++
		f := c.exchange(open)
		c.unwatch()
		c.join()
		if c.up != nil {
			_ = c.up.Close()
			c.up = nil
		}
		if f != &notQuiet {
			if open {
				p.env.Count(reused, 1)
			}
			return f
		}
		p.env.Count(stale, 1)
	}
}

// dial makes a connection to the session's backend. While that takes its time, it looks
// after the client.
func (c *call) dial(ctx context.Context) *failure {
	s := c.s
	dialling, cancel := context.WithCancel(ctx)
	gone, looked := false, make(chan struct{})
	late := time.AfterFunc(time.Duration(tick), func() {
		defer close(looked)
		for !s.Req.Gone() {
			select {
			case <-dialling.Done():
				return
			case <-time.After(time.Duration(tick)):
			}
		}
		gone = true
		cancel()
	})
	up, err := c.p.dial(dialling, s)
	cancel()
	if !late.Stop() {
		<-looked
	}
	if gone || ctx.Err() != nil {
		if err == nil {
			_ = up.Close()
		}
		return &failure{output: clientGone, err: errGone}
	}
	if err != nil {
		return &failure{output: dialOutput(err), err: err, again: true}
	}
	c.up = up
	return nil
}

// notQuiet: an idle connection had ended, or something had come on it that belongs to
// no request: this one must not take it for its answer. Nothing was sent.
var notQuiet failure

// exchange sends the request, and passes on what is answered.
func (c *call) exchange(open bool) *failure {
	s := c.s
	f, first := c.ask(open)
	if f != nil {
		return f
	}
	c.head.Reset()
	for {
		if f := c.await(open, first); f != nil {
			return f
		}
		first = nil
		if !c.head.Informational() {
			break
		}
		if f := c.inform(); f != nil {
			return f
		}
	}
	now := stream.Now()
	s.FirstByte = now - c.begun
	if c.head.Status == http.StatusSwitchingProtocols {
		return c.switchProtocols()
	}
	return c.answer(now)
}

// ask sends the request, or has it begun to be sent. err is what came of waiting for the
// answer, if that was tried.
func (c *call) ask(open bool) (f *failure, err error) {
	r := c.s.Req
	if c.out == nil {
		c.out = stream.GetBuffer(stream.SmallBuffer)
	}
	c.out = c.p.appendHead(c.out[:0], c.s, c.upgrade)
	upload := r.Body != nil && c.whole == nil
	n, size := 0, len(c.out)+len(c.whole)
	switch {
	case !upload && size <= cap(c.out):
		c.out = append(c.out, c.whole...)
		by := c.sentAt + c.patience()
		if t := int64(c.p.c.Response); t > 0 {
			by = min(by, c.sentAt+t)
		}
		if n, err = c.up.Ask(c.out, by, open); n == size {
			c.out = nil // it is not ours any more
			return nil, err
		}
	case open && !c.up.Quiet():
		err = stream.ErrNotQuiet
	case upload:
		if n, err = c.up.Write(c.out); err == nil {
			c.startUpload()
		}
	default:
		n = 1 // at least
		err = c.up.WriteParts(c.out, c.whole, nil)
		c.sentAt = stream.Now() // it may have had to wait for the backend
	}
	switch {
	case err == stream.ErrNotQuiet:
		return &notQuiet, nil
	case err != nil && n == 0:
		return &failure{output: closedEarly, err: err, again: true, stale: open}, nil // nothing was sent
	}
	// A backend that refuses early may have answered although writing fails.
	return nil, nil
}

var (
	limits  = http1.Limits{Line: 16 << 10, Field: 48 << 10, Head: 60 << 10, Fields: 256}
	errGone = errors.New("the client is gone")
)

// await reads the head of a response. first is an error of a read that was tried before.
func (c *call) await(open bool, first error) *failure {
	for {
		complete, err := c.head.Parse(c.up.Buffered(), &limits)
		if err != nil {
			return &failure{output: badResponse, err: err}
		}
		if complete {
			return nil
		}
		for {
			by := c.answerBy()
			if err, first = first, nil; err == nil {
				err = c.up.Fill(min(by, stream.Now()+c.patience()))
			}
			if err == nil {
				break
			}
			if f := c.interrupted(err); f != nil {
				return f
			}
			if !stream.IsTimeout(err) {
				return c.closed(err, open)
			}
			if stream.Now() >= by {
				return &failure{output: responseTimeout, err: err}
			}
			if !c.look() {
				return &failure{output: clientGone, err: errGone}
			}
		}
	}
}

// answerBy is when the head of the answer has to be there.
func (c *call) answerBy() int64 {
	if c.up2.running {
		select {
		case <-c.up2.done:
			c.up2.running = false
			c.sentAt = stream.Now()
		default:
			return stream.Never // it is still being asked
		}
	}
	if c.p.c.Response == 0 {
		return stream.Never
	}
	return c.sentAt + int64(c.p.c.Response)
}

// patience is how long to wait until looking after the client again.
func (c *call) patience() int64 {
	if c.stop != nil {
		return stream.Never / 2
	}
	return tick
}

// look looks after the client; false if it is gone. From some time on a watch takes
// its place.
func (c *call) look() bool {
	if c.up2.running {
		return true // who reads its body sees it
	}
	if c.s.Req.Gone() {
		return false
	}
	if c.waits++; c.waits >= ticks && c.stop == nil {
		up := c.up
		c.stop = c.s.Req.Watch(func() {
			c.gone.Store(true)
			up.Interrupt()
		})
	}
	return true
}

func (c *call) unwatch() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

// interrupted tells why a read from the backend was interrupted, if it was.
func (c *call) interrupted(err error) *failure {
	if !errors.Is(err, stream.ErrInterrupted) {
		return nil
	}
	if c.gone.Load() {
		return &failure{output: clientGone, err: errGone}
	}
	c.join()
	return bodyFailure(c.up2.readErr)
}

// bodyFailure answers what an error of the request's body comes to.
func bodyFailure(err error) *failure {
	var fault *http1.Error
	switch {
	case errors.As(err, &fault):
		return &failure{output: badBody, status: fault.Status, err: err}
	case stream.IsTimeout(err):
		return &failure{output: bodyTimeout, err: err}
	}
	return &failure{output: clientGone, err: err}
}

// closed tells what it means that the backend closed the connection, or that reading
// failed, before the head of an answer was there.
func (c *call) closed(err error, open bool) *failure {
	f := &failure{output: closedEarly, err: err}
	r := c.s.Req
	if len(c.up.Buffered()) > 0 || c.interim {
		return f
	}
	if c.up2.running || c.up2.done != nil {
		return f // the body is gone
	}
	closed := err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	f.again = closed && r.Method.Idempotent()
	f.stale = f.again && open
	return f
}

// inform passes on an interim response, and gets ready for the next.
func (c *call) inform() *failure {
	r := c.s.Req
	pass := true
	c.interim = true
	if c.head.Status == http.StatusContinue {
		// Only who asked for it gets one, and one only.
		pass = r.Expects && !c.continued
		c.continued = true
	}
	var err error
	if pass {
		err = r.Inform(&stream.Response{Status: c.head.Status, Head: &c.head, Buf: c.up.Buffered()[:c.head.Size], Edits: c.s.Edits})
	}
	c.up.Discard(c.head.Size)
	c.head.Reset()
	if err != nil {
		return clientFailure(err)
	}
	return nil
}

func clientFailure(err error) *failure {
	if stream.IsTimeout(err) {
		return &failure{output: clientSlow, err: err}
	}
	return &failure{output: clientGone, err: err}
}

// answer passes on the final response, whose head has come now.
func (c *call) answer(now int64) *failure {
	s, r := c.s, c.s.Req
	framing := c.head.Body(r.Method)
	bodiless := framing == 0 && !(c.head.Length == 0 && r.Method != http1.HEAD && c.head.Status != http.StatusNoContent && c.head.Status != http.StatusNotModified)
	raw := framing == http1.Chunked && r.RawChunks()
	res := &c.res
	*res = stream.Response{Status: c.head.Status, Head: &c.head, Buf: c.up.Buffered()[:c.head.Size], Edits: s.Edits, Framing: framing, Bodiless: bodiless, Length: c.head.Length}
	if framing == http1.Chunked && !raw {
		res.Framing = http1.UntilClose
	}
	if c.up2.running && !c.uploaded(time.Millisecond) {
		// The rest of the body stands before the next request, and will not be read.
		r.Close()
	}
	closes := c.head.Close
	c.up.Discard(c.head.Size)
	c.body.Begin(c.up, framing, &limits)
	// A body that takes its time: a client that has ended its side by now waits for
	// it; one that does so later does not.
	if !c.up2.running && !c.body.Whole() && !bytes.HasSuffix(c.up.Buffered(), lastChunk) && r.Gone() {
		return &failure{output: clientGone, err: errGone}
	}
	s.Status = c.head.Status
	if err := r.Begin(res); err != nil {
		return clientFailure(err)
	}
	if f := c.pass(raw, now); f != nil {
		return f
	}
	now = stream.Now()
	s.Picker.Report(s.Backend, false)
	s.Backend.Latency.Observe(now - c.begun)
	c.unwatch()
	c.body.Finish()
	unread := len(c.up.Buffered())
	switch {
	case unread > 0:
		c.p.env.Count(extraBytes, 1)
	case c.gone.Load(): // and interrupted
	case closes || framing == http1.UntilClose || c.up2.running || c.up2.done != nil && !c.up2.sent || c.p.c.Proxy != "off":
	default:
		c.p.idle.put(s.Backend, c.up, now)
		c.up = nil
	}
	return nil
}

// uploaded waits a moment for the end of the upload.
func (c *call) uploaded(d time.Duration) bool {
	select {
	case <-c.up2.done:
	default:
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-c.up2.done:
		case <-t.C:
			return false
		}
	}
	c.up2.running = false
	return c.up2.sent
}

// pass passes the body on, and ends the answer; since is when something came last.
func (c *call) pass(raw bool, since int64) *failure {
	r := c.s.Req
	total := int64(c.p.c.BodyTime)
	full := 0
	for {
		if len(c.up.Buffered()) == 0 || full > 0 {
			// What is there goes out before waiting for more.
			if !c.body.Ended() {
				if err := r.Flush(); err != nil {
					return clientFailure(err)
				}
			}
		}
		if full >= 2 {
			if n := c.body.Unspliced(); n >= stream.LargeBuffer && c.up.Plain() {
				if dst := r.Sink(); dst != nil {
					moved, f := c.splice(dst, n)
					if f != nil {
						return f
					}
					if moved > 0 {
						since = stream.Now()
					} else if stream.Now()-since >= total {
						return &failure{output: cut, err: stream.ErrTimeout}
					}
					continue
				}
			}
		}
		c.body.Idle = time.Duration(min(total, c.patience()))
		p, err := c.body.Next(raw)
		switch {
		case err == io.EOF:
			if err := r.End(nil, c.trailers()); err != nil {
				return clientFailure(err)
			}
			return nil
		case err == nil:
		case stream.IsTimeout(err) && stream.Now()-since < total:
			if !c.look() {
				return &failure{output: clientGone, err: errGone}
			}
			continue
		default:
			if f := c.interrupted(err); f != nil {
				return f
			}
			return &failure{output: cut, err: err}
		}
		if c.body.Last() {
			if err := r.End(p, c.trailers()); err != nil {
				return clientFailure(err)
			}
			return nil
		}
		since = stream.Now()
		if err := r.Write(p); err != nil {
			return clientFailure(err)
		}
		if len(p) >= stream.SmallBuffer/2 {
			full++
		} else {
			full = 0
		}
	}
}

func (c *call) trailers() []byte {
	c.out = c.body.AppendTrailers(c.out[:0])
	return c.out
}

// splice moves up to n bytes of the body in the kernel, until none come for a while.
func (c *call) splice(dst *stream.Conn, n int64) (moved int64, f *failure) {
	r := c.s.Req
	c.up.Release()
	moved, err := stream.Splice(dst, c.up, n, min(int64(c.p.c.BodyTime), c.patience()), stream.Never, nil)
	c.body.Spliced(moved)
	r.SinkSpliced(moved)
	var failed *stream.WriteError
	switch {
	case err == nil:
		return moved, nil
	case errors.As(err, &failed):
		return moved, clientFailure(err)
	case stream.IsTimeout(err):
		if !c.look() {
			f = &failure{output: clientGone, err: errGone}
		}
		return moved, f
	}
	if f = c.interrupted(err); f == nil {
		f = &failure{output: cut, err: err}
	}
	return moved, f
}

// switchProtocols has the connection leave HTTP.
func (c *call) switchProtocols() *failure {
	s, r := c.s, c.s.Req
	if !c.upgrade || !c.head.WantsUpgrade {
		return &failure{output: badResponse, err: errors.New("the backend switches protocols unasked")}
	}
	buf := c.up.Buffered()[:c.head.Size]
	s.Status = c.head.Status
	err := r.Begin(&stream.Response{Status: c.head.Status, Head: &c.head, Buf: buf, Edits: s.Edits, Upgrade: c.head.UpgradeTo.In(buf)})
	if err != nil {
		return clientFailure(err)
	}
	// The session gives its place back before its client knows: it may ask again at
	// once.
	s.BeginUpgrade()
	if err := r.Flush(); err != nil {
		return clientFailure(err)
	}
	c.up.Discard(c.head.Size)
	c.unwatch()
	c.p.env.Count(upgraded, 1)
	client := r.Upgrade()
	t := tunnel{client: client, backend: c.up, idle: int64(c.p.c.Idle), grace: int64(c.p.c.Grace)}
	t.run()
	s.Picker.Report(s.Backend, false)
	s.In, s.Out = t.up.Load(), t.down.Load()
	s.Reason, s.Err = t.why()
	return nil
}

// startUpload has a goroutine send the request's body.
func (c *call) startUpload() {
	c.up2 = upload{running: true, done: make(chan struct{})}
	go func() {
		defer close(c.up2.done)
		c.send()
	}()
}

// send sends the request's body, as the head announced it.
func (c *call) send() {
	r := c.s.Req
	body, u := r.Body, &c.up2
	raw := body.Chunks()
	chunks := r.Chunked && !raw
	line := make([]byte, 0, 32)
	full := 0
	for {
		if full >= 2 {
			src, n, idle, by := body.Source()
			if src != nil && n >= stream.LargeBuffer && c.up.Plain() {
				src.Release()
				moved, err := stream.Splice(c.up, src, n, idle, by, nil)
				body.Spliced(moved)
				var failed *stream.WriteError
				if errors.As(err, &failed) {
					return // the answer, or its absence, says why
				}
				if err != nil {
					u.readErr = err
					c.up.Interrupt()
					return
				}
				full = 0
				continue
			}
		}
		p, err := body.Next(raw)
		switch {
		case err == io.EOF:
			if r.Chunked {
				if chunks {
					line = append(line[:0], "0\r\n"...)
				}
				line = body.AppendTrailers(line)
				line = append(line, "\r\n"...)
				if _, err := c.up.Write(line); err != nil {
					return
				}
			}
			u.sent = true
			return
		case err != nil:
			u.readErr = err
			c.up.Interrupt()
			return
		}
		if chunks {
			line = http1.AppendChunk(line[:0], len(p))
			err = c.up.WriteParts(line, p, crlf)
			line = line[:0]
		} else {
			_, err = c.up.Write(p)
		}
		if err != nil {
			return
		}
		if len(p) >= stream.SmallBuffer/2 {
			full++
		} else {
			full = 0
		}
	}
}

var crlf, lastChunk = []byte("\r\n"), []byte("0\r\n\r\n")

// join ends the upload, whether or not it has come to its end.
func (c *call) join() {
	if c.up2.done == nil {
		return
	}
	select {
	case <-c.up2.done:
	default:
		c.s.Req.Body.Interrupt()
		_ = c.up.Conn().Close() // it may be writing
		<-c.up2.done
	}
	c.up2.running = false
}

func (c *call) release() {
	stream.PutBuffer(c.out)
	c.body.Release()
	c.res, c.turn = stream.Response{}, turn{}
	calls.Put(c)
}
