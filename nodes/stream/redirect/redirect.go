// Package redirect is the kind "redirect": it sends clients elsewhere.
package redirect

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of redirect.
type Config struct {
	To     string `hcl:"to" doc:"where to, with {host} for the request's host without its port, {path}, {query} without its question mark, and {target} for both as they came"`
	Status int    `hcl:"status,optional" enum:"301,302,303,307,308" doc:"status code; 308 and 307 keep method and body"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "redirect",
		Summary:  "sends clients to another address",
		Needs:    graph.HTTP,
		Outputs:  []graph.Output{noHost: {Name: "no_host", Else: graph.Drop, Status: 400, Doc: "the address needs a host, and the request has none"}},
		Defaults: Config{Status: 308},
		Check: func(c Config) error {
			parts, err := parse(c.To)
			if err != nil {
				return graph.BadArgument("to", "%w", err)
			}
			if len(parts) == 0 {
				return graph.BadArgument("to", "to is empty: write an address, as in \"https://{host}{target}\"")
			}
			// What a client sends must not become the authority.
			if f := parts[0].word; f != "" && f != "path" && f != "target" {
				return graph.BadArgument("to", "to = %q begins with what clients send: write the scheme first, as in \"https://{host}{target}\"", c.To)
			}
			return nil
		},
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			parts, err := parse(c.To)
			return &redirector{parts, c.Status}, err
		},
	})
}

const noHost = 0

// A part is text, or a word that stands for a piece of the request.
type part struct{ text, word string }

func parse(to string) (parts []part, err error) {
	for to != "" {
		i := strings.IndexByte(to, '{')
		if i < 0 {
			i = len(to)
		}
		if i > 0 {
			text := to[:i]
			if !http1.ValidValue(strings.Trim(text, " ")) || strings.Contains(text, " ") {
				return nil, fmt.Errorf("to has %q, which cannot stand in an address", text)
			}
			parts = append(parts, part{text: text})
			to = to[i:]
			continue
		}
		word, rest, ok := strings.Cut(to[1:], "}")
		switch {
		case !ok:
			return nil, fmt.Errorf("to has a { that is not closed")
		case word != "host" && word != "path" && word != "query" && word != "target":
			return nil, fmt.Errorf("to has {%s}: write {host}, {path}, {query} or {target}", word)
		}
		parts = append(parts, part{word: word})
		to = rest
	}
	return parts, nil
}

type redirector struct {
	parts  []part
	status int
}

// Serve is part of stream.Stage.
func (d *redirector) Serve(_ context.Context, s *stream.Session) (int, error) {
	f, ok := d.appendTo(append(make([]byte, 0, 256), "Location: "...), s.Req)
	if !ok {
		return noHost, nil
	}
	f = append(f, "\r\n"...)
	f = http1.AppendField(f, "Date", time.Now().UTC().Format(stream.TimeFormat))
	return stream.Done, stream.Answer(s, d.status, f, nil)
}

// appendTo appends the address that a request is sent to; false if it has no host and
// needs one.
func (d *redirector) appendTo(f []byte, r *stream.Request) ([]byte, bool) {
	b := r.Buf
	path := r.Path.In(b)
	if len(path) == 0 {
		path = []byte("/")
	}
	for i, p := range d.parts {
		switch p.word {
		case "":
			f = append(f, p.text...)
		case "host":
			name, _ := http1.SplitHost(r.Host.In(b))
			if len(name) == 0 {
				return nil, false
			}
			f = append(f, name...)
		case "query":
			f = append(f, r.Query.In(b)...)
		default:
			// At the beginning, more than one slash would be another authority.
			if i == 0 {
				f, path = append(f, '/'), bytes.TrimLeft(path, "/\\")
			}
			f = append(f, path...)
			if p.word == "target" && r.Query.Start > 0 {
				f = append(append(f, '?'), r.Query.In(b)...)
			}
		}
	}
	return f, true
}
