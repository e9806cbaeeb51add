#!/usr/bin/env bash
# run.sh SECONDS [TARGET…]: every fuzz target (or those named) for SECONDS each, seeds from the golden pools.
# With nightly Rust: libFuzzer through cargo-fuzz, installed when it is missing. Without: the seeded runner on
# stable, in the test `hostile`. Ends with a table (edges: places of the code that were reached; seeds: inputs at
# the start that reach different ones); non-zero when anything was found. Findings stay in
# fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}; shift || true

stable() {
  echo "no nightly Rust or no cargo-fuzz: the seeded runner on stable"
  cd .. && AQUIFER_HOSTILE_ROUNDS=$((seconds * 2)) AQUIFER_SEED=$(date +%s) \
    exec cargo test --release -p testkit --test hostile -- --nocapture any_bytes random_changes
}
cargo +nightly --version >/dev/null 2>&1 || stable
cargo fuzz --version >/dev/null 2>&1 || cargo install -q cargo-fuzz || stable

# The crate is its own workspace; with the main one's lock it builds the same versions.
[ -e Cargo.lock ] || cp ../Cargo.lock Cargo.lock
export SANITIZER=${SANITIZER:-address}
# C libraries hold the same constants twice; as cargo-fuzz itself sets it.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_odr_violation=0}
cargo +nightly fuzz build -s "$SANITIZER"
built=$(ls -d target/*-linux-gnu/release)
"$built/seeds" corpus
targets=("$@"); [ $# -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list | grep -vx seeds)
mkdir -p logs; found=0; table=()
for target in "${targets[@]}"; do
  # An image is opened and read in every way at each run: it may take its time and memory.
  args=(-max_len=16384 -timeout=10 -rss_limit_mb=1024)
  [ "$target" != whole_image ] || args=(-max_len=144 -timeout=30 -rss_limit_mb=2048)
  [ "$target" != receive ] || args=(-max_len=97 -timeout=60 -rss_limit_mb=2048)
  echo "== $target"
  status=ok
  mkdir -p "corpus/$target" "artifacts/$target"
  "$built/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" -print_final_stats=1 "${args[@]}" > "logs/$target" 2>&1 || { status=FOUND; found=1; }
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "logs/$target")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "logs/$target")
  edges=$(grep -o 'cov: [0-9]*' "logs/$target" | tail -1 | cut -d' ' -f2)
  seeds=$(sed -n 's/.*INITED.* corp: \([0-9]*\).*/\1/p' "logs/$target" | tail -1)
  peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "logs/$target")
  table+=("$target $status ${runs:-?} ${rate:-?} ${edges:-?} ${seeds:-?} ${peak:-?}")
  [ $status = ok ] || tail -30 "logs/$target"
done
{ echo "target result runs runs/s edges seeds peak-MiB"; printf '%s\n' "${table[@]}"; } | column -t
exit $found
