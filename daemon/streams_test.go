package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	_ "github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	"github.com/lbgraph/lbgraph/runtime"
)

func streamFile(t *testing.T, text string) *graph.File {
	t.Helper()
	f, diags := lang.LoadBytes("streams.hcl", []byte(text), lang.Options{})
	if !diags.HasErrors() {
		diags = graph.Check(f)
	}
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return f
}

// A file of two streams, TCP and HTTP, on the same two backends, with health checks:
// what examples/simple.hcl is, on ports of a test.
func twoStreams(web, tcp string, backends ...string) string {
	var b strings.Builder
	b.WriteString("health \"up\" {\n type = \"http\"\n interval = \"20ms\"\n timeout = \"15ms\"\n}\npool \"web\" {\n table_size = 251\n health = health.up\n")
	for i, a := range backends {
		host, port, _ := net.SplitHostPort(a)
		fmt.Fprintf(&b, " backend \"b%d\" {\n  address = %q\n  port = %s\n }\n", i+1, host, port)
	}
	b.WriteString("}\n")
	for name, c := range map[string][2]string{"web": {web, "http"}, "raw": {tcp, "tcp"}} {
		if c[0] != "" {
			fmt.Fprintf(&b, "stream %q {\n path { main = [in, pick, out] }\n node \"listen\" \"in\" {\n  address = %q\n  protocol = %q\n }\n node \"balance\" \"pick\" { pool = pool.web }\n node \"proxy\" \"out\" {}\n}\n", name, c[0], c[1])
		}
	}
	return b.String()
}

// TestStreams: both streams share two backends evenly, a backend that fails its
// checks gets nothing and comes back, a reload adds and removes a stream under way,
// and a stop lets a request in flight end. curl is the client.
func TestStreams(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("missing: curl")
	}
	var sick atomic.Bool
	var addrs []string
	for i := range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if i == 1 && sick.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
			if r.URL.Path == "/slow" {
				time.Sleep(400 * time.Millisecond)
			}
			fmt.Fprintf(w, "b%d\n", i+1)
		}))
		t.Cleanup(s.Close)
		addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
	}
	both, one := twoStreams("127.0.0.1:0", "127.0.0.2:0", addrs...), twoStreams("127.0.0.1:0", "", addrs...)
	d, err := New(streamFile(t, both), Options{Version: "test", Log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))})
	if err == nil {
		err = d.Start(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = d.Stop(context.Background())
		}
	}()
	url := func(stream, path string) string {
		a, ok := d.Streams().Bound(stream, "in")
		if !ok {
			t.Fatalf("stream %s does not listen", stream)
		}
		return "http://" + a.String() + path
	}
	ask := func(stream string, n int) map[string]int {
		out, err := exec.Command(curl, "-sS", "--no-keepalive", fmt.Sprintf("%s?[1-%d]", url(stream, "/"), n)).CombinedOutput()
		if err != nil {
			t.Fatalf("curl: %v: %s", err, out)
		}
		m := map[string]int{}
		for _, l := range strings.Fields(string(out)) {
			m[l]++
		}
		return m
	}
	if m := ask("web", 20); m["b1"] != 10 || m["b2"] != 10 {
		t.Errorf("HTTP: %v", m)
	}
	if out, err := exec.Command(curl, "-sS", url("raw", "/"), "--next", "-sS", url("raw", "/")).CombinedOutput(); err != nil || len(strings.Fields(string(out))) != 2 {
		t.Errorf("TCP: %v: %s", err, out)
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	sick.Store(true)
	until("the sick backend gets requests still", func() bool { return ask("web", 6)["b2"] == 0 })
	sick.Store(false)
	until("the backend does not come back", func() bool { return ask("web", 6)["b2"] > 0 })

	plan, err := d.Reload(streamFile(t, one))
	if err != nil || plan.Class() != runtime.Live || !strings.Contains(plan.String(), "graph raw: is removed") {
		t.Errorf("%v, %v", plan, err)
	}
	if _, ok := d.Streams().Bound("raw", "in"); ok {
		t.Error("a stream that was removed listens")
	}
	at := url("web", "/")
	if plan, err = d.Reload(streamFile(t, both)); err != nil || plan.Class() != runtime.Live {
		t.Errorf("%v, %v", plan, err)
	}
	if url("web", "/") != at || len(ask("raw", 2)) == 0 {
		t.Error("the streams are not what they were")
	}
	// A port that somebody else has: nothing changes.
	l, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := d.Reload(streamFile(t, twoStreams("127.0.0.1:0", l.Addr().String(), addrs...))); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port in use: %v", err)
	}
	if len(ask("raw", 2)) == 0 {
		t.Error("the old file does not go on")
	}

	got := make(chan string, 1)
	go func() {
		res, err := http.Get(url("web", "/slow"))
		if err != nil {
			got <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		got <- string(b)
	}()
	time.Sleep(100 * time.Millisecond)
	if err := d.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	stopped = true
	for _, s := range d.StreamStats() {
		if err := s.CheckConservation(); err != nil {
			t.Error(err)
		}
	}
	if b := <-got; b != "b1\n" && b != "b2\n" {
		t.Errorf("the request in flight got %q", b)
	}
	if _, err := http.Get(at); err == nil {
		t.Error("it listens still")
	}
}

// A reload that fails behind the streams leaves them as they were, sockets included.
func TestStreamsGoBack(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://")
	d, err := New(streamFile(t, twoStreams("127.0.0.1:0", "127.0.0.2:0", at)), Options{Version: "test", Log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))})
	if err == nil {
		err = d.Start(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Stop(context.Background()) }()
	d.latch = func(step string) error {
		if step == "end" {
			return errors.New("for a test")
		}
		return nil
	}
	before, _ := d.Streams().Bound("web", "in")
	// One stream goes, and the other one moves.
	if _, err := d.Reload(streamFile(t, twoStreams("127.0.0.4:0", "", at))); err == nil {
		t.Fatal("the reload did not fail")
	}
	if a, ok := d.Streams().Bound("web", "in"); !ok || a.Addr() != before.Addr() {
		t.Errorf("it listens on %v, %v, as the file that failed says", a, ok)
	} else if res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + a.String()); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", res, err)
	}
	if _, ok := d.Streams().Bound("raw", "in"); !ok {
		t.Error("the stream that the file that failed left out is gone")
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var err error
		for _, s := range d.StreamStats() {
			err = errors.Join(err, s.CheckConservation())
		}
		if err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
