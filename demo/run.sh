#!/usr/bin/env bash
# Act one: a real OpenZFS raidz2 pool of six disks, one of them lost and 60 MiB of another overwritten: what is there,
# every file back, and each compared with what OpenZFS saw before the damage. Nothing but the built binary and coreutils.
# Act two: a raidz2 pool of our own, with this project's source tree in it, loses its power in the middle of a write.
# Act three: what a new user does first, through the daemon and a mount; and a disk that dies in use: the hot spare takes over, a
# new disk replaces the dead one, the spare returns.
# Act four: what gzip and dedup cost, on one sample of 64 MiB of which half occurs twice; all rows have one checksum, which
# dedup needs anyway, so that the difference is dedup's own.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
aquifer=${1:?usage: run.sh AQUIFER-BINARY POWERCUT-BINARY}
powercut=${2:?usage: run.sh AQUIFER-BINARY POWERCUT-BINARY}
aquifer=$(realpath "$aquifer")
powercut=$(realpath "$powercut")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() {
  local shown=${*/#$aquifer/aquifer}
  printf '\n$ %s\n' "${shown/#$powercut/powercut}"
  "$@"
}

say "Six disks' worth of a raidz2 pool, made by OpenZFS: disk3 is gone, disk5 was partly overwritten"
tar -xzSf "$here/damaged-raidz2.tar.gz"
mv damaged-raidz2 disks
ls -ls disks/disk*

say "Which pools are there, and in what state?"
run "$aquifer" zpool import -d disks

say "Its datasets and snapshots"
run "$aquifer" zfs list -d disks -t all -r tank

say "A look around, without mounting anything"
run "$aquifer" ls -l -d disks tank:/d | head -15

say "Every file back"
run "$aquifer" cp -a -d disks tank: rescued

say "Is each file what OpenZFS saw? (contents by SHA-256, then type, mode, links, size, time, link target)"
tr '\0' '\n' < disks/manifest/live.sha > want.sha
(cd rescued && sha256sum --quiet -c ../want.sha)
echo "contents: $(wc -l < want.sha) files equal"
fields='%y\t%m\t%n\t%s\t%T@\t%P\t%l\0'
# Directory sizes are the file system's own; devices and owners need root to be restored.
normal() { tr '\0' '\n' | awk -F'\t' -v OFS='\t' '$1 == "d" { $4 = "" ; $3 = "" } $1 !~ /[bc]/ && $6 != ""' | sort; }
(cd rescued && find . -mindepth 1 -printf "$fields") | normal > have.find
cut -z -f1,2,5- disks/manifest/live.find | normal > want.find
diff want.find have.find
echo "attributes: $(wc -l < want.find) files and directories equal"

say "What was damaged, and what repaired it"
status=0
run "$aquifer" verify -d disks tank > verify.txt || status=$?
head -12 verify.txt
echo "..."
tail -1 verify.txt
[ "$status" = 1 ] || { echo "verify should have found damage that redundancy covers"; exit 1; }

say "So far: one disk lost, one damaged, every byte back"

say "Act two. A pool of our own: filled with this source tree, snapshotted, changed, and the power cut mid-sync"
mkdir tree ours
tar -C "$here/.." --exclude=./target --exclude=./.git -c . | tar -C tree -x
run "$powercut" make ours tree 1

say "After the power cut: the pool is found, imported for writing, exported"
run "$aquifer" zpool import -d ours
run "$powercut" import ours
run "$aquifer" zfs list -d ours -t all -r tank

say "Are the snapshot and every synced change there, byte for byte?"
run "$aquifer" cp -a -d ours tank@before: have.before
run "$aquifer" cp -a -d ours tank: have.after
diff -r ours/before have.before
echo "tank@before: $(find ours/before -type f | wc -l) files equal"
diff -r ours/after have.after
echo "tank: $(find ours/after -type f | wc -l) files equal"

say "Is every block right, and none lost or leaked?"
run "$aquifer" verify -d ours tank > verify.txt
tail -1 verify.txt
if command -v zdb >/dev/null; then
  run zdb -e -p ours -bcc tank > zdb.txt 2>&1
  grep -h "No leaks" zdb.txt
else
  echo "(real zdb is not installed here; make test installs it and asks it)"
fi

say "Act three. The first ten minutes of a new user"
if [ ! -e /dev/fuse ]; then
  echo "(there is no /dev/fuse here, so nothing can be mounted: skipped)"
else
  # A daemon of its own, and every mount point below this folder.
  export AQUIFER_RUN=$work/run
  mkdir -m 700 run
  mkdir pool root
  at=$work/root/tank/home
  stop() { pid=$(cat run/lock 2>/dev/null) && kill "$pid" 2>/dev/null && sleep 1; rm -rf "$work"; }
  trap stop EXIT
  truncate -s 256M pool/disk{1,2,3,4} pool/spare pool/new
  run "$aquifer" zpool create -R "$work/root" -O compression=lz4 tank raidz2 "$work"/pool/disk{1,2,3,4}
  run "$aquifer" zfs create tank/home
  run cp -r tree/docs tree/README.md "$at"
  run "$aquifer" zfs snapshot tank/home@monday
  run cp /dev/null "$at/README.md"
  run cp "$at/.zfs/snapshot/monday/README.md" "$at/README.md"
  cmp tree/README.md "$at/README.md" && echo "README.md is as it was on monday"
  run "$aquifer" zfs list -t all -r tank
  run "$aquifer" zpool export tank
  run rm pool/disk2
  run "$aquifer" zpool import -R "$work/root" -d "$work/pool" tank
  run "$aquifer" zpool status tank
  diff -r tree/docs "$at/docs" && echo "every file is there without disk2"
  truncate -s 256M pool/disk2
  run "$aquifer" zpool replace -w tank "$work/pool/disk2"

  say "A disk dies in use: the hot spare takes over"
  scan() { "$aquifer" zpool status tank | grep 'scan:' || true; }
  # Prints how far the resilver is that follows the one of line $1, or how it ended if it was faster than the question.
  progress() {
    local status
    for _ in {1..100}; do
      status=$("$aquifer" zpool status tank)
      if grep '% done' <<< "$status" | grep -qv ' 0.00% done'; then break; fi
      if grep 'scan: resilvered' <<< "$status" | grep -qvxF "$1"; then break; fi
    done
    printf '\n$ aquifer zpool status tank\n'
    sed -n '/scan:/,/config:/p' <<< "$status" | grep -v config:
  }
  # The pool is in good order, with the spare at hand, before $1 seconds have passed.
  healthy() {
    for _ in $(seq $(($1 * 10))); do
      "$aquifer" zpool status tank > status.txt
      if grep -q 'state: ONLINE' status.txt && grep -q 'spare *AVAIL' status.txt; then return; fi
      sleep 0.1
    done
    cat status.txt
    return 1
  }
  run "$aquifer" zpool add tank spare "$work/pool/spare"
  head -c 96M /dev/urandom > "$at/photos"
  sum=$(sha256sum < "$at/photos")
  "$aquifer" zpool sync tank
  before=$(scan)
  echo "From now on every request to disk3 fails:"
  run "$aquifer" zinject -d "$work/pool/disk3" -e nxio -T all -f 100 tank
  run "$aquifer" zpool reopen tank
  progress "$before"
  run "$aquifer" zpool wait -t replace,resilver tank
  run "$aquifer" zpool status tank

  say "A new disk replaces the dead one, and the spare returns"
  before=$(scan)
  run "$aquifer" zpool replace tank "$work/pool/disk3" "$work/pool/new"
  progress "$before"
  run "$aquifer" zpool wait -t replace,resilver tank
  healthy 10
  run cat status.txt
  "$aquifer" zinject -c all > /dev/null
  [ "$sum" = "$(sha256sum < "$at/photos")" ] && diff -r tree/docs "$at/docs"
  echo "every file is what it was"
  run "$aquifer" zpool export tank
fi

say "Act four. What gzip and dedup cost: the same 64 MiB, of which each half occurs twice"
if [ ! -e /dev/fuse ]; then
  echo "(there is no /dev/fuse here, so nothing can be mounted: skipped)"
else
  mkdir -p costs
  export AQUIFER_RUN=$work/run
  # Text, and bytes that do not compress, in equal parts: 32 MiB, twice.
  find tree -type f -size -1024k ! -name '*.tar.*' -print0 | sort -z | xargs -0 cat > text
  while [ "$(stat -c %s text)" -lt $((16 << 20)) ]; do cat text text > text2; mv text2 text; done
  truncate -s 16M text
  { cat text; head -c 16M /dev/urandom; } > half
  cat half half > sample
  rm half text
  truncate -s 1G costs/disk
  "$aquifer" zpool create -R "$work/root" -O recordsize=128k -O checksum=sha256 cost "$work/costs/disk"
  now() { date +%s%N; }
  alloc() { "$aquifer" zpool sync cost; "$aquifer" zpool list -Hpo allocated cost; }
  memory() { awk '/^VmRSS/ { print $2 }' "/proc/$(cat run/lock)/status"; }
  # Once before it counts, so that no row pays for the first use of anything.
  "$aquifer" zfs create cost/first
  cp sample root/cost/first/sample
  "$aquifer" zpool sync cost
  "$aquifer" zfs destroy cost/first
  printf '\n%-12s %-6s %10s %12s %12s %10s\n' compression dedup "write MB/s" "delete ms" "memory KiB" "space MiB"
  for compression in off gzip; do
    for dedup in off on; do
      "$aquifer" zfs create -o compression=$compression -o dedup=$dedup cost/fs
      empty=$(alloc) resident=$(memory)
      from=$(now)
      dd if=sample of=root/cost/fs/sample bs=1M conv=fsync status=none
      to=$(now) took=$(($(alloc) - empty)) more=$(($(memory) - resident))
      # Memory of the row before that was free again.
      [ "$more" -ge 0 ] || more=0
      cmp sample root/cost/fs/sample
      # What a block of the dedup table takes, as `zpool status -D` says.
      [ "$dedup" = off ] || table=$("$aquifer" zpool status -D cost | sed -n 's/^ *dedup: //p')
      gone=$(now)
      rm root/cost/fs/sample
      "$aquifer" zpool sync cost
      printf '%-12s %-6s %10d %12d %12d %10d\n' $compression $dedup $((67108864 / ((to - from) / 1000 + 1))) \
        $((($(now) - gone) / 1000000)) "$more" $((took >> 20))
      "$aquifer" zfs destroy cost/fs
      "$aquifer" zpool sync cost
    done
  done
  "$aquifer" zpool export cost
  printf '\nThe dedup table: %s' "$table"
  awk '{ printf " (%d bytes of memory a block)\n", $8 * 1024 / $3 }' <<< "$table"
  cat <<'EOF'

Beside it, what users of OpenZFS tell of dedup (other machines and more data, so only the ratios compare):
with dedup on writes fell from 385 MB/s to 18 MB/s, the delete of 13 GB took over ten minutes, and each
block of the table took about 375 bytes of memory.
EOF
fi

say "Done: lost disks, a damaged disk, a power cut, a mistake: every byte back"
