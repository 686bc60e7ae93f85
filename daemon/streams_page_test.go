package daemon

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/lbgraph/lbgraph/control/metrics"
)

// teller is a backend that does what paths say. Its address is text.
type teller struct {
	addr    string
	hanging atomic.Int32  // requests that have no answer yet
	release chan struct{} // closed, it answers them
}

func tell(t testing.TB) *teller {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &teller{addr: l.Addr().String(), release: make(chan struct{})}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

func (s *teller) serve(c net.Conn) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
		status := map[string]string{"/missing": "404 Not Found", "/sick": "500 Internal Server Error", "/moved": "302 Found"}[q.URL.Path]
		switch q.URL.Path {
		case "/big", "/chunks":
			form, tail := fmt.Sprintf("Content-Length: %d", large), ""
			if q.URL.Path == "/chunks" {
				form, tail = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x", large), "\r\n0\r\n\r\n"
			}
			sep := map[bool]string{true: "\r\n", false: "\r\n\r\n"}[tail != ""]
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+form+sep+strings.Repeat("x", large)+tail)
			continue
		case "/hang":
			s.hanging.Add(1)
			<-s.release
			s.hanging.Add(-1)
		case "/cut":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthis is not all")
			return
		case "/socket":
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, r)
			return
		}
		if status == "" {
			status = "200 OK"
		}
		if _, err := io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Length: 5\r\n\r\nhello"); err != nil || q.Close {
			return
		}
	}
}

// large is the bytes of an answer that is passed on without a copy.
const large = 3 << 20

// client counts what it sends and gets.
type client struct {
	net.Conn
	t       testing.TB
	r       *bufio.Reader
	in, out *atomic.Int64
}

// Read is part of net.Conn.
func (c *client) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.Add(int64(n))
	return n, err
}

// Write is part of net.Conn.
func (c *client) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.out.Add(int64(n))
	return n, err
}

// ask sends a request, for a whole answer if want is no 0.
func (c *client) ask(head string, want int) {
	c.t.Helper()
	if _, err := io.WriteString(c, head); err != nil {
		c.t.Fatal(err)
	}
	if want == 0 {
		return
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("%q: %v", head, err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil && want != 299 {
		c.t.Fatalf("%q: %v", head, err)
	}
	if res.StatusCode != want && want != 299 {
		c.t.Errorf("%q is answered %d, want %d", head, res.StatusCode, want)
	}
}

func (c *client) rest() {
	_, _ = io.Copy(io.Discard, c.r)
	_ = c.Close()
}

// streamRig is a daemon with streams. Clients of one listener count together.
type streamRig struct {
	*Daemon
	t       testing.TB
	in, out map[string]*atomic.Int64
}

func newStreamRig(t *testing.T, text string) *streamRig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lb.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Source{Path: path}.Load()
	if l.File == nil {
		t.Fatal(l.Diags)
	}
	d, err := New(l.File, Options{Version: "test", Loaded: l, Log: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))})
	if err == nil {
		err = d.Start(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = d.Stop(ctx)
		for _, s := range d.StreamStats() {
			if err := s.CheckConservation(); err != nil {
				t.Error(err)
			}
		}
	})
	return &streamRig{d, t, map[string]*atomic.Int64{}, map[string]*atomic.Int64{}}
}

// dial connects to a listener, STREAM/NODE.
func (r *streamRig) dial(listener string) *client {
	r.t.Helper()
	block, node, _ := strings.Cut(listener, "/")
	a, ok := r.Streams().Bound(block, node)
	if !ok {
		r.t.Fatalf("%s does not listen", listener)
	}
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r.t.Cleanup(func() { _ = c.Close() })
	if r.in[listener] == nil {
		r.in[listener], r.out[listener] = new(atomic.Int64), new(atomic.Int64)
	}
	k := &client{Conn: c, t: r.t, in: r.in[listener], out: r.out[listener]}
	k.r = bufio.NewReader(k)
	return k
}

func (r *streamRig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: it does not come to that", what)
		}
	}
}

// quiet waits until no session is on its way, and no connection open.
func (r *streamRig) quiet() {
	r.t.Helper()
	r.until("nothing is in flight", func() bool {
		for _, s := range r.StreamStats() {
			if s.CheckConservation() != nil || s.Connections != 0 {
				return false
			}
		}
		return true
	})
}

func get(path, host string, more ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(more, "") + "\r\n"
}

const closing = "Connection: close\r\n"

