package pcap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Format is a capture file's format.
type Format uint8

const (
	// Classic is pcap with nanoseconds.
	Classic Format = iota
	// NG is pcapng: with interfaces and comments.
	NG
)

// FormatOf answers NG for names that end in .pcapng or .ntar, else Classic.
func FormatOf(name string) Format {
	if strings.HasSuffix(name, ".pcapng") || strings.HasSuffix(name, ".ntar") {
		return NG
	}
	return Classic
}

// Direction of a packet as seen from the interface it was captured on.
type Direction uint8

// The directions that pcapng knows; the zero value says nothing.
const (
	Inbound  Direction = 1
	Outbound Direction = 2
)

// A Writer writes one capture of Ethernet frames. It is for one goroutine. It
// buffers: Flush says whether everything was written. After an error nothing more
// is written, and all methods answer that error.
type Writer struct {
	out    *bufio.Writer
	ng     bool
	ifaces int
	err    error
	head   [36]byte
	opts   []byte
}

// NewWriter begins a capture. In pcapng, interfaces are described by Interface.
func NewWriter(w io.Writer, f Format) *Writer {
	p := &Writer{out: bufio.NewWriterSize(w, 64<<10), ng: f == NG}
	h := p.head[:0]
	if p.ng {
		h = le32(h, sectionHeader, 28, byteOrderMagic)
		h = le16(h, 1, 0)
		h = le32(h, math.MaxUint32, math.MaxUint32, 28) // section of unknown length
	} else {
		h = le32(h, 0xa1b23c4d)
		h = le16(h, 2, 4)
		h = le32(h, 0, 0, MaxPacket, Ethernet)
	}
	p.write(h)
	return p
}

func le32(b []byte, xs ...uint32) []byte {
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func le16(b []byte, xs ...uint16) []byte {
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint16(b, x)
	}
	return b
}

func (p *Writer) write(b []byte) {
	if p.err == nil {
		_, p.err = p.out.Write(b)
	}
}

// Interface describes an interface of the capture and answers its number, which
// Packets carry. In classic pcap, which knows none, it answers 0.
func (p *Writer) Interface(name string) int {
	if !p.ng {
		return 0
	}
	o := option(p.opts[:0], optIfName, name)
	o = le16(o, optIfResolution, 1)
	o = append(o, 9, 0, 0, 0) // nanoseconds
	o = le16(o, 0, 0)
	total := uint32(20 + len(o))
	h := le32(p.head[:0], interfaceBlock, total)
	h = le16(h, Ethernet, 0)
	p.write(le32(h, MaxPacket))
	p.write(o)
	p.write(le32(p.head[:0], total))
	p.opts = o
	p.ifaces++
	return p.ifaces - 1
}

// option appends an option that is a text of at most 65535 bytes; more is cut off.
func option(o []byte, code uint16, text string) []byte {
	text = text[:min(len(text), math.MaxUint16)]
	o = le16(o, code, uint16(len(text)))
	o = append(o, text...)
	return append(o, 0, 0, 0)[:len(o)+(-len(text)&3)]
}

var errTooLong = errors.New("packet too long to write")

// Write appends a packet. Length is taken as at least len(Data); Comment,
// Interface and the direction are for pcapng only. It does not allocate, unless
// there is a comment.
func (p *Writer) Write(pkt Packet, d Direction) error {
	if p.err != nil {
		return p.err
	}
	n := len(pkt.Data)
	if n > MaxPacket {
		return fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	at := max(pkt.Time, 0)
	length := uint32(max(pkt.Length, n))
	if !p.ng {
		h := le32(p.head[:0], uint32(at/1e9), uint32(at%1e9), uint32(n), length)
		p.write(h)
		p.write(pkt.Data)
		return p.err
	}
	if p.ifaces == 0 {
		p.Interface("lbgraph")
	}
	o := p.opts[:0]
	if pkt.Comment != "" {
		o = option(o, optComment, pkt.Comment)
	}
	if d != 0 {
		o = le16(o, optFlags, 4)
		o = le32(o, uint32(d))
	}
	if len(o) > 0 {
		o = le16(o, 0, 0)
	}
	p.opts = o
	pad := -n & 3
	total := uint32(32 + n + pad + len(o))
	h := le32(p.head[:0], enhancedPacket, total, uint32(pkt.Interface), uint32(uint64(at)>>32), uint32(at), uint32(n), length)
	p.write(h)
	p.write(pkt.Data)
	p.write(zeros[:pad])
	p.write(o)
	p.write(le32(p.head[:0], total))
	return p.err
}

var zeros [4]byte

// Flush writes what is buffered and answers the first error there was.
func (p *Writer) Flush() error {
	if p.err == nil {
		p.err = p.out.Flush()
	}
	return p.err
}
