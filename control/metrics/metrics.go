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
	// StreamStats answers those of every stream block.
	StreamStats() []graph.StreamStats
	// Snapshot is the current state.
	Snapshot() *state.Snapshot
	// Healthy is nil while every loop passes; Ready is nil while traffic may come.
	Healthy() error
	Ready() error
	// Version is the program's version.
	Version() string
	// Collectors count what is not in Stats and Snapshot.
	Collectors() []prometheus.Collector
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "metrics",
		Summary:  "serves counters to Prometheus, and whether the daemon is healthy and ready",
		Single:   true,
		Live:     true,
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
	now    *service
}

// service is a listener and what serves it.
type service struct {
	http *http.Server
	done chan struct{}
}

// Start listens, and serves from then on.
func (s *server) Start(ctx context.Context) error {
	x, err := s.open(ctx, s.listen)
	s.now = x
	return err
}

func (s *server) open(ctx context.Context, address string) (*service, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	x := &service{http: &http.Server{Handler: Handler(s.host), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 5 * time.Minute}, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		if err := x.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("metrics are not served any more", zap.Error(err))
		}
	}()
	s.log.Info("metrics are served", zap.String("address", l.Addr().String()))
	return x, nil
}

// Reconfigure serves at another address.
func (s *server) Reconfigure(config any) error {
	next := config.(*Config).Listen
	x, err := s.open(context.Background(), next)
	if err != nil {
		return err
	}
	old := s.now
	s.now, s.listen = x, next
	go func() { _ = old.close(context.Background()) }()
	return nil
}

// Stop closes the listener and waits for requests in hand until ctx ends.
func (s *server) Stop(ctx context.Context) error { return s.now.close(ctx) }

func (x *service) close(ctx context.Context) error {
	if x == nil {
		return nil
	}
	err := x.http.Shutdown(ctx)
	<-x.done
	return err
}

// Handler serves the three endpoints.
func Handler(h Host) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		// A registry for each scrape, for a reload may bring new collectors.
		reg, err := Registry(h)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", verdict(h.Healthy))
	mux.HandleFunc("GET /readyz", verdict(h.Ready))
	return mux
}

// Registry answers all metrics that h has at the moment.
func Registry(h Host) (*prometheus.Registry, error) {
	reg := prometheus.NewPedanticRegistry()
	for _, c := range append(h.Collectors(), Collector(h)) {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return reg, nil
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
