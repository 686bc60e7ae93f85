package log

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
)

// TestForms: form and level change under a logger that has fields, and under all
// that were made of it.
func TestForms(t *testing.T) {
	var b bytes.Buffer
	l, s, err := New(&b, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	part := l.Named("bgp").With(zap.String("peer", "tor"))
	part.Debug("hidden")
	part.Info("up", zap.Int("routes", 3))
	if got := b.String(); !strings.Contains(got, "info\tbgp\tup\t{\"peer\": \"tor\", \"routes\": 3}\n") || strings.Contains(got, "hidden") {
		t.Errorf("got %q", got)
	}
	b.Reset()
	if err := s.Set("json", "debug"); err != nil {
		t.Fatal(err)
	}
	part.Debug("shown", zap.Error(errors.New("why")))
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatal(err, b.String())
	}
	if line["msg"] != "shown" || line["level"] != "debug" || line["logger"] != "bgp" || line["peer"] != "tor" || line["error"] != "why" || !strings.Contains(line["ts"].(string), "T") {
		t.Errorf("got %v", line)
	}
	b.Reset()
	if err := s.Set("json", "error"); err != nil {
		t.Fatal(err)
	}
	part.Warn("hidden")
	if b.Len() > 0 {
		t.Errorf("got %q", b.String())
	}
	// What cannot be leaves what was.
	for _, x := range [][2]string{{"xml", "info"}, {"json", "loud"}, {"json", "fatal"}} {
		if s.Set(x[0], x[1]) == nil {
			t.Errorf("%v was taken", x)
		}
	}
	part.Error("still JSON")
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Error(err)
	}
	if _, _, err := New(&b, Config{Format: "xml", Level: "info"}); err == nil {
		t.Error("a form that is none was taken")
	}
}

// TestFieldsOfFields: a logger that is made of one with fields has both its own and
// that one's, and none of its siblings'.
func TestFieldsOfFields(t *testing.T) {
	var b bytes.Buffer
	l, _, err := New(&b, Config{Format: "json", Level: "info"})
	if err != nil {
		t.Fatal(err)
	}
	peer := l.With(zap.String("peer", "tor"), zap.Int("asn", 1))
	one, two := peer.With(zap.String("family", "ipv4"), zap.Int("n", 1)), peer.With(zap.String("family", "ipv6"))
	deep := one.With(zap.Bool("deep", true))
	for _, c := range []struct {
		log  *zap.Logger
		want map[string]any
	}{
		{l, map[string]any{}}, {peer, map[string]any{"peer": "tor", "asn": 1.0}},
		{one, map[string]any{"peer": "tor", "asn": 1.0, "family": "ipv4", "n": 1.0}}, {two, map[string]any{"peer": "tor", "asn": 1.0, "family": "ipv6"}},
		{deep, map[string]any{"peer": "tor", "asn": 1.0, "family": "ipv4", "n": 1.0, "deep": true}},
	} {
		b.Reset()
		c.log.Info("x", zap.Int("last", 9))
		var got map[string]any
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatal(err, b.String())
		}
		c.want["level"], c.want["msg"], c.want["last"], c.want["ts"] = "info", "x", 9.0, got["ts"]
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %v, want %v", got, c.want)
		}
	}
}

// TestSiblings: loggers that are made of one with fields, and lines that are written by
// one at the same time, do not get each other's.
func TestSiblings(t *testing.T) {
	var b bytes.Buffer
	l, _, err := New(&b, Config{Format: "json", Level: "info"})
	if err != nil {
		t.Fatal(err)
	}
	// Of one field after the other, so that there is room for a fourth.
	l = l.With(zap.Int("a", 1)).With(zap.Int("b", 2)).With(zap.Int("c", 3))
	one, two := l.With(zap.Int("d", 1)), l.With(zap.Int("d", 2))
	one.Info("1")
	two.Info("2")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 2000 {
				l.Info(strconv.Itoa(i), zap.Int("d", i))
			}
		})
	}
	wg.Wait()
	n := 0
	for d := json.NewDecoder(&b); d.More(); n++ {
		var x struct {
			Msg string
			D   int
		}
		if err := d.Decode(&x); err != nil {
			t.Fatal(err)
		}
		if x.Msg != strconv.Itoa(x.D) {
			t.Fatalf("line %q has the field %d", x.Msg, x.D)
		}
	}
	if n != 8002 {
		t.Errorf("%d lines", n)
	}
}

// syncer counts how often it is flushed.
type syncer struct {
	bytes.Buffer
	n int
}

func (s *syncer) Sync() error { s.n++; return errors.New("a full disk") }

// TestSync: flushing the logger flushes what it writes to, and tells what that says.
func TestSync(t *testing.T) {
	var w syncer
	l, _, err := New(&w, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err == nil || err.Error() != "a full disk" || w.n != 1 {
		t.Errorf("%v after %d", err, w.n)
	}
}

// TestChangesWhileItIsUsed: by many, without a line that is half one and half the
// other.
func TestChangesWhileItIsUsed(t *testing.T) {
	var b bytes.Buffer
	l, s, err := New(&b, Config{Format: "json", Level: "info"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				l.Info("a line")
			}
		})
	}
	for i := range 100 {
		if err := s.Set([]string{"console", "json"}[i%2], "info"); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n := strings.Count(b.String(), "a line"); n != 800 || strings.Count(b.String(), "\n") != 800 {
		t.Errorf("%d lines in\n%s", n, b.String())
	}
}

type host []string

func (h *host) SetLog(format, level string) error {
	if level == "debug" {
		return errors.New("no")
	}
	*h = append(*h, format+" "+level)
	return nil
}

// TestControl: a block's life.
func TestControl(t *testing.T) {
	k := graph.Lookup("log")
	c := k.NewConfig().(*Config)
	c.Format = "json"
	h := &host{}
	ctl, err := k.Control(c, &graph.Env{Host: h, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := ctl.(graph.Reconfigurer)
	if err := r.Reconfigure(&Config{"json", "warn"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Reconfigure(&Config{"json", "debug"}); err == nil {
		t.Error("a level that the daemon refuses was taken")
	}
	if err := ctl.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(*h, ", "); got != "json info, json warn, console info" {
		t.Errorf("the daemon was told %s", got)
	}
	if _, err := k.Control(c, &graph.Env{Log: zap.NewNop()}); err == nil {
		t.Error("it works without a daemon")
	}
}
