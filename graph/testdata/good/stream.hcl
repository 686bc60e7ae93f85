# Every fact of streams, where it has to be.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
pool "raw" {
  backend "b1" { address = "192.0.2.12" }
}
stream "www" {
  path {
    main   = [in, by-name.ours, secure, by-host.www, headers, web, proxy]
    others = [by-name.theirs, raw, proxy]
    sorry  = [by-host.rest, respond]
    clear  = [plain, admit, by-host]
  }
  node "listen" "in" {
    address  = "192.0.2.1:443"
    protocol = "tcp"
  }
  node "listen" "plain" { address = "192.0.2.1:80" }
  node "route" "by-name" {
    rule "ours" { server_name = ["www.example.org"] }
    rule "theirs" { server_name = ["other.example.org"] }
  }
  node "tls" "secure" {
    certificate {
      cert = "www.crt"
      key  = "www.key"
    }
  }
  node "route" "by-host" {
    rule "www" { host = ["www.example.org"] }
    rule "rest" {}
  }
  node "balance" "web" { pool = "web" }
  node "balance" "raw" {
    pool = "raw"
    port = 443
  }
}
