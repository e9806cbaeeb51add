#!/usr/bin/env bash
# What dedup costs and wins, through mounts: ours and zfs-fuse (the other ZFS without a kernel module), each with dedup off and with
# dedup=sha256, checksum=sha256 in both cases, in turns.
#
#   bench/dedup.sh          RUNS=3 rounds, files of MIB=128, a table of ENTRIES=800000 beside a cache of ARC=16 MiB
#
# A leaf of 32 KiB of our table has some 150 entries: with these numbers the table is ten times larger than the cache. The table of
# zfs-fuse has PEER_ENTRIES=20000, which it takes minutes to make. "ratio" divides the times of dd with fsync, off by on; "by core" the processor times of the daemons, which depend
# less on what else the machine does. Vdevs are files on /dev/shm. Needs root; zfs-fuse is skipped where it is not, or is in use.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3} mib=${MIB:-128} entries=${ENTRIES:-800000} peer_entries=${PEER_ENTRIES:-20000} arc=${ARC:-16}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
dir=$(mktemp -d "${DIR:-/dev/shm}/bench-dedup.XXXXXX")
mkdir -p "$dir"/{bin,run,results} "$dir"/mnt/{ours,zfs-fuse}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run

declare -A daemon=() pool=([ours]=bmdedup [zfs-fuse]=bmpeer)
ours() { "$dir/bin/$@"; }
zfs_fuse() { "$fuse/sbin/$@"; }
# of WHERE COMMAND...: a command of that program
of() { case $1 in ours) ours "${@:2}" ;; *) zfs_fuse "${@:2}" ;; esac; }
end() {
  cd /
  ours zpool destroy -f bmdedup >/dev/null 2>&1 || true
  if [ -n "${daemon[zfs-fuse]:-}" ]; then
    # Its cache file outlives it: a pool left there would be in the way of the next run.
    zfs_fuse zpool destroy -f bmpeer >/dev/null 2>&1 || { sleep 2; zfs_fuse zpool destroy -f bmpeer >/dev/null 2>&1 || true; }
    kill "${daemon[zfs-fuse]}" 2>/dev/null || true
    wait "${daemon[zfs-fuse]}" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap end EXIT

# The daemon of this run directory.
pidof_run() {
  local p
  for p in /proc/[0-9]*; do
    if [ "$(cat "$p/comm" 2>/dev/null)" = aquifer ] &&
      { tr '\0' '\n' < "$p/environ"; } 2>/dev/null | grep -qx "AQUIFER_RUN=$dir/run"; then echo "${p#/proc/}"; return; fi
  done
}
cpu() { awk '{ print ($14 + $15) * 10 }' "/proc/${daemon[$1]}/stat"; }
resident() { awk '/^RssAnon/ { print $2 } /^VmRSS/ { all = $2 } END { if (!all) print 0 }' "/proc/${daemon[$1]}/status" | head -1; }
seed=0
# Bytes that never occur again, and do not compress.
fresh() { openssl enc -aes-128-ctr -nosalt -pass "pass:$$.$1" -md sha256 < /dev/zero 2>/dev/null | head -c "$(($2 << 20))" || true; }
settle() { case $1 in ours) ours zpool sync bmdedup ;; *) sync ;; esac; }

start() {
  truncate -s 8G "$dir/$1.disk"
  case $1 in
    ours)
      ours zpool create -m "$dir/mnt/ours" bmdedup "$dir/ours.disk"
      daemon[ours]=$(pidof_run)
      "$aquifer" set "zfs_arc_max=$((arc << 20))" > /dev/null ;;
    *)
      mkdir -p /var/run/zfs /var/lock/zfs
      "$fuse/sbin/zfs-fuse" -n -m "$arc" >/dev/null 2>&1 & daemon[zfs-fuse]=$!
      for _ in $(seq 50); do zfs_fuse zpool list >/dev/null 2>&1 && break; sleep 0.2; done
      zfs_fuse zpool create -f -m "$dir/mnt/zfs-fuse" bmpeer "$dir/zfs-fuse.disk" ;;
  esac
  of "$1" zfs set checksum=sha256 "${pool[$1]}"
}

