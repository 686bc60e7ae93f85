package conntrack

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/prefetch"
	"github.com/lbgraph/lbgraph/io/umem"
)

// The memory of a table is an array of buckets. An entry stands in the bucket that
// the hash of its key names, its home, or in one of reach buckets behind it if that
// was full. The home's word over remembers who went on: 28 bits, of which the hash
// names one, and on top how many steps it went at most. So a look-up that
// finds nothing reads one line in nearly all cases, and reach+1 buckets at worst.
const (
	reach     = 15 // the last step leads 120 buckets on: no table is smaller
	overShift = 28
	overBits  = overShift
)

// line is a bucket of entries whose key fits a word: service number (16 bits),
// source port, IPv4 source address. It is one cache line.
type line struct {
	key  [5]uint64
	st   [5]uint32 // state words, 0 for free places, whose key is 0 too
	over uint32
}

// wideLine is a bucket of entries with the full 5-tuple and the service number: IPv6,
// prefixes, port ranges, any protocol. Its first cache line has the state
// words, and of each key 16 bits of the hash, so that a look-up reads it and the
// lines of the one key that fits.
type wideLine struct {
	st   [10]uint32
	tag  [10]uint16
	over uint32
	key  [10]wideKey
	_    [48]byte
}

type wideKey struct {
	src, dst packet.Addr
	rest     uint64 // source port, destination port (16 bits each), protocol (8), service (24)
}

func (k *wideKey) service() uint32 { return uint32(k.rest) & state.MaxServices }
func (k *wideKey) proto() uint8    { return uint8(k.rest >> 24) }

const (
	_ = uint(64 - unsafe.Sizeof(line{}))
	_ = uint(unsafe.Sizeof(line{}) - 64)
	_ = uint(512 - unsafe.Sizeof(wideLine{}))
	_ = uint(unsafe.Sizeof(wideLine{}) - 512)
)

// ident is a key with its hash.
type ident struct {
	hash    uint64
	compact uint64 // the key if it fits a word
	full    wideKey
	wide    bool
}

// region is memory from the system, which the collector does not look at. It is
// zero, and costs nothing before it is touched.
type region struct {
	mem     []byte
	cleanup runtime.Cleanup
}

func newRegion(size int) (*region, error) {
	// The kernel places a mapping at a multiple of a huge page where its length is one:
	// else the table's ends, or all of a small one, would be in small pages.
	size = (size + umem.HugePage - 1) &^ (umem.HugePage - 1)
	mem, err := unix.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%d MiB for a connection table: %w", size>>20, err)
	}
	// Only advice: where huge pages are off, the table is slower.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	r := &region{mem: mem}
	r.cleanup = runtime.AddCleanup(r, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return r, nil
}

func (r *region) free() {
	r.cleanup.Stop()
	_ = unix.Munmap(r.mem)
}

// table is one array of buckets: of lines, or of wide ones.
type table struct {
	lines []line
	wide  []wideLine
	keys  *[6]uint64
}

// tables is all memory of one core: both arrays, of which each could take all
// entries.
type tables struct {
	*region
	compact, full table
	keys          [6]uint64 // secret, so that nobody can aim at one bucket
	entries       int
	count         [4]int // entries by state
}

func newTables(entries int) (*tables, error) {
	// At most 70 % of the places are taken.
	lines, wide := (entries*10+34)/35, (entries*10+69)/70
	r, err := newRegion(lines*int(unsafe.Sizeof(line{})) + wide*int(unsafe.Sizeof(wideLine{})))
	if err != nil {
		return nil, err
	}
	t := &tables{region: r, entries: entries}
	var secret [48]byte
	_, _ = rand.Read(secret[:]) // never fails
	for i := range t.keys {
		t.keys[i] = binary.LittleEndian.Uint64(secret[8*i:]) | 1
	}
	p := unsafe.Pointer(unsafe.SliceData(r.mem))
	t.compact = table{lines: unsafe.Slice((*line)(p), lines), keys: &t.keys}
	t.full = table{wide: unsafe.Slice((*wideLine)(unsafe.Add(p, lines*int(unsafe.Sizeof(line{})))), wide), keys: &t.keys}
	return t, nil
}

func (t *tables) used() int { return t.count[handshake] + t.count[established] + t.count[closing] }

// of answers the array that id belongs in.
func (t *tables) of(id *ident) *table {
	if id.wide {
		return &t.full
	}
	return &t.compact
}

// hashCompact multiplies twice, since flows often come in order: the ports of a
// client, the addresses of a network. One multiplication makes even steps of them,
// and some secret keys make steps that come round to the same few buckets: the last
// flows then find no room in a table that has plenty. Folding the product before it
// is multiplied again breaks the steps.
func hashCompact(keys *[6]uint64, key uint64) uint64 {
	return packet.Mix(key^keys[0], keys[1]) * keys[2]
}

func hashWide(keys *[6]uint64, k *wideKey) uint64 {
	s := packet.Mix(k.src.Hi^keys[0], k.src.Lo^keys[1])
	d := packet.Mix(k.dst.Hi^keys[2], k.dst.Lo^keys[3])
	return packet.Mix(packet.Mix(s^k.rest^keys[4], d^keys[5])^keys[1], keys[0])
}

func (t *table) size() uint32 { return uint32(len(t.lines) + len(t.wide)) }

func (t *table) home(hash uint64) uint32 { return packet.Reduce(hash, t.size()) }

// step answers the d-th bucket to go on to from b: 1, 3, 6 … 120 behind it, so that
// full ones do not grow together.
func (t *table) step(b, d uint32) uint32 {
	if b += d * (d + 1) / 2; b >= t.size() {
		b -= t.size()
	}
	return b
}

func overBit(hash uint64) uint32 { return 1 << (hash & 0xffff * overBits >> 16) }

