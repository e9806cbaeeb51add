#!/usr/bin/env bash
# bench/keep.sh NAME COMMAND...: runs a benchmark, prints its output, and appends it to bench/history/NAME.txt below a line with the
# date, the commit, the processor and the load at its start. A benchmark that prints nothing (it was skipped) leaves no entry.
set -euo pipefail
name=$1 root=$(cd "$(dirname "$0")/.." && pwd)
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
head="# $(date -u +%F) $commit, $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg)"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"${@:2}" | tee "$out"
[ -s "$out" ] || exit 0
mkdir -p "$root/bench/history"
{ echo "$head"; cat "$out"; echo; } >> "$root/bench/history/$name.txt"
