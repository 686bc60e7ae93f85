package streams_test

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

// Nothing is asked again once a byte of an answer came; before, another backend is.
func TestHalfAHead(t *testing.T) {
	t.Parallel() // it waits most of its time
	const expect = "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab"
	for _, c := range []struct {
		name, request, answer, want string
	}{
		{"nothing", get, "", "200 ok"},
		{"one byte", get, "H", "502"},
		{"half a head", get, "HTTP/1.1 200 OK\r\nContent-Le", "502"},
		{"a head without its end", get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", "502"},
		{"an interim answer that was passed on", expect, "HTTP/1.1 100 Continue\r\n\r\n", "100"},
		{"nothing, with a body", expect, "", "200 ok"},
	} {
		for _, reset := range []bool{false, true} {
			bad := serve(t, func(p *peer) {
				h := p.head()
				if strings.Contains(h, "Content-Length: 2") {
					p.read(2)
				}
				p.send(c.answer)
				time.Sleep(20 * time.Millisecond) // what was sent arrives before a reset
				if reset {
					_ = p.Conn.(*net.TCPConn).SetLinger(0)
				}
			})
			var asked atomic.Int64
			good := serve(t, func(p *peer) {
				for {
					h := p.head()
					if strings.Contains(h, "«") {
						return
					}
					if strings.Contains(h, "Content-Length: 2") {
						p.read(2)
					}
					asked.Add(1)
					p.send(ok)
				}
			})
			// One of two requests comes to the bad one first.
			r := run(t, simple("node \"balance\" \"pick\" {\n pool = pool.web\n eject_for = \"0s\"\n}\n", bad.addr(), good.addr()))
			bads, goods := 0, 0
			for range 4 {
				p := dial(t, r.addr("in"))
				got := p.get(c.request)
				if strings.HasPrefix(got, "100") {
					if got = p.get(""); strings.HasPrefix(got, "502") {
						got = "100"
					}
				}
				switch {
				case got == "200 ok":
					goods++
				case strings.HasPrefix(got, c.want):
					bads++
				default:
					t.Errorf("%s, reset %v: %q", c.name, reset, got)
				}
				_ = p.Close()
			}
			wantBad := 2
			if c.want == "200 ok" {
				wantBad = 0
			}
			if bads != wantBad || asked.Load() != int64(goods) {
				t.Errorf("%s, reset %v: %d of 4 fail, %d are answered, %d come to the other backend", c.name, reset, bads, goods, asked.Load())
			}
			r.quiet()
		}
	}
}

// Upgraded connections and those of TCP go on while the plane stops, to their end or
// that of its time.
func TestStopDrainsUpgrades(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := serve(t, func(p *peer) {
		if strings.HasPrefix(p.head(), "GET ") {
			p.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
		}
		for {
			c, err := p.r.ReadByte()
			if err != nil {
				return
			}
			p.send(string(rune(c)))
		}
	})
	upgrade := "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for name, listen := range map[string]string{"WebSocket": "", "TCP": "protocol = \"tcp\""} {
		for _, ends := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ends %v", name, ends), func(t *testing.T) {
				t.Parallel()
				r := run(t, simple(in(listen), s.addr()))
				p := dial(t, r.addr("in"))
				if name == "TCP" {
					p.send("\r\n")
				} else {
					p.send(upgrade)
					if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 101 ") {
						t.Fatalf("%q", h)
					}
				}
				stopped := make(chan error, 1)
				limit := 20 * time.Second
				if !ends {
					limit = 3 * time.Second
				}
				begun := time.Now()
				go func() { stopped <- r.stop(limit) }()
				for i := range 5 {
					p.send("x")
					if got := p.read(1); got != "x" {
						t.Fatalf("%s, message %d while it stops: %q", name, i, got)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if ends {
					select {
					case err := <-stopped:
						t.Fatalf("%s: it has stopped over an open connection: %v", name, err)
					default:
					}
					_ = p.Close()
					if err := <-stopped; err != nil {
						t.Errorf("%s: %v", name, err)
					}
					return
				}
				if err := <-stopped; err == nil || time.Since(begun) < 2900*time.Millisecond {
					t.Errorf("%s: %v after %v", name, err, time.Since(begun))
				}
				if got := p.rest(); strings.Contains(got, "time-out") {
					t.Errorf("%s: %q", name, got)
				}
			})
		}
	}
}

