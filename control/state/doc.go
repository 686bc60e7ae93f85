// Package state holds what control and data plane share: immutable snapshots of
// VIPs, pools, backends and Maglev tables behind one atomic pointer (Cell), and
// the status of each backend, which the data plane reads without waiting for a
// new snapshot. It imports the standard library and io/packet.
//
// A Snapshot never changes after Publish, but for the status words, which are
// atomic. Numbers of services and backends are stable: the same VIP and port, and
// the same backend address, keep their number from snapshot to snapshot; a number
// is free again only when every connection table was swept of it.
package state
