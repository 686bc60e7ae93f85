package lang_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/lbgraph/lbgraph/graph/lang"
)

func at(line, col, b, endLine, endCol, endByte int) *hcl.Range {
	return &hcl.Range{Filename: "lb.hcl", Start: hcl.Pos{Line: line, Column: col, Byte: b}, End: hcl.Pos{Line: endLine, Column: endCol, Byte: endByte}}
}

func TestWriteDiagnostics(t *testing.T) {
	for _, c := range []struct {
		name, src, want string
		d               hcl.Diagnostic
	}{
		{"design", strings.Repeat("\n", 5) + "    new_flow  = [ct.miss, clamp]\n", `error: No backend on this edge
  --> lb.hcl:6:18
   |
 6 |     new_flow  = [ct.miss, clamp]
   |                  ^^^^^^^^^^^^^^
  "clamp" (mss-clamp) needs l3, backend on every packet, but one can come by

      rx -> parse -> ct.miss -> clamp

  and on this way nothing gives it backend. Lead it through maglev-select first.
`, hcl.Diagnostic{
			Severity: hcl.DiagError, Summary: "No backend on this edge", Subject: at(6, 18, 22, 6, 32, 36),
			Detail: "\"clamp\" (mss-clamp) needs l3, backend on every packet, but one can come by\n\n    rx -> parse -> ct.miss -> clamp\n\nand on this way nothing gives it backend. Lead it through maglev-select first.",
		}},
		{"two digits and tabs", strings.Repeat("\n", 9) + "\ta\t= 1\n", `warning: W
   --> lb.hcl:10:5
    |
 10 |     a   = 1
    |           ^
  D.
`, hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "W", Detail: "D.", Subject: at(10, 6, 14, 10, 7, 15)}},
		{"several lines", "a = [\n 1]\n", `error: S
  --> lb.hcl:1:5
   |
 1 | a = [
   |     ^
`, hcl.Diagnostic{Severity: hcl.DiagError, Summary: "S", Subject: at(1, 5, 4, 2, 4, 9)}},
		{"end of file", "a = 1", `error: S
  --> lb.hcl:1:6
   |
 1 | a = 1
   |      ^
`, hcl.Diagnostic{Severity: hcl.DiagError, Summary: "S", Subject: at(1, 6, 5, 1, 6, 5)}},
		{"letters of several bytes and control characters", "é\x1b[31m = 1\r\n", `error: Bad·[31m
  --> lb.hcl:1:9
   |
 1 | é·[31m = 1
   |          ^
  ·[0mx
`, hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Bad\x1b[31m", Detail: "\x1b[0mx", Subject: at(1, 9, 10, 1, 10, 11)}},
		{"no place", "", "error: S\n  D.\n", hcl.Diagnostic{Severity: hcl.DiagError, Summary: "S", Detail: "D."}},
		{"file alone", "", "error: S\n  --> lb.hcl\n  D.\n", hcl.Diagnostic{Severity: hcl.DiagError, Summary: "S", Detail: "D.", Subject: &hcl.Range{Filename: "lb.hcl"}}},
		{"place beyond the source", "a", "error: S\n  --> lb.hcl:7:1\n", hcl.Diagnostic{Severity: hcl.DiagError, Summary: "S", Subject: at(7, 1, 99, 7, 2, 100)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			if err := lang.WriteDiagnostics(&b, hcl.Diagnostics{&c.d}, map[string][]byte{"lb.hcl": []byte(c.src)}, false); err != nil {
				t.Fatal(err)
			}
			if c.name == "two digits and tabs" {
				c.want = strings.Replace(c.want, "lb.hcl:10:5", "lb.hcl:10:6", 1)
			}
			if b.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", b.String(), c.want)
			}
		})
	}
}

func TestWriteDiagnosticsLongLine(t *testing.T) {
	src := "a = [" + strings.Repeat("1234567, ", 100) + "x]"
	i := strings.IndexByte(src, 'x')
	var b strings.Builder
	lang.WriteDiagnostics(&b, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "S", Subject: at(1, i+1, i, 1, i+2, i+1)}}, map[string][]byte{"lb.hcl": []byte(src)}, false)
	lines := strings.Split(b.String(), "\n")
	if n := len([]rune(lines[3])); n > 170 {
		t.Errorf("the line is %d columns long", n)
	}
	if []rune(lines[3])[strings.IndexByte(lines[4], '^')] != 'x' {
		t.Errorf("the caret is misplaced:\n%s", b.String())
	}
}

