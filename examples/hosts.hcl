# Two hosts on one port, three backends each: at most 100 requests in flight, the
# next ones wait up to 25 ms for a place, then 503. Each request goes to the backend
# that has the fewest in flight. To see it with backends that say who they are:
#
#   lbgraph demo backend --http 9001-9003 --http 9011-9013
#   lbgraph run examples/hosts.hcl
#   curl http://api.localhost:8080/ http://www.localhost:8080/
#   lbgraph demo flood http://127.0.0.1:8080/ --host api.localhost
#
# In front of servers of your own, by their ports on this machine or their addresses:
#
#   lbgraph run examples/hosts.hcl -var api=8001,8002 -var www=10.0.1.1:80

variable "address" { default = "127.0.0.1:8080" } # of the balancer; "0.0.0.0:80" is for all the world
variable "domain" { default = "localhost" }       # curl and browsers find *.localhost on this machine
variable "api" { default = "9001,9002,9003" }     # backends, as PORT or IPV4:PORT
variable "www" { default = "9011,9012,9013" }

locals {
  # Each as [PORT, ADDRESS], where the address may be left out.
  api = [for b in split(",", var.api) : reverse(split(":", "127.0.0.1:${b}"))]
  www = [for b in split(",", var.www) : reverse(split(":", "127.0.0.1:${b}"))]
}

health "get" {
  type     = "http"
  path     = "/"
  interval = "1s"
  timeout  = "500ms"
}

pool "api" {
  health   = health.get
  backends = [for i, b in local.api : { name = "api-${i + 1}", address = b[1], port = b[0] }]
}

pool "www" {
  health   = health.get
  backends = [for i, b in local.www : { name = "www-${i + 1}", address = b[1], port = b[0] }]
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
