// Coverage reads docs/coverage.md, the list of what is promised and the tests that
// hold it, and prints what is open:
//
//	coverage [-issue N] [-all]      the rows that are open, by issue, or all rows
//	coverage -results FILE          fail if a test that a held row names did not
//	                                pass in the run that testsum wrote to FILE
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

const document = "docs/coverage.md"

func main() {
	issue := flag.String("issue", "", "only this issue's rows")
	all := flag.Bool("all", false, "held rows and limits too")
	results := flag.String("results", "", "check held rows against the results of a run")
	flag.Parse()
	if err := run(*issue, *all, *results); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(issue string, all bool, results string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	rows, err := parse(string(text))
	if err != nil {
		return err
	}
	if results != "" {
		text, err := os.ReadFile(results)
		if err != nil {
			return err
		}
		if bad := judge(rows, string(text)); len(bad) > 0 {
			return fmt.Errorf("rows that are called held, but are not:\n  %s", strings.Join(bad, "\n  "))
		}
	}
	counts := map[string]*struct{ open, held, limit int }{}
	var issues []string
	for _, r := range rows {
		c := counts[r.issue]
		if c == nil {
			c = new(struct{ open, held, limit int })
			counts[r.issue] = c
			issues = append(issues, r.issue)
		}
		switch r.status {
		case "open":
			c.open++
		case "held":
			c.held++
		case "limit":
			c.limit++
		}
	}
	slices.Sort(issues)
	if results == "" {
		sorted := slices.Clone(rows)
		slices.SortStableFunc(sorted, func(a, b row) int { return cmp.Compare(a.issue, b.issue) })
		for _, r := range sorted {
			if (issue == "" || r.issue == issue) && (all || r.status == "open") {
				fmt.Printf("%-6s %-6s %-5s %s  %s\n", r.issue, r.id, r.status, r.promise, r.test)
			}
		}
	}
	for _, i := range issues {
		if issue == "" || i == issue {
			fmt.Printf("issue %s: %d held, %d limits, %d open\n", i, counts[i].held, counts[i].limit, counts[i].open)
		}
	}
	return nil
}

// row is a line of the tables.
type row struct {
	id, promise, issue, status, test string
	line                             int
}

// tests answers the tests that a row names, as package and name; targets of make
// and scripts are left out.
func (r row) tests() (all [][2]string) {
	for t := range strings.SplitSeq(r.test, ";") {
		f := strings.Fields(strings.ReplaceAll(t, "`", ""))
		if len(f) == 2 && f[0] != "make" {
			all = append(all, [2]string{f[0], f[1]})
		}
	}
	return all
}

func parse(text string) (rows []row, err error) {
	seen := map[string]bool{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 {
			return nil, fmt.Errorf("%s:%d: %d columns, want 5", document, n, len(cells))
		}
		r := row{cells[0], cells[1], cells[2], cells[3], cells[4], n}
		if r.id == "id" {
			continue
		}
		switch {
		case seen[r.id]:
			return nil, fmt.Errorf("%s:%d: %s stands twice", document, n, r.id)
		case r.promise == "":
			return nil, fmt.Errorf("%s:%d: %s promises nothing", document, n, r.id)
		case !slices.Contains([]string{"2", "3", "4", "5", "6", "later"}, r.issue):
			return nil, fmt.Errorf("%s:%d: %s: no issue %q", document, n, r.id, r.issue)
		case !slices.Contains([]string{"open", "held", "limit"}, r.status):
			return nil, fmt.Errorf("%s:%d: %s: status %q; open, held or limit", document, n, r.id, r.status)
		case r.status != "open" && r.test == "":
			return nil, fmt.Errorf("%s:%d: %s is %s, but the last column is empty", document, n, r.id, r.status)
		}
		seen[r.id] = true
		rows = append(rows, r)
	}
	return rows, nil
}

// judge compares held rows with the results of a run: lines of package, test,
// state and reason. A test counts by its best result, for it may be left out of
// one pass and run in another.
func judge(rows []row, results string) (bad []string) {
	state := map[[2]string]string{}
	for line := range strings.Lines(results) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) < 3 {
			continue
		}
		key := [2]string{f[0], f[1]}
		if rank(f[2]) > rank(state[key]) {
			state[key] = f[2]
		}
	}
	for _, r := range rows {
		if r.status != "held" {
			continue
		}
		for _, t := range r.tests() {
			if strings.HasPrefix(t[1], "Benchmark") {
				continue
			}
			if s := state[t]; s != "pass" {
				bad = append(bad, fmt.Sprintf("%s: %s %s %s", r.id, t[0], t[1], cmp.Or(map[string]string{"skip": "was skipped", "fail": "failed"}[s], "did not run")))
			}
		}
	}
	return bad
}

func rank(state string) int { return slices.Index([]string{"", "skip", "pass", "fail"}, state) }