func TestWriteDiagnosticsColor(t *testing.T) {
	var plain, color strings.Builder
	_, diags := lang.LoadBytes("lb.hcl", []byte("pool {\n}\n"), lang.Options{})
	src := map[string][]byte{"lb.hcl": []byte("pool {\n}\n")}
	lang.WriteDiagnostics(&plain, diags, src, false)
	lang.WriteDiagnostics(&color, diags, src, true)
	stripped := color.String()
	for _, code := range []string{"0", "1", "2", "1;31"} {
		if !strings.Contains(stripped, "\x1b["+code+"m") {
			t.Errorf("no %s", code)
		}
		stripped = strings.ReplaceAll(stripped, "\x1b["+code+"m", "")
	}
	if stripped != plain.String() {
		t.Errorf("with colours\n%s\nwithout\n%s", stripped, plain.String())
	}
}

func TestWriteDiagnosticsJSON(t *testing.T) {
	var b bytes.Buffer
	if lang.WriteDiagnosticsJSON(&b, nil); strings.TrimSpace(b.String()) != "[]" {
		t.Errorf("nothing is %s", b.String())
	}
	b.Reset()
	_, diags := lang.LoadBytes("lb.hcl", []byte("\n  pool {\n  }\n"), lang.Options{})
	if err := lang.WriteDiagnosticsJSON(&b, diags); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"severity": "error", "summary": "Block without a name", "file": "lb.hcl", "line": 2.0, "column": 3.0, "end_line": 2.0, "end_column": 7.0,
		"detail": `A block "pool" has one name behind its type. Write pool "name" { … }.`,
	}
	if len(got) != 1 || len(got[0]) != len(want) {
		t.Fatalf("got %s", b.String())
	}
	for k, v := range want {
		if got[0][k] != v {
			t.Errorf("%s is %v, want %v", k, got[0][k], v)
		}
	}
}

func TestFormat(t *testing.T) {
	src := "# head\npool \"web\"   {\ntable_size=65537 # prime\n  hash_seed   = 1\n\n/* b */\n      backend \"b\" { address=\"10.0.0.1\" }\n}"
	want := "# head\npool \"web\" {\n  table_size = 65537 # prime\n  hash_seed  = 1\n\n  /* b */\n  backend \"b\" { address = \"10.0.0.1\" }\n}\n"
	got, diags := lang.Format("lb.hcl", []byte(src))
	if diags.HasErrors() || string(got) != want {
		t.Errorf("got\n%s%v\nwant\n%s", got, diags, want)
	}
	if got, diags = lang.Format("a.json", []byte(`{"pool":{"b":{},"a":[1]}}`)); string(got) != "{\n  \"pool\": {\n    \"b\": {},\n    \"a\": [\n      1\n    ]\n  }\n}\n" {
		t.Errorf("JSON: %s %v", got, diags)
	}
	bad := []byte("pool \"web\" {\n")
	if got, diags = lang.Format("lb.hcl", bad); !diags.HasErrors() || !bytes.Equal(got, bad) {
		t.Errorf("a broken file came back as %q, %v", got, diags)
	}
	sample, err := os.ReadFile("testdata/sample.hcl")
	if err != nil {
		t.Fatal(err)
	}
	checkFormat(t, sample)
}

// checkFormat holds Format to its promise: it changes blanks alone, and formatting
// once more changes nothing.
func checkFormat(t *testing.T, src []byte) {
	once, diags := lang.Format("lb.hcl", src)
	if diags.HasErrors() {
		return
	}
	twice, diags := lang.Format("lb.hcl", once)
	if diags.HasErrors() {
		t.Fatalf("formatting broke the file: %v\n%q\n%q", diags, src, once)
	}
	if !bytes.Equal(once, twice) {
		t.Fatalf("not idempotent:\n%q\n%q\n%q", src, once, twice)
	}
	if a, b := tokens(src), tokens(once); a != b {
		t.Fatalf("formatting changed more than blanks:\n%q\n%q", a, b)
	}
}

func tokens(src []byte) string {
	var b strings.Builder
	ts, _ := hclsyntax.LexConfig(src, "", hcl.InitialPos)
	for _, t := range ts {
		if t.Type != hclsyntax.TokenNewline && t.Type != hclsyntax.TokenEOF {
			b.Write(bytes.TrimSpace(t.Bytes))
			b.WriteByte(0)
		}
	}
	return b.String()
}
