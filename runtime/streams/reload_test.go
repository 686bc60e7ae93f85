package streams_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
)

// reload takes over another file.
func (r *rig) reload(text string) {
	r.t.Helper()
	f := load(r.t, text)
	if err := r.store.Apply(f.Spec); err != nil {
		r.t.Fatal(err)
	}
	if err := r.engine.Swap(f.Graphs); err != nil {
		r.t.Fatal(err)
	}
}

// flood asks on so many keep-alive connections, each every few milliseconds, until
// stop answers the number of requests and of those that failed.
func flood(t *testing.T, addr string, connections int, every time.Duration) (stop func() (n, failed int64)) {
	t.Helper()
	var n, failed atomic.Int64
	var wg sync.WaitGroup
	end := make(chan struct{})
	for range connections {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: 10 * time.Second}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-end:
					return
				case <-time.After(every):
				}
				n.Add(1)
				res, err := client.Post("http://"+addr+"/", "text/plain", strings.NewReader("hello"))
				if err != nil {
					failed.Add(1)
					t.Log(err)
					continue
				}
				b, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != 200 || string(b) != "hello" {
					failed.Add(1)
					t.Log(res.Status, string(b), err)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(end)
		wg.Wait()
		return n.Load(), failed.Load()
	}
}

func echo(t testing.TB) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	t.Cleanup(s.Close)
	return s
}

