// Package accesslog is the kind "access-log": it has a line written for sessions.
package accesslog

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of access-log.
type Config struct {
	File   string `hcl:"file,optional" doc:"where lines go: a file, which is opened anew when it was moved, or - for standard output"`
	Sample int    `hcl:"sample,optional" range:"1,1000000000" doc:"one session in so many has a line"`
	Buffer int    `hcl:"buffer,optional" range:"1,1000000" doc:"lines that wait to be written; further ones are lost, and counted"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "access-log",
		Summary: "has a line of JSON written for every session that passes, once it is over",
		Needs:   graph.Conn,
		Writes:  true,
		Outputs: []graph.Output{{Name: "next", Doc: "sessions"}},
		Counters: []graph.Counter{
			written: {Name: "lines", Doc: "lines written"},
			lost:    {Name: "lost", Doc: "lines lost, because they could not be written as fast"},
		},
		Defaults: Config{File: "-", Sample: 1, Buffer: 8192},
		Check: func(c Config) error {
			if c.File == "" {
				return graph.BadArgument("file", "file is empty: name one, or write - for standard output")
			}
			return nil
		},
		Streams: func(c Config, e *graph.Env) (stream.Stage, error) { return newLogger(c, e) },
	})
}

// Counter numbers.
const (
	written = iota
	lost
)

type logger struct {
	c    Config
	seen atomic.Uint64
	*sink
}

// A sink writes lines. It is shared by the loggers that follow one another over
// reloads, as long as their configuration does not change.
type sink struct {
	count func(int, uint64)
	lines chan *[]byte
	done  chan struct{}

	// next takes the lines of sessions that end after this is closed; nil for none.
	next      atomic.Pointer[sink]
	abandoned atomic.Bool // nobody waits for what is left any more
	out       *output

	mu    sync.RWMutex
	users int // 0: lines is closed
}

func newLogger(c Config, e *graph.Env) (*logger, error) {
	w := &output{path: c.File}
	if err := w.open(); err != nil {
		return nil, err
	}
	k := &sink{count: e.Count, lines: make(chan *[]byte, c.Buffer), done: make(chan struct{}), users: 1, out: w}
	go k.write(w)
	return &logger{c: c, sink: k}, nil
}

// Inherit is part of graph.StageInheritor.
func (l *logger) Inherit(old stream.Stage) {
	if o := old.(*logger); o.c == l.c {
		_ = l.Close()
		l.sink = o.sink
		l.mu.Lock()
		l.users++
		l.mu.Unlock()
	} else {
		o.next.Store(l.sink)
	}
}

// patience is how long a close waits for lines to be written.
const patience = 2 * time.Second

// Close is part of graph.StageCloser. What waits is written, unless the file takes
// nothing for a while: then it is lost, for nobody else is to be held up. Sessions that
// end later have their line where a later configuration wants it.
func (k *sink) Close() error {
	k.mu.Lock()
	k.users--
	last := k.users == 0
	if last {
		close(k.lines)
	}
	k.mu.Unlock()
	if !last {
		return nil
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-k.done:
	case <-t.C:
		k.abandoned.Store(true)
		go k.release()
	}
	return nil
}

// release has the writer give up a write that does not end, so that it counts what is
// left as lost, and ends.
func (k *sink) release() {
	for k.out.file.Load().SetWriteDeadline(time.Unix(1, 0)) == nil {
		select {
		case <-k.done:
			return
		case <-time.After(100 * time.Millisecond): // it may have opened another file
		}
	}
}

// Gauges is part of graph.Gauger.
func (l *logger) Gauges() map[string]float64 {
	return map[string]float64{"waiting": float64(len(l.lines))}
}

// Serve is part of stream.Stage.
func (l *logger) Serve(_ context.Context, s *stream.Session) (int, error) {
	l.Keep(s)
	return 0, nil
}

// Keep is part of stream.Keeper.
func (l *logger) Keep(s *stream.Session) {
	if l.c.Sample == 1 || l.seen.Add(1)%uint64(l.c.Sample) == 0 {
		s.Log = l.sink
	}
}

var lines = sync.Pool{New: func() any { b := make([]byte, 0, 768); return &b }}

// Record is part of stream.Logger.
func (k *sink) Record(s *stream.Session) {
	b := lines.Get().(*[]byte)
	*b = appendRecord((*b)[:0], s, time.Now(), stream.Now())
	for to := k; to != nil; to = to.next.Load() {
		open, taken := to.take(b)
		if taken {
			return
		}
		if open {
			break
		}
	}
	k.count(lost, 1)
	lines.Put(b)
}

// take takes a line if there is room.
func (k *sink) take(b *[]byte) (open, taken bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.users == 0 {
		return false, false
	}
	select {
	case k.lines <- b:
		return true, true
	default:
		return true, false
	}
}

// write writes lines, as many at once as there are.
func (k *sink) write(w *output) {
	defer close(k.done)
	defer w.close()
	var buf []byte
	for b := range k.lines {
		n := uint64(1)
		buf = append(buf[:0], *b...)
		lines.Put(b)
		for len(buf) < 64<<10 && len(k.lines) > 0 {
			b := <-k.lines
			if b == nil {
				break
			}
			buf = append(buf, *b...)
			lines.Put(b)
			n++
		}
		if k.abandoned.Load() || w.write(buf) != nil {
			k.count(lost, n)
			continue
		}
		k.count(written, n)
	}
}

// output is the file that lines go to.
type output struct {
	path   string
	file   atomic.Pointer[os.File]
	looked time.Time
}

func (o *output) open() error {
	if o.path == "-" {
		o.file.Store(os.Stdout)
		return nil
	}
	// A pipe that nobody reads is told of at once.
	f, err := os.OpenFile(o.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	o.file.Store(f)
	return nil
}

func (o *output) write(b []byte) error {
	if now := time.Now(); o.path != "-" && now.Sub(o.looked) > time.Second {
		o.looked = now
		there, err := os.Stat(o.path)
		mine, err2 := o.file.Load().Stat()
		if err != nil || err2 != nil || !os.SameFile(there, mine) {
			old := o.file.Load()
			if o.open() == nil {
				_ = old.Close()
			}
		}
	}
	n, err := o.file.Load().Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

func (o *output) close() {
	if o.path != "-" {
		_ = o.file.Load().Close()
	}
}

// appendRecord appends the line of a session. Times are in milliseconds; what never
// came is left out.
func appendRecord(b []byte, s *stream.Session, wall time.Time, now int64) []byte {
	begun := wall.Add(-time.Duration(now - s.Begun))
	b = append(b, `{"time":"`...)
	b = begun.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","client":"`...)
	b = s.Client.Remote.AppendTo(b)
	b = append(b, `","listener":`...)
	b = appendString(b, []byte(s.Client.Listener))
	if s.Client.ServerName != "" {
		b = append(b, `,"server_name":`...)
		b = appendString(b, []byte(s.Client.ServerName))
	}
	if r := s.Req; r != nil {
		if r.Request != nil || r.Proto == 20 { // what cannot be read says nothing of its version
			b = append(b, `,"protocol":"HTTP/`...)
			b = append(b, map[int]string{10: "1.0", 11: "1.1", 20: "2"}[r.Proto]...)
			b = append(b, '"')
		}
		if r.Request != nil {
			b = append(b, `,"host":`...)
			b = appendString(b, r.Host.In(r.Buf))
			b = append(b, `,"method":`...)
			b = appendString(b, r.MethodText.In(r.Buf))
			b = append(b, `,"path":`...)
			b = appendString(b, r.Target.In(r.Buf))
		}
		b = append(b, `,"status":`...)
		b = strconv.AppendInt(b, int64(s.Status), 10)
	}
	b = append(b, `,"bytes_in":`...)
	b = strconv.AppendInt(b, s.In, 10)
	b = append(b, `,"bytes_out":`...)
	b = strconv.AppendInt(b, s.Out, 10)
	if s.Backend != nil {
		b = append(b, `,"backend":"`...)
		b = s.Backend.Addr.AppendTo(b)
		b = append(b, '"')
	}
	if s.Route != "" {
		b = append(b, `,"route":`...)
		b = appendString(b, []byte(s.Route))
	}
	b = append(b, `,"tries":`...)
	b = strconv.AppendInt(b, int64(s.Tries), 10)
	b = appendTime(b, "queue_ms", s.Queued)
	b = appendTime(b, "connect_ms", s.Connected)
	b = appendTime(b, "first_byte_ms", s.FirstByte)
	b = appendTime(b, "total_ms", now-s.Begun)
	b = append(b, `,"node":`...)
	b = appendString(b, []byte(s.Node))
	if s.Reason != "" {
		b = append(b, `,"reason":`...)
		b = appendString(b, []byte(s.Reason))
	}
	if s.Err != nil {
		b = append(b, `,"error":`...)
		b = appendString(b, []byte(s.Err.Error()))
	}
	if s.ID != "" {
		b = append(b, `,"id":`...)
		b = appendString(b, []byte(s.ID))
	}
	if s.Upgraded {
		b = append(b, `,"upgraded":true`...)
	}
	return append(b, "}\n"...)
}

func appendTime(b []byte, name string, ns int64) []byte {
	if ns < 0 {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendFloat(b, float64(ns/1000)/1000, 'f', -1, 64)
}

// appendString appends text as a string of JSON (RFC 8259 section 7). Bytes that are
// no UTF-8 become U+FFFD; what a terminal might obey is escaped, too.
func appendString(b, text []byte) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for len(text) > 0 {
		c := text[0]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRune(text)
			if r < 0xa0 { // the second set of control characters
				b = append(b, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
			} else {
				b = utf8.AppendRune(b, r)
			}
			text = text[n:]
			continue
		}
		text = text[1:]
	}
	return append(b, '"')
}
