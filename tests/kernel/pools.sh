#!/usr/bin/env bash
# tests/kernel/pools.sh BINARY SHARE: pools that BINARY makes, as images in SHARE/pools, with what a user saw in them;
# $compatibility: the property of that name; $POOLS: only these.
set -u
binary=$(realpath "$1") share=$2 here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
work=$(mktemp -d)
export AQUIFER_RUN=$work/run PATH=$work/bin:$PATH
mkdir -m 700 "$work/run"; mkdir "$work/bin"
for name in zpool zfs; do ln -s "$binary" "$work/bin/$name"; done
mnt=/run/aquifer-kernel-test pools=$share/pools
mkdir -p "$mnt"; rm -rf "$pools"; mkdir -p "$pools"
trap 'kill "$(cat "$work/run/lock" 2>/dev/null)" 2>/dev/null; rm -rf "$work"' EXIT

wanted() { case " ${POOLS:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }

disks() { # POOL COUNT MIB
  local i
  [ "$1" = source ] || wanted "$1" || return 1
  mkdir "$pools/$1"
  for i in $(seq "$2"); do truncate -s "$3M" "$pools/$1/d$i"; done
}

create() { # POOL WORDS…, with @N for its disk N and @ for all
  local pool=$1 word words=(); shift
  for word; do
    case $word in
      @) words+=("$pools/$pool"/d*) ;;
      @*) words+=("$pools/$pool/d${word#@}") ;;
      *) words+=("$word") ;;
    esac
  done
  zpool create -f -o compatibility="${compatibility:-openzfs-2.3-linux}" -O mountpoint="$mnt/$pool" -O acltype=posix "$pool" "${words[@]}"
}

work_in() { # POOL
  fill "$mnt/$1" "$here/../../crates/engine/src"
  zfs snapshot "$1@one"
  rm -rf "$mnt/$1/src/spa"; echo changed > "$mnt/$1/d/f1"
  zfs create "$1/child"; fill "$mnt/$1/child" "$here/../../docs"
  zfs snapshot -r "$1@two"; zfs clone "$1/child@two" "$1/clone"; echo x >> "$mnt/$1/clone/d/f7"
  zfs bookmark "$1@one" "$1#mark"
}

finish() { # POOL
  local d
  for d in "" /child /clone; do manifest "$mnt/$1$d" > "$pools/$1/manifest${d/\//.}"; done
  contents "$mnt/$1/.zfs/snapshot/one" > "$pools/$1/contents"
  zpool sync "$1"; accounts "$1" > "$pools/$1/accounts"
  zpool export "$1" && echo "made $1"
}

one() { # POOL DISKS MIB WORDS…
  disks "$1" "$2" "$3" &&
    create "$1" "${@:4}" && work_in "$1" && finish "$1"
}

one single 1 300 @
one pairs 2 300 -O compression=zstd mirror @
one parity1 3 200 -O compression=lz4 raidz1 @
one parity2 6 150 -O compression=gzip-6 -O checksum=sha512 raidz2 @
one parity3 7 150 -o ashift=9 -O checksum=blake3 -O recordsize=1M raidz3 @
one spread 8 150 draid2:4d:8c:1s @
one ashift14 2 400 -o ashift=14 -O copies=2 -O checksum=skein @
one classes 6 200 -O special_small_blocks=8K -O dnodesize=auto -O recordsize=16K \
  mirror @1 @2 special mirror @3 @4 log @5 dedup @6

disks keys 1 300 && echo password1 > "$pools/keys/key" &&
  create keys -O encryption=on -O keyformat=passphrase -O keylocation="file://$pools/keys/key" @ && work_in keys &&
  zfs set keylocation=prompt keys && finish keys

small() { # POOL: some files and a snapshot
  fill "$mnt/$1" "$here/../../docs"; zfs snapshot "$1@one"
}

small_end() { # POOL
  manifest "$mnt/$1" > "$pools/$1/manifest"
  zpool sync "$1"; accounts "$1" > "$pools/$1/accounts"
  zpool export "$1" && echo "made $1"
}

# Equal files in both kinds of dedup tables, some freed again.
for kind in twins twins-old; do
  disks $kind 2 300 || continue; table=; [ $kind = twins ] || table=disabled
  create $kind ${table:+-o feature@fast_dedup=$table} -O dedup=on mirror @ && small $kind &&
    cp --reflink=never "$mnt/$kind/rand" "$mnt/$kind/again" && cp --reflink=never -a "$mnt/$kind/src" "$mnt/$kind/twice" &&
    rm -r "$mnt/$kind/src" && small_end $kind
