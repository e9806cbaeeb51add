# Sourced in the guest: pools with work that the kernel began and left undone, for the host to carry to its end.
. /share/jobs.sh

# Two disks of a raidz2 are copied at once.
new b-resilver 8 150 raidz2 @1-6
param zfs_scan_suspend_progress 1
zpool replace b-resilver "$(disk b-resilver 2)" "$(disk b-resilver 7)"; zpool replace b-resilver "$(disk b-resilver 3)" "$(disk b-resilver 8)"
param zfs_scan_suspend_progress 0; sleep 2; param zfs_scan_suspend_progress 1
meanwhile b-resilver; leave b-resilver 'resilver'

# A scrub that waits.
new b-scrub 3 150 raidz1 @1-3
zpool scrub b-scrub; meanwhile b-scrub; leave b-scrub 'scrub in progress'

# A distributed spare takes over while a scrub waits.
new b-draid 7 150 draid2:3d:7c:1s @1-7
zpool offline -f b-draid "$(disk b-draid 3)"
zpool replace b-draid "$(disk b-draid 3)" draid2-0-0; meanwhile b-draid; leave b-draid 'spare'

# A spare of a raidz1 that is itself replaced.
new b-spare 6 150 raidz1 @1-4 spare @5
zpool offline -f b-spare "$(disk b-spare 2)"
zpool replace b-spare "$(disk b-spare 2)" "$(disk b-spare 5)"; sleep 1; zpool replace b-spare "$(disk b-spare 2)" "$(disk b-spare 6)"
meanwhile b-spare; leave b-spare 'spare-1'
param zfs_scan_suspend_progress 0

# Expansions: in the area that is moved through the scratch space, and later.
new b-expand2 6 150 raidz2 @1-5
param raidz_expand_max_reflow_bytes 4000000
zpool attach b-expand2 raidz2-0 "$(disk b-expand2 6)"; sleep 3; meanwhile b-expand2; leave b-expand2 'expan'
new b-expand3 7 150 raidz3 @1-6
param raidz_expand_max_reflow_bytes 1
zpool attach b-expand3 raidz3-0 "$(disk b-expand3 7)"; sleep 2; meanwhile b-expand3; leave b-expand3 'expan'
param raidz_expand_max_reflow_bytes 0

# A mirror leaves, with snapshots and a clone of what it has.
new b-removal 4 200 mirror @1-2 mirror @3-4
zfs snapshot b-removal@one; zfs clone -o mountpoint=none b-removal@one b-removal/clone; meanwhile b-removal; zfs snapshot b-removal@two
param zfs_remove_max_segment 131072; param zfs_removal_suspend_progress 1
zpool remove b-removal mirror-1; param zfs_removal_suspend_progress 0; sleep 0.05; param zfs_removal_suspend_progress 1
rm "$mnt/b-removal/large"; zfs destroy b-removal@one 2> /dev/null; zfs destroy b-removal@two; sync -f "$mnt/b-removal"
leave b-removal 'Evacuation'
param zfs_removal_suspend_progress 0

# The mapping of a removed disk is condensed.
new b-condense 3 200 @1-3
for i in $(seq 200); do head -c 40000 /dev/urandom > "$mnt/b-condense/c$i"; done
zpool remove -w b-condense "$(disk b-condense 3)"
param zfs_condense_min_mapping_bytes 1; param zfs_condense_indirect_obsolete_pct 1; param zfs_condense_indirect_commit_entry_delay_ms 500
rm "$mnt"/b-condense/c*[02468]; zpool sync b-condense; sleep 3; zpool sync b-condense; leave b-condense 'remove'
param zfs_condense_indirect_commit_entry_delay_ms 0

# One disk is initialized, one was being trimmed.
new b-free 3 200 mirror @1-3
param zfs_initialize_chunk_size 65536
zpool initialize b-free "$(disk b-free 1)"; zpool initialize -s b-free "$(disk b-free 1)"
zpool trim -r 1M b-free "$(disk b-free 2)"; sleep 1; zpool trim -s b-free "$(disk b-free 2)"
zpool initialize b-free "$(disk b-free 3)"; meanwhile b-free; leave b-free

