package cmd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/lbgraph/lbgraph/internal/flood"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// A stage is a namespace in which an example runs as it stands, with its own ports.
type stage struct {
	*netnstest.NS
	t   *testing.T
	bin string
	log lockedBuffer
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{NS: netnstest.New(t), t: t, bin: build(t)}
}

// daemon runs lbgraph run with a file and waits until it does.
func (s *stage) daemon(args ...string) *exec.Cmd {
	s.t.Helper()
	c := exec.Command(s.bin, append([]string{"run"}, args...)...)
	c.Stderr = &s.log
	s.Start(c)
	s.until("the daemon runs", func() bool { return strings.Contains(s.log.String(), "\trunning") })
	return c
}

// backend runs lbgraph demo backend and waits until it listens on all of its ports.
func (s *stage) backend(args ...string) *exec.Cmd {
	s.t.Helper()
	c := exec.Command(s.bin, append([]string{"demo", "backend"}, args...)...)
	var out lockedBuffer
	c.Stdout, c.Stderr = &out, &s.log
	want := 0
	for i, a := range args {
		if a == "--http" || a == "--tcp" {
			low, high, is := strings.Cut(args[i+1], "-")
			want++
			if is {
				lo, _ := strconv.Atoi(low)
				hi, _ := strconv.Atoi(high)
				want += hi - lo
			}
		}
	}
	s.Start(c)
	s.until("the backend listens", func() bool { return strings.Count(out.String(), " answers ") >= want })
	return c
}

// kill ends a process as a crash does.
func kill(c *exec.Cmd) {
	_ = c.Process.Kill()
	_ = c.Wait()
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("it does not come to that: %s; the log:\n%s", what, s.log.String())
		}
	}
}

// curl answers what curl writes; what it fails with is an error of the test.
func (s *stage) curl(args ...string) string {
	s.t.Helper()
	out, err := s.Try("curl", append([]string{"-sS", "-m", "20"}, args...)...)
	if err != nil {
		s.t.Errorf("curl %v: %v; the log:\n%s", args, err, s.log.String())
	}
	return out
}

// who counts the answers, by name, of n requests of curl on one connection.
func (s *stage) who(n int, url string, args ...string) map[string]int {
	s.t.Helper()
	by := map[string]int{}
	for _, l := range strings.Fields(s.curl(append(args, fmt.Sprintf("%s?[1-%d]", url, n))...)) {
		by[l]++
	}
	return by
}

// flood puts load on and answers what came of it.
func (s *stage) flood(args ...string) *flood.Result {
	s.t.Helper()
	c := exec.Command("nsenter", append([]string{"--net=" + s.Path(), s.bin, "demo", "flood", "-o", "json", "--quiet"}, args...)...)
	out, err := c.Output()
	var r flood.Result
	if bad := json.Unmarshal(out, &r); bad != nil {
		s.t.Errorf("flood %v: %v, %v: %s", args, err, bad, out)
	}
	var e *exec.ExitError
	if (err != nil) == r.OK() || err != nil && (!errors.As(err, &e) || e.ExitCode() != 1) {
		s.t.Errorf("flood %v: %v: %s", args, err, out)
	}
	return &r
}

// TestNetHugeHeap: where the kernel gives huge pages to who asks, a file with streams has
// its heap on them, from the start or from a reload on.
func TestNetHugeHeap(t *testing.T) {
	const setting = "/sys/kernel/mm/transparent_hugepage/enabled"
	if b, err := os.ReadFile(setting); err != nil || !strings.Contains(string(b), "[madvise]") {
		t.Skipf("kernel: huge pages are not given to who asks: %s %v", b, err)
	}
	s := newStage(t)
	c := s.daemon("../examples/simple.hcl")
	if n := huge(t, c.Process.Pid); n < 256<<10 {
		t.Errorf("%d KiB are on huge pages at most", n)
	}
	s = newStage(t)
	text, err := os.ReadFile("../examples/simple.hcl")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "lb.hcl")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("log {}\n")
	c = s.daemon(file)
	if n := huge(t, c.Process.Pid); n > 128<<10 {
		t.Errorf("without streams %d KiB are on huge pages", n)
	}
	write(string(text))
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.until("the streams are there, on huge pages", func() bool { return huge(t, c.Process.Pid) >= 256<<10 })
}

