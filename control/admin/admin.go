// Package admin is the control kind admin: a Unix socket that answers JSON over
// HTTP to whoever may open it, and, where the file says so, a TCP port that answers
// the same to whoever has a token or a certificate. The paths begin with a version,
// /v1; what a version answers only grows.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
)

// DefaultSocket is where the daemon listens and the commands ask.
const DefaultSocket = "/run/lbgraph/admin.sock"

// Config is the arguments of an admin block.
type Config struct {
	Socket      string `hcl:"socket,optional" doc:"path of the Unix socket"`
	Group       string `hcl:"group,optional" doc:"group that may use the socket too; none by default"`
	Listen      string `hcl:"listen,optional" doc:"address and port to answer on too; needs a token or client_ca"`
	TokenFile   string `hcl:"token_file,optional" doc:"file with the token that requests to listen carry, which nobody but its owner may read"`
	TokenEnv    string `hcl:"token_env,optional" doc:"environment variable with that token"`
	Certificate string `hcl:"certificate,optional" doc:"file with the certificate chain of listen, in PEM; HTTPS then"`
	Key         string `hcl:"key,optional" doc:"file with the certificate's private key, which nobody but its owner may read"`
	ClientCA    string `hcl:"client_ca,optional" doc:"file with the authorities, in PEM, one of which must have signed a client's certificate"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "admin",
		Summary:  "answers the commands of operators on a Unix socket",
		Single:   true,
		Live:     true,
		Defaults: Config{Socket: DefaultSocket},
		Check:    check,
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("admin has no daemon to ask")
			}
			return &server{cfg: c, handler: Handler(h), log: e.Log}, nil
		},
	})
}

func check(c Config) error {
	// sockaddr_un has 108 bytes for the path and its end.
	if c.Socket == "" || len(c.Socket) > 107 {
		return fmt.Errorf("socket = %q must be a path of 1 to 107 bytes", c.Socket)
	}
	if c.TokenFile != "" && c.TokenEnv != "" {
		return errors.New("token_file and token_env are given; keep one")
	}
	if (c.Certificate == "") != (c.Key == "") {
		return errors.New("certificate and key belong together; give both")
	}
	if c.ClientCA != "" && c.Certificate == "" {
		return errors.New("client_ca needs certificate and key: clients show certificates over HTTPS alone")
	}
	if c.Listen == "" {
		if c.TokenFile+c.TokenEnv+c.Certificate != "" {
			return errors.New("a token or certificate is given and listen is not: the Unix socket needs neither; remove it, or add listen")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen = %q is no address and port; write it as in %q", c.Listen, "192.0.2.1:9110")
	}
	if c.TokenFile+c.TokenEnv+c.ClientCA == "" {
		return errors.New("listen would let everybody give orders; add token_file, token_env or client_ca")
	}
	return nil
}

// server is a running admin block.
type server struct {
	cfg     Config
	handler http.Handler
	log     *zap.Logger
	unix    *service
	tcp     *service // nil without listen
}

// Start makes the socket, for root (and the group) alone, and serves it; and the
// port, if there is one. A socket that a dead process left is replaced, one that
// answers is not.
func (s *server) Start(context.Context) error {
	var err error
	if s.unix, err = s.openUnix(s.cfg); err != nil {
		return err
	}
	if s.tcp, err = s.openTCP(s.cfg); err != nil {
		s.unix.close(context.Background())
		return err
	}
	return nil
}

// Stop removes the socket, ends what streams, and waits for requests in hand until
// ctx ends.
func (s *server) Stop(ctx context.Context) error {
	return errors.Join(s.unix.close(ctx), s.tcp.close(ctx))
}

// Reconfigure changes over to other sockets. It does not wait for requests in hand,
// for one of them may be what asked for the change.
func (s *server) Reconfigure(config any) error {
	next := *config.(*Config)
	was := s.cfg
	if next.Socket != was.Socket {
		u, err := s.openUnix(next)
		if err != nil {
			return err
		}
		s.unix.leave() // its path is free when this answers
		s.unix = u
	} else if next.Group != was.Group {
		if err := permit(next); err != nil {
			return err
		}
	}
	was.Socket, was.Group = next.Socket, next.Group
	s.cfg = was
	if next != was {
		// The old port is closed first: the new one may be the same.
		s.tcp.leave()
		t, err := s.openTCP(next)
		if err != nil {
			if s.tcp, _ = s.openTCP(was); s.tcp == nil && was.Listen != "" {
				s.log.Error("the old port does not open again either", zap.String("address", was.Listen))
			}
			return err
		}
		s.tcp = t
	}
	s.cfg = next
	return nil
}

// service is one listener and what serves it.
type service struct {
	http   *http.Server
	listen net.Listener
	cancel context.CancelFunc
	done   chan struct{}
}

func (s *server) serve(l net.Listener, h http.Handler) *service {
	ctx, cancel := context.WithCancel(context.Background())
	x := &service{listen: l, cancel: cancel, done: make(chan struct{})}
	x.http = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: zap.NewStdLog(s.log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))}
	go func() {
		defer close(x.done)
		if err := x.http.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Error("commands are not answered any more", zap.Stringer("address", l.Addr()), zap.Error(err))
		}
	}()
	return x
}

// leave closes the listener, and ends what streams; other requests in hand go on.
func (x *service) leave() {
	if x != nil {
		_ = x.listen.Close()
		<-x.done
		go x.close(context.Background())
	}
}

func (x *service) close(ctx context.Context) error {
	if x == nil {
		return nil
	}
	x.cancel()
	err := x.http.Shutdown(ctx)
	<-x.done
	if errors.Is(err, net.ErrClosed) {
		return nil // leave has closed it
	}
	return err
}

func (s *server) openUnix(c Config) (*service, error) {
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if conn, err := net.DialTimeout("unix", c.Socket, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("admin: %s is in use: does another daemon run?", c.Socket)
	} else if !errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(c.Socket); err == nil && info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("admin: %s is there and is no socket", c.Socket)
		}
		_ = os.Remove(c.Socket)
	}
	// Made with no rights for others, so that nobody slips in before chmod.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", c.Socket)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if err := permit(c); err != nil {
		_ = l.Close()
		return nil, err
	}
	s.log.Info("commands are answered", zap.String("socket", c.Socket))
	return s.serve(l, s.handler), nil
}

// permit gives the socket to root, and to the group.
func permit(c Config) error {
	gid, mode := 0, fs.FileMode(0o600)
	if c.Group != "" {
		g, err := user.LookupGroup(c.Group)
		if err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return fmt.Errorf("admin: group %q has number %q", c.Group, g.Gid)
		}
		mode = 0o660
	} else {
		gid = os.Getegid()
	}
	if err := os.Chown(c.Socket, -1, gid); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if err := os.Chmod(c.Socket, mode); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

func (s *server) openTCP(c Config) (*service, error) {
	if c.Listen == "" {
		return nil, nil
	}
	h := s.handler
	if c.TokenFile+c.TokenEnv != "" {
		token, err := readToken(c)
		if err != nil {
			return nil, fmt.Errorf("admin: %w", err)
		}
		h = authorized(token, h)
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	address := l.Addr()
	if c.Certificate != "" {
		t, err := tlsConfig(c)
		if err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("admin: %w", err)
		}
		l = tls.NewListener(l, t)
	} else if a, ok := address.(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		s.log.Warn("the token goes over the network in the clear; add certificate and key", zap.Stringer("address", address))
	}
	s.log.Info("commands are answered", zap.Stringer("address", address), zap.Bool("https", c.Certificate != ""), zap.Bool("client certificates", c.ClientCA != ""))
	return s.serve(l, h), nil
}

// leastToken is the length of the shortest token, in bytes, that is not guessed.
const leastToken = 16

func readToken(c Config) (string, error) {
	token, from := os.Getenv(c.TokenEnv), "the environment variable "+c.TokenEnv
	if c.TokenFile != "" {
		b, err := readSecret(c.TokenFile)
		if err != nil {
			return "", err
		}
		token, from = string(b), c.TokenFile
	}
	if token = strings.TrimSpace(token); len(token) < leastToken {
		return "", fmt.Errorf("%s has a token of %d bytes; %d is the least", from, len(token), leastToken)
	}
	return token, nil
}

// readSecret reads a file that nobody but its owner may read.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so that others may read the secret; chmod 0600 it", path, info.Mode().Perm())
	}
	return os.ReadFile(path)
}

func tlsConfig(c Config) (*tls.Config, error) {
	key, err := readSecret(c.Key)
	if err != nil {
		return nil, err
	}
	chain, err := os.ReadFile(c.Certificate)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.Certificate, c.Key, err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if c.ClientCA != "" {
		pem, err := os.ReadFile(c.ClientCA)
		if err != nil {
			return nil, err
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !t.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", c.ClientCA)
		}
	}
	return t, nil
}

// authorized lets requests through that carry the token (RFC 6750 section 2.1).
func authorized(token string, h http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum := sha256.Sum256([]byte(got))
		if !ok || subtle.ConstantTimeCompare(sum[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="lbgraph"`)
			fail(w, http.StatusUnauthorized, errors.New("the token is missing or wrong"))
			return
		}
		h.ServeHTTP(w, r)
	})
}
