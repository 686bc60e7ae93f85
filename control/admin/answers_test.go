package admin

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// get answers a path as h does, without a network.
func get(t *testing.T, h Host, method, path, body string) *recorder {
	t.Helper()
	w := &recorder{header: http.Header{}}
	q, err := http.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	Handler(h).ServeHTTP(w, q)
	return w
}

// TestPools: what is drained is not what is removed, weights and states are those of the
// pool, and neither dead slots nor dead pools are shown.
func TestPools(t *testing.T) {
	s := state.NewStore()
	defer s.Close()
	spec := state.Spec{Pools: []state.PoolSpec{{Name: "gone", TableSize: 251}, {Name: "web", TableSize: 251, Health: "c", RemovalGrace: time.Hour}}}
	for i, name := range []string{"up", "drained", "sick", "removed"} {
		spec.Pools[1].Backends = append(spec.Pools[1].Backends, state.BackendSpec{Name: name, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Weight: 10 + i, Drain: name == "drained"})
	}
	dead := spec.Pools[1]
	dead.Name, dead.RemovalGrace = "api", 0
	spec.Pools = append(spec.Pools, dead)
	if err := s.Apply(spec); err != nil {
		t.Fatal(err)
	}
	s.SetHealth(state.Target{Check: "c", Addr: netip.MustParseAddr("10.0.0.1")}, state.Healthy)
	s.SetHealth(state.Target{Check: "c", Addr: netip.MustParseAddr("10.0.0.3")}, state.Unhealthy)
	spec.Pools = spec.Pools[1:]
	for i := range spec.Pools {
		spec.Pools[i].Backends = spec.Pools[i].Backends[:3]
	}
	if err := s.Apply(spec); err != nil {
		t.Fatal(err)
	}
	snap := s.Cell().Load()
	h := newHost(t)
	h.snap = snap
	var x Status
	if err := json.Unmarshal(get(t, h, "GET", "/v1/status", "").body.Bytes(), &x); err != nil {
		t.Fatal(err)
	}
	if x.State != snap.Generation || x.State == 0 {
		t.Errorf("state %d, want %d", x.State, snap.Generation)
	}
	want := []Backend{
		{Name: "up", Address: "10.0.0.1", Weight: 10, Status: "up", Health: "HEALTHY", Drained: false, Removed: false},
		{Name: "drained", Address: "10.0.0.2", Weight: 11, Status: "draining", Health: "UNKNOWN", Drained: true, Removed: false},
		{Name: "sick", Address: "10.0.0.3", Weight: 12, Status: "down", Health: "UNHEALTHY", Drained: false, Removed: false},
		{Name: "removed", Address: "10.0.0.4", Weight: 13, Status: "draining", Health: "UNKNOWN", Drained: false, Removed: true},
	}
	if len(x.Pools) != 2 || x.Pools[0].Name != "web" || x.Pools[1].Name != "api" {
		t.Fatalf("pools are %+v", x.Pools)
	}
	for i, p := range x.Pools {
		if n := len(want) - i; len(p.Backends) != n { // api removes without grace
			t.Errorf("pool %s has %+v, want %d", p.Name, p.Backends, n)
		}
		for j, b := range p.Backends {
			w := want[j]
			w.Name = p.Name + "/" + w.Name
			if b != w {
				t.Errorf("got %+v, want %+v", b, w)
			}
		}
	}
}

