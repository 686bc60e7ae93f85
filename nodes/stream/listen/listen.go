// Package listen is the kind "listen": it accepts connections.
package listen

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/proxyproto"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of listen.
type Config struct {
	Address     netip.AddrPort `hcl:"address" doc:"address and port to listen on, as in \"0.0.0.0:80\" or \"[::]:80\""`
	Protocol    string         `hcl:"protocol,optional" enum:"http,tcp" doc:"what is spoken: http reads requests; tcp leaves the bytes alone, as for TLS that a node behind takes off"`
	Sockets     int            `hcl:"sockets,optional" range:"0,64" doc:"sockets that share the address by SO_REUSEPORT, each with a queue of its own; 0 is one that shares with nobody"`
	Connections int            `hcl:"connections,optional" range:"0,10000000" doc:"connections at the same time; 0 is any number"`
	PerClient   int            `hcl:"connections_per_client,optional" range:"0,10000000" doc:"connections at the same time from one address; 0 is any number"`
	Trusted     []netip.Prefix `hcl:"trusted,optional" doc:"networks of proxies that are believed who the client is, by PROXY protocol and by fields"`
	Proxy       string         `hcl:"proxy_protocol,optional" enum:"off,accept,require" doc:"whether connections from trusted networks may or must begin with a PROXY header; from others it is never read"`
	ProxyTime   time.Duration  `hcl:"proxy_timeout,optional" range:"1ms,1h" doc:"time until the PROXY header has to be there"`
	HTTP
}

// HTTP is the arguments of kinds behind which requests are read.
type HTTP struct {
	HeadTime  time.Duration `hcl:"header_timeout,optional" range:"1ms,1h" doc:"time from the first byte of a request until its head is there"`
	IdleTime  time.Duration `hcl:"idle_timeout,optional" range:"1ms,24h" doc:"time between two requests of a connection"`
	BodyTime  time.Duration `hcl:"body_timeout,optional" range:"1ms,1h" doc:"time without progress of a request's body; one of known length has this in all, and what it takes at body_rate"`
	BodyRate  int64         `hcl:"body_rate,optional" range:"1,1000000000000" doc:"bytes a second at which a body of known length has to come at least"`
	WriteTime time.Duration `hcl:"write_timeout,optional" range:"1ms,24h" doc:"time without progress after which a client that does not read its answer is given up"`
	MaxLine   int           `hcl:"max_line,optional" range:"64,32768" doc:"bytes of the request line"`
	MaxField  int           `hcl:"max_field,optional" range:"64,32768" doc:"bytes of a field line"`
	MaxHead   int           `hcl:"max_head,optional" range:"256,65536" doc:"bytes of a request's head, and the header list of HTTP/2"`
	MaxFields int           `hcl:"max_fields,optional" range:"1,1000" doc:"fields of a request's head"`
	HTTP2     bool          `hcl:"http2,optional" doc:"speak HTTP/2 with clients that begin with its preface, or agree on it by TLS"`
	Streams   int           `hcl:"http2_streams,optional" range:"1,10000" doc:"requests of HTTP/2 at the same time on one connection"`
}

// HTTPDefaults are the values of a block that says nothing.
func HTTPDefaults() HTTP {
	l := http1.DefaultLimits
	return HTTP{
		HeadTime: 7 * time.Second, IdleTime: time.Minute, BodyTime: 5 * time.Second, BodyRate: 64 << 10, WriteTime: 7 * time.Second,
		MaxLine: l.Line, MaxField: l.Field, MaxHead: l.Head, MaxFields: l.Fields, HTTP2: true, Streams: 100,
	}
}

