//go:build !amd64 && !arm64

package runtime

import "time"

var cyclesBase = time.Now()

func cycles() uint64 { return uint64(time.Since(cyclesBase)) }
