package admit

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
)

func rig(t testing.TB, change func(*Config)) *nodetest.Stage {
	return nodetest.NewStage(t, "admit", change)
}

func request() *stream.Session { return nodetest.Request("GET / HTTP/1.1\nHost: x\n\n") }

func upgrade() *stream.Session {
	return nodetest.Request("GET / HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket\n\n")
}

// gauges answers in_flight, waiting and upgraded.
func gauges(r *nodetest.Stage) string {
	return fmt.Sprint(r.Gauge("in_flight"), r.Gauge("waiting"), r.Gauge("upgraded"))
}

func waiting(r *nodetest.Stage, n int) {
	r.T.Helper()
	nodetest.Eventually(r.T, func() error {
		if w := r.Gauge("waiting"); w != float64(n) {
			return fmt.Errorf("%v wait, want %d", w, n)
		}
		return nil
	})
}

// The example: 100 requests are in flight, one more waits its 25 ms and is answered
// 503 with Retry-After; and when they are over, all places are free.
func TestExample(t *testing.T) {
	hold := make(chan struct{})
	var at, most atomic.Int64
	addr := nodetest.HTTPBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		n := at.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-hold
		at.Add(-1)
	})
	// A busy machine may need longer than 25 ms to bring a hundred there.
	r := nodetest.RunStreams(t, nodetest.Pool("", addr)+"stream \"s\" {\npath { main = [in, admit, balance, proxy] }\n"+nodetest.Listen+nodetest.Example(t)+"node \"balance\" \"balance\" { pool = pool.web }\n}\n")
	var wg sync.WaitGroup
	var fine atomic.Int64
	for range 100 {
		p := r.Dial("in")
		wg.Go(func() {
			if p.Ask("GET / HTTP/1.1\nHost: x\n\n") == "200 " {
				fine.Add(1)
			}
		})
	}
	nodetest.Eventually(t, func() error {
		if n := at.Load(); n != 100 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	p := r.Dial("in")
	begun := time.Now()
	res, _ := p.Get("GET / HTTP/1.1\nHost: x\n\n")
	if took := time.Since(begun); res == nil || res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || took < 25*time.Millisecond {
		t.Errorf("%v after %v", res, took)
	}
	if r.Gauge("admit", "in_flight") != 100 || r.Output("admit", "overflow") != 1 || r.Counter("admit", "queued") != 1 {
		t.Errorf("%v in flight, %d refused, %d waited", r.Gauge("admit", "in_flight"), r.Output("admit", "overflow"), r.Counter("admit", "queued"))
	}
	close(hold)
	wg.Wait()
	r.Quiet()
	if fine.Load() != 100 || most.Load() != 100 || r.Gauge("admit", "in_flight") != 0 {
		t.Errorf("%d of 100 are answered, %d at most at once, %v stay", fine.Load(), most.Load(), r.Gauge("admit", "in_flight"))
	}
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "admit", "", []string{"limit = 1\nqueue_timeout = \"0s\"\nqueue = 0\nretry_after = \"0s\"\nupgraded = 0", "limit = 10000000\nqueue_timeout = \"1h\""}, []nodetest.Wrong{
		{Argument: "limit", Text: "limit = 0", Told: "1"},
		{Argument: "limit", Text: "limit = 10000001", Told: "10000000"},
		{Argument: "queue_timeout", Text: "queue_timeout = \"-1ms\"", Told: "0s"},
		{Argument: "queue_timeout", Text: "queue_timeout = 25", Told: "duration"},
		{Argument: "queue", Text: "queue = -1", Told: "0"},
		{Argument: "retry_after", Text: "retry_after = \"61m\"", Told: "1h"},
		{Argument: "upgraded", Text: "upgraded = -1", Told: "0"},
	})
}

// By default a hundred have places at once, however many come at the same time, and as
// many of the next.
func TestLimit(t *testing.T) {
	r := rig(t, func(c *Config) { c.Wait = 0 })
	for range 20 {
		var wg sync.WaitGroup
		var in, out atomic.Int64
		open := make(chan *stream.Session, 400)
		for range 16 {
			wg.Go(func() {
				for range 25 {
					s := request()
					switch r.Serve(s) {
					case "next":
						in.Add(1)
						open <- s
					case "overflow":
						out.Add(1)
						if s.RetryAfter != time.Second || s.Queued < 0 {
							t.Errorf("refused: %v, %v", s.RetryAfter, s.Queued)
						}
						s.End()
					}
				}
			})
		}
		wg.Wait()
		if in.Load() != 100 || out.Load() != 300 || gauges(r) != "100 0 0" {
			t.Fatalf("%d in, %d refused: %s", in.Load(), out.Load(), gauges(r))
		}
		close(open)
		for s := range open {
			wg.Go(s.End)
		}
		if wg.Wait(); gauges(r) != "0 0 0" {
			t.Fatal(gauges(r))
		}
	}
}

