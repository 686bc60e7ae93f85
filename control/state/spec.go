package state

import (
	"net/netip"
	"time"
)

// Spec is what the operator declared: the input from which snapshots are built.
// It needs no host.
type Spec struct {
	Pools []PoolSpec
	VIPs  []VIPSpec
}

// PoolSpec is one pool block.
type PoolSpec struct {
	Name         string
	Backends     []BackendSpec
	TableSize    int           // slots of the Maglev table, a prime from 251 to 1000003
	HashSeed     uint64        // mixed into the selection hash
	Health       string        // name of the health block, or ""
	FailOpen     bool          // with no usable backend, use all
	RemovalGrace time.Duration // for which a removed backend keeps its flows
}

// BackendSpec is one backend of a pool.
type BackendSpec struct {
	Name    string
	Address netip.Addr
	Weight  int // 0 to 1000
	Port    int // for streams and checks; 0 if none
	Drain   bool
}

// VIPSpec is one vip block.
type VIPSpec struct {
	Name     string
	Prefix   netip.Prefix // an address is a prefix of its full length
	Protocol uint8        // 6, 17, or 0 for any
	Ports    []PortRange  // nil is all ports
	Pool     string
	Affinity bool
	Leave    bool // a wrong port or protocol is left to the kernel
	Disabled bool
	Allow    []netip.Prefix // source allow list
	Deny     []netip.Prefix // source deny list
	Unlisted string         // "allow" or "deny" for sources on no list

	// When the address is announced: see BGP in the requirements.
	Require  string // "all" or "any" of the pools behind the address must be healthy
	Quorum   int    // healthy backends that Pool needs
	Optional bool   // this service does not decide
}

// PortRange is the ports Lo … Hi, both included.
type PortRange struct{ Lo, Hi uint16 }
