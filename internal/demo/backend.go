package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// A Backend answers with its name, so that one sees who did: over HTTP
//
//	GET  /         its name
//	GET  /bytes/N  N bytes, the same for all backends
//	POST /upload   its name, the number of bytes and their SHA-256 sum
//
// and over UDP by sending back its name, a line end, and what it got.
type Backend struct {
	Name string
	HTTP []netip.AddrPort
	UDP  []netip.AddrPort
}

// MaxBytes is the largest N of /bytes/N.
const MaxBytes = 1 << 30

// Serve answers until ctx ends, or the first listener fails.
func (b Backend) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var lc net.ListenConfig
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, len(b.HTTP)+len(b.UDP))
	server := &http.Server{Handler: b.handler(), ReadHeaderTimeout: 5 * time.Second}
	for _, at := range b.HTTP {
		l, err := lc.Listen(ctx, "tcp", at.String())
		if err != nil {
			return fmt.Errorf("backend %s: %w", b.Name, err)
		}
		wg.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	defer func() { _ = server.Close() }()
	for _, at := range b.UDP {
		c, err := lc.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return fmt.Errorf("backend %s: %w", b.Name, err)
		}
		defer func() { _ = c.Close() }()
		wg.Go(func() {
			if err := b.echo(c); !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("backend %s: %w", b.Name, err)
	}
}

func (b Backend) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, b.Name)
	})
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 || n > MaxBytes {
			http.Error(w, "a number of bytes is wanted", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.Copy(w, Bytes(n))
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, http.MaxBytesReader(w, r.Body, MaxBytes))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %d %x\n", b.Name, n, sum.Sum(nil))
	})
	return mux
}

func (b Backend) echo(c net.PacketConn) error {
	head := len(b.Name) + 1
	buf := make([]byte, head+64<<10)
	copy(buf, b.Name+"\n")
	for {
		n, from, err := c.ReadFrom(buf[head:])
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		_, _ = c.WriteTo(buf[:head+n], from)
	}
}

// Bytes answers a reader of n bytes that do not repeat soon, always the same.
func Bytes(n int64) io.Reader { return io.LimitReader(&pattern{x: 1}, n) }

// pattern is a stream of bytes by xorshift64.
type pattern struct{ x uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.x ^= p.x << 13
		p.x ^= p.x >> 7
		p.x ^= p.x << 17
		b[i] = byte(p.x >> 32)
	}
	return len(b), nil
}