done

# Files that share blocks: one was removed, one overwritten in part, one rewritten.
disks cloned 2 300 &&
  create cloned mirror @ && small cloned && zpool sync cloned && cp --reflink=auto "$mnt/cloned/rand" "$mnt/cloned/again" &&
  cp --reflink=auto "$mnt/cloned/rand" "$mnt/cloned/third" && cp --reflink=auto -a "$mnt/cloned/src" "$mnt/cloned/twice" &&
  head -c 300000 /dev/urandom | dd of="$mnt/cloned/again" bs=1000 seek=400 conv=notrunc status=none &&
  zfs rewrite -l 1M "$mnt/cloned/third" && rm -r "$mnt/cloned/src" && small_end cloned

# A cache device with enough blocks for a log of them.
disks cached 2 300 && truncate -s 1100M "$pools/cached/d3" &&
  create cached -O recordsize=8K mirror @1 @2 cache @3 && small cached && head -c 40000000 /dev/urandom > "$mnt/cached/hot" &&
  zpool export cached && zpool import -d "$pools/cached" cached && cat "$mnt/cached/hot" > /dev/null && {
    for _ in $(seq 60); do [ "$(zpool list -vHp cached | awk '$1 ~ /d3$/ { print $3 }')" -gt 30000000 ] && break; sleep 1; done
    small_end cached; }

# A disk was removed, and one is on its way out.
disks gone 4 250 &&
  create gone @ && small gone && zpool remove -w gone "$pools/gone/d2" && head -c 20000000 /dev/urandom > "$mnt/gone/late" && small_end gone

# Written on after a checkpoint.
disks kept 2 250 &&
  create kept mirror @ && small kept && zpool checkpoint kept && rm -r "$mnt/kept/src" && echo late > "$mnt/kept/late" && small_end kept

# Jobs that had begun when the pool was exported; the kernel finishes them.
hold() { "$binary" set "$1=$2" > /dev/null || echo "FAIL  set $1"; }
release() { "$binary" set "$1=0" > /dev/null 2>&1; } # There may be no daemon, and so nothing to release.
begun() { # POOL WORDS: its status has them
  zpool status "$1" | grep -q "$2" || { echo "FAIL  $1 was not cut: no \"$2\""; zpool status "$1"; }
}
disks cut-scrub 3 200 &&
  create cut-scrub raidz1 @ && small cut-scrub && hold zfs_scan_suspend_progress 1 && zpool scrub cut-scrub &&
  zpool sync cut-scrub && begun cut-scrub 'scrub in progress' && small_end cut-scrub
disks cut-resilver 4 200 &&
  create cut-resilver raidz1 @1 @2 @3 && small cut-resilver && zpool replace cut-resilver "$pools/cut-resilver/d2" "$pools/cut-resilver/d4" &&
  zpool sync cut-resilver && begun cut-resilver 'resilver in progress' && small_end cut-resilver
disks cut-rebuild 3 250 &&
  create cut-rebuild mirror @1 @2 && small cut-rebuild && hold zfs_scan_suspend_progress 1 && zpool attach -s cut-rebuild "$pools/cut-rebuild/d1" "$pools/cut-rebuild/d3" &&
  echo late > "$mnt/cut-rebuild/late" && zpool sync cut-rebuild && begun cut-rebuild 'resilver (mirror-0) in progress' && small_end cut-rebuild
disks cut-pause 3 200 &&
  create cut-pause raidz1 @ && small cut-pause && hold zfs_scan_suspend_progress 1 && zpool scrub cut-pause && zpool sync cut-pause &&
  zpool scrub -p cut-pause && zpool sync cut-pause && begun cut-pause 'scrub paused' && small_end cut-pause
release zfs_scan_suspend_progress
disks cut-removal 3 250 && hold zfs_removal_suspend_progress 1 && create cut-removal @ && small cut-removal && zpool remove cut-removal "$pools/cut-removal/d2" && echo late > "$mnt/cut-removal/late" &&
  zpool sync cut-removal && begun cut-removal 'Evacuation of .* in progress' && small_end cut-removal
