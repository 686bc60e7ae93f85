package demo

import "context"

func (d *demo) counters(ctx context.Context) error { return nil }
