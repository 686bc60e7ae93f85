package streams_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// in answers a listen node with further arguments.
func in(args string) string {
	return "node \"listen\" \"in\" {\n address = \"127.0.0.1:0\"\n" + args + "\n}\n"
}

func out(args string) string { return "node \"proxy\" \"out\" {\n" + args + "\n}\n" }

// get sends a request over p and answers status and body of a counted answer.
func (p *peer) get(request string) string {
	p.send(request)
	h := p.head()
	n := 0
	if _, rest, ok := strings.Cut(h, "Content-Length: "); ok {
		fmt.Sscan(rest, &n)
	}
	if len(h) < 12 {
		return h
	}
	return h[9:12] + " " + p.read(n)
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// A pooled connection that the backend closed meanwhile: GET and POST succeed.
func TestStalePool(t *testing.T) {
	for _, reset := range []bool{false, true} {
		closed := make(chan struct{}, 1)
		s := serve(t, func(p *peer) {
			p.head()
			p.send(ok)
			time.Sleep(10 * time.Millisecond) // the answer is read, and the connection in the pool
			if reset {
				_ = p.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = p.Close()
			closed <- struct{}{}
		})
		r := run(t, simple("", s.addr()))
		p := dial(t, r.addr("in"))
		for i := range 4 {
			for _, m := range []string{"GET", "POST"} {
				if got := p.get(m + " / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); got != "200 ok" {
					t.Errorf("%s %d: %q", m, i, got)
				}
				<-closed
			}
		}
		if n := r.counter("out", "stale"); n != 7 {
			t.Errorf("%d stale connections", n)
		}
	}
}

// A backend that closes just when a request comes: what is idempotent is sent
// again, and nothing else ever is.
func TestNothingTwice(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	s := serve(t, func(p *peer) {
		for first := true; ; first = false {
			h := p.head()
			if strings.Contains(h, "«") {
				return
			}
			id := strings.Fields(h)[1]
			mu.Lock()
			seen[id]++
			n := seen[id]
			mu.Unlock()
			if strings.Contains(h, "Content-Length: 2") {
				p.read(2)
			}
			if !first && n == 1 {
				return // the request was read, and gets no answer
			}
			p.send(ok)
		}
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	for _, c := range []struct {
		request, want string
		times         int
	}{
		{"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n", "200 ok", 1},
		{"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n", "200 ok", 2},
		{"PUT /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", "200 ok", 2},
		{"POST /4 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", "502 502 Bad Gateway\n", 1},
		{"GET /5 HTTP/1.1\r\nHost: x\r\n\r\n", "200 ok", 1},
		{"PATCH /6 HTTP/1.1\r\nHost: x\r\n\r\n", "502 502 Bad Gateway\n", 1},
	} {
		if got := p.get(c.request); got != c.want {
			t.Errorf("%q: %q", c.request, got)
		}
		id := strings.Fields(c.request)[1]
		mu.Lock()
		if seen[id] != c.times {
			t.Errorf("%q was sent %d times", c.request, seen[id])
		}
		mu.Unlock()
	}
	r.quiet()
}

// A backend that refuses connections costs nothing; the client sees another one's
// answer, also to a POST, of which nothing was sent.
func TestRetryElsewhere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // its port refuses
	good := record(t, ok)
	r := run(t, simple("node \"balance\" \"pick\" {\n pool = pool.web\n eject_for = \"0s\"\n}\n", l.Addr().String(), good.addr()))
	p := dial(t, r.addr("in"))
	for i := range 10 {
		m := []string{"GET", "POST"}[i%2]
		if got := p.get(m + " / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"); got != "200 ok" {
			t.Errorf("%q", got)
		}
		good.take()
	}
	if n := r.counter("out", "retries"); n < 4 {
		t.Errorf("%d retries", n)
	}
	r.quiet()
}

// A killed backend costs what was in flight on it, to the request, and no more: not
// those that may be asked again, nor those that come later, nor connections of TCP
// elsewhere.
func TestKilledBackend(t *testing.T) {
	const victims, others, each = 4, 4, 50
	for _, how := range []string{"POST", "GET", "TCP"} {
		var mu sync.Mutex
		var open []net.Conn
		held := make(chan bool, victims)
		doomed := serve(t, func(p *peer) {
			mu.Lock()
			open = append(open, p.Conn)
			mu.Unlock()
			for {
				switch h := p.head(); {
				case strings.Contains(h, " /hold "):
					held <- true
					p.rest()
					return
				case !strings.HasSuffix(h, "\r\n\r\n"):
					return
				}
				p.send(ok)
			}
		})
		good := serve(t, func(p *peer) {
			for strings.HasSuffix(p.head(), "\r\n\r\n") {
				p.send(ok)
			}
		})
		nodes := ""
		if how == "TCP" {
			nodes = in("protocol = \"tcp\"")
		}
		r := run(t, simple(nodes, doomed.addr(), good.addr()))
		ask := func(p *peer, path string) bool {
			method := how
			if how == "TCP" {
				method = "GET"
			}
			more := ""
			if how == "POST" {
				more = "Content-Length: 0\r\n"
			}
			return p.get(method+" "+path+" HTTP/1.1\r\nHost: x\r\n"+more+"\r\n") == "200 ok"
		}
		// Each victim asks until the one that is to die holds its request.
		var failed, answered atomic.Int64
		var all sync.WaitGroup
		end := make(chan struct{})
		for range victims {
			all.Go(func() {
				for {
					p := dial(t, r.addr("in"))
					good := ask(p, "/hold")
					_ = p.Close()
					select {
					case <-end:
						if !good {
							failed.Add(1)
						}
						return
					default:
					}
				}
			})
		}
		for range victims {
			<-held
		}
		var killing sync.RWMutex // nothing else is in flight while it dies
		for range others {
			all.Go(func() {
				for range each {
					killing.RLock()
					p := dial(t, r.addr("in"))
					if ask(p, "/") {
						answered.Add(1)
					}
					_ = p.Close()
					killing.RUnlock()
				}
			})
		}
		killing.Lock()
		close(end)
		_ = doomed.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0) // as the kernel does for a process that had bytes unread
			_ = c.Close()
		}
		mu.Unlock()
		killing.Unlock()
		all.Wait()
		want := int64(victims)
		if how == "GET" {
			want = 0
		}
		if failed.Load() != want || answered.Load() != others*each {
			t.Errorf("%s: %d of %d that were in flight failed, %d of %d others were answered", how, failed.Load(), victims, answered.Load(), others*each)
		}
		r.quiet()
	}
}

// Retries are bounded by a budget: 10 a second, or a fifth of the requests.
func TestRetryBudget(t *testing.T) {
	var asked atomic.Int64
	var dead []string
	for range 3 {
		s := serve(t, func(p *peer) {
			p.head()
			asked.Add(1)
		})
		dead = append(dead, s.addr())
	}
	r := run(t, simple("node \"balance\" \"pick\" {\n pool = pool.web\n eject_for = \"0s\"\n}\n", dead...))
	p := dial(t, r.addr("in"))
	begun := time.Now()
	const n = 100
	for range n {
		if got := p.get(get); got != "502 502 Bad Gateway\n" {
			t.Fatalf("%q", got)
		}
	}
	seconds := int64(time.Since(begun).Seconds()) + 1
	// One window may have just begun when another ends.
	if more := asked.Load() - n; more < 10 || more > (seconds+1)*20 {
		t.Errorf("%d retries for %d requests in %d s", more, n, seconds)
	}
	if r.counter("out", "retries_withheld") == 0 {
		t.Error("no retry was withheld")
	}
}

// The head, the body or the PROXY header that never comes: closed at its deadline,
// and nobody else waits for it.
func TestSlowloris(t *testing.T) {
	t.Parallel() // it waits most of its time
	b := record(t, ok)
	up := make(chan string, 1)
	slow := serve(t, func(p *peer) {
		p.head()
		up <- p.rest()
	})
	const times = "header_timeout = \"150ms\"\n body_timeout = \"150ms\"\n idle_timeout = \"150ms\"\n proxy_timeout = \"150ms\"\n body_rate = 1000000\n"
	r := run(t, simple(in(times), b.addr()))
	q := run(t, simple(in(times), slow.addr()))
	x := run(t, simple(in(times+"proxy_protocol = \"require\"\n trusted = [\"127.0.0.0/8\"]\n"), b.addr()))
	drip := func(p *peer, text string) {
		for i := range text {
			time.Sleep(60 * time.Millisecond)
			if _, err := p.Write([]byte(text[i : i+1])); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name     string
		r        *rig
		at, slow string
		want     string
	}{
		{"nothing", r, "", "", ""},
		{"a drip of a head", r, "", "GET / HTTP/1.1\r\nHost: " + strings.Repeat("x", 100), "HTTP/1.1 408 "},
		{"a head that stops", r, "GET / HTTP/1.1\r\n", "", "HTTP/1.1 408 "},
		{"a body that never comes", q, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", "", "HTTP/1.1 408 "},
		{"a drip of a body", q, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", strings.Repeat("x", 100), "HTTP/1.1 408 "},
		{"chunks that stop", q, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "", "HTTP/1.1 408 "},
		{"idle behind a request", r, get, "", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"no PROXY header", x, "", "", ""},
		{"a drip of a PROXY header", x, "", "PROXY UNKNOWN " + strings.Repeat("x", 80), ""},
	} {
		begun := time.Now()
		p := dial(t, c.r.addr("in"))
		p.send(c.at)
		go drip(p, c.slow)
		got := strings.TrimSuffix(p.rest(), "«reset»")
		if d := time.Since(begun); d < 140*time.Millisecond || d > 5*time.Second || !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q after %v", c.name, got, d)
		}
		if c.r == q {
			select {
			case <-up:
			case <-time.After(time.Second):
				t.Errorf("%s: the backend's connection stays", c.name)
			}
		}
		c.r.quiet()
	}
}

// Progress counts, not time: a slow reader and a slow writer go on, one that stops
// is given up.
func TestProgress(t *testing.T) {
	t.Parallel() // it waits most of its time
	big := strings.Repeat("x", 16<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/up" {
			n, err := io.Copy(io.Discard, req.Body)
			fmt.Fprint(w, n, err)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(big)))
		_, _ = io.WriteString(w, big)
	}))
	defer srv.Close()
	r := run(t, simple(in("write_timeout = \"1500ms\"\n body_timeout = \"1s\""), addrOf(srv)))
	t.Run("all", func(t *testing.T) {
		t.Run("a slow reader", func(t *testing.T) {
			t.Parallel()
			p := dial(t, r.addr("in"))
			_ = p.Conn.(*net.TCPConn).SetReadBuffer(16 << 10)
			p.send(get)
			p.head()
			n, begun := 0, time.Now()
			for time.Since(begun) < 5*time.Second { // the kernel asks for more less often than the deadline
				n += len(p.read(2 << 10))
				time.Sleep(50 * time.Millisecond)
			}
			_ = p.Conn.(*net.TCPConn).SetReadBuffer(4 << 20)
			if rest := p.read(len(big) - n); strings.Contains(rest, "«") {
				t.Errorf("a slow reader is cut off after %d bytes, %q", n, rest[max(0, len(rest)-20):])
			}
		})
		t.Run("a reader that stops", func(t *testing.T) {
			t.Parallel()
			p := dial(t, r.addr("in"))
			_ = p.Conn.(*net.TCPConn).SetReadBuffer(16 << 10)
			p.send(get)
			p.head()
			eventually(t, "the reader that stops is given up", func() error {
				if r.output("out", "client_slow") == 0 {
					return fmt.Errorf("not yet")
				}
				return nil
			})
		})
		t.Run("a slow writer of unknown length", func(t *testing.T) {
			t.Parallel()
			p := dial(t, r.addr("in"))
			p.send("POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 6 {
				time.Sleep(250 * time.Millisecond)
				p.send("1\r\nx\r\n")
			}
			p.send("0\r\n\r\n")
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200") || p.read(7) != "6 <nil>" {
				t.Errorf("a slow writer: %q", h)
			}
		})
	})
	r.quiet()
}

