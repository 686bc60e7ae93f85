package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/io/pcap"
	_ "github.com/lbgraph/lbgraph/nodes/all"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/replay"
)

const minimal = "../examples/replay-minimal.hcl"

// clients writes a capture of SYNs to the VIP of the minimal example.
func clients(t *testing.T, n int) string {
	t.Helper()
	vip := netip.MustParseAddr("203.0.113.80")
	name := filepath.Join(t.TempDir(), "clients.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcap.NewWriter(f, pcap.Classic)
	for i := range n {
		b := nodetest.SYN(t, nodetest.Client4, vip, uint16(1024+i), 80, 1460)
		if err := w.Write(pcap.Packet{Time: 1e9, Data: b}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// lbgraph runs a command line and answers what it wrote and its exit code.
func lbgraph(args ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = Execute(context.Background(), args, strings.NewReader(""), &out, &err)
	return out.String(), err.String(), code
}

func TestReplay(t *testing.T) {
	in := clients(t, 90)
	out := filepath.Join(t.TempDir(), "tunnel.pcapng")
	text, errs, code := lbgraph("replay", minimal, "--in", in, "--out", out)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	for _, want := range []string{"received 90, made 0, sent 90, to the kernel 0, held 0, dropped 0\n", "\npackets to backends\n  web/web-1  ", "\npool web, table ", "  web-2  "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := pcap.NewReader(f)
	n := 0
	for err == nil {
		if _, err = r.Next(); err == nil {
			n++
		}
	}
	if n != 90 {
		t.Errorf("%d packets written: %v", n, err)
	}
	text, errs, code = lbgraph("replay", minimal, "-in", in, "-down", "web/web-1", "-o", "json")
	var x replay.Result
	if err := json.Unmarshal([]byte(text), &x); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, text, errs)
	}
	if x.Sent != 90 || x.Pools["web"].Slots["web-1"] != 0 || x.Packets[89].Backend != "web/web-2" {
		t.Errorf("%+v", x)
	}
	text, _, _ = lbgraph("replay", minimal, "--in", in, "--packets")
	if want := "    1  queue 0  rx parse vip-classify maglev-select mtu-check gre-encap xdp-tx  sent  web  web/web-"; !strings.HasPrefix(text, want) {
		t.Errorf("%s", text)
	}
}

func TestReplayRefuses(t *testing.T) {
	in := clients(t, 1)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("this is no capture, whatever it is called"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(in, filepath.Join(filepath.Dir(in), "again.pcap")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{minimal, 2, "replay needs a capture: --in CAPTURE"},
		{minimal + " --in /nowhere/q0.pcap", 3, "/nowhere/q0.pcap: no such file"},
		{minimal + " --in " + text, 3, "not a valid capture"},
		{minimal + " --in " + in + " --out " + in, 2, "which is read too"},
		{minimal + " --in " + in + " --out " + filepath.Join(filepath.Dir(in), ".", "again.pcap"), 2, "which is read too"}, // the same file
		{minimal + " --in " + in + " --out /nowhere/out.pcap", 3, "/nowhere/out.pcap"},
		{minimal + " --in " + in + " --down web/web-7", 2, `no backend "web/web-7". The file has web/web-1, web/web-2`},
		{minimal + " --in " + in + " --address 1.2.3", 2, "which is no address"},
		{minimal + " --in eth9=" + in, 2, `does not receive from "eth9"`},
		{"/nowhere/lb.hcl --in " + in, 1, "/nowhere/lb.hcl"},
		{minimal + " --in " + in + " --out /dev/full", 3, "no space left on device"},
	} {
		out, errs, code := lbgraph(append([]string{"replay"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("replay %s: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errs)
		}
	}
	if _, err := os.Stat(in); err != nil {
		t.Error(err)
	}
}