# The table: blocks of 512 bytes.
fill() {
  local before t
  before=$(resident "$1") t=$(date +%s)
  of "$1" zfs set dedup=sha256 "${pool[$1]}"
  of "$1" zfs set recordsize=512 "${pool[$1]}"
  [ "$1" = ours ] || entries=$peer_entries
  fresh table "$((entries / 2048 + 1))" > "$dir/input"
  dd if="$dir/input" of="$dir/mnt/$1/table" bs=1M conv=fsync status=none
  for _ in 1 2 3; do settle "$1"; done
  say "$1: a table of $entries entries took $(($(date +%s) - t)) s; anonymous memory before and after: $before and $(resident "$1") KiB"
}

# measured WHERE DEDUP ROW: seconds, and milliseconds of the daemon, of one file from $dir/input
measured() {
  local c t
  of "$1" zfs set "dedup=$2" "${pool[$1]}"
  settle "$1"
  c=$(cpu "$1") t=$(date +%s%N)
  dd if="$dir/input" of="$dir/mnt/$1/$3.$2.$seed" bs=1M conv=fsync status=none
  t=$(($(date +%s%N) - t))
  settle "$1"
  echo "$t $(($(cpu "$1") - c))" >> "$dir/results/$1.$3.$2"
  rm "$dir/mnt/$1/$3.$2.$seed"
  settle "$1"
}

median() { cut -d' ' -f"$2" "$dir/results/$1" | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
row() {
  local where
  for where in "${all[@]}"; do
    awk -v what="$2" -v where="$where" -v a="$(median "$where.$1.off" 1)" -v b="$(median "$where.$1.sha256" 1)" \
      -v c="$(median "$where.$1.off" 2)" -v d="$(median "$where.$1.sha256" 2)" 'BEGIN {
        printf "%-24s %-9s %7.2f %7.2f %8.2f %8.2f %7.2f %8.2f\n", what, where, a / 1e9, b / 1e9, c / 1e3, d / 1e3, a / b, c / (d ? d : 1) }'
  done
}

all=(ours)
if [ -x "$fuse/sbin/zfs-fuse" ] && ! zfs_fuse zpool list >/dev/null 2>&1; then all+=(zfs-fuse); else say "without zfs-fuse"; fi
for where in "${all[@]}"; do start "$where"; fill "$where"; done
printf '%-24s %-9s %7s %7s %8s %8s %7s %8s\n' work where 'off s' 'on s' 'off core' 'on core' ratio 'by core'
for work in unique.128 unique.16 half.128 half.16; do
  for where in "${all[@]}"; do of "$where" zfs set "recordsize=${work#*.}K" "${pool[$where]}"; done
  for _ in $(seq "$runs"); do
    for dedup in off sha256; do
      seed=$((seed + 1))
      case $work in
        unique*) fresh "$seed" "$mib" > "$dir/input" ;;
        *) fresh "$seed" "$((mib / 2))" > "$dir/half"; cat "$dir/half" "$dir/half" > "$dir/input"; rm "$dir/half" ;;
      esac
      for where in "${all[@]}"; do measured "$where" "$dedup" "$work"; done
    done
  done
  row "$work" "${work%.*}, ${work#*.}K"
done

# A large deduplicated file goes.
fresh large "$((mib * 4))" > "$dir/input"
for where in "${all[@]}"; do
  of "$where" zfs set dedup=sha256 "${pool[$where]}"
  of "$where" zfs set recordsize=16K "${pool[$where]}"
  dd if="$dir/input" of="$dir/mnt/$where/large" bs=1M conv=fsync status=none
  settle "$where"
  used=$(of "$where" zpool list -H -p -o allocated "${pool[$where]}" 2>/dev/null || of "$where" zpool list -H -o alloc "${pool[$where]}")
  t=$(date +%s%N)
  rm "$dir/mnt/$where/large"
  returned=$(($(date +%s%N) - t))
  settle "$where"
  freed=
  if [ "$where" = ours ]; then
    for _ in $(seq 600); do
      now=$(ours zpool list -H -p -o allocated bmdedup)
      if [ "$((used - now))" -gt "$(((mib * 4 << 20) * 9 / 10))" ]; then freed=$(($(date +%s%N) - t)); break; fi
      sleep 0.05
    done
  else
    freed=$(($(date +%s%N) - t))
  fi
  awk -v where="$where" -v mib="$((mib * 4))" -v a="$returned" -v b="${freed:-0}" \
    'BEGIN { printf "%s: rm of %d MiB in blocks of 16K returns in %.3f s, free after %.2f s\n", where, mib, a / 1e9, b / 1e9 }'
done
