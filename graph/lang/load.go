package lang

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// Options of Load. The zero value is what a command without flags uses.
type Options struct {
	// Vars are values of variables, as from -var name=value.
	Vars map[string]string
	// Env looks up environment variables: LBGRAPH_VAR_name gives a variable its
	// value where Vars does not, and the function env asks it. Nil is os.LookupEnv.
	Env func(name string) (string, bool)
	// ReadFile reads the file itself and what the function file names. Nil is
	// os.ReadFile.
	ReadFile func(path string) ([]byte, error)
}

// maxSize is the size of the largest file that is read, in bytes.
const maxSize = 64 << 20

// Load reads the file at path. With an error among the diagnostics, the file is
// nil; warnings may come with a file. The diagnostics are in the order of their
// places.
func Load(path string, o Options) (*graph.File, hcl.Diagnostics) {
	read := o.ReadFile
	if read == nil {
		read = os.ReadFile
	}
	src, err := read(path)
	if err != nil {
		return nil, hcl.Diagnostics{fault(hcl.Range{Filename: path}, "File cannot be read", "%s. Check its name and its permissions.", cause(err))}
	}
	return LoadBytes(path, src, o)
}

// LoadBytes is Load for a file whose content is at hand; path is its name in
// messages, and what the function file is relative to.
func LoadBytes(path string, src []byte, o Options) (*graph.File, hcl.Diagnostics) {
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	l := &loader{
		o: o, path: path, json: isJSON(path), included: map[*hcl.Block][]string{},
		file:   &graph.File{Path: path, Sources: map[string][]byte{path: src}, Places: map[string]hcl.Range{}},
		faulty: map[string]bool{}, used: map[string]bool{},
	}
	body := l.parse(path, src)
	if body != nil {
		l.root(body)
	}
	diags := tidy(l.diags)
	if diags.HasErrors() {
		return nil, diags
	}
	return l.file, diags
}

func isJSON(path string) bool { return strings.HasSuffix(path, ".json") }

// cause is the reason of a failed system call, without the path.
func cause(err error) string {
	if p, ok := err.(*os.PathError); ok {
		err = p.Err
	}
	s := err.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}

// tidy sorts diagnostics by place and drops repetitions.
func tidy(in hcl.Diagnostics) hcl.Diagnostics {
	sort.SliceStable(in, func(i, j int) bool {
		a, b := place(in[i]), place(in[j])
		if a.Filename != b.Filename {
			return a.Filename < b.Filename
		}
		return a.Start.Byte < b.Start.Byte
	})
	var out hcl.Diagnostics
	seen := map[string]bool{}
	for _, d := range in {
		d = ownForm(d)
		k := fmt.Sprintf("%v\x00%s\x00%s", place(d), d.Summary, d.Detail)
		if !seen[k] {
			seen[k] = true
			out = append(out, d)
		}
	}
	return out
}

func place(d *hcl.Diagnostic) hcl.Range {
	if d.Subject == nil {
		return hcl.Range{}
	}
	return *d.Subject
}

type loader struct {
	o     Options
	path  string
	json  bool
	file  *graph.File
	ctx   *hcl.EvalContext
	diags hcl.Diagnostics

	faulty   map[string]bool         // "pool.web", or "pool" for one without a usable name: has a fault that was told
	used     map[string]bool         // pools that something refers to
	included map[*hcl.Block][]string // by control block: the files it names
}

// fault makes a diagnostic: at most six words, then what is wrong and what to do.
func fault(at hcl.Range, summary, detail string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at}
}

func (l *loader) fault(at hcl.Range, summary, detail string, args ...any) {
	l.diags = append(l.diags, fault(at, summary, detail, args...))
}

func (l *loader) warn(at hcl.Range, summary, detail string, args ...any) {
	d := fault(at, summary, detail, args...)
	d.Severity = hcl.DiagWarning
	l.diags = append(l.diags, d)
}

