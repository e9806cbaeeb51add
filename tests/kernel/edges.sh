# Sourced in the guest: rarer states of a kernel's pool, for the host to carry to their end. A pool's folder may hold `force` (it was
# not exported), `key` (the key of its encrypted datasets), `volume` (the hash of its volume) and `errors` (what a scrub still reports).
. /share/jobs.sh
BYTES=9000000

# Two crashes amid a removal: of the second of two disks, whose blocks lie in the first one's mapping, with encrypted, deduplicated and
# cloned blocks.
new e-removals 4 200 @1-4 -O dedup=off
param zfs_bclone_enabled 1
secret e-removals/secret -o mountpoint="$mnt/e-removals/secret"; cp "$mnt/e-removals/large" "$mnt/e-removals/secret/"
zfs create -o dedup=on -o mountpoint="$mnt/e-removals/twice" e-removals/twice
cp "$mnt/e-removals/rand" "$mnt/e-removals/twice/1"; cp "$mnt/e-removals/rand" "$mnt/e-removals/twice/2"
cp --reflink=auto "$mnt/e-removals/large" "$mnt/e-removals/cloned"; zfs snapshot -r e-removals@one; zpool sync e-removals
zpool remove -w e-removals "$(disk e-removals 4)"; rm "$mnt/e-removals/large"; zpool sync e-removals
param zfs_remove_max_segment 131072; param zfs_removal_suspend_progress 1
zpool remove e-removals "$(disk e-removals 3)"; param zfs_removal_suspend_progress 0; sleep 0.1; param zfs_removal_suspend_progress 1
rm "$mnt/e-removals/twice/1"; meanwhile e-removals
manifest "$mnt/e-removals/secret" > "$begun/e-removals/manifest.secret"; manifest "$mnt/e-removals/twice" > "$begun/e-removals/manifest.twice"
crash e-removals
param zfs_removal_suspend_progress 0

# A crash amid an expansion, during which a disk went offline.
new e-expand 6 150 raidz2 @1-5
param raidz_expand_max_reflow_bytes 3000000
zpool attach e-expand raidz2-0 "$(disk e-expand 6)"; sleep 3
zpool offline e-expand "$(disk e-expand 2)"; meanwhile e-expand; zpool online e-expand "$(disk e-expand 2)"; zpool offline e-expand "$(disk e-expand 6)"
zpool online e-expand "$(disk e-expand 6)"; head -c 2000000 /dev/urandom > "$mnt/e-expand/during"; zpool status e-expand | grep -q 'expan' || echo "FAIL  e-expand does not expand"
crash e-expand
param raidz_expand_max_reflow_bytes 0

# An expansion begun on a vdev that was expanded before, with blocks of both widths, and a snapshot.
new e-expands 6 150 raidz1 @1-4
zpool attach -w e-expands raidz1-0 "$(disk e-expands 5)"; zfs snapshot e-expands@one; head -c 5000000 /dev/urandom > "$mnt/e-expands/wide"
param raidz_expand_max_reflow_bytes 6000000
zpool attach e-expands raidz1-0 "$(disk e-expands 6)"; sleep 3; meanwhile e-expands; leave e-expands 'expan'
param raidz_expand_max_reflow_bytes 0

# A resilver waits for the end of another one.
new e-defer 6 150 raidz2 @1-4
BYTES=9000000
param zfs_scan_suspend_progress 1
zpool replace e-defer "$(disk e-defer 1)" "$(disk e-defer 5)"
with zfs_resilver_defer_percent 0 zpool replace e-defer "$(disk e-defer 2)" "$(disk e-defer 6)"
meanwhile e-defer; leave e-defer 'resilver'

