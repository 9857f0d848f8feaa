# The commands of this repository. Each step runs in every module (every directory with a go.mod,
# the linters in tools excepted), so that a nested module is held to what the root is held to.

FUZZTIME ?= 10s
BENCH    ?= .
COUNT    ?= 1
DURATION ?= 3m

# A go.work beside the checkout would change what is resolved, and forbids -modfile.
export GOWORK := off
export FUZZTIME

each := .ci/each
tool := go tool -modfile="$(CURDIR)/tools/go.mod"

.DEFAULT_GOAL := check
.NOTPARALLEL:
.PHONY: check help cgo gofmt vet staticcheck tidy fuzz memory bench-check soak-check test benchmarks bench bench-docs bench-deliver soak services vuln

# What can fail fast comes first; the tests come last, so that their result ends the output.
check: cgo gofmt vet staticcheck tidy fuzz memory bench-check soak-check test ## everything CI runs (the default)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

cgo:
	@.ci/cgo

gofmt: ## fail when a file is not formatted
	@out=$$(gofmt -l .) && test -z "$$out" || { echo "gofmt -w has work to do in:"; echo "$$out"; exit 1; }

vet: ## go vet
	$(each) go vet ./...

staticcheck: ## staticcheck, with staticcheck.conf
	$(each) $(tool) staticcheck ./...

tidy: ## fail when a go.mod or go.sum is not tidy
	$(each) go mod tidy -diff
	cd tools && go mod tidy -diff

fuzz: ## each fuzz target for FUZZTIME=10s
	$(each) "$(CURDIR)/.ci/fuzz"

memory: ## what can be measured only without the race detector
	go test -count=1 -run 'Small|Allocat' .

# With -race the compiler also checks pointers, which the C code that SQLite was translated from
# has too many of: its users' tests take twice as long.
test: cgo ## go test with the race detector, in random order
	$(each) go test -race -shuffle=on '-gcflags=modernc.org/...=-d=checkptr=0' ./...

benchmarks: ## the root's benchmarks: BENCH=regexp COUNT=n
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) .

bench: ## retrip beside its peers, under 5 minutes
	go run -C bench .

# Asserts what does not depend on time; prints the rest.
bench-check:
	go run -C bench . -quick -check

bench-docs: ## write what bench and the behaviours print to docs/bench.md
	mkdir -p docs
	(go run -C bench . && go run -C bench . -behaviour) >docs/bench.md.new
	mv docs/bench.md.new docs/bench.md

# PostgreSQL takes part if RETRIP_TEST_POSTGRES names one. The one of .ci/services has fsync off,
# which is quick for tests and no measure of anything else.
bench-deliver: ## write how fast deliveries are to docs/deliver.md
	go run -C deliver ./bench >docs/deliver.md.new
	mv docs/deliver.md.new docs/deliver.md

services: ## start what tests talk to; prints the variables that they find it by, and how to stop it
	@.ci/services start
	@echo "# eval what is above; .ci/services stop ends it"

soak: cgo ## random faults under the race detector: DURATION=3m
	go run -C faults -race ./soak -duration $(DURATION)

soak-check: cgo
	go run -C faults -race ./soak -duration 20s

vuln: ## govulncheck; needs the vulnerability database, so it is not part of check
	$(each) $(tool) govulncheck ./...
