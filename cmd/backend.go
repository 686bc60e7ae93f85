package cmd

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
)

func init() { add(newBackend) }

func newBackend(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "backend COMMAND",
		Short: "Drain, weigh or flush a backend of the daemon that runs",
		Long: `Gives orders about a backend, which commands call POOL/NAME. An order holds until
another, or restore, or a restart of the daemon; with --until-reload the next reload
ends it.`,
		Example: `  lbgraph backend drain web/web-1
  lbgraph backend weight web/web-2 50
  lbgraph backend restore web/web-1`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse("backend needs a command: drain, enable, weight, flush or restore. See lbgraph backend --help")
			}
			return misuse("there is no command %q: backend has drain, enable, weight, flush and restore", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	yes := func(set func(*admin.Change)) func([]string) (admin.Change, error) {
		return func([]string) (x admin.Change, err error) { set(&x); return x, nil }
	}
	c.AddCommand(
		a.order("drain", "Keep its flows and give it no new ones", `  lbgraph backend drain web/web-1 --until-reload`, true, nil, yes(func(x *admin.Change) { x.Drain = true })),
		a.order("enable", "Give it new flows, whatever the file says", `  lbgraph backend enable web/web-1`, true, nil, yes(func(x *admin.Change) { x.Enable = true })),
		a.order("weight", "Set its share of new flows, 0 to 1000", `  lbgraph backend weight web/web-1 50`, true, []string{"WEIGHT"}, func(args []string) (x admin.Change, err error) {
			w, err := strconv.Atoi(args[0])
			if err != nil || w < 0 || w > 1000 {
				return x, misuse("the weight is %q. Write a number from 0 to 1000", args[0])
			}
			x.Weight = &w
			return x, nil
		}),
		a.order("flush", "Forget its flows: their next packets select a backend again", `  lbgraph backend flush web/web-1`, false, nil, yes(func(x *admin.Change) { x.Flush = true })),
		a.order("restore", "Take back drain, enable and weight: what the file says holds", `  lbgraph backend restore web/web-1`, false, nil, yes(func(x *admin.Change) { x.Restore = true })),
	)
	return c
}

// order makes one subcommand.
func (a *app) order(name, short, example string, lasts bool, more []string, change func([]string) (admin.Change, error)) *cobra.Command {
	c := &cobra.Command{
		Use: strings.Join(append([]string{name, "POOL/NAME"}, more...), " "), Short: short, Long: short + ".", Example: example,
		Args: takes(append([]string{"POOL/NAME"}, more...)...),
	}
	until := false
	if lasts {
		c.Flags().BoolVar(&until, "until-reload", false, "let the next reload end it")
	}
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		pool, backend, ok := strings.Cut(args[0], "/")
		if !ok || pool == "" || backend == "" {
			return misuse("the backend is %q. Write POOL/NAME", args[0])
		}
		x, err := change(args[1:])
		if err != nil {
			return err
		}
		x.UntilReload = until
		var pools []admin.Pool
		if err := ask().ask(c.Context(), "POST", "/v1/backends/"+url.PathEscape(pool)+"/"+url.PathEscape(backend), x, &pools); err != nil {
			return err
		}
		for _, p := range pools {
			for _, b := range p.Backends {
				if b.Name != args[0] {
					continue
				}
				if js {
					return a.json(b, nil)
				}
				_, err := fmt.Fprintf(a.out, "%s: %s, weight %d\n", b.Name, b.Status, b.Weight)
				return err
			}
		}
		return nil
	}
	return c
}
