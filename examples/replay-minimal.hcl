# The least that balances: every packet of a flow finds its backend by the table
# alone, without connection tracking, fragments or ICMP. Good to try a change
# against a capture:
#
#	lbgraph replay examples/replay-minimal.hcl --in clients.pcap --out tunnel.pcap -o json

pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
}

vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}

graph "minimal" {
  path {
    main    = [rx, parse, vip-classify, maglev-select, mtu-check, gre-encap, xdp-tx]
    too_big = [mtu-check.reply, xdp-tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" } # replay feeds it from the capture instead
}
