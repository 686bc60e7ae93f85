# A kind of connections behind one of requests.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path { main = [in, secure, balance, proxy] }
  node "listen" "in" { address = "192.0.2.1:443" }
  node "tls" "secure" {
    certificate {
      cert = "www.crt"
      key  = "www.key"
    }
  }
  node "balance" "balance" { pool = "web" }
}
