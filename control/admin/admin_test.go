package admin

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// host is a daemon that takes down what it is told.
type host struct {
	snap    *state.Snapshot
	drained bool
	told    []string
	reload  Reload
}

func (h *host) Stats() []graph.Stats      { return []graph.Stats{{Graph: "edge", Received: 3}} }
func (h *host) Snapshot() *state.Snapshot { return h.snap }
func (h *host) Healthy() error            { return nil }
func (h *host) Ready() error              { return errors.New("busy") }
func (h *host) Version() string           { return "v1" }
func (h *host) Configuration() Configuration {
	return Configuration{File: "lb.hcl", Reloads: map[string]uint64{Wrong: 2}}
}
func (h *host) Details() map[string]any { return map[string]any{"bgp": 7} }
func (h *host) ReloadFile(why string, plan bool) Reload {
	h.told = append(h.told, fmt.Sprint(why, " ", plan))
	return h.reload
}
func (h *host) Drained() []string {
	if h.drained {
		return []string{"command"}
	}
	return nil
}
func (h *host) SetDrained(on bool) { h.drained = on }
func (h *host) ChangeBackend(pool, name string, c Change) error {
	if name == "none" {
		return NotFound("there is no such backend")
	}
	if c.Weight != nil && *c.Weight > 1000 {
		return errors.New("too heavy")
	}
	b, _ := json.Marshal(c)
	h.told = append(h.told, fmt.Sprintf("%s/%s %s", pool, name, b))
	return nil
}
func (h *host) StreamStats() []graph.StreamStats {
	s := graph.StreamStats{Stream: "www", Accepted: 5, Routes: []graph.RouteStats{{Node: "web"}}}
	s.Routes[0].Sessions[graph.ServerError] = 3
	return []graph.StreamStats{s}
}
func (h *host) TraceRequest(q Request) (Session, error) {
	if q.URL == "" {
		return Session{}, NotFound("no listener fits")
	}
	return Session{Stream: "www", Node: q.Method + " " + q.URL, Client: q.Client.String()}, nil
}
func (h *host) SampleSessions(ctx context.Context, f SessionFilter, each func(Session)) error {
	if f.Status == "odd" {
		return errors.New("status is odd")
	}
	for range f.Count {
		each(Session{Stream: "www", Path: f.Path, Client: f.Client.String()})
	}
	<-ctx.Done()
	return nil
}
func (h *host) Trace(f Flow) (Traced, error) {
	if f.Protocol == "" {
		return Traced{}, errors.New("no protocol")
	}
	return Traced{Flow: fmt.Sprint(f.Source, f.Destination, f.SYN), Verdict: "sent"}, nil
}
func (h *host) Sample(ctx context.Context, f Filter, each func(Traced)) error {
	if f.Protocol == "sctp" {
		return errors.New("what is that")
	}
	for i := range f.Count {
		if f.Verdict == "wait" && i == 1 {
			<-ctx.Done()
			return nil
		}
		each(Traced{Flow: fmt.Sprint(i), Before: []byte{1, 2, 255}})
	}
	return nil
}
func (h *host) Top(_ context.Context, d time.Duration) (Top, error) {
	return Top{Seconds: d.Seconds(), Graphs: []TopGraph{}}, nil
}

