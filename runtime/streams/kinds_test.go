package streams_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/proxyproto"
	_ "github.com/lbgraph/lbgraph/nodes/stream/access-log"
	_ "github.com/lbgraph/lbgraph/nodes/stream/admit"
	_ "github.com/lbgraph/lbgraph/nodes/stream/headers"
	_ "github.com/lbgraph/lbgraph/nodes/stream/rate-limit"
	_ "github.com/lbgraph/lbgraph/nodes/stream/redirect"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
	_ "github.com/lbgraph/lbgraph/nodes/stream/route"
	_ "github.com/lbgraph/lbgraph/nodes/stream/tls"
)

// stream is a file of one stream block on backends.
func stream(paths, nodes string, addrs ...string) string {
	return fmt.Sprintf("pool \"web\" {\n  table_size = 251\n%s}\nstream \"s\" {\n  path {\n%s\n}\n%s\n}\n", backends(addrs...), paths, nodes)
}

const pick = "node \"balance\" \"pick\" { pool = pool.web }\nnode \"proxy\" \"out\" {}\n"

// So many in flight, the next ones wait up to their time, the rest is refused.
func TestAdmission(t *testing.T) {
	hold := make(chan struct{})
	var now, most atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-hold
		now.Add(-1)
	}))
	defer srv.Close()
	r := run(t, stream("main = [in, gate, pick, out]", in("")+"node \"admit\" \"gate\" {\n limit = 3\n queue_timeout = \"100ms\"\n queue = 2\n}\n"+pick, addrOf(srv)))
	answers := make(chan string, 20)
	ask := func() {
		p := dial(t, r.addr("in"))
		p.send(get)
		go func() {
			begun := time.Now()
			h := p.head()
			answers <- fmt.Sprintf("%s %v %v", h[9:12], strings.Contains(h, "Retry-After: 1\r\n"), time.Since(begun) > 80*time.Millisecond)
		}()
	}
	for range 3 {
		ask()
	}
	eventually(t, "three are in flight", func() error {
		if n := now.Load(); n != 3 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for range 2 { // they wait
		ask()
	}
	eventually(t, "two wait", func() error {
		if n := r.node("gate").Gauges["waiting"]; n != 2 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	ask() // no room to wait
	if a := <-answers; a != "503 true false" {
		t.Errorf("beyond the queue: %s", a)
	}
	hold <- struct{}{} // one of those who wait gets its place
	if a := <-answers; !strings.HasPrefix(a, "200") {
		t.Errorf("the first: %s", a)
	}
	if a := <-answers; a != "503 true true" {
		t.Errorf("the last of those who wait: %s", a)
	}
	close(hold)
	for range 3 {
		if a := <-answers; !strings.HasPrefix(a, "200") {
			t.Errorf("%s", a)
		}
	}
	r.quiet()
	if g := r.node("gate").Gauges; g["in_flight"] != 0 || g["waiting"] != 0 || most.Load() != 3 || r.output("gate", "overflow") != 2 || r.counter("gate", "queued") != 3 {
		t.Errorf("%v, %d at most, %d refused, %d waited", g, most.Load(), r.output("gate", "overflow"), r.counter("gate", "queued"))
	}
}

// Upgraded connections leave the count for a limit of their own.
func TestAdmissionOfUpgrades(t *testing.T) {
	s := serve(t, func(p *peer) {
		for {
			h := p.head()
			switch {
			case strings.Contains(h, "«"):
				return
			case strings.Contains(h, "Upgrade: websocket"):
				p.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
				p.rest()
				return
			}
			p.send(ok)
		}
	})
	r := run(t, stream("main = [in, gate, pick, out]", in("")+"node \"admit\" \"gate\" {\n limit = 1\n queue_timeout = \"0s\"\n upgraded = 2\n}\n"+pick, s.addr()))
	const ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	var open []*peer
	for range 2 {
		p := dial(t, r.addr("in"))
		p.send(ask)
		if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 101") {
			t.Errorf("%q", h)
		}
		open = append(open, p)
	}
	p := dial(t, r.addr("in"))
	if got := p.get(ask); !strings.HasPrefix(got, "503") {
		t.Errorf("a third upgrade: %q", got)
	}
	if got := p.get(get); got != "200 ok" {
		t.Errorf("a request beside upgrades: %q", got)
	}
	for _, p := range open {
		_ = p.Close()
	}
	r.quiet()
	if g := r.node("gate").Gauges; g["in_flight"] != 0 || g["upgraded"] != 0 {
		t.Errorf("%v", g)
	}
}

// Several environments on one port, by host, path, method, field.
func TestRouting(t *testing.T) {
	text := func(name string) string {
		return fmt.Sprintf("node \"respond\" %q { body = %q }\n", name, name)
	}
	r := run(t, "stream \"s\" {\n path {\n main = [in, by.api, api]\n www = [by.www, www]\n old = [by.old, old]\n beta = [by.beta, beta]\n post = [by.post, post]\n}\n"+
		in("")+text("api")+text("www")+text("old")+text("beta")+text("post")+`
  node "route" "by" {
    rule "beta" {
      host    = ["www.example.org"]
      headers = { "X-Beta" = "yes" }
    }
    rule "post" {
      host   = ["www.example.org"]
      method = ["POST", "PUT"]
    }
    rule "api" {
      host = ["api.example.org"]
    }
    rule "api-by-path" {
      output = "api"
      host   = ["www.example.org"]
      path   = ["/api"]
    }
    rule "www" {
      host = ["*.example.org", "example.org"]
    }
    rule "old" {
      source = ["127.0.0.0/8"]
      path   = ["/old"]
    }
  }
}`)
	p := dial(t, r.addr("in"))
	for _, c := range []struct{ request, want string }{
		{"GET / HTTP/1.1\r\nHost: api.example.org", "200 api"},
		{"GET / HTTP/1.1\r\nHost: API.Example.ORG.:8080", "200 api"},
		{"GET / HTTP/1.1\r\nHost: www.example.org", "200 www"},
		{"GET /api/x HTTP/1.1\r\nHost: www.example.org", "200 api"},
		{"GET //api HTTP/1.1\r\nHost: www.example.org", "200 api"},
		{"GET /x/../%61pi?q HTTP/1.1\r\nHost: www.example.org", "200 api"},
		{"GET /apis HTTP/1.1\r\nHost: www.example.org", "200 www"},
		{"GET http://api.example.org/ HTTP/1.1\r\nHost: www.example.org", "200 api"},
		{"POST / HTTP/1.1\r\nHost: www.example.org", "200 post"},
		{"GET / HTTP/1.1\r\nHost: www.example.org\r\nx-beta: yes", "200 beta"},
		{"GET / HTTP/1.1\r\nHost: www.example.org\r\nX-Beta: no", "200 www"},
		{"GET / HTTP/1.1\r\nHost: example.org", "200 www"},
		{"GET / HTTP/1.1\r\nHost: example.com", "404 404 Not Found\n"},
		{"GET /old HTTP/1.1\r\nHost: example.com", "200 old"},
		{"GET / HTTP/1.1\r\nHost:", "404 404 Not Found\n"},
	} {
		if got := p.get(c.request + "\r\n\r\n"); got != c.want {
			t.Errorf("%q: %q, want %q", c.request, got, c.want)
		}
	}
	if r.output("by", "no_route") != 2 {
		t.Errorf("%d without a route", r.output("by", "no_route"))
	}
}

func TestAnswersOfOurOwn(t *testing.T) {
	b := record(t, "HTTP/1.1 200 OK\r\nServer: secret\r\nX-Old: 1\r\nContent-Length: 2\r\n\r\nok")
	r := run(t, stream("main = [in, by.go, move]\n teapot = [by.tea, fixed]\n rest = [by.rest, fields, slow, pick, out]",
		in("")+`node "redirect" "move" {
 to = "https://{host}{target}"
}
node "respond" "fixed" {
 status = 418
 body = "short and stout"
 headers = { "X-Tea" = "earl grey" }
}
node "headers" "fields" {
 request_id = "X-Request-Id"
 request {
  set = { "X-A" = "new" }
  remove = ["X-Secret"]
 }
 response {
  set = { "Strict-Transport-Security" = "max-age=1" }
  add = { "Set-Cookie" = "a=b" }
  remove = ["Server"]
 }
}
node "rate-limit" "slow" {
 rate = 1
 burst = 3
}
node "route" "by" {
 rule "go" { path = ["/go"] }
 rule "tea" { path = ["/tea"] }
 rule "rest" {}
}
`+pick, b.addr()))
	p := dial(t, r.addr("in"))
	p.send("GET /go/x?y=%zz HTTP/1.1\r\nHost: a.example:80\r\n\r\n")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 308 ") || !strings.Contains(h, "Location: https://a.example/go/x?y=%zz\r\n") {
		t.Errorf("%q", h)
	}
	// A body that nobody reads.
	p.send("POST /tea HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 418 ") || !strings.Contains(h, "X-Tea: earl grey\r\n") || p.read(15) != "short and stout" {
		t.Errorf("%q", h)
	}
	p.send("HEAD /tea HTTP/1.1\r\nHost: x\r\n\r\n")
	if h := p.head(); !strings.Contains(h, "Content-Length: 15\r\n") {
		t.Errorf("%q", h)
	}
	for i := range 4 {
		p.send("GET / HTTP/1.1\r\nHost: x\r\nX-A: old\r\nx-a: older\r\nX-Secret: s\r\nX-Request-Id: mine\r\n\r\n")
		h := p.head()
		if i == 3 {
			if !strings.HasPrefix(h, "HTTP/1.1 429 ") || !strings.Contains(h, "Retry-After: 1\r\n") || !strings.Contains(h, "Strict-Transport-Security") {
				t.Errorf("%q", h)
			}
			break
		}
		p.read(2)
		if !strings.Contains(h, "Strict-Transport-Security: max-age=1\r\nSet-Cookie: a=b\r\n") || strings.Contains(h, "secret") || !strings.Contains(h, "X-Old: 1\r\n") {
			t.Errorf("%q", h)
		}
		got := b.take()
		_, id, _ := strings.Cut(got, "X-Request-Id: ")
		id, _, _ = strings.Cut(id, "\r\n")
		if strings.Count(got, "X-A: ") != 1 || !strings.Contains(got, "X-A: new\r\n") || strings.Contains(got, "old") || strings.Contains(got, "X-Secret") || len(id) != 32 || !strings.Contains(h, "X-Request-Id: "+id) {
			t.Errorf("%q answered by %q", got, h)
		}
	}
	r.quiet()
}

// A line for every request and connection, with what the requirements name.
func TestAccessLog(t *testing.T) {
	t.Parallel() // it waits most of its time
	file := filepath.Join(t.TempDir(), "access.log")
	b := record(t, ok)
	r := run(t, stream("main = [in, log, pick, out]", in("")+fmt.Sprintf("node \"access-log\" \"log\" { file = %q }\n", file)+pick, b.addr()))
	p := dial(t, r.addr("in"))
	p.get("GET /a?\"b HTTP/1.1\r\nHost: H.example\r\n\r\n")
	_ = p.Close()
	_ = b.Close()
	line := func(n int) map[string]any {
		var text string
		eventually(t, "the line is written", func() error {
			all, _ := os.ReadFile(file)
			lines := strings.Split(strings.TrimSpace(string(all)), "\n")
			if len(lines) < n || lines[n-1] == "" {
				return fmt.Errorf("%q", all)
			}
			text = lines[n-1]
			return nil
		})
		m := map[string]any{}
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return m
	}
	m := line(1)
	for k, want := range map[string]any{"listener": "in", "host": "H.example", "method": "GET", "path": "/a?\"b", "status": 200.0, "bytes_out": 2.0, "backend": b.addr(), "tries": 1.0, "node": "out", "route": "pick", "protocol": "HTTP/1.1"} {
		if m[k] != want {
			t.Errorf("%s is %v, want %v", k, m[k], want)
		}
	}
	for _, k := range []string{"time", "client", "connect_ms", "first_byte_ms", "total_ms"} {
		if m[k] == nil {
			t.Errorf("no %s in %v", k, m)
		}
	}
	// The log is moved away, and goes on in a new file.
	time.Sleep(1100 * time.Millisecond)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	// One that leaves.
	hang := serve(t, func(p *peer) { p.rest() })
	q := run(t, stream("main = [in, log, pick, out]", in("")+fmt.Sprintf("node \"access-log\" \"log\" { file = %q }\n", file)+pick, hang.addr()))
	p = dial(t, q.addr("in"))
	p.send(get)
	time.Sleep(20 * time.Millisecond)
	_ = p.Close()
	if m := line(1); m["status"] != 499.0 || m["reason"] != "client_gone" || m["node"] != "out" {
		t.Errorf("%v", m)
	}
}

// A request that cannot be read has a line in the log that all requests come to, and
// none where they part before.
func TestUnreadableIsLogged(t *testing.T) {
	t.Parallel() // it waits most of its time
	b := record(t, ok)
	log := func(name string) (file, node string) {
		file = filepath.Join(t.TempDir(), name)
		return file, fmt.Sprintf("node \"access-log\" %q { file = %q }\n", name, file)
	}
	file, node := log("log")
	const by = "node \"route\" \"by\" {\n rule \"a\" { path = [\"/a\"] }\n rule \"b\" {}\n}\n"
	listen := in("header_timeout = \"150ms\"\n max_line = 100\n max_field = 300")
	r := run(t, stream("main = [in, gate, log, by.a, pick, out]\n b = [by.b, pick]", listen+"node \"admit\" \"gate\" {}\n"+node+by+pick, b.addr()))
	seen := 0
	last := func() map[string]any {
		t.Helper()
		seen++
		var lines []string
		eventually(t, "the line is written", func() error {
			all, _ := os.ReadFile(file)
			if lines = strings.SplitAfter(string(all), "\n"); len(lines) != seen+1 {
				return fmt.Errorf("%d lines, not %d", len(lines)-1, seen)
			}
			return nil
		})
		m := map[string]any{}
		if err := json.Unmarshal([]byte(lines[seen-1]), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	check := func(name string, status float64, protocol any) {
		t.Helper()
		m := last()
		for k, want := range map[string]any{"status": status, "listener": "in", "node": "in", "reason": "bad_request", "tries": 0.0, "protocol": protocol, "host": nil, "method": nil, "path": nil, "backend": nil} {
			if m[k] != want {
				t.Errorf("%s: %s is %v, want %v", name, k, m[k], want)
			}
		}
		if e, _ := m["error"].(string); e == "" || m["time"] == nil || m["client"] == nil || m["bytes_out"] == 0.0 {
			t.Errorf("%s: %v", name, m)
		}
	}
	for _, c := range []struct {
		name, request string
		status        float64
	}{
		{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
		{"no request", "hello\r\n\r\n", 400},
		{"half a head", "GET / HTTP/1.1\r\nHos", 408},
		{"a long line", "GET /" + strings.Repeat("x", 200) + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
		{"a long field", "GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 400) + "\r\n\r\n", 431},
	} {
		p := dial(t, r.addr("in"))
		p.send(c.request)
		if h := p.head(); !strings.HasPrefix(h, fmt.Sprintf("HTTP/1.1 %.0f ", c.status)) {
			t.Errorf("%s: %q", c.name, h)
		}
		_ = p.Close()
		check(c.name, c.status, nil)
	}
	f := h2raw(t, r.addr("in"))
	_ = f.headers(1, true, append(h2get[:8:8], "a", strings.Repeat("x", 400))...)
	if s := f.status(1); s != "431" {
		t.Errorf("HTTP/2: %s", s)
	}
	_ = f.p.Close()
	check("HTTP/2", 431, "HTTP/2")
	// Nobody who merely leaves.
	p := dial(t, r.addr("in"))
	p.send("GET / HT")
	_ = p.Close()
	p = dial(t, r.addr("in"))
	p.get(get)
	_ = p.Close()
	if m := last(); m["status"] != 200.0 {
		t.Errorf("%v", m)
	}
	r.quiet()
	if n := r.counter("log", "lines"); n != uint64(seen) || r.node("log").Packets != 1 {
		t.Errorf("%d lines, %d sessions", n, r.node("log").Packets)
	}
	// Logs behind a node where requests part have lines of theirs alone.
	one, first := log("first")
	two, second := log("second")
	r = run(t, stream("main = [in, by.a, first, pick, out]\n b = [by.b, second, pick]", listen+by+first+second+pick, b.addr()))
	for _, request := range []string{"hello\r\n\r\n", "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", get} {
		p := dial(t, r.addr("in"))
		p.send(request)
		p.head()
		_ = p.Close()
	}
	for _, file := range []string{one, two} {
		eventually(t, "each has its own", func() error {
			if all, _ := os.ReadFile(file); strings.Count(string(all), "\n") != 1 || !strings.Contains(string(all), `"status":200`) {
				return fmt.Errorf("%s", all)
			}
			return nil
		})
	}
}

// certificate writes a self-signed certificate for names.
func certificate(t testing.TB, dir, name string, names ...string) (crt, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	crt, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for path, b := range map[string][]byte{crt: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE " + "KEY", Bytes: p})} {
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	return crt, key
}

func tlsNode(args string, pairs ...string) string {
	var b strings.Builder
	b.WriteString("node \"tls\" \"secure\" {\n" + args + "\n")
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&b, "certificate {\n cert = %q\n key = %q\n}\n", pairs[i], pairs[i+1])
	}
	b.WriteString("}\n")
	return b.String()
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "www", "www.example.org")
	ca, caKey := certificate(t, dir, "client")
	b := record(t, ok)
	r := run(t, stream("main = [in, secure, by.www, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+
		"node \"route\" \"by\" {\n rule \"www\" { server_name = [\"www.example.org\"] }\n}\n"+pick, b.addr()))
	pool := x509.NewCertPool()
	text, _ := os.ReadFile(crt)
	pool.AppendCertsFromPEM(text)
	c, err := tls.Dial("tcp", r.addr("in"), &tls.Config{RootCAs: pool, ServerName: "www.example.org", NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, c)
	for range 3 {
		if got := p.get(get); got != "200 ok" {
			t.Errorf("%q", got)
		}
	}
	if got := b.take(); !strings.Contains(got, "X-Forwarded-Proto: https\r\n") || !strings.Contains(got, ";proto=https\r\n") {
		t.Errorf("%q", got)
	}
	// A large body down and up, which cannot be spliced.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _, _ = io.Copy(w, req.Body) }))
	defer srv.Close()
	r2 := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("client_auth = \"require\"\n client_ca = "+fmt.Sprintf("%q", ca), crt, key)+pick, addrOf(srv)))
	if c, err := tls.Dial("tcp", r2.addr("in"), &tls.Config{RootCAs: pool, ServerName: "www.example.org"}); err == nil {
		if _, err := newPeer(t, c).r.ReadByte(); err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("without a certificate: %v", err)
		}
	}
	eventually(t, "it is counted", func() error {
		if r2.output("secure", "handshake_failed") != 1 {
			return fmt.Errorf("%d", r2.output("secure", "handshake_failed"))
		}
		return nil
	})
	pair, err := tls.LoadX509KeyPair(ca, caKey)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "www.example.org", Certificates: []tls.Certificate{pair}}}}
	big := strings.Repeat("0123456789abcdef", 100_000)
	res, err := client.Post("https://"+r2.addr("in")+"/", "text/plain", strings.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if string(got) != big || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	client.CloseIdleConnections()
	// Nonsense, and silence.
	p = dial(t, r.addr("in"))
	p.send(get)
	if got := p.rest(); strings.Contains(got, "HTTP/1.1 200") {
		t.Errorf("%q", got)
	}
}

