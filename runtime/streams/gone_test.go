package streams_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// soon tries until f takes no longer than half a second: a busy machine may be late
// some times, not every time.
func soon(t *testing.T, what string, f func() time.Duration) {
	t.Helper()
	var d time.Duration
	for range 6 {
		if d = f(); d <= 500*time.Millisecond {
			return
		}
	}
	t.Errorf("%s: after %v", what, d)
}

// A client that goes away: its request is cancelled within half a second, the
// backend not blamed, and nothing counts it any more.
func TestClientGone(t *testing.T) {
	t.Parallel()                                                       // it waits most of its time
	const early, late = 20 * time.Millisecond, 1200 * time.Millisecond // looked after; watched
	for _, c := range []struct {
		name, request string
		answer        string // of the backend, before it falls silent
		wait          time.Duration
	}{
		{"early", get, "", early},
		{"late", get, "", late},
		{"in a body", get, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", early},
		{"in a body, late", get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", late},
		{"behind an upload", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000), "", 50 * time.Millisecond},
		{"in an upload", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nhello", "", 50 * time.Millisecond},
		{"with another request behind", get + get, "", early},
	} {
		for _, reset := range []bool{false, true} {
			name := fmt.Sprintf("%s, reset %v", c.name, reset)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				gone := make(chan time.Time, 1)
				s := serve(t, func(p *peer) {
					p.head()
					p.send(c.answer)
					p.rest()
					gone <- time.Now()
				})
				r := run(t, simple("", s.addr()))
				n := uint64(0)
				soon(t, name, func() time.Duration {
					n++
					p := dial(t, r.addr("in"))
					p.send(c.request)
					if c.answer != "" {
						p.head()
					}
					time.Sleep(c.wait)
					if reset {
						_ = p.Conn.(*net.TCPConn).SetLinger(0)
					}
					return leave(t, name, p, gone)
				})
				r.quiet()
				if k := r.output("out", "client_gone"); k != n {
					t.Errorf("%s: counted %d times, not %d", name, k, n)
				}
				if b := r.engine.Stats()[0].Backends[0]; b.Failures != 0 || b.Active != 0 {
					t.Errorf("%s: the backend is blamed: %+v", name, b)
				}
			})
		}
	}
}

// The same over TLS, where the end of the connection says it all, and towards a
// backend of HTTP/2.
func TestClientGoneElsewhere(t *testing.T) {
	t.Parallel() // it waits most of its time
	crt, key := certificate(t, t.TempDir(), "www", "a")
	gone := make(chan time.Time, 1)
	plain := serve(t, func(p *peer) {
		p.head()
		p.rest()
		gone <- time.Now()
	})
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		<-req.Context().Done()
		gone <- time.Now()
	}))
	h2.Config.Protocols = new(http.Protocols)
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	defer h2.Close()
	secure := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, plain.addr()))
	http2 := run(t, simple(out("http = \"2\""), addrOf(h2)))
	post := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	for _, c := range []struct {
		name    string
		r       *rig
		tls     bool
		request string
		wait    time.Duration
	}{
		{"TLS", secure, true, get, 20 * time.Millisecond},
		{"TLS, late", secure, true, get, 1200 * time.Millisecond},
		{"HTTP/2 backend", http2, false, get, 20 * time.Millisecond},
		{"HTTP/2 backend, late", http2, false, get, 400 * time.Millisecond},
		{"HTTP/2 backend, behind a body", http2, false, post, 50 * time.Millisecond},
	} {
		n := c.r.output("out", "client_gone")
		soon(t, c.name, func() time.Duration {
			n++
			p := dial(t, c.r.addr("in"))
			if c.tls {
				p = newPeer(t, tls.Client(p.Conn, &tls.Config{InsecureSkipVerify: true}))
			}
			p.send(c.request)
			time.Sleep(c.wait)
			return leave(t, c.name, p, gone)
		})
		c.r.quiet()
		if k := c.r.output("out", "client_gone"); k != n {
			t.Errorf("%s: counted %d times, not %d", c.name, k, n)
		}
		if b := c.r.engine.Stats()[0].Backends[0]; b.Failures != 0 {
			t.Errorf("%s: the backend is blamed %d times", c.name, b.Failures)
		}
	}
}

