package inventory

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// host takes down what it is told.
type host struct {
	path string
	mu   sync.Mutex
	why  []string
}

func (h *host) ConfigPath() string { return h.path }

func (h *host) FilesChanged(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = append(h.why, why)
}

func (h *host) told() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.why)
}

// more waits until the host has been told of a change since it had been told n times.
func (h *host) more(t *testing.T, what string, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); h.told() <= n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody was told of %s", what)
		}
	}
}

// start starts a block in dir until the test ends.
func start(t *testing.T, dir string, change func(*Config)) (*host, graph.Control) {
	t.Helper()
	h := &host{path: filepath.Join(dir, "lb.hcl")}
	k := graph.Lookup("inventory")
	c := k.NewConfig().(*Config)
	c.File, c.Settle, c.Poll = "racks/services.json", 10*time.Millisecond, time.Hour
	change(c)
	ctl, err := k.Control(c, &graph.Env{Node: "racks", Host: h, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ctl.Stop(t.Context()) })
	h.more(t, "the beginning", 0)
	return h, ctl
}

func reconfigure(t *testing.T, ctl graph.Control, change func(*Config)) {
	t.Helper()
	c := ctl.(*control).cfg
	change(&c)
	if err := ctl.(graph.Reconfigurer).Reconfigure(&c); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(time.Now().String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// quiet changes a file in dir, and sees that h is not told; a second watcher says when
// the kernel has told of it.
func quiet(t *testing.T, h *host, path string) {
	t.Helper()
	n := h.told()
	other, _ := start(t, "/", func(c *Config) { c.File, c.Settle = path, 50*time.Millisecond })
	for range 2 {
		m := other.told()
		write(t, path)
		other.more(t, "a change", m)
	}
	if h.told() != n {
		t.Errorf("told of a change of %s: %q", path, h.why[n:])
	}
}

// The file stands beside the configuration; a change is told with the block's name, and
// none any more when the block has stopped.
func TestWatches(t *testing.T) {
	dir := t.TempDir()
	beside := filepath.Join(dir, "racks", "services.json")
	write(t, beside)
	h, ctl := start(t, dir, func(*Config) {})
	for range 3 {
		n := h.told()
		write(t, beside)
		h.more(t, "a change", n)
	}
	for range 2 {
		if err := ctl.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, why := range h.why {
		if why != `change of inventory "racks"` {
			t.Errorf("told %q", why)
		}
	}
	quiet(t, h, beside)
}

// A path that is absolute is that.
func TestAbsolutePath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services.json")
	write(t, file)
	h, _ := start(t, t.TempDir(), func(c *Config) { c.File = file })
	n := h.told()
	write(t, file)
	h.more(t, "a change", n)
}

// A block that changes watches the file that it names now, as it says now, and not the
// one of before.
func TestReconfigure(t *testing.T) {
	dir := t.TempDir()
	before, after := filepath.Join(dir, "racks", "services.json"), filepath.Join(dir, "others", "services.json")
	write(t, before)
	write(t, after)
	h, ctl := start(t, dir, func(*Config) {})
	n := h.told()
	reconfigure(t, ctl, func(c *Config) { c.File = "others/services.json" })
	h.more(t, "the beginning", n)
	quiet(t, h, before)
	n = h.told()
	write(t, after)
	h.more(t, "a change", n)
	reconfigure(t, ctl, func(c *Config) { c.Poll = 5 * time.Millisecond })
	n = h.told()
	for i := range 5 {
		h.more(t, "a poll", n+i)
	}
	if err := ctl.Stop(t.Context()); err != nil { // no poll comes between
		t.Fatal(err)
	}
	n = h.told()
	reconfigure(t, ctl, func(c *Config) { c.Settle, c.Poll = time.Hour, time.Hour })
	h.more(t, "the beginning", n)
	quiet(t, h, after)
}

// What the file of a block says: an empty name is refused, and the name is that of a
// file to be read with the configuration.
func TestFile(t *testing.T) {
	k := graph.Lookup("inventory")
	c := k.NewConfig().(*Config)
	if err := k.CheckConfig(c); err == nil || !strings.Contains(err.Error(), "file is empty") {
		t.Errorf("an empty name: %v", err)
	}
	if want := (Config{"", 75 * time.Millisecond, 10 * time.Second}); *c != want {
		t.Errorf("%+v, want %+v", *c, want)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "services.json"), []byte(`{"pool": {"api": {"backend": {"a": {"address": "10.0.9.1"}}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "lb.hcl")
	if err := os.WriteFile(path, []byte(`inventory "racks" { file = "services.json" }`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, diags := lang.Load(path, lang.Options{})
	if f == nil || diags.HasErrors() {
		t.Fatal(diags)
	}
	if len(f.Spec.Pools) != 1 || f.Spec.Pools[0].Name != "api" {
		t.Errorf("pools are %+v", f.Spec.Pools)
	}
	if _, err := k.Control(c, &graph.Env{Log: zap.NewNop()}); err == nil {
		t.Error("built without a daemon")
	}
}
