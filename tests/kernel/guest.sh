# Sourced in the guest: the kernel's OpenZFS imports each pool, compares, scrubs, changes it, and gives it back.
exec 2>&1
. /share/lib.sh
mkfs.ext4 -q -F /dev/vdb; mkdir -p /mnt; mount /dev/vdb /mnt
case " $PARTS " in *" pools "*) tar -C /mnt -xSf /share/pools.tar ;; esac
modprobe zfs; zfs version; uname -r
rm -rf /share/back; mkdir -p /share/back

same() { # EXPECTED FOUND WHAT
  cmp -s "$1" "$2" && echo "ok    $3" || { echo "FAIL  $3"; diff "$1" "$2" | cut -c1-200 | head -8; }
}

check() { # POOL
  local at=/mnt/pools/$1 mnt=/run/aquifer-kernel-test/$1 force= kept
  [ "$1" = killed ] && force=-f
  timeout 300 zpool import -N -d "$at" $force "$1" && echo "ok    import" || { echo "FAIL  import"; return 1; }
  [ -e "$at/accounts" ] && { accounts "$1" > /tmp/found; same "$at/accounts" /tmp/found accounts; }
  [ -e "$at/key" ] && zfs load-key "$1" < "$at/key"
  zfs mount -a
  for kept in "$at"/manifest*; do
    local sub=${kept##*/manifest}
    manifest "$mnt/${sub#.}" > /tmp/found; cp "$kept" /tmp/kept
    # The replay of a log dates what it does again: the times of writes, and of directories, are those of the replay.
    [ "$1" = killed ] && sed -i -E 's/\|[0-9]{10}\.[0-9]+\|/|time|/' /tmp/kept /tmp/found
    same /tmp/kept /tmp/found "files of $1/${sub#.}"
  done
  [ -e "$at/contents" ] && { contents "$mnt/.zfs/snapshot/one" > /tmp/found; same "$at/contents" /tmp/found "files of $1@one"; }
  if [ "$1" = away ]; then # It begins by itself, a moment after the import; what it read of the MOS before that may be stale.
    for _ in $(seq 120); do zpool status away | grep -q ' resilvered ' && break; sleep 1; done
    zpool status away | grep -q ' resilvered ' && echo "ok    what the disk lacked was resilvered" || echo "FAIL  no resilver"
    zpool clear away
  fi
  if [ "$1" = cut-pause ]; then # It waits for its resumption.
    zpool status "$1" | grep -q 'scrub paused' && zpool scrub "$1" && echo "ok    the paused scrub goes on" || { echo "FAIL  no paused scrub"; zpool status "$1"; }
  fi
  if [[ $1 = cut-* ]]; then # The job that we began goes on by itself.
    timeout 600 zpool wait -t scrub,resilver,replace,remove,raidz_expand "$1" && ! zpool status "$1" | grep -q 'in progress' &&
      echo "ok    the job that was cut has ended" || { echo "FAIL  the job does not end"; zpool status "$1"; }
    zpool status "$1" | grep -qE 'with 0 errors|completed on|expanded' || { echo "FAIL  no job was there"; zpool status "$1"; }
  fi
  if [ "$1" = cut-rebuild ]; then # What the kernel read of the MOS before it knew what the new disk lacks may be stale there, too.
    zpool wait -t scrub "$1"
    zpool status "$1" | grep -q 'scrub repaired 0B in .* with 0 errors' && echo "ok    the scrub after it repaired nothing" || { echo "FAIL  the scrub after it"; zpool status "$1"; }
    zpool clear "$1"
  fi
  [ "$1" = cached ] && cache_is_back
  [ "$1" = received ] && receives "$at" "$mnt"
  zpool scrub -w "$1"
  zpool status -v "$1" > /tmp/found
  if grep -q 'scrub repaired 0B in .* with 0 errors' /tmp/found && grep -q 'No known data errors' /tmp/found &&
    grep -q 'state: ONLINE' /tmp/found && ! grep -E 'ONLINE +([1-9]|0 +[1-9]|0 +0 +[1-9])' /tmp/found
  then echo "ok    scrub"; else echo "FAIL  scrub"; cat /tmp/found; fi
  change "$1" "$mnt"
  manifest "$mnt" > "/share/back/$1.manifest"
  # Times of access reach the disk when a file system is unmounted.
  zfs unmount -a; zpool sync "$1"
  accounts "$1" > "/share/back/$1.accounts"
  zpool export "$1" && mkdir "/share/back/$1" && cp --sparse=always "$at"/d* "/share/back/$1/"
  case $1 in twins* | cloned | g-*) tables_end "$1" "$at" "$mnt" ;; esac
}

# The cache device's log leads the kernel to the blocks that we wrote there.
cache_is_back() {
  local found
  for _ in $(seq 60); do
    found=$(awk '$1 == "l2_rebuild_bufs" { print $3 }' /proc/spl/kstat/zfs/arcstats); [ "$found" -gt 1000 ] && break; sleep 1
  done
  cat /run/aquifer-kernel-test/cached/hot > /dev/null
  awk '$1 ~ /^l2_(hits|cksum_bad|io_error|rebuild_bufs|rebuild_.*error)$/ { n[$1] = $3; all = all " " $1 "=" $3 }
    END { for (k in n) if (k ~ /bad|error/ && n[k]) bad = 1
      print (bad || n["l2_rebuild_bufs"] < 1000 || !n["l2_hits"] ? "FAIL " : "ok   ") " the cache device:" all }' /proc/spl/kstat/zfs/arcstats
}

