# Requests come one way, connections the other.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path {
    web = [in, admit, headers, balance, proxy]
    raw = [plain, admit]
  }
  node "listen" "in" { address = "192.0.2.1:80" }
  node "listen" "plain" {
    address  = "192.0.2.1:81"
    protocol = "tcp"
  }
  node "balance" "balance" { pool = "web" }
}
