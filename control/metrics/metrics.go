// Package metrics is the control kind metrics: an HTTP listener with /metrics for
// Prometheus, /healthz and /readyz.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of a metrics block.
type Config struct {
	Listen string `hcl:"listen,optional" doc:"address and port to serve /metrics, /healthz and /readyz on"`
}

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine.
type Host interface {
	// Stats answers the counts of every packet graph.
	Stats() []graph.Stats
	// Snapshot is the current state.
	Snapshot() *state.Snapshot
	// Healthy is nil while every loop passes; Ready is nil while traffic may come.
	Healthy() error
	Ready() error
	// Version is the program's version.
	Version() string
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "metrics",
		Summary:  "serves counters to Prometheus, and whether the daemon is healthy and ready",
		Single:   true,
		Defaults: Config{Listen: "127.0.0.1:9109"},
		Check: func(c Config) error {
			if _, _, err := net.SplitHostPort(c.Listen); err != nil {
				return fmt.Errorf("listen = %q is no address and port; write it as in %q", c.Listen, "127.0.0.1:9109")
			}
			return nil
		},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("metrics has no daemon to count")
			}
			return &server{listen: c.Listen, host: h, log: e.Log}, nil
		},
	})
}

type server struct {
	listen string
	host   Host
	log    *zap.Logger
	http   *http.Server
	done   chan struct{}
}

// Start listens, and serves from then on.
func (s *server) Start(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	s.http = &http.Server{Handler: Handler(s.host), ReadHeaderTimeout: 5 * time.Second}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("metrics are not served any more", zap.Error(err))
		}
	}()
	s.log.Info("metrics are served", zap.String("address", l.Addr().String()))
	return nil
}

// Stop closes the listener and waits for requests in hand until ctx ends.
func (s *server) Stop(ctx context.Context) error {
	if s.http == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	<-s.done
	return err
}

// Handler serves the three endpoints.
func Handler(h Host) http.Handler {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(Collector(h))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", verdict(h.Healthy))
	mux.HandleFunc("GET /readyz", verdict(h.Ready))
	return mux
}

func verdict(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := ask(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
