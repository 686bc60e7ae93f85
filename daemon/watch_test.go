package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBothFilesAreWatched: the configuration and an inventory beside it, each written
// in place, renamed over and swapped as a symbolic link, several times each, for the
// usual mistake is a watch that dies of the first change. Polling is too far away to
// find any of it.
func TestBothFilesAreWatched(t *testing.T) {
	text := func(n int) string {
		return with(fmt.Sprintf("reload {\n  settle = \"10ms\"\n  poll   = \"1h\"\n  cache  = \"\"\n}\ninventory \"racks\" {\n  file   = \"services.json\"\n  settle = \"10ms\"\n  poll   = \"1h\"\n}\nvip \"here\" {\n  address = \"203.0.113.%d\"\n  pool    = pool.web\n}", n))
	}
	services := func(n int) string {
		return fmt.Sprintf(`{"vip": {"there": {"address": "203.0.113.%d", "pool": "web"}}}`, n)
	}
	ways := []struct {
		name string
		put  func(path, text string, n int) error
	}{
		{"in place", func(path, text string, _ int) error { return os.WriteFile(path, []byte(text), 0o600) }},
		{"renamed over", func(path, text string, _ int) error {
			if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
				return err
			}
			return os.Rename(path+"~", path)
		}},
		{"link swapped", func(path, text string, n int) error {
			to := fmt.Sprintf("%s.%d", path, n)
			if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
				return err
			}
			if err := os.Symlink(to, path+".link"); err != nil {
				return err
			}
			return os.Rename(path+".link", path)
		}},
	}
	r := newRig(t, plain)
	beside := filepath.Join(filepath.Dir(r.path), "services.json")
	if err := os.WriteFile(beside, []byte(services(90)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.write(text(90 + 1))
	if got := r.ReloadFile("test", false); got.Outcome != "reloaded" {
		t.Fatalf("%+v", got)
	}
	x := r.traffic(flows(t, 50))
	for _, f := range []struct {
		vip, path string
		text      func(int) string
		from      int
	}{{"here", r.path, text, 100}, {"there", beside, services, 200}} {
		n := f.from
		for _, w := range ways {
			for range 3 {
				n++
				if err := w.put(f.path, f.text(n), n); err != nil {
					t.Fatal(err)
				}
				want := fmt.Sprintf("203.0.113.%d/32", n)
				r.until(fmt.Sprintf("%s %s", filepath.Base(f.path), w.name), func() bool {
					for _, v := range r.Snapshot().VIPs {
						if v.Name == f.vip && v.Prefix.String() == want {
							return true
						}
					}
					return false
				})
			}
		}
	}
	x.end()
	if !r.logged("reloaded", "change of files") || !r.logged("reloaded", `change of inventory "racks"`) {
		t.Errorf("the log says %v", strings.Join(r.said(), "\n"))
	}
}
