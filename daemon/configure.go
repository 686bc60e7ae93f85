package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/hcl/v2"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/runtime"
)

// configuration is what the daemon knows of the files that it was started from. Its
// reader is one goroutine, which does all reloads from files: so they follow one
// another, and no control waits for one that might stop it.
type configuration struct {
	requests chan request
	changed  chan string // cap 1: files may have changed; for whom
	quit     chan struct{}
	reading  sync.WaitGroup // the reader
	tried    Loaded         // the last that was read; the reader's
	saving   sync.Mutex     // over the file of the last good configuration

	// Guarded by Daemon.shared.
	files  []string // that tried was read from
	status admin.Configuration
	keep   string // where the last good configuration is kept; "" is nowhere
	good   Loaded // what is in force
}

type request struct {
	why   string
	plan  bool
	reply chan admin.Reload
}

// begin takes over what the daemon was started from.
func (d *Daemon) begin() {
	c := &d.config
	c.requests, c.changed = make(chan request), make(chan string, 1)
	c.quit = make(chan struct{})
	c.tried, c.files = d.opts.Loaded, d.opts.Loaded.Files()
	c.good = d.opts.Loaded
	c.status = admin.Configuration{File: d.opts.Loaded.Path, Since: time.Now(), Reloads: map[string]uint64{}}
	for _, o := range []string{admin.Reloaded, admin.Wrong, admin.Refused, admin.Failed} {
		c.status.Reloads[o] = 0
	}
	if d.opts.LastGood != nil {
		c.good, c.status.LastGood = *d.opts.LastGood, true
		c.status.Last = &admin.Reload{Outcome: admin.Wrong, At: c.status.Since, Why: "start", Messages: messages(c.tried.Diags), Error: wrong(c.tried)}
	}
}

// read serves requests until the daemon stops.
func (d *Daemon) read() {
	c := &d.config
	for {
		select {
		case <-c.quit:
			return
		case why := <-c.changed:
			if c.tried.Changed() {
				d.fromFile(request{why: why})
			}
		case r := <-c.requests:
			r.reply <- d.fromFile(r)
		}
	}
}

// ConfigPath is the path of the configuration file, "" if there is none.
func (d *Daemon) ConfigPath() string { return d.opts.Loaded.Path }

// ConfigFiles are all files that the configuration was read from when it was read last.
func (d *Daemon) ConfigFiles() []string {
	d.shared.RLock()
	defer d.shared.RUnlock()
	return d.config.files
}

// FilesChanged says that files of the configuration may have changed. It does not
// wait: a reload follows if they have.
func (d *Daemon) FilesChanged(why string) {
	select {
	case d.config.changed <- why:
	default: // one is due, and will see this too
	}
}

// KeepLastGood has the configuration in force, and every one that follows, written
// to a file; "" ends that.
func (d *Daemon) KeepLastGood(path string) {
	d.shared.Lock()
	d.config.keep = path
	d.shared.Unlock()
	d.save()
}

// save keeps the configuration in force where it is to be kept. One at a time looks and
// writes, so that the newest is what stays.
func (d *Daemon) save() {
	d.config.saving.Lock()
	defer d.config.saving.Unlock()
	d.shared.RLock()
	path, l := d.config.keep, d.config.good
	d.shared.RUnlock()
	if path == "" || l.Path == "" {
		return
	}
	if err := l.Save(path); err != nil {
		d.log.Warn("the configuration is not kept", zap.String("file", path), zap.Error(err))
	}
}

// ReloadFile reads the configuration again and changes over to it; with plan it
// only says what would change. It answers when that is done.
func (d *Daemon) ReloadFile(why string, plan bool) admin.Reload {
	r := request{why, plan, make(chan admin.Reload, 1)}
	if d.opts.Loaded.Path != "" {
		select {
		case d.config.requests <- r:
			return <-r.reply
		case <-d.config.quit:
		}
	}
	return admin.Reload{Outcome: admin.Failed, At: time.Now(), Why: why, Error: "the daemon has no file, or stops"}
}

