# Sourced in the guest: the kernel's OpenZFS imports each pool, compares, scrubs, changes it, and gives it back.
exec 2>&1
. /share/lib.sh
mkfs.ext4 -q -F /dev/vdb; mkdir -p /mnt; mount /dev/vdb /mnt
tar -C /mnt -xSf /share/pools.tar
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
  if [[ $1 = cut-* ]]; then # The job that we began goes on by itself.
    timeout 600 zpool wait -t scrub,resilver,replace,remove,raidz_expand "$1" && ! zpool status "$1" | grep -q 'in progress' &&
      echo "ok    the job that was cut has ended" || { echo "FAIL  the job does not end"; zpool status "$1"; }
    zpool status "$1" | grep -qE 'with 0 errors|completed on|expanded' || { echo "FAIL  no job was there"; zpool status "$1"; }
  fi
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

for pool in $(ls /mnt/pools); do echo "== $pool"; check "$pool"; done
. /share/begun.sh
dmesg | grep -vE 'MP-BIOS|ommand line:' | grep -iE 'verify|panic|bug:|call trace' && echo "FAIL  the kernel complained"
echo "== end"
