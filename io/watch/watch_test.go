package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const settle = 15 * time.Millisecond

// rig watches a file and compares its content as its users do.
type rig struct {
	t    *testing.T
	path string
	last atomic.Pointer[string]
	told atomic.Int64
	w    *Watcher
}

func start(t *testing.T, path string, poll time.Duration) *rig {
	r := &rig{t: t, path: path}
	r.w = Start(Options{Files: func() []string { return []string{path} }, Settle: settle, Poll: poll, Changed: func() {
		r.told.Add(1)
		b, err := os.ReadFile(path)
		s := string(b)
		if err != nil {
			s = "(none)"
		}
		r.last.Store(&s)
	}})
	t.Cleanup(r.w.Close)
	return r
}

// becomes waits until the content was seen. Polling is far away, so only an event
// can have told of it.
func (r *rig) becomes(want string) {
	r.t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if s := r.last.Load(); s != nil && *s == want {
			return
		}
	}
	s := r.last.Load()
	if s == nil {
		r.t.Fatalf("nothing was told; want %q", want)
	}
	r.t.Fatalf("saw %q, want %q", *s, want)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// TestWays: every way in which editors and tools write files is seen, twice, for a
// watch that dies with the first change is the usual mistake.
func TestWays(t *testing.T) {
	// Each way makes the file anew under dir and answers its path, and how to
	// write it.
	ways := map[string]func(t *testing.T, dir string) (path string, put func(text string)){
		"truncate and write": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) { must(t, write(p, s)) }
		},
		"slowly, in pieces": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) {
				f, err := os.Create(p)
				must(t, err)
				for _, c := range []byte(s) {
					_, err := f.Write([]byte{c})
					must(t, err)
					time.Sleep(time.Millisecond)
				}
				must(t, f.Close())
			}
		},
		"rename over (vim, sed -i)": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) { must(t, write(p+"~new", s), os.Rename(p+"~new", p)) }
		},
		"move away, write anew (vim with backup)": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) {
				_ = os.Rename(p, p+"~")
				must(t, write(p, s))
			}
		},
		"remove and write": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) {
				_ = os.Remove(p)
				must(t, write(p, s))
			}
		},
		"hard link over": func(t *testing.T, dir string) (string, func(string)) {
			p := filepath.Join(dir, "lb.hcl")
			return p, func(s string) {
				_, _ = os.Remove(p+".1"), os.Remove(p)
				must(t, write(p+".1", s), os.Link(p+".1", p))
			}
		},
		"symbolic link swapped": func(t *testing.T, dir string) (string, func(string)) {
			p, n := filepath.Join(dir, "lb.hcl"), 0
			return p, func(s string) {
				n++
				to := filepath.Join(dir, fmt.Sprintf("version-%d", n))
				must(t, write(to, s), os.Symlink(to, p+".tmp"), os.Rename(p+".tmp", p))
			}
		},
		"the target of a symbolic link, elsewhere": func(t *testing.T, dir string) (string, func(string)) {
			other := t.TempDir()
			p, to := filepath.Join(dir, "lb.hcl"), filepath.Join(other, "real.hcl")
			must(t, os.Symlink(to, p))
			return p, func(s string) { must(t, write(to, s)) }
		},
		"..data swapped, as Kubernetes mounts are": func(t *testing.T, dir string) (string, func(string)) {
			p, n := filepath.Join(dir, "lb.hcl"), 0
			must(t, os.Symlink("..data/lb.hcl", p))
			return p, func(s string) {
				n++
				version := fmt.Sprintf("..2024_%d", n)
				must(t, os.Mkdir(filepath.Join(dir, version), 0o700), write(filepath.Join(dir, version, "lb.hcl"), s),
					os.Symlink(version, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
				if n > 1 {
					must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2024_%d", n-1))))
				}
			}
		},
		"directory replaced": func(t *testing.T, dir string) (string, func(string)) {
			d, n := filepath.Join(dir, "conf"), 0
			p := filepath.Join(d, "lb.hcl")
			return p, func(s string) {
				n++
				next := fmt.Sprintf("%s.next", d)
				must(t, os.Mkdir(next, 0o700), write(filepath.Join(next, "lb.hcl"), s))
				_ = os.Rename(d, fmt.Sprintf("%s.%d", d, n))
				must(t, os.Rename(next, d))
			}
		},
		"directory removed and made": func(t *testing.T, dir string) (string, func(string)) {
			d := filepath.Join(dir, "conf")
			p := filepath.Join(d, "lb.hcl")
			return p, func(s string) { must(t, os.RemoveAll(d), os.Mkdir(d, 0o700), write(p, s)) }
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, put := way(t, dir)
			put("zero")
			r := start(t, path, time.Hour)
			r.becomes("zero")
			for _, text := range []string{"one", "two, longer", "3"} {
				put(text)
				r.becomes(text)
			}
		})
	}
}

// TestModeChange: a file that could not be read and now can.
func TestModeChange(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "x"))
	r := start(t, p, time.Hour)
	r.becomes("x")
	before := r.told.Load()
	must(t, os.Chmod(p, 0o644))
	for end := time.Now().Add(5 * time.Second); r.told.Load() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was told")
		}
	}
}

// TestPoll: what no event tells of is found by polling.
func TestPoll(t *testing.T) {
	p := filepath.Join(t.TempDir(), "a", "b", "c", "lb.hcl") // none of these is there, so none is watched
	r := start(t, p, 20*time.Millisecond)
	r.becomes("(none)")
	must(t, os.MkdirAll(filepath.Dir(p), 0o700), write(p, "x"))
	r.becomes("x")
}

// TestSettle: many changes in a row are told a few times, and never not at all.
func TestSettle(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "0"))
	r := start(t, p, time.Hour)
	r.becomes("0")
	before := r.told.Load()
	begun := time.Now()
	for i := range 200 {
		must(t, write(p, strings.Repeat("x", i)))
		time.Sleep(time.Millisecond)
	}
	took := time.Since(begun)
	if n := r.told.Load() - before; n == 0 || n > int64(took/(4*settle))+3 {
		t.Errorf("200 changes in %v were told %d times", took, n)
	}
	r.becomes(strings.Repeat("x", 199))
	// What happens beside the file's directory's name does not count.
	dir := filepath.Dir(p)
	before = r.told.Load()
	must(t, write(filepath.Join(filepath.Dir(dir), "other"), "x"))
	time.Sleep(5 * settle)
	if n := r.told.Load(); n != before {
		t.Errorf("a file beside the directory was told of %d times", n-before)
	}
}

// TestClose: nothing runs and nothing stays open afterwards.
func TestClose(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "x"))
	before, open := runtime.NumGoroutine(), descriptors(t)
	for range 20 {
		w := Start(Options{Files: func() []string { return []string{p} }, Settle: settle, Poll: time.Hour, Changed: func() {}})
		w.Close()
		w.Close()
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before || descriptors(t) > open; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d descriptors, before it were %d and %d", runtime.NumGoroutine(), descriptors(t), before, open)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}
