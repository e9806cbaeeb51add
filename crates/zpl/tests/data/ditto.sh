#!/bin/sh
# Makes ditto.tar.zst with zfs-fuse (root): a pool of version 23 whose dedup table has entries with a ditto copy, which later
# versions no longer write. Arguments: the folder of zfs-fuse, and an empty one.
set -eu
fuse=$1 dir=$2 target=$(cd "$(dirname "$0")" && pwd)/ditto.tar.zst
mkdir -p /var/run/zfs /var/lock/zfs "$dir/ditto" "$dir/mnt"
"$fuse/sbin/zfs-fuse" -n & daemon=$!
trap 'kill $daemon' EXIT
sleep 3
zpool() { "$fuse/sbin/zpool" "$@"; }
zfs() { "$fuse/sbin/zfs" "$@"; }
# Blocks of one letter, in this order.
blocks() { for letter in $(echo "$1" | fold -w1); do head -c 4096 /dev/zero | tr '\0' "$letter"; done; }
repeat() { for _ in $(seq "$1"); do blocks "$2"; done; }
# A copy is added by the first write in a txg after the references reach the number.
txg() { zfs snapshot ditto@txg; zfs destroy ditto@txg; }

truncate -s 64M "$dir/ditto/disk1"
zpool create -m "$dir/mnt" ditto "$dir/ditto/disk1"
zpool set dedupditto=100 ditto
zfs set dedup=on ditto
zfs set recordsize=4k ditto
zfs set atime=off ditto
repeat 60 A >"$dir/mnt/first"; txg
repeat 60 AB >"$dir/mnt/second"; txg
{ repeat 50 AB; blocks C; } >"$dir/mnt/third"; txg
zfs snapshot ditto@kept
zpool export ditto
tar -C "$dir" -c ditto | zstd -19 -f -o "$target"
