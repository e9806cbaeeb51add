#!/usr/bin/env bash
# tests/scale.sh BINARY N: times and memory of commands on a pool with N file systems, each with two snapshots (docs/scale.md). By hand.
#
# Prints for each command: exit code, CPU and wall seconds, the daemon's highest RssAnon during it and the one after it in MiB. Ends with the real
# zdb, if there is one.
set -uo pipefail
binary=$(realpath "${1:?the aquifer binary}")
count=${2:?the number of file systems}
work=$(mktemp -d "${TMPDIR:-/tmp}/aquifer-scale.XXXXXX")
mkdir -m 700 "$work/run" && mkdir "$work/images"
export AQUIFER_RUN=$work/run AQUIFER_CONF=$work/conf AQUIFER_GUESTS=
printf 'zfs_arc_max = 64M\nzfs_dirty_data_max = 128M\n' > "$AQUIFER_CONF"
truncate -s 8G "$work/images/disk"
zfs() { "$binary" zfs "$@"; }
zpool() { "$binary" zpool "$@"; }
pool=scale$count
zpool create -O mountpoint=none "$pool" "$work/images/disk" || exit 1
# The daemon writes its process id into the file that it locks.
pid=$(cat "$AQUIFER_RUN/lock")
cpu() { awk '{print ($14 + $15) / 100}' "/proc/$pid/stat"; }
rss() { awk '/RssAnon/ {print int($2 / 1024)}' "/proc/$pid/status"; }
step() {
  local name=$1 peak=0 now begin start
  shift
  begin=$(cpu) start=$(date +%s.%N)
  "$@" > "$work/out" 2>&1 &
  local command=$!
  while kill -0 $command 2>/dev/null; do
    now=$(rss)
    [ "${now:-0}" -gt $peak ] && peak=$now
    sleep 0.1
  done
  wait $command
  echo "$name: exit=$? cpu=$(echo "$(cpu) - $begin" | bc) wall=$(echo "$(date +%s.%N) - $start" | bc) peak=$peak after=$(rss)"
}
create() { seq "$count" | xargs -P 6 -I{} "$binary" zfs create "$pool/d{}"; }
step create create
step 'snapshot -r' zfs snapshot -r "$pool@a"
step 'snapshot -r, again' zfs snapshot -r "$pool@b"
step 'list -t snapshot' zfs list -t snapshot
step 'get -r used' zfs get -r used "$pool"
step 'destroy -r @a' zfs destroy -r "$pool@a"
# Without a pool the daemon would exit.
truncate -s 100M "$work/other"
zpool create -O mountpoint=none "${pool}b" "$work/other"
step export zpool export "$pool"
step import zpool import -d "$work/images" "$pool"
step list zfs list -r -o name,used,refer "$pool"
step 'destroy -r' zfs destroy -r "$pool"
zpool destroy "${pool}b"
zpool export "$pool"
if command -v zdb > /dev/null; then
  zdb -e -p "$work/images" -bcc "$pool" > "$work/zdb" 2>&1
  echo "zdb: exit=$?"
  grep -iE 'leak|error' "$work/zdb"
fi
rm -rf "$work"
