package bench

import (
	"os"
	"testing"
	"time"
)

// TestScale: memory grows with VIPs, pools and backends, and no faster; whatever the
// size, one backend that goes is one table. Sizes are small here; `figures -scale` has
// those that are promised, and TestScaleSoak runs them.
func TestScale(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes [3]Size // each four times the one before
		units func(Size) int
	}{
		{"VIPs", [3]Size{{VIPs: 200, Pools: 2}, {VIPs: 800, Pools: 2}, {VIPs: 3200, Pools: 2}}, func(z Size) int { return z.VIPs }},
		{"pools", [3]Size{{VIPs: 8, Pools: 8}, {VIPs: 32, Pools: 32}, {VIPs: 128, Pools: 128}}, func(z Size) int { return z.Pools }},
		{"backends", [3]Size{{VIPs: 8, Pools: 8, Backends: 50}, {VIPs: 8, Pools: 8, Backends: 200}, {VIPs: 8, Pools: 8, Backends: 800}},
			func(z Size) int { return z.Pools * z.Backends }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all [3]*Scale
			for i, z := range c.sizes {
				z.Flows, z.Backends = 500, orDefault(z.Backends, 5)
				all[i] = scaled(t, z)
			}
			each := func(i int) float64 {
				return float64(int64(all[i].Memory)-int64(all[i-1].Memory)) / float64(c.units(all[i].Size)-c.units(all[i-1].Size))
			}
			t.Logf("%.0f, then %.0f bytes for each one more", each(1), each(2))
			if each(2) > 1.5*each(1)+200 {
				t.Errorf("each one more takes %.0f bytes, and of four times as many %.0f", each(1), each(2))
			}
		})
	}
}

// scaled measures a size and looks at what must be so at any.
func scaled(t *testing.T, z Size) *Scale {
	t.Helper()
	x, err := MeasureScale(z, 1, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *x)
	if x.Tables != 1 {
		t.Errorf("%+v: %d tables for one backend that goes", z, x.Tables)
	}
	if x.Match <= 0 || x.LookUp <= 0 || x.Memory == 0 {
		t.Errorf("%+v: no packet went through: %+v", z, x)
	}
	return x
}

// TestScaleSoak: the sizes that are promised are read, built and used.
func TestScaleSoak(t *testing.T) {
	if os.Getenv("LBGRAPH_SOAK") == "" {
		t.Skip("soak: takes minutes; LBGRAPH_SOAK=1 runs it")
	}
	few := scaled(t, Size{VIPs: 1000, Pools: 10, Backends: 50, Flows: 10_000})
	vips := scaled(t, Size{VIPs: 10_000, Pools: 10, Backends: 50, Flows: 100_000})
	if per, more := float64(few.Memory)/1000, float64(vips.Memory)/10_000; more > 1.5*per {
		t.Errorf("a VIP takes %.0f bytes of 1000, %.0f of 10 000", per, more)
	}
	some := scaled(t, Size{VIPs: 200, Pools: 200, Backends: 50, Flows: 10_000})
	pools := scaled(t, Size{VIPs: 2000, Pools: 2000, Backends: 50, Flows: 100_000}) // 100 000 backends
	if per, more := float64(some.Memory)/200, float64(pools.Memory)/2000; more > 1.5*per {
		t.Errorf("a pool of 50 backends takes %.0f bytes of 200, %.0f of 2000", per, more)
	}
	for _, flows := range []int{1_000_000, 8_000_000} {
		scaled(t, Size{VIPs: 1, Pools: 1, Backends: 100, Flows: flows})
	}
}
