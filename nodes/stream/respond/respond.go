// Package respond is the kind "respond": it answers requests by itself.
package respond

import (
	"context"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of respond.
type Config struct {
	Status int               `hcl:"status,optional" range:"200,599" doc:"status code"`
	Body   string            `hcl:"body,optional" doc:"body of the answer"`
	Type   string            `hcl:"content_type,optional" doc:"Content-Type of the body"`
	Fields map[string]string `hcl:"headers,optional" doc:"further fields of the answer"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "respond",
		Summary:  "answers requests with a fixed answer",
		Needs:    graph.HTTP,
		Defaults: Config{Status: 200, Type: "text/plain; charset=utf-8"},
		Check: func(c Config) error {
			if (c.Status == 204 || c.Status == 304) && c.Body != "" {
				return graph.BadArgument("body", "an answer of status %d has no body: leave body out", c.Status)
			}
			if !http1.ValidValue(c.Type) {
				return graph.BadArgument("content_type", "content_type = %q cannot be the value of a field", c.Type)
			}
			for _, name := range stream.SortedKeys(c.Fields) {
				v := c.Fields[name]
				if !http1.ValidName(name) || !http1.ValidValue(v) {
					return graph.BadArgument("headers", "%q: %q cannot be a field", name, v)
				}
				if http1.HopByHop.Has(http1.Identify([]byte(name))) {
					return graph.BadArgument("headers", "%s belongs to the connection, and is written as it has to be: leave it out", name)
				}
				if strings.EqualFold(name, "Content-Type") || strings.EqualFold(name, "Date") {
					return graph.BadArgument("headers", "%s would stand there twice: leave it out; content_type says the one", name)
				}
			}
			return nil
		},
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			r := &responder{status: c.Status, body: []byte(c.Body)}
			if c.Body != "" {
				r.fields = http1.AppendField(r.fields, "Content-Type", c.Type)
			}
			for _, name := range stream.SortedKeys(c.Fields) {
				r.fields = http1.AppendField(r.fields, name, c.Fields[name])
			}
			return r, nil
		},
	})
}

type responder struct {
	status int
	fields []byte
	body   []byte
}

// Serve is part of stream.Stage.
func (r *responder) Serve(_ context.Context, s *stream.Session) (int, error) {
	fields := http1.AppendField(append(make([]byte, 0, len(r.fields)+48), r.fields...), "Date", time.Now().UTC().Format(stream.TimeFormat))
	return stream.Done, stream.Answer(s, r.status, fields, r.body)
}