// huge answers the size in KiB of a process's largest mapping for which huge pages were
// asked.
func huge(t *testing.T, pid int) (most int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for line := range strings.Lines(string(b)) {
		switch k, v, _ := strings.Cut(line, ":"); {
		case k == "Size":
			size, _ = strconv.Atoi(strings.Fields(v)[0])
		case k == "VmFlags" && strings.Contains(v, " hg"):
			most = max(most, size)
		}
	}
	return most
}

// TestNetExampleSimple: what examples/simple.hcl promises: in turn, to both; checks by
// GET and by connect; a backend that is killed gets nothing more and comes back.
func TestNetExampleSimple(t *testing.T) {
	s := newStage(t)
	s.backend("--name", "web-1", "--http", "8081", "--latency", "2ms")
	web2 := s.backend("--name", "web-2", "--http", "8082", "--latency", "2ms")
	s.backend("--name", "echo-1", "--tcp", "8091", "--latency", "2ms")
	echo2 := s.backend("--name", "echo-2", "--tcp", "8092", "--latency", "2ms")
	s.daemon("../examples/simple.hcl")

	const web, tcp = "http://127.0.0.1:8080/", "tcp://127.0.0.1:8090"
	even := func(by map[string]int64, a, b string, n int64) bool {
		return by[a] == n/2 && by[b] == n/2 && len(by) == 2
	}
	s.until("all is known of the backends", func() bool {
		return strings.Count(s.log.String(), "a backend changes its state") >= 4
	})
	if by := s.who(20, web); by["web-1"] != 10 || by["web-2"] != 10 {
		t.Errorf("curl is answered by %v", by)
	}
	if r := s.flood(web, "-n", "1000"); !r.OK() || !even(r.AnsweredBy, "web-1", "web-2", 1000) {
		t.Errorf("HTTP: %+v", r)
	}
	if r := s.flood(tcp, "-n", "200", "--per-request"); !r.OK() || !even(r.AnsweredBy, "echo-1", "echo-2", 200) {
		t.Errorf("TCP: %+v", r)
	}

	// One of each dies.
	kill(web2)
	kill(echo2)
	s.until("HTTP goes to the other", func() bool { return s.who(6, web)["web-1"] == 6 })
	if r := s.flood(web, "-n", "200"); !r.OK() || r.AnsweredBy["web-1"] != 200 {
		t.Errorf("HTTP: %+v", r)
	}
	if r := s.flood(tcp, "-n", "100", "--per-request"); !r.OK() || r.AnsweredBy["echo-1"] != 100 {
		t.Errorf("TCP: %+v", r)
	}

	// A GET finds out what a connect does not.
	sick := s.backend("--name", "sick", "--http", "8082", "--status", "503")
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		if by := s.who(10, web); by["web-1"] != 10 {
			t.Fatalf("a backend that answers 503 to its check takes part: %v", by)
		}
	}
	kill(sick)

	// They come back.
	s.backend("--name", "web-2", "--http", "8082", "--latency", "2ms")
	s.backend("--name", "echo-2", "--tcp", "8092", "--latency", "2ms")
	s.until("web-2 answers again", func() bool { return s.who(10, web)["web-2"] > 0 })
	s.until("echo-2 answers again", func() bool { return s.flood(tcp, "-n", "10", "--per-request").AnsweredBy["echo-2"] > 0 })
	s.until("web-2 has its share again", func() bool {
		r := s.flood(web, "-n", "100")
		return r.OK() && even(r.AnsweredBy, "web-1", "web-2", 100)
	})
}

// The admin block that a test adds to an example, to give orders by.
func (s *stage) socket(file string) (copied, socket string) {
	s.t.Helper()
	socket = s.t.TempDir() + "/admin.sock"
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	return write(s.t, "lb.hcl", string(b)+fmt.Sprintf("\nadmin { socket = %q }\n", socket)), socket
}

