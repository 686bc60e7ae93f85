package repotest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// stub notes its name and arguments, and for which architecture; and fails where it is
// told to.
const stub = `#!/bin/sh
call="${GOARCH:+GOARCH=$GOARCH }$(basename "$0") $*"
echo "$call" >>"$CALLS"
case $call in "make test"*) mkdir -p bin && echo total >bin/tests.total ;; esac
case $call in "git status"*) printf '%s' "$STRAY" ;; *) echo "output of $call" ;; esac
[ "$call" != "$FAIL" ]
`

// ci runs .ci/run with stubs in place of all that it calls.
func ci(t *testing.T, env ...string) (calls []string, out string, err error) {
	t.Helper()
	dir := t.TempDir()
	calling := filepath.Join(dir, "calls")
	for path, text := range map[string]string{
		".ci/run": read(t, ".ci/run"), ".ci/install": stub, ".ci/fuzz": stub, "stubs/make": stub, "stubs/go": stub, "stubs/git": stub, "calls": "",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("bash", filepath.Join(dir, ".ci/run"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "stubs")+":"+os.Getenv("PATH"), "CALLS="+calling, "FAIL=", "STRAY=", "GOARCH=")
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	noted, _ := os.ReadFile(calling)
	return strings.Split(strings.TrimSpace(string(noted)), "\n"), string(b), err
}

// TestCI: .ci/run installs, tests, shows the demo, lints, looks whether generated
// files are current, builds for arm64 and tests there what has assembly, runs every
// benchmark once, holds ratios against their bounds, and does some fuzzing; and each of
// these fails it.
func TestCI(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("missing: bash")
	}
	calls, out, err := ci(t)
	if err != nil || !strings.Contains(out, "ci: all steps passed") || !strings.HasSuffix(out, "\ntotal\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	const assembly = " ./io/prefetch ./io/packet ./io/encap ./nodes/packet/parse ./nodes/packet/gre-encap"
	const emulated = "GOARCH=arm64 go test -short -exec qemu-aarch64-static"
	const onAMD64 = "go test -short -exec qemu-x86_64-static -cpu "
	const lanes = " ./io/packet ./io/encap ./nodes/packet/parse ./nodes/packet/maglev-select ./nodes/packet/mss-clamp"
	at := 0
	for _, want := range []string{
		"install test", "make test SUMFLAGS=-strict", "make demo", "make lint", "make gen", "git diff --stat --exit-code", "git status --porcelain",
		"GOARCH=arm64 go build ./...", "GOARCH=arm64 go vet ./...",
		emulated + assembly, emulated + " -run Oracle|Traffic|Misses ./bench", "go test -short -tags purego" + assembly + " ./nodes/packet/conntrack ./nodes/packet/maglev-select ./nodes/packet/mss-clamp",
		onAMD64 + "max -run Lanes|Plain|Above|AllChecksums" + lanes + " ./nodes/packet/conntrack", onAMD64 + "qemu64" + lanes,
		"go test -run ^$ -bench . -benchtime 1x -benchmem ./...", "go run ./bench/figures -check", "fuzz 5s FuzzParse FuzzLoad FuzzReader", "make check",
	} {
		i := slices.Index(calls[at:], want)
		if i < 0 {
			t.Fatalf("%s is not called where it should be:\n%s", want, strings.Join(calls, "\n"))
		}
		at += i + 1
		if _, out, err := ci(t, "FAIL="+want); err == nil || strings.Contains(out, "all steps passed") || !strings.Contains(out, "ci: FAILED at") {
			t.Errorf("%s fails, and the run does not: %v\n%s", want, err, out)
		}
	}
	if _, out, err := ci(t, "STRAY=?? new"); err == nil || !strings.Contains(out, "generated files are not those in the tree") {
		t.Errorf("a file that is generated and not in the tree: %v\n%s", err, out)
	}
}
