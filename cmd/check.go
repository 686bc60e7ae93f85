package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/internal/host"
)

func init() { add(newCheck) }

func newCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a file",
		Long: `Reads a file, follows every name in it, and checks that its graphs make sense:
that every packet, on every way it can take, holds what each node needs, and ends
somewhere. Nothing is opened or changed, and no privilege is needed.

With --host it looks at this machine too: kernel, privileges, and what the interfaces
that the file names are set to.`,
		Example: `  lbgraph check lb.hcl
  lbgraph check --host lb.hcl
  lbgraph check lb.hcl -var uplink=ens3
  lbgraph check lb.hcl -o json | jq -r '.messages[] | "\(.line): \(.summary)"'`,
		Args:              takes("FILE"),
		ValidArgsFunction: hclFiles,
	}
	opts, asJSON := options(c), output(c)
	machine := c.Flags().Bool("host", false, "look at this machine too")
	c.RunE = func(_ *cobra.Command, args []string) error {
		o, err := opts()
		if err != nil {
			return err
		}
		js, err := asJSON()
		if err != nil {
			return err
		}
		l := load(args[0], o)
		var found []host.Finding
		if *machine && l.file != nil {
			found = host.Check(l.file)
		}
		if js {
			err = a.json(struct {
				File     string         `json:"file"`
				OK       bool           `json:"ok"`
				Messages []lang.Message `json:"messages"`
				Host     []host.Finding `json:"host,omitempty"`
			}{args[0], l.file != nil, lang.Messages(l.diags), found}, nil)
		} else if err = a.tell(l); err == nil {
			if err = a.verdict(args[0], l); err == nil {
				err = a.findings(found)
			}
		}
		if err == nil {
			err = l.err()
		}
		if err == nil && slices.ContainsFunc(found, func(f host.Finding) bool { return f.Level == host.Error }) {
			err = &exitError{systemRefused, nil}
		}
		return err
	}
	return c
}

// findings prints what was found out about the machine, a line each.
func (a *app) findings(found []host.Finding) error {
	for _, f := range found {
		line := f.Level + ": " + f.What
		if f.Remedy != "" {
			line += ". " + f.Remedy
		}
		if _, err := fmt.Fprintln(a.out, line); err != nil {
			return err
		}
	}
	return nil
}

// verdict prints one line for a file that was checked.
func (a *app) verdict(path string, l loaded) error {
	errors, warnings := 0, 0
	for _, d := range l.diags {
		if d.Severity == hcl.DiagError {
			errors++
		} else {
			warnings++
		}
	}
	var parts []string
	if warnings > 0 {
		parts = append(parts, plural(warnings, "warning"))
	}
	if l.file == nil {
		parts = append([]string{plural(errors, "error")}, parts...)
		_, err := fmt.Fprintf(a.err, "\n%s: %s\n", path, strings.Join(parts, ", "))
		return err
	}
	parts = append(contents(l.file), parts...)
	_, err := fmt.Fprintf(a.out, "%s: ok (%s)\n", path, strings.Join(parts, ", "))
	return err
}

// contents counts what a file declares.
func contents(f *graph.File) []string {
	nodes, backends := 0, 0
	for _, g := range f.Graphs {
		nodes += len(g.Nodes)
	}
	for _, p := range f.Spec.Pools {
		backends += len(p.Backends)
	}
	parts := []string{plural(len(f.Graphs), "graph"), plural(nodes, "node"), plural(len(f.Spec.VIPs), "VIP"), plural(len(f.Spec.Pools), "pool"), plural(backends, "backend")}
	if len(f.Controls) > 0 {
		parts = append(parts, plural(len(f.Controls), "control block"))
	}
	return parts
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