# Streams of ours are received; what they made here goes again.
receives() { # DIR MOUNTPOINT
  local made=$2/made
  zfs receive -o mountpoint="$made" received/tree < "$1/stream.tree" && zfs mount -a
  manifest "$made/below" > /tmp/found; same "$1/stream.tree.below" /tmp/found "stream of a tree"
  zfs receive -o keylocation=prompt -o mountpoint="$2/locked" received/locked < "$1/stream.raw" && echo password1 | zfs load-key received/locked &&
    zfs mount received/locked
  manifest "$2/locked" > /tmp/found; same "$1/stream.raw.files" /tmp/found "raw stream"
  zfs receive -u received/redacted < "$1/stream.redacted" && zfs receive -o origin=received/redacted@tree -o mountpoint="$2/public" received/public \
    < "$1/stream.increment"
  zfs mount received/public; manifest "$2/public" > /tmp/found; same "$1/stream.increment.files" /tmp/found "redacted stream and its increment"
  zfs receive -o mountpoint="$2/part" received/part < "$1/stream.rest"; zfs mount received/part
  manifest "$2/part" > /tmp/found; same "$1/stream.rest.files" /tmp/found "rest of a stream that broke off"
  zfs receive -F received/locked < "$1/stream.raw2"; manifest "$2/locked" > /tmp/found; same "$1/stream.raw2.files" /tmp/found "raw increment"
  # What we received in part: an increment, a raw stream, and a raw increment.
  zfs receive received/inc < "$1/stream.inc"; zfs set mountpoint="$2/inc" received/inc; zfs mount received/inc
  manifest "$2/inc" > /tmp/found; same "$1/stream.inc.files" /tmp/found "rest of an increment that broke off"
  zfs receive received/rawpart < "$1/stream.rawpart"; zfs receive received/rawinc < "$1/stream.rawinc"
  for made in rawpart rawinc; do
    echo password1 | zfs load-key "received/$made"; zfs set mountpoint="$2/$made" "received/$made"; zfs mount "received/$made" 2> /dev/null
    manifest "$2/$made" > /tmp/found; same "$1/stream.$made.files" /tmp/found "rest of a raw $made that broke off"
  done
  for made in public redacted locked tree part inc rawpart rawinc; do zfs destroy -r "received/$made" || echo "FAIL  destroy of received/$made"; done
}

# All files go: the tables of deduplicated and cloned blocks come to nothing.
tables_end() { # POOL DIR MOUNTPOINT
  zpool import -d "$2" "$1" || { echo "FAIL  import of $1"; return; }
  rm -rf "${3:?}"/* "$3"/*/* 2> /dev/null; for snap in $(zfs list -H -t snapshot -o name -r "$1"); do zfs destroy -R "$snap" 2> /dev/null; done
  zfs destroy -r "$1/received" 2> /dev/null; zpool sync "$1"; zpool wait -t free "$1"; zpool sync "$1"
  local clones; clones=$(zpool get -Hp -o value bcloneused "$1")
  # The log of a dedup table is flushed over some txgs.
  for _ in $(seq 20); do
    zpool status -D "$1" > /tmp/found
    grep -q 'no DDT entries\|DDT entries 0,' /tmp/found && break
    zpool sync "$1"
  done
  grep -q 'no DDT entries\|DDT entries 0,' /tmp/found && [ "$clones" = 0 ] && echo "ok    tables of $1 end empty" ||
    { echo "FAIL  tables of $1: bcloneused $clones"; grep -A12 'dedup:' /tmp/found; }
  zdb -bcc "$1" > /tmp/found 2>&1 || { echo "FAIL  zdb of $1"; tail -5 /tmp/found; }
  zpool export "$1"
}

change() { # POOL DIR
  echo kernel > "$2/kernel"; cp -a /usr/lib/python3*/json "$2/json"; rm -rf "$2/src"
  mv "$2/rand" "$2/rand2" 2>/dev/null; truncate -s 3000000 "$2/rand2"; echo end >> "$2/hard"
  setfattr -x user.a "$2/d"; setfacl -m u:7:r "$2/d/f7"
  head -c 2000000 /dev/urandom > "$2/new"; sync
  zfs snapshot -r "$1@kernel"; rm "$2/new"; echo q > "$2/d/f1"
  if zfs list "$1/clone" > /dev/null 2>&1; then
    zfs rollback -r "$1/child@kernel"; zfs promote "$1/clone"; zfs destroy -r "$1/child"
    zfs destroy "$1@one"; zfs send "$1@kernel" | zfs receive -u -o mountpoint=none "$1/received"
  fi
  zpool sync "$1"
}

for part in $PARTS; do
  case $part in
    pools) for pool in $(ls /mnt/pools); do echo "== $pool"; check "$pool"; done ;;
    *) echo "== $part"; . "/share/$part.sh" ;;
  esac
done
# A host that is busy makes the machine stand still: that is no complaint about ZFS.
dmesg | grep -vE 'MP-BIOS|ommand line:|soft lockup|no_verify' | grep -iE 'verify|panic|bug:|oops' && echo "FAIL  the kernel complained"
echo "== end"