// shop is a file with every kind of stream node, whose access log is at log; addresses
// of two backends follow, of which the second is dead, and a certificate.
func shop(log, live, dead, crt, key string) string {
	host := func(a string) string {
		h, p, _ := net.SplitHostPort(a)
		return fmt.Sprintf("address = %q\n    port    = %s", h, p)
	}
	return fmt.Sprintf(`pool "web" {
  table_size = 251
  backend "live" {
    %[2]s
  }
}
pool "half" {
  table_size = 251
  backend "dead" {
    %[3]s
  }
  backend "live" {
    %[2]s
  }
}
stream "shop" {
  path {
    main  = [in, log, ids, admit, hosts.web, web, out]
    half  = [hosts.half, half, out]
    moved = [hosts.moved, moved]
    fixed = [hosts.fixed, fixed]
  }
  node "listen" "in" { address = "127.0.0.1:0" }
  node "access-log" "log" { file = %[1]q }
  node "headers" "ids" { request_id = "X-Request-Id" }
  node "admit" "admit" {
    limit         = 2
    queue         = 2
    queue_timeout = "1h"
  }
  node "route" "hosts" {
    rule "web" { host = ["web.example"] }
    rule "half" { host = ["half.example"] }
    rule "moved" { host = ["moved.example"] }
    rule "fixed" { host = ["fixed.example"] }
  }
  node "balance" "web" { pool = pool.web }
  node "balance" "half" {
    pool      = pool.half
    eject_for = "0s"
  }
  node "redirect" "moved" { to = "https://web.example{target}" }
  node "respond" "fixed" { body = "here" }
  node "proxy" "out" {}
}
stream "tcp" {
  path { main = [in, pick, out] }
  node "listen" "in" {
    address  = "127.0.0.2:0"
    protocol = "tcp"
  }
  node "balance" "pick" { pool = pool.web }
  node "proxy" "out" {}
}
stream "secure" {
  path { main = [in, tls, web, out] }
  node "listen" "in" {
    address  = "127.0.0.3:0"
    protocol = "tcp"
  }
  node "tls" "tls" {
    certificate {
      cert = %[4]q
      key  = %[5]q
    }
  }
  node "balance" "web" { pool = pool.web }
  node "proxy" "out" {}
}
`, log, host(live), host(dead), crt, key)
}

