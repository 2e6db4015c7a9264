#!/usr/bin/env bash
# Compiles the aenv binary (the one profile of this workspace) and the two guest programs (static, small).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

"$cargo" build --locked --package aenv --bin aenv
CARGO="$cargo" sh guest/build.sh