// Reloads that change the graph, drains and weights under load: no request fails.
func TestReloadUnderLoad(t *testing.T) {
	a, b := echo(t), echo(t)
	one := simple("", addrOf(a), addrOf(b))
	two := stream("main = [in, gate, fields, pick, out]", in("")+"node \"admit\" \"gate\" {}\nnode \"headers\" \"fields\" { request_id = \"X-Id\" }\n"+pick, addrOf(b), addrOf(a))
	three := simple("node \"balance\" \"pick\" {\n pool = pool.web\n algorithm = \"least-connections\"\n}\n", addrOf(b))
	r := run(t, one)
	stop := flood(t, r.addr("in"), 20, 5*time.Millisecond)
	at := r.addr("in")
	for i := range 12 {
		time.Sleep(60 * time.Millisecond)
		r.reload([]string{two, three, one}[i%3])
		if r.addr("in") != at {
			t.Fatal("the listener has changed")
		}
		if i%3 == 2 {
			if err := r.store.Drain("web", "b1", true, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Millisecond)
			if err := r.store.Drain("web", "b1", false, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, failed := stop(); failed > 0 || n < 100 {
		t.Errorf("%d of %d requests failed", failed, n)
	}
	r.quiet()
	if c := r.engine.Stats()[0].Requests; c < 100 {
		t.Errorf("%d requests are counted", c)
	}
}

// A graceful stop under load: what was sent is answered, and nothing is refused on
// a connection that stood open.
func TestStopUnderLoad(t *testing.T) {
	s := echo(t)
	r := run(t, simple("", addrOf(s)))
	at := r.addr("in")
	var wg sync.WaitGroup
	var failed atomic.Int64
	begun := make(chan struct{})
	for range 20 {
		wg.Go(func() {
			p := dial(t, at)
			for i := 0; ; i++ {
				p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
				h := p.head()
				if !strings.HasPrefix(h, "HTTP/1.1 200") || p.read(5) != "hello" {
					failed.Add(1)
					t.Log(i, h)
					return
				}
				if strings.Contains(h, "Connection: close") {
					return // told so: a client opens another connection, elsewhere
				}
				if i == 3 {
					select {
					case begun <- struct{}{}:
					default:
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	<-begun
	if err := r.stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d requests failed", n)
	}
	if _, err := http.Get("http://" + at + "/"); err == nil {
		t.Error("it accepts still")
	}
}

// What is in flight ends; what does not end by the time given is cut off.
func TestStopWaits(t *testing.T) {
	t.Parallel() // it waits most of its time
	come, hold := make(chan struct{}, 2), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		come <- struct{}{}
		<-hold
		fmt.Fprint(w, "ok")
	}))
	defer srv.Close()
	r := run(t, simple("", addrOf(srv)))
	p := dial(t, r.addr("in"))
	p.send(get)
	<-come
	var answered atomic.Bool
	time.AfterFunc(200*time.Millisecond, func() {
		answered.Store(true)
		close(hold)
	})
	if err := r.stop(10 * time.Second); err != nil || !answered.Load() {
		t.Errorf("%v, answered %v", err, answered.Load())
	}
	if h := p.head(); !strings.HasPrefix(h, "HTTP/1.1 200") || !strings.Contains(h, "Connection: close") {
		t.Errorf("%q", h)
	}
	hold = make(chan struct{})
	defer close(hold)
	r = run(t, simple("", addrOf(srv)))
	p = dial(t, r.addr("in"))
	p.send(get)
	<-come
	if err := r.stop(300 * time.Millisecond); err == nil {
		t.Error("nothing was cut off")
	}
}

// Round robin is even to ±1 over many requests at once, and by weight.
func TestEven(t *testing.T) {
	n := 2000
	if !testing.Short() {
		n = 50_000
	}
	for _, c := range []struct {
		weights []int
		n       int
	}{{[]int{100, 100, 100}, n}, {[]int{300, 200, 100}, 1200}} {
		var addrs []string
		for range c.weights {
			addrs = append(addrs, record(t, ok).addr())
		}
		text := simple("", addrs...)
		for i, w := range c.weights {
			text = strings.Replace(text, fmt.Sprintf("backend \"b%d\" {", i+1), fmt.Sprintf("backend \"b%d\" {\n    weight = %d", i+1, w), 1)
		}
		r := run(t, text)
		var wg sync.WaitGroup
		const workers = 8
		for range workers {
			wg.Go(func() {
				p := dial(t, r.addr("in"))
				_ = p.SetDeadline(time.Now().Add(time.Minute))
				for range c.n / workers {
					if got := p.get(get); got != "200 ok" {
						t.Errorf("%q", got)
						return
					}
				}
			})
		}
		wg.Wait()
		sum, total := 0, 0
		for _, w := range c.weights {
			sum += w
		}
		stats := r.engine.Stats()[0].Backends
		for _, b := range stats {
			total += int(b.Total)
		}
		for i, a := range addrs {
			for _, b := range stats {
				if b.Addr.String() != a {
					continue
				}
				share := float64(total*c.weights[i]) / float64(sum)
				if d := float64(b.Total) - share; d > 1 || d < -1 {
					t.Errorf("weights %v: %d of %d at backend %d, want %.1f", c.weights, b.Total, total, i+1, share)
				}
			}
		}
	}
}

// Least connections follow what is in flight; counts survive a reload.
func TestLeastConnections(t *testing.T) {
	quick := named(t, "quick")
	for _, algorithm := range []string{"least-connections", "random-two"} {
		hold := make(chan struct{})
		slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
		t.Cleanup(slow.Close)
		release := sync.OnceFunc(func() { close(hold) })
		t.Cleanup(release) // before slow closes, which waits for its handlers
		text := simple(fmt.Sprintf("node \"balance\" \"pick\" {\n pool = pool.web\n algorithm = %q\n}\n", algorithm), addrOf(slow), addrOf(quick))
		r := run(t, text)
		active := func() int64 {
			for _, b := range r.engine.Stats()[0].Backends {
				if b.Addr.String() == addrOf(slow) {
					return b.Active
				}
			}
			return 0
		}
		// Chance may lead to the quick one several times.
		for i := 0; active() == 0; i++ {
			if i == 50 {
				t.Fatal("nothing comes to the slow one")
			}
			p := dial(t, r.addr("in"))
			p.send(get)
			time.Sleep(10 * time.Millisecond)
		}
		before := active()
		r.reload(text)
		if active() != before {
			t.Errorf("%d in flight after a reload, %d before", active(), before)
		}
		for range 20 {
			p := dial(t, r.addr("in"))
			if got := p.get(get); got != "200 quick" {
				t.Errorf("%s: %q", algorithm, got)
			}
			// A session ends a moment after its client has the answer.
			eventually(t, "the quick one is idle", func() error {
				for _, b := range r.engine.Stats()[0].Backends {
					if b.Addr.String() == addrOf(quick) && b.Active > 0 {
						return fmt.Errorf("%d in flight", b.Active)
					}
				}
				return nil
			})
		}
		release()
		r.quiet()
	}
}

// Health: what is unhealthy gets nothing new; with nothing healthy it is 503, or fail
// open; a backend that comes back works up to its share.
func TestHealth(t *testing.T) {
	var sick atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if sick.Load() && req.URL.Path == "/healthz" {
			w.WriteHeader(500)
		}
		fmt.Fprint(w, "a")
	}))
	defer s.Close()
	const check = "health \"h\" {\n type = \"http\"\n path = \"/healthz\"\n interval = \"40ms\"\n timeout = \"40ms\"\n}\n"
	b := named(t, "b")
	for _, open := range []bool{false, true} {
		sick.Store(false)
		text := strings.Replace(simple("node \"balance\" \"pick\" {\n pool = pool.web\n slow_start = \"500ms\"\n}\n", addrOf(s), addrOf(b)), "table_size = 251", fmt.Sprintf("table_size = 251\n health = health.h\n fail_open = %v", open), 1)
		r := run(t, check+text)
		p := dial(t, r.addr("in"))
		share := func(n int) (a int) {
			for range n {
				if p.get(get) == "200 a" {
					a++
				}
			}
			return a
		}
		eventually(t, "both are found healthy", func() error {
			if n := share(20); n != 10 {
				return fmt.Errorf("%d of 20 at the first", n)
			}
			return nil
		})
		sick.Store(true)
		eventually(t, "the sick one gets nothing", func() error {
			if n := share(10); n > 0 {
				return fmt.Errorf("%d of 10", n)
			}
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		sick.Store(false)
		eventually(t, "it comes back", func() error {
			if share(20) == 0 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		if n := share(100); n > 45 {
			t.Errorf("%d of 100 at one that has just come back", n)
		}
		time.Sleep(600 * time.Millisecond)
		// A busy machine may miss probes, and begin anew.
		eventually(t, "it has its whole share", func() error {
			if n := share(100); n < 49 || n > 51 {
				return fmt.Errorf("%d of 100", n)
			}
			return nil
		})
		if open {
			continue
		}
	}
	// Nothing is usable.
	for _, open := range []bool{false, true} {
		text := strings.Replace(simple("", addrOf(b)), "table_size = 251", fmt.Sprintf("table_size = 251\n health = health.h\n fail_open = %v", open), 1)
		r := run(t, "health \"h\" {\n interval = \"1h\"\n timeout = \"1s\"\n}\n"+text)
		for _, target := range r.Snapshot().Targets() {
			r.store.SetHealth(target, state.Unhealthy)
		}
		p := dial(t, r.addr("in"))
		want := "503 503 Service Unavailable\n"
		if open {
			want = "200 b"
		}
		if got := p.get(get); got != want {
			t.Errorf("fail_open %v: %q", open, got)
		}
	}
}

// Passive ejection: a backend that fails in a row is left out for a while, but never
// more than half of them.
func TestEjection(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, serve(t, func(p *peer) { p.head() }).addr()) // closes instead of answering
	}
	addrs = append(addrs, record(t, ok).addr())
	r := run(t, simple("node \"balance\" \"pick\" {\n pool = pool.web\n eject_after = 3\n eject_for = \"400ms\"\n}\n"+out("retries = 3"), addrs...))
	p := dial(t, r.addr("in"))
	for range 40 {
		p.get(get)
	}
	out := 0
	for _, b := range r.engine.Stats()[0].Backends {
		if b.Ejected {
			out++
		}
	}
	if out != 2 || r.counter("pick", "ejected") != 2 || r.counter("pick", "ejection_withheld") == 0 {
		t.Errorf("%d of 4 are left out, counted %d, withheld %d", out, r.counter("pick", "ejected"), r.counter("pick", "ejection_withheld"))
	}
	time.Sleep(450 * time.Millisecond)
	for _, b := range r.engine.Stats()[0].Backends {
		if b.Ejected {
			t.Error("one is left out for too long")
		}
	}
}

// Selection by the client's address and by a key: always the same backend, and others
// keep theirs when one is gone.
func TestConsistent(t *testing.T) {
	var addrs []string
	for i := range 5 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+2))
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) }))
		_ = srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		t.Cleanup(srv.Close)
		addrs = append(addrs, l.Addr().String())
	}
	node := "node \"balance\" \"pick\" {\n pool = pool.web\n algorithm = \"hash\"\n key = \"path\"\n}\n"
	r := run(t, simple(node, addrs...))
	p := dial(t, r.addr("in"))
	ask := func() map[int]string {
		m := map[int]string{}
		for i := range 60 {
			m[i] = p.get(fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i))
		}
		return m
	}
	first, again := ask(), ask()
	seen := map[string]bool{}
	for i := range first {
		seen[first[i]] = true
		if first[i] != again[i] {
			t.Errorf("/%d: %q, then %q", i, first[i], again[i])
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d of 5 backends are used", len(seen))
	}
	if err := r.store.Drain("web", "b3", true, false); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	moved := 0
	for i, now := range ask() {
		if now == "200 2" {
			t.Error("a drained backend gets a request")
		}
		if first[i] != now && first[i] != "200 2" {
			moved++
		}
	}
	if moved > 6 {
		t.Errorf("%d of others moved", moved)
	}
	r = run(t, simple(strings.Replace(node, "\"hash\"\n key = \"path\"", "\"source\"", 1), addrs...))
	p = dial(t, r.addr("in"))
	seen = map[string]bool{}
	for i := range 20 {
		seen[p.get(fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i))] = true
	}
	if len(seen) != 1 {
		t.Errorf("one client is sent to %v", seen)
	}
}