release zfs_removal_suspend_progress
disks cut-expand 5 200 && hold raidz_expand_max_reflow_bytes 2000000 && create cut-expand raidz1 @1 @2 @3 @4 && small cut-expand && zpool attach cut-expand raidz1-0 "$pools/cut-expand/d5" &&
  echo late > "$mnt/cut-expand/late" && zpool sync cut-expand && begun cut-expand 'expansion of .* in progress' && small_end cut-expand
release raidz_expand_max_reflow_bytes

# Streams for the kernel to receive, each with what it must show: a whole tree, raw, redacted, and the rest of one that broke off here.
streams() {
  local to=$pools/received
  zfs create source/fs/below && fill "$mnt/source/fs/below" "$here/../../docs" && zfs snapshot -r source/fs@tree &&
    zfs send -R source/fs@tree > "$to/stream.tree" && manifest "$mnt/source/fs/below" > "$to/stream.tree.below" &&
    echo password1 | zfs create -o encryption=on -o keyformat=passphrase -o mountpoint="$mnt/source/locked" source/locked &&
    fill "$mnt/source/locked" "$here/../../docs" && zfs snapshot source/locked@one && zfs send -w source/locked@one > "$to/stream.raw" &&
    manifest "$mnt/source/locked" > "$to/stream.raw.files" &&
    zfs clone -o mountpoint="$mnt/source/public" source/fs@tree source/public && echo public > "$mnt/source/public/rand" &&
    zfs snapshot source/public@less && zfs redact source/fs@tree book source/public@less &&
    zfs send --redact book source/fs@tree > "$to/stream.redacted" && zfs send -i source/fs@tree source/public@less > "$to/stream.increment" &&
    manifest "$mnt/source/public" > "$to/stream.increment.files"
  zfs send -Lec source/fs@one | head -c 3000000 | zfs receive -s -u received/part 2> /dev/null
  zfs send -t "$(zfs get -H -o value receive_resume_token received/part)" > "$to/stream.rest" &&
    manifest "$mnt/source/fs/.zfs/snapshot/one" > "$to/stream.rest.files"
  # A raw increment; and increments and raw streams that break off here.
  echo more >> "$mnt/source/locked/rand"; head -c 3000000 /dev/urandom > "$mnt/source/locked/more"; rm -r "$mnt/source/locked/src"
  zfs snapshot source/locked@two && zfs send -w -i @one source/locked@two > "$to/stream.raw2" && manifest "$mnt/source/locked" > "$to/stream.raw2.files"
  zfs create -o mountpoint="$mnt/source/more" source/more && fill "$mnt/source/more" "$here/../../docs" && zfs snapshot source/more@one &&
    head -c 3000000 /dev/urandom > "$mnt/source/more/more" && rm -r "$mnt/source/more/src" && zfs snapshot source/more@two &&
    zfs send -c source/more@one | zfs receive -u -o mountpoint=none received/inc && broken inc 1500000 -c -i @one source/more@two && manifest "$mnt/source/more" > "$to/stream.inc.files"
  broken rawpart 3000000 -w source/locked@one && cp "$to/stream.raw.files" "$to/stream.rawpart.files"
  zfs send -w source/locked@one | zfs receive -u -o mountpoint=none received/rawinc && broken rawinc 1500000 -w -i @one source/locked@two &&
    cp "$to/stream.raw2.files" "$to/stream.rawinc.files"
}

broken() { # NAME BYTES WORDS…: a receive into received/NAME that breaks off, and the rest of its stream
  local name=$1 count=$2 token; shift 2
  zfs send "$@" | head -c "$count" | zfs receive -s -u -o mountpoint=none "received/$name" 2> /dev/null
  token=$(zfs get -H -o value receive_resume_token "received/$name"); [ "${token:--}" != - ] || { echo "FAIL  no partial receive in received/$name"; return 1; }
  zfs send -t "$token" > "$pools/received/stream.$name"
}

# What another pool sent: plain, compressed, and raw increments.
disks received 2 300 && disks source 1 300 &&
  create source -O compression=zstd @ && zfs create source/fs && zfs set mountpoint="$mnt/source/fs" source/fs &&
  fill "$mnt/source/fs" "$here/../../docs" && zfs snapshot source/fs@one && rm -r "$mnt/source/fs/src" && zfs snapshot source/fs@two &&
  create received mirror @ && small received && zfs send -c source/fs@one | zfs receive -o mountpoint="$mnt/received/fs" received/fs &&
  zfs send -c -i @one source/fs@two | zfs receive received/fs && manifest "$mnt/received/fs" > "$pools/received/manifest.fs" &&
  streams && small_end received
