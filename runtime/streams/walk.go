package streams

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// place is where the requests of a connection enter a graph: behind an output of
// a node, both by name, so that it can be found in another program.
type place struct{ node, output string }

// serve serves a connection from its first byte to its end.
func (c *conn) serve() {
	e := c.engine
	s := new(stream.Session) // of the connection
	defer func() {
		s.End()
		_ = c.client.Close()
		c.forget()
		c.connections.Add(-1)
		e.serving.Done()
	}()
	c.client.Peer, c.client.Local = c.client.Conn.Peer(), c.client.Here()
	c.client.Remote = c.client.Peer
	s.Reset(&c.client)
	s.Begun = stream.Now()
	n := c.block.prog.Load().byName[c.client.Listener]
	if n == nil {
		return
	}
	w := e.follow(c, s)
	c.active.Add(1)
	end, route, x := e.walk(e.ctx, n, s, w)
	if x == nil {
		c.over(route, s, w)
	} else {
		w.drop()
	}
	c.active.Add(-1)
	if x != nil {
		c.http(place{end.inst.Name, x.name})
	}
}

// walk leads s from n on to end, where it ends, or to an output behind which
// requests are read, which it answers too. route is the node that its outcome counts
// for: the last that gave it a pool, or else end. w takes its way down, if it is not
// nil.
func (e *Engine) walk(ctx context.Context, n *node, s *stream.Session, w *way) (end, route *node, x *out) {
	for {
		n.in.Add(1)
		if n.routes {
			route = n
		}
		w.enter(n, s)
		o, err := e.stage(ctx, n, s)
		if o == stream.Done {
			if s.Node == "" {
				s.Node = n.inst.Name
			}
			w.leave(s, nil)
			break
		}
		x := &n.outs[o]
		x.count.Add(1)
		w.leave(s, x)
		if x.to == nil || s.Req != nil && s.Req.Begun() {
			s.Node, s.Reason, s.Err = n.inst.Name, x.name, err
			e.refuse(s, x.status)
			break
		}
		if x.http && s.Req == nil {
			return n, route, x
		}
		n = x.to
	}
	if route == nil {
		route = n
	}
	return n, route, nil
}

// stage has one node look at s. A panic there costs this session alone.
func (e *Engine) stage(ctx context.Context, n *node, s *stream.Session) (o int, err error) {
	defer func() {
		if r := recover(); r != nil {
			n.panics.Add(1)
			e.log.Error("a node panicked", zap.String("stream", n.prog.graph.Name), zap.String("node", n.inst.Name), zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
			s.Node, s.Reason, s.Err = n.inst.Name, "panic", fmt.Errorf("panic: %v", r)
			e.refuse(s, http.StatusInternalServerError)
			o = stream.Done
		}
	}()
	if o, err = n.stage.Serve(ctx, s); o >= len(n.outs) || o < stream.Done {
		panic(fmt.Sprintf("output %d of %d", o, len(n.outs)))
	}
	return o, err
}

// refuse ends a session that leaves by an output that is not drawn.
func (e *Engine) refuse(s *stream.Session, status int) {
	switch {
	case s.Req == nil:
		s.Client.Reset()
	case s.Req.Begun():
		if s.Cut = true; s.Status == 0 {
			s.Status = status
		}
		s.Req.Abort()
	default:
		if s.Status == 0 {
			s.Status = status
		}
		if status == 0 || status == statusClientGone {
			s.Req.Abort()
			return
		}
		answer(s, status)
	}
}

// statusClientGone is what the log says of a client that did not wait.
const statusClientGone = 499

// answer answers a request in a few words.
func answer(s *stream.Session, status int) {
	s.Status = status
	text := http.StatusText(status)
	body := make([]byte, 0, 64)
	body = strconv.AppendInt(body, int64(status), 10)
	body = append(body, ' ')
	body = append(body, text...)
	body = append(body, '\n')
	fields := appendDate(make([]byte, 0, 160))
	fields = http1.AppendField(fields, "Content-Type", "text/plain; charset=utf-8")
	if s.RetryAfter > 0 {
		fields = http1.AppendField(fields, "Retry-After", strconv.Itoa(int((s.RetryAfter+time.Second-1)/time.Second)))
	}
	if status == http.StatusMethodNotAllowed {
		fields = http1.AppendField(fields, "Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	}
	r := stream.Response{Status: status, Fields: fields, Framing: http1.Framing(len(body)), Length: int64(len(body)), Edits: s.Edits}
	r.Bodiless = s.Req.Request != nil && s.Req.Method == http1.HEAD
	if s.Req.Begin(&r) != nil {
		return
	}
	if r.Bodiless {
		body = nil
	}
	_ = s.Req.End(body, nil)
}

// dateNow is the field Date of this second.
var dateNow atomic.Pointer[date]

type date struct {
	second int64
	line   string
}

func appendDate(dst []byte) []byte {
	now := time.Now()
	d := dateNow.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{now.Unix(), "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"}
		dateNow.Store(d)
	}
	return append(dst, d.line...)
}
