package pcap

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
)

// A File is a capture of Ethernet frames that is read packet by packet. It is a
// mem.Source. It is for one goroutine at a time.
type File struct {
	name string
	f    io.Closer
	r    *Reader
	next Packet
	have bool
	err  error // why there is nothing more; io.EOF at the end
}

// OpenFile opens a capture and reads its head.
func OpenFile(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &File{name: name, f: f, r: r}, nil
}

// Packet answers the next packet without taking it. Its bytes are valid until Take.
func (f *File) Packet() (p Packet, ok bool) {
	if !f.have && f.err == nil {
		f.next, f.err = f.r.Next()
		if f.err == nil && f.r.LinkType(f.next.Interface) != Ethernet {
			f.err = fmt.Errorf("%w: link type %d; only Ethernet (%d) is taken", ErrFormat, f.r.LinkType(f.next.Interface), Ethernet)
		}
		f.have = f.err == nil
	}
	return f.next, f.have
}

// Peek is part of mem.Source.
func (f *File) Peek() (b []byte, at int64, ok bool) {
	p, ok := f.Packet()
	return p.Data, p.Time, ok
}

// Take is part of mem.Source.
func (f *File) Take() { f.have = false }

// Done is part of mem.Source.
func (f *File) Done() bool { return f.err != nil && !f.have }

// Err answers why the file ended before its end, or nil.
func (f *File) Err() error {
	if f.err == nil || f.err == io.EOF {
		return nil
	}
	return fmt.Errorf("%s: %w", f.name, f.err)
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// Port is capture files to receive from, one a queue, or one file to send to.
type Port struct {
	info   graph.PortInfo
	queues []*mem.Queue
	in     []*File
	out    *output
}

var _ graph.Port = (*Port)(nil)

// OpenRead makes a port that receives from files, one a queue. The time of a
// packet in the capture is the time of its vector; where a capture runs backwards
// it stands still. cfg.Clock need not be set.
func OpenRead(files []string, cfg mem.Config) (*Port, error) {
	if len(files) == 0 {
		return nil, errors.New("no capture file to read")
	}
	cfg.Clock = true
	p := &Port{info: graph.PortInfo{Name: files[0], Mode: "file"}}
	for _, name := range files {
		f, err := OpenFile(name)
		if err != nil {
			_ = p.Close()
			return nil, err
		}
		p.in = append(p.in, f)
		p.queues = append(p.queues, mem.NewQueue(cfg, f, nil))
	}
	return p, nil
}

// OpenWrite makes a port of one queue that sends to a file, in the format that
// FormatOf answers. A file that exists is overwritten.
func OpenWrite(name string, cfg mem.Config) (*Port, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	o := &output{name: name, f: f, w: NewWriter(f, FormatOf(name))}
	if err := o.w.Flush(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Port{info: graph.PortInfo{Name: name, Mode: "file"}, out: o, queues: []*mem.Queue{mem.NewQueue(cfg, nil, o)}}, nil
}

// Queues is part of graph.Port.
func (p *Port) Queues() int { return len(p.queues) }

// Queue is part of graph.Port.
func (p *Port) Queue(q int) graph.Queue { return p.queues[q] }

// Info is part of graph.Port.
func (p *Port) Info() graph.PortInfo { return p.info }

// Err answers what queue q could not read or write; nil while all is well. It is
// for the queue's core.
func (p *Port) Err(q int) error {
	if p.out != nil {
		return p.out.failed()
	}
	return p.in[q].Err()
}

// Sync writes to the file what was sent and is still in memory. It is for the core
// of the queue.
func (p *Port) Sync() {
	if p.out != nil {
		p.out.sync()
	}
}

// Close is part of graph.Port. It answers the first error there was in writing.
func (p *Port) Close() (err error) {
	for _, f := range p.in {
		err = errors.Join(err, f.Close())
	}
	if p.out != nil {
		p.out.sync()
		err = errors.Join(p.out.failed(), p.out.f.Close())
	}
	return err
}

// output is a file that packets are sent to. It is a mem.Sink.
type output struct {
	name string
	f    *os.File
	w    *Writer
	err  error
}

// Put is part of mem.Sink. Once the file takes nothing more, neither does it.
func (o *output) Put(b []byte, at int64) bool {
	if o.err == nil {
		o.err = o.w.Write(Packet{Time: at, Data: b}, 0)
	}
	return o.err == nil
}

// Flushed is part of mem.Sink. What is put stays in memory until sync.
func (o *output) Flushed() {}

func (o *output) sync() {
	if o.err == nil {
		o.err = o.w.Flush()
	}
}

func (o *output) failed() error {
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", o.name, o.err)
}