// Deadlines of the backend.
func TestBackendDeadlines(t *testing.T) {
	t.Parallel() // it waits most of its time
	silent := serve(t, func(p *peer) { p.rest() })
	r := run(t, simple(out("response_timeout = \"150ms\""), silent.addr()))
	p := dial(t, r.addr("in"))
	for range 2 {
		begun := time.Now()
		if got := p.get(get); got != "504 504 Gateway Timeout\n" {
			t.Errorf("%q", got)
		}
		if d := time.Since(begun); d < 140*time.Millisecond || d > 10*time.Second {
			t.Errorf("after %v", d)
		}
	}
	// The time of the upload does not count.
	p = dial(t, r.addr("in"))
	p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n")
	for range 4 {
		time.Sleep(80 * time.Millisecond)
		p.send("hello")
	}
	begun := time.Now()
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 504") || time.Since(begun) < 100*time.Millisecond {
		t.Errorf("%q after %v", h, time.Since(begun))
	}
	// A queue that is full: nobody accepts.
	l := full(t)
	r = run(t, simple(out("connect_timeout = \"150ms\"\n retries = 0"), l))
	p = dial(t, r.addr("in"))
	if got := p.get(get); got != "504 504 Gateway Timeout\n" {
		t.Errorf("%q", got)
	}
	r.quiet()
}