// Settings answers the arguments as connections know them.
func (h HTTP) Settings() *stream.HTTP {
	return &stream.HTTP{
		Limits:   http1.Limits{Line: h.MaxLine, Field: h.MaxField, Head: h.MaxHead, Fields: h.MaxFields},
		HeadTime: h.HeadTime, IdleTime: h.IdleTime, BodyTime: h.BodyTime, BodyRate: h.BodyRate, WriteTime: h.WriteTime,
		H2: h.HTTP2, Streams: uint32(h.Streams),
	}
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "listen",
		Summary: "accepts connections of TCP, and reads HTTP requests from them",
		Source:  true,
		Outputs: []graph.Output{
			full:      {Name: "full", Else: graph.Drop, Doc: "there are too many connections"},
			perClient: {Name: "client_full", Else: graph.Drop, Doc: "the client has too many connections"},
			badProxy:  {Name: "bad_proxy", Else: graph.Drop, Doc: "the PROXY header is malformed, missing, or did not come in time"},
		},
		OutputsOf: func(c Config) []graph.Output {
			o := graph.Output{Name: "next", Gives: graph.Conn, Doc: "connections; with protocol http, the requests on them"}
			if c.Protocol == "http" {
				o.Gives |= graph.HTTP
				o.Without = `protocol = "tcp"`
			}
			return []graph.Output{o}
		},
		Defaults: Config{Protocol: "http", Proxy: "off", ProxyTime: 3 * time.Second, HTTP: HTTPDefaults()},
		Check: func(c Config) error {
			if c.Proxy != "off" && len(c.Trusted) == 0 {
				return graph.BadArgument("proxy_protocol", "proxy_protocol is %q, and no network is trusted: list those of the proxies in trusted", c.Proxy)
			}
			return nil
		},
		Listens: func(c Config) []graph.Listen { return []graph.Listen{{Address: c.Address, Sockets: c.Sockets}} },
		Streams: func(c Config, e *graph.Env) (stream.Stage, error) {
			return &listener{c: c, http: c.HTTP.Settings(), load: new(load), clients: &clients{of: map[netip.Addr]int{}}}, nil
		},
	})
}

// Output numbers.
const (
	full = iota
	perClient
	badProxy
	next
)

type listener struct {
	c       Config
	http    *stream.HTTP
	load    *load
	clients *clients
}

// load is the number of connections of a node, over its reloads.
type load struct{ atomic.Int64 }

// End is part of stream.Ender.
func (l *load) End(*stream.Session) { l.Add(-1) }

// Upgraded is part of stream.Ender.
func (l *load) Upgraded(*stream.Session) {}

// clients is their number by client.
type clients struct {
	mu sync.Mutex
	of map[netip.Addr]int
}

func (c *clients) enter(a netip.Addr, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[a] >= most {
		return false
	}
	c.of[a]++
	return true
}

// End is part of stream.Ender.
func (c *clients) End(s *stream.Session) {
	a := s.Client.Remote.Addr()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[a]--; c.of[a] <= 0 {
		delete(c.of, a)
	}
}

// Upgraded is part of stream.Ender.
func (c *clients) Upgraded(*stream.Session) {}

// Inherit is part of graph.StageInheritor.
func (l *listener) Inherit(old stream.Stage) {
	l.load = old.(*listener).load
	l.clients = old.(*listener).clients
}

// Gauges is part of graph.Gauger.
func (l *listener) Gauges() map[string]float64 {
	return map[string]float64{"connections": float64(l.load.Load())}
}

// Serve is part of stream.Stage.
func (l *listener) Serve(_ context.Context, s *stream.Session) (int, error) {
	c := s.Client
	c.HTTP = l.http
	c.Trusted = l.trusts(c.Peer.Addr())
	n := l.load.Add(1)
	s.OnEnd(l.load)
	if l.c.Connections > 0 && n > int64(l.c.Connections) {
		return full, nil
	}
	if l.c.Proxy != "off" && c.Trusted {
		if err := l.proxy(c); err != nil {
			return badProxy, err
		}
	}
	if l.c.PerClient > 0 {
		if !l.clients.enter(c.Remote.Addr(), l.c.PerClient) {
			return perClient, nil
		}
		s.OnEnd(l.clients)
	}
	return next, nil
}

// proxy reads the PROXY header of a connection.
func (l *listener) proxy(c *stream.Client) error {
	for by := stream.Now() + int64(l.c.ProxyTime); ; {
		b := c.Buffered()
		if l.c.Proxy == "accept" && !proxyproto.Begins(b) {
			return nil
		}
		h, n, err := proxyproto.Parse(b)
		if err != nil {
			return err
		}
		if n > 0 {
			c.Discard(n)
			if h.Source.IsValid() {
				c.Remote, c.Local = h.Source, h.Dest
				// What the client itself says of others is believed if it is trusted, whoever
				// passes its bytes on.
				c.Trusted = l.trusts(c.Remote.Addr().Unmap())
			}
			return nil
		}
		if err := c.Fill(by); err != nil {
			return err
		}
	}
}

func (l *listener) trusts(a netip.Addr) bool {
	for _, p := range l.c.Trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
