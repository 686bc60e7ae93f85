package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
	_ "github.com/lbgraph/lbgraph/nodes/stream/route"
)

// file answers a file with a listener, a balance and a proxy.
func file(listen, balance, proxy string, addrs ...string) string {
	return nodetest.Pool("", addrs...) + "stream \"s\" {\npath { main = [in, pick, out] }\nnode \"listen\" \"in\" {\naddress = \"127.0.0.1:0\"\n" + listen +
		"\n}\nnode \"balance\" \"pick\" {\npool = pool.web\n" + balance + "\n}\nnode \"proxy\" \"out\" {\n" + proxy + "\n}\n}\n"
}

const get = "GET / HTTP/1.1\nHost: x\n\n"

// head reads the head of a request, with its lines ended by \n; "" at the end.
func head(p *nodetest.Peer) string {
	var b strings.Builder
	for {
		line, err := p.R.ReadString('\n')
		if err != nil {
			return ""
		}
		if line == "\r\n" {
			return b.String()
		}
		b.WriteString(strings.TrimSuffix(line, "\r\n") + "\n")
	}
}

const okay = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// answers runs a backend that answers every request by f's bytes.
func answers(t testing.TB, f func(head string) string) string {
	return nodetest.Backend(t, func(p *nodetest.Peer) {
		for h := head(p); h != ""; h = head(p) {
			p.Say(f(h))
		}
	})
}

// refusing answers an address at which nobody listens.
func refusing(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// The example speaks HTTP/2 with its backend, by prior knowledge.
func TestExample(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.RequestURI, b)
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() { _ = srv.Close() })
	go func() { _ = srv.Serve(l) }()
	r := nodetest.RunStreams(t, nodetest.Pool("", l.Addr().String())+"stream \"s\" {\npath { main = [in, balance, grpc] }\n"+nodetest.Listen+nodetest.Example(t)+"node \"balance\" \"balance\" { pool = pool.web }\n}\n")
	p := r.Dial("in")
	if got := p.Ask("POST /a//b?c HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello"); got != "200 HTTP/2.0 /a//b?c hello" {
		t.Errorf("%q", got)
	}
	// What is no URL cannot go on, and is not the backend's fault.
	if got := p.Ask("GET //%zz HTTP/1.1\nHost: x\n\n"); got != "400 400 Bad Request\n" {
		t.Errorf("%q", got)
	}
	r.Quiet()
	if b := r.Engine.Stats()[0].Backends[0]; b.Failures != 0 || b.Total != 2 {
		t.Errorf("%+v", b)
	}
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "proxy", "", []string{"", "response_timeout = \"0s\"\nkeepalive = 0\nretries = 0\nretry_budget = 0\nupgrade = [\"*\"]\nproxy_protocol = \"v2\"\ntls {\nverify = false\ncert = \"a\"\nkey = \"b\"\n}", "http = \"2\"\ntls {}"}, []nodetest.Wrong{
		{Argument: "connect_timeout", Text: "connect_timeout = \"0s\"", Told: "1ms"},
		{Argument: "response_timeout", Text: "response_timeout = \"-1s\"", Told: "0s"},
		{Argument: "upload_timeout", Text: "upload_timeout = \"25h\"", Told: "24h"},
		{Argument: "body_timeout", Text: "body_timeout = \"0s\"", Told: "1ms"},
		{Argument: "write_timeout", Text: "write_timeout = \"0s\"", Told: "1ms"},
		{Argument: "idle_timeout", Text: "idle_timeout = \"721h\"", Told: "720h"},
		{Argument: "half_close_timeout", Text: "half_close_timeout = \"0s\"", Told: "1ms"},
		{Argument: "keepalive", Text: "keepalive = -1", Told: "0"},
		{Argument: "keepalive_timeout", Text: "keepalive_timeout = \"0s\"", Told: "1ms"},
		{Argument: "retries", Text: "retries = 11", Told: "10"},
		{Argument: "retry_budget", Text: "retry_budget = 101", Told: "100"},
		{Argument: "forwarded", Text: "forwarded = \"some\"", Told: "boolean"},
		{Argument: "upgrade", Text: "upgrade = \"websocket\"", Told: "list"},
		{Argument: "proxy_protocol", Text: "proxy_protocol = \"v3\"", Told: "v1"},
		{Argument: "proxy_protocol", Text: "http = \"2\"\nproxy_protocol = \"v1\"", Told: "leave one of them out"},
		{Argument: "http", Text: "http = \"3\"", Told: "1.1"},
		{Argument: "tls.server_name", Text: "tls {\nserver_name = []\n}", Told: "text"},
		{Argument: "tls.ca", Text: "tls {\nca = []\n}", Told: "text"},
		{Argument: "tls.verify", Text: "tls {\nverify = \"no\"\n}", Told: "boolean"},
		{Argument: "tls.cert", Text: "tls {\ncert = []\n}", Told: "text"},
		{Argument: "tls.key", Text: "tls {\nkey = []\n}", Told: "text"},
		{Argument: "tls", Text: "tls {\ncert = \"a\"\n}", Told: "both are needed"},
	})
}