// TestNetKilledAndDrained: under load a backend that is killed costs at most what is in
// flight on it, and nothing that may be asked again; one that is drained costs nothing,
// nor does one that comes back.
func TestNetKilledAndDrained(t *testing.T) {
	s := newStage(t)
	file, socket := s.socket("../examples/simple.hcl")
	s.backend("--name", "web-1", "--http", "8081", "--latency", "10ms")
	web2 := s.backend("--name", "web-2", "--http", "8082", "--latency", "10ms")
	s.backend("--name", "echo-1", "--tcp", "8091", "--latency", "10ms")
	echo2 := s.backend("--name", "echo-2", "--tcp", "8092", "--latency", "10ms")
	s.daemon(file)
	const web, tcp, connections = "http://127.0.0.1:8080/", "tcp://127.0.0.1:8090", 10
	floods := map[string][]string{
		"GET":  {web},
		"POST": {web + "upload", "--size", "100"},
		"TCP":  {tcp, "--per-request"},
		"long": {tcp}, // connections that stay on their backend
	}
	// under has all floods run while f does something, and some time before and after.
	under := func(f func()) map[string]*flood.Result {
		t.Helper()
		results, mu, wg := map[string]*flood.Result{}, sync.Mutex{}, sync.WaitGroup{}
		for name, args := range floods {
			wg.Go(func() {
				r := s.flood(append(args, "-c", fmt.Sprint(connections), "--rate", "200", "--duration", "5s", "--timeout", "20s")...)
				mu.Lock()
				defer mu.Unlock()
				results[name] = r
			})
		}
		time.Sleep(1500 * time.Millisecond)
		f()
		wg.Wait()
		for name, r := range results {
			if r.Requests != 1000 || r.Answered < 900 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		return results
	}
	order := func(args ...string) {
		t.Helper()
		if out, err := s.Try(s.bin, append(args, "--socket", socket)...); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}

	for name, r := range under(func() { kill(web2); kill(echo2) }) {
		t.Logf("%s: %d of %d failed: %v", name, r.Failed, r.Requests, r.Errors)
		// Each connection has one request in flight at most.
		if r.Failed > connections || name == "GET" && r.Failed > 0 {
			t.Errorf("killed, %s: %+v", name, r)
		}
		if r.AnsweredBy["web-1"]+r.AnsweredBy["echo-1"] <= r.AnsweredBy["web-2"]+r.AnsweredBy["echo-2"] {
			t.Errorf("killed, %s: the other does not take over: %v", name, r.AnsweredBy)
		}
	}
	floods["long"] = floods["TCP"]
	for name, r := range under(func() {
		s.backend("--name", "web-2", "--http", "8082", "--latency", "10ms")
		s.backend("--name", "echo-2", "--tcp", "8092", "--latency", "10ms")
	}) {
		if !r.OK() {
			t.Errorf("come back, %s: %+v", name, r)
		}
	}
	s.until("both have their shares", func() bool { // of 10 long connections some are on each, then
		return s.who(20, web)["web-2"] > 8 && s.flood(tcp, "-n", "20", "--per-request").AnsweredBy["echo-2"] > 8
	})
	// Not both floods of TCP at once: at one rate they may take turns, and the connections
	// that stay be all on one backend.
	floods["long"] = []string{tcp}
	delete(floods, "TCP")
	drain := func() { order("backend", "drain", "web/web-2"); order("backend", "drain", "echo/echo-2") }
	for name, r := range under(drain) {
		if !r.OK() || r.AnsweredBy["web-2"]+r.AnsweredBy["echo-2"] == 0 {
			t.Errorf("drained, %s: %+v", name, r)
		}
	}
	order("backend", "enable", "echo/echo-2")
	all := floods
	floods = map[string][]string{"TCP": {tcp, "--per-request"}}
	if r := under(drain)["TCP"]; !r.OK() || r.AnsweredBy["echo-2"] == 0 {
		t.Errorf("drained, TCP: %+v", r)
	}
	floods = all
	if r := s.flood(web, "-n", "200"); !r.OK() || r.AnsweredBy["web-1"] != 200 {
		t.Errorf("a drained backend answers: %v", r.AnsweredBy)
	}
	if r := s.flood(tcp, "-n", "100", "--per-request"); !r.OK() || r.AnsweredBy["echo-1"] != 100 {
		t.Errorf("a drained backend answers: %v", r.AnsweredBy)
	}
	for name, r := range under(func() { order("backend", "enable", "web/web-2"); order("backend", "enable", "echo/echo-2") }) {
		if !r.OK() {
			t.Errorf("enabled, %s: %+v", name, r)
		}
	}
}

// TestNetExampleHTTPS: examples/https.hcl and the commands of its comment: HTTP/1.1 and
// HTTP/2 over TLS, a certificate that is checked, plain HTTP that is led to it.
func TestNetExampleHTTPS(t *testing.T) {
	s := newStage(t)
	dir := t.TempDir()
	cert, key := dir+"/www.crt", dir+"/www.key"
	s.Exec("openssl", strings.Fields("req -x509 -newkey rsa:2048 -nodes -keyout "+key+" -out "+cert+" -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost")...)
	s.backend("--http", "8081-8082")
	s.daemon("../examples/https.hcl", "-var", "cert="+cert, "-var", "key="+key)
	for _, version := range []string{"--http1.1", "--http2"} {
		out := s.curl("--cacert", cert, version, "-D", "-", "https://localhost:8443/")
		if !strings.Contains(out, "\nstrict-transport-security: max-age=86400") && !strings.Contains(out, "\nStrict-Transport-Security: max-age=86400") ||
			!strings.Contains(out, "127.0.0.1:808") || strings.HasPrefix(out, "HTTP/2 200") != (version == "--http2") {
			t.Errorf("%s: %s", version, out)
		}
	}
	if by := s.who(10, "https://localhost:8443/", "--cacert", cert); by["127.0.0.1:8081"] != 5 || by["127.0.0.1:8082"] != 5 {
		t.Errorf("answered by %v", by)
	}
	if out := s.curl("--cacert", cert, "-L", "-w", "%{url_effective} %{num_redirects}", "http://localhost:8080/status/201?a=b"); !strings.HasSuffix(out, "https://localhost:8443/status/201?a=b 1") {
		t.Errorf("%s", out)
	}
	if out, err := s.Try("curl", "-sS", "-m", "20", "https://localhost:8443/"); err == nil {
		t.Errorf("a certificate that nobody vouches for is taken: %s", out)
	}
	if r := s.flood("https://localhost:8443/", "--insecure", "-n", "300", "--per-request"); !r.OK() || r.AnsweredBy["127.0.0.1:8081"] != 150 {
		t.Errorf("%+v", r)
	}
}

// TestNetExampleHosts: examples/hosts.hcl: two hosts, three backends each; 100 requests
// at most at the same time; a backend that is slow gets fewer.
func TestNetExampleHosts(t *testing.T) {
	s := newStage(t)
	// What takes time is /chunks/1, not what checks ask for.
	s.backend("--http", "9001-9002", "--http", "9011-9013", "--every", "5ms")
	s.backend("--http", "9003", "--every", "200ms")
	s.daemon("../examples/hosts.hcl")
	const url = "http://127.0.0.1:8080/"
	if out := s.curl("http://api.localhost:8080/", "http://www.localhost:8080/", "http://localhost:8080/"); strings.Count(out, "127.0.0.1:900") != 1 || strings.Count(out, "127.0.0.1:901") != 2 {
		t.Errorf("%s", out)
	}
	if out := s.curl("-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: other.localhost", url); out != "404" {
		t.Errorf("another host: %s", out)
	}
	// Least connections: of what is slow each takes forty times as long.
	r := s.flood(url+"chunks/1", "--host", "api.localhost", "-c", "12", "-n", "2000")
	by := r.AnsweredBy
	if !r.OK() || len(by) != 3 || by["127.0.0.1:9003"]*3 > by["127.0.0.1:9001"] || by["127.0.0.1:9003"]*3 > by["127.0.0.1:9002"] {
		t.Errorf("least connections: %v, %v", by, r.Errors)
	}
	if r = s.flood(url+"chunks/1", "--host", "www.localhost", "-c", "12", "-n", "600"); !r.OK() || len(r.AnsweredBy) != 3 || r.AnsweredBy["127.0.0.1:9011"] < 100 {
		t.Errorf("%+v", r)
	}
	// 150 at the same time, for longer than anybody may wait: 100 are in flight, others get 503.
	x := newStage(t)
	for _, ports := range []string{"9001-9003", "9011-9013"} {
		x.backend("--http", ports, "--every", "1s")
	}
	x.daemon("../examples/hosts.hcl")
	r = x.flood(url+"chunks/1", "--host", "api.localhost", "-c", "150", "-n", "150", "--timeout", "30s")
	if r.Errors["status 503"] != r.Failed || r.Failed == 0 || r.Answered < 100 {
		t.Errorf("150 at the same time: %+v", r)
	}
	if r = x.flood(url+"chunks/1", "--host", "api.localhost", "-c", "100", "-n", "200", "--timeout", "30s"); !r.OK() {
		t.Errorf("100 at the same time: %+v", r)
	}
	if out := x.curl("-D", "-", "-o", "/dev/null", "-H", "Host: api.localhost", url); !strings.HasPrefix(out, "HTTP/1.1 200") {
		t.Errorf("%s", out)
	}
}

// dial opens a connection in the namespace.
func (s *stage) dial(_ context.Context, network, addr string) (c net.Conn, err error) {
	s.Do(func() { c, err = net.Dial(network, addr) })
	return c, err
}

// listen opens a socket in the namespace.
func (s *stage) listen(addr string) (l net.Listener) {
	s.t.Helper()
	var err error
	s.Do(func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestNetExampleStreaming: examples/streaming.hcl: WebSockets, events and gRPC by one
// port, each with a client that does nothing else.
func TestNetExampleStreaming(t *testing.T) {
	s := newStage(t)
	s.backend("--http", "8081-8082", "--every", "300ms")
	health := health.NewServer()
	for _, port := range []string{"50051", "50052"} {
		l, srv := s.listen("127.0.0.1:"+port), grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
			for { // both ways: what comes goes back
				var m healthpb.HealthCheckRequest
				if err := call.RecvMsg(&m); err != nil {
					return nil
				}
				if err := call.SendMsg(&m); err != nil {
					return err
				}
			}
		}))
		healthpb.RegisterHealthServer(srv, health)
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(srv.Stop)
	}
	daemon := s.daemon("../examples/streaming.hcl")
	const addr = "127.0.0.1:8080"
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	s.until("all is known of the backends", func() bool {
		return strings.Count(s.log.String(), "a backend changes its state") >= 4
	})

	// WebSockets, on both backends; they stay open beside the others.
	client := &http.Client{Transport: &http.Transport{DialContext: s.dial}}
	by := map[string]int{}
	var open []*websocket.Conn
	for range 4 {
		c, r, err := websocket.Dial(ctx, "ws://"+addr+"/echo", &websocket.DialOptions{HTTPClient: client})
		if err != nil {
			t.Fatalf("%v; the log:\n%s", err, s.log.String())
		}
		by[r.Header.Get("Server")]++
		open = append(open, c)
	}
	if len(by) != 2 {
		t.Errorf("WebSockets go to %v", by)
	}
	talk := func() {
		t.Helper()
		for i, c := range open {
			want := fmt.Sprintf("%d %s", i, strings.Repeat("x", 3000*i))
			if err := c.Write(ctx, websocket.MessageText, []byte(want)); err != nil {
				t.Error(err)
			}
			if _, b, err := c.Read(ctx); err != nil || string(b) != want {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		}
	}
	talk()

	// Events come when they happen, not when the answer is over.
	begun := time.Now()
	r, err := client.Get("http://" + addr + "/events/4")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text := bufio.NewScanner(r.Body)
	var first, last time.Duration
	n := 0
	for text.Scan() {
		if strings.HasPrefix(text.Text(), "id: ") {
			n++
			last = time.Since(begun)
			if n == 1 && r.Header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%v", r.Header)
			}
			if n == 1 {
				first = last
			}
		}
	}
	// An answer that is passed on when it is over has them all at once.
	if n != 4 || last < 900*time.Millisecond || last-first < 300*time.Millisecond || text.Err() != nil {
		t.Errorf("%d events, the first after %v, the last after %v, %v", n, first, last, text.Err())
	}
	// And the first of an endless stream, which never is over.
	endless, err := client.Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Body.Close()
	if line, err := bufio.NewReader(endless.Body).ReadString('\n'); line != "id: 1\n" {
		t.Errorf("%q, %v", line, err)
	}

	// gRPC: calls; a stream of the server's and one both ways, silent for longer than an
	// answer may take to begin and a body may rest elsewhere.
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return s.dial(ctx, "tcp", a) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := healthpb.NewHealthClient(conn)
	for range 10 {
		if res, err := c.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("%v, %v; the log:\n%s", res, err, s.log.String())
		}
	}
	if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	w, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	both, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Talk/Talk")
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		var back healthpb.HealthCheckRequest
		if err := both.SendMsg(&healthpb.HealthCheckRequest{Service: text}); err != nil {
			t.Error(err)
		}
		if err := both.RecvMsg(&back); err != nil || back.Service != text {
			t.Errorf("%q, %v", back.Service, err)
		}
	}
	say("one")
	states := []healthpb.HealthCheckResponse_ServingStatus{1, 2, 1}
	for i, want := range states {
		if m, err := w.Recv(); err != nil || m.Status != want {
			t.Fatalf("event %d: %v, %v", i, m, err)
		}
		if i == 1 {
			time.Sleep(8 * time.Second)
			say("two")
		}
		if i+1 < len(states) {
			health.SetServingStatus("", states[i+1])
		}
	}

	talk()
	for _, c := range open {
		if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Error(err)
		}
	}
	_ = endless.Body.Close()
	cancel() // the stream of gRPC
	_ = conn.Close()
	client.CloseIdleConnections()
	_ = daemon.Process.Signal(syscall.SIGTERM)
	if err := daemon.Wait(); err != nil {
		t.Errorf("%v: %s", err, s.log.String())
	}
}

