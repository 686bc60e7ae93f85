package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
)

// newShop is a stream rig with every kind of node.
func newShop(t *testing.T) (*streamRig, *teller, string) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "web.example", time.Now().Add(time.Hour))
	b, dead := tell(t), deadAddress(t)
	return newStreamRig(t, shop(filepath.Join(dir, "log"), b.addr, dead, crt, key)), b, dead
}

// sampling samples until it is ended, or has as many as f says.
func (r *streamRig) sampling(f admin.SessionFilter) (end func() []admin.Session) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all []admin.Session
	var done sync.WaitGroup
	done.Go(func() {
		if err := r.SampleSessions(ctx, f, func(s admin.Session) { all = append(all, s) }); err != nil {
			r.t.Error(err)
		}
	})
	r.until("it samples", func() bool { return r.Streams().Observed() })
	return func() []admin.Session {
		defer cancel()
		if f.Count > 0 {
			done.Wait()
			return all
		}
		cancel()
		done.Wait()
		return all
	}
}

// ways writes the nodes that a session came to, and how it left them.
func ways(s *admin.Session) string {
	var all []string
	for _, x := range s.Steps {
		all = append(all, strings.TrimSuffix(x.Node+"."+x.Output, "."))
	}
	return strings.Join(all, " ")
}

// TestSampleSessions: a request is told with the nodes by which it came, its times, its
// backend and its end; filters keep others out; and what is not to be told costs nobody
// who is.
func TestSampleSessions(t *testing.T) {
	r, b, dead := newShop(t)
	c := r.dial("shop/in")
	ask := func(n int, text string, want int) {
		for range n {
			c.ask(text, want)
		}
	}
	for _, x := range []struct {
		filter admin.SessionFilter
		n      int
		way    string
		status int
		check  func(*admin.Session) bool
	}{
		{admin.SessionFilter{Host: "web.example", Path: "/ok"}, 2, "in.next log.next ids.next admit.next hosts.web web.next out", 200, func(s *admin.Session) bool {
			return s.Backend == b.addr && s.Name == "web/live" && s.Route == "web" && s.Method == "GET" && s.Host == "web.example" && s.Path == "/ok?a=1" && s.Protocol == "HTTP/1.1" &&
				s.Tries == 1 && s.Outcome == "2xx" && s.BytesOut == 5 && s.ID != "" && s.Listener == "in" && s.Node == "out" && s.Reason == "" &&
				s.Steps[5].Says == "web/live at "+b.addr && s.Steps[6].Kind == "proxy" && s.Queue == nil && s.Steps[6].Took <= *s.Total && *s.FirstByte <= *s.Total && *s.Connect <= *s.FirstByte
		}},
		{admin.SessionFilter{Host: "*.example", Status: "404", Client: netip.MustParsePrefix("127.0.0.0/8")}, 1, "in.next log.next ids.next admit.next hosts.no_route", 404, func(s *admin.Session) bool {
			return s.Reason == "no_route" && s.Node == "hosts" && s.Outcome == "4xx" && s.Backend == "" && s.FirstByte == nil && s.Path == "/"
		}},
		{admin.SessionFilter{Listener: "in", Status: "5xx", Stream: "shop"}, 1, "in.next log.next ids.next admit.next hosts.web web.next out", 500, func(s *admin.Session) bool { return s.Path == "/sick" }},
		{admin.SessionFilter{Host: "half.example"}, 1, "in.next log.next ids.next admit.next hosts.half half.next out", 200, func(s *admin.Session) bool {
			return s.Tries == 2 && s.Backend == b.addr && s.Name == "half/live" && s.Steps[5].Says == "half/dead at "+dead
		}},
		{admin.SessionFilter{Method: "DELETE"}, 1, "in.next log.next ids.next admit.next hosts.fixed fixed", 200, func(s *admin.Session) bool { return s.Method == "DELETE" }},
		{admin.SessionFilter{Client: netip.MustParsePrefix("198.51.100.0/24")}, 0, "", 0, nil},
		{admin.SessionFilter{Stream: "tcp"}, 0, "", 0, nil},
		{admin.SessionFilter{Host: "eb.example"}, 0, "", 0, nil},
	} {
		f := x.filter
		if f.Count = x.n; x.n == 0 {
			f.Count = 1
		}
		ctx, cancel := context.WithCancel(context.Background())
		var all []admin.Session
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := r.SampleSessions(ctx, f, func(s admin.Session) { all = append(all, s) }); err != nil {
				t.Error(err)
			}
		}()
		r.until("it samples", r.Streams().Observed)
		ask(2, get("/ok?a=1", "web.example"), 200)
		ask(1, get("/sick", "web.example"), 500)
		ask(1, get("/", "other.example"), 404)
		ask(1, get("/ok", "half.example"), 200)
		ask(1, "DELETE / HTTP/1.1\r\nHost: fixed.example\r\n\r\n", 200)
		if x.n == 0 {
			r.until("all have ended", func() bool { return r.StreamStats()[1].Active == 0 })
			cancel()
		}
		<-done
		cancel()
		if len(all) != x.n {
			t.Errorf("%+v: %d sessions", x.filter, len(all))
			continue
		}
		for i := range all {
			if s := &all[i]; ways(s) != x.way || s.Status != x.status || !x.check(s) {
				t.Errorf("%+v: %s; %+v", x.filter, ways(s), *s)
			}
		}
		if r.Streams().Observed() {
			t.Error("somebody looks on still")
		}
	}
	for _, f := range []admin.SessionFilter{{Stream: "none"}, {Listener: "none"}, {Status: "odd"}, {Status: "99"}} {
		if err := r.SampleSessions(t.Context(), f, nil); err == nil {
			t.Errorf("%+v is taken", f)
		}
	}
}

