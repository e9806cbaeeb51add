#!/usr/bin/env bash
# Speed, as ratios to real OpenZFS (zdb) and to the raw devices.
#
#   bench/run.sh            makes the pools when they are missing (about 12 GiB, some minutes), then measures
#   RUNS=5 bench/run.sh     rounds (3); the median of each figure is printed
#   bench/run.sh clean      deletes the pools
#
# The pools are made by zfs-fuse, the only ZFS that writes without a kernel module: raidz2 of 6 files with
# ashift 12, 4 GiB of random bytes and 2 GiB of text; and one of 1,000 datasets. Needs root. Caches are dropped
# before each run, and the programs compared take turns.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${BENCH_DIR:-$root/target/bench}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3}
aquifer=${AQUIFER:-$root/target/release/aquifer}
if [ "${1:-}" = clean ]; then rm -rf "$dir"; exit 0; fi

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount zfs-fuse and to drop caches"
command -v zdb >/dev/null || skip "zdb is not installed"
export DEBIAN_FRONTEND=noninteractive
[ -x /usr/bin/time ] || apt-get -qq install -y time >/dev/null 2>&1 || skip "/usr/bin/time is not installed"
if [ ! -x "$fuse/sbin/zfs-fuse" ]; then # its package conflicts with OpenZFS's tools: unpacked, not installed
  tmp=$(mktemp -d)
  (cd "$tmp" && apt-get -qq install -y --no-install-recommends libfuse2 libaio1 libtirpc3 >/dev/null 2>&1 &&
    apt-get -qq download zfs-fuse >/dev/null 2>&1 && dpkg -x zfs-fuse_*.deb "$fuse") || skip "zfs-fuse can't be had"
  rm -rf "$tmp"
fi