// tell adds diagnostics and answers whether there are errors among them.
func (l *loader) tell(diags hcl.Diagnostics) bool {
	l.diags = append(l.diags, diags...)
	return diags.HasErrors()
}

func (l *loader) parse(path string, src []byte) hcl.Body {
	if len(src) > maxSize {
		l.fault(hcl.Range{Filename: path}, "File is too large", "It has %d bytes, and %d are the most. Split it.", len(src), maxSize)
		return nil
	}
	asJSON := isJSON(path)
	if at, deep := tooDeep(src, path, asJSON); deep {
		l.fault(at, "Nesting is too deep", "More than %d brackets or operators nest here. Close them, or use locals.", maxDepth)
		return nil
	}
	var f *hcl.File
	var diags hcl.Diagnostics
	if asJSON {
		f, diags = json.Parse(src, path)
	} else {
		f, diags = hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	}
	if l.tell(independent(diags, asJSON)) {
		return nil
	}
	return f.Body
}

// rootBlocks are the types of block of the language itself, with the number of
// their names.
var rootBlocks = map[string]int{"variable": 1, "locals": 0, "pool": 1, "vip": 1, "graph": 1, "stream": 1}

func (l *loader) root(body hcl.Body) {
	wants := map[string]int{}
	types := []string{}
	for t, n := range rootBlocks {
		wants[t] = n
		types = append(types, t)
	}
	for _, k := range graph.Kinds() {
		if k.Plane == graph.ControlPlane {
			wants[k.Name] = 0
			types = append(types, k.Name)
		}
	}
	sort.Strings(types)
	attrs, blocks, diags := conf.Read(body, wants)
	if l.tell(diags) {
		return
	}
	if l.json {
		blocks = l.jsonLabels(body, blocks, wants)
	}
	for n, a := range attrs {
		if labels, isBlock := wants[n]; isBlock {
			l.notArgument(a, labels)
			continue
		}
		if l.json {
			l.unknownBlock(n, a.NameRange, types)
			continue
		}
		l.fault(a.NameRange, "Argument outside of blocks", "%q stands outside of all blocks. Put it into one, or into locals.", n)
	}

	by := map[string]hcl.Blocks{}
	for _, b := range blocks {
		want, known := rootBlocks[b.Type]
		k := graph.Lookup(b.Type)
		switch {
		case known && len(b.Labels) != want:
			l.labels(b, want)
		case known:
			by[b.Type] = append(by[b.Type], b)
		case k == nil || k.Plane != graph.ControlPlane:
			l.unknownBlock(b.Type, b.TypeRange, types)
		case len(b.Labels) > 1:
			l.labels(b, 1)
		default:
			by[""] = append(by[""], b)
		}
	}
	by["graph"] = append(by["graph"], by["stream"]...) // they share their names
	delete(by, "stream")
	for t, bs := range by {
		if t != "pool" && t != "vip" {
			by[t] = l.distinct(bs)
		}
	}
	more := l.include(by)
	for _, t := range []string{"pool", "vip"} {
		by[t] = l.distinct(by[t])
	}
	l.evaluation(by)
	for _, b := range append(more, body) {
		l.references(b)
	}
	l.pools(by["pool"])
	l.vips(by["vip"])
	for _, b := range by["graph"] {
		l.graph(b)
	}
	l.controls(by[""])
	l.checkSpec()
}

func (l *loader) unknownBlock(typ string, at hcl.Range, types []string) {
	if k := graph.Lookup(typ); k != nil {
		l.fault(at, "Node outside of a graph", "%q is a kind of node. Write node %q \"name\" { … } inside a %s block.", typ, typ, planeBlock(k.Plane))
		return
	}
	l.faulty[typ], l.faulty[conf.Closest(typ, types)] = true, true // references to it are no second mistake
	l.fault(at, "Unknown block", "There is no block %q. %s", typ, conf.DidYouMean(typ, types))
}

