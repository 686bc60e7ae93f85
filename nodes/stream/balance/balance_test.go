package balance

import "testing"

func weights(w ...float64) (all []member) {
	for _, x := range w {
		all = append(all, member{weight: x})
	}
	return all
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		w    []float64
		want []int // times
	}{
		{[]float64{100, 100, 100}, []int{1, 1, 1}}, {[]float64{100}, []int{1}}, {[]float64{100, 50}, []int{2, 1}},
		{[]float64{300, 200, 100}, []int{3, 2, 1}}, {[]float64{1000, 1}, []int{1000, 1}}, {[]float64{7, 3}, []int{7, 3}},
	} {
		got := make([]int, len(c.w))
		o := order(weights(c.w...))
		for _, m := range o {
			got[m]++
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v: %v", c.w, got)
				break
			}
		}
	}
	// As even as can be: between two turns of one, others never come far more often
	// than their share.
	last, gap := -1, 0
	for i, m := range order(weights(500, 100)) {
		if m == 1 {
			last = i
		} else if last >= 0 {
			gap = max(gap, i-last)
		}
	}
	if gap > 5 {
		t.Errorf("the lighter one waits for %d turns", gap)
	}
	if order(nil) != nil {
		t.Error("an order of nothing")
	}
	many := make([]float64, 5000)
	for i := range many {
		many[i] = float64(997 - i%7)
	}
	if n := len(order(weights(many...))); n > maxOrder+5000 {
		t.Errorf("an order of %d", n)
	}
}
