package nodetest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// A Stage is one stream node by itself. Sessions of tests go through Serve, from any
// number of goroutines.
type Stage struct {
	T       testing.TB
	Kind    *graph.Kind
	Outputs []graph.Output
	Env     *graph.Env
	Node    stream.Stage
	// Store has the pools. The node sees what Publish hands to it, and nothing else
	// but the status of members, which is there at once.
	Store *state.Store

	counters []atomic.Uint64
	watch    []func(*state.Snapshot)
	mu       sync.Mutex
	backends map[netip.AddrPort]*stream.Backend
}

// NewStage makes a node of a registered kind. configure may be nil; C is the kind's
// configuration.
func NewStage[C any](t testing.TB, kind string, configure func(*C), pools ...state.PoolSpec) *Stage {
	t.Helper()
	k := graph.Lookup(kind)
	if k == nil {
		t.Fatalf("kind %q is not registered", kind)
	}
	s := &Stage{T: t, Kind: k, Store: state.NewStore(), counters: make([]atomic.Uint64, len(k.Counters)), backends: map[netip.AddrPort]*stream.Backend{}}
	t.Cleanup(s.Store.Close)
	if err := s.Store.Apply(state.Spec{Pools: pools}); err != nil {
		t.Fatal(err)
	}
	s.Env = &graph.Env{
		Graph: "test", Node: kind, State: s.Store.Cell(), Log: zap.NewNop(),
		Watch: func(f func(*state.Snapshot)) { s.watch = append(s.watch, f); f(s.Store.Cell().Load()) },
		Count: func(i int, n uint64) { s.counters[i].Add(n) },
		Backends: func(a netip.AddrPort) *stream.Backend {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.backends[a] == nil {
				s.backends[a] = &stream.Backend{Addr: a}
			}
			return s.backends[a]
		},
	}
	s.Node = build(s, configure)
	t.Cleanup(func() { closeStage(s.Node) }) // who follows files holds one of the few inotify instances that a user has
	return s
}

func closeStage(n stream.Stage) {
	if c, ok := n.(graph.StageCloser); ok {
		_ = c.Close()
	}
}

// Reload makes the node anew, with what is configured now; it inherits as over a
// reload.
func Reload[C any](s *Stage, configure func(*C)) {
	s.T.Helper()
	old := s.Node
	s.watch = nil
	s.Node = build(s, configure)
	if i, ok := s.Node.(graph.StageInheritor); ok {
		i.Inherit(old)
	}
	closeStage(old)
}

func build[C any](s *Stage, configure func(*C)) stream.Stage {
	s.T.Helper()
	cfg, ok := s.Kind.NewConfig().(*C)
	if !ok {
		s.T.Fatalf("kind %q is configured by %T", s.Kind.Name, s.Kind.NewConfig())
	}
	if configure != nil {
		configure(cfg)
	}
	if err := s.Kind.CheckConfig(cfg); err != nil {
		s.T.Fatalf("%s: %v", s.Kind.Name, err)
	}
	s.Outputs = s.Kind.OutputsOf(cfg)
	node, err := s.Kind.Streams(cfg, s.Env)
	if err != nil {
		s.T.Fatalf("%s: %v", s.Kind.Name, err)
	}
	return node
}

// Publish has the node see the store as it is now.
func (s *Stage) Publish() {
	s.Store.Flush()
	for _, f := range s.watch {
		f(s.Store.Cell().Load())
	}
}

// Serve has the node look at x and answers the output, "done" for none.
func (s *Stage) Serve(x *stream.Session) string {
	o, _ := s.Try(x)
	return o
}

// Try is Serve, and answers what the node said of it, too.
func (s *Stage) Try(x *stream.Session) (output string, err error) {
	o, err := s.Node.Serve(s.T.Context(), x)
	if o == stream.Done {
		return "done", err
	}
	if o < 0 || o >= len(s.Outputs) {
		s.T.Errorf("%s answers output %d of %d", s.Kind.Name, o, len(s.Outputs))
		return "", err
	}
	return s.Outputs[o].Name, err
}

// Counter answers the node's counter of that name.
func (s *Stage) Counter(name string) uint64 {
	s.T.Helper()
	for i, c := range s.Kind.Counters {
		if c.Name == name {
			return s.counters[i].Load()
		}
	}
	s.T.Fatalf("%s has no counter %q", s.Kind.Name, name)
	return 0
}

// Gauge answers the node's gauge of that name.
func (s *Stage) Gauge(name string) float64 {
	s.T.Helper()
	v, ok := s.Node.(graph.Gauger).Gauges()[name]
	if !ok {
		s.T.Fatalf("%s has no gauge %q", s.Kind.Name, name)
	}
	return v
}

// Backends answers so many backends of a pool, b0, b1 and so on, each with an address
// of its own and port 80.
func Backends(n int) (all []state.BackendSpec) {
	for i := range n {
		all = append(all, state.BackendSpec{Name: fmt.Sprintf("b%d", i), Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Weight: 100, Port: 80})
	}
	return all
}

// Connection answers a session of a connection of Client4, on which the client said
// what is in said, and then ended.
func Connection(said []byte) *stream.Session {
	c := &stream.Client{Conn: stream.NewConn(&end{said: bytes.NewReader(said)}), Listener: "in"}
	c.Peer, c.Local = netip.AddrPortFrom(Client4, 40000), netip.AddrPortFrom(VIP4, 80)
	c.Remote = c.Peer
	s := new(stream.Session)
	s.Reset(c)
	return s
}

// Request answers a session of the request with that head, whose lines end in \n; nil
// if it is malformed, and no node would see it. The answer is in Answered.
func Request(head string) *stream.Session {
	b := bytes.ReplaceAll([]byte(head), []byte("\n"), []byte("\r\n"))
	r := &http1.Request{}
	r.Reset()
	limits := http1.DefaultLimits
	if complete, err := r.Parse(b, &limits); err != nil || !complete {
		return nil
	}
	s := Connection(nil)
	s.Req = &stream.Request{Request: r, Buf: b, Proto: 11, Responder: new(Answer)}
	return s
}

// Answered answers what the request of s was answered.
func Answered(s *stream.Session) *Answer { return s.Req.Responder.(*Answer) }

// An Answer takes the answer to a request: a stream.Responder without a client. What
// the nodes of tests do not ask of one is nil.
type Answer struct {
	stream.Responder
	Status int
	Fields string // lines of our own, ended by \r\n
	Body   string
	Bare   bool // it has no body, whatever its fields say
	begun  bool
}

// Begin is part of stream.Responder.
func (a *Answer) Begin(r *stream.Response) error {
	a.Status, a.Fields, a.Bare, a.begun = r.Status, string(r.Fields), r.Bodiless, true
	return nil
}

// End is part of stream.Responder.
func (a *Answer) End(p, _ []byte) error {
	a.Body += string(p)
	return nil
}

// Begun is part of stream.Responder.
func (a *Answer) Begun() bool { return a.begun }

// Gone is part of stream.Responder.
func (a *Answer) Gone() bool { return false }

// end is the end of a connection whose peer has said all that it will.
type end struct {
	net.Conn
	said *bytes.Reader
}

func (e *end) Read(p []byte) (int, error)       { return e.said.Read(p) }
func (e *end) Write(p []byte) (int, error)      { return len(p), nil }
func (e *end) Close() error                     { return nil }
func (e *end) LocalAddr() net.Addr              { return nil }
func (e *end) RemoteAddr() net.Addr             { return nil }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

var _ io.ReadWriteCloser = (*end)(nil)
