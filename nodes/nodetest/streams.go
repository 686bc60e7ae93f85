package nodetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/runtime/streams"
)

// Streams is the stream blocks of a file at work, on sockets of the loopback.
type Streams struct {
	T      testing.TB
	Store  *state.Store
	Engine *streams.Engine
}

// RunStreams checks a file and runs its stream blocks until the test ends. Its health
// blocks do not run: tests set what they would find.
func RunStreams(t testing.TB, text string) *Streams {
	t.Helper()
	r := &Streams{T: t, Store: state.NewStore()}
	f := r.load(text)
	if err := r.Store.Apply(f.Spec); err != nil {
		t.Fatal(err)
	}
	e, err := streams.New(f.Graphs, streams.Options{State: r.Store.Cell(), Watch: r.Store.Watch, Log: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))})
	if err == nil {
		err = e.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Engine = e
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.Stop(ctx)
		r.Store.Close()
	})
	return r
}

func (r *Streams) load(text string) *graph.File {
	r.T.Helper()
	f, diags := check(text)
	if diags.HasErrors() {
		r.T.Fatalf("%v\n%s", diags, text)
	}
	return f
}

func check(text string) (*graph.File, hcl.Diagnostics) {
	f, diags := lang.LoadBytes("test.hcl", []byte(text), lang.Options{})
	if !diags.HasErrors() {
		diags = append(diags, graph.Check(f)...)
	}
	return f, diags
}

// Reload takes over another file.
func (r *Streams) Reload(text string) {
	r.T.Helper()
	f := r.load(text)
	if err := r.Store.Apply(f.Spec); err != nil {
		r.T.Fatal(err)
	}
	if err := r.Engine.Swap(f.Graphs); err != nil {
		r.T.Fatal(err)
	}
}

// Addr answers where a node of stream "s" listens.
func (r *Streams) Addr(node string) string {
	r.T.Helper()
	a, ok := r.Engine.Bound("s", node)
	if !ok {
		r.T.Fatalf("node %s does not listen", node)
	}
	return a.String()
}

// Output answers how many sessions left a node of stream "s" by an output.
func (r *Streams) Output(node, output string) uint64 {
	r.T.Helper()
	for _, n := range r.node(node).Outputs {
		if n.Name == output {
			return n.Packets
		}
	}
	r.T.Fatalf("no output %s.%s", node, output)
	return 0
}

// Counter answers a counter of a node of stream "s".
func (r *Streams) Counter(node, name string) uint64 {
	r.T.Helper()
	n := r.node(node)
	return n.Counter(name)
}

// Gauge answers a gauge of a node of stream "s".
func (r *Streams) Gauge(node, name string) float64 {
	r.T.Helper()
	return r.node(node).Gauges[name]
}

func (r *Streams) node(name string) graph.NodeStats {
	r.T.Helper()
	for _, s := range r.Engine.Stats() {
		for _, n := range s.Nodes {
			if s.Stream == "s" && n.Name == name {
				return n
			}
		}
	}
	r.T.Fatalf("no node %s", name)
	return graph.NodeStats{}
}

// Quiet waits until nothing is in flight, and fails the test if something stays.
func (r *Streams) Quiet() {
	r.T.Helper()
	Eventually(r.T, func() error {
		for _, s := range r.Engine.Stats() {
			if err := s.CheckConservation(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Eventually waits until f answers nil, and fails the test if that takes too long.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	for by := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(by) {
			t.Fatal(err)
		}
	}
}

// A Peer is a client of a Streams, or a backend's end of a connection, that speaks
// byte by byte. It gives up after 30 seconds.
type Peer struct {
	T testing.TB
	net.Conn
	R *bufio.Reader
}

// Dial connects to a node.
func (r *Streams) Dial(node string) *Peer {
	r.T.Helper()
	c, err := net.Dial("tcp", r.Addr(node))
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = c.Close() })
	return newPeer(r.T, c)
}

func newPeer(t testing.TB, c net.Conn) *Peer {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return &Peer{t, c, bufio.NewReader(c)}
}

// Say sends text; an error shows in what is read.
func (p *Peer) Say(text string) { _, _ = io.WriteString(p.Conn, text) }

// Ask sends the head of a request, whose lines end in \n, and answers the response
// with its body read, as status, a blank and the body; or how the connection ended.
func (p *Peer) Ask(head string) string {
	res, body := p.Get(head)
	if res == nil {
		return body
	}
	return fmt.Sprintf("%d %s", res.StatusCode, body)
}

// Get is Ask, and answers the response; nil if there is none, and body says why.
func (p *Peer) Get(head string) (res *http.Response, body string) {
	method, _, _ := strings.Cut(head, " ")
	p.Say(strings.ReplaceAll(head, "\n", "\r\n"))
	res, err := http.ReadResponse(p.R, &http.Request{Method: method})
	if err != nil {
		return nil, ended(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res, string(b) + "«" + ended(err) + "»"
	}
	return res, string(b)
}

// Rest reads up to the end and answers what came, and how it ended if not well.
func (p *Peer) Rest() string {
	b, err := io.ReadAll(p.R)
	if err != nil {
		return string(b) + "«" + ended(err) + "»"
	}
	return string(b)
}

func ended(err error) string {
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return "end"
	case strings.Contains(err.Error(), "reset"):
		return "reset"
	}
	return err.Error()
}

// Backend runs a backend that f serves, one goroutine for each connection, and answers
// its address.
func Backend(t testing.TB, f func(*Peer)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(newPeer(t, c))
			}()
		}
	}()
	return l.Addr().String()
}

