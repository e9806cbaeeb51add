#!/usr/bin/env bash
# Speed of a mount, compared with peers in the same run: ours, zfs-fuse (the other ZFS without a kernel module), ext4 on a loop device.
#
#   bench/mounts.sh           RUNS=3 rounds, in which they alternate; the median of each figure is printed
#
# Each has one file of 8 GiB on the same disk, with its defaults. Cold reads follow an unmount and an import.
# Needs root.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${BENCH_DIR:-$root/target/bench}/mounts
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3}
mib=${MIB:-1024}
aquifer=${AQUIFER:-$root/target/release/aquifer}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$fuse/sbin/zfs-fuse" ] || skip "zfs-fuse is not there: bench/run.sh fetches it"

rm -rf "$dir"
mkdir -p "$dir"/{bin,run,results} "$dir"/mnt/{ours,zfs-fuse,ext4}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run
ours() { "$dir/bin/$1" "${@:2}"; }
peer() { "$fuse/sbin/$1" "${@:2}"; }

peer_daemon=
end() {
  cd /
  ours zpool destroy -f bmours 2>/dev/null || true
  peer zpool destroy -f bmpeer 2>/dev/null || true
  umount "$dir/mnt/ext4" 2>/dev/null || true
  [ -z "$peer_daemon" ] || kill "$peer_daemon" 2>/dev/null || true
  rm -rf "$dir"
}
trap end EXIT
if ! peer zpool list >/dev/null 2>&1; then
  mkdir -p /var/run/zfs /var/lock/zfs
  "$fuse/sbin/zfs-fuse" -n >/dev/null 2>&1 &
  peer_daemon=$!
  for _ in $(seq 50); do peer zpool list >/dev/null 2>&1 && break; sleep 0.2; done
fi

for name in ours peer ext4; do mkdir "$dir/$name"; truncate -s 8G "$dir/$name/disk"; done
ours zpool create -m "$dir/mnt/ours" bmours "$dir/ours/disk"
peer zpool create -f -m "$dir/mnt/zfs-fuse" bmpeer "$dir/peer/disk"
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$dir/ext4/disk"
mount -o loop "$dir/ext4/disk" "$dir/mnt/ext4"

# Afterwards no cache contains any of it.
cold() {
  sync
  case $1 in
    ours) ours zpool export bmours; ours zpool import -d "$dir/ours" bmours ;;
    zfs-fuse) peer zpool export bmpeer; peer zpool import -d "$dir/peer" bmpeer ;;
    ext4) umount "$dir/mnt/ext4"; mount -o loop "$dir/ext4/disk" "$dir/mnt/ext4" ;;
  esac
  echo 3 > /proc/sys/vm/drop_caches
}

TIMEFORMAT=%R
# timed FILE SYSTEM WORK COMMAND...: in the file system's folder
timed() {
  local where=$1 work=$2; shift 2
  cd "$dir/mnt/$where"
  { time "$@" >/dev/null 2>"$dir/results/err"; } 2>> "$dir/results/$where.$work" || { cat "$dir/results/err" >&2; exit 1; }
  cd /
}
new_files() { perl -e 'mkdir "new"; for (1..5000) { open(F, ">new/f$_") or die; print F "x" x 1000; close F }'; }
small_writes() { dd if=/dev/zero of=small bs=4k count=50000 conv=fsync status=none; }
large_write() { dd if="$dir/random" of=large bs=1M conv=fsync status=none; }
synced() { dd if="$dir/random" of=synced bs=4k count=500 oflag=dsync status=none; }
rewrites() { perl -e 'open(F, "+<", "large") or die; for (1..4000) { sysseek(F, 8192 * int(rand('"$mib"' * 128)), 0); syswrite(F, "y" x 8192) == 8192 or die } '; sync -f large; }
read_large() { dd if=large of=/dev/null bs=1M status=none; }

say "making the data"
dd if=/dev/urandom of="$dir/random" bs=1M count="$mib" status=none
tar -C / -cf "$dir/tree.tar" usr/include usr/share/doc
files=$(tar -tf "$dir/tree.tar" | wc -l)
for round in $(seq "$runs"); do
  for where in ours zfs-fuse ext4; do
    say "round $round of $runs: $where"
    timed $where tar tar -xf "$dir/tree.tar"
    cold $where
    timed $where find find . -size +100k
    timed $where find-again find . -size +100k
    timed $where rm rm -r usr
    timed $where new new_files
    timed $where small small_writes
    timed $where large large_write
    timed $where synced synced
    timed $where rewrites rewrites
    cold $where
    timed $where read read_large
    timed $where read-again read_large
    rm -r "$dir/mnt/$where"/{new,small,large,synced}
    sync
  done
done

median() { sort -n "$dir/results/$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
echo
printf '%-44s %8s %9s %8s %14s %10s\n' 'seconds (median)' ours zfs-fuse ext4 'zfs-fuse/ours' 'ext4/ours'
row() {
  local a b c; a=$(median "ours.$1") b=$(median "zfs-fuse.$1") c=$(median "ext4.$1")
  printf '%-44s %8s %9s %8s %14s %10s\n' "$2" "$a" "$b" "$c" "$(awk "BEGIN { printf \"%.2f\", $b / $a }")" "$(awk "BEGIN { printf \"%.2f\", $c / $a }")"
}
row tar "tar x of $files files and folders"
row find 'find -size over them, cold'
row find-again 'the same again'
row rm 'rm -r'
row new '5,000 new files of 1,000 bytes'
row small '50,000 writes of 4 KiB, fsync'
row large "$mib MiB written, fsync"
row synced '500 synchronous writes of 4 KiB'
row rewrites '4,000 rewrites of 8 KiB, sync'
row read "$mib MiB read, cold"
row read-again 'the same again'
