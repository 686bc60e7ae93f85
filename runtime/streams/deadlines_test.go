package streams_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/lbgraph/lbgraph/runtime/streams"
)

// What is in flight has half a minute when the plane stops.
func TestStopTime(t *testing.T) {
	if streams.StopTime != 30*time.Second {
		t.Error(streams.StopTime)
	}
}

// A body of known length has in all its time and what it takes at the rate, whatever
// progress it makes; one of unknown length has its time from piece to piece.
func TestBodyTime(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := serve(t, func(p *peer) {
		h := p.head()
		if strings.Contains(h, "chunked") {
			for p.read(3) == "1\r\n" {
				p.read(3)
			}
			p.send(ok)
		}
		p.rest()
	})
	// A second, and one more for 1000 bytes.
	r := run(t, simple(in("body_timeout = \"1s\"\n body_rate = 1000"), s.addr()))
	const least = 1900 * time.Millisecond
	part := func(t *testing.T, name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t)
		})
	}
	t.Run("all", func(t *testing.T) {
		part(t, "known length", func(t *testing.T) {
			begun := time.Now()
			p := dial(t, r.addr("in"))
			p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
			go func(p *peer) {
				for range 500 {
					if _, err := p.Write([]byte("x")); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}(p)
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 408 ") || time.Since(begun) < least || time.Since(begun) > 8*time.Second {
				t.Errorf("%q after %v", h, time.Since(begun))
			}
		})
		part(t, "known length, HTTP/2", func(t *testing.T) {
			begun := time.Now()
			f := h2raw(t, r.addr("in"))
			_ = f.headers(1, false, h2post("content-length", "1000")...)
			ended := make(chan struct{})
			go func() {
				for i := 0; i < 500; i++ {
					select {
					case <-ended:
						return
					case <-time.After(20 * time.Millisecond):
						_ = f.WriteData(1, false, []byte("x"))
					}
				}
			}()
			if s := f.status(1); s != "408" || time.Since(begun) < least || time.Since(begun) > 8*time.Second {
				t.Errorf("HTTP/2: %s after %v", s, time.Since(begun))
			}
			close(ended)
			_ = f.p.Close()
		})
		// The largest length there is does not overflow.
		part(t, "largest length", func(t *testing.T) {
			p := dial(t, r.addr("in"))
			p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\nhello")
			if !p.silent(1500 * time.Millisecond) {
				t.Errorf("a body of 2^63 - 1 bytes: %q", p.head())
			}
			_ = p.Close()
		})
		// Unknown length: a piece every 100 ms for more than two seconds, then none.
		for _, stops := range []bool{false, true} {
			part(t, fmt.Sprintf("unknown length, stops %v", stops), func(t *testing.T) {
				p := dial(t, r.addr("in"))
				p.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
				for range 24 {
					p.send("1\r\nx\r\n")
					time.Sleep(100 * time.Millisecond)
				}
				want := "HTTP/1.1 408 "
				if !stops {
					p.send("0\r\n\r\n")
					want = "HTTP/1.1 200 "
				}
				if h := p.head(); !strings.HasPrefix(h, want) {
					t.Errorf("unknown length, stops %v: %q", stops, h)
				}
				_ = p.Close()
			})
		}
	})
	r.quiet()
}

// A proxy may give bodies of unknown length another time than the listener does, as
// calls of gRPC need whose clients say nothing for a while; those of known length keep
// theirs.
func TestUploadTime(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := serve(t, func(p *peer) {
		for strings.HasPrefix(p.head(), "POST ") {
			for got := ""; !strings.HasSuffix(got, "0\r\n\r\n"); {
				b := p.read(1)
				if got += b; len(b) != 1 {
					return
				}
			}
			p.send(ok)
		}
	})
	const short, long, pause = "200ms", "30s", 1500 * time.Millisecond
	for _, c := range []struct{ listen, proxy, want string }{{short, long, "200"}, {long, short, "408"}, {short, "0s", "408"}} {
		t.Run(fmt.Sprintf("%s, %s", c.listen, c.proxy), func(t *testing.T) {
			t.Parallel()
			r := run(t, simple(in(fmt.Sprintf("body_timeout = %q", c.listen))+out(fmt.Sprintf("upload_timeout = %q", c.proxy)), s.addr()))
			p := dial(t, r.addr("in"))
			p.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
			time.Sleep(pause)
			p.send("0\r\n\r\n")
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 "+c.want) {
				t.Errorf("%+v: %q", c, h)
			}
			_ = p.Close()
			f := h2raw(t, r.addr("in"))
			_ = f.headers(1, false, h2post()...)
			_ = f.WriteData(1, false, []byte("x"))
			time.Sleep(pause)
			_ = f.WriteData(1, true, nil)
			if s := f.status(1); s != c.want {
				t.Errorf("HTTP/2: %+v: %s", c, s)
			}
			r.quiet()
		})
	}
}

