// Package pcap reads and writes capture files, and makes ports of them. It reads
// classic pcap (microseconds and nanoseconds, either byte order) and pcapng
// (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng), as a stream: a capture of any
// size takes the memory of one packet.
//
// A file that is cut short, or lies about lengths, ends with an error that says
// where; it never panics, and never makes the reader allocate more than MaxPacket.
package pcap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
)

// MaxPacket is the longest packet that is read or written, in bytes: the largest
// snapshot length that tcpdump uses.
const MaxPacket = 262144

// Ethernet is the link type of Ethernet frames, the only one that ports take
// (LINKTYPE_ETHERNET of the tcpdump.org registry).
const Ethernet = 1

// Errors that Open and Next answer, wrapped with the place.
var (
	// ErrFormat: the file is no capture, or breaks its format.
	ErrFormat = errors.New("not a valid capture")
	// ErrCut: the file ends in the middle of a packet.
	ErrCut = errors.New("the capture is cut short")
)

// A Packet is one captured packet.
type Packet struct {
	Time      int64  // nanoseconds since 1970; 0 in pcapng's simple packet blocks
	Data      []byte // what was captured; a Reader reuses it at the next Next
	Length    int    // bytes on the wire, at least len(Data)
	Interface int    // of the section, in pcapng; else 0
	Comment   string // of the packet, in pcapng
}

// A Reader reads one capture. It is for one goroutine.
type Reader struct {
	in    *bufio.Reader
	at    int64 // bytes read
	order binary.ByteOrder
	ng    bool
	n     int // packets answered
	buf   []byte
	small [16]byte // what is read piecemeal; it would escape from the stack

	// Classic pcap.
	link int
	unit int64 // nanoseconds in a unit of the time stamp's fraction

	ifaces []iface // pcapng: of the section
}

// iface is what an interface description block says.
type iface struct {
	name   string
	link   int
	snap   uint32
	res    uint64 // units in a second
	offset int64  // seconds
}

// maxInterfaces bounds what a section can make the reader remember.
const maxInterfaces = 4096

// NewReader reads the head of a capture and tells its format from it.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{in: bufio.NewReaderSize(r, 64<<10)}
	var magic [4]byte
	if err := p.read(magic[:]); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrFormat, "no capture has less than 24 bytes")
	}
	switch m := binary.LittleEndian.Uint32(magic[:]); m {
	case 0xa1b2c3d4, 0xa1b23c4d:
		p.order = binary.LittleEndian
	case 0xd4c3b2a1, 0x4d3cb2a1:
		p.order = binary.BigEndian
	case sectionHeader: // the same in both orders
		p.ng = true
		return p, p.section()
	default:
		return nil, fmt.Errorf("%w: unknown magic number %#08x", ErrFormat, m)
	}
	p.unit = 1000
	if p.order.Uint32(magic[:]) == 0xa1b23c4d {
		p.unit = 1
	}
	var head [20]byte
	if err := p.read(head[:]); err != nil {
		return nil, fmt.Errorf("%w in its header", ErrCut)
	}
	if major := p.order.Uint16(head[0:]); major != 2 {
		return nil, fmt.Errorf("%w: pcap version %d.%d", ErrFormat, major, p.order.Uint16(head[2:]))
	}
	// The upper half says whether a frame check sequence is there.
	p.link = int(p.order.Uint32(head[16:]) & 0xffff)
	return p, nil
}

// Next answers the next packet, io.EOF behind the last one.
func (p *Reader) Next() (Packet, error) {
	var pkt Packet
	var err error
	if p.ng {
		pkt, err = p.nextNG()
	} else {
		pkt, err = p.nextPcap()
	}
	switch {
	case err == nil:
		p.n++
	case err != io.EOF:
		err = fmt.Errorf("behind packet %d, at byte %d: %w", p.n, p.at, err)
	}
	return pkt, err
}

// LinkType answers the link type of an interface; of classic pcap for any number.
func (p *Reader) LinkType(iface int) int {
	if !p.ng {
		return p.link
	}
	if iface < 0 || iface >= len(p.ifaces) {
		return -1
	}
	return p.ifaces[iface].link
}

// InterfaceName answers the name that the section gives an interface, or "".
func (p *Reader) InterfaceName(iface int) string {
	if iface < 0 || iface >= len(p.ifaces) {
		return ""
	}
	return p.ifaces[iface].name
}

func (p *Reader) read(b []byte) error {
	n, err := io.ReadFull(p.in, b)
	p.at += int64(n)
	return err
}

// data reads n bytes that are checked against MaxPacket.
func (p *Reader) data(n uint32) ([]byte, error) {
	if int(n) > cap(p.buf) {
		p.buf = make([]byte, max(2048, 1<<bits.Len32(n)))
	}
	b := p.buf[:n]
	if err := p.read(b); err != nil {
		return nil, cut(err)
	}
	return b, nil
}

