package main

import (
	"reflect"
	"strings"
	"testing"
)

const events = `
{"Action":"start","Package":"github.com/lbgraph/lbgraph/a"}
{"Action":"output","Package":"github.com/lbgraph/lbgraph/a","Test":"TestX","Output":"    a_test.go:7: missing: tshark\n"}
{"Action":"skip","Package":"github.com/lbgraph/lbgraph/a","Test":"TestX"}
{"Action":"output","Package":"github.com/lbgraph/lbgraph/a","Test":"TestY","Output":"    a_test.go:9: kernel: no XDP here\n"}
{"Action":"skip","Package":"github.com/lbgraph/lbgraph/a","Test":"TestY"}
{"Action":"pass","Package":"github.com/lbgraph/lbgraph/a","Test":"TestZ"}
{"Action":"output","Package":"github.com/lbgraph/lbgraph/a","Test":"TestW","Output":"    a_test.go:11: got 1\n"}
{"Action":"fail","Package":"github.com/lbgraph/lbgraph/a","Test":"TestW"}
{"Action":"fail","Package":"github.com/lbgraph/lbgraph/a","Elapsed":0.5}
{"Action":"output","Package":"github.com/lbgraph/lbgraph/b","Test":"TestHang","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"github.com/lbgraph/lbgraph/b","Elapsed":2}
{"ImportPath":"c [c.test]","Action":"build-output","Output":"c.go:1:1: no such thing\n"}
{"ImportPath":"c [c.test]","Action":"build-fail"}
{"Action":"fail","Package":"github.com/lbgraph/lbgraph/c","Elapsed":0}
`

func TestSummary(t *testing.T) {
	var s summary
	s.begin(false)
	if err := s.read(strings.NewReader(strings.TrimLeft(events, "\n"))); err != nil {
		t.Fatal(err)
	}
	if got, want := s.total(), "1 passed, 3 failed, 2 skipped"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	want := []result{{"a", "TestX", "skip", "missing: tshark"}}
	if got := s.wanting(); !reflect.DeepEqual(got, want) {
		t.Errorf("could have run: %v, want %v", got, want)
	}
	for _, words := range []string{"got 1", "b TestHang did not end", "no such thing"} {
		if !strings.Contains(s.failing.String(), words) {
			t.Errorf("%q is not in the output of what failed:\n%s", words, &s.failing)
		}
	}
}

// A test that skips for -short must have been given -short.
func TestShortWithoutShort(t *testing.T) {
	const skip = `{"Action":"output","Package":"p","Test":"T","Output":"    a_test.go:7: short: takes a minute\n"}
{"Action":"skip","Package":"p","Test":"T"}
`
	for _, short := range []bool{true, false} {
		var s summary
		s.begin(short)
		if err := s.read(strings.NewReader(skip)); err != nil {
			t.Fatal(err)
		}
		if got := len(s.wanting()) > 0; got == short {
			t.Errorf("-short %v: counted as wanting: %v", short, got)
		}
	}
}

// What one pass skips and another runs is not skipped.
func TestSkippedInOnePass(t *testing.T) {
	var s summary
	for _, e := range []string{"skip", "pass", "skip"} {
		s.begin(e == "skip")
		if err := s.read(strings.NewReader(`{"Action":"` + e + `","Package":"p","Test":"T"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.total(), "1 passed, 0 failed, 0 skipped"; got != want || len(s.wanting()) != 0 {
		t.Errorf("%s, want %s; %v", got, want, s.wanting())
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"--", "-short", "./a", "--", "./b"})
	want := [][]string{{"-short", "./a"}, {"./b"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
