package cmd_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/lbgraph/lbgraph/control/admin"
)

// TestCommandsOfStreams: status, top, trace and explain show streams beside packets.
func TestCommandsOfStreams(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sick" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(b.Close)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(b.URL, "http://"))
	s := newStation(t)
	s.write(made + fmt.Sprintf(`
pool "app" {
  table_size = 251
  backend "app-1" {
    address = %q
    port    = %s
  }
}
stream "www" {
  path { main = [in, hosts.app, app, proxy] }
  node "listen" "in" { address = "127.0.0.1:0" }
  node "route" "hosts" {
    rule "app" { host = ["app.example"] }
  }
  node "balance" "app" { pool = pool.app }
}
`, host, port))
	s.says(0, "reload", "reloaded")
	var st admin.Status
	if err := json.Unmarshal([]byte(s.says(0, "status -o json")), &st); err != nil || len(st.Streams) != 1 || len(st.Graphs) != 1 {
		t.Fatalf("%v: %+v", err, st)
	}
	at := st.Streams[0].Listeners[0].Address.String()
	ask := func(host, path string, want int) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = host
		res, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s%s is answered %d", host, path, res.StatusCode)
		}
	}
	for range 3 {
		ask("app.example", "/ok", 200)
	}
	ask("app.example", "/sick", 500)
	ask("else.example", "/", 404)
	s.until("all are counted", func() bool { _, out, _ := s.run("status"); return strings.Contains(out, "5 requests") })
	s.says(0, "status", `app-1  `+host+":"+port+`  up  `, `(?m)^stream www$`, `(?m)^  listener in  `+at+`  \d connections?  \d accepted  5 requests$`, `(?m)^  route hosts  1 session .* 4xx 1$`,
		`(?m)^  route app    4 sessions  p50 \d+\.\d ms  p99 \d+\.\d ms  2xx 3, 5xx 1$`, `(?m)^  dropped hosts.no_route 1$`, `(?m)^  `+host+":"+port+`  0 active  4 sessions  0 failed  0 retries  p50 `, `graph edge, 1 core`)
	s.says(0, "top --interval 50ms", `graph edge, 1 core`, `(?m)^stream www$`, `(?m)^in +`+at+` +[01] +0 +0 +0 +0 +0 +0$`, `(?m)^app +0 +- +-$`, `(?m)^hosts +route +0 +0$`, `(?m)^`+host+":"+port+` +app/app-1 +0 +0 +0 +0 +- +-$`)
	var top admin.Top
	if err := json.Unmarshal([]byte(s.says(0, "top --interval 50ms -o json")), &top); err != nil || len(top.Graphs) != 1 || len(top.Streams) != 1 || len(top.Streams[0].Nodes) != 4 || len(top.Backends) != 1 {
		t.Errorf("%v: %+v", err, top)
	}

	url := strings.Replace("http://"+at, "127.0.0.1", "app.example", 1)
	s.says(0, "trace "+url+"/cart?a=b --client 198.51.100.7 --method POST", `(?m)^POST app.example:\d+/cart\?a=b from 198.51.100.7 by www/in: app/app-1$`, `(?m)^  in     listen   -> next$`, `(?m)^  hosts  route    -> app   rule "app" fits$`,
		`(?m)^  app    balance  -> next  app/app-1 at .*, the next in turn; 1 of 1 are up$`, `(?m)^  proxy  proxy +asks by HTTP/1.1 at `)
	s.says(0, "trace http://else.example/ --listener in", `(?m)^GET else.example/ from 127.0.0.1 by www/in: 404, no_route at hosts$`)
	s.says(0, "trace "+url+" -o json", `"backend_name": "app/app-1"`)
	s.says(2, "trace ftp://x", `url is "ftp://x"`)
	s.says(2, "trace http://x:1", `no listener fits. There are www/in at `+at)
	s.says(2, "trace "+url+" --client x", `--client is "x", which is no address`)
	s.says(2, "trace --streams --live", `not both`)
	s.says(2, "trace --streams --status odd", `status is "odd"`)
	s.says(2, "trace --streams --stream w", `there is no stream "w". There are www`)
	s.says(2, "trace --streams --client x", `--client is "x"`)
	s.says(0, "trace --streams --for 50ms --host none.example")

	var done sync.WaitGroup
	quit := make(chan struct{})
	done.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				ask("app.example", "/ok", 200)
				ask("app.example", "/sick", 500)
			}
		}
	})
	s.says(0, "trace --streams --status 5xx --count 2", `(?m)^[0-9:.]+  GET app.example/sick from 127.0.0.1:\d+ by www/in: 500$`, `(?m)^  hosts  route    at \d+\.\d ms  \d+\.\d ms  -> app$`, `(?m)^  app    balance  at .* -> next  app/app-1 at `,
		`(?m)^  proxy  proxy    at \d+\.\d ms  \d+\.\d ms$`, `(?m)^  connect \d+\.\d ms, first byte \d+\.\d ms, total \d+\.\d ms, backend app/app-1 at .*, 0 bytes in, 0 out$`)
	out := s.says(0, "trace --streams --path /ok --client 127.0.0.0/8 --listener in --method GET --count 3 -o json")
	n := 0
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); n++ {
		var x admin.Session
		if err := d.Decode(&x); err != nil || x.Status != 200 || x.Path != "/ok" || x.Total == nil {
			t.Errorf("%v: %+v", err, x)
		}
	}
	if n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
	close(quit)
	done.Wait()

	if code, out, problem := run("explain", s.path, "http://app.example/cart", "--client", "198.51.100.7"); code != 0 || !strings.Contains(out, "GET app.example/cart from 198.51.100.7 by www/in: app/app-1\n") {
		t.Errorf("explain: %d, %s%s", code, out, problem)
	}
	if code, out, problem := run("explain", s.path, "http://app.example/", "-o", "json"); code != 0 || !strings.Contains(out, `"backend_name": "app/app-1"`) {
		t.Errorf("explain: %d, %s%s", code, out, problem)
	}
	if code, _, problem := run("explain", s.path, "http://app.example:1/"); code != 2 || !strings.Contains(problem, "no listener fits") {
		t.Errorf("explain: %d, %s", code, problem)
	}
}
