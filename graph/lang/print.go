package lang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// textWidth is the column at which the sentences of a message are wrapped.
const textWidth = 88

// WriteDiagnostics prints diagnostics for people: the summary, the place with its
// line and a caret line, and the sentences. sources are the files' contents by
// name, as in graph.File.Sources; a place in a file that is not among them prints
// without its line. color adds ANSI colours for a terminal.
func WriteDiagnostics(w io.Writer, diags hcl.Diagnostics, sources map[string][]byte, color bool) error {
	var b bytes.Buffer
	paint := func(code, s string) string {
		if !color {
			return s
		}
		return "\x1b[" + code + "m" + s + "\x1b[0m"
	}
	for i, d := range diags {
		if i > 0 {
			b.WriteByte('\n')
		}
		hue := "1;31"
		if d.Severity == hcl.DiagWarning {
			hue = "1;33"
		}
		fmt.Fprintf(&b, "%s%s\n", paint(hue, severity(d)+":"), paint("1", " "+plain(d.Summary)))
		if d.Subject != nil {
			excerpt(&b, *d.Subject, sources[d.Subject.Filename], func(s string) string { return paint(hue, s) }, func(s string) string { return paint("2", s) })
		}
		for _, line := range wrap(d.Detail) {
			if line != "" {
				line = "  " + line
			}
			b.WriteString(line + "\n")
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func severity(d *hcl.Diagnostic) string {
	if d.Severity == hcl.DiagWarning {
		return "warning"
	}
	return "error"
}

// excerpt prints where r is, and its first line with carets beneath.
func excerpt(b *bytes.Buffer, r hcl.Range, src []byte, mark, dim func(string) string) {
	if r.Start.Line == 0 {
		fmt.Fprintf(b, "  --> %s\n", plain(r.Filename))
		return
	}
	number := fmt.Sprint(r.Start.Line)
	gap := strings.Repeat(" ", len(number))
	fmt.Fprintf(b, "%s --> %s:%d:%d\n", gap, plain(r.Filename), r.Start.Line, r.Start.Column)
	line, ok := lineOf(src, r.Start.Byte)
	if !ok {
		return
	}
	from := r.Start.Byte - line.start
	to := len(line.text)
	if r.End.Line == r.Start.Line {
		to = min(to, r.End.Byte-line.start)
	}
	shown, pad := display(line.text, from)
	_, end := display(line.text, max(to, from))
	shown, pad, end = window(shown, pad, end)
	fmt.Fprintf(b, "%s\n", dim(" "+gap+" |"))
	fmt.Fprintf(b, "%s %s\n", dim(" "+number+" |"), strings.TrimRight(shown, " "))
	fmt.Fprintf(b, "%s %s%s\n", dim(" "+gap+" |"), strings.Repeat(" ", pad), mark(strings.Repeat("^", max(end-pad, 1))))
}

type sourceLine struct {
	text  string
	start int
}

// lineOf answers the line of src that holds the byte at offset.
func lineOf(src []byte, offset int) (sourceLine, bool) {
	if src == nil || offset < 0 || offset > len(src) {
		return sourceLine{}, false
	}
	start := bytes.LastIndexByte(src[:offset], '\n') + 1
	end := len(src)
	if i := bytes.IndexByte(src[offset:], '\n'); i >= 0 {
		end = offset + i
	}
	return sourceLine{strings.TrimSuffix(string(src[start:end]), "\r"), start}, true
}

// display answers a line as it is printed, tabs as spaces and control characters
// as dots, and the number of columns before the byte at.
func display(line string, at int) (shown string, columns int) {
	var b strings.Builder
	n := 0
	columns = -1
	for i, r := range line {
		if i >= at && columns < 0 {
			columns = n
		}
		switch {
		case r == '\t':
			for ok := true; ok; ok = n%4 != 0 {
				b.WriteByte(' ')
				n++
			}
		case unicode.Is(unicode.Mn, r):
			b.WriteRune(r)
		case r == utf8.RuneError || !unicode.IsPrint(r):
			b.WriteRune('·')
			n++
		default:
			b.WriteRune(r)
			n++
		}
	}
	if columns < 0 {
		columns = n
	}
	return b.String(), columns
}

// window cuts what is left of and behind the marked columns of a long line.
func window(shown string, from, to int) (string, int, int) {
	const width = 160
	r := []rune(shown)
	if len(r) <= width {
		return shown, from, to
	}
	lo := max(min(from-width/4, len(r)-width), 0)
	hi := min(lo+width, len(r))
	cut := append([]rune(nil), r[lo:hi]...)
	if lo > 0 {
		cut[0] = '…'
	}
	if hi < len(r) {
		cut[len(cut)-1] = '…'
	}
	return string(cut), from - lo, min(to-lo, len(cut))
}

// plain replaces what could steer a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return '·'
	}, s)
}

// wrap breaks sentences into lines. Lines that begin with a space stay as they
// are: they are drawings.
func wrap(text string) []string {
	var out []string
	if text == "" {
		return nil
	}
	for _, line := range strings.Split(strings.TrimRight(plain(text), "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			out = append(out, line)
			continue
		}
		cur := ""
		for _, w := range strings.Fields(line) {
			if cur != "" && utf8.RuneCountInString(cur)+1+utf8.RuneCountInString(w) > textWidth-2 {
				out = append(out, cur)
				cur = w
			} else if cur == "" {
				cur = w
			} else {
				cur += " " + w
			}
		}
		out = append(out, cur)
	}
	return out
}

// A Message is a diagnostic as programs read it. Lines and columns begin at 1 and
// are 0 where there is no place; columns count characters.
type Message struct {
	Severity  string `json:"severity"` // "error" or "warning"
	Summary   string `json:"summary"`
	Detail    string `json:"detail"`
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"`
}

// Messages answers diagnostics as programs read them, never nil.
func Messages(diags hcl.Diagnostics) []Message {
	all := make([]Message, 0, len(diags))
	for _, d := range diags {
		r := place(d)
		all = append(all, Message{severity(d), d.Summary, d.Detail, r.Filename, r.Start.Line, r.Start.Column, r.End.Line, r.End.Column})
	}
	return all
}

// WriteDiagnosticsJSON prints diagnostics as a JSON array of Message.
func WriteDiagnosticsJSON(w io.Writer, diags hcl.Diagnostics) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(Messages(diags))
}

// Format answers src, a file called path in messages, in canonical form: indented
// by two spaces, equals signs aligned, comments kept; JSON keeps its order. A file with syntax errors is
// answered as it is, with the errors.
func Format(path string, src []byte) ([]byte, hcl.Diagnostics) {
	l := &loader{path: path, json: isJSON(path)}
	if l.parse(path, src); l.diags.HasErrors() {
		return src, tidy(l.diags)
	}
	if l.json {
		var b bytes.Buffer
		if json.Indent(&b, bytes.TrimSpace(src), "", "  ") != nil {
			return src, nil // not after a parser that stands on the same package
		}
		b.WriteByte('\n')
		return b.Bytes(), nil
	}
	if len(bytes.TrimSpace(src)) == 0 {
		return nil, nil
	}
	out := src
	for range 8 { // one pass leaves a few rare forms that the next one changes
		next := hclwrite.Format(out)
		if next[len(next)-1] != '\n' {
			next = append(next, '\n')
		}
		if bytes.Equal(next, out) {
			break
		}
		out = next
	}
	return out, nil
}
