#!/usr/bin/env bash
# Prints the C++ sources of the project, tracked or new, each followed by a NUL.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cpp' '*.hpp' '*.c' |
  while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done
