package cmd

import (
	"bytes"
	"os"
	"testing"
)

func TestColour(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("kernel: no pseudo-terminals: ", err)
	}
	defer terminal.Close()
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !colour(terminal) {
		t.Error("no colour on a terminal")
	}
	if colour(file) || colour(&bytes.Buffer{}) {
		t.Error("colour in a file")
	}
	t.Setenv("NO_COLOR", "1")
	if colour(terminal) {
		t.Error("colour in spite of NO_COLOR")
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if colour(terminal) {
		t.Error("colour on a dumb terminal")
	}
}