zpool export source 2> /dev/null; rm -rf "$pools/source"

# A mirror that was a disk, one disk of it replaced.
disks swapped 4 250 &&
  create swapped @1 && small swapped && zpool attach -w swapped "$pools/swapped/d1" "$pools/swapped/d2" &&
  zpool replace -w swapped "$pools/swapped/d1" "$pools/swapped/d3" && small_end swapped

# Its second disk was away while most was written.
away() {
  disks away 4 200
  create away raidz1 @ && fill "$mnt/away" "$here/../../docs" && zpool offline away "$pools/away/d2"
  zfs create away/sub && fill "$mnt/away/sub" "$here/../../crates/engine/src"
  zpool online away "$pools/away/d2"
  manifest "$mnt/away/sub" > "$pools/away/manifest.sub"
  zpool sync away; accounts away > "$pools/away/accounts"
  zpool export away && echo "made away"
}
! wanted away || away

# The kernel's own pools with shared blocks, written on here: more twins and clones, and less of the old ones.
golden() { # NAME: one of ../shared/pools
  local pool=g-$1 at=$here/../../../shared/pools/$1.tar.zst sub dir file
  wanted "$pool" || return
  [ -e "$at" ] || { echo "      there is no golden pool $1"; return; }
  mkdir "$pools/$pool"; zstd -dc "$at" | tar -C "$work" -xSf - && mv "$work/$1/disk1" "$pools/$pool/d1" &&
    zpool import -N -d "$pools/$pool" tank "$pool" || { echo "FAIL  import of $1"; return; }
  for sub in $(zfs list -H -o name -r "$pool"); do zfs inherit mountpoint "$sub"; done
  zfs set mountpoint="$mnt/$pool" acltype=posix atime=off "$pool" && zfs mount -a && small "$pool"
  for sub in $(zfs list -H -o name -r "$pool"); do
    dir=$mnt/$sub; find "$dir" -xdev -type f -size +4k -size -2000k | sort > "$work/files"; mkdir "$dir/again"
    # Equal bytes again: in a deduplicated dataset twins of the blocks that the kernel wrote.
    while read -r file; do
      cp --reflink=never "$file" "$dir/again/"; cp --reflink=auto "$file" "$dir/again/${file##*/}.clone"
    done < "$work/files"
    find "$dir/again" -type f -size +200k | sort | sed -n 'p;n' | while read -r file; do
      head -c 140000 /dev/urandom | dd of="$file" bs=1000 seek=7 conv=notrunc status=none
    done
    sed -n 'n;p' "$work/files" | while read -r file; do rm "$file"; done
    sub=${sub#"$pool"}; [ -z "$sub" ] || manifest "$dir" > "$pools/$pool/manifest.${sub#/}"
  done
  zfs snapshot -r "$pool@changed"; small_end "$pool"
  # An export ends the intent logs, which changes the heads' first blocks.
  zpool import -N -d "$pools/$pool" "$pool" && accounts "$pool" > "$pools/$pool/accounts"; zpool export "$pool"
}
for name in dedup-fast dedup-legacy reflink; do golden $name; done
[ "${compatibility:-}" != off ] || golden v24-cloned

# Killed: what the intent log has is on no other place.
wanted killed || exit 0
disks killed 3 200
create killed -O sync=always raidz1 @ && fill "$mnt/killed" "$here/../../docs" && zpool sync killed
cp -a "$here/../../docs" "$mnt/killed/late"; mv "$mnt/killed/d/f8" "$mnt/killed/d/moved"; rm "$mnt/killed/d/f10"
head -c 3000000 /dev/urandom > "$mnt/killed/random"; setfattr -n user.z -v 1 "$mnt/killed/random"
manifest "$mnt/killed" > "$pools/killed/manifest"
kill -9 "$(cat "$work/run/lock")"; sleep 1; umount -l "$mnt/killed"
mkdir "$work/aside"; cp --sparse=always "$pools"/killed/d* "$work/aside/"
zpool export killed; cp --sparse=always "$work"/aside/* "$pools/killed/"; echo "made killed"
