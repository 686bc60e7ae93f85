# Two hosts on one port, three backends each: at most 100 requests in flight, the
# next ones wait up to 25 ms for a place, then 503. Each request goes to the backend
# that has the fewest in flight.
#
#   lbgraph run examples/hosts.hcl
#   curl -H 'Host: api.example.org' http://127.0.0.1:8080/

variable "address" { default = "127.0.0.1:8080" }
variable "domain" { default = "example.org" }

locals {
  api = [9001, 9002, 9003] # ports of backends
  www = [9011, 9012, 9013]
}

health "get" {
  type     = "http"
  path     = "/"
  interval = "1s"
  timeout  = "500ms"
}

pool "api" {
  health   = health.get
  backends = [for p in local.api : { name = "api-${p}", address = "127.0.0.1", port = p }]
}

pool "www" {
  health   = health.get
  backends = [for p in local.www : { name = "www-${p}", address = "127.0.0.1", port = p }]
}

stream "front" {
  path {
    main = [accept, admit, hosts.api, api, proxy]
    www  = [hosts.www, www, proxy]
  }

  node "listen" "accept" { address = var.address }
  node "admit" "admit" {
    limit         = 100
    queue_timeout = "25ms"
  }
  node "route" "hosts" { # another host: 404
    rule "api" { host = ["api.${var.domain}"] }
    rule "www" { host = ["www.${var.domain}", var.domain] }
  }
  node "balance" "api" {
    pool      = pool.api
    algorithm = "least-connections"
  }
  node "balance" "www" {
    pool      = pool.www
    algorithm = "least-connections"
  }
}
