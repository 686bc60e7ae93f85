package streams_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
)

func closeWrite(p *peer) { _ = p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// One 100 (Continue), the backend's own; then the body goes up.
func TestContinue(t *testing.T) {
	s := serve(t, func(p *peer) {
		h := p.head()
		if !strings.Contains(h, "Expect: 100-continue\r\n") {
			t.Errorf("the backend got %q", h)
		}
		if !p.silent(50 * time.Millisecond) {
			t.Error("the body comes before the backend asked for it")
		}
		p.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X\r\nX: y\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
		if got := p.read(5); got != "hello" {
			t.Errorf("the backend got %q", got)
		}
		p.send(ok)
		p.rest()
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if h := p.head(); h != "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" {
		t.Errorf("%q", h)
	}
	if h := p.head(); h != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Errorf("%q", h)
	}
	if !p.silent(50 * time.Millisecond) {
		t.Error("more than one 100")
	}
	p.send("hello")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 OK") || p.read(2) != "ok" {
		t.Errorf("%q", h)
	}
	closeWrite(p)
	if rest := p.rest(); rest != "" {
		t.Errorf("%q", rest)
	}
	r.quiet()
}

// Who did not ask for 100 gets none, nor does HTTP/1.0 any interim response.
func TestInterimUnasked(t *testing.T) {
	b := record(t, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"+ok)
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if h := p.head() + p.head() + p.read(2); h != "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" {
		t.Errorf("%q", h)
	}
	p = dial(t, r.addr("in"))
	p.send("GET / HTTP/1.0\r\n\r\n")
	if h := p.rest(); h != "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok" {
		t.Errorf("%q", h)
	}
}

// A backend's refusal reaches the client instead of 100.
func TestRefusalInsteadOfContinue(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno")
		p.rest()
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 417 ") || !strings.Contains(h, "Connection: close") || p.read(2) != "no" {
		t.Errorf("%q", h)
	}
	closeWrite(p)
	if rest := p.rest(); rest != "" {
		t.Errorf("%q", rest)
	}
	r.quiet()
}

// A 413 in the midst of an upload reaches a client that sends on, without a reset.
func TestEarlyRefusal(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.head()
		p.read(1000)
		p.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big")
		time.Sleep(20 * time.Millisecond)
		// It closes over unread bytes: a reset towards the balancer.
	})
	r := run(t, simple("", s.addr()))
	for _, framing := range []string{"Content-Length: 33554432", "Transfer-Encoding: chunked"} {
		p := dial(t, r.addr("in"))
		p.send("POST / HTTP/1.1\r\nHost: x\r\n" + framing + "\r\n\r\n")
		chunk := strings.Repeat("x", 64<<10)
		if strings.Contains(framing, "chunked") {
			chunk = fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
		}
		sent := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 128 && err == nil; i++ {
				_, err = io.WriteString(p.Conn, chunk)
			}
			sent <- err
		}()
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 413 ") || !strings.Contains(h, "Connection: close") || p.read(7) != "too big" {
			t.Errorf("%s: %q", framing, h)
		}
		if rest := p.rest(); rest != "" {
			t.Errorf("%s: behind it comes %q", framing, rest)
		}
		// What it still sends is taken: a reset would end that, and might take the answer
		// from a client that has not read it yet.
		if err := <-sent; err != nil {
			t.Errorf("%s: %v", framing, err)
		}
		_ = p.Close()
		r.quiet()
	}
}

