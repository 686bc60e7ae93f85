package bgp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// A speaker in a namespace is this test binary in a process of its own: there is one
// server in a process, and it connects from whatever thread it likes.
const asNode = "LBGRAPH_TEST_BGP_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(asNode) != "" {
		if err := nodeMain(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Tests with routers wait most of their time, so more than cores may run.
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// decode reads the body of a bgp block.
func decode(text string) (Config, error) {
	f, diags := hclsyntax.ParseConfig([]byte(text), "bgp.hcl", hcl.InitialPos)
	c := Defaults()
	if !diags.HasErrors() {
		diags = append(diags, conf.Decode(f.Body, nil, &c)...)
	}
	if diags.HasErrors() {
		return c, diags
	}
	return c, check(c)
}

// A command is what a test asks of a node: one line of JSON; so is the answer.
type command struct {
	Do     string
	Block  string      // start, reconfigure: the bgp block's body
	Spec   *state.Spec // start, spec
	Target state.Target
	Health state.Health
	Sick   string // sick: what the daemon says of itself
	On     bool   // drained
}

type answer struct {
	Error      string
	Status     Status
	Goroutines int
	Took       time.Duration
}

// host is the daemon as a control sees it.
type host struct {
	mu   sync.Mutex
	sick string
}

func (h *host) Healthy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sick != "" {
		return errors.New(h.sick)
	}
	return nil
}

func (h *host) set(sick string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sick = sick
}

// nodeMain is the other side: it carries out commands until its input ends.
func nodeMain(in io.Reader, out io.Writer) error {
	log := zap.Must(zap.NewDevelopment())
	h, store := &host{}, state.NewStore()
	defer store.Close()
	var ctl *Control
	start := func(block string) error {
		c, err := decode(block)
		if err != nil {
			return err
		}
		x, err := graph.Lookup("bgp").Control(&c, &graph.Env{
			State: store.Cell(), Watch: func(f func(*state.Snapshot)) { store.Watch(f) }, Host: h, Log: log,
		})
		if err != nil {
			return err
		}
		ctl = x.(*Control)
		return ctl.Start(context.Background())
	}
	do := func(c command) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if c.Spec != nil {
			if err := store.Apply(*c.Spec); err != nil {
				return err
			}
		}
		switch c.Do {
		case "start":
			return start(c.Block)
		case "reconfigure":
			next, err := decode(c.Block)
			if err != nil {
				return err
			}
			return ctl.Reconfigure(&next)
		case "health":
			store.SetHealth(c.Target, c.Health)
		case "sick":
			h.set(c.Sick)
		case "drained":
			ctl.SetDrained(c.On)
		case "drain":
			return ctl.Drain(ctx)
		case "stop":
			return ctl.Stop(ctx)
		}
		return nil
	}
	enc, lines := json.NewEncoder(out), bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		var a answer
		began := time.Now()
		if err := do(c); err != nil {
			a.Error = err.Error()
		}
		a.Took, a.Goroutines = time.Since(began), runtime.NumGoroutine()
		if ctl != nil {
			a.Status = ctl.Status()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// node is a speaker in a namespace.
type node struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log *buffer
}

// buffer keeps what a process wrote on standard error.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newNode(t testing.TB, ns *netnstest.NS, env ...string) *node {
	t.Helper()
	n := &node{t: t, cmd: exec.Command(os.Args[0]), log: &buffer{}}
	n.cmd.Env = append(append(os.Environ(), asNode+"=1"), env...)
	n.cmd.Stderr = n.log
	var err error
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.out = bufio.NewReader(out)
	ns.Start(n.cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node's log:\n%s", n.log)
		}
		_ = n.in.Close()
	})
	return n
}

// ask sends a command and answers what came back; an error of the command is not
// the test's.
func (n *node) ask(c command) answer {
	n.t.Helper()
	line, err := json.Marshal(c)
	if err == nil {
		_, err = n.in.Write(append(line, '\n'))
	}
	var a answer
	if err == nil {
		line, err = n.out.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		n.t.Fatalf("asking the node to %s: %v", c.Do, err)
	}
	return a
}

// do is ask for what must work.
func (n *node) do(c command) answer {
	n.t.Helper()
	a := n.ask(c)
	if a.Error != "" {
		n.t.Fatalf("%s: %s", c.Do, a.Error)
	}
	return a
}

func (n *node) start(spec state.Spec, block string) {
	n.t.Helper()
	n.do(command{Do: "start", Spec: &spec, Block: block})
}

func (n *node) peer(name string) PeerStatus {
	n.t.Helper()
	for _, p := range n.do(command{}).Status.Peers {
		if p.Name == name {
			return p
		}
	}
	n.t.Fatalf("there is no peer %q", name)
	return PeerStatus{}
}

// up waits for sessions with the peers.
func (n *node) up(names ...string) {
	n.t.Helper()
	for _, name := range names {
		eventually(n.t, patience, func() error {
			if p := n.peer(name); p.State != "Established" {
				return fmt.Errorf("session with %s: %s, %s", name, p.State, p.LastError)
			}
			return nil
		})
	}
}

// health reports what a check found out about a backend.
func (n *node) health(addr string, h state.Health) {
	n.t.Helper()
	n.do(command{Do: "health", Target: state.Target{Check: "http", Addr: netip.MustParseAddr(addr)}, Health: h})
}

// eventually waits for f to answer nil.
func eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %v", within, err)
		}
	}
}

// pool answers a pool with a check and backends at these addresses.
func pool(name string, addrs ...string) state.PoolSpec {
	p := state.PoolSpec{Name: name, TableSize: 251, Health: "http"}
	for i, a := range addrs {
		p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprintf("%s-%d", name, i+1), Address: netip.MustParseAddr(a), Weight: 100})
	}
	return p
}

// vip answers a vip block.
func vip(name, addr, pool string) state.VIPSpec {
	p, err := netip.ParsePrefix(addr)
	if err != nil {
		a := netip.MustParseAddr(addr)
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return state.VIPSpec{Name: name, Prefix: p, Protocol: 6, Pool: pool, Require: "all", Quorum: 1}
}
