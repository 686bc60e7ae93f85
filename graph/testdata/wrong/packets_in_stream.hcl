# Packet nodes in a stream block.
stream "www" {
  path { main = [xdp-rx, parse, drop] }
}
