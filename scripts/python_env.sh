#!/usr/bin/env bash
# python_env.sh [VENV [PYTHON [LOCK]]]: makes build/venv, the Python that builds and tests the package, with what
# python/requirements.lock pins; or the folder VENV, from another Python ("": Debian's) or with what the file LOCK pins.
# Does nothing, at once, if it is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=${3:-python/requirements.lock}
venv=${1:-build/venv}
made=$venv/requirements.lock  # what it was made from
! cmp -s "$lock" "$made" || exit 0

# Debian's Python, for which setup.sh has installed the headers: another one may come first in the path.
python=${2:-/usr/bin/python3}
[ -n "${2:-}" ] || [ -x "$python" ] || python=python3
mkdir -p build
exec 9>"build/.$(basename "$venv").lock"
flock 9
! cmp -s "$lock" "$made" || exit 0  # another run may have made it meanwhile
echo "setup: making $venv from $lock"
"$python" -m venv --clear "$venv"
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$lock"; then
  # All else can be built and tested without it.
  echo "setup: NO $venv, and none of the tests that need it: pip could not install $lock; it needs the Python Package" \
    "Index, or PIP_INDEX_URL" >&2
  rm -rf "$venv"
  exit 0
fi
cp "$lock" "$made"