// The time of a body does not run out while its client waits for the backend's 100.
func TestBodyTimeBehindContinue(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := serve(t, func(p *peer) {
		p.head()
		time.Sleep(800 * time.Millisecond)
		p.send("HTTP/1.1 100 Continue\r\n\r\n")
		p.read(5)
		p.send(ok)
		p.rest()
	})
	r := run(t, simple(in("body_timeout = \"200ms\""), s.addr()))
	p := dial(t, r.addr("in"))
	p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 100 ") {
		t.Errorf("%q", h)
	}
	p.send("hello")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") {
		t.Errorf("%q", h)
	}
	_ = p.Close()
	r.quiet()
}

// A body of known length may pause, if only it is there in its time, also when it goes
// through the kernel.
func TestBodyMayPause(t *testing.T) {
	t.Parallel() // it waits most of its time
	const half = 2 << 20
	s := serve(t, func(p *peer) {
		p.head()
		_, _ = io.CopyN(io.Discard, p.r, 2*half)
		p.send(ok)
		p.rest()
	})
	// 40 seconds and 200 ms.
	r := run(t, simple(in("body_timeout = \"200ms\"\n body_rate = 100000"), s.addr()))
	p := dial(t, r.addr("in"))
	p.send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 2*half))
	_, _ = p.Write(make([]byte, half))
	time.Sleep(1500 * time.Millisecond)
	_, _ = p.Write(make([]byte, half))
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") {
		t.Errorf("%q", h)
	}
	_ = p.Close()
	r.quiet()
}

// The time for the head of an answer is that of the proxy on the request's way; calls
// of gRPC have none.
func TestResponseTime(t *testing.T) {
	t.Parallel() // it waits most of its time
	slow := serve(t, func(p *peer) {
		for !strings.Contains(p.head(), "«") {
			time.Sleep(700 * time.Millisecond)
			p.send(ok)
		}
	})
	r := run(t, fmt.Sprintf("pool \"web\" {\n table_size = 251\n%s}\nstream \"s\" {\n path {\n main = [in, by.short, pick, short]\n long = [by.long, pick2, long]\n}\n%s\n}\n", backends(slow.addr()),
		in("")+"node \"route\" \"by\" {\n rule \"long\" { path = [\"/long\"] }\n rule \"short\" {}\n}\n"+
			"node \"balance\" \"pick\" { pool = pool.web }\nnode \"balance\" \"pick2\" { pool = pool.web }\n"+
			"node \"proxy\" \"short\" { response_timeout = \"150ms\" }\nnode \"proxy\" \"long\" { response_timeout = \"20s\" }\n"))
	p := dial(t, r.addr("in"))
	for target, want := range map[string]string{"/": "504 504 Gateway Timeout\n", "/long": "200 ok"} {
		if got := p.get("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n"); got != want {
			t.Errorf("%s: %q", target, got)
		}
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-time.After(700 * time.Millisecond):
		case <-req.Context().Done():
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	r = run(t, simple(out("http = \"2\"\n response_timeout = \"150ms\""), addrOf(s)))
	f := h2raw(t, r.addr("in"))
	for i, c := range []struct{ typ, want string }{{"application/grpc", "200"}, {"application/grpc+proto", "200"}, {"text/plain", "504"}} {
		id := uint32(2*i + 1)
		_ = f.headers(id, false, h2post("content-type", c.typ, "te", "trailers")...)
		_ = f.WriteData(id, true, []byte("hello"))
		if got := f.status(id); got != c.want {
			t.Errorf("%s: %s", c.typ, got)
		}
	}
	_ = f.p.Close()
	r.quiet()
}

// A backend that takes the connection and no handshake of TLS is a connect time-out.
func TestHandshakeTime(t *testing.T) {
	t.Parallel() // it waits most of its time
	silent := serve(t, func(p *peer) { p.rest() })
	r := run(t, simple(out("connect_timeout = \"150ms\"\n retries = 0\n tls {}"), silent.addr()))
	p := dial(t, r.addr("in"))
	if got := p.get(get); got != "504 504 Gateway Timeout\n" || r.output("out", "connect_timeout") != 1 {
		t.Errorf("%q", got)
	}
	r.quiet()
}

// An upgraded connection ends when nothing happens on it for its time, and not while
// something does, whichever way.
func TestUpgradedIdle(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, way := range []string{"/there", "/back"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			ended := make(chan time.Time, 1)
			s := serve(t, func(p *peer) {
				back := strings.Contains(p.head(), "GET /back")
				p.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
				for range 20 {
					time.Sleep(100 * time.Millisecond)
					if back {
						p.send("x")
					}
				}
				p.rest()
				ended <- time.Now()
			})
			r := run(t, simple(in("write_timeout = \"200ms\"\n idle_timeout = \"200ms\"")+out("idle_timeout = \"1500ms\"\n response_timeout = \"200ms\""), s.addr()))
			p := dial(t, r.addr("in"))
			p.send("GET " + way + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 101 ") {
				t.Fatalf("%q", h)
			}
			for range 20 {
				if way == "/there" {
					p.send("x")
					time.Sleep(100 * time.Millisecond)
				} else if got := p.read(1); got != "x" {
					t.Fatalf("%s: %q", way, got)
				}
			}
			last := time.Now()
			select {
			case at := <-ended:
				if d := at.Sub(last); d < 700*time.Millisecond {
					t.Errorf("%s: ended after %v", way, d)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s: it stays", way)
			}
			if got := p.rest(); strings.Contains(got, "time-out") {
				t.Errorf("%s: %q", way, got)
			}
			r.quiet()
		})
	}
}