// TestNetExampleTwoTier: examples/two-tier.hcl over real AF_XDP, with the commands of its
// comment on two stream balancers: from a client by the VIP through the tunnel to one of
// them, and on to a web server that learns who the client is. The answer comes straight
// from the stream balancer. One of them goes, and the other has all.
func TestNetExampleTwoTier(t *testing.T) {
	const vip, client = "203.0.113.80", "198.51.100.7"
	edge := newStage(t)
	on := func() *stage { return &stage{NS: netnstest.New(t), t: t, bin: edge.bin} }
	router, user, web := on(), on(), on()
	join := func(ns *stage, addrs []string, name, gateway string, mtu int) {
		netnstest.Veth(netnstest.End{NS: ns.NS, Name: "eth0", Addrs: addrs, MTU: mtu}, netnstest.End{NS: router.NS, Name: name, Addrs: []string{gateway + "/24"}, MTU: mtu})
		ns.Route("0.0.0.0/0", gateway, "")
	}
	join(edge, []string{"192.0.2.2/24"}, "edge", "192.0.2.1", 1500)
	join(user, []string{client + "/24"}, "user", "198.51.100.1", 1500)
	join(web, []string{"10.0.9.1/24", "10.0.9.2/24"}, "web", "10.0.9.254", 1500)
	router.Sysctl("net.ipv4.ip_forward", "1")
	router.Route(vip+"/32", "192.0.2.2", "")
	for _, a := range []string{"10.0.9.1", "10.0.9.2"} {
		for _, port := range []string{"8001", "8002"} {
			l := web.listen(a + ":" + port)
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				from, _, _ := net.SplitHostPort(r.RemoteAddr)
				_, _ = fmt.Fprintf(w, "%s:%s asked by %s for %s\n", a, port, from, r.Header.Get("X-Forwarded-For"))
			})}
			go func() { _ = srv.Serve(l) }()
			t.Cleanup(func() { _ = srv.Close() })
		}
	}
	var tier []*exec.Cmd
	for i := 1; i <= 2; i++ {
		s := on()
		join(s, []string{fmt.Sprintf("10.0.%d.2/24", i)}, fmt.Sprint("streams", i), fmt.Sprintf("10.0.%d.1", i), 1524)
		s.Exec("ip", "addr", "add", vip+"/32", "dev", "lo")
		decap := exec.Command(s.bin, "decap", "--interface", "eth0")
		decap.Stderr = &s.log
		s.Start(decap)
		tier = append(tier, s.daemon("../examples/hosts.hcl", "-var", "address="+vip+":80", "-var", "domain=example.org",
			"-var", "api=10.0.9.1:8001,10.0.9.2:8001", "-var", "www=10.0.9.1:8002,10.0.9.2:8002"))
	}
	edge.daemon("../examples/two-tier.hcl")
	edge.until("both stream balancers are found to work", func() bool {
		return strings.Count(edge.log.String(), "a backend changes its state") >= 2
	})
	ask := func(n int, host string) (by map[string]int) {
		by = map[string]int{}
		for range n { // a connection each
			out, err := user.Try("curl", "-sS", "-m", "5", "-H", "Host: "+host, "http://"+vip+"/")
			if err != nil {
				out = err.Error()
			}
			by[strings.TrimSpace(out)]++
		}
		return by
	}
	// count adds up the answers that have some words.
	count := func(by map[string]int, words string) (n int) {
		for line, k := range by {
			if strings.Contains(line, words) {
				n += k
			}
		}
		return n
	}
	for host, port := range map[string]string{"api.example.org": ":8001", "www.example.org": ":8002"} {
		by := ask(30, host)
		for _, words := range []string{port + " asked by ", " for " + client} {
			if count(by, words) != 30 {
				t.Errorf("%s: %v", host, by)
			}
		}
		for _, words := range []string{"10.0.9.1:", "10.0.9.2:", "by 10.0.1.2 ", "by 10.0.2.2 "} {
			if count(by, words) == 0 {
				t.Errorf("%s: nothing is %s: %v", host, words, by)
			}
		}
	}
	if by := ask(1, "other.example.org"); len(by) != 1 || by["404 Not Found"] != 1 {
		t.Errorf("another host: %v", by)
	}
	// Many bytes each way: segments fit the tunnel.
	if out, err := user.Try("sh", "-c", "head -c 300000 /dev/zero | curl -sS -m 20 -H 'Host: api.example.org' --data-binary @- http://"+vip+"/"); err != nil || !strings.Contains(out, "for "+client) {
		t.Errorf("an upload: %v: %s", err, out)
	}
	kill(tier[0])
	edge.until("the other has all", func() bool { by := ask(10, "api.example.org"); return count(by, "by 10.0.2.2 ") == 10 })
	if by := ask(30, "api.example.org"); count(by, "by 10.0.2.2 ") != 30 {
		t.Errorf("with one stream balancer: %v", by)
	}
}

