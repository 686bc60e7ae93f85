// Package proxy is the kind "proxy": it talks to the chosen backend.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/proxyproto"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of proxy.
type Config struct {
	Connect       time.Duration `hcl:"connect_timeout,optional" range:"1ms,1h" doc:"time until a connection to the backend is there"`
	Response      time.Duration `hcl:"response_timeout,optional" range:"0s,24h" doc:"time from the end of a request until the head of its answer is there; 0s is any time, as for calls of gRPC"`
	BodyTime      time.Duration `hcl:"body_timeout,optional" range:"1ms,24h" doc:"time without progress of an answer's body"`
	UploadTime    time.Duration `hcl:"upload_timeout,optional" range:"0s,24h" doc:"time without progress of a request's body of unknown length; 0s is body_timeout for calls of gRPC over HTTP/2, and else what listen has as body_timeout"`
	WriteTime     time.Duration `hcl:"write_timeout,optional" range:"1ms,24h" doc:"time without progress after which a backend that does not read is given up"`
	Idle          time.Duration `hcl:"idle_timeout,optional" range:"1ms,720h" doc:"time without a byte either way after which a connection of TCP, or an upgraded one, ends"`
	Grace         time.Duration `hcl:"half_close_timeout,optional" range:"1ms,24h" doc:"time without progress of one direction when the other has ended"`
	Keepalive     int           `hcl:"keepalive,optional" range:"0,100000" doc:"idle connections kept open to each backend"`
	KeepaliveTime time.Duration `hcl:"keepalive_timeout,optional" range:"1ms,24h" doc:"time after which an idle connection to a backend closes; less than the backend's own"`
	Retries       int           `hcl:"retries,optional" range:"0,10" doc:"further backends that a session may try, before the first byte of an answer"`
	Budget        int           `hcl:"retry_budget,optional" range:"0,100" doc:"retries of all sessions together, in percent of the sessions; 10 a second are always allowed"`
	Forwarded     bool          `hcl:"forwarded,optional" doc:"tell HTTP backends who the client is by X-Forwarded-For, -Proto and -Host, X-Real-IP and Forwarded, and let nobody else do so"`
	Upgrade       []string      `hcl:"upgrade,optional" doc:"protocols that a request may switch its connection to; \"*\" is any but HTTP/2"`
	Proxy         string        `hcl:"proxy_protocol,optional" enum:"off,v1,v2" doc:"PROXY header sent to backends; HTTP connections are not shared between clients then"`
	HTTP          string        `hcl:"http,optional" enum:"1.1,2" doc:"version of HTTP that backends are spoken to with; 2 is what gRPC needs, by prior knowledge or over TLS"`
	TLS           *TLS          `hcl:"tls,block" doc:"speak TLS with backends"`
}

