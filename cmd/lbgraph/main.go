// Command lbgraph is the load balancer with all kinds of node that come with it.
//
// To add kinds of your own, copy this file to a module of yours and import their
// packages too: registration is all they need.
package main

import (
	"github.com/lbgraph/lbgraph/cmd"
	_ "github.com/lbgraph/lbgraph/control/all"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

func main() { cmd.Main() }
