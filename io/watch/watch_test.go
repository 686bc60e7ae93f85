package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
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
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
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
		"directory replaced, then the file written in place": func(t *testing.T, dir string) (string, func(string)) {
			d, n := filepath.Join(dir, "conf"), 0
			p := filepath.Join(d, "lb.hcl")
			return p, func(s string) {
				if n++; n%2 == 1 {
					_ = os.Rename(d, fmt.Sprintf("%s.%d", d, n))
					must(t, os.Mkdir(d, 0o700))
				}
				must(t, write(p, s))
			}
		},
		"link led to another directory, then its target written in place": func(t *testing.T, dir string) (string, func(string)) {
			other, n := t.TempDir(), 0
			p, to := filepath.Join(dir, "lb.hcl"), ""
			return p, func(s string) {
				if n++; n%2 == 1 {
					d := filepath.Join(other, fmt.Sprint(n))
					to = filepath.Join(d, "real.hcl")
					must(t, os.Mkdir(d, 0o700), os.Symlink(to, p+".tmp"), write(to, s), os.Rename(p+".tmp", p))
					return
				}
				must(t, write(to, s))
			}
		},
		"the target of a relative link, beside the directory": func(t *testing.T, dir string) (string, func(string)) {
			to := filepath.Join(dir, "data", "deep", "real.hcl")
			must(t, os.Mkdir(filepath.Join(dir, "conf"), 0o700), os.MkdirAll(filepath.Dir(to), 0o700))
			p := filepath.Join(dir, "conf", "lb.hcl")
			must(t, os.Symlink("../data/deep/real.hcl", p))
			return p, func(s string) { must(t, write(to, s)) }
		},
		"below a directory that is a link to a link": func(t *testing.T, dir string) (string, func(string)) {
			real := filepath.Join(dir, "a", "b", "c")
			must(t, os.MkdirAll(real, 0o700), os.Symlink("a/b/c", filepath.Join(dir, "first")), os.Symlink("../first", filepath.Join(dir, "a", "second")),
				os.Symlink("a/second", filepath.Join(dir, "conf")))
			return filepath.Join(dir, "conf", "lb.hcl"), func(s string) { must(t, write(filepath.Join(real, "lb.hcl"), s)) }
		},
		"a link below a directory that is a link": func(t *testing.T, dir string) (string, func(string)) {
			one, shared := filepath.Join(dir, "versions", "one"), filepath.Join(dir, "shared", "deep")
			must(t, os.MkdirAll(one, 0o700), os.MkdirAll(shared, 0o700), os.Symlink("versions/one", filepath.Join(dir, "conf")),
				os.Symlink("../../shared/deep/lb.hcl", filepath.Join(one, "lb.hcl")))
			return filepath.Join(dir, "conf", "lb.hcl"), func(s string) { must(t, write(filepath.Join(shared, "lb.hcl"), s)) }
		},
		"a link swapped that another link leads to": func(t *testing.T, dir string) (string, func(string)) {
			links := filepath.Join(dir, "links", "deep")
			must(t, os.MkdirAll(links, 0o700), os.Mkdir(filepath.Join(dir, "conf"), 0o700), os.Symlink("../links/deep/current", filepath.Join(dir, "conf", "lb.hcl")))
			return filepath.Join(dir, "conf", "lb.hcl"), func(s string) {
				d := filepath.Join(t.TempDir(), "x", "y") // far from all that is watched
				to := filepath.Join(d, "lb.hcl")
				must(t, os.MkdirAll(d, 0o700), write(to, s), os.Symlink(to, filepath.Join(links, "tmp")), os.Rename(filepath.Join(links, "tmp"), filepath.Join(links, "current")))
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

// TestDirectoryComesBack: a directory that was gone for long enough to be told of is seen
// when it comes back.
func TestDirectoryComesBack(t *testing.T) {
	d := filepath.Join(t.TempDir(), "conf")
	p := filepath.Join(d, "lb.hcl")
	must(t, os.Mkdir(d, 0o700), write(p, "zero"))
	r := start(t, p, time.Hour)
	r.becomes("zero")
	for _, text := range []string{"one", "two"} {
		must(t, os.RemoveAll(d))
		r.becomes("(none)")
		time.Sleep(3 * settle) // what is left of the removal is over
		must(t, os.Mkdir(d, 0o700), write(p, text))
		r.becomes(text)
	}
}

// TestDirectoryAboveGoes: it is told when the directory above the file's own is moved.
func TestDirectoryAboveGoes(t *testing.T) {
	above := filepath.Join(t.TempDir(), "above")
	p := filepath.Join(above, "conf", "lb.hcl")
	must(t, os.MkdirAll(filepath.Dir(p), 0o700), write(p, "x"))
	r := start(t, p, time.Hour)
	r.becomes("x")
	must(t, os.Rename(above, above+".old"))
	r.becomes("(none)")
}

// TestPollWaits: what is being written is not looked at for the sake of polling.
func TestPollWaits(t *testing.T) {
	t.Parallel() // it waits most of its time
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "x"))
	var told atomic.Int64
	w := Start(Options{Files: func() []string { return []string{p} }, Settle: time.Second, Poll: 5 * time.Millisecond, Changed: func() { told.Add(1) }})
	defer w.Close()
	must(t, write(p, "y"))
	time.Sleep(50 * time.Millisecond) // it knows
	before := told.Load()
	for begun := time.Now(); time.Since(begun) < 800*time.Millisecond; time.Sleep(time.Millisecond) {
		must(t, write(p, "z"))
	}
	if n := told.Load() - before; n > 50 {
		t.Errorf("it was told %d times while the file was written", n)
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
	// Of the last change it may still be told, though its content was seen before.
	dir := filepath.Dir(p)
	for end := time.Now().Add(5 * time.Second); ; {
		before = r.told.Load()
		time.Sleep(5 * settle)
		if r.told.Load() == before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is told without end")
		}
	}
	must(t, write(filepath.Join(filepath.Dir(dir), "other"), "x"))
	time.Sleep(5 * settle)
	if n := r.told.Load(); n != before {
		t.Errorf("a file beside the directory was told of %d times", n-before)
	}
}

