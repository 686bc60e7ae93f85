package balance

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
)

var algorithms = []string{"round-robin", "least-connections", "random-two", "source", "hash"}

func pool(backends ...state.BackendSpec) state.PoolSpec {
	return state.PoolSpec{Name: "web", TableSize: 4099, Health: "h", Backends: backends}
}

func rig(t testing.TB, algorithm string, change func(*Config), backends ...state.BackendSpec) *nodetest.Stage {
	return nodetest.NewStage(t, "balance", func(c *Config) {
		c.Pool, c.Algorithm = "web", algorithm
		if change != nil {
			change(c)
		}
	}, pool(backends...))
}

func weighted(weights ...int) []state.BackendSpec {
	all := nodetest.Backends(len(weights))
	for i, w := range weights {
		all[i].Weight = w
	}
	return all
}

// from answers a session of the i-th client and the i-th target.
func from(i int) *stream.Session {
	s := nodetest.Request(fmt.Sprintf("GET /%d HTTP/1.1\nHost: x\n\n", i))
	s.Client.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 1000)
	return s
}

// chosen has a session pass and answers the number of its backend, −1 for none.
func chosen(r *nodetest.Stage, s *stream.Session) int {
	if out := r.Serve(s); out != "next" {
		return -1
	}
	return int(s.Backend.Addr.Addr().As4()[3]) - 1
}

func backend(r *nodetest.Stage, i int) *stream.Backend {
	return r.Env.Backends(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 80))
}

func unwell(r *nodetest.Stage, numbers ...int) {
	for _, i := range numbers {
		r.Store.SetHealth(state.Target{Check: "h", Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Port: 80}, state.Unhealthy)
	}
}

func TestExample(t *testing.T) {
	var addrs []string
	for i := range 3 {
		addrs = append(addrs, nodetest.HTTPBackend(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) }))
	}
	node := nodetest.Example(t)
	r := nodetest.RunStreams(t, nodetest.Pool("", addrs...)+"stream \"s\" {\npath { main = [in, web, proxy] }\n"+nodetest.Listen+node+"}\n")
	seen := map[string]bool{}
	for range 9 {
		seen[r.Dial("in").Ask("GET / HTTP/1.1\nHost: x\n\n")] = true
		r.Quiet()
	}
	if len(seen) != 3 || !seen["200 0"] || !seen["200 1"] || !seen["200 2"] {
		t.Errorf("%v", seen)
	}
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "balance", "", []string{
		"pool = pool.web\nkey = \"header:X-User\"\nalgorithm = \"hash\"", "pool = \"web\"\nport = 65535\nslow_start = \"0s\"\neject_for = \"0s\"\neject_after = 1",
	}, []nodetest.Wrong{
		{Argument: "pool", Text: "pool = pool.wep", Told: "wep"},
		{Argument: "algorithm", Text: "pool = pool.web\nalgorithm = \"random\"", Told: "random-two"},
		{Argument: "key", Text: "pool = pool.web\nkey = \"cookie\"", Told: "write target, path, host or header:NAME"},
		{Argument: "key", Text: "pool = pool.web\nkey = \"header:a b\"", Told: "no field name"},
		{Argument: "port", Text: "pool = pool.web\nport = 65536", Told: "65536"},
		{Argument: "slow_start", Text: "pool = pool.web\nslow_start = \"2h\"", Told: "1h"},
		{Argument: "eject_for", Text: "pool = pool.web\neject_for = \"-1s\"", Told: "0s"},
		{Argument: "eject_after", Text: "pool = pool.web\neject_after = 0", Told: "1"},
	})
}