// Each piece of a body is at the other side before the next one is sent, both ways at
// the same time.
func TestPiecesBothWays(t *testing.T) {
	s := serve(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			size := p.read(3)
			if size != "1\r\n" {
				break
			}
			p.send(size + p.read(3))
		}
		p.send("0\r\n\r\n")
	})
	r := run(t, simple("", s.addr()))
	p := dial(t, r.addr("in"))
	p.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200 ") {
		t.Fatalf("%q", h)
	}
	for i := range 5 {
		piece := fmt.Sprintf("1\r\n%d\r\n", i)
		p.send(piece)
		if got := p.read(6); got != piece {
			t.Fatalf("%d: %q", i, got)
		}
	}
	p.send("0\r\n\r\n")
	if got := p.read(5); got != "0\r\n\r\n" {
		t.Errorf("%q", got)
	}
	_ = p.Close()
	f := h2raw(t, r.addr("in"))
	_ = f.headers(1, false, h2post()...)
	for i := range 5 {
		piece := fmt.Sprint(i)
		_ = f.WriteData(1, false, []byte(piece))
		var got string
		if err := f.until(func(x http2.Frame) bool {
			d, is := x.(*http2.DataFrame)
			if is {
				got = string(d.Data())
			}
			return is && len(d.Data()) > 0
		}); err != nil || got != piece {
			t.Fatalf("HTTP/2: %d: %q, %v", i, got, err)
		}
	}
	_ = f.WriteData(1, true, nil)
	if err := f.until(func(x http2.Frame) bool { d, is := x.(*http2.DataFrame); return is && d.StreamEnded() }); err != nil {
		t.Errorf("HTTP/2: %v", err)
	}
	_ = f.p.Close()
	r.quiet()
}

