package streams

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// A Question is a session that is only asked about.
type Question struct {
	Stream, Listener string
	Client, Local    netip.AddrPort
	ServerName       string // of TLS
	// Head is a request's; nil for a connection.
	Head []byte
}

// An Answer is what would become of it.
type Answer struct {
	Steps   []Step
	Backend netip.AddrPort // the zero value for none, or if only chance can tell
	Route   string
	// Status is what a request would be answered with, if not by a backend.
	Status int
	// Node is where it would end, Reason the reason, if there is one.
	Node, Reason string
	// Fault is what is wrong with the request: it would come to no node.
	Fault error
}

// Explain answers what would become of a session at this moment. It changes nothing.
func (e *Engine) Explain(q Question) (a Answer, err error) {
	var b *block
	for _, k := range *e.view.Load() {
		if k.name == q.Stream {
			b = k
		}
	}
	if b == nil {
		return a, fmt.Errorf("there is no stream %q", q.Stream)
	}
	n := b.prog.Load().byName[q.Listener]
	if n == nil || !n.inst.Kind.Source {
		return a, fmt.Errorf("stream %q has no listener %q", q.Stream, q.Listener)
	}
	s := new(stream.Session)
	s.Reset(&stream.Client{Listener: q.Listener, Remote: q.Client, Peer: q.Client, Local: q.Local, ServerName: q.ServerName})
	s.Begun = stream.Now()
	for {
		o, says := n.explain(s)
		step := n.step()
		step.Says = says
		if n.routes {
			a.Route = n.inst.Name
		}
		var x *out
		if o != stream.Done {
			x = &n.outs[o]
			step.Output = x.name
		}
		if s.Backend != nil && s.Backend.Addr != a.Backend {
			a.Backend = s.Backend.Addr
			step.Backend = a.Backend
		}
		a.Steps = append(a.Steps, step)
		if x == nil || x.to == nil {
			a.Node, a.Status = n.inst.Name, s.Status
			if x != nil {
				a.Reason, a.Status = x.name, x.status
			}
			return a, nil
		}
		if x.http && s.Req == nil {
			if q.Head == nil {
				return a, fmt.Errorf("listener %q of stream %q speaks HTTP: ask about a request", q.Listener, q.Stream)
			}
			if s.Req, a.Fault = question(q.Head, s.Client.HTTP); a.Fault != nil {
				a.Node, a.Reason, a.Status = q.Listener, "bad_request", 400
				if f, ok := a.Fault.(*http1.Error); ok {
					a.Status = f.Status
				}
				return a, nil
			}
		}
		n = x.to
	}
}

// explain says what one node would do.
func (n *node) explain(s *stream.Session) (o int, says string) {
	if x, ok := n.stage.(graph.StageExplainer); ok {
		return x.Explain(s)
	}
	for i := range n.outs {
		if n.outs[i].name == "next" {
			return i, ""
		}
	}
	return stream.Done, ""
}

// question reads a head as that of a request.
func question(head []byte, settings *stream.HTTP) (*stream.Request, error) {
	limits := http1.DefaultLimits
	if settings != nil {
		limits = settings.Limits
	}
	r := new(http1.Request)
	r.Reset()
	complete, err := r.Parse(head, &limits)
	if err != nil {
		return nil, err
	}
	if !complete {
		return nil, http1.ErrHeadTooLarge
	}
	return &stream.Request{Request: r, Buf: head[:r.Size], Proto: 10 + int(r.Minor)}, nil
}

// Discard ends an engine that was never started.
func (e *Engine) Discard() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancel()
	for _, b := range e.blocks {
		b.prog.Load().discard()
	}
}

// passer lets all pass.
type passer struct{}

// Serve is part of stream.Stage.
func (passer) Serve(context.Context, *stream.Session) (int, error) { return 0, nil }

// A Door is where sessions come in.
type Door struct {
	Stream, Node string
	// Address is as it is bound, or as the file has it if it is not.
	Address netip.AddrPort
}

// Doors answers all listeners, by stream and node.
func (e *Engine) Doors() (all []Door) {
	for _, b := range *e.view.Load() {
		for _, n := range b.prog.Load().nodes {
			for _, l := range n.inst.Kind.Listens(n.inst.Config) {
				d := Door{b.name, n.inst.Name, l.Address}
				if a := b.listen(n.inst.Name).bound.Load(); a != nil {
					d.Address = *a
				}
				all = append(all, d)
			}
		}
	}
	return all
}
