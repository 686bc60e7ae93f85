package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/control/state"
)

// dialler takes down what is dialled, and has it answered as the test says.
type dialler struct {
	mu     sync.Mutex
	asked  []string
	at     []time.Time
	active int
	answer func(ctx context.Context, address string) error // nil is at once, and well
}

func (d *dialler) dial(ctx context.Context, _, address string) (net.Conn, error) {
	d.mu.Lock()
	d.asked = append(d.asked, address)
	d.at = append(d.at, time.Now())
	d.active++
	answer := d.answer
	d.mu.Unlock()
	var err error
	if answer != nil {
		err = answer(ctx, address)
	}
	d.mu.Lock()
	d.active--
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a, b := net.Pipe()
	_ = b.Close()
	return a, nil
}

// took answers what was dialled since the last call, sorted, and how many dials last.
func (d *dialler) took() (asked []string, active int) {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	asked = slices.Sorted(slices.Values(d.asked))
	d.asked = nil
	return asked, d.active
}

func addresses(n int) (all []netip.AddrPort) {
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80))
	}
	return all
}

// TestParallel: of ten backends that are due three are asked at a time; the next one
// follows when one has answered, and all have their turn.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		d := &dialler{answer: func(context.Context, string) error { <-release; return nil }}
		all := addresses(10)
		begin(t, newHost(t, "c", all...), func(c *Config) { c.Interval, c.Timeout, c.Parallel = time.Hour, time.Hour, 3 }, d.dial)
		time.Sleep(time.Minute)
		seen := map[string]bool{}
		for i := range all {
			asked, active := d.took()
			for _, a := range asked {
				seen[a] = true
			}
			if want := min(3, len(all)-i); active != want {
				t.Errorf("behind %d answers %d are asked at a time, want %d", i, active, want)
			}
			release <- true
		}
		if len(seen) != len(all) {
			t.Errorf("%d of %d were asked", len(seen), len(all))
		}
	})
}

// TestFirstProbes: they are spread over a fifth of the interval, a second at most.
func TestFirstProbes(t *testing.T) {
	for interval, within := range map[time.Duration]time.Duration{
		500 * time.Millisecond: 100 * time.Millisecond, 5 * time.Second: time.Second, time.Hour: time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &dialler{}
			begun := time.Now()
			begin(t, newHost(t, "c", addresses(300)...), func(c *Config) { c.Interval = interval }, d.dial)
			time.Sleep(within)
			if asked, _ := d.took(); len(slices.Compact(asked)) != 300 {
				t.Errorf("interval %v: %d of 300 were asked within %v", interval, len(asked), within)
			}
			quarter := [4]int{}
			for _, at := range d.at {
				quarter[min(3, at.Sub(begun)*4/within)]++
			}
			for i, n := range quarter {
				if n < 30 {
					t.Errorf("interval %v: %d of 300 were asked in quarter %d of %v", interval, n, i+1, within)
				}
			}
		})
	}
}

// TestChangeIsAskedSoon: a check that changes asks at once by what it says now, however
// far away the next probe was: of backends that rest, and of one whose probe is under
// way, when that has ended.
func TestChangeIsAskedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan bool)
		d := &dialler{}
		h := newHost(t, "c", addresses(2)...)
		c := begin(t, h, func(c *Config) { c.Interval, c.Timeout = time.Hour, time.Hour }, d.dial)
		time.Sleep(time.Second)
		if asked, _ := d.took(); !slices.Equal(asked, []string{"10.9.0.0:80", "10.9.0.1:80"}) {
			t.Fatalf("at first %q were asked", asked)
		}
		change := func(port int) {
			t.Helper()
			next := c.prober.cfg
			next.Port = port
			if err := c.Reconfigure(&next); err != nil {
				t.Fatal(err)
			}
			c.mu.Lock()
			c.prober.dial = d.dial
			c.mu.Unlock()
		}
		d.mu.Lock()
		d.answer = func(_ context.Context, address string) error {
			if address == "10.9.0.0:81" {
				<-hung
			}
			return nil
		}
		d.mu.Unlock()
		change(81)
		time.Sleep(time.Second)
		if asked, active := d.took(); !slices.Equal(asked, []string{"10.9.0.0:81", "10.9.0.1:81"}) || active != 1 {
			t.Errorf("behind a change %q were asked, %d last", asked, active)
		}
		change(82)
		time.Sleep(time.Second)
		if asked, _ := d.took(); !slices.Equal(asked, []string{"10.9.0.1:82"}) {
			t.Errorf("behind another %q were asked", asked)
		}
		hung <- true
		time.Sleep(time.Second)
		if asked, _ := d.took(); !slices.Equal(asked, []string{"10.9.0.0:82"}) {
			t.Errorf("when the old probe had ended %q were asked", asked)
		}
	})
}

