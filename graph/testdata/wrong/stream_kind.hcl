# A stream kind in a packet graph.
graph "edge" {
  path { main = [xdp-rx, proxy] }
  node "xdp-rx" "xdp-rx" { interface = "eth0" }
}