// TLS is the arguments of the block tls.
type TLS struct {
	Name   string `hcl:"server_name,optional" doc:"name that is asked for and must be in the backend's certificate; empty is the backend's address"`
	CA     string `hcl:"ca,optional" doc:"file of certificates (PEM) that the backend's must lead to; empty is what the system trusts"`
	Verify *bool  `hcl:"verify,optional" doc:"whether the backend's certificate must be valid; it must if this is left out"`
	Cert   string `hcl:"cert,optional" doc:"file of a certificate to show (PEM)"`
	Key    string `hcl:"key,optional" doc:"file of its private key (PEM)"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "proxy",
		Summary: "passes a connection or a request on to the chosen backend, and the answer back",
		Needs:   graph.Conn | graph.Pool,
		Outputs: []graph.Output{
			connectFailed:   {Name: "connect_failed", Else: graph.Drop, Status: 502, Doc: "no connection to a backend could be made"},
			connectTimeout:  {Name: "connect_timeout", Else: graph.Drop, Status: 504, Doc: "a connection to a backend took too long"},
			closedEarly:     {Name: "closed_early", Else: graph.Drop, Status: 502, Doc: "the backend closed the connection before it answered"},
			responseTimeout: {Name: "response_timeout", Else: graph.Drop, Status: 504, Doc: "the backend did not answer in time"},
			badResponse:     {Name: "bad_response", Else: graph.Drop, Status: 502, Doc: "the backend's answer is malformed or ambiguous"},
			badBody:         {Name: "bad_body", Else: graph.Drop, Status: 400, Doc: "the body of the request is malformed, or its target is no URL, where backends are spoken to with HTTP/2"},
			bodyTimeout:     {Name: "body_timeout", Else: graph.Drop, Status: 408, Doc: "the body of the request did not come in time"},
			cut:             {Name: "cut", Else: graph.Drop, Status: 502, Doc: "the backend broke off in the midst of its answer"},
			clientGone:      {Name: "client_gone", Else: graph.Drop, Status: 499, Doc: "the client left before it had its answer"},
			clientSlow:      {Name: "client_slow", Else: graph.Drop, Status: 499, Doc: "the client did not read its answer"},
		},
		Counters: []graph.Counter{
			dialled:    {Name: "connections", Doc: "connections made to backends"},
			reused:     {Name: "reused", Doc: "requests on a connection that was open"},
			stale:      {Name: "stale", Doc: "open connections that the backend had closed when a request came"},
			extraBytes: {Name: "extra_bytes", Doc: "connections closed because the backend sent more than its answer"},
			retried:    {Name: "retries", Doc: "further backends tried"},
			noBudget:   {Name: "retries_withheld", Doc: "retries that the budget did not allow"},
			upgraded:   {Name: "upgraded", Doc: "connections that left HTTP"},
		},
		Defaults: Config{
			Connect: 7 * time.Second, Response: 7 * time.Second, BodyTime: time.Hour, WriteTime: 7 * time.Second, Idle: time.Hour, Grace: time.Minute,
			HTTP: "1.1", Keepalive: 64, KeepaliveTime: time.Minute, Retries: 2, Budget: 20, Forwarded: true, Upgrade: []string{"websocket"}, Proxy: "off",
		},
		Check: func(c Config) error {
			if c.HTTP == "2" && c.Proxy != "off" {
				return graph.BadArgument("proxy_protocol", "http is \"2\" and proxy_protocol is not off: a connection of HTTP/2 carries requests of many clients, and can name one; leave one of them out")
			}
			if c.TLS != nil && (c.TLS.Cert == "") != (c.TLS.Key == "") {
				return graph.BadArgument("tls", "tls has one of cert and key: both are needed, or none")
			}
			return nil
		},
		Streams: func(c Config, e *graph.Env) (stream.Stage, error) {
			p := &proxy{c: c, env: e, budget: newBudget()}
			p.budget.percent.Store(int64(c.Budget))
			if c.TLS != nil {
				t, err := c.TLS.config()
				if err != nil {
					return nil, err
				}
				p.tls = t
			}
			if c.HTTP == "2" {
				p.h2 = p.transport()
			}
			p.idle = newUpstreams(c.Keepalive, c.KeepaliveTime)
			for _, u := range c.Upgrade {
				p.upgrade = append(p.upgrade, strings.ToLower(u))
			}
			return p, nil
		},
	})
}

// Output numbers.
const (
	connectFailed = iota
	connectTimeout
	closedEarly
	responseTimeout
	badResponse
	badBody
	bodyTimeout
	cut
	clientGone
	clientSlow
)

// Counter numbers.
const (
	dialled = iota
	reused
	stale
	extraBytes
	retried
	noBudget
	upgraded
)

type proxy struct {
	c       Config
	env     *graph.Env
	idle    *upstreams
	budget  *budget
	upgrade []string
	tls     *tls.Config     // nil: in the clear
	h2      *http.Transport // nil: HTTP/1.1
}

// Inherit is part of graph.StageInheritor.
func (p *proxy) Inherit(old stream.Stage) {
	o := old.(*proxy)
	p.budget = o.budget
	p.budget.percent.Store(int64(p.c.Budget))
	if p.c.Proxy == o.c.Proxy && p.c.TLS.equal(o.c.TLS) {
		p.idle.close()
		p.idle = o.idle
		p.idle.hold(p.c.Keepalive, p.c.KeepaliveTime)
	}
}

// Close is part of graph.StageCloser.
func (p *proxy) Close() error {
	p.idle.close()
	if p.h2 != nil {
		p.h2.CloseIdleConnections()
	}
	return nil
}

// Gauges is part of graph.Gauger.
func (p *proxy) Gauges() map[string]float64 {
	return map[string]float64{"idle_connections": float64(p.idle.count()), "retry_budget": float64(p.budget.left())}
}

// Serve is part of stream.Stage.
func (p *proxy) Serve(ctx context.Context, s *stream.Session) (int, error) {
	p.budget.session()
	if s.Req == nil {
		return p.connection(ctx, s)
	}
	if s.Req.Body != nil {
		switch {
		case p.c.UploadTime > 0:
			s.Req.Body.Within(p.c.UploadTime)
		case p.h2 != nil && isGRPC(s.Req):
			s.Req.Body.Within(p.c.BodyTime) // either side may be the one that says nothing
		}
	}
	if p.h2 != nil {
		return p.requestHTTP2(ctx, s)
	}
	return p.request(ctx, s)
}

// dial connects to the session's backend.
func (p *proxy) dial(ctx context.Context, s *stream.Session) (*stream.Conn, error) {
	d := net.Dialer{Timeout: p.c.Connect, KeepAlive: -1}
	nc, err := d.DialTCP(ctx, "tcp", netip.AddrPort{}, s.Backend.Addr)
	if err != nil {
		return nil, err
	}
	p.env.Count(dialled, 1)
	c := stream.NewConn(nc)
	c.SetWriteIdle(p.c.WriteTime)
	if p.c.Proxy != "off" {
		version := 1
		if p.c.Proxy == "v2" {
			version = 2
		}
		if _, err := c.Write(proxyproto.Append(nil, version, s.Client.Remote, s.Client.Local)); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	if p.tls != nil {
		t := p.tls.Clone()
		if t.ServerName == "" {
			t.ServerName = s.Backend.Addr.Addr().String()
		}
		if err := c.DialTLS(ctx, t, stream.Now()+int64(p.c.Connect)); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}

// dialOutput answers the output for an error of dial.
func dialOutput(err error) int {
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() {
		return connectTimeout
	}
	return connectFailed
}

// another has s try a further backend after its own failed it, if there is one and
// the budget allows it.
func (p *proxy) another(s *stream.Session) bool {
	s.Failed()
	if len(s.Tried) > p.c.Retries {
		return false
	}
	if !p.budget.retry() {
		p.env.Count(noBudget, 1)
		return false
	}
	b := s.Picker.Pick(s)
	if b == nil {
		return false
	}
	p.env.Count(retried, 1)
	b.Retries.Add(1)
	s.Choose(b, s.Picker)
	return true
}

// allows tells whether a connection may switch to a protocol.
func (p *proxy) allows(protocol []byte) bool {
	for _, u := range p.upgrade {
		if u == "*" && !http1.EqualFold(protocol, "h2c") || strings.EqualFold(u, string(protocol)) {
			return true
		}
	}
	return false
}
