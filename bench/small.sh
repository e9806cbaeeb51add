#!/usr/bin/env bash
# Small operations through mounts: 3 kB files created, looked up, removed; writes of 4 KiB. Operations a second, processor
# time and sleeps of the daemon per operation: the last two depend little on what else the machine does.
#
#   bench/small.sh          RUNS=3 rounds of FILES=10000, in which ours, the transport alone and zfs-fuse alternate; medians
#
# "nothing" is a file system that keeps names only, on the same transport: the limit (cargo build --release -p zfuse
# --example nothing). Vdevs are files on /dev/shm. Needs root; zfs-fuse is skipped where it is not, or is in use.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
nothing=${NOTHING:-$root/target/release/examples/nothing}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3} files=${FILES:-10000}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
dir=$(mktemp -d /dev/shm/bench-small.XXXXXX)
mkdir -p "$dir"/{bin,run,results,disks} "$dir"/mnt/{ours,nothing,zfs-fuse}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run

daemon=
stop() {
  case $1 in
    ours) "$dir/bin/zpool" destroy -f bmsmall 2>/dev/null || true ;;
    nothing) umount "$dir/mnt/nothing" 2>/dev/null || true ;;
    zfs-fuse) "$fuse/sbin/zpool" destroy -f bmsmallpeer 2>/dev/null || true ;;
  esac
  [ -z "$daemon" ] || ended "$daemon"
  daemon=
  rm -f "$dir"/disks/*
}
# Ends a process and waits until it is gone: the next zfs-fuse does not start while one has the socket.
ended() {
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$1" 2>/dev/null || return 0; sleep 0.1; done
  kill -9 "$1" 2>/dev/null || true
}
now=
end() { cd /; [ -z "$now" ] || stop "$now"; rm -rf "$dir"; }
trap end EXIT

start() {
  now=$1
  for i in 1 2 3 4; do truncate -s 1G "$dir/disks/$i"; done
  case $1 in
    ours)
      "$dir/bin/zpool" create -m "$dir/mnt/ours" bmsmall raidz "$dir"/disks/{1,2,3,4}
      daemon=$(pidof_run) ;;
    nothing)
      "$nothing" "$dir/mnt/nothing" & daemon=$!
      for _ in $(seq 50); do mountpoint -q "$dir/mnt/nothing" && return; sleep 0.1; done
      skip "the file system that does nothing was not mounted" ;;
    zfs-fuse)
      mkdir -p /var/run/zfs /var/lock/zfs
      "$fuse/sbin/zfs-fuse" -n >/dev/null 2>&1 & daemon=$!
      for _ in $(seq 50); do "$fuse/sbin/zpool" list >/dev/null 2>&1 && break; sleep 0.2; done
      # It refuses now and then, also for a pool of the round before that it still knows.
      for _ in $(seq 10); do
        "$fuse/sbin/zpool" create -f -m "$dir/mnt/zfs-fuse" bmsmallpeer raidz "$dir"/disks/{1,2,3,4} >/dev/null 2>&1 && break
        "$fuse/sbin/zpool" destroy -f bmsmallpeer 2>/dev/null || true
        sleep 0.5
      done ;;
  esac
}
# The daemon of this run directory: the process with its lock.
pidof_run() {
  local p
  for p in /proc/[0-9]*; do
    if [ "$(cat "$p/comm" 2>/dev/null)" = aquifer ] &&
      tr '\0' '\n' 2>/dev/null < "$p/environ" | grep -qx "AQUIFER_RUN=$dir/run"; then echo "${p#/proc/}"; return; fi
  done
}

cpu() { awk '{ print ($14 + $15) * 10000 }' "/proc/$daemon/stat"; }
sleeps() { { cat "/proc/$daemon"/task/*/status 2>/dev/null || true; } | awk '/^voluntary/ { n += $2 } END { print n + 0 }'; }
create() { perl -e 'for (1..'"$files"') { open(F, ">", "f$_") or die $!; syswrite(F, "x" x 3000) == 3000 or die $!; close F }'; }
look() { perl -e 'for (1..'"$files"') { -e "f$_" or die }'; }
remove() { perl -e 'for (1..'"$files"') { unlink "f$_" or die $! }'; }
writes() { dd if=/dev/urandom of=big bs=4096 count="$files" status=none; }

# measured WHERE WORK: a line of operations a second, microseconds of the daemon and sleeps of the daemon for each
measured() {
  cd "$dir/mnt/$1"
  local c s t
  c=$(cpu) s=$(sleeps) t=$(date +%s%N)
  "$2"
  t=$(($(date +%s%N) - t))
  awk -v n="$files" -v t="$t" -v c="$(($(cpu) - c))" -v s="$(($(sleeps) - s))" \
    'BEGIN { printf "%.0f %.1f %.2f\n", n * 1e9 / t, c / n, s / n }' >> "$dir/results/$1.$2"
  cd /
}

all=(ours)
[ -x "$nothing" ] && all+=(nothing) || say "without the limit: $nothing is not built"
if [ -x "$fuse/sbin/zfs-fuse" ] && ! "$fuse/sbin/zpool" list >/dev/null 2>&1; then all+=(zfs-fuse); else say "without zfs-fuse"; fi
for round in $(seq "$runs"); do
  for where in "${all[@]}"; do
    say "round $round of $runs: $where"
    start "$where"
    measured "$where" create
    echo 2 > /proc/sys/vm/drop_caches
    measured "$where" look
    measured "$where" remove
    measured "$where" writes
    stop "$where"
    now=
  done
done

median() { cut -d' ' -f"$2" "$dir/results/$1" | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
printf '%-10s %-10s %10s %12s %10s\n' work where 'ops/s' 'daemon us' sleeps
for work in create look remove writes; do
  for where in "${all[@]}"; do
    file=$where.$work
    printf '%-10s %-10s %10s %12s %10s\n' "$work" "$where" "$(median "$file" 1)" "$(median "$file" 2)" "$(median "$file" 3)"
  done
done