func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrCut
	}
	return err
}

func (p *Reader) nextPcap() (pkt Packet, err error) {
	head := p.small[:16]
	if err := p.read(head); err == io.EOF {
		return pkt, io.EOF
	} else if err != nil {
		return pkt, cut(err)
	}
	sec, frac := p.order.Uint32(head[0:]), p.order.Uint32(head[4:])
	n, length := p.order.Uint32(head[8:]), p.order.Uint32(head[12:])
	if n > MaxPacket {
		return pkt, fmt.Errorf("%w: a packet of %d bytes; the longest has %d", ErrFormat, n, MaxPacket)
	}
	// A fraction of a second or more is wrong, and harmless.
	pkt.Time = int64(sec)*1e9 + int64(frac)*p.unit
	pkt.Data, err = p.data(n)
	pkt.Length = int(max(n, min(length, math.MaxInt32)))
	return pkt, err
}

// Block types of pcapng.
const (
	sectionHeader   = 0x0a0d0d0a
	interfaceBlock  = 1
	simplePacket    = 3
	enhancedPacket  = 6
	byteOrderMagic  = 0x1a2b3c4d
	maxKnownBlock   = MaxPacket + 64<<10 // a packet and its options
	optComment      = 1
	optIfName       = 2
	optIfResolution = 9
	optIfOffset     = 14
	optFlags        = 2
)

// section reads a section header block behind its type.
func (p *Reader) section() error {
	var head [8]byte // total length, byte-order magic
	if err := p.read(head[:]); err != nil {
		return cut(err)
	}
	switch {
	case binary.LittleEndian.Uint32(head[4:]) == byteOrderMagic:
		p.order = binary.LittleEndian
	case binary.BigEndian.Uint32(head[4:]) == byteOrderMagic:
		p.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: unknown byte order", ErrFormat)
	}
	p.ifaces = p.ifaces[:0]
	total := p.order.Uint32(head[:])
	if total < 28 || total%4 != 0 {
		return fmt.Errorf("%w: a section header of %d bytes", ErrFormat, total)
	}
	var version [4]byte
	if err := p.read(version[:]); err != nil {
		return cut(err)
	}
	if major := p.order.Uint16(version[:]); major != 1 {
		return fmt.Errorf("%w: pcapng version %d.%d", ErrFormat, major, p.order.Uint16(version[2:]))
	}
	if err := p.skip(total - 16 - 4); err != nil { // section length and options
		return err
	}
	return p.trailer(total)
}

func (p *Reader) skip(n uint32) error {
	done, err := io.CopyN(io.Discard, p.in, int64(n))
	p.at += done
	if err != nil {
		return cut(err)
	}
	return nil
}

// trailer reads the length at a block's end.
func (p *Reader) trailer(total uint32) error {
	tail := p.small[:4]
	if err := p.read(tail); err != nil {
		return cut(err)
	}
	if again := p.order.Uint32(tail); again != total {
		return fmt.Errorf("%w: a block's length is %d at its beginning and %d at its end", ErrFormat, total, again)
	}
	return nil
}

func (p *Reader) nextNG() (Packet, error) {
	for {
		head := p.small[:8]
		if err := p.read(head[:4]); err == io.EOF {
			return Packet{}, io.EOF
		} else if err != nil {
			return Packet{}, cut(err)
		}
		kind := p.order.Uint32(head)
		if kind == sectionHeader {
			if err := p.section(); err != nil {
				return Packet{}, err
			}
			continue
		}
		if err := p.read(head[4:]); err != nil {
			return Packet{}, cut(err)
		}
		total := p.order.Uint32(head[4:])
		if total < 12 || total%4 != 0 {
			return Packet{}, fmt.Errorf("%w: a block of %d bytes", ErrFormat, total)
		}
		body := total - 12
		if kind != interfaceBlock && kind != simplePacket && kind != enhancedPacket {
			if err := p.skip(body); err != nil {
				return Packet{}, err
			}
			if err := p.trailer(total); err != nil {
				return Packet{}, err
			}
			continue
		}
		if total > maxKnownBlock {
			return Packet{}, fmt.Errorf("%w: a block of %d bytes; the longest packet has %d", ErrFormat, total, MaxPacket)
		}
		b, err := p.data(body)
		if err != nil {
			return Packet{}, err
		}
		if err := p.trailer(total); err != nil {
			return Packet{}, err
		}
		var pkt Packet
		switch kind {
		case interfaceBlock:
			if err := p.describe(b); err != nil {
				return Packet{}, err
			}
			continue
		case simplePacket:
			pkt, err = p.simple(b)
		case enhancedPacket:
			pkt, err = p.enhanced(b)
		}
		return pkt, err
	}
}

