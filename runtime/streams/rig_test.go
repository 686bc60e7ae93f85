package streams_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	_ "github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	"github.com/lbgraph/lbgraph/runtime/streams"
)

// rig is a file's stream blocks at work, with the controls beside them.
type rig struct {
	t        testing.TB
	store    *state.Store
	engine   *streams.Engine
	controls []graph.Control
	watchers sync.Map
	stopped  bool
}

func (r *rig) Snapshot() *state.Snapshot                { return r.store.Cell().Load() }
func (r *rig) SetHealth(t state.Target, h state.Health) { r.store.SetHealth(t, h) }
func (r *rig) WatchTargets(f func()) func() {
	k := new(int)
	r.watchers.Store(k, f)
	return func() { r.watchers.Delete(k) }
}

func load(t testing.TB, text string) *graph.File {
	t.Helper()
	f, diags := lang.LoadBytes("test.hcl", []byte(text), lang.Options{})
	if !diags.HasErrors() {
		diags = graph.Check(f)
	}
	if diags.HasErrors() {
		var b strings.Builder
		_ = lang.WriteDiagnostics(&b, diags, map[string][]byte{"test.hcl": []byte(text)}, false)
		t.Fatal(b.String())
	}
	return f
}

// run runs a file until the test ends.
func run(t testing.TB, text string) *rig {
	t.Helper()
	f := load(t, text)
	log := zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	r := &rig{t: t, store: state.NewStore()}
	if err := r.store.Apply(f.Spec); err != nil {
		t.Fatal(err)
	}
	var err error
	r.engine, err = streams.New(f.Graphs, streams.Options{State: r.store.Cell(), Watch: r.store.Watch, Host: r, Log: log})
	if err == nil {
		err = r.engine.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range f.Controls {
		ctl, err := c.Kind.Control(c.Config, &graph.Env{Node: c.Name, State: r.store.Cell(), Host: r, Log: log})
		if err == nil {
			err = ctl.Start(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
		r.controls = append(r.controls, ctl)
	}
	t.Cleanup(func() {
		r.stop(time.Second)
		for _, c := range r.controls {
			_ = c.Stop(context.Background())
		}
		r.store.Close()
	})
	return r
}

func (r *rig) stop(d time.Duration) error {
	if r.stopped {
		return nil
	}
	r.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return r.engine.Stop(ctx)
}

// addr is where a node of the stream "s" listens.
func (r *rig) addr(node string) string {
	r.t.Helper()
	a, ok := r.engine.Bound("s", node)
	if !ok {
		r.t.Fatalf("node %s does not listen", node)
	}
	return a.String()
}

func (r *rig) node(name string) graph.NodeStats {
	for _, n := range r.engine.Stats()[0].Nodes {
		if n.Name == name {
			return n
		}
	}
	r.t.Fatalf("no node %s", name)
	return graph.NodeStats{}
}

func (r *rig) output(node, output string) uint64 {
	for _, o := range r.node(node).Outputs {
		if o.Name == output {
			return o.Packets
		}
	}
	r.t.Fatalf("no output %s.%s", node, output)
	return 0
}

func (r *rig) counter(node, name string) uint64 {
	n := r.node(node)
	return n.Counter(name)
}

// quiet waits until nothing is in flight, and fails the test if something stays.
func (r *rig) quiet() {
	r.t.Helper()
	eventually(r.t, "nothing in flight", func() error {
		for _, s := range r.engine.Stats() {
			if err := s.CheckConservation(); err != nil {
				return err
			}
		}
		return nil
	})
}

func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// backends answers backend blocks for addresses.
func backends(addrs ...string) string {
	var b strings.Builder
	for i, a := range addrs {
		ap := netip.MustParseAddrPort(a)
		fmt.Fprintf(&b, "  backend \"b%d\" {\n    address = %q\n    port = %d\n  }\n", i+1, ap.Addr(), ap.Port())
	}
	return b.String()
}

// simple is a file with one HTTP listener, round robin and a proxy.
func simple(nodes string, addrs ...string) string {
	for _, k := range []string{"listen\" \"in", "balance\" \"pick", "proxy\" \"out"} {
		if !strings.Contains(nodes, k) {
			kind, name, _ := strings.Cut(k, "\" \"")
			args := map[string]string{"listen": "address = \"127.0.0.1:0\"", "balance": "pool = pool.web", "proxy": ""}[kind]
			nodes += fmt.Sprintf("\n  node %q %q { %s }", kind, name, args)
		}
	}
	return fmt.Sprintf("pool \"web\" {\n  table_size = 251\n%s}\nstream \"s\" {\n  path { main = [in, pick, out] }\n%s\n}\n", backends(addrs...), nodes)
}

// script is a backend that does what a test says with each connection.
type script struct {
	net.Listener
	wg sync.WaitGroup
}

// serve answers a backend whose connections f handles, one goroutine each.
func serve(t testing.TB, f func(c *peer)) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{Listener: l}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				defer c.Close()
				f(newPeer(t, c))
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return s
}

func (s *script) addr() string { return s.Addr().String() }

// peer is one end of a raw connection. Its methods answer errors as text, for the
// peer may be a backend's goroutine.
type peer struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func newPeer(t testing.TB, c net.Conn) *peer {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return &peer{t, c, bufio.NewReader(c)}
}

func dial(t testing.TB, addr string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newPeer(t, c)
}

func (p *peer) send(text string) { _, _ = io.WriteString(p.Conn, text) }

// head reads up to an empty line.
func (p *peer) head() string {
	var b strings.Builder
	for {
		line, err := p.r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			fmt.Fprintf(&b, "«%v»", short(err))
			return b.String()
		}
		if line == "\r\n" {
			return b.String()
		}
	}
}

// read reads n bytes.
func (p *peer) read(n int) string {
	b := make([]byte, n)
	k, err := io.ReadFull(p.r, b)
	if err != nil {
		return string(b[:k]) + "«" + short(err) + "»"
	}
	return string(b)
}

// rest reads up to the end, and says how it was: a reset or a time-out.
func (p *peer) rest() string {
	b, err := io.ReadAll(p.r)
	if err != nil {
		return string(b) + "«" + short(err) + "»"
	}
	return string(b)
}

// silent tells whether nothing comes for a while.
func (p *peer) silent(d time.Duration) bool {
	_ = p.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = p.SetReadDeadline(time.Now().Add(20 * time.Second)) }()
	b, err := p.r.Peek(1)
	return len(b) == 0 && isTimeout(err)
}

func isTimeout(err error) bool {
	var n net.Error
	return err != nil && asNetError(err, &n) && n.Timeout()
}

func asNetError(err error, n *net.Error) bool {
	e, ok := err.(net.Error)
	*n = e
	return ok
}

func short(err error) string {
	switch {
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return "end"
	case isTimeout(err):
		return "time-out"
	case strings.Contains(err.Error(), "reset"):
		return "reset"
	}
	return err.Error()
}

// crlf makes a message of lines.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
