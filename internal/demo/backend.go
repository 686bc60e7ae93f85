package demo

import (
	"bufio"
	"bytes"
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
	"syscall"
	"time"
)

// A Backend answers with its name, so that one sees who did: over HTTP
//
//	GET  /          its name, a line
//	GET  /bytes/N   N bytes, the same for all backends
//	GET  /chunks/N  N lines, each a chunk of its own
//	GET  /events    server-sent events, one each Every; /events/N ends after N
//	GET  /echo      a WebSocket that sends back what it gets
//	GET  /status/N  that status
//	POST /upload    its name, the number of bytes and their SHA-256 sum
//
// with its name as field Server; over TCP by sending each line back behind its name
// and a blank; and over UDP by sending back its name, a line end, and what it got. It
// speaks HTTP/1.1, and HTTP/2 by prior knowledge.
type Backend struct {
	Name    string // the address and port that was asked, if empty
	HTTP    []netip.AddrPort
	TCP     []netip.AddrPort
	UDP     []netip.AddrPort
	Status  int           // of GET /; 200 if 0
	Latency time.Duration // before each answer of HTTP and each line of TCP
	Size    int64         // bytes of the body of GET / at least; its name is filled up with dots
	Every   time.Duration // between events and chunks; a second, and none, if 0
	Out     io.Writer     // has a line for each port; nil writes nothing
	Verbose bool          // and a line for each request, and each connection of TCP

	mu sync.Mutex // of Out
}

// MaxBytes is the largest N of /bytes/N.
const MaxBytes = 1 << 30

// Serve answers until ctx ends, or the first listener fails. When it ends it breaks
// off what is under way, as a backend that dies does.
func (b *Backend) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var lc net.ListenConfig
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, len(b.HTTP)+len(b.TCP)+len(b.UDP))
	server := &http.Server{
		Handler: b.handler(), ReadHeaderTimeout: 5 * time.Second, Protocols: new(http.Protocols),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	defer func() { _ = server.Close() }()
	for _, at := range b.HTTP {
		l, err := lc.Listen(ctx, "tcp", at.String())
		if err != nil {
			return b.refused(at, err)
		}
		wg.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
		b.log("%s answers HTTP at http://%s/", b.name(l.Addr()), l.Addr())
	}
	for _, at := range b.TCP {
		l, err := lc.Listen(ctx, "tcp", at.String())
		if err != nil {
			return b.refused(at, err)
		}
		defer func() { _ = l.Close() }()
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					failed <- err
					return
				}
				wg.Go(func() {
					stop := context.AfterFunc(ctx, func() { _ = c.Close() })
					defer stop()
					b.lines(ctx, c)
				})
			}
		})
		b.log("%s answers lines of TCP at %s", b.name(l.Addr()), l.Addr())
	}
	for _, at := range b.UDP {
		c, err := lc.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return b.refused(at, err)
		}
		defer func() { _ = c.Close() }()
		wg.Go(func() {
			if err := b.echo(c); !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
		b.log("%s answers datagrams at %s", b.name(c.LocalAddr()), c.LocalAddr())
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("backend %s: %w", b.Name, err)
	}
}

func (b *Backend) refused(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s: the address is in use: end what listens there, or take another port", at)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s: this machine does not have the address", at)
	}
	return fmt.Errorf("%s: %w", at, err)
}

func (b *Backend) name(at net.Addr) string {
	if b.Name != "" {
		return b.Name
	}
	return at.String()
}

func (b *Backend) log(format string, args ...any) {
	if b.Out != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		_, _ = fmt.Fprintf(b.Out, format+"\n", args...)
	}
}

// wait waits as long as answers have to.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (b *Backend) handler() http.Handler {
	name := func(r *http.Request) string {
		return b.name(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
	}
	number := func(w http.ResponseWriter, r *http.Request, least, most int64) (int64, bool) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < least || n > most {
			http.Error(w, fmt.Sprintf("a number from %d to %d is wanted", least, most), http.StatusBadRequest)
			return 0, false
		}
		return n, true
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		line := name(r) + "\n"
		size := max(b.Size, int64(len(line)))
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if b.Status != 0 {
			w.WriteHeader(b.Status)
		}
		_, _ = io.WriteString(w, line)
		_, _ = io.CopyN(w, dots{}, size-int64(len(line)))
	})
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		if n, ok := number(w, r, 0, MaxBytes); ok {
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
			_, _ = io.Copy(w, Bytes(n))
		}
	})
	mux.HandleFunc("GET /chunks/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, ok := number(w, r, 0, 1_000_000)
		for i := int64(1); ok && i <= n; i++ {
			_, err := fmt.Fprintf(w, "%s %d\n", name(r), i)
			ok = err == nil && http.NewResponseController(w).Flush() == nil && wait(r.Context(), b.Every)
		}
	})
	events := func(w http.ResponseWriter, r *http.Request) {
		n := int64(1 << 62)
		if r.PathValue("n") != "" {
			var ok bool
			if n, ok = number(w, r, 1, 1_000_000); !ok {
				return
			}
		}
		every := b.Every
		if every == 0 {
			every = time.Second
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		for i := int64(1); ; i++ {
			if _, err := fmt.Fprintf(w, "id: %d\ndata: %s\n\n", i, name(r)); err != nil || http.NewResponseController(w).Flush() != nil || i == n || !wait(r.Context(), every) {
				return
			}
		}
	}
	mux.HandleFunc("GET /events", events)
	mux.HandleFunc("GET /events/{n}", events)
	mux.HandleFunc("GET /echo", webSocket)
	mux.HandleFunc("GET /status/{n}", func(w http.ResponseWriter, r *http.Request) {
		if n, ok := number(w, r, 200, 599); ok {
			w.WriteHeader(int(n))
			if n != http.StatusNoContent && n != http.StatusNotModified {
				_, _ = fmt.Fprintln(w, name(r))
			}
		}
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, http.MaxBytesReader(w, r.Body, MaxBytes))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %d %x\n", name(r), n, sum.Sum(nil))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		w.Header().Set("Server", name(r))
		c := &counted{ResponseWriter: w, status: http.StatusOK}
		if wait(r.Context(), b.Latency) {
			mux.ServeHTTP(c, r)
		}
		if b.Verbose {
			b.log("%s  %s %s  %d  %d B  %.1f ms  from %s", name(r), r.Method, r.URL, c.status, c.n, float64(time.Since(begun).Microseconds())/1e3, r.RemoteAddr)
		}
	})
}

// counted is an answer whose status and bytes are told afterwards.
type counted struct {
	http.ResponseWriter
	status int
	n      int64
}

func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *counted) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

// lines sends each line back behind the name, as it comes: a line may be of any length.
func (b *Backend) lines(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	r, name, n := bufio.NewReader(c), b.name(c.LocalAddr()), 0
	defer func() {
		if b.Verbose {
			b.log("%s  TCP  %d lines  from %s", name, n, c.RemoteAddr())
		}
	}()
	for begins := true; ; {
		part, err := r.ReadSlice('\n')
		if len(part) > 0 {
			if begins {
				if !wait(ctx, b.Latency) {
					return
				}
				n++
				part = append([]byte(name+" "), part...)
			}
			if _, err := c.Write(part); err != nil {
				return
			}
		}
		begins = bytes.HasSuffix(part, []byte("\n"))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (b *Backend) echo(c net.PacketConn) error {
	name := b.name(c.LocalAddr())
	head := len(name) + 1
	buf := make([]byte, head+64<<10)
	copy(buf, name+"\n")
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

// dots is a stream of dots.
type dots struct{}

func (dots) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '.'
	}
	return len(b), nil
}