// labels tells of a block with the wrong number of names.
func (l *loader) labels(b *hcl.Block, want int) {
	l.faulty[b.Type] = true
	if len(b.Labels) < want {
		l.fault(conf.Head(b), "Block without a name", "A block %q has %s behind its type. Write %s.", b.Type, count(want, "name"), shape(b.Type, want))
		return
	}
	l.fault(b.LabelRanges[want], "Too many block names", "A block %q has %s behind its type. Leave %q out.", b.Type, count(want, "name"), b.Labels[want])
}

func (l *loader) notArgument(a *hcl.Attribute, labels int) {
	l.fault(a.NameRange, "Argument where a block belongs", "%q is a block. Write %s without the equals sign.", a.Name, shape(a.Name, labels))
}

func shape(typ string, names int) string {
	if typ == "node" {
		return `node "kind" "name" { … }`
	}
	return typ + strings.Repeat(` "name"`, names) + " { … }"
}

func count(n int, thing string) string {
	switch n {
	case 0:
		return "no " + thing
	case 1:
		return "one " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func planeBlock(p graph.Plane) string {
	if p == graph.StreamPlane {
		return "stream"
	}
	return "graph"
}

// jsonLabels finds out which control blocks of a JSON file have a name: those
// whose properties are objects and none of the kind's arguments.
func (l *loader) jsonLabels(body hcl.Body, blocks hcl.Blocks, wants map[string]int) hcl.Blocks {
	named := map[string]int{}
	var keep hcl.Blocks
	for _, b := range blocks {
		k := graph.Lookup(b.Type)
		if _, own := rootBlocks[b.Type]; own || k == nil || !looksNamed(b.Body, k) {
			keep = append(keep, b)
			continue
		}
		named[b.Type] = 1
	}
	if len(named) == 0 {
		return blocks
	}
	_, more, diags := conf.Read(body, named)
	l.tell(diags)
	for _, b := range more {
		if len(b.Labels) == 1 {
			keep = append(keep, b)
		}
	}
	sort.SliceStable(keep, func(i, j int) bool { return conf.Head(keep[i]).Start.Byte < conf.Head(keep[j]).Start.Byte })
	return keep
}

func looksNamed(body hcl.Body, k *graph.Kind) bool {
	attrs, diags := body.JustAttributes()
	if diags.HasErrors() || len(attrs) == 0 {
		return false
	}
	for _, f := range conf.Document(k.NewConfig()) {
		if attrs[f.Name] != nil {
			return false
		}
	}
	for _, a := range attrs {
		if _, diags := hcl.ExprMap(a.Expr); diags.HasErrors() {
			return false
		}
	}
	return true
}

// distinct drops blocks whose name cannot be used or was used before, and tells
// of them.
func (l *loader) distinct(bs hcl.Blocks) hcl.Blocks {
	first := map[string]*hcl.Block{}
	var keep hcl.Blocks
	for _, b := range bs {
		if b.Type == "locals" {
			keep = append(keep, b)
			continue
		}
		key := b.Type
		if key == "stream" {
			key = "graph"
		}
		if len(b.Labels) > 0 {
			key += "." + b.Labels[0]
			if !l.usableName(b.Labels[0], b.LabelRanges[0]) {
				l.faulty[b.Type] = true
				continue
			}
		}
		if f, twice := first[key]; twice {
			if len(b.Labels) == 0 {
				l.fault(conf.Head(b), "Block given twice", "There is a block %q at %s already. Put all arguments into one.", b.Type, where(conf.Head(f)))
			} else {
				l.fault(conf.Head(b), "Name used twice", "There is a %s %q at %s already. Give one of them another name.", f.Type, b.Labels[0], where(conf.Head(f)))
			}
			continue
		}
		first[key] = b
		l.file.Places[strings.Join(append([]string{b.Type}, b.Labels...), ".")] = conf.Head(b)
		keep = append(keep, b)
	}
	return keep
}

func where(r hcl.Range) string {
	return fmt.Sprintf("%s:%d:%d", r.Filename, r.Start.Line, r.Start.Column)
}

// usableName tells whether a name can stand in a path or a reference.
func (l *loader) usableName(name string, at hcl.Range) bool {
	switch name {
	case "true", "false", "null", "for":
	default:
		if len(name) <= 64 && hclsyntax.ValidIdentifier(name) {
			return true
		}
	}
	l.fault(at, "Name cannot be used", "%q cannot stand in a path or a reference. Begin with a letter, then letters, digits, - and _, 64 at most.", name)
	return false
}

func (l *loader) place(prefix string) func(string, hcl.Range) {
	return func(path string, at hcl.Range) {
		if _, taken := l.file.Places[prefix+"."+path]; !taken {
			l.file.Places[prefix+"."+path] = at
		}
	}
}

// references notes which pools the file refers to, wherever that is.
func (l *loader) references(body hcl.Body) {
	for _, t := range variables(body) {
		if t.RootName() != "pool" {
			continue
		}
		name := "*" // all of them, as in a for expression
		if len(t) > 1 {
			switch s := t[1].(type) {
			case hcl.TraverseAttr:
				name = s.Name
			case hcl.TraverseIndex:
				if s.Key.Type() == cty.String {
					name = s.Key.AsString()
				}
			}
		}
		l.used[name] = true
	}
}

// variables answers every reference in a body and the bodies inside.
func variables(body hcl.Body) []hcl.Traversal {
	attrs, blocks, _ := conf.Read(body, nil)
	var all []hcl.Traversal
	for _, a := range attrs {
		all = append(all, a.Expr.Variables()...)
	}
	for _, b := range blocks {
		all = append(all, variables(b.Body)...)
	}
	return all
}

func (l *loader) controls(bs hcl.Blocks) {
	for _, b := range bs {
		k := graph.Lookup(b.Type)
		name, key := b.Type, b.Type
		if len(b.Labels) > 0 {
			name = b.Labels[0]
			key += "." + name
		}
		inst := &graph.Instance{Kind: k, Name: name, Config: k.NewConfig(), Range: conf.Head(b)}
		if l.configure(b, inst, key, nil) {
			l.includedAll(b, inst)
			l.file.Controls = append(l.file.Controls, inst)
		}
	}
}

// configure fills an instance's configuration from its block and asks the kind.
func (l *loader) configure(b *hcl.Block, inst *graph.Instance, key string, skip []string) bool {
	if l.tell(conf.DecodeBlock(b, l.ctx, inst.Config, conf.Options{Skip: skip, Place: l.place(key)})) {
		return false
	}
	return l.accept(inst, key)
}

// accept asks the kind whether it takes the configuration that stands at key; "" for
// one without a block.
func (l *loader) accept(inst *graph.Instance, key string) bool {
	if err := inst.Kind.CheckConfig(inst.Config); err != nil {
		l.fault(l.blame(err, inst.Range, key), "Arguments do not fit", "%s", sentence(err.Error()))
		return false
	}
	for _, n := range conf.Refs(inst.Config, "pool") {
		l.used[n] = true
	}
	inst.Outputs = inst.Kind.OutputsOf(inst.Config)
	inst.Edges = make([]*graph.Edge, len(inst.Outputs))
	return true
}

// blame answers the place of the argument that err is about, of what it stands in
// where the file gives it no place of its own, else that of the block.
func (l *loader) blame(err error, block hcl.Range, key string) hcl.Range {
	var bad *graph.ArgumentError
	if !errors.As(err, &bad) {
		return block
	}
	for path := bad.Argument; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if r, ok := l.file.Places[key+"."+path]; ok {
			return r
		}
	}
	return block
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + strings.TrimSuffix(s[1:], ".") + "."
}