// Even to ±1, whoever asks at the same time, and by weight; also while some are down.
func TestRoundRobinIsEven(t *testing.T) {
	const workers, each = 8, 6250 // 50 000
	for _, c := range []struct {
		weights []int
		down    []int
	}{{[]int{100, 100, 100, 100, 100, 100, 100}, nil}, {[]int{300, 200, 100}, nil}, {[]int{100, 100, 100, 100}, []int{1}}} {
		r := rig(t, "round-robin", nil, weighted(c.weights...)...)
		unwell(r, c.down...)
		r.Publish()
		var wg sync.WaitGroup
		got := make([]atomic.Int64, len(c.weights))
		for range workers {
			wg.Go(func() {
				s := from(1)
				for range each {
					i := chosen(r, s)
					got[i].Add(1)
					s.End()
				}
			})
		}
		wg.Wait()
		sum := 0
		for i, w := range c.weights {
			if !slices.Contains(c.down, i) {
				sum += w
			}
		}
		for i, w := range c.weights {
			want := float64(workers*each*w) / float64(sum)
			if slices.Contains(c.down, i) {
				want = 0
			}
			if d := float64(got[i].Load()) - want; math.Abs(d) > 1 {
				t.Errorf("weights %v, down %v: %d at backend %d, want %.1f", c.weights, c.down, got[i].Load(), i, want)
			}
		}
		if n := backend(r, 0).Total.Load(); n != uint64(got[0].Load()) {
			t.Errorf("%d sessions are counted, %d went", n, got[0].Load())
		}
	}
}

// Every algorithm honours weights: in turn and by table exactly, by load when there is
// some.
func TestWeights(t *testing.T) {
	weights := []int{400, 200, 100, 0}
	for _, a := range algorithms {
		r := rig(t, a, nil, weighted(weights...)...)
		const n = 7000
		got := make([]int, 4)
		for i := range n {
			s := from(i)
			k := chosen(r, s)
			if k < 0 {
				t.Fatalf("%s: no backend", a)
			}
			got[k]++ // and stays: it counts as load
		}
		off := map[string]float64{"round-robin": 0.001, "least-connections": 0.01, "random-two": 0.02, "source": 0.06, "hash": 0.06}[a]
		for i, w := range weights {
			share := float64(n*w) / 700
			if math.Abs(float64(got[i])-share) > off*n {
				t.Errorf("%s: %v by weights %v", a, got, weights)
				break
			}
		}
	}
}

// The least busy by weight is taken, and load goes with the session that made it.
func TestLeastConnections(t *testing.T) {
	r := rig(t, "least-connections", nil, weighted(100, 100, 200)...)
	var held []*stream.Session
	for range 40 {
		s := from(0)
		chosen(r, s)
		held = append(held, s)
	}
	active := func() (n [3]int64) {
		for i := range n {
			n[i] = backend(r, i).Active.Load()
		}
		return n
	}
	if a := active(); a != [3]int64{10, 10, 20} {
		t.Fatalf("%v in flight", a)
	}
	// One becomes idle: it gets what comes until it has as much as the others.
	for _, s := range held {
		if s.Backend.Addr.Addr().As4()[3] == 2 {
			s.End()
		}
	}
	for i := range 9 {
		if k := chosen(r, from(0)); k != 1 {
			t.Errorf("session %d goes to backend %d", i, k)
		}
	}
	// Load is the backend's, not the node's: it is there after a reload.
	nodetest.Reload(r, func(c *Config) { c.Pool, c.Algorithm = "web", "least-connections" })
	if k := chosen(r, from(0)); k != 1 || active() != [3]int64{10, 10, 20} {
		t.Errorf("after a reload backend %d is chosen, %v in flight", k, active())
	}
	// Equal ones come in turn.
	q := rig(t, "least-connections", nil, nodetest.Backends(4)...)
	seen := map[int]int{}
	for range 40 {
		s := from(0)
		seen[chosen(q, s)]++
		s.End()
	}
	if len(seen) != 4 || seen[0] != 10 {
		t.Errorf("idle ones: %v", seen)
	}
}

