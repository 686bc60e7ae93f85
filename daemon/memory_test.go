package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/runtime"
)

// TestFramesStandInAMemfd: the frames of a running file stand in memory that another
// process can be handed, as long as it runs.
func TestFramesStandInAMemfd(t *testing.T) {
	const name = "/memfd:lbgraph-frames"
	count := func() (mapped, open int) {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, name) {
				open++
			}
		}
		return strings.Count(string(b), name), open
	}
	m0, o0 := count()
	d, err := New(load(t), Options{Drivers: map[string]runtime.Driver{"xdp": &memDriver{}}})
	if err != nil {
		t.Fatal(err)
	}
	if m, o := count(); m != m0+1 || o != o0+1 {
		t.Errorf("%d mappings and %d descriptors of frames, want one more than %d and %d", m, o, m0, o0)
	}
	atRest(t, d)
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if m, o := count(); m != m0 || o != o0 {
		t.Errorf("%d mappings and %d descriptors of frames stay, were %d and %d", m, o, m0, o0)
	}
}