// certificate writes a certificate that signs itself, for name.
func certificate(t testing.TB, dir, name string, ends time.Time) (crt, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	crt, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, b := range map[string]*pem.Block{crt: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE " + "KEY", Bytes: p}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return crt, key
}

// deadAddress is one that nobody listens on.
func deadAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestStreamPage: what the page says of listeners, nodes, routes and backends is what
// clients sent and got, to the byte; and its series are as many as the file has things,
// whatever clients say.
func TestStreamPage(t *testing.T) {
	dir := t.TempDir()
	ends := time.Now().Add(1000 * time.Hour)
	crt, key := certificate(t, dir, "web.example", ends)
	b, dead := tell(t), deadAddress(t)
	r := newStreamRig(t, shop(filepath.Join(dir, "log"), b.addr, dead, crt, key))

	c := r.dial("shop/in") // one connection, 18 requests
	for range 10 {
		c.ask(get("/ok", "web.example"), 200)
	}
	for range 3 {
		c.ask(get("/missing", "web.example"), 404)
	}
	for range 2 {
		c.ask(get("/sick", "web.example"), 500)
	}
	c.ask(get("/moved", "web.example"), 302)
	c.ask(get("/x", "moved.example"), 308)
	c.ask(get("/", "fixed.example", closing), 200)
	c.rest()
	c = r.dial("shop/in")
	for range 4 {
		c.ask(get("/", "other.example"), 404)
	}
	for range 4 { // each comes to the dead backend first: the retry takes the other turn
		c.ask(get("/ok", "half.example"), 200)
	}
	c.ask("nonsense\r\n\r\n", 400)
	c.rest()
	c = r.dial("shop/in")
	c.ask(get("/cut", "web.example"), 299)
	c.rest()
	c = r.dial("shop/in")
	c.ask(get("/socket", "web.example", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), 101)
	_, _ = io.WriteString(c, "ping")
	if _, err := io.ReadFull(c.r, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_ = c.Conn.(*net.TCPConn).CloseWrite()
	c.rest()
	// Two wait for their answers, two for a place; the next one is refused.
	var waiting []*client
	for i := range 4 {
		k := r.dial("shop/in")
		k.ask(get("/hang", "web.example", closing), 0)
		waiting = append(waiting, k)
		if i < 2 {
			r.until("the backend has it", func() bool { return int(b.hanging.Load()) == i+1 })
		} else {
			r.until("it waits", func() bool {
				return scrape(t, r.Daemon)[`lbgraph_stream_node_value{node="admit",stream="shop",value="waiting"}`] == float64(i-1)
			})
		}
	}
	c = r.dial("shop/in")
	c.ask(get("/ok", "web.example", closing), 503)
	c.rest()
	// Who was refused is gone a moment after the client sees it.
	r.until("four are open", func() bool {
		return scrape(t, r.Daemon)[`lbgraph_stream_listener_open_connections{listener="in",stream="shop"}`] == 4
	})
	busy := scrape(t, r.Daemon)
	for series, want := range map[string]float64{
		`lbgraph_stream_node_value{node="admit",stream="shop",value="in_flight"}`:             2,
		`lbgraph_stream_node_value{node="admit",stream="shop",value="limit"}`:                 2,
		`lbgraph_stream_node_value{node="admit",stream="shop",value="waiting"}`:               2,
		`lbgraph_stream_listener_active_sessions{listener="in",stream="shop"}`:                4,
		`lbgraph_stream_listener_open_connections{listener="in",stream="shop"}`:               4,
		fmt.Sprintf(`lbgraph_stream_backend_active_sessions{backend=%q}`, b.addr):             2,
		`lbgraph_stream_node_events_total{event="queued",node="admit",stream="shop"}`:         3,
		`lbgraph_stream_dropped_sessions_total{node="admit",reason="overflow",stream="shop"}`: 1,
	} {
		if v, ok := busy[series]; !ok || v != want {
			t.Errorf("under load %s is %v (%t), want %v", series, v, ok, want)
		}
	}
	// One leaves before it has its answer, and in a way that nobody has to ask it.
	_ = waiting[0].Conn.(*net.TCPConn).SetLinger(0)
	_ = waiting[0].Close()
	r.until("it is gone", func() bool {
		return scrape(t, r.Daemon)[`lbgraph_stream_route_sessions_total{outcome="gone",route="web",stream="shop"}`] == 1
	})
	close(b.release)
	for _, k := range waiting[1:] {
		k.ask("", 200)
		k.rest()
	}

	for range 2 {
		k := r.dial("tcp/in")
		k.ask(get("/ok", "a", closing), 200)
		k.rest()
	}
	k := r.dial("secure/in")
	s := tls.Client(k, &tls.Config{InsecureSkipVerify: true})
	for range 3 {
		if _, err := io.WriteString(s, get("/ok", "web.example")); err != nil {
			t.Fatal(err)
		}
		if res, err := http.ReadResponse(bufio.NewReader(s), nil); err != nil || res.StatusCode != 200 {
			t.Fatal(err)
		}
	}
	_ = s.CloseWrite()
	k.rest()
	r.quiet()
	r.until("the log is written", func() bool {
		return scrape(t, r.Daemon)[`lbgraph_stream_node_events_total{event="lines",node="log",stream="shop"}`] == 34
	})

	logged(t, filepath.Join(dir, "log"), b.addr)
	got := scrape(t, r.Daemon)
	want := map[string]float64{}
	listener := func(block string, values map[string]float64) {
		for name, v := range values {
			want[fmt.Sprintf(`lbgraph_stream_listener_%s{listener="in",stream=%q}`, name, block)] = v
		}
		want[fmt.Sprintf(`lbgraph_stream_listener_received_bytes_total{listener="in",stream=%q}`, block)] = float64(r.out[block+"/in"].Load())
		want[fmt.Sprintf(`lbgraph_stream_listener_sent_bytes_total{listener="in",stream=%q}`, block)] = float64(r.in[block+"/in"].Load())
	}
	listener("shop", map[string]float64{"connections_total": 9, "requests_total": 34, "unreadable_requests_total": 1, "open_connections": 0, "active_sessions": 0, "accept_errors_total": 0})
	listener("tcp", map[string]float64{"connections_total": 2, "requests_total": 0, "open_connections": 0})
	listener("secure", map[string]float64{"connections_total": 1, "requests_total": 3})
	route := func(block, node string, sum float64, outcomes map[string]float64) {
		for o, v := range outcomes {
			want[fmt.Sprintf(`lbgraph_stream_route_sessions_total{outcome=%q,route=%q,stream=%q}`, o, node, block)] = v
		}
		want[fmt.Sprintf(`lbgraph_stream_route_duration_seconds_count{route=%q,stream=%q}`, node, block)] = sum
		want[fmt.Sprintf(`lbgraph_stream_route_duration_seconds_bucket{route=%q,stream=%q,le="+Inf"}`, node, block)] = sum
	}
	// All but the one that left HTTP are timed.
	route("shop", "web", 10+3+2+1+3+1+1, map[string]float64{"1xx": 1, "2xx": 13, "3xx": 1, "4xx": 3, "5xx": 2, "gone": 1, "cut": 1, "ended": 0, "failed": 0})
	route("shop", "half", 4, map[string]float64{"2xx": 4, "5xx": 0})
	route("shop", "moved", 1, map[string]float64{"3xx": 1})
	route("shop", "fixed", 1, map[string]float64{"2xx": 1})
	route("shop", "hosts", 4, map[string]float64{"4xx": 4})
	route("shop", "admit", 1, map[string]float64{"5xx": 1})
	route("shop", "in", 0, map[string]float64{"4xx": 1})
	route("tcp", "pick", 2, map[string]float64{"ended": 2, "failed": 0, "2xx": 0})
	route("secure", "web", 3, map[string]float64{"2xx": 3})
	for name, v := range map[string]float64{
		`sessions_total{kind="listen",node="in"`: 9, `sessions_total{kind="admit",node="admit"`: 33, `sessions_total{kind="balance",node="half"`: 4, `sessions_total{kind="proxy",node="out"`: 26,
		`output_sessions_total{node="hosts",output="web"`: 22, `output_sessions_total{node="admit",output="next"`: 32, `events_total{event="queued",node="admit"`: 3,
		`events_total{event="retries",node="out"`: 4, `events_total{event="retries_withheld",node="out"`: 0, `events_total{event="upgraded",node="out"`: 1, `events_total{event="lines",node="log"`: 34,
		`events_total{event="lost",node="log"`: 0, `value{node="admit",value="in_flight"`: 0, `value{node="admit",value="waiting"`: 0, `value{node="admit",value="upgraded"`: 0,
	} {
		at := strings.LastIndex(name, `,value=`)
		if at < 0 {
			at = len(name)
		}
		want[fmt.Sprintf(`lbgraph_stream_node_%s,stream="shop"%s}`, name[:at], name[at:])] = v
	}
	for name, v := range map[string]float64{`node="hosts",reason="no_route"`: 4, `node="out",reason="cut"`: 1, `node="out",reason="client_gone"`: 1, `node="out",reason="connect_failed"`: 0, `node="admit",reason="overflow"`: 1} {
		want[fmt.Sprintf(`lbgraph_stream_dropped_sessions_total{%s,stream="shop"}`, name)] = v
	}
	for addr, values := range map[string]map[string]float64{
		b.addr: {"active_sessions": 0, "sessions_total": 22 + 4 + 2 + 3, "failures_total": 1, "retries_total": 4, "ejected": 0, "duration_seconds_count": 19 + 4 + 2 + 3},
		dead:   {"active_sessions": 0, "sessions_total": 4, "failures_total": 4, "retries_total": 0, "ejected": 0, "duration_seconds_count": 0},
	} {
		for name, v := range values {
			want[fmt.Sprintf(`lbgraph_stream_backend_%s{backend=%q}`, name, addr)] = v
		}
	}
	want[fmt.Sprintf(`lbgraph_stream_certificate_expiry_timestamp_seconds{certificate=%q,node="tls",stream="secure"}`, crt)] = float64(ends.Unix())
	for series, v := range want {
		if x, ok := got[series]; !ok || x != v {
			t.Errorf("%s is %v (%t), want %v", series, x, ok, v)
		}
	}
	if n := got[`lbgraph_stream_node_value{node="out",stream="shop",value="retry_budget"}`]; n < 6 || n > 10 {
		t.Errorf("%v retries are left", n)
	}
	// Every request ended once.
	for _, s := range r.StreamStats() {
		sum := uint64(0)
		for i := range s.Routes {
			sum += s.Routes[i].Sum()
		}
		if n := s.Requests; s.Stream == "tcp" && sum != s.Accepted || s.Stream != "tcp" && sum != n {
			t.Errorf("stream %s: %d sessions ended, %d requests came on %d connections", s.Stream, sum, n, s.Accepted)
		}
	}

	reg, err := metrics.Registry(r.Daemon)
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}

	c = r.dial("shop/in")
	for i := range 300 {
		c.ask(get(fmt.Sprintf("/path-%d?q=%d", i, i), fmt.Sprintf("host-%d.example", i), fmt.Sprintf("X-Request-Id: %d\r\n", i)), 404)
		c.ask(fmt.Sprintf("METHOD%d /path-%d HTTP/1.1\r\nHost: web.example\r\n\r\n", i, i), 200)
	}
	c.Close()
	r.quiet()
	if after := scrape(t, r.Daemon); len(after) != len(got) {
		t.Errorf("the page has %d series, and %d after 300 hosts, paths, methods and ids", len(got), len(after))
	}
}

// TestStreamBytes: bytes are counted whichever way they go, by copies or in the kernel.
func TestStreamBytes(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "web.example", time.Now().Add(time.Hour))
	r := newStreamRig(t, shop(filepath.Join(dir, "log"), tell(t).addr, deadAddress(t), crt, key))
	put := fmt.Sprintf("PUT /ok HTTP/1.1\r\nHost: web.example\r\nContent-Length: %d\r\n\r\n%s", large, strings.Repeat("y", large))
	for _, l := range []string{"shop/in", "tcp/in"} {
		c := r.dial(l)
		for _, text := range []string{get("/big", "web.example"), get("/chunks", "web.example"), put, get("/big", "web.example", closing)} {
			c.ask(text, 200)
		}
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		c.rest()
		r.quiet()
		if r.in[l].Load() < 3*large || r.out[l].Load() < large {
			t.Fatalf("only %d bytes came, %d went", r.in[l].Load(), r.out[l].Load())
		}
		got := scrape(t, r.Daemon)
		block, _, _ := strings.Cut(l, "/")
		in, out := fmt.Sprintf(`lbgraph_stream_listener_received_bytes_total{listener="in",stream=%q}`, block), fmt.Sprintf(`lbgraph_stream_listener_sent_bytes_total{listener="in",stream=%q}`, block)
		if got[in] != float64(r.out[l].Load()) || got[out] != float64(r.in[l].Load()) {
			t.Errorf("%s: %v bytes came and %v went, want %d and %d", l, got[in], got[out], r.out[l].Load(), r.in[l].Load())
		}
	}
}