// How a session ends, where it does not end well.
func TestEnds(t *testing.T) {
	silent := func(t *testing.T) string { return nodetest.Backend(t, func(p *nodetest.Peer) { p.Rest() }) }
	says := func(text string) func(*testing.T) string {
		return func(t *testing.T) string {
			return nodetest.Backend(t, func(p *nodetest.Peer) {
				head(p)
				p.Say(text)
			})
		}
	}
	for _, c := range []struct {
		output        string
		backend       func(*testing.T) string
		listen, proxy string
		request, want string
		blamed        bool
	}{
		{"connect_failed", func(t *testing.T) string { return refusing(t) }, "", "", get, "502 502 Bad Gateway\n", true},
		{"connect_timeout", silent, "", "connect_timeout = \"200ms\"\ntls { verify = false }", get, "504 504 Gateway Timeout\n", true},
		{"closed_early", says(""), "", "", "POST / HTTP/1.1\nHost: x\nContent-Length: 1\n\na", "502 502 Bad Gateway\n", true},
		{"response_timeout", silent, "", "response_timeout = \"200ms\"", get, "504 504 Gateway Timeout\n", true},
		{"bad_response", says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "", "", get, "502 502 Bad Gateway\n", true},
		{"bad_response", says("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"), "", "", get, "502 502 Bad Gateway\n", true},
		{"bad_body", silent, "", "", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\nzz\n", "400 400 Bad Request\n", false},
		{"body_timeout", silent, "body_timeout = \"200ms\"\nbody_rate = 1000000", "", "POST / HTTP/1.1\nHost: x\nContent-Length: 10\n\nab", "408 408 Request Timeout\n", false},
		{"cut", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), "", "", get, "200 abc«end»", true},
		{"cut", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), "", "", get, "200 abc«end»", true},
	} {
		r := nodetest.RunStreams(t, file(c.listen, "", c.proxy, c.backend(t)))
		if got := r.Dial("in").Ask(c.request); got != c.want {
			t.Errorf("%s: %q", c.output, got)
		}
		r.Quiet()
		if n := r.Output("out", c.output); n != 1 {
			t.Errorf("%s: counted %d times", c.output, n)
		}
		if b := r.Engine.Stats()[0].Backends[0]; (b.Failures == 1) != c.blamed {
			t.Errorf("%s: %d failures of the backend", c.output, b.Failures)
		}
	}
}

