// Package log is the control kind log: the form and the level of the daemon's log
// lines, which a reload may change. It also makes the logger.
package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of a log block.
type Config struct {
	Format string `hcl:"format,optional" enum:"console,json" doc:"form of a line: for people, or a JSON object for programs"`
	Level  string `hcl:"level,optional" enum:"debug,info,warn,error" doc:"the least level that is written"`
}

// Defaults are the values of a log block that says nothing, and of a file without
// one.
func Defaults() Config { return Config{Format: "console", Level: "info"} }

// Host is what the kind needs of the daemon.
type Host interface {
	// SetLog changes the form and level of log lines.
	SetLog(format, level string) error
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "log",
		Summary:  "says in which form and from which level on the daemon logs",
		Single:   true,
		Live:     true,
		Defaults: Defaults(),
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("log has no daemon to tell")
			}
			return &control{c, h}, nil
		},
	})
}

type control struct {
	cfg  Config
	host Host
}

// Start brings the block into force.
func (c *control) Start(context.Context) error { return c.host.SetLog(c.cfg.Format, c.cfg.Level) }

// Stop goes back to the defaults.
func (c *control) Stop(context.Context) error {
	d := Defaults()
	return c.host.SetLog(d.Format, d.Level)
}

// Reconfigure takes a changed block.
func (c *control) Reconfigure(config any) error {
	next := config.(*Config)
	return c.host.SetLog(next.Format, next.Level)
}

// A Switch is where a logger's lines go; their form and level can be changed while it
// is used, from any goroutine.
type Switch struct {
	out   zapcore.WriteSyncer
	level zap.AtomicLevel
	form  atomic.Pointer[zapcore.Encoder]
}

// New makes a logger that writes to w, in the form and from the level that c says.
func New(w io.Writer, c Config) (*zap.Logger, *Switch, error) {
	s := &Switch{out: zapcore.Lock(zapcore.AddSync(w)), level: zap.NewAtomicLevel()}
	if err := s.Set(c.Format, c.Level); err != nil {
		return nil, nil, err
	}
	return zap.New(&core{s: s}), s, nil
}

// Set changes form and level.
func (s *Switch) Set(format, level string) error {
	l, err := zapcore.ParseLevel(level)
	if err != nil || l < zapcore.DebugLevel || l > zapcore.ErrorLevel {
		return fmt.Errorf("level is %q. It can be debug, info, warn or error", level)
	}
	e := zap.NewProductionEncoderConfig()
	e.EncodeTime, e.EncodeDuration = zapcore.RFC3339NanoTimeEncoder, zapcore.StringDurationEncoder
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(e)
	case "console":
		e.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc = zapcore.NewConsoleEncoder(e)
	default:
		return fmt.Errorf("format is %q. It can be console or json", format)
	}
	s.form.Store(&enc)
	s.level.SetLevel(l)
	return nil
}

// core is the zapcore.Core of a Switch. It keeps fields as they are, for the encoder
// may be another one tomorrow.
type core struct {
	s    *Switch
	with []zapcore.Field
}

// Enabled is part of zapcore.Core.
func (c *core) Enabled(l zapcore.Level) bool { return c.s.level.Enabled(l) }

// With is part of zapcore.Core.
func (c *core) With(f []zapcore.Field) zapcore.Core {
	return &core{c.s, append(c.with[:len(c.with):len(c.with)], f...)}
}

// Check is part of zapcore.Core.
func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write is part of zapcore.Core.
func (c *core) Write(e zapcore.Entry, f []zapcore.Field) error {
	b, err := (*c.s.form.Load()).EncodeEntry(e, append(c.with[:len(c.with):len(c.with)], f...))
	if err != nil {
		return err
	}
	_, err = c.s.out.Write(b.Bytes())
	b.Free()
	return err
}

// Sync is part of zapcore.Core.
func (c *core) Sync() error { return c.s.out.Sync() }
