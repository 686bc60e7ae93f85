package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
)

var kind = graph.Description{
	Kind: "turn", Plane: "packet", Needs: []string{"l3"},
	Arguments: []graph.Argument{
		{Name: "angle", Type: "integer", Required: true, Bounds: "1 to 359", Doc: "how far"},
		{Name: "limits", Type: "block", Doc: "bounds", Arguments: []graph.Argument{{Name: "most", Type: "integer", Default: "10", Doc: "a|b"}}},
	},
	Outputs: []graph.OutputDoc{{Name: "next", Fate: "must", Gives: []string{"flow"}, Doc: "turned packets"}},
}

func page(sections ...string) string {
	text := "# turn\n\nTurns.\n"
	for _, s := range sections {
		text += "\n## " + s + "\n\n<!-- generated -->\nold\n<!-- /generated -->\n"
	}
	return text + "\n## What it does\n\nIt turns.\n"
}

func TestFill(t *testing.T) {
	got, err := fill(page("Arguments", "Outputs", "Counters"), kind)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `angle` | integer | required | how far (1 to 359) |\n",
		"| `limits.most` | integer | `10` | a\\|b |\n",
		"| `next` | turned packets | must be drawn | gives flow |\n",
		"None of its own.\n",
		"\n## What it does\n\nIt turns.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "old\n") {
		t.Error("what stood there before is still there")
	}
	again, err := fill(got, kind)
	if err != nil || again != got {
		t.Errorf("filling twice changes the page: %v", err)
	}
}

func TestFillRefuses(t *testing.T) {
	for _, text := range []string{
		page("Arguments", "Outputs"),
		"# turn\n\n## Arguments\n\n## Outputs\n\n<!-- generated -->\n<!-- /generated -->\n\n## Counters\n",
		"# turn\n\n## Arguments\n\n<!-- /generated -->\n<!-- generated -->\n\n## Outputs\n\n## Counters\n",
	} {
		if got, err := fill(text, kind); err == nil {
			t.Errorf("filled:\n%s", got)
		}
	}
}

// TestPagesAreCurrent: what the pages say is what the commands and kinds say of
// themselves.
func TestPagesAreCurrent(t *testing.T) {
	all, err := pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("only %d pages", len(all))
	}
	for path, want := range all {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what `make gen` writes (%v)", path, err)
		}
	}
}
