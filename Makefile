# What can be done in this tree. `make` alone lists it.

GO      ?= go
BIN     := bin/lbgraph
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/lbgraph/lbgraph/cmd.version=$(VERSION)
TESTSUM := $(GO) run ./internal/testsum

# Packages whose goroutines share memory: these run under the race detector too.
RACE := ./runtime/... ./nodes/stream/... ./io/stream/... ./io/http1/... ./control/... ./daemon/... ./graph/... ./io/ring/... ./io/mem/... ./io/watch/... ./cmd/... ./internal/flood/...

.PHONY: help build check test race lint gen demo bench bench-streams bench-io soak open clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/lbgraph (needs Go alone)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/lbgraph

# Many tests wait for deadlines: more packages run at once than there are cores. go
# vet has been run by then. With no result of a test kept (GOFLAGS=-count=1) it takes
# 74 to 88 s on two cores, and 111 to 118 s when most packages are to be built.
check: build ## build, vet, gofmt, unit and golden tests, floor plan: under two minutes, without privileges
	$(GO) vet ./...
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt'ed:" $$bad; exit 1; fi
	$(TESTSUM) -quiet -- -short -vet=off -p 4 -parallel 16 ./...

# Tests that make namespaces and interfaces are named TestNet…; they run one
# package after the other, for they measure time and share two cores with their
# own traffic.
test: build ## everything, as root: also namespaces with real AF_XDP; installs what is missing
	.ci/install test
	$(TESTSUM) $(SUMFLAGS) -out bin/tests.tsv \
		-- -count=1 -parallel 8 -timeout 10m -skip '^TestNet' ./... \
		-- -count=1 -timeout 15m -p 1 -run '^TestNet' ./... \
		-- -count=1 -parallel 8 -timeout 10m -short -race $(RACE)
	$(GO) run ./internal/coverage -results bin/tests.tsv

race: ## unit tests under the race detector
	$(TESTSUM) -- -short -race -parallel 8 ./...

lint: ## go vet and staticcheck, at the versions that go.mod pins
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

gen: ## write the generated files anew: XDP objects, node references, the drawing
	.ci/install gen
	$(GO) generate ./...
	$(GO) run ./internal/reference
	mkdir -p bin && $(GO) run ./cmd/lbgraph dot -svg lb.hcl > bin/lb.svg && mv bin/lb.svg docs/lb.svg

demo: build ## two balancers behind a router with BGP, in namespaces, with real requests; one is killed (as root)
	.ci/install demo
	$(BIN) demo

bench: ## the figures to reach, beside a scalar reference; BENCH='-only look-up' for some
	$(GO) run ./bench/figures $(BENCH)

bench-streams: build ## CPU time a request beside nginx and haproxy; BENCH='-only TLS' for some
	.ci/install bench
	$(GO) run ./bench/streams $(BENCH)

bench-io: build ## packets a second and latency on AF_XDP beside a plain reflector and XDP_TX, as root; BENCH='-only rate' for some
	$(GO) run ./bench/io $(BENCH)

soak: ## long runs: every fuzz target for a minute, and tests that take minutes
	.ci/fuzz 60s
	LBGRAPH_SOAK=1 $(TESTSUM) -- -count=1 -timeout 2h -p 1 -run 'Soak|^TestModel$$' ./...

open: ## what is promised and not yet held
	$(GO) run ./internal/coverage

clean: ## remove what was built
	rm -rf bin