// TestOthersTargets: a check asks the backends of the pools that name it, and no others,
// and those that leave a pool not once more.
func TestOthersTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialler{}
		h := newHost(t, "c")
		spec := state.Spec{Pools: []state.PoolSpec{
			pool("web", "c", "10.0.0.1:80", "10.0.0.2:80"), pool("api", "d", "10.0.0.3:80", "10.0.0.1:80"), pool("none", "", "10.0.0.4:80"),
		}}
		if err := h.store.Apply(spec); err != nil {
			t.Fatal(err)
		}
		begin(t, h, func(c *Config) { c.Interval = time.Hour }, d.dial)
		time.Sleep(time.Minute)
		if asked, _ := d.took(); !slices.Equal(asked, []string{"10.0.0.1:80", "10.0.0.2:80"}) {
			t.Errorf("asked %q", asked)
		}
		spec.Pools[0].Backends = spec.Pools[0].Backends[:1]
		if err := h.store.Apply(spec); err != nil {
			t.Fatal(err)
		}
		for _, f := range h.watch {
			f()
		}
		time.Sleep(90 * time.Minute)
		if asked, _ := d.took(); !slices.Equal(asked, []string{"10.0.0.1:80"}) {
			t.Errorf("behind the leave of 10.0.0.2 asked %q", asked)
		}
	})
}

// TestForgottenHealthIsToldAgain: a target that the state has lost and found again, which
// the check did not see (a reload that was taken back), has its health again.
func TestForgottenHealthIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "c")
		spec := state.Spec{Pools: []state.PoolSpec{pool("web", "c", "10.0.0.1:80")}}
		apply := func(check string) state.Health {
			t.Helper()
			spec.Pools[0].Health = check
			if err := h.store.Apply(spec); err != nil {
				t.Fatal(err)
			}
			return h.Snapshot().Pools[1].Members[0].Health
		}
		apply("c")
		begin(t, h, func(c *Config) { c.Interval = time.Second }, func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("refused")
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		h.store.Flush()
		if got := h.Snapshot().Pools[1].Members[0].Health; got != state.Unhealthy {
			t.Fatalf("at first %v", got)
		}
		apply("")
		if got := apply("c"); got == state.Unhealthy {
			t.Fatal("the state has not forgotten")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		h.store.Flush()
		if got := h.Snapshot().Pools[1].Members[0].Health; got != state.Unhealthy {
			t.Errorf("later %v", got)
		}
	})
}

// TestAnswerAboutWhatIsGone: what a probe finds out about a backend that is gone
// meanwhile is told to nobody.
func TestAnswerAboutWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		all := addresses(2)
		d := &dialler{answer: func(_ context.Context, address string) error {
			if address == all[0].String() {
				<-release
			}
			return nil
		}}
		h := newHost(t, "c", all...)
		begin(t, h, func(c *Config) { c.Rise, c.Interval, c.Timeout = 1, time.Hour, time.Hour }, d.dial)
		time.Sleep(time.Minute)
		h.apply(t, "c", all[1])
		synctest.Wait()
		release <- true
		synctest.Wait()
		if a, b := h.last(all[0]), h.last(all[1]); a != state.Unknown || b != state.Healthy {
			t.Errorf("told that the one that is gone is %v, and the other %v", a, b)
		}
	})
}