// full answers an address that answers nothing: packets to it are lost.
func full(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	// The queue of a listener takes so many, and drops further SYNs.
	for range 5000 {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 30*time.Millisecond)
		if err != nil {
			return l.Addr().String()
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("kernel: the queue of a listener does not fill")
	return ""
}

// WebSocket: messages both ways, half-close each way, no total deadline, and the
// pool is not used for it.
func TestWebSocket(t *testing.T) {
	t.Parallel() // it waits most of its time
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, err := websocket.Accept(w, req, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for {
			typ, msg, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if c.Write(context.Background(), typ, append([]byte("re: "), msg...)) != nil {
				return
			}
		}
	}))
	defer srv.Close()
	r := run(t, simple(in("write_timeout = \"200ms\"\n idle_timeout = \"200ms\"")+out("response_timeout = \"200ms\""), addrOf(srv)))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+r.addr("in")+"/chat", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(1 << 20)
	for i := range 3 {
		msg := bytes.Repeat([]byte{byte('a' + i)}, 1+i*100_000)
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			t.Fatal(err)
		}
		_, got, err := c.Read(ctx)
		if err != nil || !bytes.Equal(got, append([]byte("re: "), msg...)) {
			t.Fatal(len(got), err)
		}
		time.Sleep(250 * time.Millisecond) // longer than any deadline of a request
	}
	if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Error(err)
	}
	r.quiet()
	if n := r.counter("out", "upgraded"); n != 1 {
		t.Errorf("%d upgrades", n)
	}
}

