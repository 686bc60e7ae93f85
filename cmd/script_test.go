package cmd_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lbgraph/lbgraph/cmd"
	_ "github.com/lbgraph/lbgraph/control/all"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

var update = flag.Bool("update", false, "write the golden outputs in scripts anew")

// Scripts run the command as lbgraph, in this test's own binary.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"lbgraph": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			os.Exit(cmd.Execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// The command line, as its users see it: one script for each subcommand. The
// command "exits CODE ARGS…" runs lbgraph and demands its exit code.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error { // for scripts that hide all other programs
			program, err := exec.LookPath("lbgraph")
			e.Setenv("BINDIR", filepath.Dir(program))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: exits CODE ARGS…")
	}
	code := 0
	if err := ts.Exec("lbgraph", args[1:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		code = e.ExitCode()
	}
	if args[0] != strconv.Itoa(code) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}
