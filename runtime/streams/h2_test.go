package streams_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2client speaks HTTP/2 in the clear.
func h2client(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: p}, Timeout: 10 * time.Second}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// HTTP/2 with and without TLS towards a backend of HTTP/1: many requests at once,
// bodies, trailers both ways, interim responses, HEAD.
func TestHTTP2(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Proto", req.Proto)
		w.Header().Set("X-For", req.Header.Get("X-Forwarded-For"))
		w.Header().Set("X-Host", req.Host)
		if req.URL.Path == "/hints" {
			w.Header().Set("Link", "</a>")
			w.WriteHeader(http.StatusEarlyHints)
		}
		b, _ := io.ReadAll(req.Body)
		_, _ = w.Write(b)
		w.Header().Set("X-Sum", fmt.Sprint(len(b), req.Trailer.Get("X-Up")))
	}))
	defer srv.Close()
	crt, key := certificate(t, t.TempDir(), "www", "a.example")
	plain := run(t, simple("", addrOf(srv)))
	secure := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, addrOf(srv)))
	tlsClient := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	defer tlsClient.CloseIdleConnections()
	for _, c := range []struct {
		client *http.Client
		url    string
	}{{h2client(t), "http://" + plain.addr("in")}, {tlsClient, "https://" + secure.addr("in")}} {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				body := strings.Repeat(fmt.Sprint(i), i*5000)
				req, _ := http.NewRequest("POST", c.url+"/x?y=%20", io.MultiReader(strings.NewReader(body)))
				req.Trailer = http.Header{"X-Up": {"yes"}}
				res, err := c.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || string(got) != body || res.ProtoMajor != 2 || res.Header.Get("X-Proto") != "HTTP/1.1" || res.Header.Get("X-For") != "127.0.0.1" {
					t.Errorf("%v: %d of %d bytes, %s, %v", err, len(got), len(body), res.Proto, res.Header)
				}
				if s := res.Trailer.Get("X-Sum"); s != fmt.Sprint(len(body), "yes") {
					t.Errorf("trailer %q", s)
				}
			})
		}
		wg.Wait()
		res, err := c.client.Head(c.url + "/")
		if err != nil || res.StatusCode != 200 {
			t.Error(err)
		}
		if res, err = c.client.Get(c.url + "/hints"); err != nil || res.StatusCode != 200 {
			t.Error(err)
		} else {
			_ = res.Body.Close()
		}
	}
	plain.quiet()
	secure.quiet()
}

// frames is a client of HTTP/2 that sends what a test says.
type frames struct {
	*http2.Framer
	p *peer
	h strings.Builder
	e *hpack.Encoder
}

func h2raw(t *testing.T, addr string) *frames {
	p := dial(t, addr)
	p.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	f := &frames{Framer: http2.NewFramer(p.Conn, p.r), p: p}
	f.e = hpack.NewEncoder(&f.h)
	_ = f.WriteSettings()
	return f
}

func (f *frames) block(fields ...string) []byte {
	f.h.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return []byte(f.h.String())
}

// until reads frames until one is so; the answer is the error that ended it.
func (f *frames) until(is func(http2.Frame) bool) error {
	for {
		x, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if is(x) {
			return nil
		}
	}
}

