package cmd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph/lang"
)

func init() { add(newReload) }

func newReload(a *app) *cobra.Command {
	var plan bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Have the daemon read its file again",
		Long: `Has the daemon that runs read its file, and all that belongs to it, again, and change
over to what they say: between two vectors, without losing a packet. It prints what
changes. A file that is wrong, or that changes what needs a restart, changes nothing.`,
		Example: `  lbgraph reload
  lbgraph reload --plan
  lbgraph reload -o json | jq -r .outcome`,
		Args: takes(),
	}
	c.Flags().BoolVar(&plan, "plan", false, "say what would change, and change nothing")
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		method, path := "POST", "/v1/reload"
		if plan {
			method, path = "GET", "/v1/plan"
		}
		r, err := ask().askReload(c.Context(), method, path)
		if err != nil {
			return err
		}
		if js {
			err = a.json(r, nil)
		} else {
			err = a.reloaded(&r)
		}
		return errors.Join(err, verdictOf(&r))
	}
	return c
}

// reloaded prints a reload for people.
func (a *app) reloaded(r *admin.Reload) error {
	if len(r.Messages) > 0 {
		// The daemon has read the files; that they can be read here too is likely.
		sources := map[string][]byte{}
		for _, m := range r.Messages {
			if b, err := os.ReadFile(m.File); err == nil {
				sources[m.File] = b
			}
		}
		if err := lang.WriteDiagnostics(a.err, diagnosticsOf(r.Messages, sources), sources, colour(a.err)); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, x := range r.Plan {
		fmt.Fprintf(&b, "%-8s %s: %s\n", x.Class, x.What, x.Why)
	}
	switch r.Outcome {
	case admin.Reloaded:
		fmt.Fprintf(&b, "reloaded: %s\n", plural(len(r.Plan), "change"))
	case admin.Unchanged:
		b.WriteString("unchanged: the file says what is in force\n")
	case admin.Planned:
		if len(r.Plan) == 0 {
			b.WriteString("no change: the file says what is in force\n")
		}
	}
	_, err := a.out.Write([]byte(b.String()))
	return err
}

// verdictOf is the exit code for a reload.
func verdictOf(r *admin.Reload) error {
	switch r.Outcome {
	case admin.Wrong:
		return &exitError{fileIsWrong, errors.New("not reloaded: the file is wrong, and the configuration of before stays in force")}
	case admin.Refused, admin.Failed:
		return refused("not reloaded: %s", r.Error)
	}
	return nil
}

// diagnosticsOf makes diagnostics of what the daemon said, so that they are printed
// like those of check.
func diagnosticsOf(all []admin.Message, sources map[string][]byte) (diags hcl.Diagnostics) {
	for _, m := range all {
		d := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: m.Summary, Detail: m.Detail, Subject: &hcl.Range{
			Filename: m.File, Start: hcl.Pos{Line: m.Line, Column: m.Column, Byte: offset(sources[m.File], m.Line, m.Column)},
			End: hcl.Pos{Line: m.EndLine, Column: m.EndColumn, Byte: offset(sources[m.File], m.EndLine, m.EndColumn)},
		}}
		if m.Severity == "warning" {
			d.Severity = hcl.DiagWarning
		}
		diags = append(diags, d)
	}
	return diags
}

// offset finds the byte at which a line's column stands; columns count characters.
func offset(text []byte, line, column int) int {
	at := 0
	for n := 1; n < line; n++ {
		i := strings.IndexByte(string(text[at:]), '\n')
		if i < 0 {
			return len(text)
		}
		at += i + 1
	}
	n := 1
	for i, r := range string(text[at:]) {
		if n >= column || r == '\n' {
			return at + i
		}
		n++
	}
	return len(text)
}