// TestStopIsNoFailure: a probe that a stop ends says nothing about its backend, and
// nobody is watched any more.
func TestStopIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := addresses(1)
		d := &dialler{answer: func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }}
		h := newHost(t, "c", all...)
		c := begin(t, h, func(c *Config) { c.Fall, c.Interval, c.Timeout = 1, time.Hour, time.Hour }, d.dial)
		time.Sleep(time.Minute)
		if _, active := d.took(); active != 1 {
			t.Fatalf("%d probes are under way", active)
		}
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if x := h.last(all[0]); x != state.Unknown {
			t.Errorf("told that it is %v", x)
		}
		if n := h.watching(); n != 0 {
			t.Errorf("%d still watch the targets", n)
		}
	})
}

// TestLogOfAChange: one line, with the backend as the file has it, and why.
func TestLogOfAChange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := netip.MustParseAddrPort(l.Addr().String())
	_ = l.Close()
	for _, c := range []struct {
		backend netip.AddrPort
		port    int // of the check
		want    string
	}{{closed, 0, closed.String()}, {netip.AddrPortFrom(closed.Addr(), 0), int(closed.Port()), "127.0.0.1"}} {
		h := newTunnelHost(t, state.Spec{Pools: []state.PoolSpec{pool("web", "c", c.backend.String())}})
		core, logs := observer.New(zap.InfoLevel)
		h.log = zap.New(core)
		if _, err := h.begin(t, func(k *Config) { k.Through, k.Fall, k.Interval, k.Port = "direct", 1, time.Hour, c.port }); err != nil {
			t.Fatal(err)
		}
		h.await(t, c.backend, state.Unhealthy)
		all := logs.All()
		if len(all) != 1 {
			t.Fatalf("%d lines: %+v", len(all), all)
		}
		f := all[0].ContextMap()
		if why, _ := f["error"].(string); f["health"] != "c" || f["backend"] != c.want || f["state"] != "UNHEALTHY" || !strings.Contains(why, "refused") {
			t.Errorf("the line is %q %v", all[0].Message, f)
		}
	}
}

// TestTCPProbeEndsByReset: so that neither side keeps a closed connection in mind.
func TestTCPProbeEndsByReset(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := netip.MustParseAddrPort(l.Addr().String())
	p, err := newProber(Defaults(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.probe(t.Context(), state.Target{Addr: a.Addr(), Port: int(a.Port())}, nil); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended by %v, want a reset", err)
	}
}

// TestAnswers: which are taken, and which are not, and what a probe sends.
func TestAnswers(t *testing.T) {
	var asked *http.Request
	long := strings.Repeat("x", 64<<10-4)
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		asked = r
		switch r.URL.Path {
		case "/within":
			fmt.Fprint(w, long, "well", long)
		case "/beyond":
			fmt.Fprint(w, long, "we", "ll", "beyond", "well")
		case "/cut":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "well")
		case "/header":
			w.Header().Set("X", strings.Repeat("x", 100<<10))
			fmt.Fprint(w, "well")
		}
	})
	for _, c := range []struct{ path, body, words string }{
		{"/within", "well", ""},
		{"/beyond", "beyond", "does not match"},
		{"/beyond", "", ""},
		{"/cut", "well", "unexpected EOF"},
		{"/cut", "", "unexpected EOF"},
		{"/cut", "other", "unexpected EOF"},
		{"/header", "well", "header"},
	} {
		cfg := Defaults()
		cfg.Type, cfg.Path, cfg.Body, cfg.Timeout = "http", c.path, c.body, time.Minute
		p, err := newProber(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = p.probe(t.Context(), state.Target{Addr: a.Addr(), Port: int(a.Port())}, nil)
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s, body %q: %v, want %q", c.path, c.body, err, c.words)
		}
		if agent, coding := asked.Header.Get("User-Agent"), asked.Header.Get("Accept-Encoding"); agent != "lbgraph-health" || coding != "" || !asked.Close {
			t.Errorf("%s: a probe by %q, coding %q, close %v", c.path, agent, coding, asked.Close)
		}
	}
}