// A client that leaves, or does not read: its request ends, and the backend is not
// blamed.
func TestClientsThatLeave(t *testing.T) {
	gone := make(chan struct{})
	r := nodetest.RunStreams(t, file("", "", "", nodetest.Backend(t, func(p *nodetest.Peer) {
		head(p)
		p.Rest()
		close(gone)
	})))
	p := r.Dial("in")
	p.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	nodetest.Eventually(t, func() error {
		if n := r.Engine.Stats()[0].Backends[0].Active; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	_ = p.Close()
	<-gone
	r.Quiet()
	if r.Output("out", "client_gone") != 1 || r.Engine.Stats()[0].Backends[0].Failures != 0 {
		t.Errorf("client_gone %d, %d failures", r.Output("out", "client_gone"), r.Engine.Stats()[0].Backends[0].Failures)
	}
	r = nodetest.RunStreams(t, file("write_timeout = \"200ms\"", "", "", nodetest.HTTPBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		b := make([]byte, 1<<16)
		for range 2000 {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})))
	p = r.Dial("in")
	p.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	nodetest.Eventually(t, func() error {
		if n := r.Output("out", "client_slow"); n != 1 {
			return fmt.Errorf("client_slow %d", n)
		}
		return nil
	})
	r.Quiet()
	if n := r.Engine.Stats()[0].Backends[0].Failures; n != 0 {
		t.Errorf("%d failures", n)
	}
}

// Idle connections are kept, as many to each backend as the file says, as long as it
// says; the one used last is used next.
func TestKeepalive(t *testing.T) {
	var mu sync.Mutex
	open, made := 0, 0
	hold := make(chan struct{})
	backend := func() string {
		return nodetest.Backend(t, func(p *nodetest.Peer) {
			mu.Lock()
			open++
			made++
			mu.Unlock()
			for h := head(p); h != ""; h = head(p) {
				if strings.HasPrefix(h, "GET /hold ") {
					<-hold
				}
				p.Say(okay)
			}
			mu.Lock()
			open--
			mu.Unlock()
		})
	}
	count := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return open, made
	}
	burst := func(r *nodetest.Streams, n int) {
		t.Helper()
		var wg sync.WaitGroup
		_, before := count()
		for range n {
			p := r.Dial("in")
			wg.Go(func() {
				if got := p.Ask("GET /hold HTTP/1.1\nHost: x\n\n"); got != "200 ok" {
					t.Errorf("%q", got)
				}
			})
		}
		nodetest.Eventually(t, func() error {
			if _, m := count(); m-before != n {
				return fmt.Errorf("%d connections of %d", m-before, n)
			}
			return nil
		})
		close(hold)
		wg.Wait()
		hold = make(chan struct{})
		r.Quiet()
	}
	idle := func(r *nodetest.Streams, n int) {
		t.Helper()
		nodetest.Eventually(t, func() error {
			if o, _ := count(); o != n || r.Gauge("out", "idle_connections") != float64(n) {
				return fmt.Errorf("%d are open, %v idle, want %d", o, r.Gauge("out", "idle_connections"), n)
			}
			return nil
		})
	}
	text := file("", "", "keepalive = 2", backend(), backend())
	r := nodetest.RunStreams(t, text)
	burst(r, 8) // four at each
	idle(r, 4)
	_, before := count()
	p := r.Dial("in")
	for range 20 {
		if got := p.Ask(get); got != "200 ok" {
			t.Errorf("%q", got)
		}
	}
	r.Quiet() // then all is counted
	if _, m := count(); m != before || r.Counter("out", "reused") != 20 || r.Counter("out", "connections") != 8 {
		t.Errorf("%d new connections, %d reused", m-before, r.Counter("out", "reused"))
	}
	// A reload keeps them, and closes those that are too old by what it says.
	r.Reload(text)
	idle(r, 4)
	r.Reload(strings.Replace(text, "keepalive = 2", "keepalive = 2\nkeepalive_timeout = \"50ms\"", 1))
	if got := p.Ask(get); got != "200 ok" {
		t.Errorf("%q", got)
	}
	r = nodetest.RunStreams(t, file("", "", "keepalive_timeout = \"100ms\"", backend()))
	burst(r, 3)
	nodetest.Eventually(t, func() error {
		if n := r.Gauge("out", "idle_connections"); n != 0 {
			return fmt.Errorf("%v are idle", n)
		}
		return nil
	})
	r = nodetest.RunStreams(t, file("", "", "keepalive = 0", backend()))
	p = r.Dial("in")
	for range 3 {
		if got := p.Ask(get); got != "200 ok" {
			t.Errorf("%q", got)
		}
	}
	r.Quiet()
	if n := r.Counter("out", "connections"); n != 3 || r.Counter("out", "reused") != 0 {
		t.Errorf("%d connections for three requests", n)
	}
}

