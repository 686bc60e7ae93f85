package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"structs"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Errors that tell an operator apart what stands in the way. What is answered
// wraps one of them and says more.
var (
	ErrPrivilege   = errors.New("not permitted: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF")
	ErrNoXDP       = errors.New("no XDP support")
	ErrNoInterface = errors.New("no such interface")
	ErrForeign     = errors.New("another XDP program is attached")
	ErrQueues      = errors.New("too few receive queues: XDP needs as many as the other end of the veth pair has transmit queues (ethtool -L)")
	ErrMTU         = errors.New("the MTU is too large")
)

// An Admission is the XDP program of one interface with its rules and the sockets
// it redirects to. Until the first Update it passes everything. Its methods may
// be called from any goroutine.
type Admission struct {
	objs  *ebpf.Collection
	plain *ebpf.Program
	frags *ebpf.Program // nil where the kernel knows no packets of several buffers

	addresses, prefixes, services, tunnels, current *ebpf.Map
	sockets, verdicts, vips                         *ebpf.Map

	mu    sync.Mutex
	cell  [2]*ebpf.Map
	wrote [2]written // what stands in the maps, by copy
	slot  map[string]uint32
}

// written is the keys of one copy of the rules.
type written struct {
	addresses []admissionAddressKey
	prefixes  []admissionPrefixKey
	services  []admissionServiceKey
	tunnels   []admissionPrefixKey
	slots     map[string]uint32 // of the VIPs
}

// world is the struct of that name in admission.c.
type world struct {
	_                       structs.HostLayout
	Copy, Prefixes, Tunnels uint32
	GUE                     [maxGUEPorts]uint16
}

// NewAdmission loads the program and makes its maps.
func NewAdmission() (*Admission, error) {
	a := &Admission{slot: map[string]uint32{}}
	if err := a.load(); err != nil {
		_ = a.Close()
		return nil, fmt.Errorf("loading the XDP program: %w", explain(err))
	}
	return a, nil
}

func (a *Admission) load() (err error) {
	// Kernels before 5.11 count maps as locked memory.
	_ = rlimit.RemoveMemlock()
	spec, err := loadAdmission()
	if err != nil {
		return err
	}
	if a.objs, err = ebpf.NewCollection(spec); err != nil && !errors.Is(err, unix.EPERM) {
		delete(spec.Programs, "lbgraph_admits") // Linux < 5.18
		a.objs, err = ebpf.NewCollection(spec)
	}
	if err != nil {
		return err
	}
	a.plain, a.frags = a.objs.Programs["lbgraph_admit"], a.objs.Programs["lbgraph_admits"]
	for name, m := range map[string]**ebpf.Map{
		"addresses": &a.addresses, "prefixes": &a.prefixes, "services": &a.services, "tunnels": &a.tunnels,
		"current": &a.current, "sockets": &a.sockets, "verdicts": &a.verdicts, "vips": &a.vips,
	} {
		if *m = a.objs.Maps[name]; *m == nil {
			return fmt.Errorf("the object has no map %s", name)
		}
	}
	for i := range a.cell {
		if a.cell[i], err = ebpf.NewMap(spec.Maps["current"].InnerMap); err != nil {
			return err
		}
	}
	return nil
}

// explain wraps the error of a system call in the sentinel that fits.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (%w)", ErrPrivilege, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w (%w)", ErrNoXDP, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w (%w)", ErrNoInterface, err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (%w)", ErrQueues, err)
	case errors.Is(err, unix.ERANGE):
		return fmt.Errorf("%w (%w)", ErrMTU, err)
	}
	return err
}

// Update makes r the rules. The program changes from the old rules to the new
// between two packets; when Update returns it has. An error leaves the old ones in
// force.
func (a *Admission) Update(r *Rules) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The kernel answers the replacement of a map in a map only when no program
	// uses the old one any more (maybe_wait_bpf_programs), so the copy that is not
	// in force now is nobody's.
	var now uint32
	if in, err := a.inForce(); err != nil {
		return err
	} else if in >= 0 {
		now = uint32(in)
	}
	next := now ^ 1
	if err := a.write(next, r); err != nil {
		return errors.Join(fmt.Errorf("writing the XDP rules: %w", explain(err)), a.erase(next))
	}
	w := world{Copy: next, Prefixes: b2u(len(a.wrote[next].prefixes) > 0), Tunnels: b2u(len(a.wrote[next].tunnels) > 0), GUE: r.gue}
	if err := a.cell[next].Put(uint32(0), &w); err != nil {
		return fmt.Errorf("writing the XDP rules: %w", explain(err))
	}
	if err := a.current.Put(uint32(0), a.cell[next]); err != nil {
		return fmt.Errorf("bringing the XDP rules into force: %w", explain(err))
	}
	a.slot = a.wrote[next].slots
	return nil
}