// TestEmptyLists: nobody drains the node, and so a program gets a list, not null.
func TestEmptyLists(t *testing.T) {
	h := newHost(t)
	h.snap = new(state.Cell).Load()
	w := get(t, h, "GET", "/v1/status", "")
	got := strings.Join(strings.Fields(w.body.String()), " ")
	for _, want := range []string{`"drained": []`, `"pools": []`, `"ready": "busy"`, `"state": 0`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if c := w.header.Get("Content-Type"); c != "application/json" {
		t.Errorf("content type %q", c)
	}
}

// TestLimits: the bounds of what one request may ask for, and what it is without asking.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v1/top?seconds=0.01", "", 200, `"seconds": 0.01`},
		{"GET", "/v1/top?seconds=60", "", 200, `"seconds": 60`},
		{"GET", "/v1/top?seconds=0.009", "", 400, "0.01 to 60"},
		{"GET", "/v1/top?seconds=60.1", "", 400, "0.01 to 60"},
		{"GET", "/v1/top?seconds=x", "", 400, "0.01 to 60"},
		{"POST", "/v1/sample", `{"count": 10000, "seconds": 3600}`, 200, `"flow":"9999"`},
		{"POST", "/v1/sample", `{"seconds": 3600.1}`, 400, "seconds up to 3600"},
		{"POST", "/v1/sample", `{"count": -1}`, 400, "count can be 1 to 10000"},
	} {
		w := get(t, newHost(t), c.method, c.path, c.body)
		if w.code != c.code || !strings.Contains(w.body.String(), c.want) {
			t.Errorf("%s %s: %d %.200s", c.path, c.body, w.code, w.body.String())
		}
	}
	w := get(t, newHost(t), "POST", "/v1/sample", `{}`)
	if n := strings.Count(w.body.String(), "\n"); n != 10 || w.header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%d samples by default, content type %q", n, w.header.Get("Content-Type"))
	}
	// None came: an empty answer is one all the same.
	q := &quiet{host: newHost(t)}
	if w := get(t, q, "POST", "/v1/sample", `{"seconds": 5}`); w.code != 200 || w.header.Get("Content-Type") != "application/x-ndjson" || w.body.Len() != 0 || q.left <= 0 || q.left > 5*time.Second {
		t.Errorf("%d, %q, %q; it was to end after %v", w.code, w.header.Get("Content-Type"), w.body.String(), q.left)
	}
}

// quiet is a daemon without packets.
type quiet struct {
	*host
	left time.Duration
}

func (h *quiet) Sample(ctx context.Context, _ Filter, _ func(Traced)) error {
	at, _ := ctx.Deadline()
	h.left = time.Until(at)
	return nil
}

// endless is a daemon whose packets do not end; a token lets one through.
type endless struct {
	*host
	next chan bool
	over chan bool
}

func (h *endless) Sample(ctx context.Context, _ Filter, each func(Traced)) error {
	defer close(h.over)
	for {
		select {
		case <-h.next:
			each(Traced{Flow: "one"})
		case <-ctx.Done():
			return nil
		}
	}
}