// describe reads an interface description block.
func (p *Reader) describe(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%w: an interface description of %d bytes", ErrFormat, len(b))
	}
	if len(p.ifaces) == maxInterfaces {
		return fmt.Errorf("%w: more than %d interfaces", ErrFormat, maxInterfaces)
	}
	d := iface{link: int(p.order.Uint16(b)), snap: p.order.Uint32(b[4:]), res: 1e6}
	b = b[8:]
	for len(b) >= 4 {
		code, v, rest, err := p.option(b)
		if err != nil {
			return err
		}
		switch {
		case code == optIfName:
			d.name = string(v)
		case code == optIfResolution && len(v) >= 1:
			if d.res, err = resolution(v[0]); err != nil {
				return err
			}
		case code == optIfOffset && len(v) >= 8:
			d.offset = int64(p.order.Uint64(v))
		}
		b = rest
	}
	p.ifaces = append(p.ifaces, d)
	return nil
}

// resolution answers the units in a second that the option if_tsresol means.
func resolution(v byte) (units uint64, err error) {
	base, e, most := uint64(10), v&0x7f, byte(19)
	if v&0x80 != 0 {
		base, most = 2, 63
	}
	if e > most {
		return 0, fmt.Errorf("%w: a time stamp resolution of %d^-%d s", ErrFormat, base, e)
	}
	for units = 1; e > 0; e-- {
		units *= base
	}
	return units, nil
}

// option reads the option at the beginning of b, which has 4 bytes or more. rest
// is empty behind the last one.
func (p *Reader) option(b []byte) (code uint16, value, rest []byte, err error) {
	code, n := p.order.Uint16(b), int(p.order.Uint16(b[2:]))
	if code == 0 {
		return 0, nil, nil, nil
	}
	padded := 4 + (n+3)&^3
	if padded > len(b) {
		return 0, nil, nil, fmt.Errorf("%w: an option of %d bytes overruns its block", ErrFormat, n)
	}
	return code, b[4 : 4+n], b[padded:], nil
}

func (p *Reader) simple(b []byte) (pkt Packet, err error) {
	if len(p.ifaces) == 0 {
		return pkt, fmt.Errorf("%w: a packet before any interface description", ErrFormat)
	}
	if len(b) < 4 {
		return pkt, fmt.Errorf("%w: a packet block of %d bytes", ErrFormat, len(b)+12)
	}
	length := p.order.Uint32(b)
	n := length
	if s := p.ifaces[0].snap; s != 0 {
		n = min(n, s)
	}
	if n > MaxPacket || int(n) > len(b)-4 {
		return pkt, fmt.Errorf("%w: a packet of %d bytes in a block of %d", ErrFormat, n, len(b)+12)
	}
	pkt.Data, pkt.Length = b[4:4+n], int(min(length, math.MaxInt32))
	return pkt, nil
}

func (p *Reader) enhanced(b []byte) (pkt Packet, err error) {
	if len(b) < 20 {
		return pkt, fmt.Errorf("%w: a packet block of %d bytes", ErrFormat, len(b)+12)
	}
	id := p.order.Uint32(b)
	if id >= uint32(len(p.ifaces)) {
		return pkt, fmt.Errorf("%w: a packet of interface %d, which is not described", ErrFormat, id)
	}
	n, length := p.order.Uint32(b[12:]), p.order.Uint32(b[16:])
	padded := (uint64(n) + 3) &^ 3
	if n > MaxPacket || padded > uint64(len(b)-20) {
		return pkt, fmt.Errorf("%w: a packet of %d bytes in a block of %d", ErrFormat, n, len(b)+12)
	}
	stamp := uint64(p.order.Uint32(b[4:]))<<32 | uint64(p.order.Uint32(b[8:]))
	if pkt.Time, err = p.ifaces[id].time(stamp); err != nil {
		return pkt, err
	}
	pkt.Interface, pkt.Data, pkt.Length = int(id), b[20:20+n], int(max(n, min(length, math.MaxInt32)))
	for b = b[20+padded:]; len(b) >= 4; {
		code, v, rest, err := p.option(b)
		if err != nil {
			return pkt, err
		}
		if code == optComment && pkt.Comment == "" {
			pkt.Comment = string(v)
		}
		b = rest
	}
	return pkt, nil
}

// time turns a time stamp in the interface's units to nanoseconds.
func (d *iface) time(stamp uint64) (int64, error) {
	sec, frac := stamp/d.res, stamp%d.res
	hi, lo := bits.Mul64(frac, 1e9)
	ns, _ := bits.Div64(hi, lo, d.res) // frac < res, hence ns < 1e9
	const last = 9223372035            // the last whole second that int64 nanoseconds hold
	if sec > last || d.offset > last-int64(sec) || d.offset < -int64(sec) {
		return 0, fmt.Errorf("%w: a time stamp outside of 1970 to 2262", ErrFormat)
	}
	return (int64(sec)+d.offset)*1e9 + int64(ns), nil
}
