package repotest

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

func markdown(t *testing.T) (files []string) {
	t.Helper()
	for _, f := range tracked(t) {
		if filepath.Ext(f) == ".md" && !strings.Contains(f, "testdata/") {
			files = append(files, f)
		}
	}
	return files
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links between the documents lead somewhere, headings included.
func TestLinks(t *testing.T) {
	for _, f := range markdown(t) {
		for _, m := range link.FindAllStringSubmatch(withoutCode(read(t, f)), -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %s: %v", f, m[1], err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			to := f
			if u.Path != "" {
				to = filepath.Join(filepath.Dir(f), u.Path)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s leads to %s, which is not there", f, m[1])
				continue
			}
			if u.Fragment != "" && filepath.Ext(to) == ".md" && !anchors(read(t, to))[u.Fragment] {
				t.Errorf("%s leads to %s, but %s has no such heading", f, m[1], to)
			}
		}
	}
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)

// anchors answers what the headings of a document are called in links.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(withoutCode(text)) {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			name := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all[strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	return all
}

// A fence is one fenced block of a document.
type fence struct {
	language, text string
	line           int // of its first line of text
}

func fences(text string) (all []fence) {
	in, n := false, 0
	for line := range strings.Lines(text) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case in && trimmed == "```":
			in = false
		case in:
			all[len(all)-1].text += line
		case strings.HasPrefix(trimmed, "```"):
			in = true
			all = append(all, fence{language: strings.TrimPrefix(trimmed, "```"), line: n + 1})
		}
	}
	return all
}

func withoutCode(text string) string {
	for _, f := range fences(text) {
		text = strings.Replace(text, f.text, "", 1)
	}
	return text
}

// Examples in the documents are HCL.
func TestExamplesParse(t *testing.T) {
	for _, f := range markdown(t) {
		for _, block := range fences(read(t, f)) {
			if block.language != "hcl" {
				continue
			}
			_, diags := hclsyntax.ParseConfig([]byte(block.text), f, hcl.Pos{Line: block.line, Column: 1})
			for _, d := range diags {
				t.Error(d)
			}
		}
	}
}

// The make targets that documents name exist, and so do the scripts.
func TestCommandsInDocuments(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, target := range strings.Fields("build test check lint demo bench gen soak clean") {
		if !targets[target] {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
	command := regexp.MustCompile("(?m)(?:^|`)(?:sudo )?make ([a-z]+)(?:[`\\s]|$)")
	for _, f := range markdown(t) {
		text := read(t, f)
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			if !targets[m[1]] {
				t.Errorf("%s names make %s, which the Makefile does not have", f, m[1])
			}
		}
	}
}