// fromFile is one reload from files. It runs on the reader's goroutine.
func (d *Daemon) fromFile(q request) admin.Reload {
	c := &d.config
	r := admin.Reload{At: time.Now(), Why: q.why}
	l := c.tried.Source.Load()
	var err error
	var plan runtime.Plan
	switch {
	case l.File == nil:
		r.Outcome, err = admin.Wrong, errors.New(wrong(l))
	case q.plan:
		r.Outcome = admin.Planned
		d.mu.Lock()
		plan = Diff(d.file, l.File)
		d.mu.Unlock()
	default:
		d.say("RELOADING=1", monotonic())
		plan, err = d.Reload(l.File)
		d.say("READY=1")
		var restart *runtime.ErrRestart
		switch {
		case errors.As(err, &restart):
			r.Outcome = admin.Refused
		case err != nil:
			r.Outcome = admin.Failed
		case plan.Class() == runtime.Keep:
			r.Outcome = admin.Unchanged
		default:
			r.Outcome = admin.Reloaded
		}
	}
	r.Messages = messages(l.Diags)
	if err != nil {
		r.Error = err.Error()
	}
	for _, a := range plan {
		if a.Class != runtime.Keep {
			r.Plan = append(r.Plan, admin.Action{Class: a.Class.String(), What: a.What, Why: a.Why})
		}
	}
	if q.plan {
		return r
	}
	c.tried = l
	d.tellReload(&r)
	d.shared.Lock()
	c.files = l.Files()
	if r.Outcome != admin.Unchanged {
		c.status.Reloads[r.Outcome]++
	}
	last := r
	c.status.Last = &last
	taken := r.Outcome == admin.Reloaded || r.Outcome == admin.Unchanged
	if taken {
		c.good, c.status.LastGood = l, false
	}
	if r.Outcome == admin.Reloaded {
		c.status.Since = r.At
	}
	d.shared.Unlock()
	if taken {
		d.save()
	}
	return r
}

// mostLines bounds what one reload writes to the log.
const mostLines = 50

// tellReload logs a reload: what changes, or what is wrong and where.
func (d *Daemon) tellReload(r *admin.Reload) {
	for i, m := range r.Messages {
		if i == mostLines {
			d.log.Warn(fmt.Sprintf("and %d messages more on the file", len(r.Messages)-i))
			break
		}
		log := d.log.Error
		if m.Severity != "error" {
			log = d.log.Warn
		}
		log(m.Summary, zap.String("at", fmt.Sprintf("%s:%d:%d", m.File, m.Line, m.Column)), zap.String("detail", m.Detail))
	}
	switch r.Outcome {
	case admin.Unchanged:
		d.log.Info("the configuration says what is in force", zap.String("asked by", r.Why))
	case admin.Reloaded:
		for i, a := range r.Plan {
			if i == mostLines {
				d.log.Info(fmt.Sprintf("and %d changes more", len(r.Plan)-i))
				break
			}
			d.log.Info("change", zap.String("class", a.Class), zap.String("what", a.What), zap.String("how", a.Why))
		}
		d.log.Info("reloaded", zap.String("asked by", r.Why), zap.Int("changes", len(r.Plan)))
	default:
		d.log.Error("not reloaded; the configuration of before stays in force", zap.String("asked by", r.Why), zap.String("outcome", r.Outcome), zap.String("why", r.Error))
	}
}

// Configuration says which configuration is in force, and how reloads went.
func (d *Daemon) Configuration() admin.Configuration {
	d.shared.RLock()
	defer d.shared.RUnlock()
	s := d.config.status
	s.Reloads = maps.Clone(s.Reloads)
	return s
}

func messages(diags hcl.Diagnostics) (all []admin.Message) {
	for _, m := range lang.Messages(diags) {
		all = append(all, admin.Message(m))
	}
	return all
}

// wrong says in one line what is wrong with a file.
func wrong(l Loaded) string {
	all := slices.DeleteFunc(lang.Messages(l.Diags), func(m lang.Message) bool { return m.Severity != "error" })
	if len(all) == 0 {
		return ""
	}
	s := fmt.Sprintf("%s:%d:%d: %s: %s", all[0].File, all[0].Line, all[0].Column, all[0].Summary, all[0].Detail)
	if len(all) > 1 {
		s += fmt.Sprintf(" (and %d errors more)", len(all)-1)
	}
	return s
}