daemon=
stop_daemon() { [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; daemon=; }
trap stop_daemon EXIT
start_daemon() {
  # Someone else's serves as well, and stays.
  "$fuse/sbin/zpool" list >/dev/null 2>&1 && return
  mkdir -p /var/run/zfs /var/lock/zfs
  "$fuse/sbin/zfs-fuse" -n >/dev/null 2>&1 &
  daemon=$!
  for _ in $(seq 50); do "$fuse/sbin/zpool" list >/dev/null 2>&1 && return; sleep 0.2; done
  skip "zfs-fuse does not start"
}

# Text: lines of words of this machine's own documents, in an order of its own for each file.
words() { find /usr/share/doc -name copyright -print0 | sort -z | head -zn 400 | xargs -0 cat | tr -s '[:space:]' ' ' | fold -s -w 90; }

make_speed() {
  say "making the pool of 6 GiB"
  mkdir -p "$dir/speed.new" "$dir/mnt"
  for i in 1 2 3 4 5 6; do truncate -s 3G "$dir/speed.new/disk$i"; done
  "$fuse/sbin/zpool" create -f -o ashift=12 -m "$dir/mnt" aqbench raidz2 "$dir"/speed.new/disk[1-6]
  "$fuse/sbin/zfs" create aqbench/random
  "$fuse/sbin/zfs" create -o compression=on aqbench/text
  dd if=/dev/urandom of="$dir/mnt/random/big" bs=1M count=3072 status=none
  for i in 1 2 3 4; do dd if=/dev/urandom of="$dir/mnt/random/f$i" bs=1M count=256 status=none; done
  words > "$dir/lines"
  local size; size=$(stat -c %s "$dir/lines")
  for ((n = 0; n * size < 2147483648; n++)); do
    mkdir -p "$dir/mnt/text/d$((n / 64))"
    shuf --random-source=<(yes $n) "$dir/lines" > "$dir/mnt/text/d$((n / 64))/f$n.txt"
  done
  sha256sum < "$dir/mnt/random/big" | cut -d' ' -f1 > "$dir/speed.new/big.sha256"
  "$fuse/sbin/zpool" export aqbench
  mv "$dir/speed.new" "$dir/speed"
}

make_many() {
  say "making the pool of 1,000 datasets"
  mkdir -p "$dir/many.new" "$dir/mnt2"
  truncate -s 1G "$dir/many.new/disk1"
  "$fuse/sbin/zpool" create -f -m none aqmany "$dir/many.new/disk1"
  for i in $(seq 0 9); do
    "$fuse/sbin/zfs" create aqmany/g$i
    for j in $(seq 99); do "$fuse/sbin/zfs" create aqmany/g$i/d$j; done
  done
  "$fuse/sbin/zpool" export aqmany
  mv "$dir/many.new" "$dir/many"
}

mkdir -p "$dir"
if [ ! -d "$dir/speed" ] || [ ! -d "$dir/many" ]; then
  rm -rf "$dir/speed.new" "$dir/many.new"
  start_daemon
  [ -d "$dir/speed" ] || make_speed
  [ -d "$dir/many" ] || make_many
  stop_daemon
fi

results=$(mktemp -d)
# once NAME COMMAND...: with cold caches; appends seconds, processor seconds, peak KiB
once() {
  local name=$1; shift
  sync; echo 3 > /proc/sys/vm/drop_caches
  local status=0
  /usr/bin/time -f '%e %U %S %M' -o "$results/last" "$@" >"$results/$name.out" 2>"$results/$name.err" || status=$?
  [ $status = 0 ] || { say "$name failed ($status):"; tail -5 "$results/$name.err" >&2; exit 1; }
  tail -1 "$results/last" >> "$results/$name"
}
median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
seconds() { cut -d' ' -f1 "$results/$1" | median; }
cpu() { awk '{ print $2 + $3 }' "$results/$1" | median; }
peak() { awk '{ print int($4 / 1024) }' "$results/$1" | sort -n | tail -1; }

speed=$dir/speed
file_bytes=$((3072 << 20))
for round in $(seq "$runs"); do
  say "round $round of $runs"
  once raw-all bash -c 'for d in "$1"/disk[1-6]; do dd if="$d" of=/dev/null bs=1M status=none; done' _ "$speed"
  once verify "$aquifer" verify -q -d "$speed" aqbench
  once verify-first "$aquifer" verify -q --first-copy -d "$speed" aqbench
  once zdb-bcc zdb -e -p "$speed" -bcc aqbench
  once raw-file bash -c 'for d in "$1"/disk[1-6]; do dd if="$d" of=/dev/null bs=1M skip=64 count=512 status=none; done' _ "$speed"
  once cat bash -c '"$1" cat -d "$2" aqbench/random:/big > /dev/null' _ "$aquifer" "$speed"
  [ "$round" != 1 ] || [ "$("$aquifer" cat -d "$speed" aqbench/random:/big | sha256sum | cut -d' ' -f1)" = "$(cat "$speed/big.sha256")" ] || { say "the file differs"; exit 1; }
  once open "$aquifer" zfs get all -H -r -d "$dir/many" aqmany
done

row() { printf '%-44s %9s %9s %9s  %s\n' "$@"; }
rate() { awk -v b="$1" -v s="$2" 'BEGIN { printf "%.0f MiB/s", b / s / 1048576 }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
read_bytes=$("$aquifer" verify -q -Hp -L --metadata -d "$speed" aqbench | awk -F'\t' '$1 == "bp allocated" { print $2 }')
disk_bytes=$(cat "$speed"/disk[1-6] | wc -c)
echo
row what seconds 'CPU s' 'peak MiB' ''
row 'raw read of all device files (dd)' "$(seconds raw-all)" "$(cpu raw-all)" - "$(rate "$disk_bytes" "$(seconds raw-all)") (holes included)"
row 'zdb -e -bcc' "$(seconds zdb-bcc)" "$(cpu zdb-bcc)" "$(peak zdb-bcc)" "$(rate "$read_bytes" "$(seconds zdb-bcc)") of allocated space"
row 'aquifer verify (every copy, all parity)' "$(seconds verify)" "$(cpu verify)" "$(peak verify)" "$(rate "$read_bytes" "$(seconds verify)") of allocated space"
row 'aquifer verify --first-copy (as zdb)' "$(seconds verify-first)" "$(cpu verify-first)" "$(peak verify-first)" "$(rate "$read_bytes" "$(seconds verify-first)") of allocated space"
row 'dd, as many bytes as the file' "$(seconds raw-file)" "$(cpu raw-file)" - "$(rate $file_bytes "$(seconds raw-file)")"
row 'aquifer cat of a file of 3 GiB' "$(seconds cat)" "$(cpu cat)" "$(peak cat)" "$(rate $file_bytes "$(seconds cat)")"
row 'zfs get all -r of 1,000 datasets' "$(seconds open)" "$(cpu open)" "$(peak open)" "$(wc -l < "$results/open.out") lines"
echo
check() { printf '%-60s %8s  (at least %s)\n' "$1" "$2" "$3"; }
check 'verify: times as fast as zdb -e -bcc' "$(ratio "$(seconds zdb-bcc)" "$(seconds verify)")" 2
check 'verify --first-copy: times as fast as zdb -e -bcc' "$(ratio "$(seconds zdb-bcc)" "$(seconds verify-first)")" 2
check 'reading a file: of the speed of dd' "$(ratio "$(seconds raw-file)" "$(seconds cat)")" 0.7
check '1,000 datasets with all properties: a second, divided by it' "$(ratio 1 "$(seconds open)")" 1
check 'memory: 512 MiB, divided by the peak' "$(ratio 512 "$( (peak verify; peak verify-first; peak cat; peak open) | sort -n | tail -1)")" 1
echo
echo "one core of this machine:"
(cd "$root" && cargo run -q --release -p checksum --example checksum_speed 2>/dev/null | grep -E 'fletcher4 |sha256 ' ;
  cargo run -q --release -p compress --example compress_speed 2>/dev/null | grep -E 'lzjb|lz4 |zstd-3 ' | sed 's/compress \([a-z0-9-]*\).*decompress/decompress \1/') || true
rm -rf "$results"
