package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/control/state"
)

// answerer is a server of a backend that can be taken away and put back.
type answerer struct {
	at string
	*httptest.Server
}

func (a *answerer) up(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", a.at)
	if err != nil {
		t.Fatal(err)
	}
	name := l.Addr().(*net.TCPAddr).IP.String()
	a.at = l.Addr().String()
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
	a.Listener.Close()
	a.Listener = l
	a.Config.SetKeepAlivesEnabled(false)
	a.Start()
}

func (a *answerer) down() {
	if a.Server != nil {
		a.CloseClientConnections()
		a.Close()
		a.Server = nil
	}
}

// checked is a file with a packet graph and a stream on one pool, of backends
// 127.0.0.11 and on.
func checked(interval string, port, backends int, more string) string {
	var b strings.Builder
	timeout := "15ms"
	if interval != "20ms" {
		timeout = "1s"
	}
	fmt.Fprintf(&b, "health \"up\" {\n type = \"tcp\"\n interval = %q\n timeout = %q\n}\npool \"web\" {\n table_size = 251\n health = health.up\n%s\n", interval, timeout, more)
	for i := range backends {
		fmt.Fprintf(&b, " backend \"web-%d\" {\n  address = \"127.0.0.%d\"\n  port = %d\n }\n", i+1, 11+i, port)
	}
	b.WriteString("}\nstream \"web\" {\n path { main = [in, pick, out] }\n node \"listen\" \"in\" {\n  address = \"127.0.0.1:0\"\n  protocol = \"http\"\n }\n node \"balance\" \"pick\" {\n  pool = pool.web\n  slow_start = \"0s\"\n }\n node \"proxy\" \"out\" {}\n}\n")
	return b.String() + plain[strings.Index(plain, "vip"):]
}

// TestHealth: what checks find out leads both planes, from the start on and over
// reloads.
func TestHealth(t *testing.T) {
	var servers [4]answerer
	servers[0].at = "127.0.0.11:0"
	servers[0].up(t)
	_, p, _ := net.SplitHostPort(servers[0].at)
	var port int
	fmt.Sscan(p, &port)
	for i := range servers {
		defer servers[i].down()
		servers[i].at = fmt.Sprintf("127.0.0.%d:%d", 11+i, port)
	}
	servers[1].up(t)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(10 + i)}) }
	r := newRig(t, checked("1h", port, 3, ""))
	fresh := flows(t, 1000)
	// forwards sends new flows and tells which backends they went to.
	forwards := func(want ...int) {
		t.Helper()
		to := r.put(fresh[:100])
		fresh = fresh[100:]
		for i := range 4 {
			takes := false
			for _, w := range want {
				takes = takes || w == i+1
			}
			if n := on(to, addr(i+1)); (n > 0) != takes {
				t.Errorf("%d of 100 new flows went to web-%d, want %v", n, i+1, want)
			}
		}
	}
	// proxies does the same for the streams; only the backends that answer may be said.
	proxies := func(want ...int) {
		t.Helper()
		at, _ := r.Streams().Bound("web", "in")
		got := map[string]int{}
		for range 12 {
			resp, err := http.Get("http://" + at.String())
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 64)
			n, _ := resp.Body.Read(b)
			resp.Body.Close()
			got[fmt.Sprint(resp.StatusCode, " ", string(b[:n]))]++
		}
		for _, w := range want {
			k := fmt.Sprint("200 ", addr(w))
			if got[k] == 0 {
				t.Errorf("streams: web-%d got nothing", w)
			}
			delete(got, k)
		}
		if len(got) > 0 {
			t.Errorf("streams also answered %v", got)
		}
	}
	is := func(want ...state.Health) func() bool {
		return func() bool {
			got := map[netip.Addr]state.Health{}
			for _, ctl := range r.running() {
				if h, ok := ctl.Control.(*health.Checker); ok {
					for _, x := range h.Results() {
						got[x.Target.Addr] = x.Health
					}
				}
			}
			for i, w := range want {
				if x, ok := got[addr(i+1)]; !ok || x != w {
					return false
				}
			}
			return len(got) == len(want)
		}
	}
	reload := func(text string) {
		t.Helper()
		r.write(text)
		if got := r.ReloadFile("test", false); got.Outcome != "reloaded" {
			t.Fatalf("%+v", got)
		}
	}
	shows := func(i int, want string) {
		t.Helper()
		got := scrape(t, r.Daemon)
		for _, s := range []string{"UNKNOWN", "HEALTHY", "UNHEALTHY"} {
			series := fmt.Sprintf(`lbgraph_health_state{backend=%q,health="up",port="%d",state=%q}`, addr(i), port, s)
			if x, ok := got[series]; !ok || (x == 1) != (s == want) {
				t.Errorf("%s is %v (%t), want %s", series, x, ok, want)
			}
		}
	}
	const u, h, d = state.Unknown, state.Healthy, state.Unhealthy

	// Nothing is known at the start: all take traffic.
	r.until("nothing is known at the start", is(u, u, u))
	forwards(1, 2, 3)
	shows(3, "UNKNOWN")
	// What is added by a reload and unknown takes none.
	reload(checked("1h", port, 4, ""))
	forwards(1, 2, 3)
	// A changed interval is in force at once; the fourth takes traffic once it is up.
	servers[3].up(t)
	reload(checked("20ms", port, 4, ""))
	r.until("the new interval", is(h, h, d, h))
	if !r.logged("a backend changes its state", "127.0.0.14", "HEALTHY") || !r.logged("a backend changes its state", "127.0.0.13", "UNHEALTHY", "refused") {
		t.Errorf("the log says %v", r.said())
	}
	time.Sleep(2 * state.Window)
	forwards(1, 2, 4)
	proxies(1, 2, 4)
	shows(1, "HEALTHY")
	shows(3, "UNHEALTHY")
	if x, ok := scrape(t, r.Daemon)[fmt.Sprintf(`lbgraph_health_probe_duration_seconds{backend="127.0.0.11",health="up",port="%d"}`, port)]; !ok || x <= 0 || x > 1 {
		t.Errorf("a probe took %v s", x)
	}
	// A reload that leaves the check alone forgets nothing.
	reload(checked("20ms", port, 4, "") + "# more\ndrain { enabled = false }\n")
	if !is(h, h, d, h)() {
		t.Error("a reload forgot what was known")
	}
	forwards(1, 2, 4)
	// What failed before the reload recovers after it.
	servers[2].up(t)
	r.until("it recovers", is(h, h, h, h))
	time.Sleep(2 * state.Window)
	forwards(1, 2, 3, 4)
	proxies(1, 2, 3, 4)

	// None is usable: packets are dropped, for that reason.
	for i := range servers {
		servers[i].down()
	}
	r.until("all are down", is(d, d, d, d))
	none := func() float64 {
		return scrape(t, r.Daemon)[`lbgraph_dropped_packets_total{graph="edge",node="maglev-select",reason="no_backend"}`]
	}
	before := none()
	r.port.port.Inject(0, fresh[:50]...)
	r.until("50 packets are dropped", func() bool { return none() == before+50 })
	if n := len(r.port.port.Sent(0)); n > 0 {
		t.Errorf("%d packets were sent", n)
	}
	// Unless the file says that it is better to send them anywhere.
	reload(checked("20ms", port, 4, " fail_open = true"))
	forwards(1, 2, 3, 4)
}
