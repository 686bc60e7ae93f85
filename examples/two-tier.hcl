# Two tiers: this file's packet plane spreads connections over balancers of streams,
# which take their tunnel off and spread requests over web servers. A balancer of
# either tier may come and go; packets of one connection find the same stream balancer
# from any node that runs this file, and its answers go straight to the client.
#
# On each stream balancer the VIP stands on the loopback, and
#
#   ip addr add 203.0.113.80/32 dev lo
#   lbgraph decap --interface eth0
#   lbgraph run examples/hosts.hcl -var address=203.0.113.80:80 -var domain=example.org \
#     -var api=10.0.9.1:8001,10.0.9.2:8001 -var www=10.0.9.1:8002,10.0.9.2:8002
#
# do the rest. The web servers learn who the client is by X-Forwarded-For.

variable "uplink" { default = "eth0" }

# Whether a stream balancer accepts connections to the VIP, asked through the tunnel;
# whether web servers work is the stream balancers' matter.
health "balancer" {
  through  = "tunnel"
  interval = "1s"
  timeout  = "500ms"
}

pool "balancers" {
  health = health.balancer
  backend "streams-1" { address = "10.0.1.2" }
  backend "streams-2" { address = "10.0.2.2" }
}

vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.balancers
}

graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, mss-clamp, mtu, gre, xdp-tx]
    new_flow  = [ct.miss, maglev-select, mss-clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, xdp-tx]
    too_big   = [mtu.reply, xdp-tx]
  }

  node "xdp-rx" "rx" { interface = var.uplink }
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
}
