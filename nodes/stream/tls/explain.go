package tls

import (
	ctls "crypto/tls"
	"fmt"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
)

// Explain is part of graph.StageExplainer.
func (v *server) Explain(s *stream.Session) (output int, says string) {
	s.Client.Secure = true
	c := v.certs.Current()
	k, err := c.GetCertificate(&ctls.ClientHelloInfo{ServerName: s.Client.ServerName})
	if err != nil {
		return failed, err.Error()
	}
	says = fmt.Sprintf("shows a certificate that ends on %s", k.Leaf.NotAfter.UTC().Format(time.DateOnly))
	if names := k.Leaf.DNSNames; len(names) > 0 {
		says = fmt.Sprintf("shows the certificate of %s, which ends on %s", names[0], k.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	if c.ClientAuth == ctls.RequireAndVerifyClientCert {
		says += "; the client has to show one, too"
	}
	return next, says
}