// A backend that dies inside a body: what came is passed on, and the cut shows.
func TestCut(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
		{"in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhello"},
		{"before the trailers' end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"},
		{"nothing of the body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"},
		{"malformed chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
	} {
		for _, reset := range []bool{false, true} {
			s := serve(t, func(p *peer) {
				p.head()
				p.send(c.answer)
				if c.name == "malformed chunk" {
					p.rest()
				}
				time.Sleep(30 * time.Millisecond) // what came, came before the reset
				if reset {
					_ = p.Conn.(*net.TCPConn).SetLinger(0)
				}
			})
			r := run(t, simple("", s.addr()))
			p := dial(t, r.addr("in"))
			p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			got := p.rest()
			if c.name == "malformed chunk" {
				if !strings.HasPrefix(c.want, strings.TrimSuffix(got, "«end»")) || strings.Contains(got, "0\r\n\r\n") {
					t.Errorf("%s: %q", c.name, got)
				}
			} else if got != c.want {
				t.Errorf("%s, reset %v: %q, want %q", c.name, reset, got, c.want)
			}
			if n := r.output("out", "cut"); n != 1 {
				t.Errorf("%s: counted %d times", c.name, n)
			}
			r.quiet()
			if n := r.engine.Stats()[0].Routes[0].Sessions[graph.Cut]; n != 1 {
				t.Errorf("%s: %d sessions were cut", c.name, n)
			}
			// An HTTP/1.0 client of chunks sees a reset: an end would be that of the body.
			if c.name == "in a chunk" && !reset {
				p := dial(t, r.addr("in"))
				p.send("GET / HTTP/1.0\r\n\r\n")
				if got := p.rest(); !strings.HasSuffix(got, "\r\n\r\nhello«reset»") {
					t.Errorf("HTTP/1.0: %q", got)
				}
			}
		}
	}
}

// Answers without a body, whatever their fields say.
func TestBodilessAnswers(t *testing.T) {
	for _, c := range []struct{ method, answer, want string }{
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"},
		{"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"},
		{"HEAD", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
		{"GET", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
		{"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\nETag: \"x\"\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 10\r\n\r\n"},
		{"GET", "HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP/1.1 304 Not Modified\r\n\r\n"},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	} {
		b := record(t, c.answer)
		r := run(t, simple("", b.addr()))
		p := dial(t, r.addr("in"))
		for range 2 { // the connection stays usable on both sides
			p.send(c.method + " / HTTP/1.1\r\nHost: x\r\n\r\n")
			if h := p.head(); h != c.want {
				t.Errorf("%s %q: %q", c.method, c.answer, h)
			}
		}
		if !p.silent(20 * time.Millisecond) {
			t.Errorf("%s %q: more follows", c.method, c.answer)
		}
		if n := b.conns.Load(); n != 1 {
			t.Errorf("%s %q: %d connections", c.method, c.answer, n)
		}
	}
}

// Answers that can be read in two ways are 502.
func TestAmbiguousAnswers(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
		"HTTP/0.9 hello\r\n",
		"SSH-2.0-OpenSSH_9.2\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 100<<10) + "\r\n\r\n",
	} {
		s := serve(t, func(p *peer) {
			p.head()
			p.send(answer)
			p.rest()
		})
		r := run(t, simple("", s.addr()))
		p := dial(t, r.addr("in"))
		for range 2 {
			p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 502 Bad Gateway\r\n") || p.read(16) != "502 Bad Gateway\n" {
				t.Errorf("%.60q: %q", answer, h)
			}
		}
		if n := r.output("out", "bad_response"); n != 2 {
			t.Errorf("%.60q: counted %d times", answer, n)
		}
	}
}

// Bytes behind a complete answer: they are nobody's, and the connection is not used
// again, whether they come with it or later.
func TestBytesBehind(t *testing.T) {
	evil := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	for _, c := range []struct {
		name, answer, late string
	}{
		{"at once", ok + evil, ""},
		{"later", ok, evil},
		{"a stray line", ok, "\r\n"},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + evil, ""},
		{"behind 204", "HTTP/1.1 204 No\r\nContent-Length: 4\r\n\r\nevil", ""},
	} {
		all := make(chan struct{}, 10) // everything was sent
		s := serve(t, func(p *peer) {
			for {
				if strings.Contains(p.head(), "«") {
					return
				}
				p.send(c.answer)
				if c.late != "" {
					time.Sleep(20 * time.Millisecond)
					p.send(c.late)
				}
				all <- struct{}{}
			}
		})
		r := run(t, simple("", s.addr()))
		p := dial(t, r.addr("in"))
		for i := range 3 {
			p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			h := p.head()
			body := ""
			switch {
			case strings.Contains(h, "chunked"):
				body = p.read(12)
			case !strings.Contains(h, "204"):
				body = p.read(2)
			}
			if strings.Contains(body, "evil") || strings.Contains(h, "Content-Length: 4") {
				t.Errorf("%s, request %d: %q %q", c.name, i, h, body)
			}
			<-all
			time.Sleep(5 * time.Millisecond)
		}
		if n := r.counter("out", "connections"); n != 3 {
			t.Errorf("%s: %d connections for 3 requests", c.name, n)
		}
	}
}