// A Content-Length by HTTP/2 that says more or less than comes: the stream is reset,
// and no backend takes what came for a request.
func TestHTTP2LyingLength(t *testing.T) {
	got := make(chan string, 4)
	s := serve(t, func(p *peer) {
		h := p.head()
		if strings.Contains(h, "«") {
			return
		}
		got <- p.rest()
	})
	r := run(t, simple("", s.addr()))
	for _, c := range []struct{ name, length, body string }{{"too much", "5", "hello world"}, {"too little", "50", "hello"}} {
		f := h2raw(t, r.addr("in"))
		_ = f.headers(1, false, h2post("content-length", c.length)...)
		_ = f.WriteData(1, true, []byte(c.body))
		if s := f.status(1); !strings.HasSuffix(s, "_ERROR") && s != "STREAM_CLOSED" {
			t.Errorf("%s: %s", c.name, s)
		}
		_ = f.p.Close()
		r.quiet()
		select { // the request may have ended before it was sent
		case body := <-got:
			if len(body) >= len(c.body) && c.name == "too much" || len(body) >= 50 {
				t.Errorf("%s: the backend got %q", c.name, body)
			}
		default:
		}
	}
}

// A small message goes out by one write, head and body together, both ways: it comes
// as one segment.
func TestOneWrite(t *testing.T) {
	const body = "hello world"
	answers := []string{
		fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	}
	segments := func(c net.Conn) (n uint32) {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
				if err == nil {
					n = info.Data_segs_in
				}
			})
		}
		if err != nil {
			t.Error(err)
		}
		return n
	}
	const n = 100
	asked := make(chan uint32, 1)
	s := serve(t, func(p *peer) {
		for i := range n {
			p.head()
			p.read(len(body))
			p.send(answers[i%2])
		}
		asked <- segments(p.Conn)
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	for i := range n {
		p.send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		h := p.head()
		_, want, _ := strings.Cut(answers[i%2], "\r\n\r\n")
		if got := p.read(len(want)); got != want {
			t.Fatalf("%q %q", h, got)
		}
	}
	// One or the other may be sent twice on a busy machine.
	if k := segments(p.Conn); k < n || k > n+n/5 {
		t.Errorf("%d answers come in %d segments", n, k)
	}
	if k := <-asked; k < n || k > n+n/5 {
		t.Errorf("%d requests come in %d segments", n, k)
	}
}

// Idle connections hold no buffers: they cost less than one.
func TestIdleBuffers(t *testing.T) {
	s := record(t, ok)
	r := run(t, simple(out("keepalive = 1000"), s.addr()))
	const n = 500
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools are emptied by the second
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	b := make([]byte, 512)
	for range n {
		c, err := net.Dial("tcp", r.addr("in"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := c.Write([]byte(get)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(b); err != nil {
			t.Fatal(err)
		}
	}
	r.quiet()
	// The clients' ends and a backend's are in the same process, but small.
	if each := int64(used()-before) / n; each > 16<<10 {
		t.Errorf("an idle connection holds %d bytes", each)
	}
}

// Bodies in bulk pass in the kernel: the process reads and writes them no more often
// than the client and the backend of this test do.
func TestBulkIsSpliced(t *testing.T) {
	counted := func() (n int64) {
		b, err := os.ReadFile("/proc/self/io")
		if err != nil {
			t.Skip("kernel: /proc/self/io: ", err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			var k int64
			if _, err := fmt.Sscanf(line, "rchar: %d", &k); err == nil {
				n = k
			}
		}
		return n
	}
	const size = 32 << 20
	data := make([]byte, size)
	s := serve(t, func(p *peer) {
		for {
			h := p.head()
			switch {
			case strings.HasPrefix(h, "POST"):
				_, _ = io.CopyN(io.Discard, p.r, size)
				p.send(ok)
			case strings.HasPrefix(h, "GET"):
				p.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
				_, _ = p.Write(data)
			default:
				_, _ = p.Write(data)
				return
			}
		}
	})
	web := run(t, simple("", s.addr()))
	raw := run(t, simple(in("protocol = \"tcp\""), s.addr()))
	for name, do := range map[string]func(){
		"an answer": func() {
			p := dial(t, web.addr("in"))
			p.send(get)
			p.head()
			if n, err := io.CopyN(io.Discard, p.r, size); err != nil {
				t.Error(n, err)
			}
		},
		"a request": func() {
			p := dial(t, web.addr("in"))
			p.send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size))
			_, _ = p.Write(data)
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200") {
				t.Errorf("%q", h)
			}
		},
		"TCP": func() {
			p := dial(t, raw.addr("in"))
			p.send("\r\n")
			if n, err := io.CopyN(io.Discard, p.r, size); err != nil {
				t.Error(n, err)
			}
		},
	} {
		before := counted()
		do()
		if n := counted() - before; n > size*3/2 {
			t.Errorf("%s of %d bytes: %d are read", name, size, n)
		}
	}
}

// What is offered by ALPN, and chosen.
func TestALPN(t *testing.T) {
	crt, key := certificate(t, t.TempDir(), "www", "a")
	b := record(t, ok)
	for _, c := range []struct {
		args, protocol string
		client         []string
		want           string
	}{
		{"", "http", []string{"http/1.1", "h2"}, "h2"}, // the server prefers
		{"", "http", []string{"http/1.1"}, "http/1.1"},
		{"", "http", nil, ""},
		{"", "http", []string{"spdy/1"}, "refused"},
		{"alpn = [\"http/1.1\"]", "http", []string{"h2", "http/1.1"}, "http/1.1"},
		{"alpn = [\"imap\"]\n protocol = \"tcp\"", "tcp", []string{"imap"}, "imap"},
	} {
		r := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode(c.args, crt, key)+pick, b.addr()))
		conn, err := tls.Dial("tcp", r.addr("in"), &tls.Config{InsecureSkipVerify: true, NextProtos: c.client})
		got := "refused"
		if err == nil {
			got = conn.ConnectionState().NegotiatedProtocol
			_ = conn.Close()
		}
		if got != c.want {
			t.Errorf("%q, %v: %q, want %q, %v", c.args, c.client, got, c.want, err)
		}
		r.quiet()
	}
}

