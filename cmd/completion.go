package cmd

import (
	"github.com/spf13/cobra"
)

func init() { add(newCompletion) }

func newCompletion(a *app) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write what a shell needs to complete lbgraph's commands",
		Long: `Writes a script for bash, zsh, fish or powershell to standard output. It
completes commands, flags, files, kinds, and the names of nodes in a file.`,
		Example: `  source <(lbgraph completion bash)
  lbgraph completion zsh > "${fpath[1]}/_lbgraph"
  lbgraph completion fish > ~/.config/fish/completions/lbgraph.fish`,
		Args:      takes("SHELL"),
		ValidArgs: shells,
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			case "fish":
				return c.Root().GenFishCompletion(a.out, true)
			case "powershell":
				return c.Root().GenPowerShellCompletionWithDesc(a.out)
			}
			return misuse("there is no completion for %q. Choose among bash, zsh, fish, powershell", args[0])
		},
	}
}