// Who waits longest gets the place that comes free; who finds no room to wait, or
// waits in vain, is refused.
func TestQueue(t *testing.T) {
	r := rig(t, func(c *Config) { c.Limit, c.Wait, c.Queue = 1, time.Minute, 3 })
	first := request()
	if r.Serve(first) != "next" {
		t.Fatal("the first has no place")
	}
	type turn struct {
		i   int
		out string
	}
	turns := make(chan turn)
	sessions := make([]*stream.Session, 3)
	for i := range 3 {
		sessions[i] = request()
		go func() { turns <- turn{i, r.Serve(sessions[i])} }()
		waiting(r, i+1)
	}
	if s := request(); r.Serve(s) != "overflow" {
		t.Error("a fourth waits")
	}
	first.End()
	for i := range 3 {
		if got := <-turns; got != (turn{i, "next"}) {
			t.Errorf("turn %d: %+v", i, got)
		}
		if gauges(r) != fmt.Sprint(1, 2-i, 0) {
			t.Errorf("turn %d: %s", i, gauges(r))
		}
		if sessions[i].Queued <= 0 {
			t.Errorf("turn %d waited %d ns", i, sessions[i].Queued)
		}
		sessions[i].End()
	}
	if r.Counter("queued") != 4 || gauges(r) != "0 0 0" {
		t.Errorf("%d waited, %s", r.Counter("queued"), gauges(r))
	}
	// In vain.
	r = rig(t, func(c *Config) { c.Limit, c.Wait = 1, 30*time.Millisecond })
	r.Serve(request())
	begun := time.Now()
	if s := request(); r.Serve(s) != "overflow" || time.Since(begun) < 30*time.Millisecond || s.Queued < int64(30*time.Millisecond) || gauges(r) != "1 0 0" {
		t.Errorf("after %v, %d ns waited: %s", time.Since(begun), s.Queued, gauges(r))
	}
}

// Nobody overtakes those who wait, and nobody waits beside a free place.
func TestFairness(t *testing.T) {
	r := rig(t, func(c *Config) { c.Limit, c.Wait, c.Queue = 3, time.Minute, 100 })
	var wg sync.WaitGroup
	var in atomic.Int64
	for range 12 {
		wg.Go(func() {
			for range 500 {
				s := request()
				if r.Serve(s) != "next" {
					t.Error("refused")
					return
				}
				if n := in.Add(1); n > 3 {
					t.Errorf("%d at once", n)
				}
				in.Add(-1)
				s.End()
			}
		})
	}
	wg.Wait()
	if gauges(r) != "0 0 0" {
		t.Error(gauges(r))
	}
}

// In the moment in which a place is free and who waits does not have it yet, nobody
// else takes it.
func TestNobodyOvertakes(t *testing.T) {
	r := rig(t, func(c *Config) { c.Limit, c.Wait = 1, time.Minute })
	r.Serve(request())
	turn := make(chan string)
	go func() { turn <- r.Serve(request()) }()
	waiting(r, 1)
	g := r.Node.(*stage).gate
	g.inFlight.Add(-1) // as leave begins
	if g.quick() {
		t.Error("a session overtakes the one that waits")
	}
	g.serveQueue()
	if got := <-turn; got != "next" || gauges(r) != "1 0 0" {
		t.Errorf("%s, %s", got, gauges(r))
	}
}

// A place that comes free just when the time to wait is over is taken or free, and not
// lost.
func TestLastMoment(t *testing.T) {
	const wait = 50 * time.Microsecond
	r := rig(t, func(c *Config) { c.Limit, c.Wait = 1, wait })
	got := map[string]int{}
	for range 4000 {
		first, second := request(), request()
		r.Serve(first)
		left := make(chan struct{})
		go func() {
			for by := stream.Now() + int64(wait); stream.Now() < by; {
			}
			first.End()
			close(left)
		}()
		out := r.Serve(second)
		got[out]++
		second.End()
		if <-left; gauges(r) != "0 0 0" {
			t.Fatalf("after %s: %s", out, gauges(r))
		}
	}
	t.Log(got)
}

