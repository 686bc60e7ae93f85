package cmd

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/log"
	"github.com/lbgraph/lbgraph/control/reload"
	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/internal/host"
)

func init() { add(newRun) }

func newRun(a *app) *cobra.Command {
	var flags log.Config
	var replace bool
	var lastGood string
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run the graphs of a file",
		Long: `Run the graphs of a file in the foreground. The interfaces that the file names get
an XDP program, which lets all but the VIPs' packets pass to the kernel; it is gone
when the command ends, however it ends.

SIGTERM and SIGINT drain the node and end it: routes are withdrawn, what still comes
is forwarded for as long as the file says, then everything stops, with exit code 0. A
second signal ends it at once. SIGHUP reads the file again.`,
		Example: `  lbgraph run lb.hcl
  lbgraph run lb.hcl -var uplink=ens3 --log json
  lbgraph run /etc/lbgraph/lb.hcl --last-good`,
		Args: takes("FILE"),
	}
	c.Flags().StringVar(&flags.Format, "log", "", "form of the log lines on standard error, whatever the file says: `console or json`")
	c.Flags().StringVar(&flags.Level, "log-level", "", "least level that is logged, whatever the file says: `debug, info, warn or error`")
	c.Flags().BoolVar(&replace, "replace-xdp", false, "take a foreign XDP program off the interfaces instead of refusing to start")
	c.Flags().StringVar(&lastGood, "last-good", "", "if the file is wrong, start with the configuration that its reload block kept in this `file`")
	c.Flags().Lookup("last-good").NoOptDefVal = reload.DefaultCache
	opts := options(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		o, err := opts()
		if err != nil {
			return err
		}
		choose := func(format, level string) log.Config {
			if flags.Format != "" {
				format = flags.Format
			}
			if flags.Level != "" {
				level = flags.Level
			}
			return log.Config{Format: format, Level: level}
		}
		d := log.Defaults()
		logger, lines, err := log.New(a.err, choose(d.Format, d.Level))
		if err != nil {
			return misuse("--log, --log-level: %w", err)
		}
		// A reload that is asked for while the daemon starts follows the start.
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)

		l := daemon.Source{Path: args[0], Vars: o.Vars}.Load()
		if err := lang.WriteDiagnostics(a.err, l.Diags, l.Sources, colour(a.err)); len(l.Diags) > 0 && err != nil {
			return err
		}
		file, kept := l.File, (*daemon.Loaded)(nil)
		if file == nil {
			if lastGood == "" {
				return &exitError{fileIsWrong, nil}
			}
			k, err := daemon.LoadSaved(lastGood)
			if err != nil {
				return &exitError{fileIsWrong, fmt.Errorf("there is no last good configuration either: %w", err)}
			}
			file, kept = k.File, &k
		}
		begin := choose(d.Format, d.Level)
		if x := logBlock(file); x != nil {
			begin = choose(x.Format, x.Level)
		}
		if err := lines.Set(begin.Format, begin.Level); err != nil {
			return err
		}
		if kept != nil {
			logger.Warn("the file is wrong: the last good configuration is run")
		}
		x, err := daemon.New(file, daemon.Options{
			Version: BuildInfo().Version, Log: logger, Replace: replace, Loaded: l, LastGood: kept,
			SetLog: func(format, level string) error {
				c := choose(format, level)
				return lines.Set(c.Format, c.Level)
			},
		})
		if err != nil {
			return refused("%w", err)
		}
		for _, f := range host.Warnings(file) {
			logger.Warn("this machine: "+f.What, zap.String("remedy", f.Remedy))
		}
		ended := make(chan struct{})
		go func() {
			for {
				select {
				case <-ended:
					return
				case <-hup:
					x.ReloadFile("SIGHUP", false)
				}
			}
		}()
		err = x.Run(c.Context())
		close(ended)
		if err != nil {
			return refused("%w", err)
		}
		return nil
	}
	return c
}

// logBlock answers the configuration of a file's log block, nil if it has none.
func logBlock(f *graph.File) *log.Config {
	for _, c := range f.Controls {
		if x, ok := c.Config.(*log.Config); ok {
			return x
		}
	}
	return nil
}

// defaultSocket is where the daemon is asked.
func defaultSocket() string {
	if s := os.Getenv("LBGRAPH_SOCKET"); s != "" {
		return s
	}
	return admin.DefaultSocket
}
