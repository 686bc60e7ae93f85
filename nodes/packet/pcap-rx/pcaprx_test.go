package pcaprx

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// capture writes a file of packets, whose times are their lengths.
func capture(t testing.TB, packets ...[]byte) string {
	name := filepath.Join(t.TempDir(), "in.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcap.NewWriter(f, pcap.Classic)
	for _, b := range packets {
		if err := w.Write(pcap.Packet{Time: int64(len(b)), Data: b}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

func newRig(t testing.TB, cores int, log *zap.Logger, files ...string) *nodetest.Rig {
	var port *pcap.Port
	r := nodetest.New(t, "pcap-rx", func(c *Config) { c.File, c.More = files[0], files[1:] }, nodetest.Cores(cores), func(r *nodetest.Rig) {
		r.Env.Log = log
		nodetest.WithPort(func(s graph.PortSpec) (p graph.Port, err error) {
			if s.Driver != "pcap" || s.Name != files[0] || s.Args != strings.Join(files[1:], "\n") || s.Write {
				t.Errorf("asked for %+v", s)
			}
			m, _ := r.Memory()
			port, err = pcap.OpenRead(files, mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 256})
			return port, err
		})(r)
	})
	t.Cleanup(func() { _ = port.Close() })
	for q := range files {
		w := r.Workers[q%cores]
		for range 128 {
			f, _ := w.Alloc()
			port.Queue(q).Refill([]uint32{f})
		}
	}
	return r
}

func TestVectorsAreOfOneFileAndOneTime(t *testing.T) {
	r := newRig(t, 1, zap.NewNop(), capture(t, []byte("aaa"), []byte("aab"), []byte("aaaa")), capture(t, []byte("bbb")))
	w := r.Workers[0]
	var got []string
	for {
		w.Load()
		lanes := w.Process(0)["next"]
		if lanes == 0 {
			break
		}
		got = append(got, fmt.Sprintf("%d at %d: %s", lanes.Count(), w.V.Now, w.V.Bytes(lanes.Count()-1)))
	}
	if want := "[2 at 3: aab 1 at 3: bbb 1 at 4: aaaa]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestFilesBelongToCores(t *testing.T) {
	var files []string
	for i := range 5 {
		files = append(files, capture(t, []byte(fmt.Sprint("file ", i))))
	}
	r := newRig(t, 2, zap.NewNop(), files...)
	for id, w := range r.Workers {
		var got []string
		for w.Load(); w.Process(0)["next"] != 0; w.Load() {
			got = append(got, string(w.V.Bytes(0)))
		}
		if want := [][]string{{"file 0", "file 2", "file 4"}, {"file 1", "file 3"}}[id]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("core %d reads %v", id, got)
		}
	}
}

func TestTheEndIsToldOnce(t *testing.T) {
	good := capture(t, []byte("aaa"), []byte("bbbb"))
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.pcap")
	if err := os.WriteFile(bad, b[:len(b)-2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file    string
		level   zapcore.Level
		packets int
	}{{good, zapcore.InfoLevel, 2}, {bad, zapcore.ErrorLevel, 1}} {
		core, logs := observer.New(zapcore.DebugLevel)
		w := newRig(t, 1, zap.New(core), c.file).Workers[0]
		n := 0
		for range 10 {
			w.Load()
			n += w.Process(0)["next"].Count()
		}
		if n != c.packets || logs.Len() != 1 || logs.All()[0].Level != c.level {
			t.Errorf("%d packets, logged %v", n, logs.All())
		}
	}
}

func TestMissingFilesAndBadNames(t *testing.T) {
	k := graph.Lookup("pcap-rx")
	for _, c := range []Config{{}, {File: "a", More: []string{""}}, {File: "a\nb"}} {
		if k.CheckConfig(&c) == nil {
			t.Errorf("%+v passes", c)
		}
	}
	c := &Config{File: filepath.Join(t.TempDir(), "none.pcap")}
	_, err := k.Packets(c, &graph.Env{Port: func(s graph.PortSpec) (graph.Port, error) {
		return pcap.OpenRead([]string{s.Name}, mem.Config{})
	}})
	if !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	many := make([][]byte, 5000)
	for i := range many {
		many[i] = make([]byte, 60+i%3)
	}
	r := newRig(t, 1, zap.NewNop(), capture(t, many...))
	w := r.Workers[0]
	w.Load()
	if a := testing.AllocsPerRun(1000, func() {
		w.Run(0)
		r.Ports[0].Queue(0).Refill(w.V.Frame[:w.Out(0).Count()])
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// FuzzFile receives from a file of any bytes.
func FuzzFile(f *testing.F) {
	b, err := os.ReadFile(capture(f, []byte("aaa"), make([]byte, 5000)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:100])
	name := filepath.Join(f.TempDir(), "f.pcap")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m := make([]byte, 128*2048)
		port, err := pcap.OpenRead([]string{name}, mem.Config{Mem: m, Chunk: 2048, Rings: 128})
		if err != nil {
			return
		}
		defer func() { _ = port.Close() }()
		w := &worker{files: []file{{Queue: port.Queue(0), port: port}}, log: zap.NewNop()}
		v := &packet.Vector{Mem: m, Links: make([]packet.Link, 128)}
		var fill []uint32
		for i := range uint32(128) {
			fill = append(fill, i)
		}
		size := 0
		for out := make([]packet.Lanes, 1); ; clear(out) {
			port.Queue(0).Refill(fill)
			fill = fill[:0]
			w.Process(v, 0, out)
			if out[0] == 0 {
				break
			}
			for i := range out[0].Count() {
				size += int(v.Total[i])
				fill = append(fill, v.Frame[i])
				for c := v.Chain[i]; c != packet.NoFrame; c = v.Links[c].Next {
					fill = append(fill, c)
				}
			}
		}
		if !port.Queue(0).Idle() || size > len(b) {
			t.Fatalf("%d bytes received of %d", size, len(b))
		}
	})
}

func BenchmarkReceive(b *testing.B) {
	frame := bytes.Repeat([]byte{1}, 64)
	many := make([][]byte, 64*1000)
	for i := range many {
		many[i] = frame
	}
	name := capture(b, many...)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, 1, zap.NewNop(), name)
		w := r.Workers[0]
		w.Load()
		b.StartTimer()
		for w.Run(0); w.Out(0) != 0; w.Run(0) {
			k := w.Out(0).Count()
			r.Ports[0].Queue(0).Refill(w.V.Frame[:k])
			n += k
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
