package cases_test

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/netnstest"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/io/xsk"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// link is a veth pair: eth0 of the balancer's namespace, and the other end, which
// sends by AF_XDP sockets of its own (so that it chooses the queue) and watches
// what comes by a packet socket.
type link struct {
	t    testing.TB
	node *netnstest.NS
	mem  *umem.Memory
	port *xsk.Port
	v    packet.Vector
	free []uint32
	sock *os.File
}

func newLink(t testing.TB, queues int) *link {
	t.Helper()
	l := &link{t: t, node: netnstest.New(t)}
	far := netnstest.New(t)
	netnstest.Veth(
		netnstest.End{NS: l.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:f::1/64"}, Queues: queues},
		netnstest.End{NS: far, Name: "far", Queues: queues})
	var err error
	if l.mem, err = umem.New(1024, 2048, false); err != nil {
		t.Fatal(err)
	}
	program, err := bpf.NewAdmission() // passes everything
	if err != nil {
		t.Fatal(err)
	}
	far.Do(func() {
		if l.port, err = xsk.Open(xsk.Options{Interface: "far", Ring: 64, Memory: l.mem, Program: program}); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return
		}
		l.sock = os.NewFile(uintptr(fd), "packet socket")
		// The kernel takes VLAN tags off the frame; they stand beside it.
		if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return
		}
		if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20); err != nil {
			return
		}
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: far.Index("far")})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.sock.Close()
		if err := l.port.Close(); err != nil {
			t.Error(err)
		}
		_ = program.Close()
		_ = l.mem.Close()
	})
	for f := range uint32(1024) {
		l.free = append(l.free, f)
	}
	l.v.Mem, l.v.Links = l.mem.Bytes(), make([]packet.Link, 1024)
	return l
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// send sends a frame by a queue.
func (l *link) send(queue int, b []byte) {
	l.t.Helper()
	q := l.port.Queue(queue)
	var done [64]uint32
	l.free = append(l.free, done[:q.Reclaim(done[:])]...)
	if len(l.free) == 0 {
		l.t.Fatal("the far end has no frame left")
	}
	f := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.v.Frame[0], l.v.Start[0], l.v.Len[0], l.v.Total[0], l.v.Chain[0] = f, f*2048+256, uint32(len(b)), uint32(len(b)), packet.NoFrame
	copy(l.v.Mem[l.v.Start[0]:], b)
	for end := time.Now().Add(5 * time.Second); q.Transmit(&l.v, 1) == 0; q.Flush() {
		if time.Now().After(end) {
			l.t.Fatal("the far end cannot send")
		}
		l.free = append(l.free, done[:q.Reclaim(done[:])]...)
	}
	q.Flush()
}

// sent answers the frames of the graph that have arrived at the far end, n at least.
func (l *link) sent(n int) (all [][]byte) {
	l.t.Helper()
	raw, err := l.sock.SyscallConn()
	if err != nil {
		l.t.Fatal(err)
	}
	buf, oob := make([]byte, 4096), make([]byte, 256)
	for end := time.Now().Add(2 * time.Second); ; {
		var k, ok int
		var rerr error
		var from unix.Sockaddr
		if err := raw.Read(func(fd uintptr) bool {
			k, ok, _, from, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_DONTWAIT)
			return true
		}); err != nil {
			l.t.Fatal(err)
		}
		if rerr != nil {
			if len(all) >= n || time.Now().After(end) {
				return all
			}
			time.Sleep(time.Millisecond)
			continue
		}
		if a, is := from.(*unix.SockaddrLinklayer); is && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		b := bytes.Clone(buf[:k])
		// What the kernels of both ends say to each other has their own addresses.
		if k >= 14 && bytes.Equal(b[6:12], nodetest.ToMAC) {
			all = append(all, tagged(l.t, b, oob[:ok]))
		}
	}
}

// tagged puts the VLAN tag back that the kernel took off.
func tagged(t testing.TB, b, oob []byte) []byte {
	t.Helper()
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		// struct tpacket_auxdata (linux/if_packet.h)
		aux := (*struct {
			status, length, snap uint32
			mac, net, tci, tpid  uint16
		})(unsafe.Pointer(&m.Data[0]))
		if aux.status&unix.TP_STATUS_VLAN_VALID != 0 {
			tag := []byte{byte(aux.tpid >> 8), byte(aux.tpid), byte(aux.tci >> 8), byte(aux.tci)}
			return bytes.Join([][]byte{b[:12], tag, b[12:]}, nil)
		}
	}
	return b
}

// start runs a file on the link.
func (l *link) start(file string) *daemon.Daemon {
	l.t.Helper()
	f := load(l.t, file)
	var d *daemon.Daemon
	var err error
	l.node.Do(func() {
		if d, err = daemon.New(f, daemon.Options{Version: "test", Log: zaptest.NewLogger(l.t, zaptest.Level(zap.WarnLevel))}); err == nil {
			err = d.Start(context.Background())
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			l.t.Error(err)
		}
	})
	// Packets that come before the loops have given the sockets frames are lost.
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if s := d.Stats()[0]; s.Census.Fill >= 256*l.port.Queues() {
			return d
		} else if time.Now().After(end) {
			l.t.Fatalf("the sockets get no frames: %+v", s.Census)
		}
	}
}

// overXDP runs the daemon on AF_XDP. A shot follows when the one before is done;
// times are kept, on the machine's clock.
func overXDP(t testing.TB, file string, queues int, shots []shot) (r result) {
	t.Helper()
	l := newLink(t, queues)
	d := l.start(file)
	ours := newMemPort(t, load(t, file), queues) // knows what the kernel will get
	start, n := time.Now(), uint64(0)
	for _, s := range shots {
		time.Sleep(time.Until(start.Add(s.at)))
		l.send(s.queue, s.b)
		before := ours.passed
		ours.admits(s.b)
		if ours.passed == before {
			n++
		}
		wait(t, func() graph.Stats { return d.Stats()[0] }, n)
	}
	r.took = time.Since(start)
	st := wait(t, func() graph.Stats { return d.Stats()[0] }, n)
	collect(t, &st, &r)
	r.received += ours.passed
	r.kernel += ours.passed
	r.out = l.sent(int(r.sent))
	return r
}

func TestNetXDP(t *testing.T)      { table(t, overXDP, plain, places(4)) }
func TestNetSteering(t *testing.T) { table(t, overXDP, steering(4), places(1)) }

func TestNetAThousandTooBig(t *testing.T) {
	frames := nodetest.Cases(t)
	var shots []shot
	for i := range 1000 {
		shots = append(shots, shot{i % 2, time.Duration(i) * time.Millisecond, frames["udp-1500-df"]})
	}
	r := overXDP(t, plain, 2, shots)
	limited(&scene{T: t, frames: frames, result: r}, r.took)
}
