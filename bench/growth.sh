#!/usr/bin/env bash
# The cost of an operation as the work grows, through a mount: processor time of the daemon for each operation, operations a second, and the
# daemon's highest RssAnon. The first and the last do not depend on what else the machine does.
#
#   bench/growth.sh [ROW…]
#
# Rows: "one" (COUNTS files in one directory), "many" (the same in directories of 1,000), "snapshots" (SNAPSHOTS of one file system, 4 KiB
# changed before each), "full" (a pool filled to 10 … 90 %, its files rewritten at random places), "cores" (all of it on one processor, then on two).
# Files have BYTES=3000. Look-ups come after an import: no cache contains a name. zfs_arc_max is 64M and zfs_dirty_data_max 128M, for which
# docs/memory.md promises 320 MiB. Vdevs are files in DIR (default /dev/shm). Needs root.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
bytes=${BYTES:-3000}
read -ra counts <<< "${COUNTS:-10000 100000 1000000}"
read -ra snapshots <<< "${SNAPSHOTS:-1 10 100 1000 10000}"

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
dir=$(mktemp -d "${DIR:-/dev/shm}/bench-growth.XXXXXX")
mkdir -p "$dir"/{bin,run,disks,mnt}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
printf 'zfs_arc_max = 64M\nzfs_dirty_data_max = 128M\n' > "$dir/conf"
export AQUIFER_RUN=$dir/run AQUIFER_CONF=$dir/conf AQUIFER_GUESTS= PATH=$dir/bin:$PATH