// TestSampleTimes: time that a request waits for a place, and for its backend, is told
// where it was spent; connections without requests, and what could not be read, are told
// too.
func TestSampleTimes(t *testing.T) {
	r, b, _ := newShop(t)
	end := r.sampling(admin.SessionFilter{Count: 5})
	var all []*client
	for i := range 3 {
		c := r.dial("shop/in")
		c.ask(get("/hang", "web.example", closing), 0)
		all = append(all, c)
		r.until("it is there", func() bool { return r.StreamStats()[1].Active == int64(i+1) })
		if i < 2 {
			r.until("the backend has it", func() bool { return int(b.hanging.Load()) == i+1 })
		}
	}
	if err := r.SampleSessions(t.Context(), admin.SessionFilter{Count: 1}, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second one: %v", err)
	}
	const pause = time.Second // longer than what did not wait takes on a busy machine
	time.Sleep(pause)
	close(b.release)
	for _, c := range all {
		c.ask("", 200)
		c.rest()
	}
	c := r.dial("tcp/in")
	c.ask(get("/ok", "a", closing), 200)
	c.rest()
	c = r.dial("shop/in")
	c.ask("non sense\r\n\r\n", 400)
	c.rest()
	least := pause.Seconds() * 1e3
	queued, tcp, bad := 0, 0, 0
	for _, s := range end() {
		switch {
		case s.Protocol == "TCP":
			tcp++
			if ways(&s) != "in.next pick.next out" || s.Outcome != "ended" || s.BytesOut == 0 || s.BytesIn == 0 || s.Method != "" || s.Backend != b.addr {
				t.Errorf("the connection: %+v", s)
			}
		case s.Reason == "bad_request":
			bad++
			if s.Status != 400 || s.Node != "in" || len(s.Steps) != 0 || s.Error == "" {
				t.Errorf("what could not be read: %+v", s)
			}
		case s.Queue != nil:
			queued++
			if *s.Queue < least || *s.Total < *s.Queue || s.Steps[3].Node != "admit" || s.Steps[3].Took < least || !strings.HasPrefix(s.Steps[3].Says, "waited ") || s.Steps[4].At < least {
				t.Errorf("the one that waited: %+v", s)
			}
		case s.FirstByte == nil || *s.FirstByte < least || *s.Connect >= least || s.Steps[6].Took < least || s.Steps[3].Took >= least:
			t.Errorf("one that did not wait: %+v", s)
		}
	}
	if queued != 1 || tcp != 1 || bad != 1 {
		t.Errorf("%d waited, %d connections, %d unreadable", queued, tcp, bad)
	}
	r.quiet()
}