// TestEndlessChange: in a stream of changes without a pause it is told after five times
// Settle; after a single change Settle alone is waited for.
func TestEndlessChange(t *testing.T) {
	t.Parallel()
	const settle = 800 * time.Millisecond
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "0"))
	told := make(chan struct{}, 100)
	w := Start(Options{Files: func() []string { return []string{p} }, Settle: settle, Poll: time.Hour, Changed: func() { told <- struct{}{} }})
	defer w.Close()
	<-told // at the beginning
	must(t, write(p, "1"))
	select {
	case <-told:
	case <-time.After(5*settle - 500*time.Millisecond):
		t.Error("a single change is told of as if more had followed")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		must(t, write(p, "2"))
		select {
		case <-told:
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatal("an endless change is never told of")
		}
	}
}

// TestPoke: it is told without a change of any file, and often at once a few times.
func TestPoke(t *testing.T) {
	p := filepath.Join(t.TempDir(), "none", "none", "lb.hcl")
	r := start(t, p, time.Hour)
	r.becomes("(none)")
	for range 3 {
		before := r.told.Load()
		for range 1000 {
			r.w.Poke()
		}
		for end := time.Now().Add(10 * time.Second); r.told.Load() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing was told")
			}
		}
	}
	if n := r.told.Load(); n > 100 {
		t.Errorf("3000 pokes were told of %d times", n)
	}
	// Nobody waits for one who is busy.
	busy, goOn := make(chan struct{}), make(chan struct{})
	w := Start(Options{Files: func() []string { return []string{p} }, Settle: settle, Poll: time.Hour, Changed: func() { busy <- struct{}{}; <-goOn }})
	<-busy
	poked := make(chan struct{})
	go func() {
		defer close(poked)
		for range 10 {
			w.Poke()
		}
	}()
	select {
	case <-poked:
	case <-time.After(10 * time.Second):
		t.Error("a poke waits")
	}
	goOn <- struct{}{}
	<-busy // what was poked for while it was busy
	close(goOn)
	<-poked
	w.Close()
}

