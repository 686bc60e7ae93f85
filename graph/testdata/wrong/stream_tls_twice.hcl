# TLS is taken off twice.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path { main = [in, secure, again, balance, proxy] }
  node "listen" "in" {
    address  = "192.0.2.1:443"
    protocol = "tcp"
  }
  node "tls" "secure" {
    protocol = "tcp"
    certificate {
      cert = "www.crt"
      key  = "www.key"
    }
  }
  node "tls" "again" {
    certificate {
      cert = "www.crt"
      key  = "www.key"
    }
  }
  node "balance" "balance" { pool = "web" }
}