// A client that ends its side behind its request still gets the answer, however long
// that takes. One of HTTP/1.1 is asked by an interim response whether it is there.
func TestHalfClosedClients(t *testing.T) {
	t.Parallel() // it waits most of its time
	// The target says how many milliseconds the head and the rest of the body take.
	times := func(target string) (head, body time.Duration) {
		var h, b int
		fmt.Sscanf(target, "/%d/%d", &h, &b)
		return time.Duration(h) * time.Millisecond, time.Duration(b) * time.Millisecond
	}
	h1 := serve(t, func(p *peer) {
		for {
			h := p.head()
			if strings.Contains(h, "«") {
				return
			}
			if strings.Contains(h, "Content-Length: 5") {
				p.read(5)
			}
			head, body := times(strings.Fields(h)[1])
			time.Sleep(head)
			p.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nans")
			time.Sleep(body)
			p.send("wer")
		}
	})
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		head, body := times(req.URL.Path)
		time.Sleep(head)
		w.Header().Set("Content-Length", "6")
		fmt.Fprint(w, "ans")
		w.(http.Flusher).Flush()
		time.Sleep(body)
		fmt.Fprint(w, "wer")
	}))
	h2.Config.Protocols = new(http.Protocols)
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	t.Cleanup(h2.Close)
	rigs := map[string]*rig{"HTTP/1": run(t, simple("", h1.addr())), "HTTP/2": run(t, simple(out("http = \"2\""), addrOf(h2)))}
	const field = " HTTP/1.1\r\nHost: x\r\n"
	t.Run("all", func(t *testing.T) {
		for _, c := range []struct {
			name, request string
			answers       int
			after         time.Duration // from the request to the end
			asked         bool
		}{
			{"at once", "GET /0/0" + field + "\r\n", 1, 0, false},
			{"a slow answer", "GET /500/0" + field + "\r\n", 1, 0, true},
			{"a slow body", "GET /400/3000" + field + "\r\n", 1, 0, false},
			{"both", "GET /500/2000" + field + "\r\n", 1, 0, true},
			{"behind a body", "POST /500/0" + field + "Content-Length: 5\r\n\r\nhello", 1, 0, true},
			{"a late end", "GET /2000/500" + field + "\r\n", 1, 1200 * time.Millisecond, true},
			{"HTTP/1.0", "GET /1500/1500 HTTP/1.0\r\n\r\n", 1, 0, false},
			{"two requests", "GET /500/300" + field + "\r\nGET /500/300" + field + "\r\n", 2, 0, true},
		} {
			for name, r := range rigs {
				t.Run(c.name+" from "+name, func(t *testing.T) {
					t.Parallel()
					p := dial(t, r.addr("in"))
					p.send(c.request)
					time.Sleep(c.after)
					closeWrite(p)
					got := p.rest()
					if strings.Count(got, "\r\n\r\nanswer") != c.answers || strings.Contains(got, "«") {
						t.Errorf("%q", got)
					}
					if n := strings.Count(got, "HTTP/1.1 102 Processing\r\n\r\n"); c.asked && n == 0 || n > c.answers || strings.Contains(c.request, "1.0") && n > 0 {
						t.Errorf("asked %d times: %q", n, got)
					}
				})
			}
		}
	})
	for _, r := range rigs {
		r.quiet()
		if n := r.output("out", "client_gone"); n != 0 {
			t.Errorf("%d count as gone", n)
		}
	}
}

// Over TLS a side ends by a word of TLS, and the answer still comes.
func TestHalfClosedTLS(t *testing.T) {
	t.Parallel() // it waits most of its time
	crt, key := certificate(t, t.TempDir(), "www", "a")
	s := serve(t, func(p *peer) {
		p.head()
		time.Sleep(500 * time.Millisecond)
		p.send(ok)
		p.rest()
	})
	r := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, s.addr()))
	c, err := tls.Dial("tcp", r.addr("in"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, c)
	p.send(get)
	_ = c.CloseWrite()
	if got := p.rest(); got != "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" {
		t.Errorf("%q", got)
	}
	r.quiet()
}

// A connection of TCP whose client has ended its side is tried at another backend,
// too.
func TestHalfClosedBeforeConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // its port refuses
	s := serve(t, func(p *peer) { p.send("you said " + p.rest()) })
	r := run(t, stream("main = [in, by.x, pick, out]", in("protocol = \"tcp\"")+
		"node \"route\" \"by\" {\n rule \"x\" { source = [\"127.0.0.0/8\"] }\n}\n"+
		"node \"balance\" \"pick\" {\n pool = pool.web\n eject_for = \"0s\"\n}\n"+out(""), l.Addr().String(), s.addr()))
	for range 4 {
		p := dial(t, r.addr("in"))
		p.send("hello")
		closeWrite(p)
		if got := p.rest(); got != "you said hello" {
			t.Errorf("%q", got)
		}
	}
	r.quiet()
}

// A request that is cancelled while its backend is being connected to says nothing of
// the backend.
func TestCancelWhileConnecting(t *testing.T) {
	t.Parallel() // it waits most of its time
	r := run(t, simple(out("connect_timeout = \"20s\""), full(t)))
	f := h2raw(t, r.addr("in"))
	_ = f.headers(1, true, h2get...)
	eventually(t, "it connects", func() error {
		if b := r.engine.Stats()[0].Backends; len(b) != 1 || b[0].Active != 1 {
			return fmt.Errorf("%+v", b)
		}
		return nil
	})
	time.Sleep(50 * time.Millisecond)
	_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
	r.quiet()
	if n := r.output("out", "client_gone"); n != 1 {
		t.Errorf("counted %d times", n)
	}
	if b := r.engine.Stats()[0].Backends[0]; b.Failures != 0 {
		t.Error("the backend is blamed")
	}
}

// A client that leaves while its backend is being connected to.
func TestGoneWhileConnecting(t *testing.T) {
	t.Parallel() // it waits most of its time
	r := run(t, simple(out("connect_timeout = \"20s\""), full(t)))
	n := uint64(0)
	soon(t, "a client that leaves", func() time.Duration {
		n++
		p := dial(t, r.addr("in"))
		p.send(get)
		time.Sleep(50 * time.Millisecond)
		left := time.Now()
		_ = p.Close()
		eventually(t, "it is over", func() error {
			if k := r.output("out", "client_gone"); k != n {
				return fmt.Errorf("%d are gone", k)
			}
			return nil
		})
		return time.Since(left)
	})
	r.quiet()
	if b := r.engine.Stats()[0].Backends[0]; b.Failures != 0 {
		t.Error("the backend is blamed")
	}
}

// leave closes a client's connection and answers how long it takes until the backend's is
// gone.
func leave(t *testing.T, name string, p *peer, gone <-chan time.Time) time.Duration {
	t.Helper()
	left := time.Now()
	_ = p.Close()
	select {
	case at := <-gone:
		return at.Sub(left)
	case <-time.After(5 * time.Second):
		t.Fatalf("%s: not cancelled", name)
		return 0
	}
}