// Of two the less busy one: the busiest of all never.
func TestRandomTwo(t *testing.T) {
	r := rig(t, "random-two", nil, nodetest.Backends(10)...)
	busy := r.Env.Backends(netip.MustParseAddrPort("192.0.2.4:80"))
	busy.Active.Store(1000)
	seen := map[int]int{}
	for range 4000 {
		s := from(0)
		seen[chosen(r, s)]++
		s.End()
	}
	if seen[3] > 0 || len(seen) != 9 {
		t.Errorf("%v", seen)
	}
	for i, n := range seen {
		if n < 300 || n > 600 { // 444 each
			t.Errorf("backend %d is chosen %d times", i, n)
		}
	}
	one := rig(t, "random-two", nil, nodetest.Backends(1)...)
	if chosen(one, from(0)) != 0 {
		t.Error("a pool of one has none")
	}
}

// By key: the same key always leads to the same backend, on every node, and when one
// backend leaves, others keep nearly all.
func TestHash(t *testing.T) {
	request := func(key string, i int) string {
		switch key {
		case "target":
			return fmt.Sprintf("GET /a?%d HTTP/1.1\nHost: x\n\n", i)
		case "path":
			return fmt.Sprintf("GET /%d?a HTTP/1.1\nHost: x\n\n", i)
		case "host":
			return fmt.Sprintf("GET / HTTP/1.1\nHost: h%d.example\n\n", i)
		}
		return fmt.Sprintf("GET / HTTP/1.1\nHost: x\nX-User: u%d\n\n", i)
	}
	const n = 2000
	for _, key := range []string{"target", "path", "host", "header:X-User"} {
		byKey := func(c *Config) { c.Key = key }
		r, other := rig(t, "hash", byKey, nodetest.Backends(10)...), rig(t, "hash", byKey, nodetest.Backends(10)...)
		first := make([]int, n)
		count := make([]int, 10)
		for i := range n {
			first[i] = chosen(r, nodetest.Request(request(key, i)))
			count[first[i]]++
			if k := chosen(other, nodetest.Request(request(key, i))); k != first[i] {
				t.Fatalf("%s %d: backend %d here, %d there", key, i, first[i], k)
			}
		}
		if slices.Min(count) < n/20 || slices.Max(count) > n/5 {
			t.Errorf("%s: %v", key, count)
		}
		unwell(r, 3)
		for _, when := range []string{"at once", "with another table"} {
			moved := 0
			for i := range n {
				k := chosen(r, nodetest.Request(request(key, i)))
				if k == 3 {
					t.Fatalf("%s: a backend that is down is chosen", when)
				}
				if first[i] != 3 && k != first[i] {
					moved++
				}
			}
			if moved > n/20 {
				t.Errorf("%s, %s: %d of %d moved", key, when, moved, n)
			}
			r.Publish()
		}
	}
	same := func(key string, requests ...string) {
		t.Helper()
		r := rig(t, "hash", func(c *Config) { c.Key = key }, nodetest.Backends(50)...)
		first := chosen(r, nodetest.Request(requests[0]))
		for _, q := range requests[1:] {
			if k := chosen(r, nodetest.Request(q)); k != first {
				t.Errorf("%s: %q leads elsewhere than %q", key, q, requests[0])
			}
		}
	}
	same("host", "GET / HTTP/1.1\nHost: a.example\n\n", "POST /b HTTP/1.1\nHost: A.Example:8080\n\n", "GET http://a.example/ HTTP/1.1\nHost: b\n\n")
	same("path", "GET /a?1 HTTP/1.1\nHost: x\n\n", "GET /a?2 HTTP/1.1\nHost: y\n\n")
	same("header:X-User", "GET / HTTP/1.1\nHost: x\nX-User: u\n\n", "GET /z HTTP/1.1\nHost: y\nx-user:  u \n\n")
	// Without the field, and without a request, the client counts.
	r := rig(t, "hash", func(c *Config) { c.Key = "header:X-User" }, nodetest.Backends(50)...)
	q := rig(t, "source", nil, nodetest.Backends(50)...)
	for i := range 50 {
		c := from(i)
		tcp := nodetest.Connection(nil)
		tcp.Client.Remote = c.Client.Remote
		if a, b, d := chosen(r, from(i)), chosen(r, tcp), chosen(q, c); a != b || b != d {
			t.Errorf("client %d: %d, %d, %d", i, a, b, d)
		}
	}
}

