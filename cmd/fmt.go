package cmd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/graph/lang"
)

func init() { add(newFmt) }

func newFmt(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "fmt FILE...",
		Short: "Bring files into canonical form",
		Long: `Rewrites files with canonical indentation and alignment, keeping comments, and
names those that it changed. "-" formats standard input to standard output.`,
		Example: `  lbgraph fmt lb.hcl examples/*.hcl
  lbgraph fmt -d lb.hcl
  lbgraph fmt --check lb.hcl || echo "run lbgraph fmt"`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse("fmt needs FILE. See lbgraph fmt --help")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"hcl"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	show := c.Flags().BoolP("diff", "d", false, "print what would change, and write nothing")
	only := c.Flags().Bool("check", false, "write nothing; exit with 1 if a file is not in canonical form")
	c.RunE = func(_ *cobra.Command, args []string) error {
		wrong := false
		for _, path := range args {
			changed, err := a.format(path, *show, *only)
			if err != nil {
				return err
			}
			wrong = wrong || changed && *only
		}
		if wrong {
			return &exitError{fileIsWrong, nil}
		}
		return nil
	}
	return c
}

// format brings one file into canonical form, or shows or only names it.
func (a *app) format(path string, show, only bool) (changed bool, err error) {
	if strings.HasSuffix(path, ".json") {
		return false, misuse("%s is JSON, whose form fmt leaves alone", path)
	}
	var src []byte
	if path == "-" {
		src, err = io.ReadAll(a.in)
	} else {
		src, err = os.ReadFile(path)
	}
	if err != nil {
		return false, &exitError{fileIsWrong, err}
	}
	out, diags := lang.Format(path, src)
	if diags.HasErrors() {
		if err := lang.WriteDiagnostics(a.err, diags, map[string][]byte{path: src}, colour(a.err)); err != nil {
			return false, err
		}
		return false, &exitError{fileIsWrong, nil}
	}
	changed = !bytes.Equal(src, out)
	switch {
	case show:
		_, err = a.out.Write(diff.Diff(path, src, path+" (formatted)", out))
	case only && changed:
		_, err = fmt.Fprintln(a.out, path)
	case only:
	case path == "-":
		_, err = a.out.Write(out)
	case changed:
		if err = replace(path, out); err == nil {
			_, err = fmt.Fprintln(a.out, path)
		}
	}
	return changed, err
}

// replace writes a file anew such that whoever reads it meanwhile finds the old
// text or the new one, whole.
func replace(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