// Half-close of an upgraded connection each way; bytes that come with the heads.
func TestUpgradeHalfClose(t *testing.T) {
	const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"
	const ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: y\r\n\r\n"
	got := make(chan string, 2)
	s := serve(t, func(p *peer) {
		h := p.head()
		if !strings.Contains(h, "Connection: Upgrade\r\nUpgrade: websocket\r\n") {
			t.Errorf("%q", h)
		}
		p.send(answer + "first")
		if strings.Contains(h, "GET /back") {
			closeWrite(p)
			got <- p.rest()
			return
		}
		got <- p.rest()
		p.send("last")
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	p.send(ask + "early")
	h := p.head()
	if !strings.HasPrefix(h, "HTTP/1.1 101 Switching Protocols\r\n") || !strings.Contains(h, "Connection: Upgrade\r\nUpgrade: websocket\r\n") || p.read(5) != "first" {
		t.Errorf("%q", h)
	}
	p.send("more")
	closeWrite(p)
	if b, rest := <-got, p.rest(); b != "earlymore" || rest != "last" {
		t.Errorf("the backend got %q, the client %q", b, rest)
	}
	p = dial(t, r.addr("in"))
	p.send(strings.Replace(ask, "GET /", "GET /back", 1))
	p.head()
	if rest := p.rest(); rest != "first" {
		t.Errorf("%q", rest)
	}
	p.send("still here")
	closeWrite(p)
	if b := <-got; b != "still here" {
		t.Errorf("%q", b)
	}
	r.quiet()
	// Protocols that are not allowed are not asked for.
	b := record(t, ok)
	r = run(t, simple("", b.addr()))
	p = dial(t, r.addr("in"))
	for _, u := range []string{"h2c", "tcp"} {
		if got := p.get(strings.Replace(ask, "websocket", u, 1)); got != "200 ok" || strings.Contains(b.take(), "Upgrade") {
			t.Errorf("%s: %q", u, got)
		}
	}
}

// TCP: half-close passed on and bounded, idleness ends it, resets travel, nothing
// leaks.
func TestTCPEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	reset := make(chan string, 1)
	s := serve(t, func(p *peer) {
		switch cmd := p.read(1); cmd {
		case "g": // never closes, once the client has
			p.rest()
			time.Sleep(3 * time.Second)
		case "r":
			_ = p.Conn.(*net.TCPConn).SetLinger(0)
		case "w":
			reset <- p.rest()
		default:
			p.rest()
		}
	})
	r := run(t, simple(in("protocol = \"tcp\"")+out("half_close_timeout = \"200ms\"\n idle_timeout = \"30s\""), s.addr()))
	short := run(t, simple(in("protocol = \"tcp\"")+out("idle_timeout = \"400ms\""), s.addr()))
	for _, c := range []struct {
		name, cmd string
		half      bool
		least     time.Duration
		most      time.Duration
		want      string
	}{
		{"grace", "g", true, 100 * time.Millisecond, 2900 * time.Millisecond, "«reset»"},
		{"idle", "i", false, 300 * time.Millisecond, 5 * time.Second, "«reset»"},
		{"reset by the backend", "r", false, 0, 5 * time.Second, "«reset»"},
	} {
		r := r
		if c.name == "idle" {
			r = short
		}
		p := dial(t, r.addr("in"))
		p.send(c.cmd)
		if c.half {
			time.Sleep(10 * time.Millisecond)
			closeWrite(p)
		}
		begun := time.Now()
		got := p.rest()
		if d := time.Since(begun); d < c.least || d > c.most || got != c.want {
			t.Errorf("%s: %q after %v", c.name, got, d)
		}
		_ = p.Close()
	}
	p := dial(t, r.addr("in"))
	p.send("w")
	time.Sleep(20 * time.Millisecond)
	_ = p.Conn.(*net.TCPConn).SetLinger(0)
	_ = p.Close()
	if got := <-reset; got != "«reset»" {
		t.Errorf("a reset of the client comes to the backend as %q", got)
	}
	r.quiet()
	for _, r := range []*rig{r, short} {
		if err := r.stop(2 * time.Second); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "goroutines end", func() error {
		if n := runtime.NumGoroutine(); n > before+6 {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// Bulk over TCP, both ways at once.
func TestTCPBulk(t *testing.T) {
	s := serve(t, func(p *peer) { _, _ = io.Copy(p.Conn, p.r); closeWrite(p) })
	r := run(t, simple(in("protocol = \"tcp\""), s.addr()))
	p := dial(t, r.addr("in"))
	data := make([]byte, 20<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 5)
	}
	go func() { _, _ = p.Write(data); closeWrite(p) }()
	got, err := io.ReadAll(p.r)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
	r.quiet()
}