// What comes by HTTP/2 passes the same strict reader.
func TestHTTP2Strict(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	get := []string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/"}

	// A Content-Length that differs from the data resets the stream.
	f := h2raw(t, r.addr("in"))
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(":method", "POST", ":scheme", "http", ":authority", "x", ":path", "/", "content-length", "5"), EndHeaders: true})
	_ = f.WriteData(1, true, []byte("hello world"))
	if err := f.until(func(x http2.Frame) bool { _, is := x.(*http2.RSTStreamFrame); return is }); err != nil {
		t.Errorf("a lying Content-Length: %v", err)
	}
	// A request that HTTP/1 could not carry does not reach a backend. x/net refuses
	// some by itself, the reader of heads the others.
	for name, fields := range map[string][]string{
		"bad target": {":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/a b"},
		"bad host":   {":method", "GET", ":scheme", "http", ":authority", "x/y", ":path", "/"},
		"fragment":   {":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/a#b"},
		"CRLF":       append(get[:8:8], "a", "b\r\nc: d"),
	} {
		f := h2raw(t, r.addr("in"))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(fields...), EndHeaders: true, EndStream: true})
		if err := f.until(func(x http2.Frame) bool {
			switch x.(type) {
			case *http2.HeadersFrame, *http2.RSTStreamFrame, *http2.GoAwayFrame:
				return true
			}
			return false
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := b.take(); strings.Contains(got, "GET") {
		t.Errorf("the backend got %q", got)
	}
}

// A client of HTTP/2 that cancels a request: the backend's is cancelled, too.
func TestHTTP2Cancel(t *testing.T) {
	gone := make(chan time.Time, 1)
	s := serve(t, func(p *peer) {
		p.head()
		p.rest()
		gone <- time.Now()
	})
	r := run(t, simple("", s.addr()))
	f := h2raw(t, r.addr("in"))
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/"), EndHeaders: true, EndStream: true})
	time.Sleep(100 * time.Millisecond)
	at := time.Now()
	_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
	select {
	case end := <-gone:
		if d := end.Sub(at); d > 500*time.Millisecond {
			t.Errorf("cancelled after %v", d)
		}
	case <-time.After(3 * time.Second):
		t.Error("not cancelled")
	}
	r.quiet()
	if n := r.output("out", "client_gone"); n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// A backend that dies inside a body: the stream is reset, not ended.
func TestHTTP2Cut(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	})
	r := run(t, simple("", s.addr()))
	res, err := h2client(t).Get("http://" + r.addr("in") + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "hello" || err == nil {
		t.Errorf("%q, %v", b, err)
	}
	r.quiet()
}

// An answer that pauses for longer than a client may take to read is no client that
// does not read.
func TestHTTP2Pauses(t *testing.T) {
	t.Parallel() // it waits most of its time
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			fmt.Fprint(w, "event\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(600 * time.Millisecond)
		}
	}))
	defer srv.Close()
	r := run(t, simple(in("write_timeout = \"200ms\""), addrOf(srv)))
	res, err := h2client(t).Get("http://" + r.addr("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "event\nevent\nevent\n" || err != nil || res.ProtoMajor != 2 {
		t.Errorf("%q, %v, %s", b, err, res.Proto)
	}
	r.quiet()
}

// A stop lets requests of HTTP/2 end.
func TestHTTP2Stop(t *testing.T) {
	t.Parallel() // it waits most of its time
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(300 * time.Millisecond)
		fmt.Fprint(w, "ok")
	}))
	defer srv.Close()
	r := run(t, simple("", addrOf(srv)))
	got := make(chan string, 1)
	client, url := h2client(t), "http://"+r.addr("in")+"/"
	go func() {
		res, err := client.Get(url)
		if err != nil {
			got <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		got <- string(b)
	}()
	time.Sleep(100 * time.Millisecond)
	if err := r.stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	if b := <-got; b != "ok" {
		t.Errorf("%q", b)
	}
}

// curl, with HTTP/1.1, HTTP/2 by prior knowledge, and HTTP/2 over TLS.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("missing: curl")
	}
	srv := echo(t)
	crt, key := certificate(t, t.TempDir(), "www", "a.example")
	plain := run(t, simple("", addrOf(srv)))
	secure := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, addrOf(srv)))
	for _, c := range []struct{ flag, url, version string }{
		{"--http1.0", "http://" + plain.addr("in"), "1.1"}, {"--http1.1", "http://" + plain.addr("in"), "1.1"},
		{"--http2-prior-knowledge", "http://" + plain.addr("in"), "2"}, {"--http2", "https://" + secure.addr("in"), "2"}, {"--http1.1", "https://" + secure.addr("in"), "1.1"},
	} {
		out, err := exec.Command(curl, "-sSk", c.flag, "--data-binary", "hello", "-w", " %{http_version} %{http_code}", c.url+"/").CombinedOutput()
		if want := "hello " + c.version + " 200"; err != nil || string(out) != want {
			t.Errorf("%s %s: %q, %v, want %q", c.flag, c.url, out, err, want)
		}
	}
}
