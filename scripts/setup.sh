#!/usr/bin/env bash
# Installs the Debian packages AgentENV needs, only those that are missing, and says what it does.
#
#   scripts/setup.sh                  runtime + build + test packages
#   scripts/setup.sh runtime build    only these groups
#   scripts/setup.sh --print          print the missing packages of the groups, install nothing
#
# As root it installs; otherwise it prints the command to run and exits 1. It is idempotent: on a complete machine it
# runs no apt command at all.
set -euo pipefail

# One line per need: group, Debian package, and how to see that it is met already. A command counts wherever it comes
# from, so that a newer tool installed by hand is never replaced.
needs() {
  cat <<'TABLE'
runtime  qemu-system-x86     command qemu-system-x86_64
runtime  qemu-system-data    file /usr/share/qemu/qboot.rom
runtime  e2fsprogs           command mke2fs
runtime  iproute2            command ip
runtime  nftables            command nft
runtime  busybox-static      package busybox-static
runtime  xz-utils            command xz
runtime  zstd                command zstd
runtime  kmod                command modprobe
build    gcc                 command cc
build    libc6-dev           package libc6-dev
build    make                command make
build    git                 command git
build    protobuf-compiler   command protoc
test     python3             command python3
test     python3-venv        python ensurepip
test     ca-certificates     file /etc/ssl/certs/ca-certificates.crt
test     curl                command curl
test     procps              command ps
test     docker-registry     command docker-registry
test     skopeo              command skopeo
test     mmdebstrap          command mmdebstrap
TABLE
}

is_met() {
  case "$1" in
    command) command -v "$2" >/dev/null || [ -x "/usr/sbin/$2" ] || [ -x "/sbin/$2" ] ;;
    file) [ -e "$2" ] ;;
    package) [ "$(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null)" = installed ] ;;
    python) /usr/bin/python3 -c "import $2" 2>/dev/null ;;
  esac
}

print_only=no
groups=()
for argument in "$@"; do
  case "$argument" in
    --print) print_only=yes ;;
    runtime | build | test) groups+=("$argument") ;;
    *)
      echo "setup: unknown argument '$argument': use --print, runtime, build or test" >&2
      exit 2
      ;;
  esac
done
[ ${#groups[@]} -gt 0 ] || groups=(runtime build test)

missing=()
while read -r group package kind thing; do
  [[ " ${groups[*]} " == *" $group "* ]] || continue
  is_met "$kind" "$thing" || missing+=("$package")
done < <(needs)

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: nothing to install for: ${groups[*]}"
elif [ "$print_only" = yes ]; then
  printf '%s\n' "${missing[@]}"
  exit 0
elif ! command -v apt-get >/dev/null; then
  echo "setup: this machine has no apt-get. Install what these Debian packages hold: ${missing[*]}" >&2
  exit 1
elif [ "$(id -u)" -ne 0 ]; then
  echo "setup: packages are missing and installing them needs root. Run:" >&2
  echo "  sudo apt-get update && sudo apt-get install --no-install-recommends -y ${missing[*]}" >&2
  exit 1
else
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  # A package may start a service on installation (docker-registry does); none of ours should listen on this machine
  # because of a build, so services are kept from starting for the time of this call.
  guard=/usr/sbin/policy-rc.d
  made_guard=no
  if [ ! -e "$guard" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$guard"
    chmod 0755 "$guard"
    made_guard=yes
    trap 'rm -f "$guard"' EXIT
  fi
  apt-get install -q -y --no-install-recommends "${missing[@]}"
  if [ "$made_guard" = yes ]; then rm -f "$guard"; fi
fi

if [[ " ${groups[*]} " == *" build "* ]]; then
  wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
  found=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
  if [ -z "$found" ] || [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n1)" != "$wanted" ]; then
    echo "setup: Rust $wanted or newer is needed (found: ${found:-none}). Get it from https://rustup.rs:" >&2
    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    exit 1
  fi
  echo "setup: Rust $found"
fi