// TestTraceRequest: what the daemon says of a request is what then becomes of it, and
// asking changes nothing.
func TestTraceRequest(t *testing.T) {
	r, b, dead := newShop(t)
	at, _ := r.Streams().Bound("shop", "in")
	tcp, _ := r.Streams().Bound("tcp", "in")
	secure, _ := r.Streams().Bound("secure", "in")
	url := func(host, path string) string { return fmt.Sprintf("http://%s:%d%s", host, at.Port(), path) }
	before := scrape(t, r.Daemon)
	for _, x := range []struct {
		q      admin.Request
		way    string
		status int
		check  func(*admin.Session) bool
	}{
		{admin.Request{URL: url("web.example", "/ok"), Client: netip.MustParseAddr("198.51.100.7")}, "in.next log.next ids.next admit.next hosts.web web.next out", 0, func(s *admin.Session) bool {
			return s.Backend == b.addr && s.Name == "web/live" && s.Route == "web" && s.Client == "198.51.100.7" && s.Steps[4].Says == `rule "web" fits` && strings.Contains(s.Steps[5].Says, "the next in turn; 1 of 1") && s.Steps[3].Says == "0 of 2 are in flight"
		}},
		{admin.Request{URL: url("half.example", "/ok")}, "in.next log.next ids.next admit.next hosts.half half.next out", 0, func(s *admin.Session) bool { return s.Backend == dead }},
		{admin.Request{URL: url("other.example", "/")}, "in.next log.next ids.next admit.next hosts.no_route", 404, func(s *admin.Session) bool { return s.Reason == "no_route" && s.Node == "hosts" }},
		{admin.Request{URL: url("moved.example", "/a//b?c")}, "in.next log.next ids.next admit.next hosts.moved moved", 308, func(s *admin.Session) bool {
			return strings.HasSuffix(s.Steps[5].Says, "https://web.example/a//b?c")
		}},
		{admin.Request{URL: url("fixed.example", ""), Method: "PUT", Headers: []string{"A: b"}}, "in.next log.next ids.next admit.next hosts.fixed fixed", 200, func(s *admin.Session) bool { return s.Path == "/" && s.Method == "PUT" }},
		{admin.Request{URL: url("web.example", "/a b")}, "in.next", 400, func(s *admin.Session) bool { return s.Reason == "bad_request" && s.Error != "" }},
		{admin.Request{URL: url("web.example", "/"), Method: "CONNECT"}, "in.next", 405, func(s *admin.Session) bool { return s.Reason == "bad_request" }},
		{admin.Request{URL: fmt.Sprintf("tcp://db.example:%d", tcp.Port())}, "in.next pick.next out", 0, func(s *admin.Session) bool { return s.Protocol == "TCP" && s.Backend == b.addr }},
		{admin.Request{URL: fmt.Sprintf("https://web.example:%d/", secure.Port())}, "in.next tls.next web.next out", 0, func(s *admin.Session) bool {
			return s.ServerName == "web.example" && strings.HasPrefix(s.Steps[1].Says, "shows the certificate of web.example")
		}},
		{admin.Request{URL: "http://web.example/ok", Listener: "shop/in"}, "in.next log.next ids.next admit.next hosts.web web.next out", 0, func(s *admin.Session) bool { return s.Backend == b.addr }},
	} {
		for range 2 { // the first question changes nothing for the second
			s, err := r.TraceRequest(x.q)
			if err != nil || ways(&s) != x.way || s.Status != x.status || !x.check(&s) {
				t.Errorf("%+v: %v; %s; %+v", x.q, err, ways(&s), s)
			}
		}
	}
	after := scrape(t, r.Daemon)
	for series, v := range after {
		if strings.HasPrefix(series, "lbgraph_stream_") && before[series] != v {
			t.Errorf("asking changed %s from %v to %v", series, before[series], v)
		}
	}
	// Two in flight, two that wait: the next one would be refused.
	for i := range 4 {
		c := r.dial("shop/in")
		c.ask(get("/hang", "web.example", closing), 0)
		r.until("it is there", func() bool { return r.StreamStats()[1].Active == int64(i+1) })
		if i == 2 {
			r.until("it waits", func() bool {
				return scrape(t, r.Daemon)[`lbgraph_stream_node_value{node="admit",stream="shop",value="waiting"}`] == 1
			})
			if s, err := r.TraceRequest(admin.Request{URL: url("web.example", "/ok")}); err != nil || !strings.Contains(s.Steps[3].Says, "2 of 2 are in flight, 1 wait: it would wait up to 1h") {
				t.Errorf("with one that waits: %v, %+v", err, s)
			}
		}
	}
	r.until("two wait", func() bool {
		return scrape(t, r.Daemon)[`lbgraph_stream_node_value{node="admit",stream="shop",value="waiting"}`] == 2
	})
	if s, err := r.TraceRequest(admin.Request{URL: url("web.example", "/ok")}); err != nil || s.Status != 503 || s.Reason != "overflow" || ways(&s) != "in.next log.next ids.next admit.overflow" {
		t.Errorf("under load: %v, %+v", err, s)
	}
	close(b.release)
	for _, q := range []admin.Request{
		{URL: "web.example"}, {URL: "ftp://web.example/"}, {URL: "http:///"}, {URL: "tcp://a:1/path"}, {URL: "http://web.example:1/"}, {URL: "http://web.example/"}, {URL: url("a", "/"), Listener: "none"},
		{URL: url("a", "/"), Headers: []string{"none"}}, {URL: url("a", "/"), Headers: []string{"a: b\r\nc: d"}}, {URL: fmt.Sprintf("tcp://a:%d", at.Port())},
	} {
		if s, err := r.TraceRequest(q); err == nil {
			t.Errorf("%+v is taken: %+v", q, s)
		}
	}
}

