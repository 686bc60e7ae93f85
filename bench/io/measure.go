package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/lbgraph/lbgraph/bench/cputime"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// lab is the namespace of source and sink, and the devices of one part.
type lab struct {
	file    *graph.File
	places  places
	space   *space
	wire    *wire
	devices []*device
}

// newLab reads the file whose graph is measured and makes the source.
func newLab(path string) (l *lab, err error) {
	l = &lab{places: places{runtime.NumCPU()}}
	if l.file, err = read(path, nil); err != nil {
		return nil, err
	}
	if l.space, err = newSpace(); err != nil {
		return nil, err
	}
	if l.wire, err = newWire(l.space); err != nil {
		l.space.close()
		return nil, err
	}
	return l, nil
}

// read reads a file; change, if not nil, changes its text before.
func read(path string, change func(string) (string, error)) (*graph.File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if change != nil {
		s, err := change(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		text = []byte(s)
	}
	f, diags := lang.LoadBytes(path, text, lang.Options{})
	if diags.HasErrors() {
		return nil, diags
	}
	if diags := graph.Check(f); diags.HasErrors() {
		return nil, diags
	}
	if len(f.Graphs) == 0 || f.Graphs[0].Plane != graph.PacketPlane {
		return nil, fmt.Errorf("%s has no packet graph in front", path)
	}
	return f, nil
}

// clear closes the devices.
func (l *lab) clear() error {
	var errs []error
	for _, d := range l.devices {
		if d.close != nil {
			errs = append(errs, d.close())
		}
	}
	// The kernel removes a pair with the namespace of either end, later; names are
	// to be free now.
	for _, d := range l.devices {
		if x, err := l.space.link.LinkByName(d.port); err == nil {
			errs = append(errs, l.space.link.LinkDel(x))
		}
		if d.space != nil {
			d.space.close()
		}
	}
	l.devices = nil
	l.wire.forget()
	return errors.Join(errs...)
}

func (l *lab) close() error {
	err := l.clear()
	l.wire.close()
	l.space.close()
	return err
}

// A sample is what a device did for a while.
type sample struct {
	time           time.Duration
	sent, received uint64  // of all that was sent, before and after the time too
	refused        uint64  // not taken by one of the two interfaces
	lost           uint64  // gone
	late           uint64  // of them, those that a socket had no room for: the loop came too late
	rate           float64 // packets a second that came back
	cpu            float64 // processors that the process used beside its source
	source         float64 // share of its time that the source waited for packets to come back
	behind         uint64
	size           float64 // bytes of a packet that came back
	times          times
}

const (
	warm     = 30 * time.Millisecond // how long packets pass before they count
	patience = time.Second           // without any that comes back, until the rest is lost
)

// take sends to a device for a while. during, if not nil, runs beside it and ends when
// its context does.
func (l *lab) take(ctx context.Context, d *device, o load, t time.Duration, during func(context.Context) error) (s sample, err error) {
	refused := func() (n uint64, err error) {
		_, _, a, err := l.space.device(d.port)
		_, _, b, e := d.space.device(uplink)
		return a + b, errors.Join(err, e)
	}
	was, err := refused()
	if err != nil {
		return s, err
	}
	late := func() uint64 { n := d.lost(); return n["rx_dropped"] + n["rx_ring_full"] }
	tooLate := late()
	nice := 0
	if l.places.shared(d.loops) {
		nice = 19 // a loop that has something to do goes first
	}
	err = l.wire.begin(o, d.loops, d.index, d.mac, func(lane int) int { return l.places.source(lane, d.loops) }, nice)
	if err != nil {
		_, e := l.wire.end(0)
		return s, errors.Join(err, e)
	}
	sleep(ctx, warm)
	inner, cancel := context.WithCancel(ctx)
	beside := make(chan error, 1)
	if during != nil {
		go func() { beside <- during(inner) }()
	} else {
		beside <- nil
	}
	before, e0 := l.wire.counts()
	cpu0, source0, begun := own(), l.wire.used(), time.Now()
	sleep(ctx, t)
	after, e1 := l.wire.counts()
	for e1 == nil && after.received == before.received && time.Since(begun) < t+patience && ctx.Err() == nil {
		sleep(ctx, t/10) // a machine that is very busy
		after, e1 = l.wire.counts()
	}
	cpu1, source1 := own(), l.wire.used()
	s.time = time.Since(begun)
	cancel()
	err = errors.Join(e0, e1, <-beside)
	all, e := l.wire.end(patience)
	err = errors.Join(err, e, ctx.Err())
	now, e := refused()
	if err = errors.Join(err, e); err != nil {
		return s, err
	}
	s.sent, s.received, s.refused = all.sent, all.received, now-was
	s.lost = uint64(max(0, int64(all.sent-all.received-s.refused)))
	s.late = late() - tooLate
	seconds := s.time.Seconds()
	s.rate = float64(after.received-before.received) / seconds
	s.cpu = float64((cpu1-cpu0)-(source1-source0)) / 1e9 / seconds
	s.source = float64(after.idle-before.idle) / 1e9 / seconds / float64(d.loops)
	s.behind = all.behind
	if all.received > 0 {
		s.size = float64(all.bytes) / float64(all.received)
	}
	s.times = after.times
	s.times.sub(&before.times)
	want := uint64(0)
	if d.gre {
		want = all.received
	}
	switch {
	case after.received == before.received:
		return s, fmt.Errorf("%s: of %d packets sent %d came back, none in the time measured; it lost %v", d.name, all.sent, all.received, d.lost())
	case all.gre != want:
		return s, fmt.Errorf("%s: %d of %d packets came back in GRE, want %d", d.name, all.gre, all.received, want)
	}
	return s, nil
}

// own answers the processor time of this process in ns.
func own() int64 {
	t, _ := cputime.Process(os.Getpid())
	return t.Nanoseconds()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// median answers the middle of values, or the mean of both.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// rounds has every device take turns, so that what else the machine does meets them
// alike: samples by device, one a round.
func (l *lab) rounds(ctx context.Context, what string, n int, devices []*device, take func(*device) (sample, error)) ([][]sample, error) {
	all := make([][]sample, len(devices))
	for r := range n {
		fmt.Fprintf(os.Stderr, "%s: round %d of %d\n", what, r+1, n)
		for i := range devices {
			at := (i + r) % len(devices) // whoever is first is another one each time
			s, err := take(devices[at])
			if err != nil {
				return nil, err
			}
			all[at] = append(all[at], s)
		}
	}
	return all, nil
}

// each answers a figure of every sample.
func each(all []sample, f func(*sample) float64) []float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = f(&all[i])
	}
	return v
}

func rateOf(s *sample) float64 { return s.rate }

// costOf is processor time in ns for each packet that came back.
func costOf(s *sample) float64 { return s.cpu * 1e9 / s.rate }

// ratio answers the median over the rounds of a's figure to b's in the same round.
func ratio(a, b []sample, f func(*sample) float64) float64 {
	v := make([]float64, min(len(a), len(b)))
	for i := range v {
		if d := f(&b[i]); d != 0 {
			v[i] = f(&a[i]) / d
		}
	}
	return median(v)
}

// together adds up the times of all samples.
func together(all []sample) (t times) {
	for i := range all {
		t.add(&all[i].times)
	}
	return t
}

// sum adds up a count of all samples.
func sum(all []sample, f func(*sample) uint64) (n uint64) {
	for i := range all {
		n += f(&all[i])
	}
	return n
}

func lostOf(s *sample) uint64    { return s.lost }
func lateOf(s *sample) uint64    { return s.late }
func refusedOf(s *sample) uint64 { return s.refused }
