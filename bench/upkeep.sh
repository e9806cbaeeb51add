#!/usr/bin/env bash
# A pool's upkeep: scrub, resilver and expansion of a raidz2 of six files with SIZE MiB of incompressible files, and the speed of other
# work meanwhile. Ratios are to the devices by themselves, in the same run.
#
#   bench/upkeep.sh         RUNS=3 rounds of SIZE=20480 MiB, in which ours and zfs-fuse alternate; medians
#
# "scrub": the time of reading all allocated bytes of the device files (one dd for each at once), divided by the scrub's. "resilver":
# the time of writing as many bytes as the new device gets, with fdatasync, divided by that of `zpool replace`. "expand": the same
# for the bytes of the whole pool and `zpool attach`. "reads" and "fsync": random reads of 8 KiB and synchronous appends of 64 KiB,
# during the job divided by before.
#
# Vdevs are files in DIR (default /var/tmp), which needs 2.2 x SIZE and 8 GiB. Needs root and FUSE mounts; zfs-fuse is skipped where it is
# not, or is in use.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3} size=${SIZE:-20480} seconds=${SECONDS_EACH:-5}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
dir=$(mktemp -d "${DIR:-/var/tmp}/bench-upkeep.XXXXXX")
mkdir -p "$dir"/{bin,run,results,disks,mnt}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run AQUIFER_GUESTS=

now='' peer=''
zpool() { if [ "$now" = ours ]; then "$dir/bin/zpool" "$@"; else "$fuse/sbin/zpool" "$@"; fi; }
start() {
  now=$1
  for i in 1 2 3 4 5 6 new more; do truncate -s "$((size / 4 * 5 / 4 + 512))M" "$dir/disks/$i"; done
  if [ "$now" = zfs-fuse ]; then
    mkdir -p /var/run/zfs /var/lock/zfs
    "$fuse/sbin/zfs-fuse" -n >/dev/null 2>&1 & peer=$!
    for _ in $(seq 50); do "$fuse/sbin/zpool" list >/dev/null 2>&1 && break; sleep 0.2; done
  fi
  zpool create -o cachefile=none -m "$dir/mnt" bmupkeep raidz2 "$dir"/disks/{1,2,3,4,5,6}
}
stop() {
  zpool destroy -f bmupkeep 2>/dev/null || true
  [ -z "$peer" ] || { kill "$peer" 2>/dev/null; wait "$peer" 2>/dev/null || true; }
  rm -f "$dir"/disks/*
  now='' peer=''
}
end() { cd /; [ -z "$now" ] || stop; rm -rf "$dir"; }
trap end EXIT

cold() { sync; echo 3 > /proc/sys/vm/drop_caches; }
# Seconds of a command, from cold caches.
took() {
  local t
  cold
  t=$(date +%s%N)
  "$@" > /dev/null
  awk -v t="$(($(date +%s%N) - t))" 'BEGIN { printf "%.3f\n", t / 1e9 }'
}
# Bytes of files that are not holes.
held() { du -B1 -c "$@" | awk 'END { print $1 }'; }
noise() { openssl enc -aes-128-ctr -pass "pass:$1" -nosalt -md sha256 -in /dev/zero 2>/dev/null | head -c "$2" || true; }
raw_read() {
  local jobs=() i
  for i in 1 2 3 4 5 6; do dd if="$dir/disks/$i" of=/dev/null bs=1M status=none & jobs+=($!); done
  wait "${jobs[@]}"
}
raw_write() { noise raw "$1" | dd of="$dir/raw" bs=1M iflag=fullblock conv=fdatasync status=none; rm -f "$dir/raw"; }
# Seconds of writing so many bytes, from the rate of at most 8 GiB: the pool leaves no space for more.
raw_write_time() {
  local part=$(($1 < 8 << 30 ? $1 : 8 << 30))
  awk -v t="$(took raw_write "$part")" -v all="$1" -v part="$part" 'BEGIN { printf "%.3f\n", t * all / part }'
}
# Returns once the scan or the reflow is over.
over() { while zpool status bmupkeep | grep -qE 'in progress|to go'; do sleep 0.2; done; }
job() { zpool "$@" && over; }
record() { echo "$3" >> "$dir/results/$1.$2"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f\n", a / b }'; }

reads() {
  perl -e 'use Time::HiRes "time"; my ($t, $n, $size) = (time + '"$seconds"', 0, -s "f1");
    open(F, "<", "f1") or die $!;
    while (time < $t) { sysseek(F, int(rand($size / 8192)) * 8192, 0); sysread(F, $b, 8192) == 8192 or die $!; $n++ }
    print int($n / '"$seconds"')'
}
appends() {
  perl -e 'use Time::HiRes "time"; use IO::Handle; my ($t, $n) = (time + '"$seconds"', 0);
    open(F, ">>", "log") or die $!;
    while (time < $t) { syswrite(F, "x" x 65536) == 65536 or die $!; F->sync or die $!; $n++ }
    print int($n / '"$seconds"')'
}
# beside JOB...: reads and appends before a job and during it
beside() {
  local name=$1 work before during
  shift
  for work in reads appends; do
    cold; before=$(cd "$dir/mnt" && "$work")
    cold; zpool "$@"
    during=$(cd "$dir/mnt" && "$work")
    if zpool status bmupkeep | grep -qE 'in progress|to go'; then
      record "$now" "$work-beside-$name" "$(ratio "$during" "$before")"
    else say "$name ended before $work did: SIZE is too small"; fi
    over
    # The next job of this kind needs another device.
    [ "$name" = scrub ] || return 0
  done
}
round() {
  local i raw
  start "$1"
  for i in $(seq "$((size / 1024 > 0 ? size / 1024 : 1))"); do
    noise "$i" "$((size < 1024 ? size << 20 : 1 << 30))" > "$dir/mnt/f$i"
  done
  zpool export bmupkeep && zpool import -d "$dir/disks" bmupkeep
  raw=$(took raw_read)
  record "$1" scrub "$(ratio "$raw" "$(took job scrub bmupkeep)")"
  beside scrub scrub bmupkeep
  local resilver
  resilver=$(took job replace bmupkeep "$dir/disks/6" "$dir/disks/new")
  raw=$(raw_write_time "$(held "$dir/disks/new")")
  record "$1" resilver "$(ratio "$raw" "$resilver")"
  if [ "$1" = ours ]; then
    rm -f "$dir/disks/6"; truncate -s "$((size / 4 * 5 / 4 + 512))M" "$dir/disks/6"
    beside resilver replace bmupkeep "$dir/disks/5" "$dir/disks/6"
    local all expand
    all=$(held "$dir"/disks/{1,2,3,4,6,new})
    expand=$(took job attach bmupkeep raidz2-0 "$dir/disks/more")
    raw=$(raw_write_time "$all")
    record "$1" expand "$(ratio "$raw" "$expand")"
  fi
  stop
}

all=(ours)
if [ -x "$fuse/sbin/zfs-fuse" ] && ! "$fuse/sbin/zpool" list >/dev/null 2>&1; then all+=(zfs-fuse); else say "without zfs-fuse"; fi
for number in $(seq "$runs"); do
  for where in "${all[@]}"; do
    say "round $number of $runs: $where"
    round "$where"
  done
done
printf '%-28s %-10s %8s\n' work where ratio
for file in "$dir"/results/*; do
  name=$(basename "$file")
  printf '%-28s %-10s %8s\n' "${name#*.}" "${name%%.*}" "$(sort -n "$file" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }')"
done
