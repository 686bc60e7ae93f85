package streams_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2post answers the fields of a POST with further ones.
func h2post(more ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":authority", "x", ":path", "/"}, more...)
}

var h2get = []string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/"}

func (f *frames) headers(id uint32, end bool, fields ...string) error {
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block(fields...), EndHeaders: true, EndStream: end})
}

// status reads the next head on a stream and answers its status, or how the stream or
// the connection ended.
func (f *frames) status(id uint32) string {
	if f.ReadMetaHeaders == nil {
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	}
	text := ""
	err := f.until(func(x http2.Frame) bool {
		switch x := x.(type) {
		case *http2.MetaHeadersFrame:
			text = x.PseudoValue("status")
		case *http2.RSTStreamFrame:
			text = x.ErrCode.String()
		case *http2.GoAwayFrame:
			text = x.ErrCode.String()
			return true
		}
		return text != "" && x.Header().StreamID == id
	})
	if err != nil {
		return short(err)
	}
	return text
}

// Frames without content are bounded, whoever sends them and reads what comes back:
// PING, SETTINGS, cancelled requests, CONTINUATION, with content and without.
func TestHTTP2Floods(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple("", b.addr()))
	for _, c := range []struct {
		name  string
		begin func(f *frames)
		send  func(f *frames, i uint32) error
	}{
		{"PING", nil, func(f *frames, i uint32) error { return f.WritePing(false, [8]byte{byte(i)}) }},
		{"PING of answers", nil, func(f *frames, i uint32) error { return f.WritePing(true, [8]byte{byte(i)}) }},
		{"SETTINGS", nil, func(f *frames, i uint32) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535 + i%2})
		}},
		{"PRIORITY", nil, func(f *frames, i uint32) error {
			return f.WritePriority(2*i+1, http2.PriorityParam{Weight: uint8(i)})
		}},
		{"WINDOW_UPDATE", nil, func(f *frames, i uint32) error { return f.WriteWindowUpdate(0, 1) }},
		{"unknown", nil, func(f *frames, i uint32) error { return f.WriteRawFrame(0x77, 0, 0, []byte("hello")) }},
		{"empty DATA", func(f *frames) { _ = f.headers(1, false, h2post()...) },
			func(f *frames, i uint32) error { return f.WriteData(1, false, nil) }},
		{"empty CONTINUATION", func(f *frames) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(h2get...), EndStream: true})
		}, func(f *frames, i uint32) error { return f.WriteContinuation(1, false, nil) }},
		{"CONTINUATION", func(f *frames) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(h2get...), EndStream: true})
		}, func(f *frames, i uint32) error {
			return f.WriteContinuation(1, false, f.block("a", strings.Repeat("x", 1000)))
		}},
		{"rapid reset", nil, func(f *frames, i uint32) error {
			if err := f.headers(2*i+1, true, h2get...); err != nil {
				return err
			}
			return f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
	} {
		f := h2raw(t, r.addr("in"))
		if c.begin != nil {
			c.begin(f)
		}
		ended := make(chan struct{})
		go func() { // it reads all that comes: nothing piles up
			defer close(ended)
			_ = f.until(func(x http2.Frame) bool { _, is := x.(*http2.GoAwayFrame); return is })
		}()
		const most = 100_000
		i, err := uint32(0), error(nil)
		for ; i < most && err == nil; i++ {
			err = c.send(f, i)
			select {
			case <-ended:
				err = io.EOF
			default:
			}
		}
		if i == most {
			t.Errorf("%s: %d frames are taken", c.name, i)
		}
		_ = f.p.Close()
		r.quiet()
	}
	if n := strings.Count(b.take(), "GET "); n > 3000 {
		t.Errorf("%d requests that were cancelled reached the backend", n)
	}
}

