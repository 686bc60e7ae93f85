// Package admin is the control kind admin: a Unix socket that answers JSON over
// HTTP to whoever may open it. The paths begin with a version, /v1; what a version
// answers only grows.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// DefaultSocket is where the daemon listens and the commands ask.
const DefaultSocket = "/run/lbgraph/admin.sock"

// Config is the arguments of an admin block.
type Config struct {
	Socket string `hcl:"socket,optional" doc:"path of the Unix socket"`
	Group  string `hcl:"group,optional" doc:"group that may use the socket too; none by default"`
}

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine.
type Host interface {
	Stats() []graph.Stats
	Snapshot() *state.Snapshot
	Healthy() error
	Ready() error
	Version() string
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "admin",
		Summary:  "answers the commands of operators on a Unix socket",
		Single:   true,
		Defaults: Config{Socket: DefaultSocket},
		Check: func(c Config) error {
			// sockaddr_un has 108 bytes for the path and its end.
			if c.Socket == "" || len(c.Socket) > 107 {
				return fmt.Errorf("socket = %q must be a path of 1 to 107 bytes", c.Socket)
			}
			return nil
		},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("admin has no daemon to ask")
			}
			return &server{cfg: c, host: h, log: e.Log}, nil
		},
	})
}

type server struct {
	cfg  Config
	host Host
	log  *zap.Logger
	http *http.Server
	done chan struct{}
}

// Start makes the socket, for root (and the group) alone, and serves it. A socket
// that a dead process left is replaced, one that answers is not.
func (s *server) Start(context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o755); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if c, err := net.DialTimeout("unix", s.cfg.Socket, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("admin: %s is in use: does another daemon run?", s.cfg.Socket)
	} else if !errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(s.cfg.Socket); err == nil && info.Mode()&fs.ModeSocket == 0 {
			return fmt.Errorf("admin: %s is there and is no socket", s.cfg.Socket)
		}
		_ = os.Remove(s.cfg.Socket)
	}
	gid, mode := -1, fs.FileMode(0o600)
	if s.cfg.Group != "" {
		g, err := user.LookupGroup(s.cfg.Group)
		if err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return fmt.Errorf("admin: group %q has number %q", s.cfg.Group, g.Gid)
		}
		mode = 0o660
	}
	// Made with no rights for others, so that nobody slips in before chmod.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", s.cfg.Socket)
	syscall.Umask(old)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if err = os.Chown(s.cfg.Socket, -1, gid); err == nil {
		err = os.Chmod(s.cfg.Socket, mode)
	}
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("admin: %w", err)
	}
	s.http = &http.Server{Handler: Handler(s.host), ReadHeaderTimeout: 5 * time.Second}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the admin socket is not served any more", zap.Error(err))
		}
	}()
	s.log.Info("commands are answered", zap.String("socket", s.cfg.Socket))
	return nil
}

// Stop removes the socket and waits for requests in hand until ctx ends.
func (s *server) Stop(ctx context.Context) error {
	if s.http == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	<-s.done
	return err
}

// Status is what GET /v1/status answers.
type Status struct {
	Version string        `json:"version"`
	Healthy string        `json:"healthy"` // "ok", or why not
	Ready   string        `json:"ready"`
	State   uint64        `json:"state"` // generation of the snapshot in force
	Pools   []Pool        `json:"pools"`
	Graphs  []graph.Stats `json:"graphs"`
}

// Pool is a pool as it stands.
type Pool struct {
	Name     string    `json:"name"`
	Slots    int       `json:"slots"`
	Digest   string    `json:"digest"` // of the Maglev table: equal on nodes that agree
	Backends []Backend `json:"backends"`
}

// Backend is a member of a pool.
type Backend struct {
	Name    string `json:"name"` // POOL/NAME
	Address string `json:"address"`
	Weight  uint32 `json:"weight"`
	Status  string `json:"status"`
}

// Handler answers the paths of version 1.
func Handler(h Host) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, StatusOf(h)) })
	return mux
}

// StatusOf collects a daemon's status.
func StatusOf(h Host) Status {
	word := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	snap := h.Snapshot()
	s := Status{Version: h.Version(), Healthy: word(h.Healthy()), Ready: word(h.Ready()), State: snap.Generation, Graphs: h.Stats()}
	for i := range snap.Pools {
		p := &snap.Pools[i]
		if p.ID == 0 {
			continue
		}
		pool := Pool{Name: p.Name, Slots: len(p.Table), Digest: fmt.Sprintf("%016x", p.Digest), Backends: []Backend{}}
		for _, m := range p.Members {
			if m.Backend == 0 {
				continue
			}
			pool.Backends = append(pool.Backends, Backend{
				Name: p.Name + "/" + m.Name, Address: snap.Backends[m.Backend].Addr.String(), Weight: m.Weight,
				Status: [...]string{"up", "draining", "down"}[snap.StatusOf(m.Backend)],
			})
		}
		s.Pools = append(s.Pools, pool)
	}
	return s
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // a client that goes away is no failure of ours
}
