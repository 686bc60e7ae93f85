package flood

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func base(target string) Config {
	return Config{Target: target, Connections: 8, Timeout: 20 * time.Second}
}

func mustRun(t *testing.T, ctx context.Context, c Config) *Result {
	t.Helper()
	r, err := Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != r.Answered+r.Failed+r.BrokenOff {
		t.Errorf("%d requests, but %d answered, %d failed, %d broken off", r.Requests, r.Answered, r.Failed, r.BrokenOff)
	}
	if n := total(r.AnsweredBy); n != r.Answered {
		t.Errorf("%d answered, but by name %d", r.Answered, n)
	}
	if n := total(r.Errors); n != r.Failed {
		t.Errorf("%d failed, but by kind %d: %v", r.Failed, n, r.Errors)
	}
	return r
}

func total(m map[string]int64) (n int64) {
	for _, x := range m {
		n += x
	}
	return n
}

// site is a server that counts requests and connections, and answers with one of two
// names in turn.
type site struct {
	*httptest.Server
	requests, conns atomic.Int64
}

func newSite(t *testing.T, h http.HandlerFunc) *site {
	s := &site{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.requests.Add(1)
		w.Header().Set("Server", fmt.Sprintf("s-%d", n%2))
		w.Header().Set("X-Other", "other")
		if h != nil {
			h(w, r)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// Of a number of requests exactly that number is sent, on as many connections as are
// asked for at most, or on one each; every answer and its bytes are counted.
func TestCounts(t *testing.T) {
	s := newSite(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %d\n", r.Method, r.Host, r.Header.Get("X-Mine"), len(b))
	})
	for _, c := range []struct {
		name   string
		change func(*Config)
		answer string
	}{
		{"keep-alive", func(*Config) {}, "GET " + s.Listener.Addr().String() + "  0\n"},
		{"per request", func(c *Config) { c.PerRequest = true }, "GET " + s.Listener.Addr().String() + "  0\n"},
		{"rate", func(c *Config) { c.Rate = 5000 }, "GET " + s.Listener.Addr().String() + "  0\n"},
		{"bodies", func(c *Config) { c.Size, c.Host, c.Fields = 20_000, "a.example", []string{"X-Mine: yes"} }, "POST a.example yes 20000\n"},
		{"put", func(c *Config) { c.Method, c.By = "PUT", "X-Other" }, "PUT " + s.Listener.Addr().String() + "  0\n"},
		{"head", func(c *Config) { c.Method = "HEAD" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 1001
			s.requests.Store(0)
			s.conns.Store(0)
			x := base(s.URL)
			x.Requests = n
			c.change(&x)
			r := mustRun(t, t.Context(), x)
			if r.Answered != n || s.requests.Load() != n || r.Received != n*int64(len(c.answer)) || r.Latency.Count != n || !r.OK() || r.Interrupted {
				t.Errorf("%d requests reached the server; %+v", s.requests.Load(), r)
			}
			by := map[string]int64{"s-0": 500, "s-1": 501}
			if x.By != "" {
				by = map[string]int64{"other": n}
			}
			if !maps.Equal(r.AnsweredBy, by) {
				t.Errorf("answered by %v", r.AnsweredBy)
			}
			if o := r.Opened; o != s.conns.Load() || x.PerRequest && o != n || !x.PerRequest && o > 8 {
				t.Errorf("%d connections opened, %d at the server", o, s.conns.Load())
			}
			if r.Latency.FromDue != (x.Rate > 0) {
				t.Errorf("%+v", r.Latency)
			}
			p := r.Latency.Percentiles
			if !slices.IsSortedFunc(p, func(a, b Percentile) int { return int((a.Ms - b.Ms) * 1e6) }) || p[0].Ms < r.Latency.Min || p[len(p)-1].Ms > r.Latency.Max {
				t.Errorf("%+v", r.Latency)
			}
		})
	}
	x := base(s.URL)
	x.Requests = 1
	s.conns.Store(0)
	if r := mustRun(t, t.Context(), x); r.Opened != 1 || s.conns.Load() != 1 {
		t.Errorf("for one request %d connections", s.conns.Load())
	}
}

// A duration ends a closed loop, and at a fixed rate tells how many are due: all of
// them are sent.
func TestDuration(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := newSite(t, nil)
	c := base(s.URL)
	c.Duration = 300 * time.Millisecond
	begun := time.Now()
	r := mustRun(t, t.Context(), c)
	if took := time.Since(begun); !r.OK() || r.Answered != s.requests.Load() || r.Answered == 0 || took < c.Duration || r.Seconds < c.Duration.Seconds() || took > 30*time.Second {
		t.Errorf("after %v: %d requests reached the server; %+v", took, s.requests.Load(), r)
	}
	s.requests.Store(0)
	c.Rate = 200
	r = mustRun(t, t.Context(), c)
	if r.Answered != 60 || s.requests.Load() != 60 || !r.OK() || r.Seconds < 0.29 {
		t.Errorf("%d requests reached the server; %+v", s.requests.Load(), r)
	}
	c.Requests = 10 // comes first
	if r = mustRun(t, t.Context(), c); r.Answered != 10 {
		t.Errorf("%+v", r)
	}
}

// A server that stands still once: at a fixed rate all that was due meanwhile waited
// for it, and the percentiles say so; a closed loop shows the one request alone.
func TestCoordinatedOmission(t *testing.T) {
	t.Parallel() // it waits most of its time
	const still = 800 * time.Millisecond
	var once atomic.Bool
	s := newSite(t, func(http.ResponseWriter, *http.Request) {
		if once.CompareAndSwap(false, true) {
			time.Sleep(still)
		}
	})
	c := base(s.URL)
	c.Connections, c.Requests = 1, 200
	r := mustRun(t, t.Context(), c)
	at := func(p float64) float64 {
		i := slices.IndexFunc(r.Latency.Percentiles, func(x Percentile) bool { return x.P == p })
		return r.Latency.Percentiles[i].Ms
	}
	if at(99.99) < 790 {
		t.Errorf("closed loop: %+v", r.Latency)
	}
	closed := at(90)
	once.Store(false)
	c.Rate = 200 // a second in all, and nothing for the most of it
	r = mustRun(t, t.Context(), c)
	// Those due in the middle of the standstill waited for half of it.
	if at(75) < 400 || at(50) < 200 || at(75) < closed || !r.OK() {
		t.Errorf("fixed rate: %+v; 90 %% of the closed loop %g ms", r.Latency, closed)
	}
}

// What a server is too slow for is told: due, not sent, and its wait counts.
func TestNotSent(t *testing.T) {
	t.Parallel() // it waits most of its time
	release := make(chan struct{})
	s := newSite(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	c := base(s.URL)
	c.Connections, c.Rate, c.Duration, c.Timeout = 2, 100, time.Second, 300*time.Millisecond
	begun := time.Now()
	r := mustRun(t, t.Context(), c)
	if r.OK() || r.Answered > 0 || r.Requests+r.NotSent != 100 || r.NotSent == 0 || r.Errors["timed out"] != r.Failed || r.Failed == 0 || r.Latency.Count != 100 || r.Latency.Percentiles[0].Ms < 300 {
		t.Errorf("%+v", r)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// What was due is given up once, by whoever comes first, also when others have asked for
// more than there was.
func TestGiveUpOnce(t *testing.T) {
	c := base("http://127.0.0.1:1/")
	c.Rate = 100
	f := &flood{Config: c, start: time.Now().Add(-time.Second), total: 10}
	s := &shard{hist: newHistogram()}
	f.next.Store(4)
	for k, want := range []int64{7, 8, 9} { // six that nobody took, and one of each that gives up
		(&worker{flood: f, shard: s}).giveUp(int64(k))
		if n := f.notSent.Load(); n != want || s.hist.TotalCount() != want {
			t.Errorf("%d are not sent, %d latencies, want %d", n, s.hist.TotalCount(), want)
		}
		f.next.Add(2)
	}
}

// A server that breaks a connection off while a request is sent is told from one that
// closes it.
func TestResetWhileSending(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.ReadFull(c, make([]byte, 1000))
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}()
		}
	}()
	c := base("http://" + l.Addr().String() + "/")
	c.Requests, c.Size = 20, 32<<20
	if r := mustRun(t, t.Context(), c); r.Failed != 20 || !maps.Equal(r.Errors, map[string]int64{"connection reset": 20}) {
		t.Errorf("%+v", r)
	}
}

// The end of the context ends it, well, and what was under way is told.
func TestInterrupted(t *testing.T) {
	var seen sync.WaitGroup
	seen.Add(8)
	s := newSite(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			seen.Done()
			<-r.Context().Done()
		}
	})
	for _, c := range []struct {
		path string
		rate float64
	}{{"/", 0}, {"/", 50}, {"/hang", 0}} {
		s.requests.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if c.path == "/hang" {
				seen.Wait()
			} else {
				for s.requests.Load() < 5 {
					time.Sleep(time.Millisecond)
				}
			}
			cancel()
		}()
		x := base(s.URL + c.path)
		x.Duration, x.Rate, x.Timeout = time.Hour, c.rate, 10*time.Minute
		r := mustRun(t, ctx, x)
		if !r.Interrupted || !r.OK() || r.Requests == 0 || r.NotSent > 0 || c.path == "/hang" && r.BrokenOff != 8 {
			t.Errorf("%v: %+v", c, r)
		}
	}
}

