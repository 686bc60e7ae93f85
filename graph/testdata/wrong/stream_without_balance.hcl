# Nobody chooses a backend.
stream "www" {
  path { main = [in, proxy] }
  node "listen" "in" { address = "192.0.2.1:80" }
}