// TestSamplesAsTheyCome: each is sent when it comes, and they end when whoever asked goes.
func TestSamplesAsTheyCome(t *testing.T) {
	h := &endless{newHost(t), make(chan bool, 1), make(chan bool)}
	s, err := run(t, h.host, func(*Config) {})
	if err != nil {
		t.Fatal(err)
	}
	s.unix.http.Handler = Handler(h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, "POST", "http://x/v1/sample", strings.NewReader(`{"seconds": 3600, "count": 10000}`))
	if err != nil {
		t.Fatal(err)
	}
	h.next <- true
	r, err := over(s.cfg.Socket).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for range 3 {
		if !lines.Scan() || !strings.Contains(lines.Text(), `"flow":"one"`) {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
		h.next <- true
	}
	cancel()
	select {
	case <-h.over:
	case <-time.After(time.Minute):
		t.Error("they do not end")
	}
}

// TestNobodyListens: an answer that cannot be written ends the samples.
func TestNobodyListens(t *testing.T) {
	h := &endless{newHost(t), make(chan bool, 1), make(chan bool)}
	q, err := http.NewRequestWithContext(t.Context(), "POST", "/v1/sample", strings.NewReader(`{"seconds": 60}`))
	if err != nil {
		t.Fatal(err)
	}
	h.next <- true
	begun := time.Now()
	Handler(h).ServeHTTP(&deaf{}, q)
	if d := time.Since(begun); d >= time.Minute {
		t.Errorf("they ended after %v", d)
	}
}

// deaf is a client that is gone.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header {
	if d.header == nil {
		d.header = http.Header{}
	}
	return d.header
}
func (*deaf) WriteHeader(int)           {}
func (*deaf) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestSocketIsNobodys: the socket has no rights for others from its first moment, the
// process makes files as before then, and what does not start leaves no socket.
func TestSocketIsNobodys(t *testing.T) {
	old := syscall.Umask(0o002)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.sock")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var worst os.FileMode
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if i, err := os.Stat(path); err == nil {
					worst |= i.Mode().Perm()
				}
			}
		}
	})
	for range 200 {
		x := &server{handler: http.NotFoundHandler(), log: zap.NewNop()}
		u, err := x.openUnix(Config{Socket: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := u.close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if worst&0o177 != 0 {
		t.Errorf("for a moment the socket had mode %v", worst)
	}
	if now := syscall.Umask(0o002); now != 0o002 {
		t.Errorf("the process has umask %04o, had 0002", now)
	}
	for name, change := range map[string]func(*Config){
		"a group that is not there": func(c *Config) { c.Group = "no-such-group" },
		"a port without a secret":   func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", "/nowhere/token" },
	} {
		if _, err := run(t, newHost(t), func(c *Config) { c.Socket = path; change(c) }); err == nil {
			t.Errorf("%s: it starts", name)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: a socket stays: %v", name, err)
		}
	}
	// Our own group's, whatever that of the directory (root's, if we are root).
	s, err := run(t, newHost(t), func(c *Config) { c.Socket = path })
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if gid := info.Sys().(*syscall.Stat_t).Gid; int(gid) != os.Getegid() {
		t.Errorf("the socket is group %d's", gid)
	}
}

// TestGroupChanges: a reload gives the socket to a group and takes it back.
func TestGroupChanges(t *testing.T) {
	s, err := run(t, newHost(t), func(*Config) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		group string
		mode  os.FileMode
		bad   bool
	}{{groupOfOurs(t), 0o660, false}, {"no-such-group", 0o660, true}, {"", 0o600, false}} {
		was := s.cfg
		next := s.cfg
		next.Group = c.group
		if err := s.Reconfigure(&next); (err != nil) != c.bad || c.bad && s.cfg != was || !c.bad && s.cfg != next {
			t.Errorf("group %q: %v", c.group, err)
		}
		if info, err := os.Stat(s.cfg.Socket); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("group %q: mode %v, %v", c.group, info.Mode(), err)
		}
	}
}

// TestTokenFromEnvironment, of sixteen bytes, and one less is refused.
func TestTokenFromEnvironment(t *testing.T) {
	t.Setenv("LBGRAPH_TEST_TOKEN", " 0123456789abcdef\n")
	s, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenEnv = "127.0.0.1:0", "LBGRAPH_TEST_TOKEN" })
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + s.tcp.listen.Addr().String() + "/v1/status"
	for header, want := range map[string]int{"Bearer 0123456789abcdef": 200, "Bearer 0123456789abcdeg": 401, "0123456789abcdef": 401, "": 401} {
		q, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", header)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if how := r.Header.Get("WWW-Authenticate"); r.StatusCode != want || (how == `Bearer realm="lbgraph"`) != (want == 401) {
			t.Errorf("%q: %d, asks for %q", header, r.StatusCode, how)
		}
	}
	t.Setenv("LBGRAPH_TEST_TOKEN", "0123456789abcde\n")
	if _, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenEnv = "127.0.0.1:0", "LBGRAPH_TEST_TOKEN" }); err == nil || !strings.Contains(err.Error(), "LBGRAPH_TEST_TOKEN has a token of 15 bytes") {
		t.Errorf("a token of 15 bytes: %v", err)
	}
	for _, mode := range []os.FileMode{0o604, 0o640, 0o620} {
		path := tokenFile(t, token, 0o600)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readSecret(path); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}

// TestStopClosesThePort and with it what lasts there, and stops twice.
func TestStopClosesThePort(t *testing.T) {
	s, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", tokenFile(t, token, 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	address := s.tcp.listen.Addr().String()
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		_ = c.Close()
		t.Error("the port still answers")
	}
}