// TestExplainRequest: a file alone says where its requests go. Nothing is written.
func TestExplainRequest(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "web.example", time.Now().Add(time.Hour))
	log := filepath.Join(dir, "log")
	text := strings.Replace(shop(log, "192.0.2.1:80", "192.0.2.2:80", crt, key), `"127.0.0.1:0"`, `"127.0.0.1:8080"`, 1)
	text = strings.Replace(text, "pool      = pool.half", "pool      = pool.half\n    algorithm = \"source\"", 1)
	path := filepath.Join(dir, "lb.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Source{Path: path}.Load()
	if l.File == nil {
		t.Fatal(l.Diags)
	}
	seen := map[string]int{}
	for i := range 40 {
		client := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		for range 2 {
			s, err := ExplainRequest(l.File, zap.NewNop(), admin.Request{URL: "http://half.example:8080/", Client: client})
			if err != nil || ways(&s) != "in.next log.next ids.next admit.next hosts.half half.next out" || !strings.Contains(s.Steps[5].Says, "by the hash of the client's address; 2 of 2 are up") {
				t.Fatalf("%v: %+v", err, s)
			}
			seen[s.Name]++
		}
	}
	if len(seen) != 2 || seen["half/live"]%2 != 0 || seen["half/live"] < 10 || seen["half/dead"] < 10 {
		t.Errorf("40 clients, each asked about twice, come to %v", seen)
	}
	if _, err := os.Stat(log); err == nil {
		t.Error("the access log was made")
	}
}

