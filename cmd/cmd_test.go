package cmd_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/cmd"
)

func run(args ...string) (code int, out, problem string) {
	var o, e bytes.Buffer
	code = cmd.Execute(context.Background(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// Every command explains itself: a sentence, a usage line, an example.
func TestHelp(t *testing.T) {
	_, out, _ := run("--help")
	_, out, _ = strings.Cut(out, "Commands:\n")
	names := regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`).FindAllStringSubmatch(out, -1)
	if len(names) < 8 {
		t.Fatalf("%d commands in\n%s", len(names), out)
	}
	for _, m := range names {
		code, out, problem := run(m[1], "--help")
		if code != 0 || problem != "" {
			t.Errorf("%s --help: exit code %d, %s", m[1], code, problem)
		}
		for _, want := range []string{"\nUsage:\n  lbgraph " + m[1], "\nExamples:\n  "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s --help lacks %q:\n%s", m[1], strings.TrimSpace(want), out)
			}
		}
		for line := range strings.Lines(out) {
			if len([]rune(line)) > 101 {
				t.Errorf("%s --help has a line of %d letters: %s", m[1], len([]rune(line)), line)
			}
		}
		if code, again, _ := run("help", m[1]); code != 0 || !strings.Contains(again, "Usage:\n  lbgraph "+m[1]) {
			t.Errorf("help %s: exit code %d\n%s", m[1], code, again)
		}
		if page := cmd.Reference(); !strings.Contains(page, "\n## lbgraph "+m[1]+"\n") {
			t.Errorf("%s is not in the reference", m[1])
		}
	}
}

// Commands that README.md shows exist, with the flags it shows.
func TestReadmeCommands(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^    (?:sudo )?lbgraph ([a-z]+)(.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(shown) < 5 {
		t.Fatalf("README.md shows %d commands", len(shown))
	}
	flag := regexp.MustCompile(` --?([a-z][a-z-]+)`)
	for _, m := range shown {
		code, out, problem := run(m[1], "--help")
		if code != 0 {
			t.Errorf("README.md shows lbgraph %s: %s", m[1], problem)
			continue
		}
		for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
			if !strings.Contains(out, "--"+f[1]+" ") {
				t.Errorf("README.md shows lbgraph %s with flag %s, which it does not have", m[1], f[1])
			}
		}
	}
}

// Long flags may be written with one dash; values, short flags and what stands
// behind -- are left alone.
func TestOneDash(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
	}{
		{"version -output json", 0},
		{"version -output=json", 0},
		{"version --output json", 0},
		{"version -ojson", 0},
		{"version -help", 0},
		{"version -outptu json", 2},
		{"version -- -output", 2},
		{"-help", 0},
	} {
		if code, out, problem := run(strings.Fields(c.args)...); code != c.code {
			t.Errorf("lbgraph %s: exit code %d, want %d\n%s%s", c.args, code, c.code, out, problem)
		}
	}
}
