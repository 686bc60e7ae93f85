package streams_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// recorder is a backend that keeps the heads and the rest of what it gets, and
// answers every head without a body by 200.
type recorder struct {
	*script
	mu    sync.Mutex
	heads []string
	conns atomic.Int64
}

func record(t testing.TB, answer string) *recorder {
	r := &recorder{}
	r.script = serve(t, func(c *peer) {
		r.conns.Add(1)
		for {
			h := c.head()
			if strings.Contains(h, "«") {
				return
			}
			r.mu.Lock()
			r.heads = append(r.heads, h)
			r.mu.Unlock()
			c.send(answer)
		}
	})
	return r
}

func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.heads, "")
	r.heads = nil
	return all
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

const post = "POST / HTTP/1.1\r\nHost: x\r\n"

// faultyHeads are requests whose heads are refused, and by which status.
var faultyHeads = []struct {
	name, request string
	status        int
}{
	{"CL and TE", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"TE and CL", post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
	{"two TE lines", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"xchunked", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
	{"chunked in quotes", post + "Transfer-Encoding: 'chunked'\r\n\r\n0\r\n\r\n", 400},
	{"chunked behind a vertical tab", post + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400},
	{"gzip", post + "Transfer-Encoding: gzip\r\n\r\n", 501},
	{"TE :", post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
	{"differing CL", post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400},
	{"signed CL", post + "Content-Length: +5\r\n\r\nhello", 400},
	{"negative CL", post + "Content-Length: -5\r\n\r\nhello", 400},
	{"listed CL", post + "Content-Length: 5, 5\r\n\r\nhello", 400},
	{"empty field name", "GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", 400},
	{"NUL in a field", "GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400},
	{"bare CR in a field", "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400},
	{"folded field", "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400},
	{"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
	{"two Hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400},
	{"HTTP/1.0 with TE", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 405},
	{"HTTP/3.0", "GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
	{"nonsense", "nonsense\r\n\r\n", 400},
	{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400},
	{"long target", "GET /" + strings.Repeat("a", 9000) + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
	{"large head", "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: "+strings.Repeat("a", 9000)+"\r\n", 5) + "\r\n", 431},
	{"many fields", "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", 200) + "\r\n", 431},
}

// A fault in the head is answered, reaches no backend, and ends the connection.
func TestFaultyHeads(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	for _, c := range faultyHeads {
		p := dial(t, r.addr("in"))
		// What is behind it must not be taken for a request either.
		p.send(c.request + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
		h := p.head()
		if !strings.HasPrefix(h, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || !strings.Contains(h, "\r\nConnection: close\r\n") || !strings.Contains(h, "\r\nDate: ") {
			t.Errorf("%s: %q", c.name, h)
		}
		_ = p.Conn.(interface{ CloseWrite() error }).CloseWrite()
		if rest := p.rest(); strings.Contains(rest, "HTTP/1.1") || strings.Contains(rest, "reset") {
			t.Errorf("%s: behind the answer comes %q", c.name, rest)
		}
		_ = p.Close()
	}
	if got := b.take(); got != "" {
		t.Errorf("the backend got %q", got)
	}
	r.quiet()
}

// The answer to a faulty head reaches a client that sends on, without a reset.
func TestFaultyHeadInFrontOfMuch(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	p.send(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 400 ") {
		t.Errorf("%q", h)
	}
	if rest := p.rest(); strings.Contains(rest, "«") {
		t.Errorf("behind it comes %q", rest)
	}
	// A reset could overtake the answer: what the client still sends is taken.
	for i := range 10 {
		if _, err := p.Write(bytes.Repeat([]byte("x"), 10_000)); err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = p.Close()
	r.quiet()
}

// A fault in the body aborts the request at the backend, and ends the connection.
func TestFaultyBodies(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"bare LF in a chunk size", "5\nhello\r\n0\r\n\r\n"},
		{"bare LF in an extension", "5;a\nhello\r\n0\r\n\r\n"},
		{"overflow", "10000000000000005\r\nhello\r\n0\r\n\r\n"},
		{"negative", "-5\r\nhello\r\n0\r\n\r\n"},
		{"no CRLF behind a chunk", "5\r\nhello0\r\n\r\n"},
		{"folded trailer", "5\r\nhello\r\n0\r\nA: b\r\n c\r\n\r\n"},
		{"trailer with bare LF", "5\r\nhello\r\n0\r\nA: b\n\r\n"},
		{"second chunk", "5\r\nhello\r\nzz\r\n"},
	} {
		got := make(chan string, 1)
		s := serve(t, func(p *peer) {
			p.head()
			got <- p.rest()
		})
		r := run(t, simple("", s.addr()))
		p := dial(t, r.addr("in"))
		p.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		p.send(c.body + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 400 ") || !strings.Contains(h, "Connection: close") {
			t.Errorf("%s: %q", c.name, h)
		}
		select {
		case body := <-got:
			if strings.Contains(body, "\r\n0\r\n") && !strings.Contains(c.name, "trailer") || strings.Contains(body, "smuggled") || strings.HasSuffix(body, "0\r\n\r\n") {
				t.Errorf("%s: the backend got %q", c.name, body)
			}
		case <-time.After(2 * time.Second):
			t.Errorf("%s: the backend's connection stays open", c.name)
		}
		if n := r.output("out", "bad_body"); n != 1 {
			t.Errorf("%s: counted %d times", c.name, n)
		}
		r.quiet()
		_ = s.Close()
	}
}

// The target goes on byte for byte.
func TestTargets(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	for _, target := range []string{
		"/", "//", "//a//b", "/%2e/%2E%2e", "/a%2Fb", "/a;b=c", "/%zz", "/%", "/a?b?c", "/?", "/a/../b", "/./a", "/a%00b", "/\"<>|{}^`\\", "/%C3%A4\xc3\xa4",
		"/a?q=%zz;x", "http://h.example/p?q", "HTTP://h.example", "https://h.example:443/",
	} {
		p.send("GET " + target + " HTTP/1.1\r\nHost: h.example\r\n\r\n")
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") || p.read(2) != "ok" {
			t.Fatalf("%q: %q", target, h)
		}
		if got := b.take(); !strings.HasPrefix(got, "GET "+target+" HTTP/1.1\r\n") {
			t.Errorf("%q goes on as %q", target, got)
		}
	}
	p.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") || p.read(2) != "ok" || !strings.HasPrefix(b.take(), "OPTIONS * HTTP/1.1\r\n") {
		t.Errorf("OPTIONS *: %q", h)
	}
	// An absolute target goes by its own authority.
	p.send("GET http://a.example:81/ HTTP/1.1\r\nHost: other\r\nA: b\r\n\r\n")
	p.head()
	p.read(2)
	if got := b.take(); !strings.Contains(got, "\r\nHost: a.example:81\r\n") || strings.Contains(got, "other") || !strings.Contains(got, "X-Forwarded-Host: a.example:81\r\n") {
		t.Errorf("%q", got)
	}
}

// A request without a body gains none; one with a body stays one request.
func TestBodyless(t *testing.T) {
	var got bytes.Buffer
	var mu sync.Mutex
	s := serve(t, func(p *peer) {
		for {
			h := p.head()
			if strings.Contains(h, "«") {
				return
			}
			body := ""
			if strings.Contains(h, "Content-Length: 5") {
				body = p.read(5)
			} else if strings.Contains(h, "chunked") {
				body = p.read(15)
			}
			mu.Lock()
			got.WriteString(h + body)
			mu.Unlock()
			p.send(ok)
		}
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	for _, c := range []struct{ request, want, not string }{
		{"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /1", "Content-Length|chunked"},
		{"POST /2 HTTP/1.1\r\nHost: x\r\n\r\n", "POST /2", "Content-Length|chunked"},
		{"POST /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0\r\n", "chunked"},
		{"GET /4 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "Content-Length: 5\r\n\r\nhello", "chunked"},
		{"GET /5 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "Content-Length"},
		{"DELETE /6 HTTP/1.1\r\nHost: x\r\n\r\n", "DELETE /6", "Content-Length|chunked"},
	} {
		p.send(c.request)
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") || p.read(2) != "ok" {
			t.Fatalf("%q: %q", c.request, h)
		}
		mu.Lock()
		text := got.String()
		got.Reset()
		mu.Unlock()
		if !strings.Contains(text, c.want) {
			t.Errorf("%q goes on as %q", c.request, text)
		}
		for _, n := range strings.Split(c.not, "|") {
			if strings.Contains(text, n) {
				t.Errorf("%q goes on as %q", c.request, text)
			}
		}
	}
	r.quiet()
}

// Fields of the connection go no further, in either direction; ours do.
func TestHopByHop(t *testing.T) {
	b := record(t, crlf(`HTTP/1.1 200 OK
Content-Length: 2
Keep-Alive: timeout=5
Connection: X-Back
X-Back: secret
Proxy-Authenticate: Basic
Set-Cookie: a=b
Set-Cookie: c=d
X_Forwarded_For: stays
Upgrade: h2c

ok`))
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	p.send(crlf(`GET / HTTP/1.1
Host: x
Connection: keep-alive, X-Hop
Connection: X-Forwarded-For, Forwarded, host
X-Hop: secret
Keep-Alive: timeout=5
Proxy-Connection: keep-alive
Proxy-Authorization: Basic eA==
Upgrade: h2c
HTTP2-Settings: AAMAAABkAAQAAP__
TE: trailers, gzip
X-Forwarded-For: 1.2.3.4
X-Forwarded-Proto: https
X-Forwarded-Port: 443
X-Real-Ip: 1.2.3.4
Forwarded: for=1.2.3.4
X_Forwarded_For: 1.2.3.4
x-forwarded_Host: evil
X_Real_IP: 1.2.3.4
Cookie: e=f

`))
	h := p.head()
	if p.read(2) != "ok" || h != crlf("HTTP/1.1 200 OK\nSet-Cookie: a=b\nSet-Cookie: c=d\nX_Forwarded_For: stays\nContent-Length: 2\n\n") && !strings.Contains(h, "Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n") {
		t.Errorf("the client got %q", h)
	}
	for _, not := range []string{"X-Back", "Keep-Alive", "Proxy-", "Upgrade", "secret", "Connection"} {
		if strings.Contains(h, not) {
			t.Errorf("the client got %q", h)
		}
	}
	got := b.take()
	want := crlf(`GET / HTTP/1.1
Host: x
Cookie: e=f
X-Forwarded-For: 127.0.0.1
X-Forwarded-Proto: http
X-Forwarded-Host: x
X-Real-IP: 127.0.0.1
Forwarded: for=127.0.0.1;host="x";proto=http
TE: trailers
Connection: TE

`)
	if got != want {
		t.Errorf("the backend got\n%swant\n%s", got, want)
	}
}

// A trusted proxy's word on the client is kept and extended.
func TestTrusted(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("node \"listen\" \"in\" {\n address = \"127.0.0.1:0\"\n trusted = [\"127.0.0.0/8\"]\n}\n", b.addr()))
	p := dial(t, r.addr("in"))
	p.send(crlf(`GET / HTTP/1.1
Host: x
X-Forwarded-For: 1.2.3.4
X-Forwarded-For: 5.6.7.8, 9.9.9.9
X-Forwarded-Proto: https
X-Forwarded-Host: outer.example
X-Real-IP: 1.2.3.4
Forwarded: for=1.2.3.4;proto=https
X_Forwarded_For: 6.6.6.6

`))
	p.head()
	p.read(2)
	got := b.take()
	for _, want := range []string{
		"X-Forwarded-For: 1.2.3.4, 5.6.7.8, 9.9.9.9, 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n", "X-Forwarded-Host: outer.example\r\n", "X-Real-IP: 1.2.3.4\r\n",
		"Forwarded: for=1.2.3.4;proto=https, for=127.0.0.1;host=\"x\";proto=http\r\n",
	} {
		name, _, _ := strings.Cut(want, " ")
		if !strings.Contains(got, "\r\n"+want) || strings.Contains(got, "6.6.6.6") || strings.Count(got, "\r\n"+name) != 1 {
			t.Errorf("not once %q in\n%s", want, got)
		}
	}
	p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	p.head()
	p.read(2)
	if got := b.take(); !strings.Contains(got, "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: x\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1;") {
		t.Errorf("%s", got)
	}
}

// HTTP/1.0: no chunks, no keep-alive unless asked for, a Host for the backend.
func TestOldClients(t *testing.T) {
	b := record(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: x\r\n\r\n")
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	p.send("GET / HTTP/1.0\r\n\r\n")
	if h, rest := p.head(), p.rest(); strings.Contains(h, "chunked") || !strings.Contains(h, "Connection: close") || rest != "hello" {
		t.Errorf("%q, %q", h, rest)
	}
	if got := b.take(); !strings.HasPrefix(got, "GET / HTTP/1.1\r\nHost: "+b.addr()+"\r\n") {
		t.Errorf("%q", got)
	}
	b2 := record(t, ok)
	r = run(t, simple("", b2.addr()))
	p = dial(t, r.addr("in"))
	for range 2 {
		p.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n")
		if h := p.head(); !strings.Contains(h, "Connection: keep-alive") || p.read(2) != "ok" {
			t.Errorf("%q", h)
		}
	}
	if got := b2.take(); strings.Contains(got, "Expect") {
		t.Errorf("%q", got)
	}
}

// Requests that come at once are answered in turn.
func TestPipelining(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	p := dial(t, r.addr("in"))
	var all strings.Builder
	for i := range 50 {
		fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i)
	}
	text := all.String()
	p.send(text[:1000])
	time.Sleep(10 * time.Millisecond)
	p.send(text[1000:])
	for i := range 50 {
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200") || p.read(2) != "ok" {
			t.Fatalf("answer %d: %q", i, h)
		}
	}
	if got := b.take(); strings.Count(got, "GET /") != 50 {
		t.Errorf("%d requests", strings.Count(got, "GET /"))
	}
	r.quiet()
}
