// Package headers is the kind "headers": it changes fields of requests and answers.
package headers

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of headers.
type Config struct {
	Request   Edits  `hcl:"request,block" doc:"changes to requests, as backends get them"`
	Response  Edits  `hcl:"response,block" doc:"changes to answers, as clients get them"`
	RequestID string `hcl:"request_id,optional" doc:"field that gives every request an id, for backends, for clients and for the log; one that a trusted proxy has given stays"`
}

// Edits is changes to fields.
type Edits struct {
	Set    map[string]string `hcl:"set,optional" doc:"fields that take the place of those of the same name"`
	Add    map[string]string `hcl:"add,optional" doc:"fields that are added"`
	Remove []string          `hcl:"remove,optional" doc:"fields that are taken away"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "headers",
		Summary: "sets, adds and removes fields of requests and answers",
		Needs:   graph.HTTP,
		Outputs: []graph.Output{{Name: "next", Doc: "requests"}},
		Check: func(c Config) error {
			for _, e := range []Edits{c.Request, c.Response, {Remove: ids(c)}} {
				if err := e.check(); err != nil {
					return err
				}
			}
			return nil
		},
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			return &editor{&stream.Edits{Request: c.Request.build(), Response: c.Response.build()}, c.RequestID}, nil
		},
	})
}

func ids(c Config) []string {
	if c.RequestID == "" {
		return nil
	}
	return []string{c.RequestID}
}

// fixed is what is written as it has to be.
const fixed = http1.HopByHop | http1.Managed | 1<<http1.Host | 1<<http1.Expect

func (e Edits) check() error {
	name := func(n string) error {
		if !http1.ValidName(n) {
			return fmt.Errorf("%q is no field name", n)
		}
		if fixed.Has(http1.Identify([]byte(n))) {
			return fmt.Errorf("%s is framing, belongs to the connection, or tells of the client, and is written as it has to be: leave it out", n)
		}
		return nil
	}
	for _, m := range []map[string]string{e.Set, e.Add} {
		for n, v := range m {
			if err := name(n); err != nil {
				return err
			}
			if !http1.ValidValue(v) {
				return fmt.Errorf("%s: %q cannot be the value of a field", n, v)
			}
		}
	}
	for _, n := range e.Remove {
		if err := name(n); err != nil {
			return err
		}
	}
	return nil
}

func (e Edits) build() (f stream.FieldEdits) {
	for _, n := range e.Remove {
		f.Drop = append(f.Drop, strings.ToLower(n))
	}
	for _, n := range stream.SortedKeys(e.Set) {
		f.Drop = append(f.Drop, strings.ToLower(n))
		f.Add = http1.AppendField(f.Add, n, e.Set[n])
	}
	for _, n := range stream.SortedKeys(e.Add) {
		f.Add = http1.AppendField(f.Add, n, e.Add[n])
	}
	return f
}

type editor struct {
	edits *stream.Edits
	id    string
}

// Serve is part of stream.Stage.
func (e *editor) Serve(_ context.Context, s *stream.Session) (int, error) {
	s.Edits = append(s.Edits, e.edits)
	if e.id != "" {
		s.ID = e.given(s)
		if s.ID == "" {
			var b [16]byte
			for i := 0; i < len(b); i += 8 {
				v := rand.Uint64()
				for k := range 8 {
					b[i+k] = byte(v >> (8 * k))
				}
			}
			s.ID = hex.EncodeToString(b[:])
		}
		f := stream.FieldEdits{Drop: []string{strings.ToLower(e.id)}, Add: http1.AppendField(nil, e.id, s.ID)}
		s.Edits = append(s.Edits, &stream.Edits{Request: f, Response: f})
	}
	return 0, nil
}

// given answers the id that a trusted proxy gave.
func (e *editor) given(s *stream.Session) string {
	if !s.Client.Trusted {
		return ""
	}
	name := strings.ToLower(e.id)
	for i := range s.Req.Fields {
		if f := &s.Req.Fields[i]; http1.EqualFold(f.Name(s.Req.Buf), name) {
			return string(f.Text(s.Req.Buf))
		}
	}
	return ""
}
