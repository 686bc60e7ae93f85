package balance

import (
	"cmp"
	"slices"
)

// maxOrder bounds the length of an order. Weights that would need more are rounded.
const maxOrder = 1 << 15

// order answers members in their turn: each as often as its weight, and as evenly
// spread as can be. Members of equal weight come each once.
func order(members []member) []uint16 {
	if len(members) == 0 {
		return nil
	}
	g, sum := 0, 0
	for i := range members {
		w := int(members[i].weight)
		g = gcd(g, w)
		sum += w
	}
	times := make([]int, len(members))
	scale := 1.0
	if n := sum / g; n > maxOrder {
		scale = float64(maxOrder) / float64(n)
	}
	total := 0
	for i := range members {
		times[i] = max(1, int(float64(int(members[i].weight)/g)*scale+0.5))
		total += times[i]
	}
	type turn struct {
		at     float64
		member uint16
	}
	turns := make([]turn, 0, total)
	for i, n := range times {
		for k := range n {
			turns = append(turns, turn{(float64(k) + 0.5) / float64(n), uint16(i)})
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.at, b.at) })
	all := make([]uint16, total)
	for i := range turns {
		all[i] = turns[i].member
	}
	return all
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
