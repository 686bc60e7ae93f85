package lang

import (
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// include reads the files that control blocks name and adds their pools and VIPs to
// by. It answers the files' bodies.
//
// Which files those are must be known before names like pool.web are, for such a
// name may come from one of them; so the blocks are evaluated once with what is
// known now. What is wrong with them is told later, by controls.
func (l *loader) include(by map[string]hcl.Blocks) (bodies []hcl.Body) {
	if !slices.ContainsFunc(by[""], func(b *hcl.Block) bool { return graph.Lookup(b.Type).Includes != nil }) {
		return nil
	}
	told := len(l.diags)
	l.evaluation(by)
	l.diags = l.diags[:told]
	from := map[string]hcl.Range{l.path: {}}
	for _, b := range by[""] {
		k := graph.Lookup(b.Type)
		config := k.NewConfig()
		if k.Includes == nil || conf.DecodeBlock(b, l.ctx, config, conf.Options{}).HasErrors() || k.CheckConfig(config) != nil {
			continue
		}
		for _, name := range k.Includes(config) {
			l.included[b] = append(l.included[b], name)
			path := name
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(l.path), path)
			}
			if at, twice := from[path]; twice {
				if path == l.path {
					l.fault(conf.Head(b), "File includes itself", "%s is this file. Name another.", path)
				} else {
					l.fault(conf.Head(b), "File included twice", "%s is included at %s already. Leave one out.", path, where(at))
				}
				continue
			}
			from[path] = conf.Head(b)
			if body := l.includeFile(path, conf.Head(b), by); body != nil {
				bodies = append(bodies, body)
			}
		}
	}
	return bodies
}

func (l *loader) includeFile(path string, at hcl.Range, by map[string]hcl.Blocks) hcl.Body {
	src, err := l.o.ReadFile(path)
	if err != nil {
		l.fault(at, "File cannot be read", "%s: %s. Check its name and its permissions.", path, cause(err))
		l.faulty["pool"], l.faulty["vip"] = true, true // what refers to them is no second mistake
		return nil
	}
	l.file.Sources[path] = src
	body := l.parse(path, src)
	if body == nil {
		l.faulty["pool"], l.faulty["vip"] = true, true
		return nil
	}
	attrs, blocks, diags := conf.Read(body, map[string]int{"pool": 1, "vip": 1})
	l.tell(diags)
	for name, a := range attrs {
		l.fault(a.NameRange, "Not for an included file", "%q is none of the pools and VIPs that an included file has. Move it to %s, or write pool or vip.", name, l.path)
	}
	for _, b := range blocks {
		switch {
		case b.Type != "pool" && b.Type != "vip":
			l.fault(b.TypeRange, "Not for an included file", "%q is none of the pools and VIPs that an included file has. Move it to %s, or write pool or vip.", b.Type, l.path)
		case len(b.Labels) != 1:
			l.labels(b, 1)
		default:
			by[b.Type] = append(by[b.Type], b)
		}
	}
	return body
}

// includedAll tells of a block whose files were not known when they had to be read.
func (l *loader) includedAll(b *hcl.Block, inst *graph.Instance) {
	if inst.Kind.Includes != nil && !l.faulty["pool"] && !slices.Equal(inst.Kind.Includes(inst.Config), l.included[b]) {
		l.fault(conf.Head(b), "File known too late", "Which file %q includes depends on pools or VIPs, which it may have itself. Name the file by text, variables or locals without them.", inst.Name)
	}
}
