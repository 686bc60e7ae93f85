package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// transport makes what speaks HTTP/2 with backends, by net/http: its connections
// are shared by all requests.
func (p *proxy) transport() *http.Transport {
	t := &http.Transport{
		DialContext:        (&net.Dialer{Timeout: p.c.Connect, KeepAlive: -1}).DialContext,
		TLSClientConfig:    p.tls.Clone(),
		DisableCompression: true,
		IdleConnTimeout:    p.c.KeepaliveTime,
		Protocols:          new(http.Protocols),
		HTTP2:              &http.HTTP2Config{WriteByteTimeout: p.c.WriteTime, SendPingTimeout: p.c.KeepaliveTime, PingTimeout: p.c.Connect},
	}
	if p.tls != nil {
		t.Protocols.SetHTTP2(true)
	} else {
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

var (
	errSlow     = errors.New("no answer in time")
	errClosed   = errors.New("the request is over")
	errNoAnswer = errors.New("malformed answer")
)

// requestHTTP2 passes a request on to a backend of HTTP/2.
func (p *proxy) requestHTTP2(ctx context.Context, s *stream.Session) (int, error) {
	for {
		s.Tries++
		out, again, err := p.tryHTTP2(ctx, s)
		if out == stream.Done {
			return out, nil
		}
		switch {
		case out == clientGone || out == clientSlow || out == badBody || out == bodyTimeout:
			return out, err
		case !s.Req.Begun() && again && p.another(s):
			continue
		case !again:
			s.Picker.Report(s.Backend, true)
		}
		return out, err
	}
}

// tryHTTP2 asks the session's backend. again tells that the request may be sent to
// another one.
func (p *proxy) tryHTTP2(ctx context.Context, s *stream.Session) (output int, again bool, err error) {
	r, begun := s.Req, stream.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errClosed)
	var up *uploadHTTP2
	if r.Body != nil {
		up = &uploadHTTP2{body: r.Body}
	}
	// While a body is read, who reads it sees the client go.
	var unwatch func()
	watch := func() { unwatch = r.Watch(func() { cancel(errGone) }) }
	if up == nil {
		watch()
	}
	defer func() {
		if up != nil {
			up.end(cancel)
		}
		if unwatch != nil {
			unwatch()
		}
	}()
	req, err := p.makeHTTP2(ctx, s, up)
	if err != nil {
		return badBody, false, err // not the backend's fault
	}
	// The time for an answer begins when the request is sent.
	var answered atomic.Bool
	restart := func() {}
	if p.c.Response > 0 && !isGRPC(r) {
		slow := time.AfterFunc(p.c.Response, func() {
			if !answered.Load() && (up == nil || up.sent.Load()) {
				cancel(errSlow)
			}
		})
		defer slow.Stop()
		restart = func() { slow.Reset(p.c.Response) }
	}
	if up != nil {
		up.last = func() {
			restart()
			watch()
		}
	}
	interim := interimHTTP2{s: s}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: interim.pass}))
	if up != nil {
		up.given = true
	}
	res, err := p.h2.RoundTrip(req)
	answered.Store(true)
	came := interim.end()
	if err != nil {
		output, again, err := p.failedHTTP2(ctx, r, up, err)
		return output, again && !came, err // nothing is sent again behind an interim answer
	}
	s.Connected = stream.Now() - begun
	return p.answerHTTP2(ctx, cancel, s, res, up, begun)
}

