package admin

import (
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

type host struct{ snap *state.Snapshot }

func (h *host) Stats() []graph.Stats      { return []graph.Stats{{Graph: "edge", Received: 3}} }
func (h *host) Snapshot() *state.Snapshot { return h.snap }
func (h *host) Healthy() error            { return nil }
func (h *host) Ready() error              { return nil }
func (h *host) Version() string           { return "v1" }

func start(t *testing.T, socket string) (graph.Control, error) {
	t.Helper()
	snap, err := state.Build(state.Spec{Pools: []state.PoolSpec{{
		Name: "web", TableSize: 251, Backends: []state.BackendSpec{{Name: "web-1", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	k := graph.Lookup("admin")
	c := k.NewConfig().(*Config)
	c.Socket = socket
	ctl, err := k.Control(c, &graph.Env{Host: &host{snap}, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return ctl, ctl.Start(context.Background())
}

func TestStatus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "admin.sock")
	ctl, err := start(t, socket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if m := info.Mode(); m.Perm() != 0o600 || m&fs.ModeSocket == 0 {
		t.Errorf("the socket's mode is %v", m)
	}
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	r, err := c.Get("http://lbgraph/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var s Status
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.Version != "v1" || s.Healthy != "ok" || len(s.Pools) != 1 || s.Pools[0].Slots != 251 || len(s.Graphs) != 1 || s.Graphs[0].Received != 3 {
		t.Errorf("got %+v", s)
	}
	if b := s.Pools[0].Backends; len(b) != 1 || b[0] != (Backend{"web/web-1", "10.0.1.1", 100, "up"}) {
		t.Errorf("backends are %+v", b)
	}
	// Another daemon does not take the socket away.
	if _, err := start(t, socket); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second daemon got %v", err)
	}
	if err := ctl.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
}

func TestWhatStandsInTheWay(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	ctl, err := start(t, left)
	if err != nil {
		t.Errorf("a dead process's socket: %v", err)
	} else if err := ctl.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file got %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Error("the file is gone")
	}
	k := graph.Lookup("admin")
	c := k.NewConfig().(*Config)
	c.Socket = strings.Repeat("x", 108)
	if k.CheckConfig(c) == nil {
		t.Error("a path that does not fit was taken")
	}
}