// Cancelled requests whose backend is slow stay few, too.
func TestHTTP2RapidReset(t *testing.T) {
	var asked atomic.Int64
	slow := serve(t, func(p *peer) { asked.Add(1); p.rest() })
	r := run(t, simple(in("http2_streams = 10"), slow.addr()))
	f := h2raw(t, r.addr("in"))
	var err error
	most := int64(0)
	for id := uint32(1); id < 20_000 && err == nil; id += 2 {
		if err = f.headers(id, true, h2get...); err == nil {
			err = f.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		most = max(most, r.engine.Stats()[0].Active)
	}
	if err == nil {
		err = f.until(func(x http2.Frame) bool { return false })
	}
	if isTimeout(err) || most > 10 || asked.Load() > 2000 {
		t.Errorf("%v; %d requests in flight, %d at the backend", err, most, asked.Load())
	}
	_ = f.p.Close()
	r.quiet()
	if b := r.engine.Stats()[0].Backends[0]; b.Failures != 0 {
		t.Errorf("the backend is blamed %d times", b.Failures)
	}
}

// Who gets answers may send as many frames without content as go with them.
func TestHTTP2Chatter(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(big)))
		fmt.Fprint(w, big)
	}))
	defer srv.Close()
	b := record(t, ok)
	large, small := run(t, simple("", addrOf(srv))), run(t, simple("", b.addr()))
	// A window of 100 bytes, opened again for each piece, with a PING.
	f := h2raw(t, large.addr("in"))
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	_ = f.headers(1, true, h2get...)
	n := 0
	for n < 300_000 {
		if err := f.until(func(x http2.Frame) bool {
			d, is := x.(*http2.DataFrame)
			if is {
				n += int(d.Length)
				_ = f.WriteWindowUpdate(0, d.Length)
				_ = f.WriteWindowUpdate(1, d.Length)
				_ = f.WritePing(false, [8]byte{})
			}
			return is
		}); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	_ = f.p.Close()
	// Small requests, with a PING and a WINDOW_UPDATE for each, one after the other.
	f = h2raw(t, small.addr("in"))
	for i := range uint32(3000) {
		_ = f.headers(2*i+1, true, h2get...)
		_ = f.WritePing(false, [8]byte{})
		_ = f.WriteWindowUpdate(0, 2)
		if err := f.until(func(x http2.Frame) bool {
			return x.Header().Flags.Has(http2.FlagDataEndStream) && x.Header().StreamID == 2*i+1
		}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if i%100 == 0 {
			_ = f.p.SetDeadline(time.Now().Add(20 * time.Second))
		}
	}
	_ = f.p.Close()
	small.quiet()
}

// A hundred requests at once on a connection, and no more; a head up to its limit, and
// no larger.
func TestHTTP2Bounds(t *testing.T) {
	t.Parallel() // it waits most of its time
	hold := make(chan struct{})
	var now atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now.Add(1)
		<-hold
	}))
	defer srv.Close()
	defer sync.OnceFunc(func() { close(hold) })()
	r := run(t, simple(out("response_timeout = \"1m\""), addrOf(srv)))
	told := func(f *frames) map[http2.SettingID]uint32 {
		settings := map[http2.SettingID]uint32{}
		if err := f.until(func(x http2.Frame) bool {
			s, is := x.(*http2.SettingsFrame)
			if is {
				_ = s.ForeachSetting(func(s http2.Setting) error { settings[s.ID] = s.Val; return nil })
			}
			return is
		}); err != nil {
			t.Fatal(err)
		}
		return settings
	}
	f := h2raw(t, r.addr("in"))
	settings := told(f)
	// net/http says a little more than it was told, for what fields cost beside bytes.
	if n, h := settings[http2.SettingMaxConcurrentStreams], settings[http2.SettingMaxHeaderListSize]; n != 100 || h < 32<<10 || h > 34<<10 {
		t.Errorf("%d streams, heads of %d bytes", n, h)
	}
	for i := range uint32(100) {
		_ = f.headers(2*i+1, true, h2get...)
	}
	eventually(t, "a hundred are in flight", func() error {
		if n := now.Load(); n != 100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	_ = f.headers(201, true, h2get...)
	if s := f.status(201); s != "REFUSED_STREAM" && s != "PROTOCOL_ERROR" {
		t.Errorf("one more: %s", s)
	}
	if n := now.Load(); n != 100 {
		t.Errorf("%d at the backend", n)
	}
	_ = f.p.Close()
	// Heads.
	b := record(t, ok)
	r = run(t, simple(in("max_head = 8192\n max_field = 8192\n http2_streams = 7"), b.addr()))
	settings = told(h2raw(t, r.addr("in")))
	if n, h := settings[http2.SettingMaxConcurrentStreams], settings[http2.SettingMaxHeaderListSize]; n != 7 || h < 8<<10 || h > 10<<10 {
		t.Errorf("%d streams, heads of %d bytes", n, h)
	}
	for _, c := range []struct{ n, want string }{{"1000", "200"}, {"7000", "200"}, {"9000", ""}, {"60000", ""}} {
		var n int
		fmt.Sscan(c.n, &n)
		f := h2raw(t, r.addr("in"))
		fields := append([]string{}, h2get...)
		for ; n > 0; n -= 1000 {
			fields = append(fields, fmt.Sprint("a-", n), strings.Repeat("x", 960))
		}
		block := f.block(fields...)
		first := block[:min(len(block), 16000)]
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: len(first) == len(block), EndStream: true})
		for rest := block[len(first):]; len(rest) > 0; {
			k := min(len(rest), 16000)
			_ = f.WriteContinuation(1, k == len(rest), rest[:k])
			rest = rest[k:]
		}
		got := f.status(1)
		if c.want != "" && got != c.want || c.want == "" && got == "200" {
			t.Errorf("a head of %s bytes: %s", c.n, got)
		}
		if seen := strings.Contains(b.take(), "GET"); seen != (c.want == "200") {
			t.Errorf("a head of %s bytes reaches the backend: %v", c.n, seen)
		}
		_ = f.p.Close()
	}
}

