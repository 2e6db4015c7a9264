#!/usr/bin/env bash
# Format, clippy with warnings as errors, dependency rules, Python lint.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
step() { echo "lint: $*"; }

step "cargo fmt --all --check"
"$cargo" fmt --all --check

step "installing pinned lint tools when they are absent"
tools=$(python3 -c 'import sys; sys.path.insert(0, "tests"); from harness.environments import venv; print(venv("lint"))' | tail -n1)

step "ruff check"
"$tools/bin/ruff" check --quiet scripts tests benches
"$tools/bin/ruff" format --check --quiet scripts tests benches

step "cargo deny check bans licenses sources"
"$tools/bin/cargo-deny" --log-level error check bans licenses sources

step "cargo clippy --workspace --all-targets"
"$cargo" clippy --workspace --all-targets --locked -- -D warnings
step "done"
