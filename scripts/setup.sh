#!/usr/bin/env bash
# setup.sh [--bench]: installs the packages of scripts/packages.txt that are missing. Does nothing, at once, if none is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purposes='build test'
case "${1:-}" in
  "") ;;
  --bench) purposes='build test bench' ;;
  *) echo "usage: setup.sh [--bench]" >&2; exit 2 ;;
esac

mapfile -t wanted < <(awk -v purposes="$purposes" \
  '/^[^#]/ && index(" " purposes " ", " " $2 " ") {print $1}' scripts/packages.txt)

missing() {
  command -v dpkg-query >/dev/null || { echo "setup: this is not Debian; install by hand: ${wanted[*]}" >&2; exit 1; }
  { dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true; } |
    awk '$2 == "installed" {print $1}' | sort -u |
    comm -13 - <(printf '%s\n' "${wanted[@]}" | sort -u)
}

absent=$(missing)
[ -n "$absent" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "setup: these packages are missing, and only root can install them:" >&2
  echo "  sudo apt-get install --no-install-recommends" $absent >&2
  exit 1
fi

mkdir -p build
exec 9>build/.setup.lock
flock 9
absent=$(missing)  # another run may have installed them meanwhile
[ -n "$absent" ] || exit 0
echo "setup: installing" $absent
# Tests start the daemons that some packages bring themselves; none is to be started for the machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 update
apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -o Dpkg::Options::=--force-confold \
  install --no-install-recommends $absent
absent=$(missing)
[ -z "$absent" ] || { echo "setup: apt-get succeeded but these are still missing:" $absent >&2; exit 1; }
