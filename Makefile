# `make` alone lists the targets. Everything runs from a fresh clone; scripts/setup.sh installs what is missing.

CARGO ?= cargo
export CARGO

.DEFAULT_GOAL := help
.PHONY: help setup build demo test bench lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that are missing (as root), or print them
	@scripts/setup.sh

build: ## compile the aenv binary and the two guest programs
	@scripts/setup.sh runtime build
	@scripts/build.sh

demo: ## pull an image, run two sandboxes through the E2B SDK, show that nothing is left
	@scripts/demo.sh

test: ## all Rust tests and the end-to-end suite with the published SDKs
	@scripts/setup.sh
	@python3 scripts/test.py

bench: ## measure the figures of the project and compare them with their targets
	@scripts/setup.sh
	@python3 benches/run.py

lint: ## rustfmt, clippy with warnings as errors, dependency rules, Python lint
	@scripts/setup.sh build test
	@scripts/lint.sh

clean: ## remove everything built and cached inside this checkout
	rm -rf target .cache tests/js/node_modules
