package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/runtime"
)

func init() { add(newDiff) }

func newDiff(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what a reload from one file to another would do",
		Long: `Reads two files and says what a daemon that runs the first would do to change over
to the second, a line a change: "live" is done between two vectors, with connection
tables and other state kept by node name and kind; "restart" is refused by a reload,
and needs drain, restart, undrain. Nothing is opened or changed.`,
		Example: `  lbgraph diff lb.hcl lb.new.hcl
  lbgraph diff -o json lb.hcl lb.new.hcl | jq -e 'all(.class != "restart")'`,
		Args: takes("OLD", "NEW"),
	}
	c.Flags().BoolVar(&all, "all", false, "also list what is kept")
	read, asJSON := a.file(c), output(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		old, err := read(args[0])
		if err != nil {
			return err
		}
		to, err := read(args[1])
		if err != nil {
			return err
		}
		plan := []admin.Action{}
		for _, x := range daemon.Diff(old, to) {
			if all || x.Class != runtime.Keep {
				plan = append(plan, admin.Action{Class: x.Class.String(), What: x.What, Why: x.Why})
			}
		}
		if js {
			return a.json(plan, nil)
		}
		var b strings.Builder
		for _, x := range plan {
			fmt.Fprintln(&b, strings.TrimSuffix(fmt.Sprintf("%-8s %s: %s", x.Class, x.What, x.Why), ": "))
		}
		if len(plan) == 0 {
			b.WriteString("no difference\n")
		}
		_, err = a.out.Write([]byte(b.String()))
		return err
	}
	return c
}