# Datasets that are freed: many files, and a clone with a list of its blocks.
new b-freeing 2 200 @1-2
zfs create b-freeing/many; for i in $(seq 3000); do echo "$i" > "$mnt/b-freeing/many/$i"; done
zfs snapshot b-freeing@one; zfs clone b-freeing@one b-freeing/clone
head -c 8000000 /dev/urandom > "$mnt/b-freeing/clone/own"; rm "$mnt/b-freeing/clone/large"; zpool sync b-freeing
param zfs_async_block_max_blocks 50
zfs destroy b-freeing/clone; zfs destroy b-freeing/many; meanwhile b-freeing; leave b-freeing
param zfs_async_block_max_blocks 18446744073709551615

# A checkpoint that is discarded step by step.
new b-discard 2 250 @1-2
zpool checkpoint b-discard
for i in $(seq 400); do head -c 30000 /dev/urandom > "$mnt/b-discard/k$i"; done; rm "$mnt/b-discard/large" "$mnt"/b-discard/k*[13579]; zpool sync b-discard
param zfs_spa_discard_memory_limit 16
zpool checkpoint -d b-discard; leave b-discard
param zfs_spa_discard_memory_limit 16777216

# Deduplicated and cloned files, with updates of the table in its log, on a pool with a special vdev.
new b-dedup 3 200 @1-2 special @3 -O dedup=on -O recordsize=16k 
param zfs_dedup_log_flush_txgs 100000; param zfs_dedup_log_flush_flow_rate_txgs 100000; param zfs_bclone_enabled 1
cp "$mnt/b-dedup/large" "$mnt/b-dedup/large2"; cp --reflink=auto "$mnt/b-dedup/large" "$mnt/b-dedup/large3"; zpool sync b-dedup
rm "$mnt/b-dedup/large"; head -c 400000 /dev/zero | tr '\0' z | dd of="$mnt/b-dedup/large3" conv=notrunc seek=3 bs=100000 status=none
meanwhile b-dedup; leave b-dedup

# A receive that broke off, and can be continued.
new b-partial 2 250 @1-2
zfs snapshot b-partial@one
zfs send -Lec b-partial@one | head -c 12000000 | zfs receive -s -u b-partial/copy
leave b-partial

# Intent logs that were not replayed: the pool is frozen while files are changed, and copied. Each log must have been used before,
# or its header stays in memory; the kernel takes the umask from modes without logging that, and logs no name of an O_TMPFILE.
new b-log 3 200 @1-2 log @3
zfs create -o mountpoint="$mnt/b-log/direct" -o logbias=throughput b-log/direct
head -c 500000 /dev/urandom | dd of="$mnt/b-log/direct/old" bs=500000 iflag=fullblock conv=fsync status=none
zpool sync b-log; zpool freeze b-log
(
  cd "$mnt/b-log" || exit 1; umask 0
  dd if=/dev/zero of=direct/old bs=64k count=2 conv=notrunc,fsync status=none; dd if=/dev/zero of=direct/old bs=64k count=1 seek=5 conv=notrunc,fsync status=none
  head -c 700000 /dev/urandom > direct/new; head -c 300000 /dev/urandom > new; ln new new-link; mv d/f2 d/renamed; mkdir deep; mv d/f4 deep/
  setfattr -n user.log -v value new; chmod 600 d/f5; truncate -s 1000 hard; rm d/f7; ln -s somewhere link; cp --reflink=auto large cloned
  python3 - <<'P'
import os, time
# Twice: after one round the last block of a log was seen to be still unwritten.
for _ in range(2):
    for at in ('.', 'direct', 'direct/new', 'direct/old', 'new', 'hard', 'cloned', 'd/f5'):
        g = os.open(at, os.O_RDONLY); os.fsync(g); os.close(g)
    time.sleep(1)
P
)
sync; manifest "$mnt/b-log" > "$begun/b-log/manifest"; manifest "$mnt/b-log/direct" > "$begun/b-log/manifest.direct"
mkdir /mnt/copy; cp --sparse=always "$begun"/b-log/d* /mnt/copy/
zpool export b-log; mv /mnt/copy/d* "$begun/b-log/"; echo "begun b-log"

keep