func b2u(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// inForce answers which copy the program uses, −1 if none.
func (a *Admission) inForce() (int, error) {
	var id uint32
	switch err := a.current.Lookup(uint32(0), &id); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return -1, nil
	case err != nil:
		return 0, fmt.Errorf("reading the XDP rules: %w", explain(err))
	}
	for i, c := range a.cell {
		info, err := c.Info()
		if err != nil {
			return 0, err
		}
		if known, ok := info.ID(); ok && uint32(known) == id {
			return i, nil
		}
	}
	return 0, errors.New("the XDP rules in force are not ours")
}

func addressKey(copy uint32, p netip.Prefix) (k admissionAddressKey) {
	b := p.Addr().AsSlice()
	k.Space = copy * 2
	if len(b) == 16 {
		k.Space++
	}
	for i := range len(b) / 4 {
		k.Addr[4-len(b)/4+i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return k
}

func prefixKey(copy uint32, p netip.Prefix) (k admissionPrefixKey) {
	k.Of = addressKey(copy, p)
	k.Bits = 32 + 128 - uint32(p.Addr().BitLen()-p.Bits())
	return k
}

// write replaces the copy, which is not in force, by r.
func (a *Admission) write(copy uint32, r *Rules) error {
	if err := a.erase(copy); err != nil {
		return err
	}
	w := &a.wrote[copy]
	slots, err := a.assign(r.VIPs)
	if err != nil {
		return err
	}
	w.slots = slots
	vip := func(v uint32) uint32 {
		if v == 0 {
			return 0
		}
		return slots[r.VIPs[v-1]]
	}
	// Half of a map is for the other copy.
	single := 0
	for i := range r.targets {
		single += int(b2u(r.targets[i].prefix.IsSingleIP()))
	}
	for _, x := range []struct {
		what string
		n    int
		m    *ebpf.Map
	}{
		{"VIP addresses", single, a.addresses}, {"VIP prefixes", len(r.targets) - single, a.prefixes},
		{"services", len(r.services), a.services}, {"tunnel sources", len(r.tunnels), a.tunnels},
	} {
		if most := int(x.m.MaxEntries() / 2); x.n > most {
			return fmt.Errorf("%d %s; %d is the most", x.n, x.what, most)
		}
	}
	var targets []admissionTarget
	for i := range r.targets {
		t := &r.targets[i]
		x := admissionTarget{
			Id: copy<<31 | uint32(i), Vip: vip(t.vip), Leave: uint16(b2u(t.leave)), Any: uint16(b2u(t.any)),
			Nranges: uint32(len(t.ranges)),
		}
		for k, g := range t.ranges {
			x.Ranges[k] = admissionRange{Lo: g.lo, Hi: g.hi, Proto: uint32(g.proto), Vip: vip(g.vip)}
		}
		if t.prefix.IsSingleIP() {
			w.addresses = append(w.addresses, addressKey(copy, t.prefix))
			targets = append(targets, x)
			continue
		}
		w.prefixes = append(w.prefixes, prefixKey(copy, t.prefix))
		if err := a.prefixes.Put(&w.prefixes[len(w.prefixes)-1], &x); err != nil {
			return fmt.Errorf("prefix %s: %w", t.prefix, err)
		}
	}
	if err := put(a.addresses, w.addresses, targets); err != nil {
		return fmt.Errorf("%d addresses: %w", len(targets), err)
	}
	ids := make([]uint32, len(r.services))
	for i, s := range r.services {
		w.services = append(w.services, admissionServiceKey{Id: copy<<31 | s.target, Port: s.port, Proto: uint16(s.proto)})
		ids[i] = vip(s.vip)
	}
	if err := put(a.services, w.services, ids); err != nil {
		return fmt.Errorf("%d services: %w", len(ids), err)
	}
	for _, p := range r.tunnels {
		w.tunnels = append(w.tunnels, prefixKey(copy, p))
		if err := a.tunnels.Put(&w.tunnels[len(w.tunnels)-1], uint32(1)); err != nil {
			return fmt.Errorf("tunnel source %s: %w", p, err)
		}
	}
	return nil
}

func put[K, V any](m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(keys, values, nil)
	return err
}

// erase removes what was written to the copy, which is not in force.
func (a *Admission) erase(copy uint32) error {
	w := &a.wrote[copy]
	err := errors.Join(
		remove(a.addresses, w.addresses), remove(a.prefixes, w.prefixes),
		remove(a.services, w.services), remove(a.tunnels, w.tunnels))
	if err == nil {
		*w = written{}
	}
	return err
}

func remove[K any](m *ebpf.Map, keys []K) error {
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// assign gives every VIP a place in the counters, the one it has in the copy in
// force if it is there; new ones begin at 0. Place 0 counts what is no VIP's.
func (a *Admission) assign(names []string) (map[string]uint32, error) {
	slots, used := map[string]uint32{}, map[uint32]bool{0: true}
	for _, s := range a.slot {
		used[s] = true
	}
	next := uint32(0)
	for _, name := range names {
		if _, twice := slots[name]; twice {
			continue
		}
		if s, ok := a.slot[name]; ok {
			slots[name] = s
			continue
		}
		for used[next] {
			next++
		}
		if next >= a.vips.MaxEntries() {
			return nil, fmt.Errorf("%d VIPs; %d is the most, those of the rules in force included", len(names), a.vips.MaxEntries()-1)
		}
		zero, err := perCPU[admissionVipCount]()
		if err != nil {
			return nil, err
		}
		if err := a.vips.Put(next, zero); err != nil {
			return nil, err
		}
		slots[name], used[next] = next, true
	}
	return slots, nil
}

func perCPU[T any]() ([]T, error) {
	n, err := ebpf.PossibleCPU()
	return make([]T, n), err
}

// SetSocket makes the AF_XDP socket fd the one that gets our traffic of a receive
// queue. The kernel takes it out when it is closed.
func (a *Admission) SetSocket(queue, fd int) error {
	if err := a.sockets.Put(uint32(queue), uint32(fd)); err != nil {
		return fmt.Errorf("socket of queue %d: %w", queue, explain(err))
	}
	return nil
}

// Count is packets and their bytes, Ethernet headers included.
type Count struct{ Packets, Bytes uint64 }

// VIPCount is the packets of a VIP that the XDP program saw, Dropped ones
// included.
type VIPCount struct{ Packets, Bytes, Dropped uint64 }

// Counts is what the XDP program counted since it was loaded.
type Counts struct {
	Passed, Redirected Count
	Dropped            map[Reason]Count
	VIPs               map[string]VIPCount // by name; since the rules name it
}

// Counts reads the counters.
func (a *Admission) Counts() (Counts, error) {
	var c [4]Count // as VERDICTS in admission.c
	for i := range c {
		var all []admissionCount
		if err := a.verdicts.Lookup(uint32(i), &all); err != nil {
			return Counts{}, fmt.Errorf("reading XDP counters: %w", err)
		}
		for _, x := range all {
			c[i].Packets += x.Packets
			c[i].Bytes += x.Bytes
		}
	}
	out := Counts{
		Passed: c[0], Redirected: c[1], Dropped: map[Reason]Count{WrongPort: c[2], NoSocket: c[3]},
		VIPs: map[string]VIPCount{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, slot := range a.slot {
		var all []admissionVipCount
		if err := a.vips.Lookup(slot, &all); err != nil {
			return Counts{}, fmt.Errorf("reading XDP counters: %w", err)
		}
		var sum VIPCount
		for _, x := range all {
			sum.Packets += x.Packets
			sum.Bytes += x.Bytes
			sum.Dropped += x.Dropped
		}
		out.VIPs[name] = sum
	}
	return out, nil
}

// Close gives program and maps back. Attachments keep the program as long as they
// are open.
func (a *Admission) Close() error {
	if a.objs != nil {
		a.objs.Close()
	}
	var err error
	for _, c := range a.cell {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}
