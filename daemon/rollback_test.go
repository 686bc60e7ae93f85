package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/lbgraph/lbgraph/control/admin"
)

// TestReloadTakesControlsBack: when the last step fails, a control that was changed is
// told what it was told before, and one that was started is stopped.
func TestReloadTakesControlsBack(t *testing.T) {
	var last string
	r := newRig(t, with("log { level = \"warn\" }"), func(o *Options) {
		o.SetLog = func(format, level string) error { last = format + " " + level; return nil }
	})
	told := ""
	r.latch = func(step string) error {
		if step == "end" {
			r.shared.RLock()
			defer r.shared.RUnlock()
			told = last + " " + r.config.keep
			return errors.New("a test does not let it")
		}
		return nil
	}
	cache := filepath.Join(t.TempDir(), "last-good.json")
	r.write(with(fmt.Sprintf("log { level = \"error\" }\nreload {\n  watch = false\n  cache = %q\n}", cache)))
	if got := r.ReloadFile("test", false); got.Outcome != admin.Failed || told != "console error "+cache {
		t.Fatalf("%+v, told %q", got, told)
	}
	r.shared.RLock()
	defer r.shared.RUnlock()
	if last != "console warn" || r.config.keep != "" {
		t.Errorf("the log is %q, and the last good configuration kept in %q", last, r.config.keep)
	}
}
