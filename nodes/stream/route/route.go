// Package route is the kind "route": it parts sessions by what they ask for.
package route

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of route.
type Config struct {
	Rules     []Rule        `hcl:"rule,block" doc:"an output and what leaves there; the first rule that fits counts"`
	HelloTime time.Duration `hcl:"hello_timeout,optional" range:"1ms,1h" doc:"time until the first message of TLS has to be there, where a rule looks at its server name and nobody took TLS off"`
}

// Rule is one rule. All that it says must hold; of a list, one element.
type Rule struct {
	Name    string            `hcl:"name,label" doc:"the rule's name"`
	To      string            `hcl:"output,optional" doc:"the output, which several rules may share; the rule's name if left out"`
	Hosts   []string          `hcl:"host,optional" doc:"hosts, without port: names, or *.example.org for all names below one"`
	Paths   []string          `hcl:"path,optional" doc:"beginnings of paths, by whole segments: /api is /api and /api/v1, not /apis"`
	Methods []string          `hcl:"method,optional" doc:"request methods"`
	Fields  map[string]string `hcl:"headers,optional" doc:"fields and their values; \"*\" is any value"`
	Names   []string          `hcl:"server_name,optional" doc:"names that clients ask TLS for, in the form of host"`
	Sources []netip.Prefix    `hcl:"source,optional" doc:"addresses of clients"`
}

// output answers the output that the rule leads to.
func (r *Rule) output() string { return cmp.Or(r.To, r.Name) }

// requests tells whether the rule looks at requests.
func (r *Rule) requests() bool {
	return len(r.Hosts)+len(r.Paths)+len(r.Methods)+len(r.Fields) > 0
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "route",
		Summary: "parts connections or requests by host, path, method, field, server name or client",
		Needs:   graph.Conn,
		Outputs: []graph.Output{
			noRoute:  {Name: "no_route", Else: graph.Drop, Status: 404, Doc: "no rule fits"},
			badHello: {Name: "bad_hello", Else: graph.Drop, Doc: "the first message of TLS is malformed, or did not come in time"},
		},
		OutputsOf: func(c Config) (outs []graph.Output) {
			for _, name := range names(c) {
				o := graph.Output{Name: name, Only: graph.HTTP, Doc: "what fits the rules of this name"}
				for i := range c.Rules {
					if r := &c.Rules[i]; r.output() == name && !r.requests() {
						o.Only = 0
					}
				}
				outs = append(outs, o)
			}
			return outs
		},
		Defaults: Config{HelloTime: 7 * time.Second},
		Check:    check,
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			r := &router{hello: int64(c.HelloTime)}
			all := names(c)
			for i := range c.Rules {
				r.add(&c.Rules[i], badHello+1+index(all, c.Rules[i].output()))
			}
			return r, nil
		},
	})
}

// Output numbers; those of rules follow.
const (
	noRoute = iota
	badHello
)

// names answers the names of outputs, in the order in which they come first.
func names(c Config) (all []string) {
	for i := range c.Rules {
		if o := c.Rules[i].output(); index(all, o) < 0 {
			all = append(all, o)
		}
	}
	return all
}

func index(all []string, s string) int {
	for i := range all {
		if all[i] == s {
			return i
		}
	}
	return -1
}

func check(c Config) error {
	if len(c.Rules) == 0 {
		return fmt.Errorf("route has no rule: add a block rule \"name\" { host = [\"…\"] }")
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		at := func(list string, i int) string { return fmt.Sprintf("rule.%s.%s[%d]", r.Name, list, i) }
		if o := r.output(); o == "no_route" || o == "bad_hello" {
			return graph.BadArgument("rule."+r.Name+".output", "rule %q leads to %s, an output that is there anyway: choose another name", r.Name, o)
		} else if !hclsyntax.ValidIdentifier(o) {
			return graph.BadArgument("rule."+r.Name+".output", "rule %q: %q cannot stand in a path: begin with a letter, then letters, digits, - and _", r.Name, o)
		}
		for i, h := range append(slices.Clone(r.Hosts), r.Names...) {
			name := strings.TrimPrefix(h, "*.")
			if name == "" || strings.ContainsAny(name, "*/@ ") || strings.Contains(name, ":") && !strings.HasPrefix(name, "[") {
				place := at("host", i)
				if i >= len(r.Hosts) {
					place = at("server_name", i-len(r.Hosts))
				}
				return graph.BadArgument(place, "rule %q: %q is no host: write a name without port, or *.example.org", r.Name, h)
			}
		}
		for i, p := range r.Paths {
			if !strings.HasPrefix(p, "/") {
				return graph.BadArgument(at("path", i), "rule %q: path %q must begin with a slash", r.Name, p)
			}
		}
		for i, m := range r.Methods {
			if !http1.ValidName(m) {
				return graph.BadArgument(at("method", i), "rule %q: %q is no method", r.Name, m)
			}
		}
		for _, f := range stream.SortedKeys(r.Fields) {
			if !http1.ValidName(f) {
				return graph.BadArgument("rule."+r.Name+".headers", "rule %q: %q is no field name", r.Name, f)
			}
		}
	}
	return nil
}

type router struct {
	rules  []rule
	sniffs bool // a rule looks at server names
	hello  int64
}

type rule struct {
	name         string
	output       int
	requests     bool
	hosts, names []host
	paths        []string
	methods      []string
	fields       []field
	sources      []netip.Prefix
}

type host struct {
	name string // in lower case, without a dot at its end
	all  bool   // the names below it
}

type field struct{ name, value string }

