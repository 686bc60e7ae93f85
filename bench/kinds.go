package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/pcap"
)

// arguments of kinds that have required ones. Of all other kinds the registration says
// enough to be put into the sample.
var arguments = map[string]string{
	"handoff": "cores = [0, 1]",
	"sample":  fmt.Sprintf("file = %q", os.DevNull),
	"pcap-tx": fmt.Sprintf("file = %q", os.DevNull),
	"pcap-rx": fmt.Sprintf("file = %q", captureName),
}

// with answers the sample with a node of the kind in it: at the first place of the
// main path that the checker accepts, be it between two nodes or instead of one.
func (s Sample) with(kind string) (*graph.File, error) {
	k := graph.Lookup(kind)
	outs := k.OutputsOf(k.NewConfig())
	s.Cores = max(s.Cores, 2*strings.Count(arguments[kind], "cores"))
	s.Nodes = fmt.Sprintf("  node %q \"probe\" {\n    %s\n  }\n", kind, arguments[kind])
	through := slices.DeleteFunc(slices.Clone(outs), func(o graph.Output) bool { return o.Else != graph.Must })
	var last error
	try := func(before, after []string) *graph.File {
		t := s
		t.Main = slices.Clone(before)
		if len(after) == 0 {
			t.Main = append(t.Main, "probe")
		} else if len(through) == 0 {
			return nil
		}
		for i, o := range through {
			switch {
			case len(after) == 0:
			case i == 0:
				t.Main = append(t.Main, "probe."+o.Name)
				if o.Removes.Has(graph.L3) { // what was inside is to be parsed as well
					t.Main = append(t.Main, "again")
					t.Nodes += "  node \"parse\" \"again\" {}\n"
					for _, o := range outs {
						if o.Else == graph.Punt {
							t.Paths += fmt.Sprintf("    probe-%s = [probe.%s, %s]\n", o.Name, o.Name, node(after[0]))
						}
					}
				}
				t.Main = append(t.Main, after...)
			case o.Reply:
				t.Paths += fmt.Sprintf("    probe-%s = [probe.%s, %s]\n", o.Name, o.Name, after[len(after)-1])
			default:
				t.Paths += fmt.Sprintf("    probe-%s = [probe.%s, %s]\n", o.Name, o.Name, node(after[0]))
			}
		}
		f, err := load(t.Text())
		if err != nil {
			if last == nil {
				last = err
			}
			return nil
		}
		return f
	}
	if k.Source {
		if f := try(nil, mainPath[1:]); f != nil {
			return f, nil
		}
		return nil, last
	}
	for i := 1; i < len(mainPath); i++ {
		if f := try(mainPath[:i], mainPath[i:]); f != nil {
			return f, nil
		}
	}
	for i := len(mainPath) - 1; i > 0; i-- {
		if f := try(mainPath[:i], mainPath[i+1:]); f != nil {
			return f, nil
		}
	}
	for i := range len(mainPath) - 1 { // straight to the end
		if f := try(mainPath[:i+1], mainPath[len(mainPath)-1:]); f != nil {
			return f, nil
		}
	}
	for i := len(mainPath) - 1; i > 0; i-- { // the end of a shorter path
		if f := try(mainPath[:i], nil); f != nil {
			return f, nil
		}
	}
	return nil, ErrUse{fmt.Errorf("kind %q fits nowhere into the sample; name a file with -graph: %w", kind, last)}
}

// captureName is the capture that a pcap-rx of the sample reads.
var captureName = filepath.Join(os.TempDir(), fmt.Sprintf("lbgraph-bench-%d.pcap", os.Getpid()))

// captured is how many packets that is: some are left when the flows are all known.
const captured = 400_000

// writeCapture writes it: packets of l.
func writeCapture(l Load, f *graph.File) error {
	s, err := state.Build(f.Spec)
	if err != nil {
		return err
	}
	t, err := NewTraffic(l, s, info.MAC)
	if err != nil {
		return err
	}
	out, err := os.Create(captureName)
	if err != nil {
		return err
	}
	defer out.Close()
	w := pcap.NewWriter(out, pcap.Classic)
	b := make([]byte, 2048)
	for i := range captured {
		n := t.Next(b)
		if err := w.Write(pcap.Packet{Time: int64(i / packet.Size), Data: b[:n], Length: n}, 0); err != nil {
			return err
		}
	}
	return w.Flush()
}
