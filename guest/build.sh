#!/bin/sh
# Builds the two guest programs as static executables that need nothing in the user's image.
#
# Results: target/x86_64-unknown-linux-gnu/guest/aenv-init
#          target/x86_64-unknown-linux-gnu/guest/aenv-envd
#
# The target is named although it is the host's: otherwise the flags would also reach build scripts and procedural
# macros, which cannot be static. CARGO overrides the cargo to run.
set -eu
cd "$(dirname "$0")/.."
export RUSTFLAGS="-C target-feature=+crt-static"
exec "${CARGO:-cargo}" build --profile guest --target x86_64-unknown-linux-gnu -p aenv-init -p aenv-envd
