package bgp

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger is what gobgp logs to: zap, and events where only a log line tells what
// happened. gobgp calls Fatal and Panic and goes on behind them; the process must
// not end, for the loops forward.
type logger struct{ to atomic.Pointer[sink] }

type sink struct {
	log  *zap.Logger
	tell func(event)
}

func (l *logger) use(to *zap.Logger, tell func(event)) { l.to.Store(&sink{to, tell}) }

// watch takes gobgp's events.
func (l *logger) watch(r *api.WatchEventResponse) {
	e := r.GetPeer()
	if e == nil || e.GetType() == api.WatchEventResponse_PeerEvent_END_OF_INIT {
		return
	}
	peer, err := netip.ParseAddr(e.GetPeer().GetState().GetNeighborAddress())
	if err != nil {
		return
	}
	phases := map[api.PeerState_SessionState]phase{
		api.PeerState_IDLE: idle, api.PeerState_CONNECT: active, api.PeerState_ACTIVE: active,
		api.PeerState_OPENSENT: openSent, api.PeerState_OPENCONFIRM: openConfirm, api.PeerState_ESTABLISHED: established,
	}
	if p, ok := phases[e.GetPeer().GetState().GetSessionState()]; ok {
		l.to.Load().tell(event{peer: peer.Unmap(), phase: p})
	}
}

// Debug is part of log.Logger. That a connection failed, and why a session ended,
// gobgp says nowhere else.
func (l *logger) Debug(msg string, fields log.Fields) {
	s := l.to.Load()
	if key, ok := fields["Key"].(string); ok {
		if peer, err := netip.ParseAddr(key); err == nil {
			switch msg {
			case "failed to connect":
				s.tell(event{peer: peer, fault: fmt.Sprint(fields["Error"])})
			case "state changed":
				if fields["new"] == "BGP_FSM_IDLE" {
					s.tell(event{peer: peer, reason: fmt.Sprint(fields["reason"])})
				}
			}
		}
	}
	s.write(zapcore.DebugLevel, msg, fields)
}

// Panic is part of log.Logger.
func (l *logger) Panic(msg string, fields log.Fields) { l.Error(msg, fields) }

// Fatal is part of log.Logger.
func (l *logger) Fatal(msg string, fields log.Fields) { l.Error(msg, fields) }

// Error is part of log.Logger.
func (l *logger) Error(msg string, fields log.Fields) {
	l.to.Load().write(zapcore.ErrorLevel, msg, fields)
}

// Warn is part of log.Logger. The loop says in its own words what becomes of
// sessions; this is for whoever wants to know more.
func (l *logger) Warn(msg string, fields log.Fields) {
	l.to.Load().write(zapcore.DebugLevel, msg, fields)
}

// Info is part of log.Logger.
func (l *logger) Info(msg string, fields log.Fields) {
	l.to.Load().write(zapcore.DebugLevel, msg, fields)
}

// SetLevel is part of log.Logger; zap has the levels.
func (l *logger) SetLevel(log.LogLevel) {}

// GetLevel is part of log.Logger: below Debug, gobgp would not log what events are
// made of.
func (l *logger) GetLevel() log.LogLevel { return log.DebugLevel }

func (s *sink) write(level zapcore.Level, msg string, fields log.Fields) {
	e := s.log.Check(level, "gobgp: "+msg)
	if e == nil {
		return
	}
	var zf []zap.Field
	for k, v := range fields {
		switch k {
		case "Topic":
		case "Key":
			zf = append(zf, zap.Any("peer", v))
		default:
			zf = append(zf, zap.String(k, fmt.Sprint(v)))
		}
	}
	e.Write(zf...)
}
