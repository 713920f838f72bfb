#!/usr/bin/env bash
# The demo: 4 workers train on the digits, twice. In the second run a worker is killed (SIGKILL) twice in mid-training and
# comes back; the weights are compared byte for byte. The last line of standard output is the demo's JSON object.
#   --kill=RANK   which worker is killed (default: one at random); --kill=none: the undisturbed run alone
# Exit code 0: all that the demo claims is so.
# Other arguments go to the training program (examples/digits.cc).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${WARREN_DEMO_BIN:-build/release/bin}
workers=4
victim=$((RANDOM % workers))
arguments=(--data=examples/data --epochs=400)
for argument in "$@"; do
  case "$argument" in
    --kill) ;;
    --kill=none) victim= ;;
    --kill=*)
      victim=${argument#--kill=}
      [[ "$victim" =~ ^[0-9]$ ]] && [ "$victim" -lt "$workers" ] ||
        { echo "demo: $argument: give a rank from 0 to $((workers - 1)), or none" >&2; exit 2; } ;;
    *) arguments+=("$argument") ;;
  esac
done
folder=$(mktemp -d "${TMPDIR:-/tmp}/warren-demo.XXXXXX")
trap 'rm -rf "$folder"' EXIT

# `warren run` puts the worker before each line, so the object and the weights take the way over files.
train() {  # train NAME
  "$bin/warren" run -n "$workers" -- "$bin/digits" "${arguments[@]}" --json_file="$folder/$1.json" \
    --weights_file="$folder/$1.weights" 2>&1
}

echo "== $workers workers, undisturbed"
train calm
[ -n "$victim" ] || { cat "$folder/calm.json"; exit 0; }

echo "== the same, and rank $victim is killed twice"
killed=0 pid=''
# A fifth of the way, and half of it, are where the worker dies.
while IFS= read -r line; do
  printf '%s\n' "$line"
  if [[ "$line" =~ rank\ $victim\ is\ process\ ([0-9]+) ]]; then
    pid=${BASH_REMATCH[1]}
  elif [[ "$line" =~ epoch\ +([0-9]+)\ of\ ([0-9]+): ]]; then
    if [ -n "$pid" ] && [ "$killed" -lt 2 ] &&
       [ $((10 * BASH_REMATCH[1])) -ge $((BASH_REMATCH[2] * (killed == 0 ? 2 : 5))) ]; then
      sleep "0.0$((RANDOM % 20 + 10))"  # somewhere in the epochs that follow
      if kill -9 "$pid" 2>/dev/null; then
        killed=$((killed + 1))
        echo "== killed rank $victim, process $pid"
      fi
      pid=''
    fi
  fi
done < <(train storm)
wait $!  # the run's exit code

equal=false
if cmp -s "$folder/calm.weights" "$folder/storm.weights"; then equal=true; fi
echo "== rank $victim was killed $killed times; the weights are $([ $equal = true ] || printf 'NOT ')those of the undisturbed run, byte for byte"
[ -s "$folder/storm.json" ] || { echo "demo: the workers left no result" >&2; exit 1; }
object=$(cat "$folder/storm.json")
printf '%s,"killed_rank":%d,"killed":%d,"bitwise_equal":%s}\n' "${object%\}}" "$victim" "$killed" "$equal"
[ "$equal" = true ] && [ "$killed" = 2 ]
