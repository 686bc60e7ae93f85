package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// A transfer is a long upload or download on a connection, slow until it is let go.
type transfer struct {
	*flow
	moved  atomic.Int64  // bytes of the body so far
	fast   chan struct{} // closed when it may be fast
	done   chan error    // nil if all arrived as it was sent
	upload bool
}

// start begins to move bulk bytes, whose sum is known.
func (t *transfer) start(sum string) {
	t.fast, t.done = make(chan struct{}), make(chan error, 1)
	go func() {
		_ = t.conn.SetDeadline(time.Now().Add(2 * patience))
		t.done <- t.run(sum)
	}()
}

func (t *transfer) run(sum string) error {
	if t.upload {
		if _, err := fmt.Fprintf(t.conn, "POST /upload HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", t.to, bulk); err != nil {
			return err
		}
		if err := t.copy(t.conn, Bytes(bulk)); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(t.conn, "GET /bytes/%d HTTP/1.1\r\nHost: %s\r\n\r\n", bulk, t.to); err != nil {
		return err
	}
	r, err := http.ReadResponse(t.read, nil)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", r.Status)
	}
	got := ""
	if t.upload {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_, got, _ = strings.Cut(strings.TrimSpace(string(b)), " ")
	} else {
		h := sha256.New()
		if err := t.copy(h, r.Body); err != nil {
			return err
		}
		got = fmt.Sprintf("%d %x", t.moved.Load(), h.Sum(nil))
	}
	if got != sum {
		return fmt.Errorf("%s arrived, not %s", got, sum)
	}
	return nil
}

// copy moves 3 MB/s until it may be fast.
func (t *transfer) copy(to io.Writer, from io.Reader) error {
	for b := make([]byte, 32<<10); ; {
		n, err := io.ReadFull(from, b)
		if _, err := to.Write(b[:n]); err != nil {
			return err
		}
		t.moved.Add(int64(n))
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
		select {
		case <-t.fast:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// through opens a connection that goes by a balancer.
func (d *demo) through(ctx context.Context, balancer string) (*flow, error) {
	for range 50 {
		f, err := d.open(ctx, "tcp", d.http)
		if err != nil || f.by == balancer {
			return f, err
		}
		_ = f.conn.Close()
		time.Sleep(late)
	}
	return nil, fmt.Errorf("of 50 connections none goes by %s", balancer)
}