// logged checks the access log of what TestStreamPage sends.
func logged(t *testing.T, file, backend string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	ids := map[any]bool{}
	for line := range strings.Lines(string(text)) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, k := range []string{"time", "client", "listener", "host", "method", "path", "status", "bytes_in", "bytes_out", "tries", "total_ms", "node", "id"} {
			// Of a request that cannot be read nothing is known, and no node gives it an id.
			unknown := m["reason"] == "bad_request" && slices.Contains([]string{"host", "method", "path", "id"}, k)
			if (m[k] == nil) != unknown {
				t.Errorf("%s in a line: %s", k, line)
			}
		}
		if m["id"] != nil {
			ids[m["id"]] = true
		}
		queue, waited := m["queue_ms"].(float64)
		if waited && (queue < 0 || queue == 0 && m["status"] == 200.0 || queue > m["total_ms"].(float64)) {
			t.Errorf("it waited %v ms: %s", queue, line)
		}
		if m["backend"] != nil && m["status"] == 200.0 && (m["connect_ms"] == nil || m["first_byte_ms"].(float64) < m["connect_ms"].(float64)) {
			t.Errorf("times: %s", line)
		}
		n[fmt.Sprintf("%v %v %v %v tries %v, waited %t", m["status"], m["route"], m["node"], m["reason"], m["tries"], waited)]++
		if m["backend"] != nil && m["backend"] != backend {
			t.Errorf("backend: %s", line)
		}
	}
	want := map[string]int{
		"200 web out <nil> tries 1, waited false": 11, "200 web out <nil> tries 1, waited true": 2, "404 web out <nil> tries 1, waited false": 3, "500 web out <nil> tries 1, waited false": 2,
		"302 web out <nil> tries 1, waited false": 1, "308 <nil> moved <nil> tries 0, waited false": 1, "200 <nil> fixed <nil> tries 0, waited false": 1, "404 <nil> hosts no_route tries 0, waited false": 4,
		"200 half out <nil> tries 2, waited false": 4, "200 web out cut tries 1, waited false": 1, "101 web out <nil> tries 1, waited false": 1, "499 web out client_gone tries 1, waited false": 1,
		"503 <nil> admit overflow tries 0, waited true": 1, "400 <nil> in bad_request tries 0, waited false": 1,
	}
	if !maps.Equal(n, want) || len(ids) != 33 {
		t.Errorf("the log has %v, want %v; %d ids", n, want, len(ids))
	}
}