// A certificate changes under load: no request fails, and new connections get it.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "www", "a")
	b := record(t, ok)
	r := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, b.addr()))
	serial := func() string {
		c, err := tls.Dial("tcp", r.addr("in"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return ""
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var bad atomic.Int64
	for range 4 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := client.Get("https://" + r.addr("in") + "/")
				if err != nil {
					bad.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	certificate(t, dir, "www", "a")
	eventually(t, "the new certificate", func() error {
		if serial() == first {
			return fmt.Errorf("the old one")
		}
		return nil
	})
	second := serial()
	_ = os.WriteFile(crt, []byte("bad"), 0o600)
	time.Sleep(300 * time.Millisecond)
	if serial() != second {
		t.Error("a bad certificate takes the place of a good one")
	}
	close(stop)
	wg.Wait()
	if n := bad.Load(); n > 0 {
		t.Errorf("%d requests failed", n)
	}
}

// TLS that is passed on by the name its client asks for.
func TestServerNames(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprint(w, "hello "+req.TLS.ServerName) }))
	defer srv.Close()
	r := run(t, stream("main = [in, by.a, pick, out]", in("protocol = \"tcp\"")+
		"node \"route\" \"by\" {\n hello_timeout = \"100ms\"\n rule \"a\" { server_name = [\"*.a.example\"] }\n}\n"+pick, strings.TrimPrefix(srv.URL, "https://")))
	for name, want := range map[string]bool{"x.a.example": true, "b.example": false} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: name}}}
		res, err := client.Get("https://" + r.addr("in") + "/")
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			got, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if string(got) != "hello "+name {
				t.Errorf("%q", got)
			}
		}
		client.CloseIdleConnections()
	}
	p := dial(t, r.addr("in"))
	begun := time.Now()
	if got := p.rest(); got != "«reset»" || time.Since(begun) > time.Second {
		t.Errorf("silence: %q after %v", got, time.Since(begun))
	}
	r.quiet()
}