stop() { cd /; zpool destroy -f bmgrowth 2>/dev/null || true; rm -f "$dir"/disks/*; }
trap 'stop; rm -rf "$dir"' EXIT
# start SIZE [ARGUMENTS…]: an empty pool of one file
start() {
  truncate -s "$1" "$dir/disks/1"; shift
  zpool create -o cachefile=none -m "$dir/mnt" "$@" bmgrowth "$dir/disks/1"
  cd "$dir/mnt"
}
again() {
  cd /
  zpool export bmgrowth
  zpool import -o cachefile=none -d "$dir/disks" bmgrowth
  echo 3 > /proc/sys/vm/drop_caches
  cd "$dir/mnt"
}
daemon() { cat "$dir/run/lock"; }
cpu() { awk '{ print ($14 + $15) * 10000 }' "/proc/$(daemon)/stat"; }
rss() { awk '/RssAnon/ { print int($2 / 1024) }' "/proc/$(daemon)/status" 2>/dev/null || echo 0; }

# measured ROW SIZE WORK OPERATIONS COMMAND…: a line. What a command has changed is on disk before the processor time is read.
measured() {
  local row=$1 size=$2 work=$3 n=$4 c t peak=0 now command; shift 4
  c=$(cpu) t=$(date +%s%N)
  "$@" > "$dir/said" 2>&1 & command=$!
  while kill -0 $command 2>/dev/null; do
    now=$(rss)
    if [ "$now" -gt $peak ]; then peak=$now; fi
    sleep 0.1
  done
  wait $command || { cat "$dir/said" >&2; return 1; }
  t=$(($(date +%s%N) - t))
  zpool sync bmgrowth
  awk -v row="$row" -v size="$size" -v work="$work" -v n="$n" -v t="$t" -v c="$(($(cpu) - c))" -v peak="$peak" \
    'BEGIN { printf "%-10s %9s %-10s %12.0f %12.2f %9d\n", row, size, work, n * 1e9 / t, c / n, peak }'
}

# PLACE is the name of the file of number $_.
place() { if [ "$1" = one ]; then echo '"f$_"'; else echo '"d" . int($_ / 1000) . "/f$_"'; fi; }
create() {
  [ "$1" = one ] || perl -e 'for (0..'"$2"' / 1000) { mkdir "d$_" or die $! }'
  perl -e 'my $data = "x" x '"$bytes"'; for (1..'"$2"') { open(F, ">", '"$(place "$1")"') or die $!; syswrite(F, $data) == length $data or die $!; close F }'
}
look() { perl -e 'for (1..'"$2"') { -e '"$(place "$1")"' or die $! }'; }
remove() { perl -e 'for (1..'"$2"') { unlink '"$(place "$1")"' or die $! }'; }
files() {
  local row=$1 count
  for count in "${counts[@]}"; do
    say "$row: $count files"
    start "$((count * (bytes + 3000) / 1000000 + 2048))M"
    measured "$row" "$count" create "$count" create "$row" "$count"
    again
    measured "$row" "$count" look "$count" look "$row" "$count"
    measured "$row" "$count" list "$count" find . -name nothing
    measured "$row" "$count" remove "$count" remove "$row" "$count"
    stop
  done
}
# rewrite WORK FILE MIB N: N pieces of 8 KiB at random places of a file
rewrite() {
  perl -e 'srand(1); open(F, "+<", "'"$1"'") or die $!; for (1..'"$3"') { sysseek(F, 8192 * int(rand('"$2"' * 128)), 0); syswrite(F, pack("L*", map { rand(4294967295) } 1..2048)) == 8192 or die $! }'
}
noise() { { openssl enc -aes-128-ctr -pass "pass:$1" -nosalt -md sha256 -in /dev/zero 2>/dev/null || true; } | head -c "$(($2 << 20))"; }
taken() { for i in $(seq "$1" "$2"); do echo "$i" | dd of=changing bs=4096 seek=$((i % 4096)) conv=notrunc status=none; zfs snapshot "bmgrowth@s$i"; done; }
of_snapshots() {
  local before=0 count
  start 8G -O recordsize=4K
  noise 1 16 > changing
  for count in "${snapshots[@]}"; do
    say "$count snapshots"
    measured snapshots "$count" snapshot "$((count - before))" taken "$((before + 1))" "$count"
    measured snapshots "$count" rewrite 2000 rewrite changing 16 2000
    measured snapshots "$count" list "$count" zfs list -t snapshot
    before=$count
  done
  again
  measured snapshots "$before" destroy "$before" zfs destroy "bmgrowth@s1%s$before"
  stop
}
full() {
  local percent size
  start 4G -O recordsize=8K
  noise 0 256 > changing
  for percent in 10 30 50 70 90; do
    say "$percent % full"
    while size=$((percent * 40 - $(zpool list -Hpo allocated bmgrowth) / 1048576)); [ "$size" -gt 16 ]; do
      noise "$percent" "$((size / 2 + 8))" > "fill$percent.$size"
      zpool sync bmgrowth
    done
    measured full "$(zpool list -Hpo capacity bmgrowth)%" rewrite 20000 rewrite changing 256 20000
    measured full "$(zpool list -Hpo fragmentation bmgrowth)%frag" create 5000 create one 5000
    measured full "" remove 5000 remove one 5000
  done
  stop
}
on_cores() {
  local cores
  for cores in 0 0,1; do
    taskset -pc "$cores" $$ >/dev/null
    start 8G
    measured cores "$cores" create 20000 create one 20000
    measured cores "$cores" remove 20000 remove one 20000
    noise 2 1024 > "$dir/disks/noise"
    measured cores "$cores" write-MiB 1024 dd if="$dir/disks/noise" of=large bs=1M conv=fsync
    rm "$dir/disks/noise"
    again
    measured cores "$cores" read-MiB 1024 dd if=large of=/dev/null bs=1M
    stop
    for _ in $(seq 50); do [ -e "$dir/run/lock" ] && kill -0 "$(daemon)" 2>/dev/null || break; sleep 0.1; done
  done
  taskset -pc "0-$(($(nproc) - 1))" $$ >/dev/null
}

rows=("$@")
[ $# -gt 0 ] || rows=(one many snapshots full cores)
printf '%-10s %9s %-10s %12s %12s %9s\n' row size work 'a second' 'daemon us' 'peak MiB'
for row in "${rows[@]}"; do
  case $row in
    one | many) files "$row" ;;
    snapshots) of_snapshots ;;
    full) full ;;
    cores) on_cores ;;
    *) skip "unknown row $row" ;;
  esac
done
