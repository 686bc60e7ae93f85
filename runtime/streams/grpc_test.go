package streams_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// gRPC by grpc-go on both sides: unary and streaming calls, an error in trailers, a
// cancelled stream, the metadata of both.
func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan metadata.MD, 10)
	ended := make(chan error, 10)
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		seen <- md
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "yes"))
		return h(ctx, req)
	}), grpc.StreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		err := h(s, ss)
		ended <- err
		return err
	}))
	hs := health.NewServer()
	healthpb.RegisterHealthServer(srv, hs)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()

	r := run(t, simple(out("http = \"2\"\n response_timeout = \"0s\""), l.Addr().String()))
	conn, err := grpc.NewClient("passthrough:///"+r.addr("in"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var trailer metadata.MD
	res, err := c.Check(metadata.AppendToOutgoingContext(ctx, "x-meta", "data"), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	if err != nil || res.Status != healthpb.HealthCheckResponse_SERVING || trailer.Get("x-trailer")[0] != "yes" {
		t.Fatalf("%v, %v, %v", res, err, trailer)
	}
	if md := <-seen; md.Get("x-meta")[0] != "data" || md.Get("x-forwarded-for")[0] != "127.0.0.1" {
		t.Errorf("%v", md)
	}
	if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	// A stream of events, as they happen; then the client cancels.
	sctx, stop := context.WithCancel(ctx)
	w, err := c.Watch(sctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if want := []healthpb.HealthCheckResponse_ServingStatus{1, 2, 1}[i]; m.Status != want {
			t.Errorf("event %d is %v", i, m.Status)
		}
		hs.SetServingStatus("", []healthpb.HealthCheckResponse_ServingStatus{2, 1, 2}[i])
	}
	stop()
	begun := time.Now()
	select {
	case err := <-ended:
		if d := time.Since(begun); d > 500*time.Millisecond || err == nil {
			t.Errorf("ended by %v after %v", err, d)
		}
	case <-time.After(3 * time.Second):
		t.Error("the stream at the backend goes on")
	}
	r.quiet()
	srv.Stop()
	if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a backend: %v", err)
	}
}

// HTTP/1 clients in front of a backend of HTTP/2: the target byte for byte, bodies,
// trailers, HEAD, a cut, a time-out.
func TestBackendHTTP2(t *testing.T) {
	got := make(chan string, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/slow" {
			<-req.Context().Done()
			return
		}
		b, err := io.ReadAll(req.Body)
		got <- fmt.Sprint(req.Proto, " ", req.Method, " ", req.RequestURI, " ", req.Host, " ", len(b), " ", err, " ", req.Header["User-Agent"], " ", req.Trailer)
		w.Header().Set("Trailer", "X-Sum")
		if req.URL.Path != "/" {
			w.(http.Flusher).Flush() // of unknown length
		}
		_, _ = w.Write(b)
		if req.URL.Path == "/cut" {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Sum", fmt.Sprint(len(b)))
		w.Header().Set(http.TrailerPrefix+"X-Forwarded-For", "192.0.2.6") // which has no place there
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	r := run(t, simple(out("http = \"2\"\n response_timeout = \"300ms\""), addrOf(s)))
	p := dial(t, r.addr("in"))
	for _, target := range []string{"/", "/a%2Fb?c=%20;d", "/a//b", "/%zz"} {
		p.send("POST " + target + " HTTP/1.1\r\nHost: h.example\r\nContent-Length: 5\r\n\r\nhello")
		h := p.head()
		if !strings.HasPrefix(h, "HTTP/1.1 200 OK\r\n") {
			// net/http refuses targets that are no URL.
			if target != "/%zz" {
				t.Errorf("%s: %q", target, h)
			}
			continue
		}
		if target == "/" {
			// A body of known length has no room for trailers in HTTP/1.
			if body := p.read(5); body != "hello" {
				t.Errorf("%s: %q", target, body)
			}
		} else if body := p.read(13) + p.head(); body != "5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n" {
			t.Errorf("%s: %q", target, body)
		}
		if g := <-got; g != "HTTP/2.0 POST "+target+" h.example 5 <nil> [] map[]" {
			t.Errorf("%s: %s", target, g)
		}
	}
	// Announced trailers of a request, without those that have no place there.
	p.send("POST /t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A, X-Forwarded-For, Expect\r\n\r\n5\r\nhello\r\n0\r\nA: 1\r\nX-Forwarded-For: 192.0.2.6\r\nExpect: x\r\n\r\n")
	p.head()
	p.read(13)
	p.head()
	if g := <-got; g != "HTTP/2.0 POST /t x 5 <nil> [] map[A:[1]]" {
		t.Error(g)
	}
	p = dial(t, r.addr("in"))
	p.send("GET /cut HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	if text := p.rest(); !strings.Contains(text, "hello") || strings.Contains(text, "0\r\n\r\n") {
		t.Errorf("a cut: %q", text)
	}
	<-got
	p = dial(t, r.addr("in"))
	begun := time.Now()
	if a := p.get("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"); a != "504 504 Gateway Timeout\n" || time.Since(begun) > 5*time.Second {
		t.Errorf("%q after %v", a, time.Since(begun))
	}
	r.quiet()
}

// TLS towards backends: verified by a CA, refused otherwise.
func TestBackendTLS(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "backend", "b.example")
	other, _ := certificate(t, dir, "other")
	b := record(t, ok)
	inner := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, b.addr()))
	for _, c := range []struct{ args, want string }{
		{fmt.Sprintf("ca = %q\nserver_name = \"b.example\"", crt), "200 ok"},
		{fmt.Sprintf("ca = %q", crt), "200 ok"}, // its address is in the certificate, too
		{"verify = false", "200 ok"},
		{fmt.Sprintf("ca = %q", other), "502 502 Bad Gateway\n"},
		{fmt.Sprintf("ca = %q\nserver_name = \"c.example\"", crt), "502 502 Bad Gateway\n"},
		{"", "502 502 Bad Gateway\n"},
	} {
		for _, version := range []string{"1.1", "2"} {
			r := run(t, simple(out(fmt.Sprintf("http = %q\n tls {\n%s\n}", version, c.args)), inner.addr("in")))
			p := dial(t, r.addr("in"))
			for range 2 {
				if got := p.get(get); got != c.want {
					t.Errorf("HTTP/%s, %s: %q, want %q", version, c.args, got, c.want)
				}
			}
		}
	}
}
