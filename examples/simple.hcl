# A TCP target and an HTTP target on two backends each, shared out in turn. Try it,
# with backends that say who they are:
#
#   lbgraph demo backend --http 8081-8082 --tcp 8091-8092
#   lbgraph run examples/simple.hcl
#   curl http://127.0.0.1:8080/
#   echo hello | nc -N 127.0.0.1 8090

variable "web" { default = "127.0.0.1:8080" } # where HTTP is served
variable "tcp" { default = "127.0.0.1:8090" } # where TCP is passed on

health "get" {
  type     = "http"
  path     = "/"
  interval = "1s"
  timeout  = "500ms"
}

health "connect" {
  interval = "1s"
  timeout  = "500ms"
}

pool "web" {
  health = health.get
  backend "web-1" {
    address = "127.0.0.1"
    port    = 8081
  }
  backend "web-2" {
    address = "127.0.0.1"
    port    = 8082
  }
}

pool "echo" {
  health = health.connect
  backend "echo-1" {
    address = "127.0.0.1"
    port    = 8091
  }
  backend "echo-2" {
    address = "127.0.0.1"
    port    = 8092
  }
}

stream "web" {
  path { main = [accept, web, proxy] }

  node "listen" "accept" { address = var.web }
  node "balance" "web" { pool = pool.web }
}

stream "echo" {
  path { main = [accept, echo, proxy] }

  node "listen" "accept" {
    address  = var.tcp
    protocol = "tcp"
  }
  node "balance" "echo" { pool = pool.echo }
}
