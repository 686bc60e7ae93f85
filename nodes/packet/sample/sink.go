package sample

import (
	"os"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/io/pcap"
)

// A shelf holds one core's samples on their way to the file: a ring of one producer, the
// core, and one consumer, whoever drains the sink. All memory is there from the
// beginning.
type shelf struct {
	head atomic.Uint32 // next to be written to the file
	_    [60]byte      // the two ends are written by two cores
	tail atomic.Uint32 // next to be filled
	_    [60]byte
	each []slot
	data []byte // snap bytes for each
}

type slot struct {
	n, total int
	at       int64
}

// A shelf has slots places of snap bytes, enough for the first frame of any packet; what
// chained packets have more is cut off, as captures do.
const (
	slots = 128
	snap  = 4096
)

func newShelf() *shelf {
	return &shelf{each: make([]slot, slots), data: make([]byte, slots*snap)}
}

// put copies a packet; false when the shelf is full.
func (s *shelf) put(b []byte, total int, at int64) bool {
	t := s.tail.Load()
	if t-s.head.Load() == slots {
		return false
	}
	k := t % slots
	s.each[k] = slot{copy(s.data[k*snap:(k+1)*snap], b), total, at}
	s.tail.Store(t + 1)
	return true
}

func (s *shelf) waiting() int { return int(s.tail.Load() - s.head.Load()) }

// A sink is the file and the shelves of all cores.
type sink struct {
	name    string
	log     *zap.Logger
	shelves []*shelf
	users   atomic.Int32
	busy    atomic.Bool // a goroutine is draining

	mu   sync.Mutex // guards what follows; no core takes it while packets wait
	file *os.File
	w    *pcap.Writer
	err  error
}

func newSink(name string, cores int, log *zap.Logger) *sink {
	s := &sink{name: name, log: log}
	for range cores {
		s.shelves = append(s.shelves, newShelf())
	}
	return s
}

// kick drains the shelves on a goroutine, unless one is at it.
func (s *sink) kick() {
	if s.busy.CompareAndSwap(false, true) {
		go func() {
			s.drain()
			s.busy.Store(false)
		}()
	}
}

// drain writes what lies on the shelves, in the order of time.
func (s *sink) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wrote := false
	for {
		var next *shelf
		var at int64
		for _, c := range s.shelves {
			if c.waiting() > 0 {
				if t := c.each[c.head.Load()%slots].at; next == nil || t < at {
					next, at = c, t
				}
			}
		}
		if next == nil {
			break
		}
		s.write(next)
		wrote = true
	}
	if wrote && s.err == nil {
		s.failed(s.w.Flush())
	}
}

// write takes the first sample from a shelf. After an error samples are taken and
// forgotten.
func (s *sink) write(c *shelf) {
	k := c.head.Load() % slots
	if s.file == nil && s.err == nil {
		f, err := os.Create(s.name)
		if err == nil {
			s.file, s.w = f, pcap.NewWriter(f, pcap.FormatOf(s.name))
		}
		s.failed(err)
	}
	if s.err == nil {
		e := c.each[k]
		s.failed(s.w.Write(pcap.Packet{Time: e.at, Data: c.data[k*snap:][:e.n], Length: e.total}, 0))
	}
	c.head.Add(1)
}

// release closes the file with the last user.
func (s *sink) release() error {
	if s.users.Add(-1) != 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	if s.err == nil {
		s.err = os.ErrClosed
	}
	return err
}
