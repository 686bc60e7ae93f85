// Package tls is the kind "tls": it takes TLS off connections.
package tls

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/certs"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of tls.
type Config struct {
	certs.Config
	Protocol string        `hcl:"protocol,optional" enum:"http,tcp" doc:"what is spoken inside: http reads requests, tcp leaves the bytes alone"`
	Time     time.Duration `hcl:"timeout,optional" range:"1ms,1h" doc:"time until the handshake has to be over"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "tls",
		Summary: "takes TLS off connections, by the certificate for the name that the client asks for",
		Needs:   graph.Conn,
		Forbids: graph.TLS | graph.HTTP,
		Outputs: []graph.Output{
			failed:  {Name: "handshake_failed", Else: graph.Drop, Doc: "no agreement was reached, or a certificate is not valid"},
			timeout: {Name: "handshake_timeout", Else: graph.Drop, Doc: "the handshake took too long"},
		},
		OutputsOf: func(c Config) []graph.Output {
			gives := graph.TLS
			if c.Protocol == "http" {
				gives |= graph.HTTP
			}
			return []graph.Output{{Name: "next", Gives: gives, Doc: "connections in the clear; with protocol http, the requests on them"}}
		},
		Counters: []graph.Counter{
			resumed: {Name: "resumed", Doc: "handshakes that went on with a session of before"},
			http2:   {Name: "http2", Doc: "connections that agreed on HTTP/2"},
		},
		Defaults: Config{Config: certs.Defaults(), Protocol: "http", Time: 7 * time.Second},
		Check: func(c Config) error {
			if c.Protocol == "tcp" && slices.Contains(c.ALPN, "h2") {
				return graph.BadArgument("alpn", "alpn offers h2, and protocol is %q: what is agreed on would be spoken to the backend as it is; set protocol to http, or leave h2 out", c.Protocol)
			}
			return c.Config.Check()
		},
		Streams: func(c Config, e *graph.Env) (stream.Stage, error) {
			if c.Protocol == "http" && c.ALPN == nil {
				c.ALPN = []string{"h2", "http/1.1"}
			}
			s, err := certs.NewServer(c.Config, e.Log)
			if err != nil {
				return nil, err
			}
			return &server{c, e, s}, nil
		},
	})
}

// Output numbers.
const (
	failed = iota
	timeout
	next
)

// Counter numbers.
const (
	resumed = iota
	http2
)

type server struct {
	c     Config
	env   *graph.Env
	certs *certs.Server
}

// Close is part of graph.StageCloser.
func (v *server) Close() error {
	v.certs.Close()
	return nil
}

// Gauges is part of graph.Gauger.
func (v *server) Gauges() map[string]float64 {
	n, bad := v.certs.Counts()
	return map[string]float64{"certificate_reloads": float64(n), "certificate_faults": float64(bad)}
}

// Certificates is part of graph.Certified.
func (v *server) Certificates() (all []graph.Certificate) {
	for i, end := range v.certs.Ends() {
		all = append(all, graph.Certificate{File: v.c.Certificates[i].Cert, NotAfter: end})
	}
	return all
}

// Serve is part of stream.Stage.
func (v *server) Serve(ctx context.Context, s *stream.Session) (int, error) {
	c := s.Client
	if err := c.ServeTLS(ctx, v.certs.Current(), stream.Now()+int64(v.c.Time)); err != nil {
		// An end, not a reset: the client is to read why.
		_ = c.Close()
		if stream.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
			return timeout, err
		}
		return failed, err
	}
	st := c.TLS()
	c.Secure = true
	c.ServerName = strings.ToLower(st.ServerName)
	if st.DidResume {
		v.env.Count(resumed, 1)
	}
	if st.NegotiatedProtocol == "h2" {
		v.env.Count(http2, 1)
		c.H2 = true
	}
	return next, nil
}
