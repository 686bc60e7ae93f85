// Package cmd is the command line: one file per subcommand. A main package
// imports the kinds it wants, for their registration, and calls Main.
//
// A file of a subcommand registers it from an init function: add(newRun). What
// the subcommand shares with others, reading a file and printing what is wrong
// with it above all, are methods of app.
//
// Exit codes: 0 all went well, 1 the file is wrong (or, of demo flood, requests
// failed), 2 the command was used wrongly, 3 the running system refused. An error is one
// line on standard error; what is wrong with a file is printed with its place.
package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph/conf"
)

// Exit codes.
const (
	fileIsWrong    = 1
	requestsFailed = 1
	usedWrongly    = 2
	systemRefused  = 3
)

// Main runs the command line of the process and exits. SIGINT and SIGTERM end
// the context of the command; a second one ends the process at once.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(Execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Execute runs one command line, without the program's name, and answers its
// exit code. It does not exit, and may be called again.
func Execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{in: stdin, out: stdout, err: stderr}
	root := a.root()
	root.SetArgs(longFlags(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{systemRefused, err}
	}
	if e.err != nil {
		fmt.Fprintf(stderr, "lbgraph: %v\n", e.err)
	}
	return e.code
}

// app is one run of the command line.
type app struct {
	in       io.Reader
	out, err io.Writer
}

// commands make the subcommands; add fills it from init functions.
var commands []func(*app) *cobra.Command

func add(f func(*app) *cobra.Command) { commands = append(commands, f) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "lbgraph",
		Short: "A load balancer that is one graph you can read",
		Long: `lbgraph balances packets, connections and requests through graphs of nodes that an
HCL file declares: check it, draw it, try it on a capture, run it.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, sub := range c.Commands() {
				if !sub.Hidden {
					names = append(names, sub.Name())
				}
			}
			return misuse("there is no command %q. %s", args[0], conf.DidYouMean(args[0], names))
		},
		RunE: func(c *cobra.Command, _ []string) error {
			c.SetOut(a.err)
			c.Help()
			return &exitError{usedWrongly, nil}
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "help [COMMAND]", Hidden: true, RunE: func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 && c != root {
			return misuse("there is no command %q", strings.Join(args, " "))
		} else if len(rest) > 0 {
			return root.Args(root, rest)
		}
		return c.Help()
	}})
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpTemplate(`{{with or .Long .Short}}{{. | trimTrailingWhitespaces}}

{{end}}{{.UsageString}}`)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return misuse("%s: %v. See lbgraph %s --help", nameOf(c), err, nameOf(c))
	})
	for _, f := range commands {
		root.AddCommand(f(a))
	}
	return root
}

// exitError carries an exit code; err is nil where all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// misuse is an error of whoever typed the command.
func misuse(format string, args ...any) error {
	return &exitError{usedWrongly, fmt.Errorf(format, args...)}
}

// refused is an error of the system that runs the command; so is every other
// error that is no exitError.
func refused(format string, args ...any) error {
	return &exitError{systemRefused, fmt.Errorf(format, args...)}
}

// takes checks the number of arguments by their names; one in brackets, as in
// "[NODE]", may be left out.
func takes(names ...string) cobra.PositionalArgs {
	least := len(names)
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, "[") }); i >= 0 {
		least = i
	}
	return func(c *cobra.Command, args []string) error {
		n := nameOf(c)
		switch {
		case len(args) < least:
			return misuse("%s needs %s. See lbgraph %s --help", n, names[len(args)], n)
		case len(args) > len(names) && len(names) == 0:
			return misuse("%s takes no argument, and %q is one. See lbgraph %s --help", n, args[0], n)
		case len(args) > len(names):
			return misuse("%s takes %s, and %q is more. See lbgraph %s --help", n, strings.Join(names, " "), args[len(names)], n)
		}
		return nil
	}
}

// nameOf answers a command as it is typed, without the program.
func nameOf(c *cobra.Command) string {
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	return cmp.Or(name, c.CommandPath())
}

const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}
`

// longFlags turns -flag into --flag for the long flags that the command knows,
// so that both are accepted.
func longFlags(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args
	}
	c, _, err := root.Find(args)
	if err != nil {
		return args
	}
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if len(name) > 1 && !strings.HasPrefix(name, "-") && arg[0] == '-' && (name == "help" || lookup(c, name) != nil) {
			args[i] = "-" + arg
		}
	}
	return args
}

func lookup(c *cobra.Command, name string) *pflag.Flag {
	if f := c.Flags().Lookup(name); f != nil {
		return f
	}
	return c.InheritedFlags().Lookup(name)
}

// output adds the flag -o to c and answers whether it says json, once the flags
// are read.
func output(c *cobra.Command) func() (json bool, err error) {
	form := c.Flags().StringP("output", "o", "text", "`form` of the output: text or json")
	c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return func() (bool, error) {
		if *form != "text" && *form != "json" {
			return false, misuse("-o is %q. It can be text or json", *form)
		}
		return *form == "json", nil
	}
}

// colour tells whether output to w may be coloured: only on a terminal, and
// never with NO_COLOR set (no-color.org).
func colour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && terminal(w)
}

// terminal tells whether w is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