// Connections that leave HTTP give their place back and have a limit of their own.
func TestUpgraded(t *testing.T) {
	r := rig(t, func(c *Config) { c.Limit, c.Wait, c.Upgraded = 1, 0, 2 })
	var open []*stream.Session
	for i := range 2 {
		s := upgrade()
		if r.Serve(s) != "next" || gauges(r) != fmt.Sprint(1, 0, i+1) {
			t.Fatalf("upgrade %d: %s", i, gauges(r))
		}
		s.BeginUpgrade()
		if gauges(r) != fmt.Sprint(0, 0, i+1) {
			t.Fatalf("upgraded %d: %s", i, gauges(r))
		}
		open = append(open, s)
	}
	s := upgrade()
	if r.Serve(s) != "upgraded_full" || s.RetryAfter != time.Second || gauges(r) != "0 0 2" {
		t.Errorf("a third: %v, %s", s.RetryAfter, gauges(r))
	}
	s.End()
	plain := request()
	if r.Serve(plain) != "next" {
		t.Error("a request has no place beside upgraded ones")
	}
	// One that the backend refuses to upgrade gives back both.
	open[0].End()
	if gauges(r) != "1 0 1" {
		t.Error(gauges(r))
	}
	if s := upgrade(); r.Serve(s) != "overflow" || gauges(r) != "1 0 1" {
		t.Errorf("over the limit: %s", gauges(r))
	}
	plain.End()
	refused := upgrade()
	if r.Serve(refused) != "next" || gauges(r) != "1 0 2" {
		t.Error(gauges(r))
	}
	refused.End()
	open[1].End()
	if gauges(r) != "0 0 0" {
		t.Error(gauges(r))
	}
	// A connection of TCP counts as what it is.
	c := nodetest.Connection(nil)
	if r.Serve(c) != "next" || gauges(r) != "1 0 0" {
		t.Error(gauges(r))
	}
}

// A reload keeps who is in flight, and a higher limit lets in who waits.
func TestReload(t *testing.T) {
	r := rig(t, func(c *Config) { c.Limit, c.Wait = 1, time.Minute })
	first := request()
	r.Serve(first)
	turn := make(chan string)
	second := request()
	go func() { turn <- r.Serve(second) }()
	waiting(r, 1)
	nodetest.Reload(r, func(c *Config) { c.Limit, c.Wait, c.RetryAfter = 2, 0, 3*time.Second })
	if got := <-turn; got != "next" || gauges(r) != "2 0 0" {
		t.Errorf("%s, %s", got, gauges(r))
	}
	third := request()
	if r.Serve(third) != "overflow" || third.RetryAfter != 3*time.Second {
		t.Errorf("%v", third.RetryAfter)
	}
	nodetest.Reload(r, func(c *Config) { c.Limit, c.Wait = 1, 0 })
	first.End()
	if r.Serve(request()) != "overflow" || gauges(r) != "1 0 0" {
		t.Errorf("a lower limit: %s", gauges(r))
	}
	second.End()
	if gauges(r) != "0 0 0" {
		t.Error(gauges(r))
	}
}

// Whatever comes and goes, in whatever order, the gauges say what is there, and no
// limit is exceeded.
func FuzzPlaces(f *testing.F) {
	f.Add("rrrurxoee", uint8(2), uint8(1))
	f.Add(strings.Repeat("uo", 20)+strings.Repeat("e", 20), uint8(3), uint8(200))
	f.Fuzz(func(t *testing.T, ops string, limit, most uint8) {
		r := rig(t, func(c *Config) { c.Limit, c.Wait, c.Upgraded = max(1, int(limit)), 0, int(most) })
		var open []*stream.Session
		in, up := 0, 0
		for i, op := range ops {
			switch op {
			case 'r', 'u':
				s := request()
				if op == 'u' {
					s = upgrade()
				}
				want := "next"
				switch {
				case op == 'u' && up >= int(most):
					want = "upgraded_full"
				case in >= max(1, int(limit)):
					want = "overflow"
				}
				if got := r.Serve(s); got != want {
					t.Fatalf("step %d of %q: %s, want %s", i, ops, got, want)
				}
				if want != "next" {
					s.End()
					continue
				}
				in++
				if op == 'u' {
					up++
				}
				open = append(open, s)
			case 'o': // the first that asked leaves HTTP
				for _, s := range open {
					if s.Req.WantsUpgrade && !s.Upgraded {
						s.BeginUpgrade()
						in--
						break
					}
				}
			case 'e':
				if len(open) > 0 {
					s := open[0]
					open = open[1:]
					if s.Req.WantsUpgrade {
						up--
					}
					if !s.Upgraded {
						in--
					}
					s.End()
				}
			}
			if want := fmt.Sprint(in, 0, up); gauges(r) != want {
				t.Fatalf("step %d of %q: %s, want %s", i, ops, gauges(r), want)
			}
		}
	})
}

// BenchmarkAdmit reports nanoseconds a session that finds a place, on all cores.
func BenchmarkAdmit(b *testing.B) {
	r := rig(b, nil)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		s := request()
		for p.Next() {
			r.Serve(s)
			s.End()
			s.Reset(s.Client)
		}
	})
}