// TestNetExampleBackends: nginx and haproxy behind examples/hosts.hcl, beside a backend
// of ours, under load: each has its share; nginx begins anew and closes connections as
// it likes, haproxy ends, and no request fails.
func TestNetExampleBackends(t *testing.T) {
	for _, program := range []string{"nginx", "haproxy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("missing: " + program)
		}
	}
	s := newStage(t)
	dir := t.TempDir()
	nginx := write(t, "nginx.conf", fmt.Sprintf(`
daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log;
worker_processes 1;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
  keepalive_requests 20;
  server { listen 127.0.0.1:9001; location / { return 200 "nginx\n"; } }
}
`, dir))
	haproxy := write(t, "haproxy.cfg", `
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend f
  bind 127.0.0.1:9002
  default_backend b
backend b
  http-response set-header Server haproxy
  server s 127.0.0.1:9101
`)
	front := exec.Command("nginx", "-p", dir, "-c", nginx, "-e", dir+"/error.log")
	s.Start(front)
	second := exec.Command("haproxy", "-db", "-f", haproxy)
	s.Start(second)
	s.backend("--http", "9003", "--http", "9101", "--http", "9011-9013", "--latency", "1ms")
	s.daemon("../examples/hosts.hcl")
	const url = "http://127.0.0.1:8080/"
	s.until("all three answer", func() bool {
		return len(s.flood(url, "--host", "api.localhost", "-n", "60", "-c", "6").AnsweredBy) == 3
	})
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		time.Sleep(1500 * time.Millisecond)
		_ = front.Process.Signal(syscall.SIGHUP)
		time.Sleep(1500 * time.Millisecond)
		_ = second.Process.Signal(syscall.SIGUSR1) // a soft stop
	}()
	r := s.flood(url, "--host", "api.localhost", "--rate", "500", "-c", "20", "-d", "5s", "--timeout", "20s")
	<-begun
	names := fmt.Sprint(slices.Sorted(maps.Keys(r.AnsweredBy)))
	if !r.OK() || r.Answered != 2500 || !strings.HasPrefix(names, "[127.0.0.1:9003 haproxy nginx/") || len(r.AnsweredBy) != 3 {
		t.Errorf("%+v", r)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("haproxy: %v", err)
	}
	if r := s.flood(url, "--host", "api.localhost", "-n", "300"); !r.OK() || r.AnsweredBy["haproxy"] > 0 {
		t.Errorf("after haproxy has ended: %+v", r)
	}
}

