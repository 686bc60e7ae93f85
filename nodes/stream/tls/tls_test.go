package tls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/certs"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
)

// pair writes a certificate that signs itself, for names.
func pair(t testing.TB, dir, name string, names ...string) (p certs.Pair, leaf *x509.Certificate) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	p = certs.Pair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	for path, block := range map[string]*pem.Block{p.Cert: {Type: "CERTIFICATE", Bytes: der}, p.Key: {Type: "PRIVATE " + "KEY", Bytes: key}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return p, leaf
}

func rig(t testing.TB, change func(*Config), pairs ...certs.Pair) *nodetest.Stage {
	return nodetest.NewStage(t, "tls", func(c *Config) {
		if c.Certificates = pairs; change != nil {
			change(c)
		}
	})
}

// shake has a client shake hands with the node, and answers the output, the session
// and what the client says of it.
func shake(t testing.TB, r *nodetest.Stage, config *tls.Config) (out string, s *stream.Session, state tls.ConnectionState, err error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	config.InsecureSkipVerify = true
	c := tls.Client(a, config)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := c.HandshakeContext(ctx)
		if err == nil {
			// With TLS 1.3 the server may refuse the client's certificate afterwards.
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err = c.Read(make([]byte, 1)); err == nil {
				state = c.ConnectionState()
			}
		}
		ended <- err
	}()
	s = nodetest.Connection(nil)
	s.Client.Conn = stream.NewConn(b)
	if out = r.Serve(s); out == "next" {
		_, _ = s.Client.Write([]byte{1})
	}
	_ = b.SetDeadline(time.Now())
	return out, s, state, <-ended
}

// The example takes TLS off; requests go on, and it is known that they came so.
func TestExample(t *testing.T) {
	dir := t.TempDir()
	p, leaf := pair(t, dir, "www", "www.example.org")
	addr := nodetest.HTTPBackend(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.Header.Get("X-Forwarded-Proto"))
	})
	r := nodetest.RunStreams(t, nodetest.Pool("", addr)+"stream \"s\" {\npath { main = [in, tls, balance, proxy] }\nnode \"listen\" \"in\" {\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n}\n"+
		nodetest.Example(t, "/etc/lbgraph/www.crt", p.Cert, "/etc/lbgraph/www.key", p.Key)+"node \"balance\" \"balance\" { pool = pool.web }\n}\n")
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	for _, h2 := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "www.example.org"}, ForceAttemptHTTP2: h2}}
		for range 3 {
			res, err := client.Get("https://" + r.Addr("in") + "/")
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if string(b) != "HTTP/1.1 https" || (res.ProtoMajor == 2) != h2 {
				t.Errorf("%q over %s", b, res.Proto)
			}
		}
		client.CloseIdleConnections()
	}
	if got := r.Dial("in").Ask("GET / HTTP/1.1\nHost: x\n\n"); strings.HasPrefix(got, "2") {
		t.Errorf("without TLS: %q", got)
	}
	nodetest.Eventually(t, func() error {
		if a, b := r.Output("tls", "handshake_failed"), r.Counter("tls", "http2"); a != 1 || b != 1 {
			return fmt.Errorf("%d failed, %d with HTTP/2", a, b)
		}
		return nil
	})
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	pair := "certificate {\ncert = \"a\"\nkey = \"b\"\n}\n"
	nodetest.WrongArguments(t, "tls", "", []string{pair, pair + "min_version = \"1.3\"\nclient_ca = \"c\"\nclient_auth = \"require\"\nalpn = [\"h2\"]\ntimeout = \"1h\"", pair + "protocol = \"tcp\"\nalpn = [\"x\"]"}, []nodetest.Wrong{
		{Argument: "certificate.cert", Text: "certificate {\ncert = [\"a\"]\nkey = \"b\"\n}", Told: "text"},
		{Argument: "certificate.key", Text: "certificate {\ncert = \"a\"\nkey = [\"b\"]\n}", Told: "text"},
		{Argument: "min_version", Text: pair + "min_version = \"1.1\"", Told: "1.2"},
		{Argument: "client_ca", Text: pair + "client_ca = []", Told: "text"},
		{Argument: "client_auth", Text: pair + "client_auth = \"maybe\"", Told: "none"},
		{Argument: "client_auth", Text: pair + "client_auth = \"require\"", Told: "name a file in client_ca"},
		{Argument: "alpn", Text: pair + "protocol = \"tcp\"\nalpn = [\"http/1.1\", \"h2\"]", Told: "leave h2 out"},
		{Argument: "protocol", Text: pair + "protocol = \"https\"", Told: "http"},
		{Argument: "timeout", Text: pair + "timeout = \"0s\"", Told: "1ms"},
	})
	k := graph.Lookup("tls")
	if err := k.CheckConfig(k.NewConfig()); err == nil || !strings.Contains(err.Error(), "add a block certificate") {
		t.Errorf("without a certificate: %v", err)
	}
	c := k.NewConfig().(*Config)
	c.Certificates = []certs.Pair{{Cert: filepath.Join(t.TempDir(), "none"), Key: "none"}}
	if _, err := k.Streams(c, &graph.Env{}); err == nil {
		t.Error("a file that is not there is none told of")
	}
}

