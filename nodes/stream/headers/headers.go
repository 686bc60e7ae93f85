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
			if err := c.Request.check("request"); err != nil {
				return err
			}
			if err := c.Response.check("response"); err != nil || c.RequestID == "" {
				return err
			}
			return checkName("request_id", c.RequestID)
		},
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			return &editor{&stream.Edits{Request: c.Request.build(), Response: c.Response.build()}, c.RequestID}, nil
		},
	})
}

// fixed is what is written as it has to be.
const fixed = http1.HopByHop | http1.Managed | 1<<http1.Host | 1<<http1.Expect

func checkName(argument, n string) error {
	if !http1.ValidName(n) {
		return graph.BadArgument(argument, "%q is no field name", n)
	}
	if fixed.Has(http1.Identify([]byte(n))) {
		return graph.BadArgument(argument, "%s is framing, belongs to the connection, or tells of the client, and is written as it has to be: leave it out", n)
	}
	return nil
}

func (e Edits) check(block string) error {
	fields := func(argument string, m map[string]string) error {
		for _, n := range stream.SortedKeys(m) {
			if err := checkName(argument, n); err != nil {
				return err
			}
			if !http1.ValidValue(m[n]) {
				return graph.BadArgument(argument, "%s: %q cannot be the value of a field", n, m[n])
			}
		}
		return nil
	}
	if err := fields(block+".set", e.Set); err != nil {
		return err
	}
	if err := fields(block+".add", e.Add); err != nil {
		return err
	}
	for i, n := range e.Remove {
		if err := checkName(fmt.Sprintf("%s.remove[%d]", block, i), n); err != nil {
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
