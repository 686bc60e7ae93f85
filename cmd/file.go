package cmd

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// options adds the flag -var to c and answers the options of lang.Load that it
// asks for, once the flags are read.
func options(c *cobra.Command) func() (lang.Options, error) {
	vars := c.Flags().StringArray("var", nil, "value of a variable, as `NAME=VALUE`; may be repeated")
	return func() (lang.Options, error) {
		o := lang.Options{Vars: map[string]string{}}
		for _, v := range *vars {
			name, value, ok := strings.Cut(v, "=")
			if !ok || name == "" {
				return o, misuse("-var is %q. Write NAME=VALUE", v)
			}
			o.Vars[name] = value
		}
		return o, nil
	}
}

// file adds the flag -var to c and answers what reads and checks a file, once the
// flags are read. What is wrong with it is printed to standard error; the error is
// then one that needs no more words.
func (a *app) file(c *cobra.Command) func(path string) (*graph.File, error) {
	opts := options(c)
	return func(path string) (*graph.File, error) {
		o, err := opts()
		if err != nil {
			return nil, err
		}
		l := load(path, o)
		if err := a.tell(l); err != nil {
			return nil, err
		}
		return l.file, l.err()
	}
}

// A loaded is a file that was read and checked, or what is wrong with it.
type loaded struct {
	file    *graph.File // nil with errors
	parsed  *graph.File // nil only if the file is not in the language
	sources map[string][]byte
	diags   hcl.Diagnostics
}

// err is the error of a command that needs the file, once diags are printed.
func (l loaded) err() error {
	if l.file == nil {
		return &exitError{fileIsWrong, nil}
	}
	return nil
}

// load reads a file and checks it.
func load(path string, o lang.Options) loaded {
	l := daemon.Source{Path: path, Vars: o.Vars}.Load()
	return loaded{l.File, l.Parsed, l.Sources, l.Diags}
}

// tell prints what there is to say about a file to standard error.
func (a *app) tell(l loaded) error {
	if len(l.diags) == 0 {
		return nil
	}
	return lang.WriteDiagnostics(a.err, l.diags, l.sources, colour(a.err))
}

// hclFiles completes the first argument as a file, and no other.
func hclFiles(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"hcl", "json"}, cobra.ShellCompDirectiveFilterFileExt
}
