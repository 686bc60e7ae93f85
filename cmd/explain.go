package cmd

import (
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/graph/lang"
)

func init() { add(newExplain) }

func newExplain(a *app) *cobra.Command {
	var q question
	var client string
	c := &cobra.Command{
		Use:   "explain KIND | FILE [GRAPH/]NODE | FILE URL",
		Short: "Explain a kind, what holds at a node of a file, or a request's way",
		Long: `With one argument: what a kind of node needs and gives, its arguments, outputs and
counters. With two: which facts hold on the packets that come to a node of FILE,
by which way they came to hold, and what leaves where.

With a URL: which nodes a request would come to in FILE's streams, or a connection
where the URL begins with tcp:, why, and which backend it would get, all backends being
up and nobody else there. The listener is the one on the URL's port. lbgraph trace URL
asks the daemon that runs the same.`,
		Example: `  lbgraph explain mtu-check
  lbgraph explain lb.hcl mtu
  lbgraph explain lb.hcl edge/mtu -o json
  lbgraph explain examples/hosts.hcl http://api.localhost:8080/cart --client 198.51.100.7`,
		Args: takes("KIND or FILE", "[NODE or URL]"),
	}
	q.flags(c, &client)
	opts, asJSON := options(c), output(c)
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var words []string
		switch len(args) {
		case 0:
			for _, k := range graph.Kinds() {
				words = append(words, k.Name+"\t"+k.Summary)
			}
			return words, cobra.ShellCompDirectiveDefault
		case 1:
			if o, err := opts(); err == nil {
				words = nodeNames(load(args[0], o).parsed)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		js, err := asJSON()
		if err != nil {
			return err
		}
		o, err := opts()
		if err != nil {
			return err
		}
		if len(args) == 2 && strings.Contains(args[1], "://") {
			q.URL = args[1]
			if err := q.parse(client); err != nil {
				return err
			}
			return a.explainRequest(args[0], q, o, js)
		}
		if len(args) == 2 {
			return a.explainNode(args[0], args[1], o, js)
		}
		k := graph.Lookup(args[0])
		if k == nil {
			if _, err := os.Stat(args[0]); err == nil {
				return misuse("explain %s needs the name of a node, too. See lbgraph explain --help", args[0])
			}
			var names []string
			for _, k := range graph.Kinds() {
				names = append(names, k.Name)
			}
			return misuse("there is no kind %q. %s", args[0], conf.DidYouMean(args[0], names))
		}
		if js {
			return a.json(graph.Describe(k), nil)
		}
		return graph.Explain(a.out, k)
	}
	return c
}

func (a *app) explainNode(path, name string, o lang.Options, js bool) error {
	l := load(path, o)
	// A file with faults is explained, too: that is when one wants to know.
	if err := a.tell(l); err != nil {
		return err
	}
	if l.parsed == nil {
		return l.err()
	}
	var at []*graph.Graph
	within, node, qualified := strings.Cut(name, "/")
	if !qualified {
		node = name
	}
	for _, g := range l.parsed.Graphs {
		if g.Node(node) != nil && (!qualified || g.Name == within) {
			at = append(at, g)
		}
	}
	switch len(at) {
	case 0:
		return misuse("%s has no node %q. %s", path, name, conf.DidYouMean(name, nodeNames(l.parsed)))
	case 1:
	default:
		return misuse("%q stands in graphs %q and %q. Write %s/%s or %s/%s", name, at[0].Name, at[1].Name, at[0].Name, name, at[1].Name, name)
	}
	an, _ := graph.Analyze(at[0])
	if js {
		if err := a.json(an.Place(at[0].Node(node)), nil); err != nil {
			return err
		}
	} else if err := an.ExplainNode(a.out, at[0].Node(node)); err != nil {
		return err
	}
	return l.err()
}

func (a *app) explainRequest(path string, q question, o lang.Options, js bool) error {
	l := load(path, o)
	if err := a.tell(l); err != nil {
		return err
	}
	if l.file == nil {
		return l.err()
	}
	t, err := daemon.ExplainRequest(l.file, zap.NewNop(), q.Request)
	if err != nil {
		return misuse("%v", err)
	}
	if js {
		return a.json(t, nil)
	}
	_, err = io.WriteString(a.out, wayOf(&t))
	return err
}

// nodeNames answers the names of all nodes, with their graph where two have one.
func nodeNames(f *graph.File) []string {
	if f == nil {
		return nil
	}
	count := map[string]int{}
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			count[n.Name]++
		}
	}
	var all []string
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			if count[n.Name] > 1 {
				all = append(all, g.Name+"/"+n.Name)
			} else {
				all = append(all, n.Name)
			}
		}
	}
	slices.Sort(all)
	return all
}
