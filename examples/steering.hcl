# A network card with one queue feeds three workers: core 0 receives, parses and
# sends; hand-off by the hash of the flow leads every flow, its fragments and the
# errors about it to the one core that keeps its state.

variable "uplink" { default = "eth0" }

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

graph "edge" {
  cores = 4

  path {
    main      = [rx, parse, vip-classify, spread, frag-pin, ct.hit, clamp, mtu, gre, collect, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, spread]
    pinned    = [frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, spread] # behind icmp-vip: an error goes where its flow is
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, collect]
  }

  node "xdp-rx" "rx" { interface = var.uplink }
  node "handoff" "spread" { cores = [1, 2, 3] }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "handoff" "collect" { cores = [0] }
  node "xdp-tx" "tx" {}
}