// bucket answers the state words and the over word of bucket b.
func (t *table) bucket(b uint32) (st []uint32, over *uint32) {
	if t.wide != nil {
		l := &t.wide[b]
		return l.st[:], &l.over
	}
	l := &t.lines[b]
	return l.st[:], &l.over
}

func (t *table) hashAt(b uint32, s int) uint64 {
	if t.wide != nil {
		return hashWide(t.keys, &t.wide[b].key[s])
	}
	return hashCompact(t.keys, t.lines[b].key[s])
}

// ident answers the key of place s of bucket b, for a table with other secret keys.
func (t *table) ident(b uint32, s int, keys *[6]uint64) ident {
	if t.wide != nil {
		k := t.wide[b].key[s]
		return ident{wide: true, full: k, hash: hashWide(keys, &k)}
	}
	k := t.lines[b].key[s]
	return ident{compact: k, hash: hashCompact(keys, k)}
}

// about answers the service and the protocol of place s of bucket b.
func (t *table) about(b uint32, s int, infos []state.ServiceInfo) (service uint32, proto uint8) {
	if t.wide != nil {
		k := &t.wide[b].key[s]
		return k.service(), k.proto()
	}
	service = uint32(t.lines[b].key[s] >> 48)
	if int(service) < len(infos) {
		proto = infos[service].Proto
	}
	return service, proto
}

func tagOf(hash uint64) uint16 { return uint16(hash >> 16) }

// matches tells whether place s of bucket b is taken by id.
func (t *table) matches(b uint32, s int, id *ident) bool {
	if t.wide != nil {
		l := &t.wide[b]
		return l.tag[s] == tagOf(id.hash) && l.st[s] != 0 && l.key[s] == id.full
	}
	return t.lines[b].key[s] == id.compact
}

// find answers where id stands; s is −1 when it stands nowhere.
func (t *table) find(id *ident) (b uint32, s int) {
	home := t.home(id.hash)
	_, over := t.bucket(home)
	last := uint32(0)
	if *over&overBit(id.hash) != 0 {
		last = *over >> overShift
	}
	for d := uint32(0); d <= last; d++ {
		b = t.step(home, d)
		st, _ := t.bucket(b)
		for s := range st {
			if t.matches(b, s, id) {
				return b, s
			}
		}
	}
	return 0, -1
}

// put writes an entry to a free place, d buckets behind its home.
func (t *table) put(b uint32, s int, id *ident, w, d uint32) {
	st, _ := t.bucket(b)
	st[s] = w
	if t.wide != nil {
		l := &t.wide[b]
		l.tag[s], l.key[s] = tagOf(id.hash), id.full
	} else {
		t.lines[b].key[s] = id.compact
	}
	if d > 0 {
		_, over := t.bucket(t.home(id.hash))
		*over = (*over&(1<<overShift-1) | overBit(id.hash)) | max(*over>>overShift, d)<<overShift
	}
}

// wipe frees place s of bucket b.
func (t *table) wipe(b uint32, s int) {
	st, _ := t.bucket(b)
	st[s] = 0
	if t.wide != nil {
		t.wide[b].tag[s], t.wide[b].key[s] = 0, wideKey{}
	} else {
		t.lines[b].key[s] = 0
	}
}

// tidy brings entries that went on back to bucket b where it has room now, and
// makes its over word say who is still away.
func (t *table) tidy(b uint32) (moved bool) {
	st, over := t.bucket(b)
	if *over == 0 {
		return false
	}
	var left uint32
	for d, last := uint32(1), *over>>overShift; d <= last; d++ {
		at := t.step(b, d)
		away, _ := t.bucket(at)
		for s := range away {
			if away[s] == 0 {
				continue
			}
			hash := t.hashAt(at, s)
			if t.home(hash) != b {
				continue
			}
			if f := freePlace(st); f >= 0 {
				id := t.ident(at, s, t.keys)
				t.put(b, f, &id, away[s], 0)
				t.wipe(at, s)
				moved = true
				continue
			}
			left = left&(1<<overShift-1) | overBit(hash) | d<<overShift
		}
	}
	*over = left
	return moved
}

func freePlace(st []uint32) int {
	for s, w := range st {
		if w == 0 {
			return s
		}
	}
	return -1
}

// aim finds the home lines of the keys from … to−1 of b, and asks for them.
func (t *table) aim(b *batch, from, to int) {
	size := uint64(len(t.lines))
	home := b.home[from:to]
	for j, key := range b.key[from:to] {
		hash := hashCompact(t.keys, key)
		home[j] = uint32(hash>>32*size>>32) * uint32(unsafe.Sizeof(line{}))
	}
	prefetch.Offsets(unsafe.Pointer(unsafe.SliceData(t.lines)), home)
}

// compare finds the keys from … to−1 of b in their home lines. It does not branch: which
// place it is nobody can predict.
func (t *table) compare(b *batch, from, to int) {
	lines := unsafe.Pointer(unsafe.SliceData(t.lines))
	home, place := b.home[from:to], b.place[from:to]
	for j, key := range b.key[from:to] {
		l := (*line)(unsafe.Add(lines, home[j]))
		p := l.first(key)
		if p == len(l.key) {
			p += l.first(0)
		}
		place[j] = uint8(p)
	}
}

// first answers the first place of the line that has the key, 5 if there is none. The key of
// a free place is 0.
func (l *line) first(key uint64) int {
	return bits.TrailingZeros32(uint32(b2u(l.key[0] == key)|b2u(l.key[1] == key)<<1|b2u(l.key[2] == key)<<2|b2u(l.key[3] == key)<<3|b2u(l.key[4] == key)<<4) | 1<<5)
}

// b2u compiles to one instruction.
func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
