package cmd_test

import (
	"bytes"
	"context"
	be "encoding/binary"
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/cmd"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// lockedBuffer is written by the command and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The command takes the kernel's own GRE headers off, until it is told to stop,
// and tells what it did.
func TestDecap(t *testing.T) {
	for _, mode := range []string{"xdp", "generic", "tc"} {
		t.Run(mode, func(t *testing.T) {
			lb, backend := netnstest.New(t), netnstest.New(t)
			netnstest.Veth(netnstest.End{NS: lb, Name: "l0", Addrs: []string{"10.2.0.1/24"}, MTU: 1600},
				netnstest.End{NS: backend, Name: "eth0", Addrs: []string{"10.2.0.9/24"}, MTU: 1600})
			backend.Exec("ip", "addr", "add", "203.0.113.10/32", "dev", "lo")

			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var stdout, stderr lockedBuffer
			code := make(chan int, 1)
			go backend.Do(func() {
				code <- cmd.Execute(ctx, []string{"decap", "--interface", "eth0", "--mode", mode, "-o", "json"}, strings.NewReader(""), &stdout, &stderr)
			})
			want := map[string]string{"xdp": "native", "generic": "generic", "tc": "tc"}[mode]
			for end := time.Now().Add(5 * time.Second); !strings.Contains(stderr.String(), "10.2.0.9"); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it does not start: %s", stderr.String())
				}
			}
			if !strings.Contains(stderr.String(), "is taken off on eth0 ("+want+")") {
				t.Errorf("it says %q", stderr.String())
			}

			var in net.PacketConn
			var out, err = -1, error(nil)
			backend.Do(func() { in, err = net.ListenPacket("udp4", "203.0.113.10:80") })
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			lb.Do(func() { out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 47) })
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(out)
			gre := append([]byte{0, 0, 8, 0}, innerUDP("hello")...)
			if err := unix.Sendto(out, gre, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 2, 0, 9}}); err != nil {
				t.Fatal(err)
			}
			in.SetReadDeadline(time.Now().Add(3 * time.Second))
			buf := make([]byte, 100)
			if n, _, err := in.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
				t.Errorf("heard %q, %v", buf[:n], err)
			}
			stop()
			select {
			case c := <-code:
				if c != 0 {
					t.Errorf("exit code %d: %s", c, stderr.String())
				}
			case <-time.After(5 * time.Second):
				t.Fatal("it does not stop")
			}
			var counts struct {
				Stripped map[string]struct{ Packets, Bytes uint64 }
			}
			if err := json.Unmarshal([]byte(stdout.String()), &counts); err != nil || counts.Stripped["gre"].Packets != 1 || counts.Stripped["ipip"].Packets != 0 {
				t.Errorf("%v: %s", err, stdout.String())
			}
			if s := backend.Exec("ip", "-d", "link", "show", "eth0"); strings.Contains(s, "xdp") {
				t.Errorf("left behind: %s", s)
			}
		})
	}
}

// innerUDP is a datagram from a client to the VIP.
func innerUDP(text string) []byte {
	b := make([]byte, 28, 28+len(text))
	b[0], b[8], b[9] = 0x45, 64, 17
	be.BigEndian.PutUint16(b[2:], uint16(28+len(text)))
	copy(b[12:], netip.MustParseAddr("10.2.0.1").AsSlice())
	copy(b[16:], netip.MustParseAddr("203.0.113.10").AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(be.BigEndian.Uint16(b[i:]))
	}
	be.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	be.BigEndian.PutUint16(b[20:], 40000)
	be.BigEndian.PutUint16(b[22:], 80)
	be.BigEndian.PutUint16(b[24:], uint16(8+len(text))) // no checksum
	return append(b, text...)
}
