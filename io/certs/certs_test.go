package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// write makes a self-signed certificate for names and writes it to name.crt and name.key.
func write(t *testing.T, dir, name string, serial int64, names ...string) Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := Pair{filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")}
	put(t, p.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	put(t, p.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE " + "KEY", Bytes: k}))
	return p
}

func put(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// shake answers the serial number of the certificate that a client gets, and the
// version.
func shake(s *Server, name string, c *tls.Config) (serial int64, version uint16, err error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = tls.Server(b, s.Current()).Handshake() }()
	if c == nil {
		c = &tls.Config{}
	}
	c.InsecureSkipVerify, c.ServerName = true, name
	k := tls.Client(a, c)
	if err = k.Handshake(); err != nil {
		return 0, 0, err
	}
	st := k.ConnectionState()
	return st.PeerCertificates[0].SerialNumber.Int64(), st.Version, nil
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	c := Defaults()
	c.Certificates = []Pair{write(t, dir, "first", 1, "a.example"), write(t, dir, "wild", 2, "*.example", "*.b.example"), write(t, dir, "exact", 3, "x.b.example"), write(t, dir, "again", 4, "a.example", "x.b.example")}
	s, err := NewServer(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]int64{"a.example": 1, "A.Example": 1, "c.example": 2, "y.b.example": 2, "x.b.example": 3, "other.test": 1, "deep.c.example": 1, "": 1} {
		if got, _, err := shake(s, name, nil); got != want || err != nil {
			t.Errorf("%q: certificate %d, want %d, %v", name, got, want, err)
		}
	}
}

func TestVersions(t *testing.T) {
	c := Defaults()
	c.Certificates = []Pair{write(t, t.TempDir(), "k", 1, "a")}
	old, err := NewServer(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if _, v, err := shake(old, "a", &tls.Config{MaxVersion: tls.VersionTLS12}); v != tls.VersionTLS12 || err != nil {
		t.Errorf("%x, %v", v, err)
	}
	if _, _, err := shake(old, "a", &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	c.MinVersion = "1.3"
	s, err := NewServer(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, v, err := shake(s, "a", nil); v != tls.VersionTLS13 || err != nil {
		t.Errorf("%x, %v", v, err)
	}
	if _, _, err := shake(s, "a", &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
}

// A new certificate is taken over; a bad one is not, and the old one stays.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	c := Defaults()
	c.Certificates = []Pair{write(t, dir, "k", 1, "a")}
	core, logs := observer.New(zap.ErrorLevel)
	s, err := NewServer(c, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	write(t, dir, "k", 2, "a")
	until("the new certificate is not taken over", func() bool { n, _, _ := shake(s, "a", nil); return n == 2 })
	_, was := s.Counts() // one may have come while the key was that of before
	put(t, c.Certificates[0].Cert, []byte("nonsense"))
	until("the bad certificate is not told", func() bool { _, bad := s.Counts(); return bad > was })
	if n, _, err := shake(s, "a", nil); n != 2 || err != nil {
		t.Errorf("certificate %d, %v", n, err)
	}
	until("the log says nothing", func() bool {
		all := logs.FilterMessageSnippet("the old ones stay").All()
		return len(all) > 0 && strings.Contains(all[0].ContextMap()["error"].(string), c.Certificates[0].Cert)
	})
	// It is told once, however often its file is written.
	put(t, c.Certificates[0].Cert, []byte("nonsense"))
	time.Sleep(500 * time.Millisecond)
	if _, bad := s.Counts(); bad != was+1 {
		t.Errorf("the same bad certificate is told %d times", bad-was)
	}
	write(t, dir, "k", 3, "a")
	until("the certificate behind a bad one is not taken over", func() bool { n, _, _ := shake(s, "a", nil); return n == 3 })
	// A certificate whose key comes later: the old pair stays until then.
	elsewhere := write(t, t.TempDir(), "k", 4, "a")
	_, before := s.Counts()
	for i, from := range []string{elsewhere.Cert, elsewhere.Key} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		put(t, []string{c.Certificates[0].Cert, c.Certificates[0].Key}[i], b)
		if i == 0 {
			until("a certificate with another's key is not told", func() bool { _, bad := s.Counts(); return bad > before })
			if n, _, err := shake(s, "a", nil); n != 3 || err != nil {
				t.Errorf("certificate %d, %v", n, err)
			}
		}
	}
	until("a key alone is not read", func() bool { n, _, _ := shake(s, "a", nil); return n == 4 })
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	good, other := write(t, dir, "k", 1, "a"), write(t, dir, "l", 2, "b")
	for name, c := range map[string]Config{
		"no file":         {Certificates: []Pair{{"none", "none"}}},
		"another's key":   {Certificates: []Pair{{good.Cert, other.Key}}},
		"CA without one":  {Certificates: []Pair{good}, ClientCA: good.Key, ClientAuth: "require"},
		"CA not there":    {Certificates: []Pair{good}, ClientCA: "none", ClientAuth: "require"},
		"key not a key":   {Certificates: []Pair{{good.Cert, good.Cert}}},
		"cert not a cert": {Certificates: []Pair{{good.Key, good.Key}}},
	} {
		if s, err := NewServer(c, nil); err == nil {
			t.Errorf("%s: it starts", name)
			s.Close()
		}
	}
	if (Config{}).Check() == nil || (Config{Certificates: []Pair{good}, ClientAuth: "require"}).Check() == nil {
		t.Error("a bad configuration passes")
	}
}
