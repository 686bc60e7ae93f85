// Package stream is the contract of the stream plane: what a kind of node that
// works on connections and requests is given, and what it answers. It holds the
// buffered connection that both sides of a proxy use, too.
//
// A Session is one connection of a client or, where HTTP is spoken on it, one
// request. The runtime leads it from node to node, as the file draws them: each
// Stage looks at it and answers the output by which it goes on. A stage is shared
// by all sessions, which run at the same time; what it keeps is guarded or atomic.
// A session belongs to one goroutine at a time.
//
// All heads are in the form of HTTP/1 (package http1), whatever version was spoken:
// other versions are translated at the edge and pass the same strict reader.
//
// Times are nanoseconds of a monotonic clock: see Now.
package stream

import "time"

var base = time.Now()

// Now is the clock of the stream plane: nanoseconds since the process began.
func Now() int64 { return int64(time.Since(base)) }

// Never is later than any time.
const Never = int64(1<<63 - 1)

// Time answers the wall clock at a time of Now.
func Time(ns int64) time.Time { return base.Add(time.Duration(ns)) }
