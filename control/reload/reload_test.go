package reload

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
)

// host takes down what it is told.
type host struct {
	mu    sync.Mutex
	files []string
	kept  []string
	why   []string
}

func (h *host) ConfigFiles() []string { return h.files }

func (h *host) FilesChanged(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = append(h.why, why)
}

func (h *host) KeepLastGood(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, path)
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

// rig is a block at work that watches one file.
type rig struct {
	*host
	graph.Control
	path string
}

func newRig(t *testing.T, path string, change func(*Config)) *rig {
	t.Helper()
	r := &rig{host: &host{files: []string{path}}, path: path}
	k := graph.Lookup("reload")
	c := k.NewConfig().(*Config)
	c.Settle, c.Poll = 10*time.Millisecond, time.Hour
	change(c)
	var err error
	if r.Control, err = k.Control(c, &graph.Env{Host: r.host, Log: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(t.Context()) })
	return r
}

func place(t *testing.T) string { return filepath.Join(t.TempDir(), "lb.hcl") }

func (r *rig) write(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(r.path, []byte(time.Now().String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) change(t *testing.T, change func(*Config)) {
	t.Helper()
	c := r.Control.(*control).cfg
	change(&c)
	if err := r.Control.(graph.Reconfigurer).Reconfigure(&c); err != nil {
		t.Fatal(err)
	}
}

func TestDefaults(t *testing.T) {
	c := *graph.Lookup("reload").NewConfig().(*Config)
	if want := (Config{true, 75 * time.Millisecond, 10 * time.Second, "/var/lib/lbgraph/last-good.json"}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
}

// A change of a file is told, and none any more when the block has stopped.
func TestWatches(t *testing.T) {
	r := newRig(t, place(t), func(*Config) {})
	r.more(t, "the beginning", 0)
	for range 3 {
		n := r.told()
		r.write(t)
		r.more(t, "a change", n)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.why[0] != "change of files" {
		t.Errorf("told %q", r.why)
	}
	r.quiet(t)
	if err := r.Stop(t.Context()); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

// quiet makes changes, and sees that nobody is told of them; a second watcher says when
// the kernel has told of them.
func (r *rig) quiet(t *testing.T) {
	t.Helper()
	n := r.told()
	other := newRig(t, r.path, func(c *Config) { c.Settle = 50 * time.Millisecond })
	other.more(t, "the beginning", 0)
	for range 2 {
		m := other.told()
		r.write(t)
		other.more(t, "a change", m)
	}
	if r.told() != n {
		t.Errorf("told of a change: %q", r.why[n:])
	}
}

// A block that says so watches nothing, from the start or from a change on, and does
// again when it changes back.
func TestWatchIsOff(t *testing.T) {
	r := newRig(t, place(t), func(c *Config) { c.Watch = false })
	r.quiet(t)
	if r.told() != 0 {
		t.Errorf("told %q", r.why)
	}
	r.change(t, func(c *Config) { c.Watch = true })
	r.more(t, "the beginning", 0)
	n := r.told()
	r.write(t)
	r.more(t, "a change", n)
	r.change(t, func(c *Config) { c.Watch = false })
	r.quiet(t)
}

// The last good configuration is kept where the block says: another place is told, the
// same one is not told again, and with the block the keeping ends.
func TestLastGood(t *testing.T) {
	r := newRig(t, place(t), func(c *Config) { c.Cache = "/a" })
	r.change(t, func(c *Config) { c.Settle = 20 * time.Millisecond })
	r.change(t, func(c *Config) { c.Cache = "/b" })
	r.change(t, func(c *Config) { c.Cache = "/b" })
	r.change(t, func(c *Config) { c.Cache = "" })
	r.change(t, func(c *Config) { c.Cache = "/c" })
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/a", "/b", "", "/c", ""}; !slices.Equal(r.kept, want) {
		t.Errorf("told to keep it in %q, want %q", r.kept, want)
	}
}

// Settle and poll are those of the block, also when it has changed.
func TestPolls(t *testing.T) {
	r := newRig(t, place(t), func(*Config) {})
	r.more(t, "the beginning", 0)
	r.change(t, func(c *Config) { c.Poll = 5 * time.Millisecond })
	n := r.told()
	for i := range 5 { // the first is the beginning of another watch
		r.more(t, "a poll", n+i)
	}
	r.change(t, func(c *Config) { c.Watch = false }) // no poll comes between
	n = r.told()
	r.change(t, func(c *Config) { c.Watch, c.Settle, c.Poll = true, time.Hour, time.Hour })
	r.more(t, "the beginning", n)
	r.quiet(t)
}

func TestNoDaemon(t *testing.T) {
	if _, err := graph.Lookup("reload").Control(&Config{}, &graph.Env{Log: zap.NewNop()}); err == nil {
		t.Error("built without a daemon")
	}
}
