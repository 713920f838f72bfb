#!/usr/bin/env bash
# The demo: 4 workers train on the digits. The last line of standard output is the demo's JSON object.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# `warren run` puts the rank before each line of its workers, so the object takes the way over a file.
result=$(mktemp "${TMPDIR:-/tmp}/warren-demo.XXXXXX")
trap 'rm -f "$result"' EXIT
build/release/bin/warren run -n 4 -- build/release/bin/digits --data=examples/data --json_file="$result" "$@"
[ -s "$result" ] || { echo "demo: the workers left no result" >&2; exit 1; }
cat "$result"