// makeHTTP2 makes the request as net/http has it; its fields are those of HTTP/1, less
// what belongs to a connection.
func (p *proxy) makeHTTP2(ctx context.Context, s *stream.Session, up *uploadHTTP2) (*http.Request, error) {
	r, b := s.Req, s.Req.Buf
	scheme := "http"
	if p.tls != nil {
		scheme = "https"
	}
	target := string(r.Target.In(b))
	if r.Absolute {
		target = "/"
		if r.Path.Start < r.Target.End && r.Path.Start < r.Path.End {
			target = string(b[r.Path.Start:r.Target.End])
		}
	}
	u := &url.URL{Scheme: scheme, Host: s.Backend.Addr.String(), Opaque: target}
	if len(target) > 1 && target[1] == '/' || r.Asterisk {
		// What begins with two slashes would be taken for an authority.
		var err error
		if u, err = url.ParseRequestURI(scheme + "://" + u.Host + target); err != nil && !r.Asterisk {
			return nil, err
		}
		if r.Asterisk {
			u = &url.URL{Scheme: scheme, Host: s.Backend.Addr.String(), Path: "*"}
		}
	}
	req := &http.Request{Method: string(r.MethodText.In(b)), URL: u, Host: string(r.Host.In(b)), Header: http.Header{}, Proto: "HTTP/2.0", ProtoMajor: 2}
	drop := http1.HopByHop | http1.SetOf(http1.LookAlike, http1.Host, http1.Trailer)
	if !r.Expects {
		drop |= http1.SetOf(http1.Expect)
	}
	if p.c.Forwarded {
		if s.Client.Trusted {
			drop |= http1.SetOf(http1.ForwardedFor, http1.Forwarded)
		} else {
			drop |= http1.Managed
		}
	}
	lines := stream.AppendRequest(nil, &r.Head, b, drop, s.Edits)
	if p.c.Forwarded {
		lines = appendForwarded(lines, s)
	}
	stream.EachField(lines, req.Header.Add)
	if r.TETrailers {
		req.Header.Set("Te", "trailers")
	}
	if req.Header["User-Agent"] == nil {
		req.Header["User-Agent"] = nil // or net/http would add its own
	}
	if up != nil {
		req.Body, req.ContentLength = up, r.Length
		// Trailers are sent as far as they were announced.
		for i := range r.Fields {
			if f := &r.Fields[i]; f.ID == http1.Trailer {
				up.announced = append(up.announced, string(f.Text(b)))
			}
		}
		req.Trailer = up.trailers()
	}
	return req.WithContext(ctx), nil
}

// isGRPC tells whether a request is a call of gRPC, which has deadlines of its own, and
// of which a stream may be answered late.
func isGRPC(r *stream.Request) bool {
	for i := range r.Fields {
		if f := &r.Fields[i]; http1.EqualFold(f.Name(r.Buf), "content-type") {
			return bytes.HasPrefix(f.Text(r.Buf), []byte("application/grpc"))
		}
	}
	return false
}

// interimHTTP2 passes interim responses on. net/http may come with one when the request
// is given up already, and its session over.
type interimHTTP2 struct {
	s *stream.Session

	mu        sync.Mutex
	over      bool
	came      bool // one, at least
	continued bool // 100 was passed on
}

func (i *interimHTTP2) pass(code int, h textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	i.came = true
	if code == http.StatusContinue {
		if i.continued || !i.s.Req.Expects {
			return nil // only who asked for it gets one, and one only
		}
		i.continued = true
	}
	head, buf, err := headOf(code, http.Header(h), -1, false)
	if err != nil {
		return err
	}
	return i.s.Req.Inform(&stream.Response{Status: code, Head: head, Buf: buf, Edits: i.s.Edits})
}

// end waits for the one in hand, and has no further one passed on.
func (i *interimHTTP2) end() (came bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	return i.came
}

// failedHTTP2 tells what an error before an answer comes to.
func (p *proxy) failedHTTP2(ctx context.Context, r *stream.Request, up *uploadHTTP2, err error) (int, bool, error) {
	if up != nil {
		if e := up.err.Load(); e != nil {
			f := bodyFailure(*e)
			return f.output, false, *e
		}
	}
	switch context.Cause(ctx) {
	case errSlow:
		return responseTimeout, false, errSlow
	case nil:
	default:
		return clientGone, false, err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return dialOutput(err), !r.HasBody() || !r.Body.Begun(), err
	}
	return closedEarly, r.Body == nil && r.Method.Idempotent(), err
}

