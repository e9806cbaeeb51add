#!/usr/bin/env bash
# tests/kernel/run.sh BINARY [DIR [RELEASE]]: BINARY's pools in a kernel's OpenZFS, and back, and the kernel's own that it left in the
# middle of a job: the kernel must show the files, attributes and space that our mounts showed, its scrub must find nothing,
# and our program must read its changes.
# A machine of its own (qemu, without hardware's help) has the kernel; root, a Debian, 12 GiB; made once in DIR.
# RELEASE is the Debian release in the machine: bookworm has OpenZFS 2.3, trixie 2.4. PARTS="a b" runs only these parts: pools (ours there
# and back; POOLS="a b" takes only these of them, POOLS=none takes none), begun and edges (the kernel's jobs, and rarer states), streams (the kernel's and ours, byte
# for byte), replicate (aquifer replicate with the kernel as the far side).
set -uo pipefail
binary=$(realpath "$1") dir=$(realpath -m "${2:-target/kernel}") here=$(cd "$(dirname "$0")" && pwd)
share=$dir/share PARTS=${PARTS:-pools begun edges streams replicate}
has() { case " $PARTS " in *" $1 "*) ;; *) return 1 ;; esac; }
"$here/image.sh" "$dir" ${3:+"$3"} > "$dir.log" 2>&1 || { tail -5 "$dir.log"; exit 1; }
mkdir -p "$share"
# OpenZFS 2.3 can only read a pool in which a feature of 2.4 is used.
[ "${3:-}" = trixie ] && compatibility=off || compatibility=openzfs-2.3-linux
rm -rf "$share/back" "$share"/*.tar
if ! has pools || [ "${POOLS:-}" = none ]; then rm -rf "$share/pools"; mkdir -p "$share/pools"
else compatibility=$compatibility "$here/pools.sh" "$binary" "$share" || exit 1; fi
# The guest reads the share slowly: the holes of the images stay out of it.
tar -C "$share" -cSf "$share/pools.tar" pools
cp "$here"/{lib,guest,jobs,begun,edges,streams,replicate}.sh "$share/"; cp "$binary" "$share/aquifer"
echo "PARTS='$PARTS' compatibility=$compatibility bash -c '. /share/guest.sh' > /share/log" > "$share/run.sh"; : > "$share/log"
cp --sparse=always "$dir/root.img" "$dir/run.img"
rm -f "$dir/scratch.img"; truncate -s 12G "$dir/scratch.img"
nice -n 3 timeout "${LIMIT:-3600}" qemu-system-x86_64 -accel tcg,thread=multi -cpu Nehalem -smp 2 -m 3000 -nographic -no-reboot -nic none \
  -kernel "$dir/vmlinuz" -initrd "$dir/initrd.img" -append "root=/dev/vda rw console=ttyS0 quiet no_timer_check panic=1 modprobe.blacklist=floppy" \
  -drive file="$dir/run.img",format=raw,if=virtio,cache=unsafe -drive file="$dir/scratch.img",format=raw,if=virtio,cache=unsafe \
  -virtfs local,path="$share",mount_tag=share,security_model=none > "$dir/console" 2>&1 < /dev/null
cat "$share/log"
grep -q '^== end' "$share/log" || { echo "FAIL  the guest did not end; its console: $dir/console"; exit 1; }

# And back.
. "$here/lib.sh"
work=$(mktemp -d); mkdir -m 700 "$work/run"; mkdir "$work/bin"
for name in zpool zfs; do ln -s "$binary" "$work/bin/$name"; done
export AQUIFER_RUN=$work/run PATH=$work/bin:$PATH
failed=0
for at in "$share"/back/*/; do
  [ -d "$at" ] || continue
  pool=$(basename "$at") key=$share/pools/$pool/key
  zpool import -N -d "$at" "$pool" || { echo "FAIL  $pool back"; failed=1; continue; }
  [ -e "$key" ] && zfs load-key "$pool" < "$key"
  accounts "$pool" > "$work/accounts"
  zfs mount -a
  manifest "/run/aquifer-kernel-test/$pool" > "$work/manifest"
  zpool export "$pool"
  for kind in accounts manifest; do
    cmp -s "$work/$kind" "$share/back/$pool.$kind" && echo "ok    $kind of $pool as the kernel left it" ||
      { echo "FAIL  $kind of $pool"; diff "$share/back/$pool.$kind" "$work/$kind" | cut -c1-200 | head -8; failed=1; }
  done
  "$binary" verify -d "$at" ${key:+$( [ -e "$key" ] && echo --load-key "$pool=$key")} "$pool" > "$work/verify" 2>&1 && echo "ok    verify $pool" ||
    { echo "FAIL  verify $pool"; tail -5 "$work/verify"; failed=1; }