// An answer may take any time as long as it makes progress; one that stops is cut off.
func TestAnswerProgress(t *testing.T) {
	t.Parallel() // it waits most of its time
	pieces := func(stops bool, send func()) {
		for range 8 {
			time.Sleep(300 * time.Millisecond)
			send()
		}
		if stops {
			time.Sleep(20 * time.Second)
		}
	}
	h1 := serve(t, func(p *peer) {
		h := p.head()
		stops := strings.HasPrefix(h, "GET /stops")
		if strings.Contains(h, "/chunks") {
			p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			pieces(stops, func() { p.send("1\r\nx\r\n") })
			p.send("0\r\n\r\n")
			return
		}
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
		pieces(stops, func() {
			if !stops {
				p.send("x")
			}
		})
	})
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", "9")
		stops := strings.HasPrefix(req.URL.Path, "/stops")
		for range 8 {
			w.(http.Flusher).Flush()
			time.Sleep(300 * time.Millisecond)
			fmt.Fprint(w, "x")
		}
		w.(http.Flusher).Flush()
		if stops {
			<-req.Context().Done()
		}
		fmt.Fprint(w, "x")
	}))
	h2.Config.Protocols = new(http.Protocols)
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	t.Cleanup(h2.Close)
	const args = "body_timeout = \"1500ms\"\n response_timeout = \"1500ms\"\n write_timeout = \"1500ms\""
	one, two := run(t, simple(in("write_timeout = \"1500ms\"")+out(args), h1.addr())), run(t, simple(in("write_timeout = \"1500ms\"")+out(args+"\n http = \"2\""), addrOf(h2)))
	t.Run("all", func(t *testing.T) {
		for _, target := range []string{"/goes-on", "/goes-on/chunks", "/stops", "/stops/chunks"} {
			for name, r := range map[string]*rig{"HTTP/1": one, "HTTP/2": two} {
				t.Run(name+target, func(t *testing.T) {
					t.Parallel()
					p := dial(t, r.addr("in"))
					p.send("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
					h := p.head()
					body := p.rest()
					whole := strings.Count(body, "x") >= 8 && (!strings.Contains(h, "chunked") || strings.HasSuffix(body, "0\r\n\r\n"))
					if name == "HTTP/2" {
						whole = strings.Count(body, "x") == 9
					}
					if !strings.HasPrefix(h, "HTTP/1.1 200 ") || whole == strings.HasPrefix(target, "/stops") || strings.Contains(body, "time-out") {
						t.Errorf("%q, %q", h, body)
					}
				})
			}
		}
	})
	for name, r := range map[string]*rig{"HTTP/1": one, "HTTP/2": two} {
		r.quiet()
		if n := r.output("out", "cut"); n != 2 {
			t.Errorf("%s: %d are cut off", name, n)
		}
	}
}

// A client of HTTP/2 that opens no window, or does not read at all, is given up; one
// that opens it slowly is not.
func TestHTTP2Progress(t *testing.T) {
	t.Parallel() // it waits most of its time
	big := strings.Repeat("x", 1<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, big) }))
	t.Cleanup(srv.Close)
	r := run(t, simple(in("write_timeout = \"2s\""), addrOf(srv)))
	f := h2raw(t, r.addr("in"))
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 16_000})
	_ = f.headers(1, true, h2get...)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	begun, last := time.Now(), time.Now()
	n, ended := 0, false
	err := f.until(func(x http2.Frame) bool {
		switch x := x.(type) {
		case *http2.DataFrame:
			n += int(x.Length)
			// A window every 400 ms for five seconds, then none.
			if d := time.Since(begun); d < 5*time.Second {
				time.Sleep(400 * time.Millisecond)
				_ = f.WriteWindowUpdate(1, x.Length)
				_ = f.WriteWindowUpdate(0, x.Length)
				last = time.Now()
			}
			ended = x.StreamEnded()
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return true
		}
		return ended
	})
	if ended || isTimeout(err) || last.Sub(begun) < 4*time.Second || time.Since(last) < 300*time.Millisecond || n < 40_000 {
		t.Errorf("%d bytes in %v, the last at %v, %v", n, time.Since(begun), last.Sub(begun), err)
	}
	_ = f.p.Close()
	r.quiet()
}

// A long body that stops coming is cut off at its time, whichever way it goes.
func TestLongAnswerStops(t *testing.T) {
	t.Parallel() // it waits most of its time
	quit := make(chan struct{})
	s := serve(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + strings.Repeat("x", 2_000_000))
		<-quit
	})
	defer close(quit)
	r := run(t, simple(out("body_timeout = \"1s\""), s.addr()))
	p := dial(t, r.addr("in"))
	p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	p.head()
	if got := p.read(4_000_000); len(got) != 2_000_000+len("«end»") || !strings.HasSuffix(got, "x«end»") {
		t.Errorf("%d bytes, %q", len(got), got[max(0, len(got)-20):])
	}
	r.quiet()
	if n := r.output("out", "cut"); n != 1 {
		t.Errorf("counted %d times", n)
	}
}
