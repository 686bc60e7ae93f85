package proxy

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/io/stream"
)

// connection passes a connection of TCP on.
func (p *proxy) connection(ctx context.Context, s *stream.Session) (int, error) {
	begun := stream.Now()
	for {
		s.Tries++
		up, err := p.dial(ctx, s)
		if err == nil {
			s.Connected = stream.Now() - begun
			s.Client.SetWriteIdle(p.c.WriteTime)
			t := tunnel{client: s.Client.Conn, backend: up, idle: int64(p.c.Idle), grace: int64(p.c.Grace)}
			t.run()
			_ = up.Close()
			s.In, s.Out = t.up.Load(), t.down.Load()
			s.Picker.Report(s.Backend, false)
			s.Backend.Latency.Observe(stream.Now() - begun)
			s.Reason, s.Err = t.why()
			return stream.Done, nil
		}
		if s.Client.LookAtPeer() == stream.Gone || ctx.Err() != nil {
			return clientGone, err
		}
		if !p.another(s) {
			return dialOutput(err), err
		}
	}
}

// A tunnel copies between two connections, both ways, until both sides have ended,
// or one fails, or nothing happens for too long.
type tunnel struct {
	client, backend *stream.Conn
	idle, grace     int64

	last     atomic.Int64 // when a byte went last
	up, down atomic.Int64 // bytes towards the backend, towards the client
	half     atomic.Bool  // one direction has ended
	err      [2]error
}

func (t *tunnel) run() {
	t.last.Store(stream.Now())
	done := make(chan struct{})
	go func() {
		t.err[1] = t.copy(t.client, t.backend, &t.down)
		close(done)
	}()
	t.err[0] = t.copy(t.backend, t.client, &t.up)
	<-done
}

// copy copies one direction.
func (t *tunnel) copy(dst, src *stream.Conn, count *atomic.Int64) error {
	err := t.move(dst, src, count)
	if err != nil {
		// Whoever is still there learns that this was no end.
		dst.Reset()
		src.Reset()
		return err
	}
	if dst.CloseWrite() != nil {
		return nil // it is closed already
	}
	t.half.Store(true)
	dst.Interrupt() // the other direction has less time from now on
	return nil
}

func (t *tunnel) move(dst, src *stream.Conn, count *atomic.Int64) error {
	splice := dst.Plain() && src.Plain()
	progress := func(n int64) {
		count.Add(n)
		t.last.Store(stream.Now())
	}
	for full := 0; ; {
		idle := t.idle
		if t.half.Load() {
			idle = min(idle, t.grace)
		}
		by := t.last.Load() + idle
		var err error
		if full >= 2 && len(src.Buffered()) == 0 {
			src.Release()
			_, err = stream.Splice(dst, src, -1, idle, stream.Never, progress)
			if err == nil {
				return nil
			}
			full = 0
		} else {
			err = src.Await(by)
		}
		var failed *stream.WriteError
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &failed):
			return err
		case errors.Is(err, stream.ErrInterrupted):
			src.Resume()
			continue
		case stream.IsTimeout(err) && stream.Now() < t.last.Load()+idle:
			continue // the other direction was busy, or this one
		case err != nil:
			return err
		}
		p := src.Buffered()
		if splice && len(p) == stream.SmallBuffer {
			full++
		} else {
			full = 0
		}
		n, err := dst.Write(p)
		count.Add(int64(n))
		if err != nil {
			return err
		}
		src.Discard(n)
		t.last.Store(stream.Now())
	}
}

// why says what ended it.
func (t *tunnel) why() (string, error) {
	for _, err := range t.err {
		switch {
		case err == nil:
		case stream.IsTimeout(err):
			return "idle", err
		default:
			return "broken", err
		}
	}
	return "", nil
}