// Certificates of clients: shown or not, of the right issuer or another's.
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "www", "a")
	ca, caKey := certificate(t, dir, "client")
	other, otherKey := certificate(t, dir, "other")
	b := record(t, ok)
	for _, c := range []struct{ auth, shows, want string }{
		{"none", "", "200 ok"}, {"request", "", "200 ok"}, {"require", "", "refused"},
		{"request", "good", "200 ok"}, {"require", "good", "200 ok"},
		{"request", "bad", "refused"}, {"require", "bad", "refused"},
	} {
		r := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode(fmt.Sprintf("client_auth = %q\n client_ca = %q", c.auth, ca), crt, key)+pick, b.addr()))
		config := &tls.Config{InsecureSkipVerify: true}
		files := map[string][2]string{"good": {ca, caKey}, "bad": {other, otherKey}}[c.shows]
		if files[0] != "" {
			pair, err := tls.LoadX509KeyPair(files[0], files[1])
			if err != nil {
				t.Fatal(err)
			}
			// Whatever issuers the server asks for.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		got := "refused"
		if conn, err := tls.Dial("tcp", r.addr("in"), config); err == nil {
			if a := newPeer(t, conn).get(get); a == "200 ok" {
				got = a
			}
			_ = conn.Close()
		}
		if got != c.want {
			t.Errorf("%s, %q: %s, want %s", c.auth, c.shows, got, c.want)
		}
		r.quiet()
	}
}