// Backends of one address with ports of their own are told apart.
func TestPorts(t *testing.T) {
	var all []state.BackendSpec
	for i := range 10 {
		all = append(all, state.BackendSpec{Name: fmt.Sprint(i), Address: netip.MustParseAddr("192.0.2.1"), Weight: 100, Port: 8000 + i})
	}
	r := rig(t, "source", nil, all...)
	port := func(i int) uint16 {
		s := from(i)
		if r.Serve(s) != "next" {
			t.Fatal("no backend")
		}
		return s.Backend.Addr.Port()
	}
	const n = 1000
	first := make([]uint16, n)
	seen := map[uint16]bool{}
	for i := range n {
		first[i] = port(i)
		seen[first[i]] = true
	}
	if len(seen) != 10 {
		t.Errorf("%d of 10 are used", len(seen))
	}
	if err := r.Store.Apply(state.Spec{Pools: []state.PoolSpec{pool(all[1:]...)}}); err != nil {
		t.Fatal(err)
	}
	r.Publish()
	moved := 0
	for i := range n {
		switch p := port(i); {
		case p == 8000:
			t.Fatal("the one that was removed is chosen")
		case first[i] != 8000 && p != first[i]:
			moved++
		}
	}
	if moved > n/20 {
		t.Errorf("%d of %d moved", moved, n)
	}
}

