package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// output is a writer that may be read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

var listens = regexp.MustCompile(`(?m) (?:at http://|at )([0-9.:]+)/?$`)

// backend runs b on n ports of HTTP and one of TCP that are free, and answers their
// addresses, TCP's last, and what it writes.
func backend(t *testing.T, b *Backend, n int) (addrs []string, out *output) {
	t.Helper()
	out = &output{}
	b.Out = out
	any := netip.MustParseAddrPort("127.0.0.1:0")
	for range n {
		b.HTTP = append(b.HTTP, any)
	}
	b.TCP = append(b.TCP, any)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("it does not end")
		}
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if m := listens.FindAllStringSubmatch(out.String(), -1); len(m) == n+1 {
			for _, x := range m {
				addrs = append(addrs, x[1])
			}
			return addrs, out
		}
		if time.Now().After(end) {
			t.Fatalf("it does not listen: %s", out)
		}
	}
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(b)
}

// Without a name each port answers with its own address; what is served is told.
func TestBackendPorts(t *testing.T) {
	addrs, out := backend(t, &Backend{Verbose: true}, 3)
	for _, a := range addrs[:3] {
		if r, body := get(t, "http://"+a+"/"); body != a+"\n" || r.Header.Get("Server") != a || r.StatusCode != 200 {
			t.Errorf("%s: %s %q %v", a, r.Status, body, r.Header)
		}
	}
	get(t, "http://"+addrs[0]+"/bytes/70000")
	get(t, "http://"+addrs[1]+"/status/404")
	for _, want := range []string{
		addrs[1] + ` answers HTTP at http://` + addrs[1] + `/\n`,
		addrs[3] + ` answers lines of TCP at ` + addrs[3] + `\n`,
		addrs[2] + `  GET /  200  \d+ B  \d+\.\d ms  from 127\.0\.0\.1:\d+\n`,
		addrs[0] + `  GET /bytes/70000  200  70000 B  `,
		addrs[1] + `  GET /status/404  404  `,
	} {
		until(t, "the output has "+want, func() bool { return regexp.MustCompile(want).MatchString(out.String()) })
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to that: " + what)
		}
	}
}

// Status, size and latency of what it answers.
func TestBackendFlags(t *testing.T) {
	addrs, out := backend(t, &Backend{Name: "sick", Status: 503, Size: 10_000, Latency: 60 * time.Millisecond}, 1)
	begun := time.Now()
	r, body := get(t, "http://"+addrs[0]+"/")
	if r.StatusCode != 503 || len(body) != 10_000 || r.ContentLength != 10_000 || !strings.HasPrefix(body, "sick\n.....") || time.Since(begun) < 60*time.Millisecond {
		t.Errorf("%s, %d bytes after %v: %.20q", r.Status, len(body), time.Since(begun), body)
	}
	c, err := net.Dial("tcp", addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun = time.Now()
	fmt.Fprint(c, "hello\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "sick hello\n" || err != nil || time.Since(begun) < 60*time.Millisecond {
		t.Errorf("%q, %v after %v", line, err, time.Since(begun))
	}
	if strings.Contains(out.String(), "GET") {
		t.Errorf("it tells what it serves, unasked: %s", out)
	}
}

// Chunks, events, and what it refuses.
func TestBackendStreams(t *testing.T) {
	addrs, _ := backend(t, &Backend{Name: "b", Every: 50 * time.Millisecond}, 1)
	base := "http://" + addrs[0]
	r, body := get(t, base+"/chunks/3")
	if body != "b 1\nb 2\nb 3\n" || r.ContentLength != -1 || len(r.TransferEncoding) != 1 {
		t.Errorf("%q, %v", body, r.TransferEncoding)
	}
	begun := time.Now()
	r, body = get(t, base+"/events/3")
	if body != "id: 1\ndata: b\n\nid: 2\ndata: b\n\nid: 3\ndata: b\n\n" || r.Header.Get("Content-Type") != "text/event-stream" || time.Since(begun) < 100*time.Millisecond {
		t.Errorf("%q, %v", body, r.Header)
	}
	// Endless events come at once, and end with the client.
	r, err := http.Get(base + "/events")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(r.Body).ReadString('\n'); line != "id: 1\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	_ = r.Body.Close()
	for path, status := range map[string]int{"/chunks/x": 400, "/events/0": 400, "/status/99": 400, "/status/204": 204, "/none": 404, "/echo": 426} {
		if r, _ := get(t, base+path); r.StatusCode != status {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	r, err = (&http.Client{Transport: h2}).Get(base + "/chunks/2")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); r.ProtoMajor != 2 || string(b) != "b 1\nb 2\n" || err != nil {
		t.Errorf("%s %q %v", r.Proto, b, err)
	}
}

// A client of WebSockets gets back what it sent, in every form of length; pings are
// answered; what is not masked or too long ends the connection.
func TestBackendWebSocket(t *testing.T) {
	addrs, _ := backend(t, &Backend{Name: "b"}, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, r, err := websocket.Dial(ctx, "ws://"+addrs[0]+"/echo", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Header.Get("Server") != "b" {
		t.Errorf("%v", r.Header)
	}
	c.SetReadLimit(1 << 20)
	for _, n := range []int{0, 1, 125, 126, 65535, 65536, 500_000} {
		for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
			want := bytes.Repeat([]byte("x"), n)
			if err := c.Write(ctx, kind, want); err != nil {
				t.Fatal(err)
			}
			if k, b, err := c.Read(ctx); err != nil || k != kind || !bytes.Equal(b, want) {
				t.Fatalf("%d bytes: %v, %d bytes, %v", n, k, len(b), err)
			}
		}
	}
	c.CloseRead(ctx)
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	for _, frame := range []string{"\x81\x01x", "\x82\xff\x00\x00\x00\x00\x7f\xff\xff\xff"} {
		c, err := net.Dial("tcp", addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		rd := bufio.NewReader(c)
		r, err := http.ReadResponse(rd, nil)
		if err != nil || r.StatusCode != 101 || r.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" { // RFC 6455 section 1.3
			t.Fatalf("%v, %v", r, err)
		}
		fmt.Fprint(c, frame)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if b, err := io.ReadAll(rd); len(b) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%q: %q, %v", frame, b, err)
		}
	}
}

// Lines of any length come back, and the end of the client's is no loss.
func TestBackendTCP(t *testing.T) {
	addrs, out := backend(t, &Backend{Name: "b", Verbose: true}, 0)
	c, err := net.Dial("tcp", addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	long := strings.Repeat("y", 100_000)
	go func() {
		fmt.Fprintf(c, "one\n\n%s\nno end", long)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, err := io.ReadAll(c); string(b) != "b one\nb \nb "+long+"\nb no end" || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	until(t, "the connection is told", func() bool { return strings.Contains(out.String(), "b  TCP  4 lines  from 127.0.0.1:") })
}