func newHost(t testing.TB) *host {
	t.Helper()
	snap, err := state.Build(state.Spec{Pools: []state.PoolSpec{{
		Name: "web", TableSize: 251, Backends: []state.BackendSpec{{Name: "web-1", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return &host{snap: snap}
}

// run starts an admin block until the test ends.
func run(t *testing.T, h *host, configure func(*Config)) (*server, error) {
	t.Helper()
	k := graph.Lookup("admin")
	c := k.NewConfig().(*Config)
	c.Socket = filepath.Join(t.TempDir(), "run", "admin.sock")
	configure(c)
	if err := k.CheckConfig(c); err != nil {
		t.Fatal(err)
	}
	ctl, err := k.Control(c, &graph.Env{Host: h, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctl.Start(t.Context()); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := ctl.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return ctl.(*server), nil
}

func over(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

// ask sends a request and answers the status code and the body.
func ask(t *testing.T, c *http.Client, method, url, body string, header ...string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	r, err := c.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestStatus(t *testing.T) {
	s, err := run(t, newHost(t), func(*Config) {})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if m := info.Mode(); m.Perm() != 0o600 || m&fs.ModeSocket == 0 {
		t.Errorf("the socket's mode is %v", m)
	}
	code, body := ask(t, over(s.cfg.Socket), "GET", "http://lbgraph/v1/status", "")
	var x Status
	if err := json.Unmarshal([]byte(body), &x); err != nil || code != 200 {
		t.Fatal(code, err, body)
	}
	if x.Version != "v1" || x.Healthy != "ok" || x.Ready != "busy" || x.Configuration.File != "lb.hcl" || x.Configuration.Reloads[Wrong] != 2 ||
		len(x.Pools) != 1 || x.Pools[0].Slots != 251 || len(x.Graphs) != 1 || x.Graphs[0].Received != 3 || len(x.Streams) != 1 || x.Streams[0].Accepted != 5 || x.Streams[0].Routes[0].Sessions[graph.ServerError] != 3 || x.Details["bgp"] != 7.0 {
		t.Errorf("got %+v", x)
	}
	if b := x.Pools[0].Backends; len(b) != 1 || b[0] != (Backend{"web/web-1", "10.0.1.1", 0, 100, "up", "HEALTHY", false, false}) {
		t.Errorf("backends are %+v", b)
	}
	// Another daemon does not take the socket away.
	if _, err := run(t, newHost(t), func(c *Config) { c.Socket = s.cfg.Socket }); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second daemon got %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.cfg.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
}

// TestRequests: what goes in, what comes out, and what the daemon is told.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string // in the answer, blanks folded
		told               string
	}{
		{"POST", "/v1/reload", "", 200, `"outcome": "reloaded"`, "command false"},
		{"GET", "/v1/plan", "", 200, `"outcome": "reloaded"`, "command true"},
		{"GET", "/v1/reload", "", 404, `there is no GET /v1/reload`, ""},
		{"POST", "/v1/drain", "", 200, `{ "drained": [ "command" ] }`, ""},
		{"POST", "/v1/undrain", "", 200, `{ "drained": [] }`, ""},
		{"GET", "/v1/backends", "", 200, `"name": "web/web-1"`, ""},
		{"POST", "/v1/backends/web/web-1", `{"drain": true}`, 200, `"name": "web/web-1"`, `web/web-1 {"drain":true}`},
		{"POST", "/v1/backends/web/web-1", `{"weight": 0, "until_reload": true}`, 200, ``, `web/web-1 {"weight":0,"until_reload":true}`},
		{"POST", "/v1/backends/web/10.0.0.1:80", `{"flush": true}`, 200, ``, `web/10.0.0.1:80 {"flush":true}`},
		{"POST", "/v1/backends/web/none", `{"drain": true}`, 404, `{ "error": "there is no such backend" }`, ""},
		{"POST", "/v1/backends/web/web-1", `{"weight": 1001}`, 400, `too heavy`, ""},
		{"POST", "/v1/backends/web/web-1", `{}`, 400, `exactly one of drain, enable, weight, restore and flush`, ""},
		{"POST", "/v1/backends/web/web-1", `{"drain": true, "enable": true}`, 400, `exactly one`, ""},
		{"POST", "/v1/backends/web/web-1", `{"drian": true}`, 400, `unknown field`, ""},
		{"POST", "/v1/backends/web/web-1", `{"drain": true} x`, 400, `something follows`, ""},
		{"POST", "/v1/backends/web/web-1", ``, 400, `not understood`, ""},
		{"POST", "/v1/backends/web/web-1", `{"drain": ` + strings.Repeat(" ", 70000) + `true}`, 400, `too large`, ""},
		{"POST", "/v1/trace", `{"protocol": "tcp", "source": "198.51.100.7:1", "destination": "[2001:db8::1]:80", "syn": true}`, 200, `198.51.100.7:1 [2001:db8::1]:80 true`, ""},
		{"POST", "/v1/trace", `{}`, 400, `no protocol`, ""},
		{"POST", "/v1/trace", `{"protocol": "tcp", "source": "198.51.100.7"}`, 400, `not understood`, ""},
		{"POST", "/v1/sample", `{"count": 2}`, 200, `"before":"AQL/"`, ""},
		{"POST", "/v1/sample", `{"count": 2, "verdict": "wait", "seconds": 0.02}`, 200, `"flow":"0"`, ""},
		{"POST", "/v1/sample", `{"protocol": "sctp"}`, 400, `what is that`, ""},
		{"POST", "/v1/sample", `{"count": 10001}`, 400, `count can be 1 to 10000`, ""},
		{"POST", "/v1/sample", `{"seconds": -1}`, 400, `seconds up to 3600`, ""},
		{"POST", "/v1/streams/trace", `{"url": "http://a/b", "method": "PUT", "client": "192.0.2.1"}`, 200, `"client": "192.0.2.1"`, ""},
		{"POST", "/v1/streams/trace", `{"url": "http://a/b", "method": "PUT"}`, 200, `"node": "PUT http://a/b"`, ""},
		{"POST", "/v1/streams/trace", `{}`, 404, `no listener fits`, ""},
		{"POST", "/v1/streams/trace", `{"uri": "http://a"}`, 400, `unknown field`, ""},
		{"POST", "/v1/streams/sample", `{"count": 2, "path": "/cart", "client": "192.0.2.0/24", "seconds": 0.02}`, 200, `"client":"192.0.2.0/24"`, ""},
		{"POST", "/v1/streams/sample", `{"path": "/cart", "seconds": 0.02}`, 200, `"path":"/cart"`, ""},
		{"POST", "/v1/streams/sample", `{"status": "odd"}`, 400, `status is odd`, ""},
		{"POST", "/v1/streams/sample", `{"count": 10001}`, 400, `count can be 1 to 10000`, ""},
		{"GET", "/v1/top", "", 200, `"seconds": 1,`, ""},
		{"GET", "/v1/top?seconds=0.5", "", 200, `"seconds": 0.5,`, ""},
		{"GET", "/v1/top?seconds=NaN", "", 400, `must be a number from 0.01 to 60`, ""},
		{"GET", "/debug/pprof/goroutine?debug=1", "", 200, `goroutine profile`, ""},
		{"GET", "/debug/pprof/cmdline", "", 200, `admin.test`, ""},
		{"GET", "/debug/pprof/symbol", "", 200, `num_symbols`, ""},
		{"GET", "/v2/status", "", 404, `there is no GET /v2/status`, ""},
	} {
		h := newHost(t)
		h.reload.Outcome = Reloaded
		w := &recorder{header: http.Header{}}
		q, err := http.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		Handler(h).ServeHTTP(w, q)
		got := strings.Join(strings.Fields(w.body.String()), " ")
		if w.code != c.code || !strings.Contains(got, c.want) || strings.Join(h.told, "; ") != c.told {
			t.Errorf("%s %s %.60s: %d %s; told %q", c.method, c.path, c.body, w.code, got, h.told)
		}
	}
}

type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(c int)   { r.code = c }
func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = 200
	}
	return r.body.Write(b)
}

// TestOutcomes: programs may go by the status of a reload.
func TestOutcomes(t *testing.T) {
	for outcome, code := range map[string]int{Reloaded: 200, Unchanged: 200, Planned: 200, Wrong: 422, Refused: 409, Failed: 500} {
		h := newHost(t)
		h.reload = Reload{Outcome: outcome, Error: "why", Messages: []Message{{Summary: "Unknown name", Line: 3, Column: 7}}}
		w := &recorder{header: http.Header{}}
		q, _ := http.NewRequestWithContext(t.Context(), "POST", "/v1/reload", nil)
		Handler(h).ServeHTTP(w, q)
		var r Reload
		if err := json.Unmarshal(w.body.Bytes(), &r); err != nil || w.code != code || r.Outcome != outcome || r.Messages[0].Column != 7 {
			t.Errorf("%s: %d %v %s", outcome, w.code, err, w.body.String())
		}
	}
}

// TestDocument: docs/admin.md has a heading for every path, and for nothing else.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/admin.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[Route]bool{}
	for _, m := range regexp.MustCompile("(?m)^### ((?:`(?:GET|POST) [^`]+`(?:, )?)+)").FindAllStringSubmatch(string(b), -1) {
		for _, r := range strings.Split(m[1], ", ") {
			method, path, _ := strings.Cut(strings.Trim(r, "`"), " ")
			said[Route{method, path}] = true
		}
	}
	for _, r := range Routes() {
		if !said[r] {
			t.Errorf("docs/admin.md does not have %s %s", r.Method, r.Path)
		}
		delete(said, r)
	}
	for r := range said {
		t.Errorf("docs/admin.md has %s %s, which is not there", r.Method, r.Path)
	}
	// So for the fields of what is sent and answered.
	for name, v := range map[string]any{"Status": Status{}, "Change": Change{Drain: true, Enable: true, Weight: new(int), Restore: true, Flush: true, UntilReload: true}, "Flow": Flow{Graph: "x"}, "Filter": Filter{Graph: "x", Protocol: "x", SourcePort: 1, DestinationPort: 1, Verdict: "x", Reason: "x"}, "Reload": Reload{Error: "x", Messages: []Message{{}}, Plan: []Action{{}}}, "Traced": Traced{Reason: "x", VIP: "x", Backend: "x", After: [][]byte{{}}}, "Top": Top{}} {
		text, _ := json.Marshal(v)
		var fields map[string]any
		_ = json.Unmarshal(text, &fields)
		for f := range fields {
			if !strings.Contains(string(b), "`"+f+"`") {
				t.Errorf("docs/admin.md does not tell of the field %s of %s", f, name)
			}
		}
	}
}

func TestWhatStandsInTheWay(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := run(t, newHost(t), func(c *Config) { c.Socket = left }); err != nil {
		t.Errorf("a dead process's socket: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, newHost(t), func(c *Config) { c.Socket = file }); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file got %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Error("the file is gone")
	}
	if _, err := run(t, newHost(t), func(c *Config) { c.Group = "no-such-group" }); err == nil || !strings.Contains(err.Error(), "no-such-group") {
		t.Errorf("a group that is not there: %v", err)
	}
}

// TestGroup: the socket is a group's where the block names one; and nothing but the
// socket answers where the block names no port.
func TestGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root: a socket is given to a group")
	}
	g, err := user.LookupGroupId("1")
	if err != nil {
		t.Skip("missing: a group beside root's: ", err)
	}
	s, err := run(t, newHost(t), func(c *Config) { c.Group = g.Name })
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode().Perm() != 0o660 || gid != 1 {
		t.Errorf("the socket's mode is %v, its group %d", info.Mode(), gid)
	}
	if s.cfg.Listen != "" || s.tcp != nil {
		t.Errorf("a port %q that nobody asked for", s.cfg.Listen)
	}
}

// TestCheck: what a block may not say.
func TestCheck(t *testing.T) {
	good := Config{Socket: "s", Listen: "127.0.0.1:0", TokenEnv: "T"}
	if err := check(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"must be a path of 1 to 107 bytes":    func(c *Config) { c.Socket = strings.Repeat("x", 108) },
		"would let everybody give orders":     func(c *Config) { c.TokenEnv = "" },
		"is no address and port":              func(c *Config) { c.Listen = "here" },
		"keep one":                            func(c *Config) { c.TokenFile = "f" },
		"belong together":                     func(c *Config) { c.Certificate = "c" },
		"client_ca needs certificate and key": func(c *Config) { c.ClientCA = "c" },
		"listen is not":                       func(c *Config) { c.Listen = "" },
	} {
		c := good
		change(&c)
		if err := check(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	// A certificate alone says who we are, not who asks.
	if err := check(Config{Socket: "s", Listen: "127.0.0.1:0", Certificate: "c", Key: "k"}); err == nil {
		t.Error("a port without a token and without client certificates was taken")
	}
}

const token = "correct horse battery"

func tokenFile(t *testing.T, text string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestToken(t *testing.T) {
	s, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", tokenFile(t, token+"\n", 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + s.tcp.listen.Addr().String() + "/v1/status"
	for _, c := range []struct {
		header string
		code   int
	}{{"", 401}, {"Bearer", 401}, {"Bearer ", 401}, {"Bearer wrong", 401}, {"Basic " + token, 401}, {"Bearer " + token + "x", 401}, {"Bearer " + token, 200}} {
		if code, body := ask(t, http.DefaultClient, "GET", url, "", "Authorization", c.header); code != c.code {
			t.Errorf("%q: %d %s", c.header, code, body)
		}
	}
	// Nothing is told to whom the socket is enough.
	if code, _ := ask(t, over(s.cfg.Socket), "GET", "http://x/v1/status", ""); code != 200 {
		t.Errorf("the socket answers %d", code)
	}
	for want, path := range map[string]string{
		"chmod 0600":   tokenFile(t, token, 0o640),
		"16 is the":    tokenFile(t, "short", 0o600),
		"no such file": "/nowhere/token",
	} {
		if want == "chmod 0600" {
			if err := os.Chmod(path, 0o640); err != nil { // whatever the umask
				t.Fatal(err)
			}
		}
		if _, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", path }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	t.Setenv("LBGRAPH_TEST_TOKEN", "")
	if _, err := run(t, newHost(t), func(c *Config) { c.Listen, c.TokenEnv = "127.0.0.1:0", "LBGRAPH_TEST_TOKEN" }); err == nil {
		t.Error("it starts with an empty token")
	}
}

// signed makes a key, and a certificate for it by an authority, or by itself.
func signed(t *testing.T, name string, by *tls.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: by == nil,
	}
	parent, signer := c, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// files writes a certificate and its key.
func files(t *testing.T, c tls.Certificate) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestClientCertificates(t *testing.T) {
	ours, theirs := signed(t, "ours", nil), signed(t, "theirs", nil)
	ca, _ := files(t, ours)
	cert, key := files(t, signed(t, "node", &ours))
	s, err := run(t, newHost(t), func(c *Config) {
		c.Listen, c.Certificate, c.Key, c.ClientCA = "127.0.0.1:0", cert, key, ca
	})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ours.Leaf)
	url := s.tcp.listen.Addr().String() + "/v1/status"
	for name, c := range map[string]struct {
		certs []tls.Certificate
		code  int
	}{
		"none": {nil, 0}, "another authority's": {[]tls.Certificate{signed(t, "x", &theirs)}, 0}, "ours": {[]tls.Certificate{signed(t, "x", &ours)}, 200},
	} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: c.certs}}}
		if code, body := ask(t, client, "GET", "https://"+url, ""); code != c.code {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	if code, body := ask(t, http.DefaultClient, "GET", "http://"+url, ""); code == 200 {
		t.Errorf("without TLS: %d %s", code, body)
	}
	// A key that others may read.
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, newHost(t), func(c *Config) {
		c.Listen, c.Certificate, c.Key, c.ClientCA = "127.0.0.1:0", cert, key, ca
	}); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("got %v", err)
	}
}

// TestReconfigure: sockets change while requests are in hand, and stay where the new
// ones cannot be had.
func TestReconfigure(t *testing.T) {
	h := newHost(t)
	s, err := run(t, h, func(c *Config) { c.Listen, c.TokenFile = "127.0.0.1:0", tokenFile(t, token, 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	old := s.cfg.Socket
	// A request that lasts.
	streaming := make(chan string, 1)
	go func() {
		_, body := ask(t, over(old), "POST", "http://x/v1/sample", `{"count": 2, "verdict": "wait", "seconds": 100}`)
		streaming <- body
	}()
	address := s.tcp.listen.Addr().String()
	next := s.cfg
	next.Listen, next.TokenFile = address, tokenFile(t, "another secret word", 0o600)
	if err := s.Reconfigure(&next); err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]int{token: 401, "another secret word": 200} {
		if code, _ := ask(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "GET", "http://"+address+"/v1/status", "", "Authorization", "Bearer "+secret); code != want {
			t.Errorf("%q: %d", secret, code)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := s.cfg
	bad.Listen = taken.Addr().String()
	if err := s.Reconfigure(&bad); err == nil || s.cfg.Listen != address {
		t.Errorf("an address that is taken: %v", err)
	}
	if code, _ := ask(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "GET", "http://"+address+"/v1/status", "", "Authorization", "Bearer another secret word"); code != 200 {
		t.Errorf("the old port answers %d", code)
	}
	next = s.cfg
	next.Socket, next.Listen, next.TokenFile = filepath.Join(t.TempDir(), "other.sock"), "", ""
	if err := s.Reconfigure(&next); err != nil {
		t.Fatal(err)
	}
	if code, _ := ask(t, over(next.Socket), "GET", "http://x/v1/status", ""); code != 200 {
		t.Errorf("the new socket answers %d", code)
	}
	select {
	case <-streaming: // what lasted was ended with its socket
	case <-time.After(5 * time.Second):
		t.Error("a request to the old socket lasts for ever")
	}
	if code, body := ask(t, over(old), "GET", "http://x/v1/status", ""); code != 0 {
		t.Errorf("the old socket answers %d %s", code, body)
	}
	if code, body := ask(t, http.DefaultClient, "GET", "http://"+address+"/v1/status", ""); code != 0 {
		t.Errorf("the old port answers %d %s", code, body)
	}
}

// groupOfOurs answers the name of a group to which a socket may be given.
func groupOfOurs(t *testing.T) string {
	t.Helper()
	g, err := user.LookupGroupId(strconv.Itoa(os.Getegid()))
	if err != nil {
		t.Skip("missing: a name of this process's group: ", err)
	}
	return g.Name
}