// raw is a server that does with each connection what a test says.
func raw(t *testing.T, f func(c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c, bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().String()
}

func head(r *bufio.Reader) bool {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		if line == "\r\n" {
			return true
		}
	}
}

// Errors have kinds; a request is never sent a second time.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ answer, kind string }{
		{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "status 503"},
		{"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", "status 404"},
		{"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n", ""},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", ""},
		{"HTTP/1.0 200 OK\r\n\r\nuntil the end", ""},
		{"", "closed without an answer"},
		{"HTTP/1.1 200 OK\r\n", "answer cut"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "answer cut"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "answer cut"},
		{"nonsense\r\n\r\n", "malformed answer"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", "bytes behind the answer"},
	} {
		var asked atomic.Int64
		addr := raw(t, func(w net.Conn, r *bufio.Reader) {
			for head(r) {
				asked.Add(1)
				_, _ = io.WriteString(w, c.answer)
				if !strings.Contains(c.answer, "0\r\n\r\n") || c.kind == "" && strings.Contains(c.answer, "1.0") {
					return
				}
			}
		})
		x := base(addr)
		x.Connections, x.Requests = 2, 20
		r := mustRun(t, t.Context(), x)
		want := map[string]int64{c.kind: 20}
		if c.kind == "" {
			want = map[string]int64{}
		}
		if !maps.Equal(r.Errors, want) || asked.Load() != 20 || r.Requests != 20 {
			t.Errorf("%q: asked %d times; %+v", c.answer, asked.Load(), r)
		}
	}
}