// The certificate is that of the name; the first one is for others and for none.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	a, _ := pair(t, dir, "a", "a.example", "www.a.example")
	b, _ := pair(t, dir, "b", "*.b.example")
	r := rig(t, nil, a, b)
	for name, want := range map[string]string{"a.example": "a", "www.a.example": "a", "x.b.example": "b", "X.B.Example": "b", "b.example": "a", "x.y.b.example": "a", "c.example": "a", "": "a"} {
		out, s, st, err := shake(t, r, &tls.Config{ServerName: name})
		if err != nil || out != "next" {
			t.Errorf("%s: %s, %v", name, out, err)
			continue
		}
		if got := st.PeerCertificates[0].Subject.CommonName; got != want || s.Client.ServerName != strings.ToLower(name) || !s.Client.Secure || s.Client.H2 {
			t.Errorf("%s: certificate %s, %+v", name, got, s.Client.ServerName)
		}
	}
}

// Versions and protocols are agreed on, or the handshake fails.
func TestAgreement(t *testing.T) {
	p, _ := pair(t, t.TempDir(), "a", "a")
	http, raw := rig(t, nil, p), rig(t, func(c *Config) { c.Protocol = "tcp" }, p)
	strict := rig(t, func(c *Config) { c.MinVersion, c.ALPN = "1.3", []string{"x"} }, p)
	for _, c := range []struct {
		what   string
		r      *nodetest.Stage
		config *tls.Config
		out    string
		alpn   string
	}{
		{"HTTP/2", http, &tls.Config{NextProtos: []string{"http/1.1", "h2"}}, "next", "h2"},
		{"HTTP/1.1", http, &tls.Config{NextProtos: []string{"http/1.1"}}, "next", "http/1.1"},
		{"nothing", http, &tls.Config{}, "next", ""},
		{"unknown", http, &tls.Config{NextProtos: []string{"spdy/3"}}, "handshake_failed", ""},
		{"TCP offers none", raw, &tls.Config{NextProtos: []string{"h2"}}, "next", ""},
		{"1.2", http, &tls.Config{MaxVersion: tls.VersionTLS12}, "next", ""},
		{"1.1", http, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "handshake_failed", ""},
		{"1.2, too old", strict, &tls.Config{MaxVersion: tls.VersionTLS12, NextProtos: []string{"x"}}, "handshake_failed", ""},
		{"1.3", strict, &tls.Config{NextProtos: []string{"x"}}, "next", "x"},
	} {
		c.config.ServerName = "a"
		out, s, st, err := shake(t, c.r, c.config)
		if out != c.out || (err == nil) != (out == "next") || st.NegotiatedProtocol != c.alpn || s.Client.H2 != (c.alpn == "h2") {
			t.Errorf("%s: %s, %v, %q, HTTP/2 %v", c.what, out, err, st.NegotiatedProtocol, s.Client.H2)
		}
	}
	if n := http.Counter("http2"); n != 1 {
		t.Errorf("%d with HTTP/2", n)
	}
	// A session of before goes on.
	cache := &tls.Config{ServerName: "a", ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	for i := range 2 {
		if _, _, st, err := shake(t, http, cache); err != nil || st.DidResume != (i == 1) {
			t.Errorf("%d: resumed %v, %v", i, st.DidResume, err)
		}
	}
	if n := http.Counter("resumed"); n != 1 {
		t.Errorf("%d resumed", n)
	}
	// What is given depends on what is spoken inside.
	k := graph.Lookup("tls")
	for protocol, want := range map[string]graph.Facts{"http": graph.TLS | graph.HTTP, "tcp": graph.TLS} {
		if o := k.OutputsOf(&Config{Protocol: protocol})[next]; o.Gives != want || o.Name != "next" {
			t.Errorf("%s: %+v", protocol, o)
		}
	}
}

// Clients show certificates, as far as they may or must.
func TestClients(t *testing.T) {
	dir := t.TempDir()
	p, _ := pair(t, dir, "a", "a")
	known, _ := pair(t, dir, "known")
	stranger, _ := pair(t, dir, "stranger")
	load := func(p certs.Pair) []tls.Certificate {
		k, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{k}
	}
	for auth, want := range map[string][3]string{
		"none": {"next", "next", "next"}, "request": {"next", "next", "handshake_failed"}, "require": {"handshake_failed", "next", "handshake_failed"},
	} {
		r := rig(t, func(c *Config) { c.ClientAuth, c.ClientCA = auth, known.Cert }, p)
		for i, shown := range [][]tls.Certificate{nil, load(known), load(stranger)} {
			c := &tls.Config{ServerName: "a"}
			if shown != nil { // also one that the server did not ask for
				c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown[0], nil }
			}
			out, _, _, err := shake(t, r, c)
			if out != want[i] || (err == nil) != (out == "next") {
				t.Errorf("%s, certificate %d: %s, %v", auth, i, out, err)
			}
		}
	}
}

