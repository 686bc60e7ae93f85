package repotest

import (
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Words that no tracked file may contain. They are put together here so that this
// file does not contain them.
var forbidden = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/` + `work/|/` + `root/|/` + `home/[a-z]|/tmp/` + `bash_jobs`), "a path of one machine"},
	{regexp.MustCompile(`proxy\.` + `golang\.org|registry\.` + `npmjs|deb\.` + `debian\.org`), "a package registry's host"},
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`), "an open end"},
	{regexp.MustCompile(`(?i)\b(clau` + `de|anthro` + `pic|chat` + `gpt|co` + `pilot|sub` + `agent)\b`), "a word on how this was written"},
	{regexp.MustCompile(`BEGIN (RSA |EC |OPENSSH )?PRIVATE` + ` KEY`), "a private key"},
}

func TestForbiddenWords(t *testing.T) {
	for _, f := range tracked(t) {
		if f == "go.sum" || f == "LICENSE" {
			continue
		}
		text := read(t, f)
		for _, w := range forbidden {
			for _, at := range w.pattern.FindAllStringIndex(text, 3) {
				t.Errorf("%s:%d: %q is %s", f, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], w.why)
			}
		}
	}
}

// Text files end with one newline, and have no blanks at the ends of lines,
// unless they are golden output.
func TestTextFiles(t *testing.T) {
	for _, f := range tracked(t) {
		text := read(t, f)
		if strings.Contains(f, "testdata/") || f == "LICENSE" || !utf8.ValidString(text) || strings.Contains(text, "\x00") || path.Ext(f) == ".svg" || text == "" {
			continue
		}
		if !strings.HasSuffix(text, "\n") || strings.HasSuffix(text, "\n\n") {
			t.Errorf("%s does not end with one newline", f)
		}
		if strings.Contains(text, "\r\n") {
			t.Errorf("%s has DOS line ends", f)
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			if line = strings.TrimSuffix(line, "\n"); strings.TrimRight(line, " \t") != line {
				t.Errorf("%s:%d ends in blanks", f, n)
			}
		}
	}
}