// A connection that the server closed while it was idle is opened again, without an error.
func TestReopens(t *testing.T) {
	t.Parallel() // it waits most of its time
	addr := raw(t, func(w net.Conn, r *bufio.Reader) {
		if head(r) {
			_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") // and closes without having said so
		}
	})
	c := base(addr)
	c.Connections, c.Rate, c.Requests = 1, 5, 5
	if r := mustRun(t, t.Context(), c); !r.OK() || r.Opened != 5 || r.Reopened != 4 {
		t.Errorf("%+v", r)
	}
}

// Lines of TCP come back, with and without a name; another's line is noticed.
func TestTCP(t *testing.T) {
	var lines atomic.Int64
	for _, name := range []string{"", "echo-1"} {
		lines.Store(0)
		addr := raw(t, func(c net.Conn, r *bufio.Reader) {
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				lines.Add(1)
				_, _ = io.WriteString(c, strings.TrimPrefix(name+" ", " ")+line)
			}
		})
		for _, per := range []bool{false, true} {
			for _, size := range []int{1, 64, MaxLine} {
				lines.Store(0)
				c := base("tcp://" + addr)
				c.Requests, c.PerRequest, c.Size = 300, per, size
				r := mustRun(t, t.Context(), c)
				if !r.OK() || r.Answered != 300 || lines.Load() != 300 || r.AnsweredBy[name] != 300 || r.Sent != 300*int64(size) || per && r.Opened != 300 || !per && r.Opened > 8 {
					t.Errorf("%q, %d bytes, %v: %d lines; %+v", name, size, per, lines.Load(), r)
				}
			}
		}
	}
	for answer, kind := range map[string]string{"another\n": "another answer than what was sent", "half": "answer cut", "": "closed without an answer"} {
		addr := raw(t, func(c net.Conn, r *bufio.Reader) {
			_, _ = r.ReadString('\n')
			_, _ = io.WriteString(c, answer)
		})
		c := base("tcp://" + addr)
		c.Requests, c.Size = 5, 64
		if r := mustRun(t, t.Context(), c); r.Errors[kind] != 5 {
			t.Errorf("%q: %v", answer, r.Errors)
		}
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS.ServerName) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := base(s.URL)
	c.Requests, c.Insecure, c.Host = 50, true, "a.example:8443"
	if r := mustRun(t, t.Context(), c); !r.OK() || r.Received != 50*int64(len("a.example")) {
		t.Errorf("%+v", r)
	}
	c.Insecure = false
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("%v", err)
	}
}