// A client stays at its backend, whatever it asks and from whatever port.
func TestSource(t *testing.T) {
	r := rig(t, "source", nil, nodetest.Backends(10)...)
	seen := map[int]bool{}
	for i := range 300 {
		first := chosen(r, from(i))
		seen[first] = true
		for p := range 3 {
			s := nodetest.Request(fmt.Sprintf("GET /%d HTTP/1.1\nHost: x\n\n", p))
			s.Client.Remote = netip.AddrPortFrom(from(i).Client.Remote.Addr(), uint16(2000+p))
			if k := chosen(r, s); k != first {
				t.Errorf("client %d: backend %d, then %d", i, first, k)
			}
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d of 10 backends are used", len(seen))
	}
}

// What is unhealthy, drained, or of weight 0 gets nothing new, from the moment on that
// it is known; what is added is chosen.
func TestUnusable(t *testing.T) {
	for _, a := range algorithms {
		r := rig(t, a, nil, weighted(100, 100, 100, 100)...)
		never := func(when string, down ...int) {
			t.Helper()
			seen := map[int]bool{}
			for i := range 200 {
				s := from(i)
				k := chosen(r, s)
				s.End()
				seen[k] = true
				if k < 0 || slices.Contains(down, k) {
					t.Fatalf("%s, %s: backend %d is chosen", a, when, k)
				}
			}
			if len(seen) != 4-len(down) {
				t.Errorf("%s, %s: only %v are chosen", a, when, seen)
			}
		}
		never("at first")
		unwell(r, 1)
		never("unhealthy, at once", 1)
		r.Publish()
		never("unhealthy", 1)
		if err := r.Store.Drain("web", "b2", true, false); err != nil {
			t.Fatal(err)
		}
		never("drained, at once", 1, 2)
		r.Publish()
		never("drained", 1, 2)
		if err := r.Store.SetWeight("web", "b3", 0, false); err != nil {
			t.Fatal(err)
		}
		r.Publish()
		never("weight 0", 1, 2, 3)
	}
}

// Nothing is usable: no_backend, or all of them where the pool fails open.
func TestNothingUsable(t *testing.T) {
	for _, a := range algorithms {
		for _, open := range []bool{false, true} {
			p := pool(nodetest.Backends(3)...)
			p.FailOpen = open
			r := nodetest.NewStage(t, "balance", func(c *Config) { c.Pool, c.Algorithm = "web", a }, p)
			unwell(r, 0, 1, 2)
			for range 2 {
				seen := map[int]bool{}
				for i := range 100 {
					s := from(i)
					seen[chosen(r, s)] = true
					s.End()
				}
				if open && (len(seen) != 3 || seen[-1]) || !open && (len(seen) != 1 || !seen[-1]) {
					t.Errorf("%s, fail_open %v: %v", a, open, seen)
				}
				r.Publish()
			}
			if s := from(0); !open && (r.Serve(s) != "no_backend" || s.Backend != nil || s.Route != "balance") {
				t.Errorf("%s: %+v", a, s)
			}
		}
	}
	if s := from(0); nodetest.NewStage(t, "balance", func(c *Config) { c.Pool = "web" }, state.PoolSpec{Name: "web"}).Serve(s) != "no_backend" {
		t.Error("a pool without backends has one")
	}
}

// What is explained is what happens, also where nothing but a backend that is left out
// is there; and to explain takes nobody's turn.
func TestExplainedAsChosen(t *testing.T) {
	for _, a := range algorithms {
		r := rig(t, a, func(c *Config) { c.EjectAt = 1 }, nodetest.Backends(2)...)
		b := r.Node.(*balancer)
		b.Report(backend(r, 0), true)
		for _, alone := range []bool{false, true} {
			if alone {
				unwell(r, 1)
			}
			turn := b.turn.Load()
			s := from(1)
			out, says := b.Explain(s)
			if b.turn.Load() != turn {
				t.Errorf("%s: a turn was taken", a)
			}
			want, told := chosen(r, from(1)), -1
			if s.Backend != nil {
				told = int(s.Backend.Addr.Addr().As4()[3]) - 1
			}
			if out != next || told != want || want != map[bool]int{false: 1, true: 0}[alone] {
				t.Errorf("%s, alone %v: %d %q, backend %d; %d is chosen", a, alone, out, says, told, want)
			}
		}
	}
}

// Sessions that run at the same time each take turns; the last backend that a session
// can have is found by each, and none is told that there is none. The others go down in
// the moment between two views, where the view has them still; or they are up, and
// have failed the session.
func TestNobodyIsTurnedAway(t *testing.T) {
	for _, a := range algorithms {
		for _, what := range []string{"down", "tried"} {
			// An even number: of two that take turns, one never comes to half of them.
			r := rig(t, a, nil, nodetest.Backends(8)...)
			var others []*stream.Backend
			for _, i := range []int{0, 1, 2, 3, 5, 6, 7} {
				others = append(others, backend(r, i))
				if what == "down" {
					unwell(r, i)
				}
			}
			var wg sync.WaitGroup
			var lost, other atomic.Int64
			for w := range 8 {
				wg.Go(func() {
					var all []*stream.Session
					for i := range 16 {
						s := from(16*w + i)
						if what == "tried" {
							s.Tried = append(s.Tried, others...)
						}
						all = append(all, s)
					}
					for i := range 20_000 {
						s := all[i%16]
						switch chosen(r, s) {
						case -1:
							lost.Add(1)
						case 4:
						default:
							other.Add(1)
						}
						s.Choose(nil, nil)
					}
				})
			}
			wg.Wait()
			if lost.Load() > 0 || other.Load() > 0 {
				t.Errorf("%s, %s: %d have no backend, %d one that they cannot have", a, what, lost.Load(), other.Load())
			}
		}
	}
}

// A reload goes on with the turns where they were.
func TestTurnsGoOn(t *testing.T) {
	r := rig(t, "round-robin", nil, nodetest.Backends(5)...)
	for i := range 20 {
		if k := chosen(r, from(i)); k != i%5 {
			t.Errorf("session %d goes to backend %d", i, k)
		}
		nodetest.Reload(r, func(c *Config) { c.Pool = "web" })
	}
}

// A session never comes to a backend that failed it, however many run at the same
// time, and finds another one as long as there is one.
func TestTried(t *testing.T) {
	for _, a := range algorithms {
		r := rig(t, a, func(c *Config) { c.EjectFor = 0 }, nodetest.Backends(4)...)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 300 {
					s := from(w*300 + i)
					r.Serve(s)
					seen := map[*stream.Backend]bool{s.Backend: true}
					for range 3 {
						s.Failed()
						b := s.Picker.Pick(s)
						if b == nil || seen[b] {
							t.Errorf("%s: after %d of 4: %v", a, len(seen), b)
							return
						}
						seen[b] = true
						s.Choose(b, s.Picker)
					}
					s.Failed()
					if b := s.Picker.Pick(s); b != nil {
						t.Errorf("%s: a fifth of four", a)
						return
					}
					s.End()
				}
			})
		}
		wg.Wait()
	}
}

