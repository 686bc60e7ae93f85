# No network card at all: made-up traffic goes through the whole pipeline into a
# capture file. Good to look at what leaves, and to measure the graph.
#
#	lbgraph run examples/generate.hcl

pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
  backend "web-3" { address = "10.0.1.3" }
}

vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}

graph "bench" {
  path {
    main     = [clients, parse, vip-classify, ct.hit, mss-clamp, mtu, gre, out]
    new_flow = [ct.miss, maglev-select, mss-clamp]
    too_big  = [mtu.reply, out]
  }

  node "generate" "clients" {
    flows = 10000
    rate  = 100000 # packets a second; 0 is as many as it can
  }
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" { source = "192.0.2.1" } # there is no interface to lend its address
  node "pcap-tx" "out" { file = "out.pcap" }
}