// HTTPBackend runs a backend that answers requests, and answers its address.
func HTTPBackend(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: f}
	t.Cleanup(func() { _ = s.Close() })
	go func() { _ = s.Serve(l) }()
	return l.Addr().String()
}

// Pool answers a pool block "web" over backends at addresses, b1, b2 and so on, with
// further arguments.
func Pool(arguments string, addrs ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool \"web\" {\n%s\n", arguments)
	for i, a := range addrs {
		host, port, _ := net.SplitHostPort(a)
		fmt.Fprintf(&b, "backend \"b%d\" {\naddress = %q\nport = %s\n}\n", i+1, host, port)
	}
	return b.String() + "}\n"
}

// Listen is a listen node "in" on a port of the loopback that is free.
const Listen = "node \"listen\" \"in\" { address = \"127.0.0.1:0\" }\n"

// Example answers the example of README.md in the test's folder, with each of pairs
// replaced by the one behind it; the first has to stand there.
func Example(t testing.TB, pairs ...string) string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## Example\n")
	_, text, _ = strings.Cut(text, "```hcl\n")
	text, _, ok := strings.Cut(text, "```")
	if !ok || text == "" {
		t.Fatal("README.md has no example")
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the example has no %q:\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// A Wrong is what a node's block must not say.
type Wrong struct {
	Argument string // the path, as in rule.host
	Text     string // what stands in the block; the argument has a line of its own
	Told     string // a part of what is told
}

// WrongArguments sees to it that check refuses each of wrong, with a diagnostic at the
// line of its argument, and that each argument of the kind is among them. The block
// has the arguments in required, too, and takes each of good.
func WrongArguments(t *testing.T, kind, required string, good []string, wrong []Wrong) {
	t.Helper()
	file := func(text string) (string, int) {
		head := "pool \"web\" {\nbackend \"b1\" {\naddress = \"192.0.2.1\"\nport = 80\n}\n}\nstream \"s\" {\nnode \"" + kind + "\" \"it\" {\n" + required + "\n"
		return head + text + "\n}\n}\n", strings.Count(head, "\n")
	}
	for _, g := range good {
		text, _ := file(g)
		if _, diags := lang.LoadBytes("test.hcl", []byte(text), lang.Options{}); diags.HasErrors() {
			t.Errorf("%s is refused: %v", g, diags)
		}
	}
	seen := map[string]bool{}
	for _, w := range wrong {
		seen[w.Argument] = true
		text, before := file(w.Text)
		_, diags := lang.LoadBytes("test.hcl", []byte(text), lang.Options{})
		lines := strings.Split(w.Text, "\n")
		name := w.Argument[strings.LastIndexByte(w.Argument, '.')+1:]
		told := false
		for _, d := range diags {
			n := d.Subject.Start.Line - 1 - before
			told = told || d.Severity == hcl.DiagError && n >= 0 && n < len(lines) && strings.Contains(lines[n], name) && strings.Contains(d.Summary+" "+d.Detail, w.Told)
		}
		if !told {
			t.Errorf("%s: nothing at its line says %q of\n%s\n%v", w.Argument, w.Told, w.Text, diags)
		}
	}
	var all func(prefix string, args []graph.Argument)
	all = func(prefix string, args []graph.Argument) {
		for _, a := range args {
			if a.Type == "label" {
				continue
			}
			if len(a.Arguments) > 0 {
				all(prefix+a.Name+".", a.Arguments)
			} else if !seen[prefix+a.Name] {
				t.Errorf("no test has a wrong %s%s", prefix, a.Name)
			}
		}
	}
	all("", graph.Describe(graph.Lookup(kind)).Arguments)
}