// TestPortThatStays: what does not concern the port leaves it, and who is connected.
func TestPortThatStays(t *testing.T) {
	s, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", tokenFile(t, token, 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	was := s.tcp
	next := s.cfg
	next.Socket = filepath.Join(t.TempDir(), "other.sock")
	if err := s.Reconfigure(&next); err != nil || s.tcp != was {
		t.Errorf("the port was opened again, %v", err)
	}
	// A port that is not to be had leaves the rest of the change in force.
	bad := s.cfg
	bad.Socket, bad.TokenFile = filepath.Join(t.TempDir(), "third.sock"), "/nowhere/token"
	if err := s.Reconfigure(&bad); err == nil || s.cfg.Socket != bad.Socket || s.cfg.TokenFile != next.TokenFile {
		t.Errorf("%v, %+v", err, s.cfg)
	}
	if err := s.Reconfigure(&next); err != nil || s.cfg != next {
		t.Errorf("and back: %v, %+v", err, s.cfg)
	}
	if code, _ := ask(t, over(next.Socket), "GET", "http://x/v1/status", ""); code != 200 {
		t.Errorf("the socket of before answers %d", code)
	}
}

// TestTLS: what is spoken on the port, and that a token is asked for beside a certificate.
func TestTLS(t *testing.T) {
	ours := signed(t, "ours", nil)
	ca, _ := files(t, ours)
	cert, key := files(t, signed(t, "node", &ours))
	s, err := run(t, newHost(t), func(c *Config) {
		c.Listen, c.Certificate, c.Key, c.ClientCA, c.TokenFile = "127.0.0.1:0", cert, key, ca, tokenFile(t, token, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ours.Leaf)
	with := func(c *tls.Config) *tls.Config {
		c.RootCAs = roots
		c.Certificates = []tls.Certificate{signed(t, "x", &ours)}
		return c
	}
	address := s.tcp.listen.Addr().String()
	if c, err := tls.Dial("tcp", address, with(&tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})); err == nil {
		_ = c.Close()
		t.Error("TLS 1.1 is spoken")
	}
	c, err := tls.Dial("tcp", address, with(&tls.Config{NextProtos: []string{"h2", "http/1.1"}}))
	if err != nil {
		t.Fatal(err)
	}
	if p := c.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
		t.Errorf("protocol %q", p)
	}
	_ = c.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: with(&tls.Config{})}}
	for header, want := range map[string]int{"": 401, "Bearer " + token: 200} {
		if code, body := ask(t, client, "GET", "https://"+address+"/v1/status", "", "Authorization", header); code != want {
			t.Errorf("%q: %d %s", header, code, body)
		}
	}
	// Another authority of the same name is another.
	twin := signed(t, "ours", nil)
	client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c := signed(t, "x", &twin)
		return &c, nil
	}}}}
	if code, body := ask(t, client, "GET", "https://"+address+"/v1/status", "", "Authorization", "Bearer "+token); code != 0 {
		t.Errorf("an authority of the same name: %d %s", code, body)
	}
	if _, err := run(t, newHost(t), func(c *Config) {
		c.Listen, c.Certificate, c.Key, c.ClientCA = "127.0.0.1:0", cert, key, tokenFile(t, "no certificate", 0o600)
	}); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("authorities without one: %v", err)
	}
}

// TestClearTokenIsTold: over a network, and not over the loopback.
func TestClearTokenIsTold(t *testing.T) {
	for listen, want := range map[string]int{"127.0.0.1:0": 0, "0.0.0.0:0": 1} {
		core, logs := observer.New(zap.WarnLevel)
		x := &server{handler: http.NotFoundHandler(), log: zap.New(core)}
		p, err := x.openTCP(Config{Listen: listen, TokenFile: tokenFile(t, token, 0o600)})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := logs.FilterMessageSnippet("in the clear").Len(); got != want || logs.Len() != want {
			t.Errorf("%s: %v", listen, logs.All())
		}
	}
}

// TestCheckOfWhatIsLeft: bounds that the other table does not reach.
func TestCheckOfWhatIsLeft(t *testing.T) {
	if err := check(Config{Socket: strings.Repeat("x", 107)}); err != nil {
		t.Error(err)
	}
	for want, c := range map[string]Config{"must be a path of 1 to 107 bytes": {}, "listen is not": {Socket: "s", Certificate: "c", Key: "k"}} {
		if err := check(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if _, err := graph.Lookup("admin").Control(&Config{}, &graph.Env{Log: zap.NewNop()}); err == nil {
		t.Error("built without a daemon")
	}
}
