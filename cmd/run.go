package cmd

import (
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/internal/host"
)

func init() { add(newRun) }

func newRun(a *app) *cobra.Command {
	var format, level string
	var replace bool
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run the graphs of a file",
		Long: `Run the graphs of a file in the foreground, until SIGTERM or SIGINT. The interfaces
that the file names get an XDP program, which lets all but the VIPs' packets pass to
the kernel; it is gone when the command ends, however it ends.`,
		Example: `  lbgraph run lb.hcl
  lbgraph run lb.hcl -var uplink=ens3 --log json`,
		Args: takes("FILE"),
	}
	c.Flags().StringVar(&format, "log", "console", "form of the log lines on standard error: `console or json`")
	c.Flags().StringVar(&level, "log-level", "info", "least level that is logged: `debug, info, warn or error`")
	c.Flags().BoolVar(&replace, "replace-xdp", false, "take a foreign XDP program off the interfaces instead of refusing to start")
	read := a.file(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		log, err := a.logger(format, level)
		if err != nil {
			return err
		}
		f, err := read(args[0])
		if err != nil {
			return err
		}
		for _, x := range host.Check(f) {
			if x.Level == host.Warning { // errors show when the interface is opened
				log.Warn(x.What, zap.String("remedy", x.Remedy))
			}
		}
		d, err := daemon.New(f, daemon.Options{Version: BuildInfo().Version, Log: log, Replace: replace})
		if err != nil {
			return refused("%w", err)
		}
		if err := d.Run(c.Context()); err != nil {
			return refused("%w", err)
		}
		return nil
	}
	return c
}

// logger makes the logger of a daemon, on standard error.
func (a *app) logger(format, level string) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, misuse("--log-level is %q. It is debug, info, warn or error", level)
	}
	e := zap.NewProductionEncoderConfig()
	e.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	e.EncodeDuration = zapcore.StringDurationEncoder
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(e)
	case "console":
		e.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc = zapcore.NewConsoleEncoder(e)
	default:
		return nil, misuse("--log is %q. It is console or json", format)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(a.err)), l)), nil
}