// PROXY protocol in and out: v1 and v2, trusted peers only.
func TestProxyProtocol(t *testing.T) {
	for version := 1; version <= 2; version++ {
		got := make(chan string, 4)
		s := serve(t, func(p *peer) {
			var b []byte
			for {
				c, err := p.r.ReadByte()
				if err != nil {
					return
				}
				b = append(b, c)
				h, n, err := proxyproto.Parse(b)
				if err != nil {
					got <- err.Error()
					return
				}
				if n > 0 {
					got <- h.Source.String() + " " + h.Dest.String()
					break
				}
			}
			got <- p.head()
			p.send(ok)
		})
		r := run(t, simple(in("trusted = [\"127.0.0.0/8\"]\n proxy_protocol = \"accept\"")+out(fmt.Sprintf("proxy_protocol = \"v%d\"", version)), s.addr()))
		p := dial(t, r.addr("in"))
		p.send("PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n")
		if a := p.get(get); a != "200 ok" {
			t.Errorf("%q", a)
		}
		if h := <-got; h != "192.0.2.1:1234 198.51.100.2:80" {
			t.Errorf("%q", h)
		}
		if h := <-got; !strings.Contains(h, "X-Forwarded-For: 192.0.2.1\r\n") {
			t.Errorf("%q", h)
		}
		p = dial(t, r.addr("in")) // without a header
		if a := p.get(get); a != "200 ok" {
			t.Errorf("%q", a)
		}
		if h := <-got; !strings.HasPrefix(h, "127.0.0.1:") {
			t.Errorf("%q", h)
		}
	}
	b := record(t, ok)
	r := run(t, simple(in("trusted = [\"192.0.2.0/24\"]\n proxy_protocol = \"require\""), b.addr()))
	p := dial(t, r.addr("in"))
	if a := p.get("PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n\r\n"); !strings.HasPrefix(a, "400") {
		t.Errorf("a header of a peer that is not trusted: %q", a)
	}
	r = run(t, simple(in("trusted = [\"127.0.0.0/8\"]\n proxy_protocol = \"require\""), b.addr()))
	p = dial(t, r.addr("in"))
	p.send(get)
	if a := p.rest(); a != "«reset»" || r.output("in", "bad_proxy") != 1 {
		t.Errorf("no header: %q", a)
	}
}

// Limits of connections.
func TestConnectionLimits(t *testing.T) {
	b := record(t, ok)
	for _, limit := range []string{"connections", "connections_per_client"} {
		r := run(t, simple(in(limit+" = 2"), b.addr()))
		a, c := dial(t, r.addr("in")), dial(t, r.addr("in"))
		if a.get(get) != "200 ok" || c.get(get) != "200 ok" {
			t.Error("the first two are not served")
		}
		// The reset may come as early as the connect.
		try := func() string {
			c, err := net.Dial("tcp", r.addr("in"))
			if err != nil {
				return "«" + short(err) + "»"
			}
			defer c.Close()
			p := newPeer(t, c)
			return p.get(get)
		}
		// Whether the end or the reset is read first depends on the moment.
		if got := try(); got != "«reset»" && got != "«end»" {
			t.Errorf("%s: %q", limit, got)
		}
		_ = a.Close()
		eventually(t, "a place is free again", func() error {
			if got := try(); got != "200 ok" {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
}