// Whoever a PROXY header names is no more trusted for coming by a trusted proxy: what
// its fields say of others is replaced, unless it is in a trusted network itself.
func TestProxyProtocolTrust(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple(in("trusted = [\"127.0.0.0/8\", \"198.51.100.0/24\"]\n proxy_protocol = \"require\""), b.addr()))
	for _, c := range []struct{ header, want string }{
		{"PROXY TCP4 192.0.2.1 192.0.2.9 1000 80", "192.0.2.1"},
		{"PROXY TCP4 198.51.100.1 192.0.2.9 1000 80", "203.0.113.6, 198.51.100.1"},
		{"PROXY UNKNOWN", "203.0.113.6, 127.0.0.1"},
	} {
		p := dial(t, r.addr("in"))
		p.send(c.header + "\r\n")
		if got := p.get("GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.6\r\n\r\n"); got != "200 ok" {
			t.Errorf("%s: %q", c.header, got)
		}
		if got := b.take(); !strings.Contains(got, "\r\nX-Forwarded-For: "+c.want+"\r\n") {
			t.Errorf("%s: %q", c.header, got)
		}
		_ = p.Close()
	}
	r.quiet()
}

// PROXY headers of version 2 and of the proxy's own connections; a name in one is
// whom connections_per_client counts.
func TestProxyProtocolVersion2(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple(in("trusted = [\"127.0.0.0/8\"]\n proxy_protocol = \"require\"\n connections_per_client = 1"), b.addr()))
	header := func(text string) string {
		x, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return "\r\n\r\n\x00\r\nQUIT\n" + string(x)
	}
	for _, c := range []struct{ text, want string }{
		{"21 11 000c c0000201 c6336402 04d2 0050", "192.0.2.1"},
		{"21 21 0024 20010db8000000000000000000000001 20010db8000000000000000000000002 04d2 0050", "2001:db8::1"},
		{"20 00 0000", "127.0.0.1"},
	} {
		p := dial(t, r.addr("in"))
		for _, piece := range header(c.text) { // in pieces
			_, _ = p.Write([]byte{byte(piece)})
			break
		}
		p = dial(t, r.addr("in"))
		h := header(c.text)
		_, _ = io.WriteString(p.Conn, h[:7])
		time.Sleep(10 * time.Millisecond)
		_, _ = io.WriteString(p.Conn, h[7:])
		if got := p.get(get); got != "200 ok" {
			t.Errorf("%s: %q", c.text, got)
		}
		if got := b.take(); !strings.Contains(got, "X-Forwarded-For: "+c.want+"\r\n") {
			t.Errorf("%s: %q", c.text, got)
		}
		// A second connection of that client is one too many.
		q := dial(t, r.addr("in"))
		_, _ = io.WriteString(q.Conn, h)
		if got := q.get(get); strings.HasPrefix(got, "200") {
			t.Errorf("%s: a second connection: %q", c.text, got)
		}
		_ = p.Close()
	}
	p := dial(t, r.addr("in"))
	_, _ = io.WriteString(p.Conn, header("31 11 000c c0000201 c6336402 04d2 0050"))
	if got := p.get(get); strings.HasPrefix(got, "200") {
		t.Errorf("version 3: %q", got)
	}
}