// headOf writes the head of a response of HTTP/2 as one of HTTP/1.1, and has it read
// by the strict reader.
func headOf(status int, h http.Header, length int64, body bool) (*http1.Response, []byte, error) {
	b := append(make([]byte, 0, 512), "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(append(b, ' '), http.StatusText(status)...), "\r\n"...)
	for _, name := range stream.SortedKeys(h) {
		if id := http1.Identify([]byte(name)); http1.HopByHop.Has(id) {
			continue
		}
		for _, v := range h[name] {
			b = http1.AppendField(b, name, v)
		}
	}
	switch {
	case length >= 0:
		b = http1.AppendLength(b, length)
	case body:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	b = append(b, "\r\n"...)
	head := new(http1.Response)
	head.Reset()
	complete, err := head.Parse(b, &limits)
	if err == nil && !complete {
		err = errNoAnswer
	}
	return head, b, err
}

// answerHTTP2 passes an answer on.
func (p *proxy) answerHTTP2(ctx context.Context, cancel context.CancelCauseFunc, s *stream.Session, res *http.Response, up *uploadHTTP2, begun int64) (int, bool, error) {
	r := s.Req
	defer res.Body.Close()
	s.FirstByte = stream.Now() - begun
	head, buf, err := headOf(res.StatusCode, res.Header, res.ContentLength, res.ContentLength < 0)
	if err != nil {
		return badResponse, false, err
	}
	framing := head.Body(r.Method)
	a := stream.Response{Status: res.StatusCode, Head: head, Buf: buf, Edits: s.Edits, Framing: framing, Length: head.Length}
	a.Bodiless = framing == 0 && (r.Method == http1.HEAD || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified)
	if framing == http1.Chunked {
		a.Framing = http1.UntilClose
	}
	if up != nil && !up.sent.Load() {
		r.Close()
	}
	s.Status = res.StatusCode
	if err := r.Begin(&a); err != nil {
		f := clientFailure(err)
		return f.output, false, err
	}
	// The head goes out before anything is waited for; where nothing follows it ends
	// the stream at once, which is how gRPC tells of errors.
	if framing != 0 {
		if err := r.Flush(); err != nil {
			f := clientFailure(err)
			return f.output, false, err
		}
	}
	piece := stream.GetBuffer(stream.SmallBuffer)
	defer stream.PutBuffer(piece)
	slow := time.AfterFunc(p.c.BodyTime, func() { cancel(errSlow) })
	defer slow.Stop()
	for {
		slow.Reset(p.c.BodyTime)
		n, err := res.Body.Read(piece)
		slow.Stop()
		if n > 0 {
			if err := r.Write(piece[:n]); err != nil {
				f := clientFailure(err)
				return f.output, false, err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			if c := context.Cause(ctx); c != nil && c != errSlow {
				return clientGone, false, c
			}
			return cut, false, err
		}
	}
	var trailers []byte
	for _, name := range stream.SortedKeys(res.Trailer) {
		for _, v := range res.Trailer[name] {
			if !http1.TrailerDrop.Has(http1.Identify([]byte(name))) && http1.ValidName(name) && http1.ValidValue(v) {
				trailers = http1.AppendField(trailers, name, v)
			}
		}
	}
	s.Picker.Report(s.Backend, false)
	s.Backend.Latency.Observe(stream.Now() - begun)
	if err := r.End(nil, trailers); err != nil {
		f := clientFailure(err)
		return f.output, false, err
	}
	return stream.Done, false, nil
}

// uploadHTTP2 is a request's body as net/http reads it, in a goroutine of its own.
type uploadHTTP2 struct {
	body      stream.Body
	rest      []byte
	announced []string
	trailer   http.Header
	last      func() // called when all of it was read
	sent      atomic.Bool
	err       atomic.Pointer[error]
	given     bool // to net/http

	mu   sync.Mutex // held while it is read
	over bool       // the request is
}

// Read is part of io.Reader.
func (u *uploadHTTP2) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return 0, errClosed
	}
	if len(u.rest) == 0 {
		piece, err := u.body.Next(false)
		switch {
		case err == io.EOF:
			stream.EachField(u.body.AppendTrailers(nil), func(name, value string) {
				if k := textproto.CanonicalMIMEHeaderKey(name); u.trailer[k] != nil || hasKey(u.trailer, k) {
					u.trailer[k] = append(u.trailer[k], value)
				}
			})
			u.last()
			u.sent.Store(true)
			return 0, io.EOF
		case err != nil:
			u.err.Store(&err)
			return 0, err
		}
		u.rest = piece
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func hasKey(h http.Header, k string) bool {
	_, ok := h[k]
	return ok
}

// Close is part of io.Closer. net/http calls it whenever it likes, also while it reads.
func (u *uploadHTTP2) Close() error { return nil }

// trailers answers the announced trailers, to be filled in.
func (u *uploadHTTP2) trailers() http.Header {
	for _, list := range u.announced {
		for _, name := range splitList(list) {
			if u.trailer == nil {
				u.trailer = http.Header{}
			}
			if !http1.TrailerDrop.Has(http1.Identify([]byte(name))) && http1.ValidName(name) {
				u.trailer[textproto.CanonicalMIMEHeaderKey(name)] = nil
			}
		}
	}
	return u.trailer
}

func splitList(s string) (all []string) {
	for len(s) > 0 {
		i := 0
		for i < len(s) && s[i] != ',' {
			i++
		}
		if name := textproto.TrimString(s[:i]); name != "" {
			all = append(all, name)
		}
		s = s[min(i+1, len(s)):]
	}
	return all
}

// end sees to it that the body is not read any more.
func (u *uploadHTTP2) end(cancel context.CancelCauseFunc) {
	if !u.given {
		return
	}
	if !u.sent.Load() && u.err.Load() == nil {
		cancel(errClosed)
		u.body.Interrupt()
	}
	u.mu.Lock()
	u.over = true
	u.mu.Unlock()
}
