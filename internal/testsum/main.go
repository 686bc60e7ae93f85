// Testsum runs go test once or several times and says what came of it: a line
// for every package as it ends, the output of what failed, the tests that were
// skipped with their reasons, and a closing line "N passed, N failed, N skipped".
//
//	testsum [-strict] [-quiet] [-out FILE] -- GO-TEST-ARGUMENTS [-- MORE …]
//
// A skip says why by the first word of its reason:
//
//	short:     left out because of -short
//	kernel:    this kernel or machine cannot do it; no package would change that
//	soak:      belongs to make soak (so does a reason that names LBGRAPH_SOAK)
//	root:      needs root
//	missing:   a program is not installed
//
// A test that one pass skips and another runs is not skipped. With -strict any
// other reason than kernel and soak fails the run (and short in a pass without
// -short), so that nothing that could have been installed is left out unseen.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

const module = "github.com/lbgraph/lbgraph/"

func main() {
	strict := flag.Bool("strict", false, "fail when a test is skipped for want of something that can be had")
	quiet := flag.Bool("quiet", false, "do not list the tests that -short leaves out")
	out := flag.String("out", "", "write every test's result to this file, and the closing line beside it")
	flag.Parse()

	var s summary
	s.quiet = *quiet
	for _, args := range split(flag.Args()) {
		if err := run(&s, args); err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(2)
		}
	}
	s.print(os.Stdout)
	bad := s.failed > 0
	if *strict {
		for _, r := range s.wanting() {
			fmt.Printf("skipped, but could have run: %s %s: %s\n", r.pkg, r.test, r.reason)
			bad = true
		}
	}
	if s.passed+s.failed == 0 {
		fmt.Println("no test ran")
		bad = true
	}
	if *out != "" {
		if err := s.write(*out); err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(2)
		}
	}
	fmt.Println(s.total())
	if bad {
		os.Exit(1)
	}
}

// split cuts the arguments at every "--".
func split(args []string) (passes [][]string) {
	for len(args) > 0 {
		n := slices.Index(args, "--")
		if n < 0 {
			n = len(args)
		}
		if n > 0 {
			passes = append(passes, args[:n])
		}
		args = args[min(n+1, len(args)):]
	}
	return passes
}

// run is one go test. A failure of tests is no error here; it stands in s.
func run(s *summary, args []string) error {
	fmt.Println("go test", strings.Join(args, " "))
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := s.failed
	s.begin(slices.Contains(args, "-short"))
	if err := s.read(pipe); err != nil {
		return err
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if s.failed == before {
			// go test failed without saying which test or package did.
			s.fail(result{pkg: "go test", state: "fail"}, err.Error()+"\n")
		}
		return nil
	}
	return err
}

// event is a line of go test -json (go doc test2json), and of go build -json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// result is what came of one test.
type result struct{ pkg, test, state, reason string }

type summary struct {
	quiet          bool
	passed, failed int
	results        []result

	short   bool // the pass at hand
	output  map[string]*strings.Builder
	counts  map[string]*[3]int // by package: passed, failed, skipped
	builds  map[string]*strings.Builder
	failing strings.Builder
}

func (s *summary) begin(short bool) {
	s.short = short
	s.output = map[string]*strings.Builder{}
	s.counts = map[string]*[3]int{}
	s.builds = map[string]*strings.Builder{}
}

