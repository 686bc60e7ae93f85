package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// config reads the files that the block names.
func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.Name, ClientSessionCache: tls.NewLRUClientSessionCache(256)}
	c.InsecureSkipVerify = t.Verify != nil && !*t.Verify
	if t.CA != "" {
		b, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("%s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		k, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{k}
	}
	return c, nil
}

// equal tells whether connections made by one block are as good as the other's.
func (t *TLS) equal(o *TLS) bool {
	if t == nil || o == nil {
		return t == o
	}
	verify := func(t *TLS) bool { return t.Verify == nil || *t.Verify }
	return t.Name == o.Name && t.CA == o.CA && t.Cert == o.Cert && t.Key == o.Key && verify(t) == verify(o)
}