// The one used last is used next, none that is too old is, and none is kept by who has
// closed.
func TestIdle(t *testing.T) {
	now, minute := stream.Now(), int64(time.Minute)
	conn := func() (*stream.Conn, net.Conn) {
		a, b := net.Pipe()
		return stream.NewConn(a), b
	}
	closed := func(peer net.Conn) bool {
		_ = peer.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := peer.Read(make([]byte, 1))
		return err == io.EOF
	}
	u, k := newUpstreams(3, time.Minute), new(stream.Backend)
	var conns []*stream.Conn
	var peers []net.Conn
	for i, since := range []int64{now - 2*minute, now - minute/2, now, now} {
		c, peer := conn()
		u.put(k, c, since)
		conns, peers = append(conns, c), append(peers, peer)
		if kept := !closed(peer); kept != (i < 3) {
			t.Errorf("connection %d is kept: %v", i, kept)
		}
	}
	if c := u.get(new(stream.Backend), now); c != nil {
		t.Error("another backend's connection")
	}
	for _, want := range []*stream.Conn{conns[2], conns[1], nil} {
		if got := u.get(k, now); got != want {
			t.Errorf("got %p, want %p", got, want)
		}
	}
	if !closed(peers[0]) || u.count() != 0 {
		t.Errorf("the old one is open, %d are idle", u.count())
	}
	u.put(k, conns[1], now)
	u.hold(3, time.Minute)
	if u.close(); closed(peers[1]) {
		t.Error("closed for one of two")
	}
	if u.close(); !closed(peers[1]) {
		t.Error("open behind the last one")
	}
	if u.put(k, conns[2], now); !closed(peers[2]) || u.count() != 0 {
		t.Error("kept behind the last one")
	}
}

