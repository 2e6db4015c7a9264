#!/usr/bin/env bash
# `make demo`: everything from nothing to two sandboxes and back, on folders, ports and names of its own, so that it
# can run beside another aenv or another demo. Ctrl-C stops it and cleans up.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
say() { printf '\n\033[1m[%4d s] %s\033[0m\n' "$((SECONDS - began))" "$*"; }
[ -t 1 ] || say() { printf '\n[%4d s] %s\n' "$((SECONDS - began))" "$*"; }

if [ "$(id -u)" -ne 0 ]; then
  echo "demo: virtual machines with disks and networks of their own need root: run 'sudo make demo'" >&2
  exit 1
fi

say "Debian packages that are missing"
scripts/setup.sh

say "Compiling aenv and the guest programs (minutes, the first time)"
scripts/build.sh

say "Installing the published e2b package"
python=$(python3 -c 'import sys; sys.path.insert(0, "tests"); from harness.environments import venv; print(venv("sdk-newest"))' | tail -n1)/bin/python

exec "$python" scripts/demo.py --seconds-before "$((SECONDS - began))"