# A scrub of the error log, of a pool with errors in a file, a snapshot, and an encrypted file.
new e-errors 1 200 @1
secret e-errors/secret -o mountpoint="$mnt/e-errors/secret"; head -c 3000000 /dev/urandom > "$mnt/e-errors/secret/file"
zfs snapshot e-errors@one; zpool sync e-errors
param zfs_scan_suspend_progress 0
# A name of a pool with a slash is that of its file system, without one that of its MOS.
blocks() { zdb -ddddd "$1" "$(stat -c %i "$2")" | awk '$2 == "L0" { split($3, dva, ":"); print dva[2] }' | head -"$3"; }
places="$(blocks e-errors/ "$mnt/e-errors/large" 3) $(blocks e-errors/ "$mnt/e-errors/rand" 1) $(blocks e-errors/secret "$mnt/e-errors/secret/file" 2)"
zpool export e-errors
for at in $places; do dd if=/dev/zero of="$(disk e-errors 1)" bs=512 seek=$((16#$at / 512 + 8192)) count=1 conv=notrunc status=none; done
zpool import -d "$begun/e-errors" e-errors; zfs load-key e-errors/secret < "$begun/e-errors/key"; zfs mount e-errors/secret
zpool scrub -w e-errors
param zfs_scan_suspend_progress 1; zpool scrub -e e-errors; zpool scrub -p e-errors
rm "$mnt/e-errors/rand"; zpool sync e-errors
zpool status -v e-errors | sed -n '/^errors:/,$p' > "$begun/e-errors/errors"
zpool export e-errors && echo "begun e-errors"

# A scrub that was paused, over encrypted, deduplicated and cloned blocks, with a clone and snapshots removed since.
new e-paused 3 200 raidz1 @1-3
secret e-paused/secret -o mountpoint="$mnt/e-paused/secret"; cp "$mnt/e-paused/large" "$mnt/e-paused/secret/"
zfs snapshot -r e-paused@one; zfs clone -o mountpoint=none e-paused@one e-paused/clone; zpool sync e-paused
param zfs_scan_suspend_progress 0; zpool scrub e-paused; sleep 0.3; zpool scrub -p e-paused; param zfs_scan_suspend_progress 1
zfs destroy -r e-paused@one 2> /dev/null; zfs promote e-paused/clone; meanwhile e-paused
manifest "$mnt/e-paused/secret" > "$begun/e-paused/manifest.secret"; leave e-paused
param zfs_scan_suspend_progress 0

# A checkpoint, then a disk that was added; the checkpoint's blocks are freed in the head.
new e-checkpoint 3 200 mirror @1-2
zpool checkpoint e-checkpoint; rm "$mnt/e-checkpoint/large"; zpool add -f e-checkpoint "$(disk e-checkpoint 3)"; meanwhile e-checkpoint
crash e-checkpoint

# A crash with logs of space maps that were not flushed, a delete queue, and frees that wait.
new e-spacemaps 2 300 @1-2
param zfs_unflushed_log_txg_max 1000 2> /dev/null
for i in $(seq 12); do for f in $(seq 20); do head -c 9000 /dev/urandom > "$mnt/e-spacemaps/s$i-$f"; done; rm -f "$mnt"/e-spacemaps/s*-*[13579]; zpool sync e-spacemaps; done
exec 9> "$mnt/e-spacemaps/open"; head -c 2000000 /dev/urandom >&9; rm "$mnt/e-spacemaps/open"
zfs create e-spacemaps/gone; cp "$mnt/e-spacemaps/large" "$mnt/e-spacemaps/gone/"; zpool sync e-spacemaps
param zfs_async_block_max_blocks 5; zfs destroy e-spacemaps/gone; 
zpool sync e-spacemaps; manifest "$mnt/e-spacemaps" > "$begun/e-spacemaps/manifest"; zpool freeze e-spacemaps
rm -rf /mnt/copy; mkdir /mnt/copy; cp --sparse=always "$begun"/e-spacemaps/d* /mnt/copy/; exec 9>&-
zpool export e-spacemaps; mv /mnt/copy/d* "$begun/e-spacemaps/"; touch "$begun/e-spacemaps/force"; echo "begun e-spacemaps"
param zfs_async_block_max_blocks 18446744073709551615

# Intent logs of an encrypted dataset and of a volume, both without their replay.
new e-logs 2 200 mirror @1-2
secret e-logs/secret -o mountpoint="$mnt/e-logs/secret"; zfs create -V 20M -o volblocksize=16k e-logs/volume; sleep 2
echo old > "$mnt/e-logs/secret/old"; sync "$mnt/e-logs/secret/old"
volume=/dev/zvol/e-logs/volume; [ -e $volume ] || volume=/dev/zd0
dd if=/dev/urandom of=$volume bs=64k count=20 oflag=direct,sync status=none
# The volume stays open: a frozen pool would begin its log's numbers anew after each close.
exec 8<> $volume; zpool sync e-logs; zpool freeze e-logs
(
  umask 0; head -c 300000 /dev/urandom > "$mnt/e-logs/secret/new"; mv "$mnt/e-logs/secret/old" "$mnt/e-logs/secret/moved"; sync "$mnt/e-logs/secret/new"
)
dd if=/dev/urandom of=$volume bs=16k count=7 seek=3 oflag=direct status=none; blkdiscard -o 655360 -l 131072 $volume
dd if=/dev/urandom of=$volume bs=4k count=1 seek=100 oflag=direct conv=fsync status=none
sha256sum < $volume > "$begun/e-logs/volume"
manifest "$mnt/e-logs/secret" > "$begun/e-logs/manifest.secret"
rm -rf /mnt/copy; mkdir /mnt/copy; cp --sparse=always "$begun"/e-logs/d* /mnt/copy/
exec 8>&-; zpool export e-logs; mv /mnt/copy/d* "$begun/e-logs/"; touch "$begun/e-logs/force"; rm -f "$begun/e-logs/manifest"; echo "begun e-logs"

# Gang blocks, of 2.4 also with larger headers, one of them in a snapshot and one encrypted.
new e-gangs 3 200 raidz1 @1-3
param metaslab_force_ganging 20000; param metaslab_force_ganging_pct 100
secret e-gangs/secret -o recordsize=1M -o mountpoint="$mnt/e-gangs/secret"
head -c 9000000 /dev/urandom > "$mnt/e-gangs/gangs"; head -c 5000000 /dev/urandom > "$mnt/e-gangs/secret/gangs"; zpool sync e-gangs
zfs snapshot -r e-gangs@one; rm "$mnt/e-gangs/large"; zpool sync e-gangs; meanwhile e-gangs
param metaslab_force_ganging 16777217; param metaslab_force_ganging_pct 3
manifest "$mnt/e-gangs/secret" > "$begun/e-gangs/manifest.secret"; leave e-gangs

# A raw receive that broke off, continued without the key.
new e-raw 2 250 @1-2
secret e-raw/secret -o mountpoint=none; zfs set mountpoint="$mnt/e-raw/secret" e-raw/secret; cp "$mnt/e-raw/large" "$mnt/e-raw/secret/"
zfs snapshot e-raw/secret@one; zfs send -w e-raw/secret@one | head -c 5000000 | zfs receive -s -u e-raw/copy
manifest "$mnt/e-raw/secret" > "$begun/e-raw/manifest.secret"; leave e-raw

# A pool of version 28 with a log device, whose log was not replayed.
mkdir "$begun/e-old"; for i in 1 2 3; do truncate -s 150M "$begun/e-old/d$i"; done
zpool create -f -o version=28 -O version=5 -O mountpoint="$mnt/e-old" e-old raidz1 "$begun"/e-old/d[123]
mkdir "$mnt/e-old/d"; for i in $(seq 100); do echo $i > "$mnt/e-old/d/$i"; done; head -c 7000000 /dev/urandom > "$mnt/e-old/large"
zfs snapshot e-old@one; zfs clone -o mountpoint=none e-old@one e-old/clone; echo x > "$mnt/e-old/x"; sync "$mnt/e-old/x"; crash e-old

# A disk that left and came back stale while the spare was in its place.
new e-stale 6 150 raidz2 @1-5 spare @6
zpool offline e-stale "$(disk e-stale 1)"; meanwhile e-stale
param zfs_scan_suspend_progress 1
zpool replace e-stale "$(disk e-stale 1)" "$(disk e-stale 6)"; zpool online e-stale "$(disk e-stale 1)"; head -c 2000000 /dev/urandom > "$mnt/e-stale/during"; leave e-stale
param zfs_scan_suspend_progress 0

# A log of a dedup table that was left, with a quota that is full, and blocks that were pruned.
new e-dedup 2 200 @1-2 -O dedup=on -O recordsize=8k
param zfs_dedup_log_flush_txgs 100000
zpool set dedup_table_quota=200k e-dedup; head -c 12000000 /dev/urandom > "$mnt/e-dedup/quota"; cp "$mnt/e-dedup/quota" "$mnt/e-dedup/again"; zpool sync e-dedup
zpool ddtprune -p 30 e-dedup; rm "$mnt/e-dedup/again"; meanwhile e-dedup; crash e-dedup
param zfs_dedup_log_flush_txgs 100

keep