done
# What the kernel began is carried to its end.
rm -rf "$share/begun" "$share/edges"
for part in begun edges; do ! has "$part" || tar -C "$share" -xSf "$share/$part.tar"; done
mnt=/run/aquifer-kernel-test
for at in "$share"/{begun,edges}/*/; do
  [ -d "$at" ] || continue
  pool=$(basename "$at") force= bad=; [ "$pool" = b-log ] || [ -e "$at/force" ] && force=-f
  zpool import -N -d "$at" $force "$pool" || { echo "FAIL  import of $pool"; failed=1; continue; }
  [ ! -e "$at/key" ] || zfs list -H -o name,encryptionroot -t filesystem -r "$pool" | awk '$1 == $2 { print $1 }' |
    while read -r root; do zfs load-key "$root" < "$at/key"; done
  zfs mount -a
  for kept in "$at"manifest*; do
    [ -e "$kept" ] || continue
    sub=${kept##*/manifest}; sub=${sub#.}
    manifest "$mnt/$pool/$sub" > "$work/manifest"; cp "$kept" "$work/kept"
    [[ $pool == *-log* ]] && sed -i -E 's/\|[0-9]{10}\.[0-9]+\|/|time|/' "$work/kept" "$work/manifest"
    cmp -s "$work/kept" "$work/manifest" || { bad=1; echo "FAIL  files of $pool/$sub"; diff "$work/kept" "$work/manifest" | cut -c1-200 | head -8; }
  done
  token=$(zfs get -H -o value receive_resume_token "$pool/copy" 2>/dev/null)
  [ "${token:--}" = - ] || zfs send -t "$token" | zfs receive -s -u "$pool/copy" || { bad=1; echo "FAIL  continued receive of $pool"; }
  timeout 300 zpool wait -t scrub,resilver,replace,remove,raidz_expand,free,discard "$pool" || { bad=1; echo "FAIL  $pool does not end"; }
  zpool status "$pool" | grep -qE 'in progress|state: FAULTED|UNAVAIL' && { bad=1; echo "FAIL  $pool"; zpool status "$pool"; }
  if [ -e "$at/errors" ]; then
    zpool scrub -e -w "$pool"; zpool status -v "$pool" | sed -n '/^errors:/,$p' > "$work/errors"
    cmp -s "$at/errors" "$work/errors" || { bad=1; echo "FAIL  errors of $pool"; diff "$at/errors" "$work/errors"; }
    zpool export "$pool" || bad=1; [ -z "$bad" ] && echo "ok    what the kernel began in $pool" || failed=1
    continue
  fi
  zpool scrub -w "$pool"
  zpool status "$pool" | grep -q 'repaired 0B in .* with 0 errors' || { bad=1; echo "FAIL  scrub of $pool"; zpool status -v "$pool"; }
  manifest "$mnt/$pool" > "$work/after"
  zpool export "$pool" || bad=1
  [ ! -e "$at/volume" ] || "$binary" cat -d "$at" "$pool/volume" | sha256sum | cmp -s "$at/volume" - || { bad=1; echo "FAIL  volume of $pool"; }
  "$binary" verify -d "$at" "$pool" > "$work/verify" 2>&1 || { bad=1; echo "FAIL  verify $pool"; tail -5 "$work/verify"; }
  if command -v zdb-2.4 > /dev/null; then
    zdb-2.4 -e -p "$at" -bcc "$pool" > "$work/zdb" 2>&1 && ! grep -qiE 'leak(ed)?:|checksum error' "$work/zdb" ||
      { bad=1; echo "FAIL  zdb of $pool"; grep -iE 'leak|error|assert|unable|can.t' "$work/zdb" | head -5; }
  fi
  [ -z "$bad" ] && echo "ok    what the kernel began in $pool" || failed=1
done
! has streams || . "$here/sent.sh"
kill "$(cat "$work/run/lock" 2>/dev/null)" 2>/dev/null
rm -rf "$work"
grep -q '^FAIL' "$share/log" && failed=1
exit $failed