// A backend that comes back works up to its share; one that was always there has it,
// and tables ignore it.
func TestSlowStart(t *testing.T) {
	for _, a := range algorithms {
		r := rig(t, a, func(c *Config) { c.SlowStart = time.Hour }, nodetest.Backends(2)...)
		share := func() float64 {
			n := 0
			for i := range 4000 {
				s := from(i)
				if chosen(r, s) == 0 {
					n++
				}
				if a == "round-robin" {
					s.End()
				}
			}
			for i := range 2 {
				backend(r, i).Active.Store(0)
			}
			return float64(n) / 4000
		}
		if s := share(); math.Abs(s-0.5) > 0.05 {
			t.Errorf("%s: %.2f at first", a, s)
		}
		unwell(r, 0)
		r.Publish()
		r.Store.SetHealth(state.Target{Check: "h", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, state.Healthy)
		r.Publish()
		back := r.Env.Backends(netip.MustParseAddrPort("192.0.2.1:80"))
		if back.UpSince.Load() == 0 {
			t.Fatalf("%s: nobody noted that it came back", a)
		}
		table := a == "source" || a == "hash"
		last := 0.0
		for _, c := range []struct{ minutes, want float64 }{{0, 0.05 / 1.05}, {15, 0.2}, {30, 1.0 / 3}, {61, 0.5}} {
			back.UpSince.Store(stream.Now() - int64(c.minutes*60e9))
			want := c.want
			if table {
				want = 0.5
			}
			s := share()
			if math.Abs(s-want) > 0.05 || !table && s < last {
				t.Errorf("%s, after %v minutes: share %.3f, want %.3f", a, c.minutes, s, want)
			}
			last = s
		}
	}
	// All come back at once: nobody has less than the others.
	r := rig(t, "round-robin", nil, nodetest.Backends(2)...)
	unwell(r, 0, 1)
	r.Publish()
	r.Store.SetHealth(state.Target{Check: "h", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, state.Healthy)
	r.Publish()
	if r.Env.Backends(netip.MustParseAddrPort("192.0.2.1:80")).UpSince.Load() != 0 {
		t.Error("the only one is held back")
	}
}

// However many fail at the same time, half of a pool stays; and what is left out is
// chosen again when its time is over.
func TestEjection(t *testing.T) {
	const n = 9
	for _, a := range algorithms {
		r := rig(t, a, func(c *Config) { c.EjectAt, c.EjectFor = 3, time.Hour }, nodetest.Backends(n)...)
		b := r.Node.(*balancer)
		var all []*stream.Backend
		for i := range n {
			all = append(all, backend(r, i))
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for _, k := range all {
			wg.Go(func() {
				<-begin
				for range 30 {
					b.Report(k, true)
				}
			})
		}
		close(begin)
		wg.Wait()
		out := 0
		for _, k := range all {
			if k.Ejected.Load() > stream.Now() {
				out++
			}
		}
		if out != n/2 || r.Counter("ejected") != n/2 || r.Counter("ejection_withheld") == 0 {
			t.Errorf("%s: %d of %d are left out, counted %d, withheld %d", a, out, n, r.Counter("ejected"), r.Counter("ejection_withheld"))
		}
		never := func() {
			t.Helper()
			for i := range 200 {
				s := from(i)
				k := chosen(r, s)
				s.End()
				if k < 0 || all[k].Ejected.Load() > stream.Now() {
					t.Fatalf("%s: backend %d is chosen", a, k)
				}
			}
		}
		never()
		nodetest.Reload(r, func(c *Config) { c.Pool, c.Algorithm, c.EjectAt, c.EjectFor = "web", a, 3, time.Hour })
		never()
		// All others become unhealthy: better those than none.
		for i, k := range all {
			if k.Ejected.Load() == 0 {
				unwell(r, i)
			}
		}
		for range 2 {
			if s := from(0); chosen(r, s) < 0 || s.Backend.Ejected.Load() == 0 {
				t.Errorf("%s: %v is chosen", a, s.Backend)
			}
			r.Publish()
		}
	}
}

// The bound holds for two that fail in one moment, of which only one may be left out.
func TestEjectionAtOnce(t *testing.T) {
	r := rig(t, "round-robin", func(c *Config) { c.EjectAt, c.EjectFor = 1, time.Hour }, nodetest.Backends(4)...)
	b := r.Node.(*balancer)
	for round := range 100_000 {
		b.Report(backend(r, 0), true)
		var wg sync.WaitGroup
		var ready atomic.Int64
		for i := range 2 {
			k := backend(r, 1+i)
			wg.Go(func() {
				ready.Add(1)
				for spins := 1; ready.Load() < 2; spins++ {
					if spins%1000 == 0 {
						runtime.Gosched()
					}
				}
				b.Report(k, true)
			})
		}
		wg.Wait()
		out := 0
		for _, until := range b.ejections.until {
			if until.Swap(0) > 0 {
				out++
			}
		}
		if out != 2 {
			t.Fatalf("round %d: %d of 4 are left out", round, out)
		}
	}
}

// Failures in a row count, not all; and one that is left out comes back by itself.
func TestEjectionInARow(t *testing.T) {
	r := rig(t, "round-robin", func(c *Config) { c.EjectAt, c.EjectFor = 3, 300*time.Millisecond }, nodetest.Backends(2)...)
	b := r.Node.(*balancer)
	k := r.Env.Backends(netip.MustParseAddrPort("192.0.2.1:80"))
	for range 5 {
		b.Report(k, true)
		b.Report(k, true)
		b.Report(k, false)
	}
	if r.Counter("ejected") != 0 || k.Failures.Load() != 10 {
		t.Errorf("%d left out, %d failures", r.Counter("ejected"), k.Failures.Load())
	}
	for range 3 {
		b.Report(k, true)
	}
	if r.Counter("ejected") != 1 {
		t.Fatal("it is not left out after three in a row")
	}
	nodetest.Eventually(t, func() error {
		seen := map[int]bool{}
		for i := range 4 {
			seen[chosen(r, from(i))] = true
		}
		if len(seen) != 2 {
			return fmt.Errorf("%v", seen)
		}
		return nil
	})
	off := rig(t, "round-robin", func(c *Config) { c.EjectAt, c.EjectFor = 1, 0 }, nodetest.Backends(2)...)
	off.Node.(*balancer).Report(off.Env.Backends(netip.MustParseAddrPort("192.0.2.1:80")), true)
	if off.Counter("ejected") != 0 {
		t.Error("left out with eject_for = 0s")
	}
}

// What was left out, or could not be, begins anew: it takes as many failures again.
func TestEjectionBeginsAnew(t *testing.T) {
	r := rig(t, "round-robin", func(c *Config) { c.EjectAt, c.EjectFor = 3, 100*time.Millisecond }, nodetest.Backends(2)...)
	b := r.Node.(*balancer)
	fail := func(i, times int) {
		for range times {
			b.Report(backend(r, i), true)
		}
	}
	fail(0, 3)
	nodetest.Eventually(t, func() error {
		if backend(r, 0).Ejected.Load() > stream.Now() {
			return errors.New("it is left out still")
		}
		return nil
	})
	if fail(0, 2); r.Counter("ejected") != 1 {
		t.Errorf("left out %d times after two more failures", r.Counter("ejected"))
	}
	if fail(0, 1); r.Counter("ejected") != 2 {
		t.Errorf("left out %d times after three more failures", r.Counter("ejected"))
	}
	b.c.EjectFor = time.Hour
	nodetest.Eventually(t, func() error {
		if fail(0, 1); r.Counter("ejected") != 3 {
			return errors.New("it is left out still")
		}
		return nil
	})
	fail(1, 5)
	if n := r.Counter("ejection_withheld"); n != 1 {
		t.Errorf("withheld %d times for five failures", n)
	}
}

// Two pools that share a backend each keep their half.
func TestEjectionByPool(t *testing.T) {
	all := nodetest.Backends(3)
	r := nodetest.NewStage(t, "balance", func(c *Config) { c.Pool, c.EjectAt = "one", 1 },
		state.PoolSpec{Name: "one", TableSize: 251, Backends: all[:2]}, state.PoolSpec{Name: "two", TableSize: 251, Backends: all[1:]})
	second, err := build(Config{Pool: "two", Algorithm: "round-robin", EjectAt: 1, EjectFor: time.Hour}, r.Env)
	if err != nil {
		t.Fatal(err)
	}
	r.Node.(*balancer).Report(r.Env.Backends(netip.MustParseAddrPort("192.0.2.1:80")), true)
	second.(*balancer).Report(r.Env.Backends(netip.MustParseAddrPort("192.0.2.2:80")), true)
	if k := chosen(r, from(0)); k != 1 {
		t.Errorf("backend %d is chosen", k)
	}
	for range 4 {
		if b := second.(*balancer).Pick(from(0)); b.Addr.String() != "192.0.2.3:80" {
			t.Errorf("%v is chosen", b.Addr)
		}
	}
}

// Whatever a request holds, a hash leads somewhere, and the same request to the same
// backend.
func FuzzHash(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\nHost: a.example:80\n\n", "GET http://[::1]/ HTTP/1.1\nHost:\nX-User: \xff\n\n", "OPTIONS * HTTP/1.1\nHost: x\nX-User: a\nX-User: b\n\n", "GET /%zz//;?? HTTP/1.0\n\n"} {
		f.Add(s)
	}
	var rigs []*nodetest.Stage
	for _, key := range []string{"target", "path", "host", "header:X-User"} {
		rigs = append(rigs, rig(f, "hash", func(c *Config) { c.Key = key }, nodetest.Backends(5)...))
	}
	f.Fuzz(func(t *testing.T, head string) {
		for _, r := range rigs {
			r.T = t
			a, b := nodetest.Request(head), nodetest.Request(head)
			if a == nil {
				return
			}
			if k := chosen(r, a); k < 0 || k != chosen(r, b) {
				t.Fatalf("%q: backend %d", head, k)
			}
		}
	})
}

// BenchmarkPick reports nanoseconds a session, on all cores at once.
func BenchmarkPick(b *testing.B) {
	for _, a := range algorithms {
		b.Run(strings.ReplaceAll(a, "-", ""), func(b *testing.B) {
			r := rig(b, a, nil, nodetest.Backends(20)...)
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				s := from(1)
				for p.Next() {
					r.Serve(s)
					s.Choose(nil, nil)
				}
			})
		})
	}
}
