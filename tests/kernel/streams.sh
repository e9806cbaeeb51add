# Sourced in the guest: the kernel sends a pool of its own in all ways; the host makes the same streams from the pool's image
# (sent.sh), and receives them.
fresh=/mnt/streams mnt=/run/aquifer-kernel-test
rm -rf "$fresh" /share/streams.tar; mkdir -p "$fresh/image" "$fresh/sent" "$fresh/seen" "$mnt"
hex=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
echo "$hex" > "$fresh/key"

bytes() { head -c "$1" /dev/urandom; }
at_byte() { dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
value() { bytes "$1" | base64 -w 0; }

# Objects of all kinds: embedded blocks, holes, levels of indirect blocks, both kinds of directories, attributes beside the dnode.
first() { # DIR
  local d=$1 i
  echo tiny > "$d/tiny"; : > "$d/empty"; bytes 300000 > "$d/random"; head -c 400000 /dev/zero | tr '\0' x > "$d/equal"
  cat /usr/lib/python3*/json/*.py > "$d/text"; bytes 700 > "$d/short"; bytes 60000 > "$d/replaced"
  truncate -s 40M "$d/sparse"; echo mid | at_byte "$d/sparse" 20000000; bytes 5000 | at_byte "$d/sparse" 39000000
  mkdir "$d/names" "$d/dir"; for i in $(seq 60); do : > "$d/names/$(printf 'n%.0s' $(seq 60))$i"; done
  for i in $(seq 120); do echo "file $i" > "$d/dir/f$i"; done
  setfattr -n user.spill -v "$(value 3000)" "$d/random"; setfattr -n user.little -v b "$d/text"; setfattr -n user.goes -v "$(value 2000)" "$d/short"
  setfacl -m u:1000:rwx "$d/text"; setfacl -d -m g:1001:rx "$d/dir"; chown 1000:1001 "$d/equal"; chmod 4755 "$d/short"
  ln "$d/random" "$d/hard"; ln -s random "$d/link"; ln -s "$(value 230)" "$d/long"; mkfifo "$d/fifo"; mknod "$d/null" c 1 3
}

# Freed ranges and objects, object numbers and block sizes that are used anew, attributes that come and go.
second() { # DIR
  local d=$1 i
  for i in $(seq 2 3 110); do rm "$d/dir/f$i"; done
  rm "$d/replaced"; mkdir "$d/replaced"; bytes 90000 > "$d/replaced/inner"
  bytes 140000 >> "$d/short"; setfattr -x user.goes "$d/short"; setfattr -n user.comes -v "$(value 1500)" "$d/tiny"
  truncate -s 100000 "$d/equal"; fallocate -p -o 131072 -l 131072 "$d/random" 2> /dev/null; echo new | at_byte "$d/random" 10
  truncate -s 30M "$d/sparse"; echo later | at_byte "$d/sparse" 25000000
  mv "$d/text" "$d/dir/moved"; for i in $(seq 40); do rm "$d/names/$(printf 'n%.0s' $(seq 60))$i"; done
  chmod 600 "$d/empty"; setfacl -b "$d/dir/moved"; mkdir "$d/late"
}

third() { # DIR
  local d=$1
  rm -r "$d/replaced" "$d/names"; : > "$d/sparse"; truncate -s 500M "$d/sparse"; setfattr -x user.spill "$d/random"
  bytes 1000 > "$d/late/x"; echo more >> "$d/tiny"; rm "$d/long"
}

datasets() { # all with files
  echo src src/old src/large src/gz src/bits src/zle enc enc/own red
}

# A block device comes a moment after its volume.
volume() {
  local dev=/dev/zvol/$1
  for _ in $(seq 60); do [ -e "$dev" ] && break; sleep 0.5; done
  echo "$dev"
}

truncate -s 700M "$fresh/image/d1"
zpool create -f -O mountpoint="$mnt/fresh" -O atime=off -O acltype=posix -O xattr=sa -O compression=lz4 fresh "$fresh/image/d1"
zfs create -o dnodesize=auto -o com.example:note="some text" -o recordsize=128k fresh/src
zfs create -o xattr=dir -o dnodesize=legacy -o compression=off -o recordsize=4k -o quota=1G -o refquota=900M fresh/src/old
zfs create fresh/src/old/deep
zfs create -o recordsize=1M -o compression=zstd -o dnodesize=2k fresh/src/large
zfs create -o compression=gzip-9 -o checksum=sha256 -o copies=2 -o recordsize=8k fresh/src/gz
zfs create -o recordsize=512 -o compression=lzjb fresh/src/bits
zfs create -o compression=zle -o checksum=skein -o readonly=off -o org.example:x=1 fresh/src/zle
zfs create -o casesensitivity=insensitive -o normalization=formD fresh/src/forms
zfs create -s -V 16M -o volblocksize=16k fresh/src/vol
echo "$hex" | zfs create -o encryption=aes-256-gcm -o keyformat=hex -o keylocation=prompt fresh/enc
zfs create fresh/enc/sub
echo "$hex" | zfs create -o encryption=aes-128-ccm -o keyformat=hex -o keylocation=prompt -o recordsize=1M -o dnodesize=auto fresh/enc/own
zfs create fresh/red; zfs create fresh/head; zfs create fresh/miss; zfs create fresh/miss/one; zfs create fresh/miss/two
for name in $(datasets); do first "$mnt/fresh/$name"; done
echo A > "$mnt/fresh/src/forms/Name"; echo deep > "$mnt/fresh/src/old/deep/x"; echo sub > "$mnt/fresh/enc/sub/x"; first "$mnt/fresh/head"
bytes 2200000 > "$mnt/fresh/src/large/big"; bytes 2200000 > "$mnt/fresh/enc/own/big"
vol=$(volume fresh/src/vol)
bytes 500000 | dd of="$vol" conv=notrunc status=none; head -c 600000 /dev/zero | tr '\0' v | dd of="$vol" bs=100000 seek=40 conv=notrunc iflag=fullblock status=none
sync; zpool sync fresh
zfs snapshot -r fresh@a; zfs hold -r keep fresh/src@a; zfs hold -r "kept too" fresh/src@a
zfs set com.example:snap=yes fresh/src@a
for name in src src/old src/vol enc red; do zfs bookmark "fresh/$name@a" "fresh/$name#mark"; done
zfs clone -o recordsize=16k fresh/src/old@a fresh/src/kid; second "$mnt/fresh/src/kid"
zfs clone fresh/enc@a fresh/enc/kid; echo kid > "$mnt/fresh/enc/kid/new"
zfs clone fresh/red@a fresh/public; bytes 130000 | at_byte "$mnt/fresh/public/random" 0; rm "$mnt/fresh/public/replaced"; echo public > "$mnt/fresh/public/tiny"
zpool sync fresh; zfs snapshot fresh/public@less; zfs redact fresh/red@a book fresh/public@less
for name in $(datasets); do second "$mnt/fresh/$name"; done
bytes 300000 | at_byte "$mnt/fresh/src/large/big" 900000; echo B > "$mnt/fresh/src/forms/other"
bytes 100000 | dd of="$vol" bs=100000 seek=20 conv=notrunc iflag=fullblock status=none; blkdiscard -o 131072 -l 131072 "$vol"
sync; zpool sync fresh; zfs snapshot -r fresh@b; zfs hold later fresh/src/old@b
for name in $(datasets) src/kid; do third "$mnt/fresh/$name"; done
zfs set copies=2 fresh/src/bits; zfs set com.example:note=other fresh/src/old
sync; zpool sync fresh; zfs snapshot -r fresh@c
zfs destroy fresh/miss/two@c; zfs create fresh/miss/after; zfs create fresh/src/after; zfs set com.example:late=1 fresh/src/large
second "$mnt/fresh/head"; third "$mnt/fresh/head"; zfs unmount fresh/head

# What came from streams.
zfs send -p fresh/src/old@a | zfs receive -u -o compression=off -x com.example:note fresh/recd; zfs set com.example:note=local fresh/recd
zfs send -R fresh/src/old@b | zfs receive -u -x quota -o copies=2 fresh/recd/tree
partial() { # TARGET BYTES WORDS…: a receive that breaks off
  local to=$1 count=$2; shift 2
  zfs send "$@" 2> /dev/null | head -c "$count" | zfs receive -s -u "$to" 2> /dev/null
  [ "$(zfs get -H -o value receive_resume_token "$to")" != - ] || echo "FAIL  no partial receive in $to"
}
partial fresh/part 1500000 -Lec fresh/src/large@b
zfs send fresh/src/large@a | zfs receive -u fresh/partinc; partial fresh/partinc 300000 -i @a fresh/src/large@b
partial fresh/partraw 1700000 -w fresh/enc/own@b
zfs send -w fresh/enc/own@a | zfs receive -u fresh/partrawinc; partial fresh/partrawinc 200000 -w -i @a fresh/enc/own@b
partial fresh/partred 200000 --redact book fresh/red@a
partial fresh/partvol 300000 fresh/src/vol@b
partial fresh/partclone 40000 -i fresh/src/old@a fresh/src/kid@c
token() { zfs get -H -o value receive_resume_token "$1"; }
zpool sync fresh

keep() { # NAME WORDS…: sends, and says how long the stream would be
  local name=$1; shift
  { printf '%s' "$name"; printf '\t%s' "$@"; echo; } >> "$fresh/sends"
  timeout 300 zfs send "$@" > "$fresh/sent/$name" 2> "$fresh/sent/$name.said"; echo "exit $?" >> "$fresh/sent/$name.said"
  # Two files: it writes to both as if it had opened each by itself.
  case $name in *-S | *-only-* | *-wI* | src.*-i2 | src.*-w) return ;; esac
  timeout 300 zfs send -nP "$@" > "$fresh/sent/$name.size" 2> "$fresh/sent/$name.told"
}

for name in src src/old src/large src/gz src/bits src/zle src/forms src/vol src/kid enc enc/own red; do
  flat=${name//\//.}
  keep "$flat-full" "fresh/$name@c"; keep "$flat-w" -w "fresh/$name@c"
  [ "$name" = src/kid ] || { keep "$flat-i" -i @a "fresh/$name@b"; keep "$flat-i2" -i @b "fresh/$name@c"; keep "$flat-wi" -w -i @a "fresh/$name@c"; }
  keep "$flat-Lec" -L -e -c "fresh/$name@a"
done
for name in src src/large src/vol enc/own; do
  flat=${name//\//.}
  for flags in L e c D Le Lc ec p h b ph; do
    [[ $name = enc/own && $flags = *p* ]] || keep "$flat-only-$flags" "-$flags" "fresh/$name@b"
  done
  for flags in L e c Lec p; do [[ $name = enc/own && $flags = *p* ]] || keep "$flat-i-$flags" "-$flags" -i @a "fresh/$name@c"; done
  keep "$flat-I" -I @a "fresh/$name@c"; keep "$flat-wI" -w -I @a "fresh/$name@c"; keep "$flat-wIph" -w -p -h -I @a "fresh/$name@c"
done
keep src.mark -i '#mark' fresh/src@c; keep old.mark -L -i '#mark' fresh/src/old@b; keep vol.mark -i '#mark' fresh/src/vol@c
keep enc.mark -w -i '#mark' fresh/enc@c; keep enc.mark-plain -c -i '#mark' fresh/enc@c
keep kid.origin -i fresh/src/old@a fresh/src/kid@c; keep kid.originmark -i fresh/src/old#mark fresh/src/kid@c; keep kid.originI -I fresh/src/old@a fresh/src/kid@c
keep kid.p -p -i fresh/src/old@a fresh/src/kid@c; keep enckid -w -i fresh/enc@a fresh/enc/kid@c; keep enckid-plain -i fresh/enc@a fresh/enc/kid@c
keep R -R fresh/src@c; keep R-b -R fresh/src@b; keep R-i -R -i @a fresh/src@c; keep R-I -R -I @a fresh/src@c; keep R-Lec -R -L -e -c fresh/src@c
keep R-p -R -p fresh/src/old@c; keep R-h -R -h fresh/src@b; keep R-b2 -R -b fresh/src@b; keep R-bh -R -b -h fresh/src/old@c
keep R-X -R -X fresh/src/old,fresh/src/vol,fresh/src/kid fresh/src@c; keep R-XI -R -X fresh/src/large -I @a fresh/src@c
keep R-w -R -w fresh/enc@c; keep R-wI -R -w -I @a fresh/enc@c; keep R-wi -R -w -i @a fresh/enc@c; keep R-enc -R fresh/enc@c; keep R-wsrc -R -w fresh/src@b
keep R-s -R -s fresh/miss@c; keep R-missing -R fresh/miss@c; keep R-kid -R -I fresh/src/old@a fresh/src/kid@c; keep R-recd -R fresh/recd@a
keep recd-b -b fresh/recd@a; keep recd-p -p fresh/recd@a; keep recd-pb -p -b fresh/recd@a; keep tree-Rb -R -b fresh/recd/tree@b; keep tree-Rp -R fresh/recd/tree@b
keep red.redact --redact book fresh/red@a; keep red.redact-Lec -L -e -c --redact book fresh/red@a; keep red.i -i '#book' fresh/red@b; keep red.i2 -L -c -i '#book' fresh/red@c
keep red.public -i fresh/red@a fresh/public@less; keep red.mark -i fresh/red#book fresh/public@less; keep red.less --redact book -i fresh/red@a fresh/public@less
keep head fresh/head; keep head-i -L -i @b fresh/head; keep head-w -w fresh/head
for name in part partinc partraw partrawinc partred partvol partclone; do
  keep "$name-t" -t "$(token "fresh/$name")"; keep "$name-tLec" -L -e -c -t "$(token "fresh/$name")"; keep "$name-S" --saved "fresh/$name"
done

# What a receiver must show.
for name in src src/old src/large src/kid src/gz enc enc/own red; do
  for snap in a b c; do
    [ -d "$mnt/fresh/$name/.zfs/snapshot/$snap" ] && manifest "$mnt/fresh/$name/.zfs/snapshot/$snap" > "$fresh/seen/${name//\//.}@$snap"
  done
done
manifest "$mnt/fresh/public" > "$fresh/seen/public@less"
sha256sum < "$vol" > "$fresh/seen/vol"
zfs unmount -a
zpool export fresh && echo "sent $(wc -l < "$fresh/sends") streams, $(du -cb "$fresh"/sent/* | tail -1 | cut -f1) bytes" || echo "FAIL  export of fresh"
tar -C /mnt -cSf /share/streams.tar streams