// A connection that the backend closed, or by which it sent more than its answer, is
// not used again; a request that it meets there goes by a new one.
func TestStale(t *testing.T) {
	r := nodetest.RunStreams(t, file("", "", "", nodetest.Backend(t, func(p *nodetest.Peer) {
		head(p)
		p.Say(okay)
	})))
	p := r.Dial("in")
	for i := range 4 {
		if got := p.Ask("POST / HTTP/1.1\nHost: x\nContent-Length: 1\n\na"); got != "200 ok" {
			t.Errorf("%q", got)
		}
		nodetest.Eventually(t, func() error { // the end has come
			time.Sleep(20 * time.Millisecond)
			if n := r.Counter("out", "stale"); n != uint64(i) {
				return fmt.Errorf("%d stale at %d", n, i)
			}
			return nil
		})
	}
	r = nodetest.RunStreams(t, file("", "", "", answers(t, func(string) string { return okay + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil" })))
	p = r.Dial("in")
	for range 5 {
		if got := p.Ask(get); got != "200 ok" {
			t.Errorf("%q", got)
		}
	}
	r.Quiet()
	if a, b := r.Counter("out", "extra_bytes"), r.Counter("out", "stale"); a+b < 4 {
		t.Errorf("%d with extra bytes, %d stale", a, b)
	}
}

// Requests that run at the same time each find the backend that is there, by every
// algorithm, if another one refuses.
func TestRetries(t *testing.T) {
	good := func() string { return answers(t, func(string) string { return okay }) }
	for _, a := range []string{"round-robin", "least-connections", "random-two", "hash"} {
		r := nodetest.RunStreams(t, file("", fmt.Sprintf("algorithm = %q\neject_for = \"0s\"", a), "retry_budget = 100", good(), refusing(t), good()))
		var wg sync.WaitGroup
		for w := range 8 {
			p := r.Dial("in")
			wg.Go(func() {
				for i := range 60 {
					if got := p.Ask(fmt.Sprintf("GET /%d/%d HTTP/1.1\nHost: x\n\n", w, i)); got != "200 ok" {
						t.Errorf("%s: %q", a, got)
						return
					}
				}
			})
		}
		wg.Wait()
		r.Quiet()
		if n, f := r.Counter("out", "retries"), r.Output("out", "connect_failed"); n == 0 || f != 0 || r.Counter("out", "retries_withheld") != 0 {
			t.Errorf("%s: %d retries, %d failed", a, n, f)
		}
	}
	// retries bounds how often, and so does the number of backends.
	for retries, want := range map[int]uint64{0: 0, 1: 1, 2: 2, 5: 2} {
		r := nodetest.RunStreams(t, file("", "eject_for = \"0s\"", fmt.Sprintf("retries = %d", retries), refusing(t), refusing(t), refusing(t)))
		if got := r.Dial("in").Ask(get); got != "502 502 Bad Gateway\n" || r.Counter("out", "retries") != want {
			t.Errorf("retries = %d: %q after %d", retries, got, r.Counter("out", "retries"))
		}
	}
	// A request that was sent is sent again only if it is idempotent.
	for method, again := range map[string]bool{"GET": true, "PUT": true, "DELETE": true, "POST": false, "PATCH": false, "X": false} {
		var asked atomic.Int64
		once := nodetest.Backend(t, func(p *nodetest.Peer) {
			if head(p) != "" {
				asked.Add(1)
			}
		})
		r := nodetest.RunStreams(t, file("", "", "", once, good()))
		fine := 0
		for range 2 { // one of them comes to once first
			if r.Dial("in").Ask(method+" / HTTP/1.1\nHost: x\n\n") == "200 ok" {
				fine++
			}
		}
		if again && (fine != 2 || asked.Load() == 0) || !again && (fine != 1 || asked.Load() != 1) {
			t.Errorf("%s: %d of 2 are answered, asked %d times", method, fine, asked.Load())
		}
	}
}

// The first byte of an answer is that of an interim one, too: nothing is sent again
// behind it.
func TestNoRetryBehindInterim(t *testing.T) {
	for _, c := range []struct{ interim, request, want string }{
		{"100 Continue", "PUT / HTTP/1.1\nHost: x\nExpect: 100-continue\nContent-Length: 2\n\nhi", "100 502"},
		{"100 Continue", get, "502"},
		{"103 Early Hints", get, "103 502"},
	} {
		var asked atomic.Int64
		backend := func() string {
			return nodetest.Backend(t, func(p *nodetest.Peer) {
				if head(p) != "" {
					asked.Add(1)
					p.Say("HTTP/1.1 " + c.interim + "\r\n\r\n")
					_, _ = io.ReadFull(p.R, make([]byte, strings.Count(c.request, "hi")*2))
				}
			})
		}
		r := nodetest.RunStreams(t, file("", "", "retry_budget = 100", backend(), backend()))
		p := r.Dial("in")
		p.Say(strings.ReplaceAll(c.request, "\n", "\r\n"))
		var got []string
		for len(got) == 0 || got[len(got)-1] < "200" && len(got) < 4 {
			status, _, _ := strings.Cut(strings.TrimPrefix(head(p), "HTTP/1.1 "), " ")
			got = append(got, status)
		}
		if s := strings.Join(got, " "); s != c.want || asked.Load() != 1 || r.Counter("out", "retries")+r.Counter("out", "stale") != 0 {
			t.Errorf("%s: %q, asked %d times", c.interim, s, asked.Load())
		}
	}
}

// The same with backends of HTTP/2, also behind a 100 that is not passed on.
func TestNoRetryBehindInterimOfHTTP2(t *testing.T) {
	for status, want := range map[int]string{http.StatusEarlyHints: "103 502", http.StatusContinue: "502"} {
		var asked atomic.Int64
		backend := func() string {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.WriteHeader(status)
				panic(http.ErrAbortHandler)
			}))
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			t.Cleanup(s.Close)
			return s.Listener.Addr().String()
		}
		r := nodetest.RunStreams(t, file("", "", "http = \"2\"\nretry_budget = 100", backend(), backend()))
		p := r.Dial("in")
		p.Say(strings.ReplaceAll(get, "\n", "\r\n"))
		var got []string
		for len(got) == 0 || got[len(got)-1] < "200" && len(got) < 4 {
			code, _, _ := strings.Cut(strings.TrimPrefix(head(p), "HTTP/1.1 "), " ")
			got = append(got, code)
		}
		if s := strings.Join(got, " "); s != want || asked.Load() != 1 || r.Counter("out", "retries") != 0 {
			t.Errorf("%d: %q, asked %d times", status, s, asked.Load())
		}
	}
}

// A reload that has other words with backends uses no connection of before, and closes
// them, be they in use while it comes.
func TestReloadOfConnections(t *testing.T) {
	for _, change := range []string{"connect_timeout = \"300ms\"\ntls { verify = false }", "proxy_protocol = \"v1\""} {
		var open atomic.Int64
		held, hold := make(chan struct{}), make(chan struct{})
		at := nodetest.Backend(t, func(p *nodetest.Peer) {
			open.Add(1)
			defer open.Add(-1)
			for h := head(p); h != ""; h = head(p) {
				if !strings.HasPrefix(h, "GET ") {
					return
				}
				if strings.HasPrefix(h, "GET /hold ") {
					close(held)
					<-hold
				}
				p.Say(okay)
			}
		})
		r := nodetest.RunStreams(t, file("", "", "", at))
		idle, busy := r.Dial("in"), r.Dial("in")
		answer := make(chan string)
		go func() { answer <- busy.Ask("GET /hold HTTP/1.1\nHost: x\n\n") }()
		<-held
		if got := idle.Ask(get); got != "200 ok" {
			t.Fatalf("%q", got)
		}
		r.Reload(file("", "", change, at))
		close(hold)
		if got := <-answer; got != "200 ok" {
			t.Errorf("%s: the one under way got %q", change, got)
		}
		if got := idle.Ask(get); strings.HasPrefix(got, "200 ") {
			t.Errorf("%s: %q by a connection of before", change, got)
		}
		nodetest.Eventually(t, func() error {
			if n := open.Load(); n != 0 {
				return fmt.Errorf("%s: %d connections are left", change, n)
			}
			return nil
		})
	}
}

// So many retries in percent of the sessions, but ten a second in any case.
func TestBudget(t *testing.T) {
	for _, c := range []struct{ percent, sessions, before, want int64 }{{20, 1000, 0, 200}, {20, 10, 1000, 200}, {20, 10, 0, 10}, {0, 1000, 0, 10}, {100, 300, 0, 300}} {
		b := &budget{window: stream.Never / 2, before: c.before} // it does not end
		b.percent.Store(c.percent)
		for range c.sessions {
			b.session()
		}
		var got atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 1000 {
					if b.retry() {
						got.Add(1)
					}
				}
			})
		}
		if wg.Wait(); got.Load() != c.want {
			t.Errorf("%+v: %d retries", c, got.Load())
		}
	}
	// What came in the window before counts in this one, by the second.
	b := &budget{window: stream.Now() - 10*second}
	b.percent.Store(50)
	for range 1000 {
		b.session()
	}
	if b.retry(); b.before < 90 || b.before > 100 || b.sessions.Load() != 0 {
		t.Errorf("%d a second, %d now", b.before, b.sessions.Load())
	}
}