// TestFilesChange: what Files answers is asked for at each look: files that come are
// watched, and those that go, with the directories that links led to, no more.
func TestFilesChange(t *testing.T) {
	dir := t.TempDir()
	var files atomic.Pointer[[]string]
	files.Store(&[]string{})
	var told atomic.Int64
	before := watched(t)
	w := Start(Options{Files: func() []string { return *files.Load() }, Settle: settle, Poll: time.Hour, Changed: func() { told.Add(1) }})
	defer w.Close()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	for i := range 10 {
		d := filepath.Join(dir, fmt.Sprint(i), "conf")
		p := filepath.Join(d, "lb.hcl")
		must(t, os.MkdirAll(d, 0o700))
		files.Store(&[]string{p})
		n := told.Load()
		w.Poke()
		until("a poke is not told of", func() bool { return told.Load() > n })
		n = told.Load()
		must(t, write(p, "x"))
		until("a file that came is not watched", func() bool { return told.Load() > n })
	}
	until("the directories of files that went are watched still", func() bool { return watched(t)-before == 2 })
	files.Store(&[]string{})
	w.Poke()
	until("the last is watched still", func() bool { return watched(t) == before })
}

// TestLinksInARing: they end nowhere, and neither hang it nor hide what comes later.
func TestLinksInARing(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "lb.hcl")
	must(t, os.Symlink("other", p), os.Symlink("lb.hcl", filepath.Join(dir, "other")))
	r := start(t, p, time.Hour)
	r.becomes("(none)")
	must(t, os.Remove(filepath.Join(dir, "other")), write(filepath.Join(dir, "other"), "x"))
	r.becomes("x")
}

// TestWithoutEvents: where the kernel gives no watches, polling finds the changes, and
// the log says so.
func TestWithoutEvents(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lb.hcl")
	must(t, write(p, "x"))
	logs, all := observer.New(zap.WarnLevel)
	last := make(chan string, 100)
	o := Options{Files: func() []string { return []string{p} }, Settle: settle, Poll: 20 * time.Millisecond, Log: zap.New(logs), Changed: func() {
		b, _ := os.ReadFile(p)
		last <- string(b)
	}}
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	w := Start(o)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	defer w.Close()
	if n := all.FilterMessageSnippet("the kernel does not tell of changes to files").Len(); n != 1 {
		t.Errorf("the log says %v", all.All())
	}
	must(t, write(p, "y"))
	for end := time.After(10 * time.Second); ; {
		select {
		case s := <-last:
			if s == "y" {
				return
			}
		case <-end:
			t.Fatal("the change is not found")
		}
	}
}

// TestOverflow: when the kernel could not keep all it had to tell, it is told of.
func TestOverflow(t *testing.T) {
	t.Parallel() // it waits most of its time
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	dir := t.TempDir()
	p := filepath.Join(dir, "conf", "lb.hcl")
	must(t, os.Mkdir(filepath.Dir(p), 0o700), write(p, "x"))
	last, goOn := make(chan string), make(chan struct{})
	w := Start(Options{Files: func() []string { return []string{p} }, Settle: settle, Poll: time.Hour, Changed: func() {
		b, _ := os.ReadFile(p)
		last <- string(b)
		<-goOn
	}})
	defer w.Close()
	defer close(goOn)
	<-last
	// While it is busy: so much beside the directory, which does not count, that the
	// change of the file is lost.
	other := filepath.Join(dir, "other")
	for range most/2 + 5000 {
		must(t, os.Mkdir(other, 0o700), os.Remove(other))
	}
	must(t, write(p, "y"))
	goOn <- struct{}{}
	select {
	case s := <-last:
		if s != "y" {
			t.Errorf("saw %q", s)
		}
	case <-time.After(20 * time.Second):
		t.Error("nothing was told")
	}
}

// watched is how many directories this process watches.
func watched(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fdinfo/*")
	must(t, err)
	for _, f := range all {
		b, _ := os.ReadFile(f) // it may be closed by now
		n += strings.Count(string(b), "inotify wd:")
	}
	return n
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