// TestNetReadmeStreams: the commands of README.md's section on streams, in their order,
// as they stand there but for options that keep them quiet and short; what lasts, the
// servers and the balancer, runs without capabilities.
func TestNetReadmeStreams(t *testing.T) {
	s := newStage(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("missing: python3")
	}
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "\n## Streams\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []string
	for _, l := range strings.Split(section, "\n") {
		if line, ok := strings.CutPrefix(l, "    "); ok {
			commands = append(commands, line)
		}
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	// what makes a command, with lbgraph in the PATH, as a user without privileges has it.
	what := func(line, dir string) *exec.Cmd {
		c := exec.Command("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "sh", "-c", "exec "+line)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(s.bin)+":"+os.Getenv("PATH"))
		c.Stdout, c.Stderr = &s.log, &s.log
		return c
	}
	var daemon *exec.Cmd
	saw := map[string]bool{}
	for _, line := range commands {
		kind, _, _ := strings.Cut(strings.TrimPrefix(line, "lbgraph "), " -")
		switch {
		case strings.HasPrefix(line, "python3 -m http.server "):
			dir := t.TempDir()
			port := line[len(line)-4:]
			if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte("python "+port+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			s.Start(what(line, dir))
			s.until(line, func() bool { _, err := s.Try("curl", "-s", "-m", "5", "http://127.0.0.1:"+port+"/"); return err == nil })
		case strings.HasPrefix(line, "lbgraph run "):
			if daemon != nil {
				_ = daemon.Process.Signal(syscall.SIGTERM)
				_ = daemon.Wait()
			}
			before := strings.Count(s.log.String(), "\trunning")
			daemon = what(line, root)
			s.Start(daemon)
			s.until(line, func() bool { return strings.Count(s.log.String(), "\trunning") > before })
		case strings.HasPrefix(line, "lbgraph demo backend "):
			before := strings.Count(s.log.String(), " answers HTTP ")
			s.Start(what(line, root))
			s.until(line, func() bool { return strings.Count(s.log.String(), " answers HTTP ") == before+6 })
		case strings.HasPrefix(line, "curl "):
			kind = "curl"
			if out, err := s.Try("sh", "-c", line); err != nil || out != "python 8001\npython 8002\n" {
				t.Errorf("%s: %v: %s", line, err, out)
			}
		case strings.HasPrefix(line, "lbgraph demo flood "):
			out, err := s.Try("sh", "-c", "PATH="+filepath.Dir(s.bin)+":$PATH; exec "+line+" --quiet")
			for _, want := range []string{"answered     20000  ", "failed       0\n", " 99 %  ", "who answered\n", "  127.0.0.1:9001  ", "  127.0.0.1:9002  ", "  127.0.0.1:9003  "} {
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("%s: %v, no %q in %s", line, err, want, out)
				}
			}
		case strings.HasPrefix(line, "lbgraph explain "):
			out, err := s.Try("sh", "-c", "cd "+root+"; PATH="+filepath.Dir(s.bin)+":$PATH; exec "+line)
			if err != nil || !strings.Contains(out, "rule \"api\" fits") || strings.Contains(out, "404") {
				t.Errorf("%s: %v: %s", line, err, out)
			}
		case strings.HasPrefix(line, "lbgraph trace "):
			// In a file of its own, which has the socket, and nobody behind it.
			sick := write(t, "sick.hcl", fmt.Sprintf(`stream "sick" {
  path { main = [accept, answer] }
  node "listen" "accept" { address = "127.0.0.1:8090" }
  node "respond" "answer" { status = 503 }
}
admin { socket = %q }
`, line[strings.LastIndex(line, " ")+1:]))
			before := strings.Count(s.log.String(), "\trunning")
			s.Start(what("lbgraph run "+sick, root))
			s.until(line, func() bool { return strings.Count(s.log.String(), "\trunning") > before })
			traced := make(chan string)
			go func() {
				out, _ := s.Try("sh", "-c", "PATH="+filepath.Dir(s.bin)+":$PATH; exec "+line+" --count 1 --for 30s")
				traced <- out
			}()
			for done := false; !done; {
				select {
				case out := <-traced:
					if done = true; !strings.Contains(out, "503") {
						t.Errorf("%s: %s", line, out)
					}
				case <-time.After(200 * time.Millisecond):
					_, _ = s.Try("curl", "-s", "-m", "5", "http://127.0.0.1:8090/")
				}
			}
		default:
			t.Errorf("a command that this test does not know: %s", line)
		}
		saw[kind] = true
	}
	if len(commands) < 7 || !saw["run examples/hosts.hcl"] || !saw["curl"] {
		t.Errorf("README.md shows %q", commands)
	}
}
