// Package watch tells when files may have changed, whatever way they are written:
// in place, by a rename over them, by a symbolic link that is led elsewhere, or by
// their directory being replaced.
//
// It watches directories, not files: a watch on a file ends when another file takes
// its name. Every directory counts in which a name stands that leads to the file:
// its own, those of symbolic links on the way, and the one above, where a directory
// that is replaced shows. Names of events do not matter, for a link that is
// swapped names no file of ours. What is told is that something may be different;
// whoever is told compares contents.
package watch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"
)

// Options says what is watched.
type Options struct {
	// Files answers the files' paths. It is called at every look, so that they may
	// change; those that are not there are waited for.
	Files func() []string
	// Settle is for how long nothing may happen until the files count as written. In
	// a stream of changes it is told after five times as long.
	Settle time.Duration
	// Poll is how often the files are looked at even if nothing happens: network
	// file systems tell nothing.
	Poll time.Duration
	// Changed is called on the watcher's goroutine, once at the beginning, and then
	// whenever something may have changed.
	Changed func()
	Log     *zap.Logger
}

// A Watcher watches. Its methods may be called from any goroutine.
type Watcher struct {
	o      Options
	notify *fsnotify.Watcher // nil where the system refused; then there is Poll
	dirs   map[string]place  // that are watched
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once
}

// place tells two directories apart that have the same name one after the other.
type place struct{ dev, ino uint64 }

// Start begins to watch. It does not fail: where the kernel has no watches left,
// polling remains, and the log says so.
func Start(o Options) *Watcher {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	w := &Watcher{o: o, dirs: map[string]place{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	n, err := fsnotify.NewWatcher()
	if err != nil {
		o.Log.Warn("the kernel does not tell of changes to files; they are looked at now and then", zap.Duration("every", o.Poll), zap.Error(err))
	} else {
		w.notify = n
	}
	go w.run()
	return w
}

// Close ends the watching. Changed does not run any more when it returns.
func (w *Watcher) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

// Poke has the files looked at soon.
func (w *Watcher) Poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watcher) run() {
	defer close(w.done)
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		defer func() { _ = w.notify.Close() }()
		events, errs = w.notify.Events, w.notify.Errors
	}
	poll := time.NewTicker(max(w.o.Poll, time.Millisecond))
	defer poll.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()
	var first time.Time // of the events that wait to settle; zero for none
	for {
		select {
		case <-w.stop:
			return
		case e := <-events:
			if !w.counts(e) {
				continue
			}
		case <-errs: // a queue that overflowed: something happened
		case <-w.wake:
		case <-poll.C:
			// A look that is near does for this one too.
			if !first.IsZero() {
				continue
			}
			w.look()
			continue
		case <-settled.C:
			first = time.Time{}
			w.look()
			continue
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		settled.Reset(max(0, min(w.o.Settle, first.Add(5*w.o.Settle).Sub(now))))
	}
}

// look tells, after it has made sure that what follows will be seen.
func (w *Watcher) look() {
	w.follow()
	w.o.Changed()
}

// counts leaves out what happens to other names in a directory that is watched for
// the sake of one below it, as in /etc for /etc/lbgraph.
func (w *Watcher) counts(e fsnotify.Event) bool {
	dir := filepath.Dir(e.Name)
	for d := range w.dirs {
		if d == e.Name {
			return true
		}
	}
	for _, f := range w.o.Files() {
		names, _ := trail(f)
		for _, n := range names {
			if filepath.Dir(n) == dir && !isAncestor(n, f) || n == e.Name {
				return true
			}
		}
	}
	return false
}

// isAncestor tells whether n is a directory above f.
func isAncestor(n, f string) bool { return strings.HasPrefix(f, n+string(filepath.Separator)) }

// follow watches the directories that count now, and no other.
func (w *Watcher) follow() {
	if w.notify == nil {
		return
	}
	want := map[string]place{}
	for _, f := range w.o.Files() {
		_, dirs := trail(f)
		for _, d := range dirs {
			if info, err := os.Stat(d); err == nil && info.IsDir() {
				if s, ok := info.Sys().(*syscall.Stat_t); ok {
					want[d] = place{uint64(s.Dev), s.Ino}
				}
			}
		}
	}
	for d, p := range w.dirs {
		if want[d] != p {
			_ = w.notify.Remove(d) // it may be gone already
			delete(w.dirs, d)
		}
	}
	watched := w.notify.WatchList()
	for d, p := range want {
		if _, had := w.dirs[d]; had && slices.Contains(watched, d) {
			continue
		}
		if err := w.notify.Add(d); err != nil {
			if !os.IsNotExist(err) {
				w.o.Log.Warn("a directory cannot be watched; it is looked at now and then", zap.String("directory", d), zap.Duration("every", w.o.Poll), zap.Error(err))
			}
			continue
		}
		w.dirs[d] = p
	}
}

// trail answers the names that lead to a file (its own, and those of symbolic links
// on the way, files and directories), and the directories in which a change of
// them would show: of each name the one it stands in, and the one above.
func trail(file string) (names, dirs []string) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, nil
	}
	add := func(all *[]string, s string) {
		if !slices.Contains(*all, s) {
			*all = append(*all, s)
		}
	}
	name := func(n string) {
		add(&names, n)
		dir := filepath.Dir(n)
		add(&dirs, dir)
		add(&names, dir)
		add(&dirs, filepath.Dir(dir))
	}
	name(file)
	// Elements are resolved one by one. Forty links are what the kernel follows.
	rest, at, links := strings.Split(file, "/")[1:], "/", 0
	for len(rest) > 0 && links < 40 {
		next := filepath.Join(at, rest[0])
		to, err := os.Readlink(next)
		if err != nil { // no link, or not there
			at, rest = next, rest[1:]
			if len(rest) == 0 {
				name(at)
			}
			continue
		}
		links++
		name(next)
		if !filepath.IsAbs(to) {
			to = filepath.Join(at, to)
		}
		rest, at = append(strings.Split(filepath.Clean(to), "/")[1:], rest[1:]...), "/"
	}
	return names, dirs
}
