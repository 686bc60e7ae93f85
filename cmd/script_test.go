package cmd_test

import (
	"errors"
	"flag"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lbgraph/lbgraph/cmd"
	_ "github.com/lbgraph/lbgraph/control/all"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

var update = flag.Bool("update", false, "write the golden outputs in scripts anew")

// Scripts run the command as lbgraph, in this test's own binary.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lbgraph": cmd.Main})
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
