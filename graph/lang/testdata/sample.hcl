variable "uplink" { default = "eth0" }
health "http" { path = "/healthz" }
pool "web" {
  health = health.http
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" {
    address = "10.0.1.2"
    weight = 50
  }
}
vip "web" {
  address = "203.0.113.80"
  protocol = "tcp"
  ports = [80, "443", "8000-8099"]
  pool = pool.web
}
graph "edge" {
  network_mtu = 1500
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = var.uplink }
  node "conntrack" "ct" {
    timeouts { tcp_established = "2h" }
  }
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
metrics {}
