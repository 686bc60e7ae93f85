# Frames sent back, with nothing behind that could take them.
graph "edge" {
  path { main = [rx, reflect] }
  node "xdp-rx" "rx" { interface = "eth0" }
}
