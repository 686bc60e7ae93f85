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
	which := "a certificate that"
	if names := k.Leaf.DNSNames; len(names) > 0 {
		which = "the certificate of " + names[0] + ", which"
	}
	says = fmt.Sprintf("shows %s ends on %s", which, k.Leaf.NotAfter.UTC().Format(time.DateOnly))
	if c.ClientAuth == ctls.RequireAndVerifyClientCert {
		says += "; the client has to show one, too"
	}
	return next, says
}
