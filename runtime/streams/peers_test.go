package streams_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nginx answers the address of an nginx that serves what conf says.
func nginx(t *testing.T, conf string) string {
	t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin = "/usr/sbin/nginx"; !exists(bin) {
			t.Skip("missing: nginx")
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	for _, d := range []string{"body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		conf = fmt.Sprintf("%s_temp_path %s/%s;\n", map[string]string{"body": "client_body"}[d]+map[bool]string{true: d}[d != "body"], dir, d) + conf
	}
	text := fmt.Sprintf("daemon off;\nmaster_process off;\nworker_processes 1;\npid %s/pid;\nerror_log %s/error.log;\nevents {}\nhttp {\naccess_log off;\n%s\n}\n", dir, dir, strings.ReplaceAll(conf, "ADDR", addr))
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(bin, "-p", dir, "-c", path, "-e", filepath.Join(dir, "error.log"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	eventually(t, "nginx listens", func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	return addr
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// nginx as a backend: keep-alive, HEAD, ranges, 304, a body too large, a request that
// it closes the connection behind.
func TestNginxBackend(t *testing.T) {
	file := t.TempDir()
	_ = os.Chmod(file, 0o755)
	big := strings.Repeat("0123456789abcdef", 200_000)
	if err := os.WriteFile(filepath.Join(file, "big"), []byte(big), 0o644); err != nil {
		t.Fatal(err)
	}
	addr := nginx(t, "keepalive_requests 3;\nclient_max_body_size 1k;\nserver { listen ADDR;\n root "+file+";\n location /ok { return 200 ok; }\n}")
	r := run(t, simple("", addr))
	u := "http://" + r.addr("in")
	p := dial(t, r.addr("in"))
	for i := range 20 { // nginx closes every third connection
		if got := p.get("GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"); got != "200 ok" {
			t.Errorf("%d: %q", i, got)
		}
	}
	res, err := http.Get(u + "/big")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if string(b) != big || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	req, _ := http.NewRequest("GET", u+"/big", nil)
	req.Header.Set("Range", "bytes=5-14")
	if res, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	b, _ = io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != 206 || string(b) != big[5:15] {
		t.Errorf("%s %q", res.Status, b)
	}
	req, _ = http.NewRequest("GET", u+"/big", nil)
	req.Header.Set("If-None-Match", res.Header.Get("ETag"))
	if res, err = http.DefaultClient.Do(req); err != nil || res.StatusCode != 304 {
		t.Errorf("%v, %v", res, err)
	}
	if res, err = http.Head(u + "/big"); err != nil || res.ContentLength != int64(len(big)) {
		t.Errorf("%v, %v", res, err)
	}
	// It refuses in mid-upload.
	if res, err = http.Post(u+"/ok", "text/plain", strings.NewReader(big)); err != nil || res.StatusCode != 413 {
		t.Errorf("%v, %v", res, err)
	} else {
		_ = res.Body.Close()
	}
	r.quiet()
}

// nginx as a proxy in front, with keep-alive and PROXY-less X-Forwarded-For.
func TestNginxInFront(t *testing.T) {
	b := record(t, ok)
	r := run(t, simple(in("trusted = [\"127.0.0.0/8\"]"), b.addr()))
	addr := nginx(t, "upstream u { server "+r.addr("in")+"; keepalive 4; }\nserver { listen ADDR;\n location / { proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header X-Forwarded-For 192.0.2.7; }\n}")
	for range 5 {
		res, err := http.Get("http://" + addr + "/a%2Fb")
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		_ = res.Body.Close()
	}
	if got := b.take(); !strings.Contains(got, "X-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n") || !strings.Contains(got, "GET /a%2Fb HTTP/1.1\r\n") {
		t.Errorf("%q", got)
	}
}

// What httputil.ReverseProxy does differently, on purpose. All else is the same: the
// status, the content, and what the backend saw.
var intended = map[string]string{
	"query that does not parse":    "httputil drops it; the target goes on byte for byte",
	"TE in HTTP/1.0":               "net/http takes it",
	"blank before colon in answer": "net/http's transport takes it",
	"CL and TE in answer":          "net/http's transport takes it",
	"CL and TE in request":         "net/http takes it, and closes",
	"escape that does not parse":   "net/http answers 400 by itself",
	"repeated CL":                  "net/http takes lengths that agree",
	"bare LF":                      "net/http takes it",
	"CONNECT":                      "httputil passes it on",
	"double slash":                 "",

	"faulty head: CL and TE":         "net/http takes it, and closes",
	"faulty head: TE and CL":         "net/http takes it, and closes",
	"faulty head: two TE lines":      "net/http answers 501",
	"faulty head: xchunked":          "net/http answers 501",
	"faulty head: chunked in quotes": "net/http answers 501",
	"faulty head: folded field":      "net/http unfolds it",
	"faulty head: HTTP/1.0 with TE":  "net/http takes it",
	"faulty head: CONNECT":           "httputil passes it on",
	"faulty head: long target":       "net/http has no limit of lines",
	"faulty head: large head":        "net/http takes a megabyte",
	"faulty head: many fields":       "net/http takes any number",
}

func TestDifferential(t *testing.T) {
	t.Parallel() // it waits most of its time
	const okAnswer = ok
	cases := []struct{ name, request, answer string }{
		{"plain", get, okAnswer},
		{"query", "GET /a?b=c&d=%20 HTTP/1.1\r\nHost: x\r\n\r\n", okAnswer},
		{"query that does not parse", "GET /a?b=%zz;c HTTP/1.1\r\nHost: x\r\n\r\n", okAnswer},
		{"escape that does not parse", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", okAnswer},
		{"double slash", "GET /a//b HTTP/1.1\r\nHost: x\r\n\r\n", okAnswer},
		{"escaped slash", "GET /a%2Fb HTTP/1.1\r\nHost: x\r\n\r\n", okAnswer},
		{"length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", okAnswer},
		{"chunks", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", okAnswer},
		{"CL and TE in request", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", okAnswer},
		{"repeated CL", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", okAnswer},
		{"differing CL", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", okAnswer},
		{"TE in HTTP/1.0", "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", okAnswer},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", okAnswer},
		{"bare LF", "GET / HTTP/1.1\nHost: x\n\n", okAnswer},
		{"CONNECT", "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", okAnswer},
		{"HEAD", "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"},
		{"chunked answer", get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
		{"204", get, "HTTP/1.1 204 No Content\r\n\r\n"},
		{"304", get, "HTTP/1.1 304 Not Modified\r\n\r\n"},
		{"CL and TE in answer", get, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
		{"differing CL in answer", get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!"},
		{"blank before colon in answer", get, "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok"},
		{"malformed answer", get, "nonsense\r\n\r\n"},
		{"hop by hop", "GET / HTTP/1.1\r\nHost: x\r\nConnection: X-Hop\r\nX-Hop: a\r\nX-Stay: b\r\n\r\n", okAnswer},
	}
	for _, c := range faultyHeads {
		cases = append(cases, struct{ name, request, answer string }{"faulty head: " + c.name, c.request, okAnswer})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var seen [2]string
			var got [2]string
			for i := range 2 {
				heads := make(chan string, 4)
				s := serve(t, func(p *peer) {
					h := p.head()
					heads <- h
					if strings.Contains(h, "Content-Length: 5") {
						heads <- p.read(5)
					} else if strings.Contains(h, "chunked") {
						heads <- p.read(15)
					}
					p.send(c.answer)
					_ = p.Conn.(*net.TCPConn).CloseWrite()
				})
				addr := ""
				if i == 0 {
					addr = run(t, simple("", s.addr())).addr("in")
				} else {
					u, _ := url.Parse("http://" + s.addr())
					proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host }, ErrorLog: nil})
					t.Cleanup(proxy.Close)
					addr = addrOf(proxy)
				}
				p := dial(t, addr)
				_ = p.SetDeadline(time.Now().Add(2 * time.Second))
				p.send(c.request)
				h := p.head()
				if len(h) > 12 {
					got[i] = h[9:12]
				}
				if got[i] == "200" && !strings.HasPrefix(c.request, "HEAD") {
					if strings.Contains(h, "chunked") {
						got[i] += p.read(7)[3:5]
					} else {
						got[i] += p.read(2)
					}
				}
				select {
				case b := <-heads:
					line, fields, _ := strings.Cut(b, "\r\n")
					seen[i] = line
					for _, f := range []string{"X-Hop", "X-Stay", "Content-Length", "Transfer-Encoding"} {
						if strings.Contains(fields, f+":") {
							seen[i] += " " + f
						}
					}
				default:
				}
				_ = p.Close()
			}
			same := got[0] == got[1] && seen[0] == seen[1]
			if why, known := intended[c.name]; !same && (!known || why == "") {
				t.Errorf("%s: we answer %q and send %q; httputil answers %q and sends %q", c.name, got[0], seen[0], got[1], seen[1])
			} else if same && known && why != "" {
				t.Errorf("%s: no difference any more (%s)", c.name, why)
			}
		})
	}
}