// A connection of TCP is copied both ways, each side's end with it, and a backend that
// refuses is passed over.
func TestTCP(t *testing.T) {
	echo := nodetest.Backend(t, func(p *nodetest.Peer) {
		b, _ := io.ReadAll(p.R)
		p.Say("you said " + string(b))
	})
	r := nodetest.RunStreams(t, file("protocol = \"tcp\"", "", "", refusing(t), echo))
	for range 4 {
		p := r.Dial("in")
		p.Say("hello")
		_ = p.Conn.(*net.TCPConn).CloseWrite()
		if got := p.Rest(); got != "you said hello" {
			t.Errorf("%q", got)
		}
	}
	r.Quiet()
	r = nodetest.RunStreams(t, file("protocol = \"tcp\"", "", "retries = 0", refusing(t)))
	if c, err := net.Dial("tcp", r.Addr("in")); err == nil { // the reset may come as early as that
		if _, err := io.ReadAll(c); err == nil {
			t.Error("the client sees no reset")
		}
		_ = c.Close()
	}
	nodetest.Eventually(t, func() error {
		if n := r.Output("out", "connect_failed"); n != 1 {
			return fmt.Errorf("connect_failed %d", n)
		}
		return nil
	})
	// Silence has an end.
	r = nodetest.RunStreams(t, file("protocol = \"tcp\"", "", "idle_timeout = \"200ms\"", echo))
	begun := time.Now()
	if got := r.Dial("in").Rest(); got != "«reset»" || time.Since(begun) < 200*time.Millisecond {
		t.Errorf("%q after %v", got, time.Since(begun))
	}
	r.Quiet()
}

