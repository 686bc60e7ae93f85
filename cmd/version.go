package cmd

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X github.com/lbgraph/lbgraph/cmd.version=v1.2.3.
var version = ""

func init() { add(newVersion) }

// Build says which build this is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the sources, "+" behind it if they were changed
	Time     string `json:"time,omitempty"`     // of the revision, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"` // as in linux/amd64
}

// BuildInfo answers which build this is: from the linker, else from what the go
// command noted.
func BuildInfo() Build {
	b := Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.Version = cmp.Or(b.Version, "unknown")
		return b
	}
	if b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	b.Version = cmp.Or(b.Version, "unknown")
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value[:min(12, len(s.Value))] + b.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Revision += "+"
		case s.Key == "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}

func newVersion(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "Tell which build this is",
		Example: "  lbgraph version -o json",
		Args:    takes(),
	}
	asJSON := output(c)
	c.RunE = func(*cobra.Command, []string) error {
		b := BuildInfo()
		if js, err := asJSON(); js || err != nil {
			return a.json(b, err)
		}
		source := ""
		if b.Revision != "" {
			source = fmt.Sprintf(", revision %s of %s", b.Revision, b.Time)
		}
		_, err := fmt.Fprintf(a.out, "lbgraph %s (%s, %s%s)\n", b.Version, b.Go, b.Platform, source)
		return err
	}
	return c
}
