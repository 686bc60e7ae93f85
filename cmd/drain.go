package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func init() { add(newDrain); add(newUndrain) }

func newDrain(a *app) *cobra.Command {
	return a.drain("drain", &cobra.Command{
		Use:   "drain",
		Short: "Withdraw the node's routes and keep forwarding",
		Long: `Has the daemon withdraw all its routes and say that it is not ready. What still comes
is forwarded, so that nothing is lost while the network sends traffic elsewhere. It
lasts until undrain, or a restart. A drain block in the file does the same.`,
		Example: `  lbgraph drain && sleep 10 && systemctl restart lbgraph`,
	})
}

func newUndrain(a *app) *cobra.Command {
	return a.drain("undrain", &cobra.Command{
		Use:     "undrain",
		Short:   "Announce the node's routes again",
		Long:    `Ends what drain began. A drain block in the file goes on draining the node.`,
		Example: `  lbgraph undrain`,
	})
}

func (a *app) drain(what string, c *cobra.Command) *cobra.Command {
	c.Args = takes()
	ask, asJSON := a.daemon(c), output(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		var x struct {
			Drained []string `json:"drained"`
		}
		if err := ask().ask(c.Context(), "POST", "/v1/"+what, nil, &x); err != nil {
			return err
		}
		switch {
		case js:
			return a.json(x, nil)
		case len(x.Drained) == 0:
			_, err = fmt.Fprintln(a.out, "the node is not drained")
		default:
			_, err = fmt.Fprintf(a.out, "the node is drained, by %s\n", strings.Join(x.Drained, " and "))
		}
		return err
	}
	return c
}