// Files that cannot be used are told of; connections are kept over a reload if another
// block would make the same.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	if _, err := (&TLS{CA: filepath.Join(dir, "none")}).config(); err == nil {
		t.Error("a file that is not there is none told of")
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&TLS{CA: empty}).config(); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := (&TLS{Cert: empty, Key: empty}).config(); err == nil {
		t.Error("a certificate of nothing")
	}
	no, yes := false, true
	for _, c := range []struct {
		a, b *TLS
		want bool
	}{
		{nil, nil, true}, {nil, &TLS{}, false}, {&TLS{}, &TLS{Verify: &yes}, true}, {&TLS{}, &TLS{Verify: &no}, false},
		{&TLS{Name: "a"}, &TLS{Name: "b"}, false}, {&TLS{CA: "a"}, &TLS{CA: "b"}, false}, {&TLS{Cert: "a"}, &TLS{}, false}, {&TLS{Key: "a"}, &TLS{}, false},
	} {
		if c.a.equal(c.b) != c.want {
			t.Errorf("%+v and %+v: %v", c.a, c.b, !c.want)
		}
	}
}

// Who the client is: strangers are not believed, trusted proxies are extended.
func TestForwarded(t *testing.T) {
	const theirs = "X-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: gopher\nX-Forwarded-Host: other\nX-Real-IP: 192.0.2.2\nForwarded: for=192.0.2.3\nX_Forwarded_For: 192.0.2.4\nX-Forwarded-Port: 1\n"
	for _, c := range []struct {
		what    string
		trusted bool
		on      bool
		want    string
	}{
		{"a stranger", false, true, "X-Forwarded-For: 198.51.100.7\nX-Forwarded-Proto: http\nX-Forwarded-Host: h:80\nX-Real-IP: 198.51.100.7\nForwarded: for=198.51.100.7;host=\"h:80\";proto=http\n"},
		{"a trusted proxy", true, true, "X-Forwarded-Proto: gopher\nX-Forwarded-Host: other\nX-Real-IP: 192.0.2.2\nX-Forwarded-Port: 1\nX-Forwarded-For: 192.0.2.1, 198.51.100.7\nForwarded: for=192.0.2.3, for=198.51.100.7;host=\"h:80\";proto=http\n"},
		{"left alone", false, false, "X-Forwarded-Proto: gopher\nX-Forwarded-Host: other\nX-Real-IP: 192.0.2.2\nForwarded: for=192.0.2.3\nX-Forwarded-Port: 1\n"},
	} {
		p := &proxy{c: Config{Forwarded: c.on}}
		s := nodetest.Request("GET /a//%zz?b HTTP/1.1\nHost: h:80\n" + theirs + "Connection: X-Forwarded-For\n\n")
		s.Client.Trusted = c.trusted
		s.Backend = &stream.Backend{Addr: netip.MustParseAddrPort("192.0.2.9:80")}
		want := "GET /a//%zz?b HTTP/1.1\r\nHost: h:80\r\n" + strings.ReplaceAll(c.want, "\n", "\r\n") + "\r\n"
		if got := string(p.appendHead(nil, s, false)); got != want {
			t.Errorf("%s:\n got %q\nwant %q", c.what, got, want)
		}
	}
}

