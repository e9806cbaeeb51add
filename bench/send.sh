#!/usr/bin/env bash
# Streams: a dataset of SIZE MiB in records of 128 KiB, beyond the cache, sent to /dev/null and into another pool; and an increment
# of FILES small files of which 1 % changed. Ratios are to `aquifer verify` and to the write rate of the target, in the same run.
#
#   bench/send.sh           RUNS=3 rounds of SIZE=4096 MiB and FILES=100000, in which ours and zfs-fuse alternate; medians
#
# Vdevs are files in DIR (default /var/tmp). Needs root and FUSE mounts; zfs-fuse is skipped where it is not, or is in use.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3} size=${SIZE:-4096} files=${FILES:-100000}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
dir=$(mktemp -d "${DIR:-/var/tmp}/bench-send.XXXXXX")
mkdir -p "$dir"/{bin,run,results,disks,mnt}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run AQUIFER_GUESTS=

now='' peer=''
zpool() { if [ "$now" = ours ]; then "$dir/bin/zpool" "$@"; else "$fuse/sbin/zpool" "$@"; fi; }
zfs() { if [ "$now" = ours ]; then "$dir/bin/zfs" "$@"; else "$fuse/sbin/zfs" "$@"; fi; }
start() {
  now=$1
  truncate -s "$((size * 2 + 4096))M" "$dir/disks/from" "$dir/disks/to"
  if [ "$now" = zfs-fuse ]; then
    mkdir -p /var/run/zfs /var/lock/zfs
    "$fuse/sbin/zfs-fuse" -n --max-arc-size 64 >/dev/null 2>&1 & peer=$!
    for _ in $(seq 50); do "$fuse/sbin/zpool" list >/dev/null 2>&1 && break; sleep 0.2; done
  fi
  zpool create -o cachefile=none -m "$dir/mnt/from" bmfrom "$dir/disks/from"
  zpool create -o cachefile=none -m "$dir/mnt/to" bmto "$dir/disks/to"
  [ "$now" = zfs-fuse ] || "$aquifer" set zfs_arc_max=64M
}
stop() {
  zpool destroy -f bmfrom 2>/dev/null || true
  zpool destroy -f bmto 2>/dev/null || true
  [ -z "$peer" ] || { kill "$peer" 2>/dev/null; wait "$peer" 2>/dev/null || true; }
  rm -f "$dir"/disks/*
  now='' peer=''
}
end() { cd /; [ -z "$now" ] || stop; rm -rf "$dir"; }
trap end EXIT

# timed WORK COMMAND...: a line with its seconds
timed() {
  local work=$1 t
  shift
  sync
  echo 1 > /proc/sys/vm/drop_caches
  t=$(date +%s%N)
  "$@"
  awk -v t="$(($(date +%s%N) - t))" 'BEGIN { printf "%.3f\n", t / 1e9 }' >> "$dir/results/$now.$work"
}
# Bytes that no codec makes smaller.
noise() { openssl enc -aes-128-ctr -pass "pass:$1" -nosalt -md sha256 -in /dev/zero 2>/dev/null | head -c "$((size << 20))"; }
fill() { noise 1 > "$dir/mnt/from/big/file" || true; settled bmfrom; }
settled() { if [ "$now" = ours ]; then "$dir/bin/zpool" sync "$1"; else sync; sleep 6; fi; }
# Large writes: short ones measure the way through the mount, not the pool.
written() { noise 2 | dd of="$dir/mnt/to/own" bs=1M iflag=fullblock status=none || true; settled bmto; }
to_null() { zfs send bmfrom/big@1 > /dev/null; }
to_pool() { zfs send bmfrom/big@1 | zfs receive bmto/big; settled bmto; }
# It reads the images beside the daemon, which is idle and whose last txg is on disk.
verified() { "$aquifer" verify -q -d "$dir/disks/from" bmfrom > /dev/null; }
small() { perl -e 'for ('"$1"') { open(F, ">", "'"$dir/mnt/from/small"'/f$_") or die $!; print F "'"$2"'" x 3000; close F }'; settled bmfrom; }
full() { zfs send bmfrom/small@1 > /dev/null; }
change() { zfs send -i bmfrom/small@1 bmfrom/small@2 > /dev/null; }

round() {
  start "$1"
  zfs create bmfrom/big
  zfs create bmfrom/small
  fill
  zfs snapshot bmfrom/big@1
  [ "$now" = zfs-fuse ] || timed verify verified
  timed send to_null
  timed write written
  rm "$dir/mnt/to/own"
  settled bmto
  timed replicate to_pool
  small "1..$files" a
  zfs snapshot bmfrom/small@1
  small "map { \$_ * 100 } 1..$((files / 100))" b
  zfs snapshot bmfrom/small@2
  timed full full
  timed change change
  stop
}

all=(ours)
if [ -x "$fuse/sbin/zfs-fuse" ] && ! "$fuse/sbin/zpool" list >/dev/null 2>&1; then all+=(zfs-fuse); else say "without zfs-fuse"; fi
for n in $(seq "$runs"); do
  for where in "${all[@]}"; do
    say "round $n of $runs: $where"
    round "$where"
  done
done

median() { { sort -n "$dir/results/$1" 2>/dev/null || true; } | awk '{ a[NR] = $1 } END { print NR ? a[int((NR + 1) / 2)] : "-" }'; }
over() { awk -v a="$1" -v b="$2" 'BEGIN { if (a == "-" || b == "-" || b == 0) print "-"; else printf "%.2f\n", a / b }'; }
printf '%-34s %10s %10s %8s\n' "work, seconds" ours zfs-fuse ratio
for work in verify send write replicate full change; do
  a=$(median "ours.$work") b=$(median "zfs-fuse.$work")
  printf '%-34s %10s %10s %8s\n' "$work" "$a" "$b" "$(over "$b" "$a")"
done
echo "send at $(over "$(median ours.verify)" "$(median ours.send)") of the rate of verify (target 0.8)"
echo "send | receive at $(over "$(median ours.write)" "$(median ours.replicate)") of the write rate of the target pool (target 0.6)"
echo "an increment of 1 % of $files files takes $(over "$(median ours.change)" "$(median ours.full)") of the time of the full stream"
