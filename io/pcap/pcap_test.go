package pcap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/pcap"
)

var sample = []pcap.Packet{
	{Time: 1_700_000_000_123_456_789, Data: frame(60, 1), Length: 60},
	{Time: 1_700_000_000_123_457_000, Data: frame(1514, 2), Length: 9014},
	{Time: 1_700_000_001_000_000_001, Data: frame(61, 3), Length: 61},
	{Time: 0, Data: nil, Length: 0},
}

func frame(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*3 + seed
	}
	return b
}

func write(t testing.TB, f pcap.Format, ps []pcap.Packet) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcap.NewWriter(&b, f)
	for _, p := range ps {
		if err := w.Write(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// read answers all packets and the error that ended them.
func read(b []byte) (ps []pcap.Packet, err error) {
	r, err := pcap.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		p, err := r.Next()
		if err != nil {
			return ps, err
		}
		p.Data = append([]byte(nil), p.Data...)
		ps = append(ps, p)
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		ps, err := read(write(t, f, sample))
		if err != io.EOF || len(ps) != len(sample) {
			t.Fatalf("format %d: %d packets, %v", f, len(ps), err)
		}
		for i, p := range ps {
			w := sample[i]
			if p.Time != w.Time || p.Length != w.Length || !bytes.Equal(p.Data, w.Data) {
				t.Errorf("format %d, packet %d: %d bytes of %d at %d", f, i, len(p.Data), p.Length, p.Time)
			}
		}
	}
}

// TestOthersReadWhatIsWritten decodes with an independent reader.
func TestOthersReadWhatIsWritten(t *testing.T) {
	type reader interface {
		ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		b := write(t, f, sample[:3])
		var r reader
		var err error
		if f == pcap.NG {
			r, err = pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions)
		} else {
			r, err = pcapgo.NewReader(bytes.NewReader(b))
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range sample[:3] {
			d, ci, err := r.ReadPacketData()
			if err != nil {
				t.Fatalf("format %d, packet %d: %v", f, i, err)
			}
			if !bytes.Equal(d, w.Data) || ci.Length != w.Length || ci.Timestamp.UnixNano() != w.Time {
				t.Errorf("format %d, packet %d: %d bytes of %d at %v", f, i, len(d), ci.Length, ci.Timestamp)
			}
		}
	}
}

// TestWhatOthersWriteIsRead reads what an independent writer wrote.
func TestWhatOthersWriteIsRead(t *testing.T) {
	var classic, nanos, ng bytes.Buffer
	cw, nw := pcapgo.NewWriter(&classic), pcapgo.NewWriterNanos(&nanos)
	if err := errors.Join(cw.WriteFileHeader(65535, layers.LinkTypeEthernet), nw.WriteFileHeader(65535, layers.LinkTypeEthernet)); err != nil {
		t.Fatal(err)
	}
	gw, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range sample[:3] {
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, p.Time), CaptureLength: len(p.Data), Length: p.Length}
		if err := errors.Join(cw.WritePacket(ci, p.Data), nw.WritePacket(ci, p.Data), gw.WritePacket(ci, p.Data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := gw.Flush(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		b    []byte
		unit int64
	}{"pcap": {classic.Bytes(), 1000}, "pcap, nanoseconds": {nanos.Bytes(), 1}, "pcapng": {ng.Bytes(), 1}} {
		ps, err := read(c.b)
		if err != io.EOF || len(ps) != 3 {
			t.Fatalf("%s: %d packets, %v", name, len(ps), err)
		}
		for i, p := range ps {
			w := sample[i]
			if p.Time != w.Time/c.unit*c.unit || p.Length != w.Length || !bytes.Equal(p.Data, w.Data) {
				t.Errorf("%s, packet %d: %d bytes of %d at %d", name, i, len(p.Data), p.Length, p.Time)
			}
		}
	}
}

func TestBigEndianFiles(t *testing.T) {
	be := binary.BigEndian
	for magic, at := range map[uint32]int64{0xa1b2c3d4: 5_000_007_000, 0xa1b23c4d: 5_000_000_007} {
		b := be.AppendUint32(nil, magic)
		b = append(b, 0, 2, 0, 4)
		for _, x := range []uint32{0, 0, 65535, 1, 5, 7, 3, 3} {
			b = be.AppendUint32(b, x)
		}
		b = append(b, 'a', 'b', 'c')
		ps, err := read(b)
		if err != io.EOF || len(ps) != 1 || ps[0].Time != at || string(ps[0].Data) != "abc" {
			t.Errorf("pcap with magic number %#x: %v, %v", magic, ps, err)
		}
	}
	ng := section(be, iface(be, 0xff, 0), block(be, 3, be.AppendUint32(nil, 3), []byte("abc\x00")), block(be, 6, words(be, 0, 0, 1_500_000, 3, 3), []byte("abc\x00")))
	ps, err := read(ng)
	if err != io.EOF || len(ps) != 2 || ps[0].Time != 0 || ps[1].Time != 1_500_000_000 || string(ps[1].Data) != "abc" {
		t.Errorf("pcapng: %v, %v", ps, err)
	}
}

// The functions below build pcapng files by hand.

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

func words(o byteOrder, xs ...uint32) (b []byte) {
	for _, x := range xs {
		b = o.AppendUint32(b, x)
	}
	return b
}

func block(o byteOrder, kind uint32, body ...[]byte) []byte {
	all := bytes.Join(body, nil)
	for len(all)%4 != 0 {
		all = append(all, 0)
	}
	n := uint32(12 + len(all))
	return append(append(words(o, kind, n), all...), words(o, n)...)
}

func section(o byteOrder, blocks ...[]byte) []byte {
	v := o.AppendUint16(o.AppendUint16(nil, 1), 0)
	return append(block(o, 0x0a0d0d0a, words(o, 0x1a2b3c4d), v, words(o, 0xffffffff, 0xffffffff)), bytes.Join(blocks, nil)...)
}

// iface describes an interface; res 0xff leaves the resolution out.
func iface(o byteOrder, res byte, offset int64) []byte {
	b := append(o.AppendUint16(o.AppendUint16(nil, 1), 0), words(o, 0)...)
	if res != 0xff {
		b = append(o.AppendUint16(o.AppendUint16(b, 9), 1), res, 0, 0, 0)
	}
	if offset != 0 {
		b = o.AppendUint64(o.AppendUint16(o.AppendUint16(b, 14), 8), uint64(offset))
	}
	return block(o, 1, b)
}

func TestTimeStampResolutions(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		res    byte
		offset int64
		stamp  uint64
		want   int64
	}{
		{0xff, 0, 1_700_000_000_123_456, 1_700_000_000_123_456_000},
		{9, 0, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789},
		{3, 0, 1_700_000_000_123, 1_700_000_000_123_000_000},
		{0, 1000, 5, 1_005_000_000_000},
		{12, 0, 1_500_000_000_001, 1_500_000_000},
		{0x80 | 10, 0, 1024*7 + 512, 7_500_000_000},
		{0x80 | 32, 0, 1<<32 + 1<<31, 1_500_000_000},
		{19, 0, 15_000_000_000_000_000_000, 1_500_000_000},
		{9, -1, 1_500_000_000, 500_000_000},
	} {
		b := section(le, iface(le, c.res, c.offset), block(le, 6, words(le, 0, uint32(c.stamp>>32), uint32(c.stamp), 0, 0)))
		ps, err := read(b)
		if err != io.EOF || len(ps) != 1 || ps[0].Time != c.want {
			t.Errorf("resolution %#x: %v, %v, want %d", c.res, ps, err, c.want)
		}
	}
	for _, c := range []struct {
		res    byte
		offset int64
		stamp  uint64
	}{{0, 0, 1 << 62}, {20, 0, 1}, {0x80 | 64, 0, 1}, {0, 1<<63 - 1, 1}, {0, -10, 5}} {
		b := section(le, iface(le, c.res, c.offset), block(le, 6, words(le, 0, uint32(c.stamp>>32), uint32(c.stamp), 0, 0)))
		if _, err := read(b); !errors.Is(err, pcap.ErrFormat) {
			t.Errorf("resolution %#x, offset %d, stamp %d: %v", c.res, c.offset, c.stamp, err)
		}
	}
}

func TestSeveralSectionsAndUnknownBlocks(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	b := section(le, iface(le, 9, 0), block(le, 0x0bad, frame(999, 0)), block(le, 6, words(le, 0, 0, 1, 1, 1), []byte{'a'}))
	b = append(b, section(be, iface(be, 9, 0), iface(be, 6, 0), block(be, 6, words(be, 1, 0, 2, 1, 1), []byte{'b'}))...)
	ps, err := read(b)
	if err != io.EOF || len(ps) != 2 || ps[0].Time != 1 || ps[1].Time != 2000 || ps[1].Interface != 1 {
		t.Errorf("%v, %v", ps, err)
	}
	// The interfaces of a section end with it.
	b = append(b, section(le, block(le, 6, words(le, 0, 0, 1, 1, 1), []byte{'a'}))...)
	if ps, err = read(b); len(ps) != 2 || !errors.Is(err, pcap.ErrFormat) {
		t.Errorf("%d packets, %v", len(ps), err)
	}
}

func TestCommentsInterfacesAndDirections(t *testing.T) {
	var b bytes.Buffer
	w := pcap.NewWriter(&b, pcap.NG)
	before, after := w.Interface("before"), w.Interface("after")
	for _, p := range []struct {
		p pcap.Packet
		d pcap.Direction
	}{
		{pcap.Packet{Data: frame(61, 0), Interface: before, Comment: "packet 1"}, pcap.Inbound},
		{pcap.Packet{Data: frame(85, 0), Interface: after, Comment: "packet 1: rx → parse → gre → tx, sent"}, pcap.Outbound},
		{pcap.Packet{Data: frame(85, 0), Interface: after, Comment: strings.Repeat("x", 70000)}, 0},
	} {
		if err := w.Write(p.p, p.d); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := pcap.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"packet 1", "packet 1: rx → parse → gre → tx, sent", strings.Repeat("x", 65535)} {
		p, err := r.Next()
		if err != nil || p.Comment != want {
			t.Errorf("packet %d: %d bytes of comment, %v", i, len(p.Comment), err)
		}
		if name := r.InterfaceName(p.Interface); name != [...]string{"before", "after", "after"}[i] {
			t.Errorf("packet %d is of interface %q", i, name)
		}
	}
}

// TestHostileFiles has one wrong thing in each file.
func TestHostileFiles(t *testing.T) {
	le := binary.LittleEndian
	classic := write(t, pcap.Classic, sample)
	change := func(b []byte, at int, x uint32) []byte {
		b = append([]byte(nil), b...)
		le.PutUint32(b[at:], x)
		return b
	}
	good := section(le, iface(le, 9, 0), block(le, 6, words(le, 0, 0, 1, 3, 3), []byte("abc\x00")))
	epb := len(good) - 36
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":                          {nil, pcap.ErrFormat},
		"not a capture":                  {[]byte("hello, this is text and no capture"), pcap.ErrFormat},
		"version":                        {change(classic, 4, 9), pcap.ErrFormat},
		"pcap: long packet":              {change(classic, 32, pcap.MaxPacket+1), pcap.ErrFormat},
		"pcap: length 2^32−1":            {change(classic, 32, 1<<32-1), pcap.ErrFormat},
		"pcap: longer than the file":     {change(classic, 32, pcap.MaxPacket), pcap.ErrCut},
		"pcapng: byte order":             {change(good, 8, 7), pcap.ErrFormat},
		"pcapng: short section header":   {change(good, 4, 8), pcap.ErrFormat},
		"pcapng: section header's end":   {change(good, 24, 8), pcap.ErrFormat},
		"pcapng: version":                {change(good, 12, 2), pcap.ErrFormat},
		"pcapng: short block":            {change(good, epb+4, 8), pcap.ErrFormat},
		"pcapng: block of odd length":    {change(good, epb+4, 37), pcap.ErrFormat},
		"pcapng: huge block":             {change(good, epb+4, 1<<31), pcap.ErrFormat},
		"pcapng: unknown huge block":     {change(change(good, epb, 77), epb+4, 1<<31), pcap.ErrCut},
		"pcapng: trailer":                {change(good, len(good)-4, 40), pcap.ErrFormat},
		"pcapng: packet beyond block":    {change(good, epb+20, 8), pcap.ErrFormat},
		"pcapng: packet of 2^32−1 bytes": {change(good, epb+20, 1<<32-1), pcap.ErrFormat},
		"pcapng: unknown interface":      {change(good, epb+8, 1), pcap.ErrFormat},
		"pcapng: option overruns": {
			section(le, iface(le, 9, 0), block(le, 6, words(le, 0, 0, 1, 0, 0), []byte{1, 0, 9, 0})), pcap.ErrFormat,
		},
		"pcapng: simple packet without interface": {section(le, block(le, 3, words(le, 0))), pcap.ErrFormat},
		"pcapng: simple packet beyond block":      {section(le, iface(le, 9, 0), block(le, 3, words(le, 100))), pcap.ErrFormat},
		"pcapng: short packet block":              {section(le, iface(le, 9, 0), block(le, 6, words(le, 0))), pcap.ErrFormat},
		"pcapng: short interface block":           {section(le, block(le, 1, words(le, 0))), pcap.ErrFormat},
		"pcapng: empty simple packet block":       {section(le, iface(le, 9, 0), block(le, 3)), pcap.ErrFormat},
		"pcapng: interfaces without end":          {section(le, bytes.Repeat(iface(le, 9, 0), 4097)), pcap.ErrFormat},
	} {
		if _, err := read(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryCutIsToldApart cuts good files at every byte: packets that are whole
// are answered, and the end is an end only between two of them.
func TestEveryCutIsToldApart(t *testing.T) {
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		var b []byte
		ends := map[int]int{} // length of the file → packets in it
		for n := -1; n <= len(sample); n++ {
			var buf bytes.Buffer
			w := pcap.NewWriter(&buf, f)
			if n >= 0 {
				w.Interface("eth0")
			}
			for _, p := range sample[:max(n, 0)] {
				_ = w.Write(p, 0)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			b = buf.Bytes()
			ends[len(b)] = max(n, 0)
		}
		head := 24
		if f == pcap.NG {
			head = 28
		}
		last := 0
		for n := range len(b) {
			ps, err := read(b[:n])
			whole, isEnd := ends[n]
			if isEnd {
				last = whole
			}
			switch {
			case n < head:
				if !errors.Is(err, pcap.ErrFormat) && !errors.Is(err, pcap.ErrCut) {
					t.Fatalf("format %d cut at %d: %v", f, n, err)
				}
			case isEnd && err != io.EOF:
				t.Fatalf("format %d cut at %d, between packets: %v", f, n, err)
			case len(ps) != last:
				t.Fatalf("format %d cut at %d: %d packets, want %d", f, n, len(ps), last)
			case err != io.EOF && !errors.Is(err, pcap.ErrCut):
				t.Fatalf("format %d cut at %d: %v", f, n, err)
			}
		}
	}
}

func TestErrorsSayWhere(t *testing.T) {
	b := write(t, pcap.Classic, sample)
	_, err := read(b[:len(b)-20])
	if err == nil || !strings.Contains(err.Error(), "behind packet 2, at byte ") {
		t.Errorf("%v", err)
	}
}

func TestReadersErrorsComeThrough(t *testing.T) {
	boom := errors.New("boom")
	r, err := pcap.NewReader(io.MultiReader(bytes.NewReader(write(t, pcap.Classic, sample[:1])), iotest.ErrReader(boom)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err = r.Next(); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
}

type fullDisk struct{ left int }

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.left -= len(b); d.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(b), nil
}

func TestAFullDiskIsToldOnce(t *testing.T) {
	w := pcap.NewWriter(&fullDisk{left: 100 << 10}, pcap.NG)
	var err error
	for range 1000 {
		if err = w.Write(sample[1], 0); err != nil {
			break
		}
	}
	if err == nil || w.Flush() == nil || w.Write(sample[0], 0) == nil {
		t.Error("a full disk is not told")
	}
	if err := w.Write(pcap.Packet{Data: make([]byte, pcap.MaxPacket+1)}, 0); err == nil {
		t.Error("a packet that no reader takes was written")
	}
}

const chunk = 2048

func config(frames int) mem.Config {
	return mem.Config{Mem: make([]byte, frames*chunk), Chunk: chunk, Rings: frames}
}

// drain receives all of a queue and answers lanes and time of each vector.
func drain(t *testing.T, q graph.Queue, v *packet.Vector, each func(n int)) (vectors [][2]int64) {
	t.Helper()
	var fill []uint32
	for f := range len(v.Mem) / chunk {
		fill = append(fill, uint32(f))
	}
	for range 1000 {
		q.Refill(fill)
		n := q.Receive(v)
		if n == 0 {
			if !q.Idle() {
				t.Error("nothing comes, and the queue is not idle")
			}
			return vectors
		}
		fill = fill[:0]
		for i := range n {
			for f := v.Chain[i]; f != packet.NoFrame; f = v.Links[f].Next {
				fill = append(fill, f)
			}
			fill = append(fill, v.Frame[i])
		}
		vectors = append(vectors, [2]int64{int64(n), v.Now})
		if each != nil {
			each(n)
		}
	}
	t.Fatal("the queue does not end")
	return nil
}

func TestReadingPort(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("q%d.pcap", i)) }
	var many []pcap.Packet
	for i := range 100 {
		many = append(many, pcap.Packet{Time: 1000, Data: frame(64+i, byte(i))})
	}
	many = append(many, pcap.Packet{Time: 3000, Data: frame(9014, 1)}, pcap.Packet{Time: 2000, Data: frame(64, 2)}, pcap.Packet{Time: 4000, Data: frame(64, 3)})
	for i, ps := range [][]pcap.Packet{many, sample[:2]} {
		if err := os.WriteFile(name(i), write(t, pcap.Format(i), ps), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(256)
	p, err := pcap.OpenRead([]string{name(0), name(1)}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if p.Queues() != 2 || p.Info().Mode != "file" {
		t.Errorf("%d queues, %+v", p.Queues(), p.Info())
	}
	v := &packet.Vector{Mem: cfg.Mem, Links: make([]packet.Link, 256)}
	got := drain(t, p.Queue(0), v, nil)
	want := [][2]int64{{64, 1000}, {36, 1000}, {2, 3000}, {1, 4000}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("vectors %v, want %v", got, want)
	}
	i := 0
	drain(t, p.Queue(1), v, func(n int) {
		if !bytes.Equal(v.Bytes(0), sample[i].Data) || v.Now != sample[i].Time {
			t.Errorf("packet %d: %d bytes at %d", i, v.Len[0], v.Now)
		}
		i++
	})
	if p.Err(0) != nil || p.Err(1) != nil {
		t.Error(p.Err(0), p.Err(1))
	}
}

func TestReadingPortTellsOfBadFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "q0.pcap")
	if _, err := pcap.OpenRead([]string{name}, config(64)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	b := write(t, pcap.Classic, sample)
	raw := append([]byte(nil), b...)
	raw[20] = 101 // LINKTYPE_RAW
	for _, c := range []struct {
		b       []byte
		packets int64
		want    string
	}{{b[:len(b)-17], 2, "cut short"}, {raw, 0, "link type 101"}} {
		if err := os.WriteFile(name, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := config(64)
		p, err := pcap.OpenRead([]string{name}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for _, v := range drain(t, p.Queue(0), &packet.Vector{Mem: cfg.Mem}, nil) {
			n += v[0]
		}
		if err := p.Err(0); n != c.packets || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%d packets, %v", n, err)
		}
		_ = p.Close()
	}
}

func TestWritingPort(t *testing.T) {
	for _, base := range []string{"out.pcap", "out.pcapng"} {
		name := filepath.Join(t.TempDir(), base)
		cfg := config(64)
		p, err := pcap.OpenWrite(name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		q := p.Queue(0)
		v := &packet.Vector{Mem: cfg.Mem, Links: make([]packet.Link, 64)}
		for f, want := range sample[:2] {
			copy(cfg.Mem[f*chunk:], want.Data)
			v.Now = want.Time
			v.Frame[0], v.Start[0], v.Len[0], v.Total[0], v.Chain[0] = uint32(f), uint32(f*chunk), uint32(len(want.Data)), uint32(len(want.Data)), packet.NoFrame
			if taken := q.Transmit(v, 1); taken != 1 {
				t.Fatal("not taken")
			}
			q.Flush()
			var done [4]uint32
			if q.Reclaim(done[:]) != 1 || done[0] != uint32(f) {
				t.Errorf("frame %d did not come back", f)
			}
		}
		p.Sync()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		ps, err := read(b)
		if err != io.EOF || len(ps) != 2 || ps[0].Time != sample[0].Time || !bytes.Equal(ps[1].Data, sample[1].Data) {
			t.Errorf("%s: %d packets, %v", base, len(ps), err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := pcap.OpenWrite(filepath.Join(t.TempDir(), "no", "such", "dir.pcap"), config(1)); err == nil {
		t.Error("opened")
	}
}

func TestWritingPortWithoutSpace(t *testing.T) {
	cfg := config(256)
	p, err := pcap.OpenWrite("/dev/full", cfg)
	if err == nil {
		_ = p.Close()
		t.Fatal("a device that takes nothing was opened for writing")
	}
	if !strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("%v", err)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	w := pcap.NewWriter(io.Discard, pcap.NG)
	b := write(t, pcap.NG, bytes2packets(2000))
	r, err := pcap.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = r.Next()
	_ = w.Write(sample[1], pcap.Outbound)
	if a := testing.AllocsPerRun(1000, func() {
		p, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Write(p, pcap.Outbound)
	}); a != 0 {
		t.Errorf("%v allocations a packet", a)
	}
}

func bytes2packets(n int) []pcap.Packet {
	ps := make([]pcap.Packet, n)
	for i := range ps {
		ps[i] = pcap.Packet{Time: int64(i), Data: sample[i%3].Data}
	}
	return ps
}

// FuzzReader reads anything. What is read can be written and read again.
func FuzzReader(f *testing.F) {
	f.Add(write(f, pcap.Classic, sample))
	f.Add(write(f, pcap.NG, sample))
	be := binary.BigEndian
	f.Add(section(be, iface(be, 6, 1), block(be, 3, be.AppendUint32(nil, 3), []byte("abc\x00")), block(be, 99, []byte("abcd")), block(be, 6, words(be, 0, 0, 9, 3, 3), []byte("abc\x00\x00\x01\x00\x01x\x00\x00\x00\x00\x00\x00\x00"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		ps, err := read(b)
		if err == nil {
			t.Fatal("a file without end")
		}
		if err != io.EOF && !errors.Is(err, pcap.ErrCut) && !errors.Is(err, pcap.ErrFormat) {
			t.Fatalf("an error without a kind: %v", err)
		}
		size := 0
		for _, p := range ps {
			size += len(p.Data)
			if p.Length < len(p.Data) || p.Time < 0 {
				t.Fatalf("%d bytes of %d at %d", len(p.Data), p.Length, p.Time)
			}
		}
		if size > len(b) {
			t.Fatalf("%d bytes of packets in a file of %d", size, len(b))
		}
		again, err := read(write(t, pcap.NG, ps))
		if err != io.EOF || len(again) != len(ps) {
			t.Fatalf("written and read again: %d packets of %d, %v", len(again), len(ps), err)
		}
		for i := range ps {
			if again[i].Time != ps[i].Time || !bytes.Equal(again[i].Data, ps[i].Data) || again[i].Length != ps[i].Length {
				t.Fatalf("packet %d changed", i)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	file := write(b, pcap.NG, bytes2packets(10000))
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if ps, err := count(file); ps != 10000 || err != io.EOF {
			b.Fatal(ps, err)
		}
	}
}

func count(b []byte) (n int, err error) {
	r, err := pcap.NewReader(bytes.NewReader(b))
	for ; err == nil; n++ {
		if _, err = r.Next(); err != nil {
			break
		}
	}
	return n, err
}