// Whatever head the strict reader takes goes on as a head that it takes again, with the
// same target and framing, and says once who the client is.
func FuzzHead(f *testing.F) {
	f.Add("POST /a//%zz?b HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\nConnection: close, X-A\nX-A: 1\nX-Forwarded-For: 1\nTE: trailers\n\n", false)
	f.Add("GET http://h/ HTTP/1.1\nHost: other\nUpgrade: websocket\nConnection: upgrade\nX_Real_IP: 1\n\n", true)
	f.Add("GET / HTTP/1.0\nContent-Length: 5\n\n", true)
	p := &proxy{c: Config{Forwarded: true}}
	f.Fuzz(func(t *testing.T, head string, trusted bool) {
		s := nodetest.Request(head)
		if s == nil {
			return
		}
		s.Client.Trusted = trusted
		s.Backend = &stream.Backend{Addr: netip.MustParseAddrPort("192.0.2.9:80")}
		out := p.appendHead(nil, s, false)
		var h http1.Request
		h.Reset()
		l := http1.Limits{Line: 1 << 20, Field: 1 << 20, Head: 1 << 20, Fields: 1000}
		complete, err := h.Parse(out, &l)
		if err != nil || !complete || h.Size != len(out) {
			t.Fatalf("%q becomes %q: %v, %d of %d bytes", head, out, err, h.Size, len(out))
		}
		r := s.Req
		if string(h.Target.In(out)) != string(r.Target.In(r.Buf)) || h.Body() != r.Request.Body() || h.Close || string(h.MethodText.In(out)) != string(r.MethodText.In(r.Buf)) {
			t.Fatalf("%q becomes %q", head, out)
		}
		n := map[http1.ID]int{}
		for i := range h.Fields {
			n[h.Fields[i].ID]++
		}
		if n[http1.ForwardedFor] != 1 || n[http1.Forwarded] != 1 || n[http1.LookAlike] != 0 || !trusted && (n[http1.RealIP] != 1 || n[http1.ForwardedOther] != 0) {
			t.Fatalf("%q becomes %q", head, out)
		}
	})
}

// Whatever a backend answers, the client reads one response or sees that it is cut,
// and its next request gets its own answer.
func FuzzAnswer(f *testing.F) {
	for _, a := range []string{
		okay, okay + okay, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n" + okay, "HTTP/1.0 200 OK\r\n\r\nok",
		"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "",
	} {
		f.Add([]byte(a))
	}
	var text atomic.Pointer[[]byte]
	addr := nodetest.Backend(f, func(p *nodetest.Peer) {
		if head(p) != "" {
			_, _ = p.Write(*text.Load())
		}
	})
	r := nodetest.RunStreams(f, nodetest.Pool("", addr)+"stream \"s\" {\npath {\nmain = [in, by.web, balance, proxy]\nown = [by.own, respond]\n}\n"+nodetest.Listen+
		"node \"route\" \"by\" {\nrule \"own\" { path = [\"/own\"] }\nrule \"web\" {}\n}\nnode \"respond\" \"respond\" { body = \"own\" }\nnode \"balance\" \"balance\" {\npool = pool.web\neject_for = \"0s\"\n}\n}\n")
	at := r.Addr("in")
	f.Fuzz(func(t *testing.T, answer []byte) {
		text.Store(&answer)
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		p := &nodetest.Peer{T: t, Conn: c, R: bufio.NewReader(c)}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		res, body := p.Get(get)
		for res != nil && res.StatusCode < 200 {
			res, body = p.Get("")
		}
		if res == nil {
			if body != "end" && body != "reset" {
				t.Fatalf("%q: %s", answer, body)
			}
			return
		}
		if res.Close || strings.Contains(body, "«") {
			return
		}
		if got := p.Ask("GET /own HTTP/1.1\nHost: x\n\n"); got != "200 own" {
			t.Fatalf("%q answers the next request, too: %q", answer, got)
		}
	})
}

// BenchmarkProxy reports nanoseconds a request over the loopback, client and backend
// included, one after the other.
func BenchmarkProxy(b *testing.B) {
	r := nodetest.RunStreams(b, file("", "", "", answers(b, func(string) string { return okay })))
	c, err := net.Dial("tcp", r.Addr("in"))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}
