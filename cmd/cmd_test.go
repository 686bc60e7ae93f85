package cmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
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

// Every command, and every command of a command, explains itself: a sentence, a
// usage line, an example.
func TestHelp(t *testing.T) {
	names := regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`)
	commands := func(help string) (all []string) {
		_, list, _ := strings.Cut(help, "Commands:\n")
		for _, m := range names.FindAllStringSubmatch(list, -1) {
			all = append(all, m[1])
		}
		return all
	}
	seen := 0
	var visit func(path ...string)
	visit = func(path ...string) {
		seen++
		name := strings.Join(path, " ")
		code, out, problem := run(append(path, "--help")...)
		if code != 0 || problem != "" {
			t.Errorf("%s --help: exit code %d, %s", name, code, problem)
		}
		for _, want := range []string{"\nUsage:\n  lbgraph " + name, "\nExamples:\n  "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s --help lacks %q:\n%s", name, strings.TrimSpace(want), out)
			}
		}
		for line := range strings.Lines(out) {
			if len([]rune(line)) > 101 {
				t.Errorf("%s --help has a line of %d letters: %s", name, len([]rune(line)), line)
			}
		}
		if code, short, _ := run(append(path, "-h")...); code != 0 || short != out {
			t.Errorf("%s -h: exit code %d\n%s", name, code, short)
		}
		if code, again, _ := run(append([]string{"help"}, path...)...); code != 0 || !strings.Contains(again, "Usage:\n  lbgraph "+name) {
			t.Errorf("help %s: exit code %d\n%s", name, code, again)
		}
		if page := cmd.Reference(); !strings.Contains(page, "\n## lbgraph "+name+"\n") {
			t.Errorf("%s is not in the reference", name)
		}
		for _, sub := range commands(out) {
			visit(append(path[:len(path):len(path)], sub)...)
		}
	}
	_, out, _ := run("--help")
	for _, name := range commands(out) {
		visit(name)
	}
	if seen < 12 {
		t.Errorf("%d commands in\n%s", seen, out)
	}
}

// What a program may read is one JSON document with -o json, and nothing beside it.
func TestJSON(t *testing.T) {
	const good = "../lb.hcl"
	bad := filepath.Join(t.TempDir(), "bad.hcl")
	if err := os.WriteFile(bad, []byte("graph \"g\" {\n  path { main = [xdp-rx, parse] }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		key  string // that the document, or its first element, has
	}{
		{"check " + good, 0, "messages"},
		{"check " + bad, 1, "messages"},
		{"dot " + good, 0, "nodes"},
		{"explain parse", 0, "outputs"},
		{"explain " + good + " mtu", 0, "node"},
		{"nodes", 0, "kind"},
		{"version", 0, "version"},
	} {
		for _, flag := range []string{"-o json", "--output=json", "-output json"} {
			code, out, problem := run(strings.Fields(c.args + " " + flag)...)
			var v any
			if err := json.Unmarshal([]byte(out), &v); err != nil || code != c.code || problem != "" {
				t.Errorf("%s %s: exit code %d, %v, %s\n%s", c.args, flag, code, err, problem, out)
				continue
			}
			if list, ok := v.([]any); ok && len(list) > 0 {
				v = list[0]
			}
			if m, _ := v.(map[string]any); m[c.key] == nil {
				t.Errorf("%s %s has no %q:\n%s", c.args, flag, c.key, out)
			}
		}
		if code, _, problem := run(append(strings.Fields(c.args), "-o", "yaml")...); code != 2 || !strings.Contains(problem, `-o is "yaml"`) {
			t.Errorf("%s -o yaml: exit code %d, %s", c.args, code, problem)
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
	sub := regexp.MustCompile(`^ ([a-z]+)`)
	for _, m := range shown {
		args := []string{m[1], "--help"}
		if s := sub.FindStringSubmatch(m[2]); s != nil {
			if _, out, _ := run(args...); strings.Contains(out, "\n  "+s[1]+" ") { // a command of a command
				args = []string{m[1], s[1], "--help"}
			}
		}
		code, out, problem := run(args...)
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