// What has begun has to go on: the preface behind TLS, a header block.
func TestHTTP2Slowloris(t *testing.T) {
	t.Parallel() // it waits most of its time
	b := record(t, ok)
	crt, key := certificate(t, t.TempDir(), "www", "a")
	plain := run(t, simple(in("header_timeout = \"150ms\""), b.addr()))
	secure := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"\n header_timeout = \"150ms\"")+tlsNode("", crt, key)+pick, b.addr()))
	ended := func(name string, r *rig, p *peer) {
		t.Helper()
		begun := time.Now()
		if got := p.rest(); strings.Contains(got, "time-out") {
			t.Errorf("%s: it stays", name)
		}
		if d := time.Since(begun); d < 100*time.Millisecond {
			t.Errorf("%s: closed after %v", name, d)
		}
		r.quiet()
	}
	for _, first := range []string{"", "PRI", "PRI * HTTP/2.0\r\n\r\nSM\r\n"} {
		c, err := tls.Dial("tcp", secure.addr("in"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		p := newPeer(t, c)
		p.send(first)
		ended(fmt.Sprintf("preface %q", first), secure, p)
	}
	p := dial(t, plain.addr("in"))
	p.send("PRI * HTTP/2.0\r\n")
	ended("half a preface", plain, p)
	f := h2raw(t, plain.addr("in"))
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(h2get...), EndStream: true})
	ended("a header block that does not end", plain, f.p)
	f = h2raw(t, plain.addr("in"))
	block := string(f.block(append(h2get[:8:8], "a", "b")...))
	f.p.send("\x00\x00" + string(rune(len(block))) + "\x01\x05\x00\x00\x00\x01" + block[:len(block)-2])
	ended("a frame that does not end", plain, f.p)
	// A drip of it is no better.
	f = h2raw(t, plain.addr("in"))
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(h2get...), EndStream: true})
	go func(f *frames) {
		for f.WriteContinuation(1, false, f.block("a", "b")) == nil {
			time.Sleep(30 * time.Millisecond)
		}
	}(f)
	ended("a drip of a header block", plain, f.p)
	if got := b.take(); got != "" {
		t.Errorf("the backend got %q", got)
	}
	// A connection with a request in hand, or idle, is left alone.
	f = h2raw(t, plain.addr("in"))
	for id := uint32(1); id < 6; id += 2 {
		_ = f.headers(id, true, h2get...)
		if s := f.status(id); s != "200" {
			t.Errorf("request %d: %s", id, s)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// HTTP/2: one 100 (Continue), the backend's own, and none before; a refusal instead
// of it; a backend that does not know of it gets the body all the same.
func TestHTTP2Continue(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, version := range []string{"1.1", "2"} {
		for _, c := range []struct{ name, want string }{
			{"100", "103 100 200"}, {"refuses", "417"}, {"ignores", "100 200"},
		} {
			heads := make(chan string, 1)
			more := make(chan struct{})
			var addr string
			if version == "1.1" {
				addr = serve(t, func(p *peer) {
					heads <- p.head()
					switch c.name {
					case "100":
						<-more
						p.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
					case "refuses":
						<-more
						p.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno")
						p.rest()
						return
					}
					if got := p.read(5); got != "hello" {
						t.Errorf("the backend got %q", got)
					}
					p.send(ok)
					p.rest()
				}).addr()
			} else {
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					heads <- "Expect: 100-continue\r\n" // net/http takes it away
					if c.name != "ignores" {
						<-more
					}
					if c.name == "refuses" {
						w.WriteHeader(417)
						return
					}
					if got, _ := io.ReadAll(req.Body); string(got) != "hello" {
						t.Errorf("the backend got %q", got)
					}
				}))
				s.Config.Protocols = new(http.Protocols)
				s.Config.Protocols.SetUnencryptedHTTP2(true)
				s.Start()
				t.Cleanup(s.Close)
				addr = addrOf(s)
			}
			r := run(t, simple(out(fmt.Sprintf("http = %q", version)), addr))
			f := h2raw(t, r.addr("in"))
			_ = f.headers(1, false, h2post("expect", "100-continue", "content-length", "5")...)
			select {
			case h := <-heads:
				if !strings.Contains(h, "Expect: 100-continue\r\n") {
					t.Errorf("%s from HTTP/%s: the backend got %q", c.name, version, h)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s from HTTP/%s: nothing comes to the backend", c.name, version)
			}
			// Nothing comes before the backend says so.
			f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			var got []string
			read := make(chan struct{})
			go func() {
				defer close(read)
				_ = f.until(func(x http2.Frame) bool {
					if h, is := x.(*http2.MetaHeadersFrame); is {
						got = append(got, h.PseudoValue("status"))
						select {
						case <-more:
						default:
							if c.name != "ignores" {
								t.Errorf("%s from HTTP/%s: %v before the backend says so", c.name, version, got)
							}
						}
						if h.PseudoValue("status") == "100" {
							_ = f.WriteData(1, true, []byte("hello"))
						}
						return h.PseudoValue("status") >= "200"
					}
					return false
				})
			}()
			if c.name != "ignores" {
				time.Sleep(100 * time.Millisecond)
			}
			close(more)
			<-read
			want := c.want
			if version == "2" { // net/http says no 100 behind a 103
				want = strings.TrimPrefix(want, "103 ")
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("%s from HTTP/%s: %s, want %s", c.name, version, s, want)
			}
			_ = f.p.Close()
			r.quiet()
		}
	}
}
