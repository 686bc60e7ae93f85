// Package certs keeps the certificates of TLS servers: it chooses one by the name
// that a client asks for, and reads them again when their files change. A bad new
// certificate leaves the old one in force.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/watch"
)

// Config is the arguments of a TLS server.
type Config struct {
	Certificates []Pair   `hcl:"certificate,block" doc:"a certificate; the first one is for names that none of them has"`
	MinVersion   string   `hcl:"min_version,optional" enum:"1.2,1.3" doc:"oldest version of TLS that is spoken"`
	ClientCA     string   `hcl:"client_ca,optional" doc:"file of certificates (PEM) that clients' certificates must lead to"`
	ClientAuth   string   `hcl:"client_auth,optional" enum:"none,request,require" doc:"whether clients may or must show a certificate; one that is shown must be valid"`
	ALPN         []string `hcl:"alpn,optional" doc:"protocols that are offered, the preferred one first"`
}

// Pair is the files of one certificate.
type Pair struct {
	Cert string `hcl:"cert" doc:"file of the certificate and those that lead to its issuer (PEM)"`
	Key  string `hcl:"key" doc:"file of its private key (PEM)"`
}

// Defaults are the values of a server that says nothing.
func Defaults() Config { return Config{MinVersion: "1.2", ClientAuth: "none"} }

// Check looks at what tags cannot say.
func (c Config) Check() error {
	switch {
	case len(c.Certificates) == 0:
		return errors.New("TLS needs a certificate: add a block certificate with cert and key")
	case c.ClientAuth != "none" && c.ClientCA == "":
		return graph.BadArgument("client_auth", "client_auth is %q, and nobody says whose certificates are valid: name a file in client_ca", c.ClientAuth)
	}
	return nil
}

// Server is the certificates of one server. Its methods may be called from any
// goroutine.
type Server struct {
	c       Config
	log     *zap.Logger
	current atomic.Pointer[tls.Config]
	ends    atomic.Pointer[[]time.Time] // of Config.Certificates
	watcher *watch.Watcher

	mu      sync.Mutex
	content [][]byte // of the files, as they were read last
	reloads atomic.Uint64
	faults  atomic.Uint64
}

// NewServer reads the certificates. Their files are followed until Close.
func NewServer(c Config, log *zap.Logger) (*Server, error) {
	if log == nil {
		log = zap.NewNop()
	}
	s := &Server{c: c, log: log}
	if _, err := s.read(); err != nil {
		return nil, err
	}
	s.watcher = watch.Start(watch.Options{
		Files: s.files, Settle: 100 * time.Millisecond, Poll: 10 * time.Second, Log: log,
		Changed: func() {
			switch changed, err := s.read(); {
			case err != nil:
				s.faults.Add(1)
				log.Error("the new certificates cannot be used; the old ones stay", zap.Error(err))
			case changed:
				s.reloads.Add(1)
				log.Info("certificates were read again")
			}
		},
	})
	return s, nil
}

// Close ends following the files.
func (s *Server) Close() { s.watcher.Close() }

// Counts answers how often certificates were read again, and could not be.
func (s *Server) Counts() (reloads, faults uint64) { return s.reloads.Load(), s.faults.Load() }

// Ends answers when the certificates in force end, in the order of the
// configuration.
func (s *Server) Ends() []time.Time { return *s.ends.Load() }

// Current answers the configuration for a handshake that begins now.
func (s *Server) Current() *tls.Config { return s.current.Load() }

func (s *Server) files() (all []string) {
	for _, p := range s.c.Certificates {
		all = append(all, p.Cert, p.Key)
	}
	if s.c.ClientCA != "" {
		all = append(all, s.c.ClientCA)
	}
	return all
}

// read reads the files, and takes over what they hold if it is new and good.
func (s *Server) read() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var content [][]byte
	same := s.content != nil
	for i, name := range s.files() {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) && !filepath.IsAbs(name) {
			err = fmt.Errorf("%w; a relative path begins where lbgraph was started", err)
		}
		if err != nil {
			return false, err
		}
		content = append(content, b)
		same = same && bytes.Equal(b, s.content[i])
	}
	if same {
		return false, nil
	}
	s.content = content // what is bad is told once
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: s.c.ALPN}
	if s.c.MinVersion == "1.3" {
		c.MinVersion = tls.VersionTLS13
	}
	names := map[string]*tls.Certificate{}
	var ends []time.Time
	var first *tls.Certificate
	for i, p := range s.c.Certificates {
		k, err := tls.X509KeyPair(content[2*i], content[2*i+1])
		if err != nil {
			return false, fmt.Errorf("%s and %s: %w", p.Cert, p.Key, err)
		}
		ends = append(ends, k.Leaf.NotAfter)
		if time.Now().After(k.Leaf.NotAfter) {
			s.log.Warn("a certificate has expired", zap.String("file", p.Cert), zap.Time("at", k.Leaf.NotAfter))
		}
		if first == nil {
			first = &k
		}
		for _, n := range namesOf(k.Leaf) {
			if names[n] == nil {
				names[n] = &k
			}
		}
	}
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		n := strings.ToLower(hello.ServerName) // crypto/tls refuses a dot at its end
		if k := names[n]; k != nil {
			return k, nil
		}
		if _, domain, ok := strings.Cut(n, "."); ok {
			if k := names["*."+domain]; k != nil {
				return k, nil
			}
		}
		return first, nil
	}
	switch s.c.ClientAuth {
	case "request":
		c.ClientAuth = tls.VerifyClientCertIfGiven
	case "require":
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if s.c.ClientCA != "" {
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(content[len(content)-1]) {
			return false, fmt.Errorf("%s holds no certificate", s.c.ClientCA)
		}
	}
	s.current.Store(c)
	s.ends.Store(&ends)
	return true, nil
}

func namesOf(leaf *x509.Certificate) (all []string) {
	for _, n := range leaf.DNSNames {
		all = append(all, strings.ToLower(n))
	}
	for _, a := range leaf.IPAddresses {
		all = append(all, a.String())
	}
	if len(all) == 0 && leaf.Subject.CommonName != "" {
		all = append(all, strings.ToLower(leaf.Subject.CommonName))
	}
	return all
}
