package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
)

// collector counts what is the daemon's own. Label values are names and addresses
// in the configuration, and the words of this program.
type collector struct{ d *Daemon }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lbgraph_"+name, help, labels, nil)
}

var (
	startTime      = desc("start_time_seconds", "When the daemon started, in seconds since 1970.")
	drainedGauge   = desc("drained", "1 while the node is drained.")
	reloadsTotal   = desc("reloads_total", "Reloads of the configuration, by outcome.", "outcome")
	configTime     = desc("configuration_timestamp_seconds", "When the configuration in force was loaded, in seconds since 1970.")
	configValid    = desc("configuration_valid", "0 while the file is not what is in force, because it is wrong, needs a restart, or failed.")
	configLastGood = desc("configuration_last_good", "1 while the configuration that was kept is in force, because the file was wrong at the start.")
	tableBuilds    = desc("table_builds_total", "Maglev tables that were built; those that were remembered are not among them.")
	tableSeconds   = desc("table_build_seconds_total", "Time that building Maglev tables took.")
	xdpPackets     = desc("xdp_packets_total", "Packets by what the XDP program decided on them.", "interface", "verdict")
	xdpBytes       = desc("xdp_bytes_total", "Bytes of packets by what the XDP program decided on them.", "interface", "verdict")
	xdpVIPPackets  = desc("xdp_vip_packets_total", "Packets to a VIP that the XDP program saw.", "interface", "vip")
	xdpVIPBytes    = desc("xdp_vip_bytes_total", "Bytes of packets to a VIP that the XDP program saw.", "interface", "vip")
	xdpVIPDropped  = desc("xdp_vip_dropped_packets_total", "Packets to a VIP that the XDP program dropped.", "interface", "vip")
	healthState    = desc("health_state", "1 for the state that a check found a backend in.", "health", "backend", "port", "state")
	healthSeconds  = desc("health_probe_duration_seconds", "Time that the last probe took.", "health", "backend", "port")
)

// Describe is part of prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		startTime, drainedGauge, reloadsTotal, configTime, configValid, configLastGood, tableBuilds, tableSeconds,
		xdpPackets, xdpBytes, xdpVIPPackets, xdpVIPBytes, xdpVIPDropped, healthState, healthSeconds,
	} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	is := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge(startTime, float64(c.d.started.UnixMilli())/1e3)
	gauge(drainedGauge, is(len(c.d.Drained()) > 0))
	cfg := c.d.Configuration()
	for outcome, n := range cfg.Reloads {
		count(reloadsTotal, float64(n), outcome)
	}
	gauge(configTime, float64(cfg.Since.UnixMilli())/1e3)
	gauge(configValid, is(cfg.Last == nil || cfg.Last.Outcome == admin.Reloaded || cfg.Last.Outcome == admin.Unchanged))
	gauge(configLastGood, is(cfg.LastGood))
	builds, took := c.d.store.Builds()
	count(tableBuilds, float64(builds))
	count(tableSeconds, took.Seconds())
	for _, x := range c.d.xdp.counts() {
		verdict := func(name string, packets, bytes uint64) {
			count(xdpPackets, float64(packets), x.name, name)
			count(xdpBytes, float64(bytes), x.name, name)
		}
		verdict("passed", x.Passed.Packets, x.Passed.Bytes)
		verdict("redirected", x.Redirected.Packets, x.Redirected.Bytes)
		for reason, n := range x.Dropped {
			verdict(reason.String(), n.Packets, n.Bytes)
		}
		for vip, n := range x.VIPs {
			count(xdpVIPPackets, float64(n.Packets), x.name, vip)
			count(xdpVIPBytes, float64(n.Bytes), x.name, vip)
			count(xdpVIPDropped, float64(n.Dropped), x.name, vip)
		}
	}
	for _, ctl := range c.d.running() {
		h, ok := ctl.Control.(*health.Checker)
		if !ok {
			continue
		}
		for _, r := range h.Results() {
			labels := []string{ctl.inst.Name, r.Target.Addr.String(), strconv.Itoa(r.Target.Port)}
			for _, s := range []state.Health{state.Unknown, state.Healthy, state.Unhealthy} {
				gauge(healthState, is(r.Health == s), append(labels, s.String())...)
			}
			if r.Probed {
				gauge(healthSeconds, r.Took.Seconds(), labels...)
			}
		}
	}
}

// xdpCounts is what the XDP program of an interface counted.
type xdpCounts struct {
	name string
	bpf.Counts
}

// counts asks all programs; one that does not answer is left out.
func (d *xdpDriver) counts() (all []xdpCounts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		c, err := p.program.Counts()
		if err != nil {
			d.log.Warn("the XDP program does not answer", zap.String("interface", p.Info().Name), zap.Error(err))
			continue
		}
		all = append(all, xdpCounts{p.Info().Name, c})
	}
	return all
}