// Trailers both ways, announced or not; what must not stand there does not.
func TestTrailers(t *testing.T) {
	got := make(chan string, 2)
	s := serve(t, func(p *peer) {
		for {
			h := p.head()
			if strings.Contains(h, "«") {
				return
			}
			got <- h + p.read(10) + p.head()
			p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc-Status\r\n\r\n5\r\nhello\r\n0\r\nGrpc-Status: 0\r\nContent-Length: 5\r\nUnannounced: y\r\n\r\n")
		}
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	for range 2 {
		p.send("POST / HTTP/1.1\r\nHost: x\r\nTrailer: A\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nHost: evil\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: 1.2.3.4\r\nC: d\r\n\r\n")
		h := p.head()
		if !strings.Contains(h, "Trailer: Grpc-Status\r\n") {
			t.Errorf("%q", h)
		}
		if body := p.read(10) + p.head(); body != "5\r\nhello\r\n0\r\nGrpc-Status: 0\r\nUnannounced: y\r\n\r\n" {
			t.Errorf("the client got %q", body)
		}
		if g := <-got; !strings.HasSuffix(g, "5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n") || !strings.Contains(g, "Trailer: A\r\n") {
			t.Errorf("the backend got %q", g)
		}
	}
	r.quiet()
}

// Server-sent events: the head and every event at once, however slowly they come,
// and whatever the framing.
func TestEvents(t *testing.T) {
	t.Parallel() // it waits most of its time
	next := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for i := range 3 {
			<-next
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
		<-next
	}))
	defer srv.Close()
	// Without a length and without chunks: up to the end of the connection.
	raw := serve(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		for i := range 3 {
			<-next
			p.send(fmt.Sprintf("data: %d\n\n", i))
		}
		<-next
	})
	for _, addr := range []string{addrOf(srv), raw.addr()} {
		r := run(t, simple("node \"listen\" \"in\" {\n address = \"127.0.0.1:0\"\n write_timeout = \"100ms\"\n}\n", addr))
		p := dial(t, r.addr("in"))
		p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if h := p.head(); !strings.Contains(h, "text/event-stream") || !strings.Contains(h, "chunked") {
			t.Errorf("%q", h)
		}
		for i := range 3 {
			time.Sleep(150 * time.Millisecond) // longer than a write may take
			next <- struct{}{}
			if e := p.read(14); e != fmt.Sprintf("9\r\ndata: %d\n\n\r\n", i) {
				t.Errorf("event %d is %q", i, e)
			}
		}
		next <- struct{}{}
		if e := p.head(); e != "0\r\n«time-out»" && e != "0\r\n\r\n" {
			t.Errorf("%q", e)
		}
		r.quiet()
	}
}

// Bodies of all sizes and framings pass both ways unharmed, also by splice.
func TestSizes(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		if req.Header.Get("Measured") != "" {
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		}
		if req.Header.Get("Old") != "" {
			w.Header().Set("Connection", "close")
			w.Header().Set("Transfer-Encoding", "identity")
		}
		w.Write(b)
	}))
	defer srv.Close()
	r := run(t, simple("", addrOf(srv)))
	for _, size := range []int{0, 1, 1000, 16<<10 - 1, 16 << 10, 100_000, 1 << 20, 5_000_003} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(i * 31 >> 3)
		}
		for _, up := range []bool{false, true} {
			for _, down := range []string{"Measured", "Chunked", "Old"} {
				var rd io.Reader = bytes.NewReader(body)
				if up {
					rd = io.MultiReader(rd) // its length is not known
				}
				req, _ := http.NewRequest("POST", "http://"+r.addr("in")+"/", rd)
				req.Header.Set(down, "yes")
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(size, up, down, err)
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || !bytes.Equal(got, body) {
					t.Errorf("%d bytes, chunked %v, %s: %s, %d bytes, %v", size, up, down, res.Status, len(got), err)
				}
			}
		}
	}
	r.quiet()
}
