# The worked sample of the design.
graph "edge" {
  network_mtu = 1500
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct] # errors carry the quoted flow
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}

pool "web" {
  backend "web-1" { address = "10.0.1.1" }
}

vip "web" {
  address = "203.0.113.80"
  pool    = pool.web
}

vip "web6" {
  address = "2001:db8::80"
  pool    = pool.web
}

metrics {}
admin {}