// A server that dies under way: its end is counted, and the run ends at its bound.
func TestServerDies(t *testing.T) {
	t.Parallel() // it waits most of its time
	s := newSite(t, nil)
	c := base(s.URL)
	c.Duration, c.Every = 500*time.Millisecond, 10*time.Millisecond
	var last Progress
	c.Watch = func(p Progress) {
		if last.Answered == 0 && p.Answered > 100 {
			go s.Close()
		}
		if p.Answered > 100 {
			last = p
		}
		if p.Ended < last.Ended || p.Of != c.Duration || p.OfEnded != 0 {
			t.Errorf("%+v behind %+v", p, last)
		}
	}
	r := mustRun(t, t.Context(), c)
	if r.OK() || r.Errors["connection refused"] == 0 || r.Answered < 100 {
		t.Errorf("%+v", r)
	}
}

// Nobody listens; a name that there is not; a run that is ended before it begins.
func TestCannotBegin(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	c := base(addr)
	c.Requests = 1
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "nobody listens on "+addr) {
		t.Errorf("%v", err)
	}
	c.Target = "http://there-is-no-such-host.invalid/"
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Target = addr
	if _, err := Run(ctx, c); err == nil || err.Error() != "interrupted" {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	for words, change := range map[string]func(*Config){
		"no address":          func(c *Config) { c.Target = "http://" },
		"http, https or tcp":  func(c *Config) { c.Target = "ftp://127.0.0.1/" },
		"a user":              func(c *Config) { c.Target = "http://u:p@127.0.0.1/" },
		"tcp://HOST:PORT":     func(c *Config) { c.Target = "tcp://127.0.0.1" },
		"the target is TCP":   func(c *Config) { c.Target, c.Size, c.Host = "tcp://127.0.0.1:1", 64, "a" },
		"size is -1":          func(c *Config) { c.Size = -1 },
		"1 to 16384 with TCP": func(c *Config) { c.Target, c.Size = "tcp://127.0.0.1:1", MaxLine+1 },
		"connections are 0":   func(c *Config) { c.Connections = 0 },
		"rate is -1":          func(c *Config) { c.Rate = -1 },
		"duration is":         func(c *Config) { c.Duration = -1 },
		"requests are":        func(c *Config) { c.Requests = MaxRequests + 1 },
		"has to bound it":     func(c *Config) { c.Requests = 0 },
		"timeout is 0s":       func(c *Config) { c.Timeout = 0 },
		"port 70000":          func(c *Config) { c.Target = "http://127.0.0.1:70000/" },
		"method is":           func(c *Config) { c.Method = "G\r\nET" },
		"host is":             func(c *Config) { c.Host = "a b" },
		"Write it as in":      func(c *Config) { c.Fields = []string{"nonsense"} },
		"flood itself":        func(c *Config) { c.Fields = []string{"Connection: close"} },
	} {
		c := base("127.0.0.1:80")
		c.Requests = 1
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("want %q, got %v", words, err)
		}
	}
	for _, good := range []string{"127.0.0.1:8080", "localhost:8080", "localhost", "http://[::1]:80/a?b=c", "https://a.example/"} {
		c := base(good)
		c.Requests = 1
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}