func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				s.take(e)
			} else {
				os.Stdout.Write(line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	pkg := strings.TrimPrefix(e.Package, module)
	key := pkg + "\x00" + e.Test
	n := s.counts[pkg]
	if n == nil {
		n = new([3]int)
		s.counts[pkg] = n
	}
	switch e.Action {
	case "build-output":
		add(s.builds, e.ImportPath, e.Output)
	case "build-fail":
		if b := s.builds[e.ImportPath]; b != nil {
			s.failing.WriteString(b.String())
		}
	case "output":
		add(s.output, key, e.Output)
	case "pass", "fail", "skip":
		text := ""
		if b := s.output[key]; b != nil {
			text = b.String()
			delete(s.output, key)
		}
		if e.Test == "" {
			s.endPackage(pkg, e, n, text)
			return
		}
		r := result{pkg: pkg, test: e.Test, state: e.Action}
		switch e.Action {
		case "pass":
			n[0]++
			s.passed++
			s.results = append(s.results, r)
		case "fail":
			n[1]++
			s.fail(r, text)
		case "skip":
			n[2]++
			r.reason = reason(text)
			if !s.short && strings.HasPrefix(r.reason, "short:") {
				r.reason = "says short, but -short was not given"
			}
			s.results = append(s.results, r)
		}
	}
}

func (s *summary) fail(r result, text string) {
	s.failed++
	s.results = append(s.results, r)
	fmt.Fprintf(&s.failing, "--- %s %s\n%s", r.pkg, r.test, text)
}

func (s *summary) endPackage(pkg string, e event, n *[3]int, text string) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	if e.Action == "fail" && n[1] == 0 {
		// It did not build, panicked, or ran out of time.
		n[1]++
		s.fail(result{pkg: pkg, state: "fail"}, text+s.unfinished(pkg))
	}
	switch {
	case n[1] > 0:
		fmt.Printf("FAIL %8s  %s: %d failed\n", took, pkg, n[1])
	case n[0]+n[1]+n[2] == 0:
		// No test of this package was asked for.
	case n[2] > 0:
		fmt.Printf("ok   %8s  %s: %d passed, %d skipped\n", took, pkg, n[0], n[2])
	default:
		fmt.Printf("ok   %8s  %s: %d passed\n", took, pkg, n[0])
	}
}

// unfinished answers the output of the package's tests that never ended.
func (s *summary) unfinished(pkg string) string {
	var all strings.Builder
	for key, b := range s.output {
		if p, test, _ := strings.Cut(key, "\x00"); p == pkg {
			fmt.Fprintf(&all, "--- %s %s did not end\n%s", p, test, b)
		}
	}
	return all.String()
}

func add(m map[string]*strings.Builder, key, text string) {
	b := m[key]
	if b == nil {
		b = new(strings.Builder)
		m[key] = b
	}
	b.WriteString(text)
}

// reason takes what t.Skip was told out of a test's output: the line
// "    file.go:12: words".
func reason(output string) string {
	last := "no reason given"
	for line := range strings.Lines(output) {
		if _, words, ok := strings.Cut(line, ".go:"); ok {
			if _, words, ok = strings.Cut(words, ": "); ok {
				last = strings.TrimSpace(words)
			}
		}
	}
	return last
}

// skips answers the tests that were skipped and ran in no pass, each once.
func (s *summary) skips() (all []result) {
	known := map[[2]string]bool{}
	for _, r := range s.results {
		if r.state != "skip" {
			known[[2]string{r.pkg, r.test}] = true
		}
	}
	for _, r := range s.results {
		if key := [2]string{r.pkg, r.test}; !known[key] {
			known[key] = true
			all = append(all, r)
		}
	}
	return all
}

// wanting answers the skipped tests that could have run.
func (s *summary) wanting() (all []result) {
	for _, r := range s.skips() {
		kind, _, _ := strings.Cut(r.reason, ":")
		if kind != "kernel" && kind != "short" && kind != "soak" && !strings.Contains(r.reason, "LBGRAPH_SOAK") {
			all = append(all, r)
		}
	}
	return all
}

func (s *summary) print(w io.Writer) {
	reasons := map[string][]string{}
	for _, r := range s.skips() {
		if !(s.quiet && strings.HasPrefix(r.reason, "short:")) {
			reasons[r.reason] = append(reasons[r.reason], r.pkg+" "+r.test)
		}
	}
	if len(reasons) > 0 {
		fmt.Fprintln(w, "\nskipped:")
	}
	sorted := make([]string, 0, len(reasons))
	for r := range reasons {
		sorted = append(sorted, r)
	}
	sort.Strings(sorted)
	for _, r := range sorted {
		fmt.Fprintf(w, "  %s (%d)\n", r, len(reasons[r]))
		for _, t := range reasons[r] {
			fmt.Fprintf(w, "    %s\n", t)
		}
	}
	if s.failing.Len() > 0 {
		fmt.Fprintf(w, "\nfailed:\n%s", &s.failing)
	}
	fmt.Fprintln(w)
}

func (s *summary) total() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", s.passed, s.failed, len(s.skips()))
}

// write saves the results as lines of package, test, state and reason, and the
// closing line in a file of the same name that ends in .total.
func (s *summary) write(file string) error {
	var b strings.Builder
	for _, r := range s.results {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\n", r.pkg, r.test, r.state, r.reason)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(file, filepath.Ext(file))+".total", []byte(s.total()+"\n"), 0o644)
}