// TestTopStreams: top has what came in the meantime, and nothing of before.
func TestTopStreams(t *testing.T) {
	t.Parallel() // it waits most of its time
	r, b, _ := newShop(t)
	c := r.dial("shop/in")
	for range 5 {
		c.ask(get("/ok", "web.example"), 200)
	}
	r.until("they have ended", func() bool { return r.StreamStats()[1].Active == 0 })
	began, top, got := make(chan struct{}), admin.Top{}, make(chan error, 1)
	ctx := &started{Context: t.Context(), f: sync.OnceFunc(func() { close(began) })}
	go func() {
		var err error
		top, err = r.Top(ctx, 2*time.Second)
		got <- err
	}()
	<-began
	in := r.in["shop/in"].Load()
	for range 20 {
		c.ask(get("/ok", "web.example"), 200)
	}
	for range 3 {
		c.ask(get("/sick", "web.example"), 500)
	}
	c.ask(get("/", "other.example"), 404)
	in = r.in["shop/in"].Load() - in
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	find := func(f func(*admin.TopStream)) {
		for i := range top.Streams {
			if top.Streams[i].Stream == "shop" {
				f(&top.Streams[i])
				return
			}
		}
		t.Fatal("the stream is missing")
	}
	find(func(s *admin.TopStream) {
		if l := s.Listeners[0]; len(s.Listeners) != 1 || l.Listener != "in" || l.Open != 1 || l.Connections != 0 || l.Requests != 24 || int64(l.BytesOut) != in {
			t.Errorf("listener %+v, %d bytes came", l, in)
		}
		routes := map[string]admin.TopRoute{}
		for _, x := range s.Routes {
			routes[x.Route] = x
		}
		if x := routes["web"]; x.Sessions != 23 || x.Outcomes[graph.Succeeded] != 20 || x.Outcomes[graph.ServerError] != 3 || x.P50 <= 0 || x.P99 < x.P50 {
			t.Errorf("route web: %+v", x)
		}
		if x := routes["hosts"]; x.Sessions != 1 || x.Outcomes[graph.Refused] != 1 {
			t.Errorf("route hosts: %+v", x)
		}
		for _, n := range s.Nodes {
			if n.Node == "hosts" && (n.Sessions != 24 || n.Dropped != 1) || n.Node == "admit" && (n.Sessions != 24 || n.Values["limit"] != 2) {
				t.Errorf("node %+v", n)
			}
		}
	})
	for _, x := range top.Backends {
		if x.Backend == b.addr && (x.Sessions != 23 || x.Failures != 0 || x.P50 <= 0 || x.Name != "web/live, half/live") {
			t.Errorf("backend %+v", x)
		}
	}
	if len(top.Backends) != 2 {
		t.Errorf("%d backends", len(top.Backends))
	}
}

// started is a context that tells when somebody begins to wait for it.
type started struct {
	context.Context
	f func()
}

// Done is part of context.Context.
func (s *started) Done() <-chan struct{} {
	s.f()
	return s.Context.Done()
}

// TestStatsWhileItStops: figures are there while what is in flight comes to its end.
func TestStatsWhileItStops(t *testing.T) {
	r, b, _ := newShop(t)
	c := r.dial("shop/in")
	c.ask(get("/hang", "web.example", closing), 0)
	r.until("the backend has it", func() bool { return b.hanging.Load() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- r.Streams().Stop(t.Context()) }()
	r.until("it stops", r.Streams().Stopping)
	if got := scrape(t, r.Daemon)[`lbgraph_stream_listener_active_sessions{listener="in",stream="shop"}`]; got != 1 {
		t.Errorf("%v sessions are in flight", got)
	}
	close(b.release)
	c.ask("", 200)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestHTTP2Sessions: requests of HTTP/2 are counted and told as others are.
func TestHTTP2Sessions(t *testing.T) {
	r, b, _ := newShop(t)
	at, _ := r.Streams().Bound("shop", "in")
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at.String())
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	end := r.sampling(admin.SessionFilter{Count: 3, Listener: "in"})
	c := &http.Client{Transport: tr}
	for _, x := range []struct {
		url  string
		want int
	}{{"http://web.example/ok", 200}, {"http://web.example/sick", 500}, {"http://other.example/", 404}} {
		res, err := c.Get(x.url)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != x.want || res.ProtoMajor != 2 {
			t.Errorf("%s: %s %s", x.url, res.Proto, res.Status)
		}
	}
	status := map[int]string{}
	for _, s := range end() {
		if s.Protocol != "HTTP/2" || s.Total == nil || s.Backend != "" && s.Backend != b.addr {
			t.Errorf("%+v", s)
		}
		status[s.Status] = ways(&s)
	}
	if status[200] != "in.next log.next ids.next admit.next hosts.web web.next out" || status[404] != "in.next log.next ids.next admit.next hosts.no_route" || status[500] == "" {
		t.Errorf("%v", status)
	}
	tr.CloseIdleConnections()
	r.quiet()
	got := scrape(t, r.Daemon)
	for series, want := range map[string]float64{
		`lbgraph_stream_listener_requests_total{listener="in",stream="shop"}`:          3,
		`lbgraph_stream_route_sessions_total{outcome="2xx",route="web",stream="shop"}`: 1, `lbgraph_stream_route_sessions_total{outcome="5xx",route="web",stream="shop"}`: 1,
		`lbgraph_stream_route_sessions_total{outcome="4xx",route="hosts",stream="shop"}`: 1, `lbgraph_stream_route_duration_seconds_count{route="web",stream="shop"}`: 2,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
}
