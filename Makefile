# What there is: `make help`. Works from any folder, as root.
.PHONY: help up build lint test test-newest bench soak clean check-host
.NOTPARALLEL:
.DEFAULT_GOAL := help

root := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
ARCH := $(shell uname -m)
CARGO ?= cargo
# Options of `hearth serve` for `make up`, such as --listen.
SERVE_ARGS ?=
SOAK_MINUTES ?= 10
# Programs of administration are not in every PATH of root.
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin
# Everything below counts on target/.
unexport CARGO_TARGET_DIR CARGO_BUILD_TARGET

cd := cd "$(root)" &&
# The programs of the tests' venv first: a Node lives there where the host's is too old.
with_venv := PATH="$(root)target/venv/bin:$$PATH"

help:
	@echo 'make up           install what is missing, build, prepare and serve on 127.0.0.1:3000 (SERVE_ARGS=...)'
	@echo 'make build        build target/release/hearth, the agent inside it'
	@echo 'make test         everything CI runs: lint, unit, host and end-to-end tests; needs root'
	@echo 'make test-newest  the end-to-end tests with the newest clients'
	@echo 'make lint         formatting and clippy'
	@echo 'make bench        figures of a scratch server beside their floors'
	@echo 'make soak         load on a scratch server for SOAK_MINUTES=$(SOAK_MINUTES), then look for what is left'
	@echo 'make clean        remove what was built here; servers and their state stay (`hearth down` ends them)'

# `serve` prepares the template first where it is missing.
up: check-host build
	@$(cd) exec ./target/release/hearth serve $(SERVE_ARGS)

check-host:
	@$(cd) scripts/host-packages

# The agent first: it is embedded in `hearth`. It runs in any root disk, so it is linked statically.
build: check-host
	@echo 'building (minutes the first time)'
	@$(cd) RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --locked --profile agent -p hearth-agent --target $(ARCH)-unknown-linux-gnu
	@$(cd) $(CARGO) build --locked --release -p hearth

lint:
	$(cd) $(CARGO) fmt --check
	$(cd) $(CARGO) clippy --locked --release --workspace --all-targets -- -D warnings

test: build
	@date +%s >"$(root)target/.test-begun"
	@$(cd) scripts/host-packages --tests
	@$(MAKE) --no-print-directory -f "$(root)Makefile" lint
	$(cd) $(CARGO) test --locked --release --workspace
	$(cd) $(with_venv) tests/e2e/run
	@echo "make test: all passed in $$(( $$(date +%s) - $$(cat "$(root)target/.test-begun") )) s after the build"

test-newest: build
	@$(cd) scripts/host-packages --tests
	$(cd) $(with_venv) scripts/test-newest

bench: build
	@$(cd) scripts/host-packages --tests
	@$(cd) scripts/client-venv target/venv
	$(cd) scripts/scratch-server target/venv/bin/python bench/bench.py

soak: build
	@$(cd) scripts/host-packages --tests
	@$(cd) scripts/client-venv target/venv
	$(cd) scripts/scratch-server target/venv/bin/python bench/soak.py --minutes $(SOAK_MINUTES)

clean:
	$(cd) rm -rf target tests/js/node_modules
