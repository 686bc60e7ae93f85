# Frames sent back, but led to a node that cannot take them; none of the graph can.
graph "edge" {
  path { main = [rx, reflect, maglev-select, count] }
  node "xdp-rx" "rx" { interface = "eth0" }
}