func (r *router) add(c *Rule, output int) {
	x := rule{name: c.Name, output: output, requests: c.requests(), hosts: hosts(c.Hosts), names: hosts(c.Names), methods: c.Methods, sources: c.Sources}
	for _, p := range c.Paths {
		x.paths = append(x.paths, string(clean([]byte(p), nil)))
	}
	for _, name := range stream.SortedKeys(c.Fields) {
		x.fields = append(x.fields, field{strings.ToLower(name), c.Fields[name]})
	}
	r.sniffs = r.sniffs || len(x.names) > 0
	r.rules = append(r.rules, x)
}

func hosts(list []string) (all []host) {
	for _, h := range list {
		name, below := strings.CutPrefix(strings.ToLower(h), "*.")
		all = append(all, host{strings.TrimSuffix(name, "."), below})
	}
	return all
}

// Serve is part of stream.Stage.
func (r *router) Serve(_ context.Context, s *stream.Session) (int, error) {
	c := s.Client
	if r.sniffs && s.Req == nil && c.TLS() == nil && c.ServerName == "" {
		if err := r.sniff(c); err != nil {
			return badHello, err
		}
	}
	if x := r.choose(s); x != nil {
		return x.output, nil
	}
	return noRoute, nil
}

// choose answers the first rule that fits a session, nil if none does.
func (r *router) choose(s *stream.Session) *rule {
	var q request
	if s.Req != nil {
		q.host, _ = http1.SplitHost(s.Req.Host.In(s.Req.Buf))
		q.path = s.Req.Path.In(s.Req.Buf)
		if !isClean(q.path) {
			q.path = clean(q.path, make([]byte, 0, len(q.path)+1))
		}
	}
	for i := range r.rules {
		if x := &r.rules[i]; x.fits(s, &q) {
			return x
		}
	}
	return nil
}

type request struct{ host, path []byte }

func (x *rule) fits(s *stream.Session, q *request) bool {
	if x.requests && s.Req == nil {
		return false
	}
	if len(x.hosts) > 0 && !anyHost(x.hosts, q.host) ||
		len(x.names) > 0 && !anyHost(x.names, []byte(s.Client.ServerName)) {
		return false
	}
	if len(x.paths) > 0 {
		found := false
		for _, p := range x.paths {
			found = found || under(q.path, p)
		}
		if !found {
			return false
		}
	}
	if len(x.methods) > 0 {
		m, found := s.Req.MethodText.In(s.Req.Buf), false
		for _, want := range x.methods {
			found = found || string(m) == want
		}
		if !found {
			return false
		}
	}
	for i := range x.fields {
		if !x.fields[i].in(s.Req) {
			return false
		}
	}
	if len(x.sources) > 0 {
		for _, p := range x.sources {
			if p.Contains(s.Client.Remote.Addr()) {
				return true
			}
		}
		return false
	}
	return true
}

// in tells whether a field line of the request says so.
func (f *field) in(r *stream.Request) bool {
	for i := range r.Fields {
		l := &r.Fields[i]
		if http1.EqualFold(l.Name(r.Buf), f.name) && (f.value == "*" || string(l.Text(r.Buf)) == f.value) {
			return true
		}
	}
	return false
}

func anyHost(all []host, h []byte) bool {
	for i := range all {
		n := all[i].name
		if !all[i].all {
			if same(h, n) {
				return true
			}
		} else if k := len(h) - len(n); k > 1 && h[k-1] == '.' && same(h[k:], n) {
			return true
		}
	}
	return false
}

// same compares without regard to case; name is in lower case.
func same(h []byte, name string) bool {
	if len(h) != len(name) {
		return false
	}
	for i, c := range h {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// under tells whether path is prefix, or lies below it.
func under(path []byte, prefix string) bool {
	if len(path) < len(prefix) || string(path[:len(prefix)]) != prefix {
		return false
	}
	return len(path) == len(prefix) || strings.HasSuffix(prefix, "/") || path[len(prefix)] == '/'
}

// isClean tells whether clean would change nothing, at a glance.
func isClean(p []byte) bool {
	return len(p) > 0 && bytes.IndexByte(p, '%') < 0 && !bytes.Contains(p, []byte("//")) && !bytes.Contains(p, []byte("/."))
}

// clean appends to dst the path as backends understand it (RFC 3986 section 6.2.2):
// without dot segments and empty ones, unreserved characters decoded. It is for
// choosing a way; what goes on is the path as it came.
func clean(p, dst []byte) []byte {
	decoded := make([]byte, 0, len(p))
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c == '%' && i+2 < len(p) {
			if hi, lo := unhex(p[i+1]), unhex(p[i+2]); hi < 16 && lo < 16 {
				if d := hi<<4 | lo; unreserved(d) {
					c = d
					i += 2
				}
			}
		}
		decoded = append(decoded, c)
	}
	base := len(dst)
	folder := false // the last segment is none, "." or ".."
	for seg := range bytes.SplitSeq(decoded, []byte("/")) {
		folder = true
		switch string(seg) {
		case "", ".":
		case "..":
			if i := bytes.LastIndexByte(dst[base:], '/'); i >= 0 {
				dst = dst[:base+i]
			}
		default:
			dst = append(append(dst, '/'), seg...)
			folder = false
		}
	}
	if folder || len(dst) == base {
		dst = append(dst, '/')
	}
	return dst
}

func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 16
}

func unreserved(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '-' || c == '.' || c == '_' || c == '~'
}

// sniff finds the server name in the first message of TLS, which stays to be read.
func (r *router) sniff(c *stream.Client) error {
	for by := stream.Now() + r.hello; ; {
		name, complete, err := serverName(c.Buffered())
		if err != nil {
			return err
		}
		if complete {
			c.ServerName = strings.TrimSuffix(strings.ToLower(name), ".")
			return nil
		}
		if err := c.Fill(by); err != nil {
			return err
		}
	}
}