// A node follows its files as long as it is there, and not after a reload.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	p, _ := pair(t, dir, "a", "a")
	r := rig(t, nil, p)
	old := r.Node.(*server)
	nodetest.Reload(r, func(c *Config) { c.Certificates = []certs.Pair{p} })
	_, leaf := pair(t, dir, "a", "a")
	nodetest.Eventually(t, func() error {
		_, _, st, err := shake(t, r, &tls.Config{ServerName: "a"})
		if err != nil || !st.PeerCertificates[0].Equal(leaf) {
			return fmt.Errorf("the certificate of before, %v", err)
		}
		return nil
	})
	time.Sleep(500 * time.Millisecond) // the old one would have seen it, too
	if now, was := r.Gauge("certificate_reloads"), old.Gauges()["certificate_reloads"]; now == 0 || was != 0 {
		t.Errorf("%v reloads now, %v of the node before", now, was)
	}
}

// A client with which there is no agreement reads why, and then an end, not a reset.
func TestRefusalIsRead(t *testing.T) {
	p, _ := pair(t, t.TempDir(), "a", "a")
	r := nodetest.RunStreams(t, fmt.Sprintf("stream \"s\" {\npath { main = [in, secure, respond] }\nnode \"listen\" \"in\" {\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n}\nnode \"tls\" \"secure\" {\nmin_version = \"1.3\"\ncertificate {\ncert = %q\nkey = %q\n}\n}\n}\n", p.Cert, p.Key))
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		_ = tls.Client(a, &tls.Config{ServerName: "a", InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}).Handshake()
	}()
	hello := make([]byte, 8192)
	n, err := b.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Dial("in")
	c.Say(string(hello[:n]))
	// An alert that is fatal: protocol_version (RFC 8446 section 6.2).
	if got, err := io.ReadAll(c.R); err != nil || len(got) != 7 || got[0] != 21 || got[5] != 2 || got[6] != 70 {
		t.Errorf("%x, %v", got, err)
	}
}

// A client that says nothing, or stops in the midst, has so long.
func TestTimeout(t *testing.T) {
	p, _ := pair(t, t.TempDir(), "a", "a")
	r := nodetest.RunStreams(t, fmt.Sprintf("stream \"s\" {\npath { main = [in, secure, respond] }\nnode \"listen\" \"in\" {\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n}\nnode \"tls\" \"secure\" {\ntimeout = \"200ms\"\ncertificate {\ncert = %q\nkey = %q\n}\n}\n}\n", p.Cert, p.Key))
	begun := time.Now()
	for _, said := range []string{"", "\x16\x03\x01\x01\x00\x01"} {
		c := r.Dial("in")
		c.Say(said)
		if got := c.Rest(); len(got) > 20 || time.Since(begun) < 200*time.Millisecond {
			t.Errorf("%q after %v", got, time.Since(begun))
		}
	}
	nodetest.Eventually(t, func() error {
		if n := r.Output("secure", "handshake_timeout"); n != 2 {
			return fmt.Errorf("%d counted", n)
		}
		return nil
	})
}

// Whatever a client says, no handshake comes of it that it did not finish.
func FuzzHello(f *testing.F) {
	p, _ := pair(f, f.TempDir(), "a", "a")
	r := rig(f, nil, p)
	a, b := net.Pipe()
	go func() { _ = tls.Client(a, &tls.Config{ServerName: "a"}).Handshake() }()
	buf := make([]byte, 8192)
	n, err := b.Read(buf)
	if err != nil {
		f.Fatal(err)
	}
	_, _ = a.Close(), b.Close()
	f.Add(buf[:n])
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		r.T = t
		s := nodetest.Connection(said)
		if out, err := r.Try(s); out != "handshake_failed" || err == nil || s.Client.Secure {
			t.Fatalf("%q: %s, %v", said, out, err)
		}
	})
}

// BenchmarkHandshake reports nanoseconds a handshake, that of its client included.
func BenchmarkHandshake(b *testing.B) {
	p, _ := pair(b, b.TempDir(), "a", "a")
	for _, resumed := range []bool{false, true} {
		b.Run(map[bool]string{false: "full", true: "resumed"}[resumed], func(b *testing.B) {
			r := rig(b, nil, p)
			c := &tls.Config{ServerName: "a"}
			if resumed {
				c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			}
			for b.Loop() {
				if out, _, _, err := shake(b, r, c); out != "next" {
					b.Fatal(out, err)
				}
			}
		})
	}
}
