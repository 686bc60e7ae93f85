package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/io/xsk"
)

// What is wrong with an interface is told with the place in the file, and with what to
// do about it.
func TestPlaceOfAnInterface(t *testing.T) {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "lb.hcl")}
	text := strings.Replace(plain, `"eth0"`, `"nosuch0"`, 1)
	r.write(text)
	l := Source{Path: r.path}.Load()
	if l.File == nil {
		t.Fatal(l.Diags)
	}
	line := 1 + strings.Count(text[:strings.Index(text, `node "xdp-rx"`)], "\n")
	want := fmt.Sprintf("%s:%d: graph edge, node rx: interface nosuch0: no such interface", r.path, line)
	_, err := New(l.File, Options{Version: "test", Loaded: l})
	if !errors.Is(err, xsk.ErrNoInterface) || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), ": name one that `ip link` shows") {
		t.Errorf("%v, want %s", err, want)
	}
	for _, x := range remedies {
		if got := remedy(fmt.Errorf("interface eth0: %w", x.err)); !errors.Is(got, x.err) || !strings.HasSuffix(got.Error(), ": "+x.what) {
			t.Errorf("%v", got)
		}
	}
	if other := errors.New("other"); remedy(other) != other || remedy(nil) != nil {
		t.Error("errors without a remedy change")
	}
}