// Idle connections to backends: so many of them, and no longer than so.
func TestKeepalive(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, c := range []struct {
		args string
		want func(n float64) bool
	}{
		{"keepalive = 2", func(n float64) bool { return n == 2 }},
		{"keepalive = 0", func(n float64) bool { return n == 0 }},
		{"keepalive = 10\n keepalive_timeout = \"100ms\"", func(n float64) bool { return n == 0 }},
	} {
		hold := make(chan struct{})
		var asked atomic.Int64
		s := serve(t, func(p *peer) {
			for !strings.Contains(p.head(), "«") {
				asked.Add(1)
				<-hold
				p.send(ok)
			}
		})
		r := run(t, simple(out(c.args), s.addr()))
		var open []*peer
		for range 5 {
			p := dial(t, r.addr("in"))
			p.send(get)
			open = append(open, p)
		}
		eventually(t, "all are asked", func() error {
			if n := asked.Load(); n != 5 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		close(hold)
		for _, p := range open {
			if got := p.get(""); got != "200 ok" {
				t.Errorf("%q", got)
			}
		}
		r.quiet()
		eventually(t, c.args, func() error {
			if n := r.node("out").Gauges["idle_connections"]; !c.want(n) {
				return fmt.Errorf("%v are idle", n)
			}
			return nil
		})
	}
	// One that is too old is not used again, though it is there still.
	b := record(t, ok)
	r := run(t, simple(out("keepalive_timeout = \"60ms\""), b.addr()))
	p := dial(t, r.addr("in"))
	for range 4 {
		if got := p.get(get); got != "200 ok" {
			t.Errorf("%q", got)
		}
		time.Sleep(150 * time.Millisecond)
	}
	if n := b.conns.Load(); n != 4 {
		t.Errorf("%d connections for 4 requests", n)
	}
}

// Connections that the kernel took before a stop are served, also those that nobody
// has accepted yet.
func TestStopServesTheQueue(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	at := netip.MustParseAddrPort(r.addr("in"))
	// One processor, which this goroutine keeps: the queue fills before anybody is
	// woken for it.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var fds []int
	for range 50 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	for _, fd := range fds {
		if _, err := unix.Write(fd, []byte(get)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(20 * time.Second); err != nil {
		t.Error(err)
	}
	for i, fd := range fds {
		buf := make([]byte, 1000)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		n, err := unix.Read(fd, buf)
		if err != nil || !bytes.HasPrefix(buf[:max(n, 0)], []byte("HTTP/1.1 200 OK\r\n")) {
			t.Fatalf("connection %d: %q, %v", i, buf[:max(n, 0)], err)
		}
	}
}

// A reload keeps what nodes know: the connections that count for a limit, and those
// that stand open to backends.
func TestReloadInherits(t *testing.T) {
	b := record(t, ok)
	text := simple(in("connections = 2"), b.addr())
	r := run(t, text)
	p, q := dial(t, r.addr("in")), dial(t, r.addr("in"))
	for i := range 3 {
		for _, p := range []*peer{p, q} {
			if got := p.get(get); got != "200 ok" {
				t.Errorf("reload %d: %q", i, got)
			}
			time.Sleep(5 * time.Millisecond) // it goes back to those that are idle
		}
		if c, err := net.Dial("tcp", r.addr("in")); err == nil { // or the reset comes at once
			if got := newPeer(t, c).get(get); strings.HasPrefix(got, "200") {
				t.Errorf("reload %d: a third connection: %q", i, got)
			}
			_ = c.Close()
		}
		r.reload(text)
	}
	// Two at once need two; one after the other, one.
	if n := b.conns.Load(); n > 2 {
		t.Errorf("%d connections to the backend", n)
	}
}

// Trailers of a request by HTTP/2 that say what trailers must not are left out.
func TestHTTP2Trailers(t *testing.T) {
	got := make(chan string, 1)
	s := serve(t, func(p *peer) {
		p.head()
		got <- p.read(10) + p.head()
		p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nUnannounced: y\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")
		p.rest()
	})
	r := run(t, simple("", s.addr()))
	f := h2raw(t, r.addr("in"))
	_ = f.headers(1, false, h2post("trailer", "a, x-forwarded-for, x_forwarded_for")...)
	_ = f.WriteData(1, false, []byte("hello"))
	_ = f.headers(1, true, "a", "b", "x-forwarded-for", "1.2.3.4", "x_forwarded_for", "1.2.3.4")
	if s := f.status(1); s != "200" {
		t.Fatal(s)
	}
	if g := <-got; g != "5\r\nhello\r\n0\r\nA: b\r\n\r\n" {
		t.Errorf("%q", g)
	}
	var back []string
	if err := f.until(func(x http2.Frame) bool {
		m, is := x.(*http2.MetaHeadersFrame)
		if is {
			for _, h := range m.Fields {
				back = append(back, h.Name+": "+h.Value)
			}
		}
		return is && m.StreamEnded()
	}); err != nil || len(back) != 1 || back[0] != "unannounced: y" {
		t.Errorf("%q, %v", back, err)
	}
}

// Connections that say nothing hold nobody up.
func TestAcceptIsNotBlocked(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple(in("proxy_protocol = \"require\"\n trusted = [\"127.0.0.0/8\"]\n proxy_timeout = \"1h\"\n header_timeout = \"1h\""), b.addr()))
	const header = "PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n"
	for i := range 60 {
		p := dial(t, r.addr("in"))
		p.send([]string{"", "PROXY ", header, header + "GET / HT"}[i%4])
	}
	p := dial(t, r.addr("in"))
	p.send(header)
	if got := p.get(get); got != "200 ok" {
		t.Errorf("%q", got)
	}
}

// So many further backends are tried, each once, and no more.
func TestRetryCount(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	var addrs []string
	for range 4 {
		s := serve(t, func(p *peer) {
			p.head()
			mu.Lock()
			asked[p.LocalAddr().String()]++
			mu.Unlock()
		})
		addrs = append(addrs, s.addr())
	}
	for retries, want := range []int{1, 2, 3, 4, 4} {
		r := run(t, simple(out(fmt.Sprintf("retries = %d", retries))+"node \"balance\" \"pick\" {\n pool = pool.web\n eject_for = \"0s\"\n}\n", addrs...))
		clear(asked)
		p := dial(t, r.addr("in"))
		if got := p.get(get); !strings.HasPrefix(got, "502") {
			t.Errorf("%q", got)
		}
		_ = p.Close()
		r.quiet()
		mu.Lock()
		if len(asked) != want {
			t.Errorf("%d retries: %d backends are asked, want %d", retries, len(asked), want)
		}
		for a, n := range asked {
			if n != 1 {
				t.Errorf("%d retries: %s is asked %d times", retries, a, n)
			}
		}
		mu.Unlock()
	}
}

// A connection that waits for a request is let go when the engine stops, well within the
// time of clients' patience.
func TestStopEndsIdle(t *testing.T) {
	t.Parallel() // it waits most of its time
	b := serve(t, func(c *peer) {
		for strings.HasPrefix(c.head(), "GET") {
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	r := run(t, simple("", b.addr()))
	fresh, used := dial(t, r.addr("in")), dial(t, r.addr("in"))
	used.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	used.head()
	used.read(2)
	if err := r.stop(15 * time.Second); err != nil {
		t.Error(err)
	}
	for _, p := range []*peer{fresh, used} {
		if got := p.rest(); got != "" {
			t.Errorf("%q", got)
		}
	}
}

// Who said close and sends on gets the answer, and no reset behind it.
func TestMoreBehindClose(t *testing.T) {
	b := serve(t, func(c *peer) {
		for strings.HasPrefix(c.head(), "GET") {
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	const get = "GET / HTTP/1.1\r\nHost: x\r\n"
	p.send(get + "Connection: close\r\n\r\n" + strings.Repeat(get+"\r\n", 4000))
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%q", h)
	}
	if got := p.rest(); got != "ok" {
		t.Errorf("%q", got)
	}
	_ = p.Close()
	r.quiet()
}

// A node that takes the name of one of another kind takes nothing else of it, be it
// counts or state.
func TestReloadChangesKind(t *testing.T) {
	b := record(t, ok)
	text := func(node string) string {
		return strings.Replace(simple(node, b.addr()), "[in, pick, out]", "[in, some, pick, out]", 1)
	}
	kinds := []string{"node \"rate-limit\" \"some\" { rate = 1e6 }", "node \"admit\" \"some\" {}", "node \"headers\" \"some\" {}"}
	r := run(t, text(kinds[0]))
	p := dial(t, r.addr("in"))
	for i := range 6 {
		if got := p.get(get); got != "200 ok" {
			t.Errorf("reload %d: %q", i, got)
		}
		r.quiet()
		if n := r.node("some").Calls; n != 1 {
			t.Errorf("reload %d: %d came to a node of a new kind", i, n)
		}
		r.reload(text(kinds[(i+1)%len(kinds)]))
	}
}
