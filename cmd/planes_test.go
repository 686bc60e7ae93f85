package cmd_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lbgraph/lbgraph/internal/flood"
)

// TestBothPlanesOfOneFile: a pool of one file serves packets and requests alike: by its
// weights, by its health checks, and by orders to drain, weigh and enable its backends.
func TestBothPlanesOfOneFile(t *testing.T) {
	var sick atomic.Bool
	var ports []int
	for i, name := range []string{"one", "two"} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+2))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Server", name)
			if r.URL.Path == "/healthz" && name == "two" && sick.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	at := freePorts(t, 1)[0]
	pool := fmt.Sprintf(`pool "web" {
  health = health.get
  backend "one" {
    address = "127.0.0.2"
    port    = %d
  }
  backend "two" {
    address = "127.0.0.3"
    port    = %d
    weight  = 300
  }
}
health "get" {
  type     = "http"
  path     = "/healthz"
  interval = "500ms"
  timeout  = "500ms"
}
stream "front" {
  path { main = [listen, balance, proxy] }
  node "listen" "listen" { address = %q }
  node "balance" "balance" {
    pool       = pool.web
    slow_start = "0s"
  }
}
`, ports[0], ports[1], at)
	s := newStation(t)
	_, rest, _ := strings.Cut(made, "}\nvip")
	s.write(pool + "vip" + rest)
	s.says(0, "reload", "reloaded")

	flow := 0
	// packets counts where 30 flows that nobody has seen yet would go.
	packets := func() (one, two int) {
		t.Helper()
		for range 30 {
			flow++
			out := s.says(0, fmt.Sprintf("trace tcp 198.51.100.7:%d 203.0.113.80:443", flow))
			one += strings.Count(out, "  vip web  backend web/one\n")
			two += strings.Count(out, "  vip web  backend web/two\n")
		}
		return one, two
	}
	requests := func() (one, two int) {
		t.Helper()
		_, out, problem := run("demo", "flood", at, "-n", "60", "-c", "3", "-q", "-o", "json")
		var r flood.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s%s", err, out, problem)
		}
		return int(r.AnsweredBy["one"]), int(r.AnsweredBy["two"])
	}
	both := func(what string) {
		t.Helper()
		s.until(what+": requests go by weight", func() bool { one, two := requests(); return one == 15 && two == 45 })
		s.until(what+": flows go by weight", func() bool { one, two := packets(); return one > 0 && two > one && one+two == 30 })
	}
	alone := func(what string) {
		t.Helper()
		s.until(what+": requests go to one alone", func() bool { one, _ := requests(); return one == 60 })
		s.until(what+": flows go to one alone", func() bool { one, _ := packets(); return one == 30 })
	}
	both("at first")
	for _, x := range []struct{ out, back string }{
		{"backend drain web/two", "backend enable web/two"},
		{"backend weight web/two 0", "backend restore web/two"},
	} {
		s.says(0, x.out)
		alone(x.out)
		s.says(0, x.back)
		both(x.back)
	}
	sick.Store(true)
	alone("a backend that fails its checks")
	sick.Store(false)
	both("a backend that is well again")
	s.write(strings.Replace(pool, "weight  = 300", "drain   = true", 1) + "vip" + rest)
	s.says(0, "reload", "reloaded")
	alone("drained by the file")
}
