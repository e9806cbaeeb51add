# Sourced in the guest: `aquifer replicate` with a kernel's OpenZFS as the far side, both ways, interrupted and continued.
rep=/mnt/replicate mnt=/run/aquifer-kernel-test
mkdir -p "$rep/bin" "$rep/near" "$rep/far" "$rep/run" "$mnt"; chmod 700 "$rep/run"; modprobe fuse
cp /share/aquifer "$rep/bin/aquifer"; export AQUIFER_RUN=$rep/run
via='env PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c'
a() { "$rep/bin/aquifer" "$@"; }
bad() { echo "FAIL  $1"; [ -s /tmp/said ] && tail -30 /tmp/said; }
good() { echo "ok    $1"; }
truncate -s 400M "$rep/near/d1" "$rep/far/d1"
a zpool create -f ${compatibility:+-o compatibility=$compatibility} -O mountpoint="$mnt/near" -O acltype=posix near "$rep/near/d1"
zpool create -f -O mountpoint="$mnt/far" -O acltype=posix far "$rep/far/d1"

tree() { # ZFS MOUNTPOINT DATASET: a tree with an encrypted part
  local zfs=$1 at=$2 name=$3
  $zfs create "$name"; $zfs create -o compression=zstd -o recordsize=1M "$name/large"
  echo password1 | $zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 "$name/locked"
  cp -a /usr/lib/python3*/json "$at/json"; head -c 6000000 /dev/urandom > "$at/large/random"; head -c 5000000 /dev/urandom > "$at/locked/random"
  setfattr -n user.a -v "$(head -c 2000 /dev/urandom | base64 -w 0)" "$at/json"; setfacl -m u:1000:rwx "$at/large/random"; truncate -s 30M "$at/sparse"
  sync; $zfs snapshot -r "$name@one"
}
later() { # ZFS MOUNTPOINT DATASET
  $1 clone "$3/large@one" "$3/clone"; echo clone > "$2/clone/new"
  rm -r "$2/json"; echo more >> "$2/large/random"; head -c 4000000 /dev/urandom > "$2/large/second"; head -c 3000000 /dev/urandom > "$2/locked/second"
  sync; $1 snapshot -r "$3@two"
}
there() { # WHAT FROM TO: the same files at both mount points
  manifest "$2" > /tmp/kept; manifest "$3" > /tmp/found; same /tmp/kept /tmp/found "$1"
}
cut_() { # WHAT ZFS ROOT SIGNAL SNAPSHOT WORDS…: broken off amid the stream of that snapshot of the largest dataset, which leaves a token
  local what=$1 zfs=$2 root=$3 signal=$4 snap=$5 pid; shift 5
  # A shell without job control has its background jobs ignore SIGINT.
  env --default-signal=INT "$rep/bin/aquifer" replicate --rate 150K "$@" > /tmp/said 2>&1 & pid=$!
  for _ in $(seq 120); do grep -q "send .*/large@$snap" /tmp/said && break; sleep 0.5; done
  sleep 10; kill -"$signal" $pid; wait $pid; echo "      ended with $?"
  for _ in $(seq 60); do pgrep -f 'zfs receive' > /dev/null || break; sleep 0.5; done
  $zfs list -H -o name,receive_resume_token -r "$root" > /tmp/tokens; awk '$2 != "-" { found = 1 } END { exit !found }' /tmp/tokens && good "$what" ||
    { bad "$what"; cat /tmp/tokens; }
}
both() { # WAY, ZFS and dataset and its mount point of the source, the same of the target, options: one direction
  local way=$1 zfs=$2 from=$3 at=$4 far=$5 to=$6 there=$7; shift 7
  tree "$zfs" "$at" "$from"
  a replicate -n -r "$@" "$from" "$to" > /tmp/said 2>&1 && grep -q "would send" /tmp/said && good "$way: plan" || bad "$way: plan"
  cut_ "$way: interrupted (INT)" "$far" "${to%/*}" INT one -r "$@" "$from" "$to"
  a replicate -r --verify "$@" "$from" "$to" > /tmp/said 2>&1 && grep -q 'continue the receive' /tmp/said && good "$way: resumed" || bad "$way: resumed"
  grep -c 'both sides are equal' /tmp/said | sed 's/^/      equal datasets: /'
  later "$zfs" "$at" "$from"
  a replicate status -r "$@" "$from" "$to" > /tmp/said 2>&1; [ $? = 3 ] && good "$way: status of a target that is behind" || bad "$way: status"
  cut_ "$way: increment interrupted (KILL)" "$far" "${to%/*}" KILL two -r "$@" "$from" "$to"
  a replicate -r --verify "$@" "$from" "$to" > /tmp/said 2>&1 && grep -q 'continue the receive' /tmp/said && good "$way: increment resumed and verified" || bad "$way: increment resumed"
  [ "$(grep -c 'both sides are equal' /tmp/said)" = 4 ] && good "$way: all four datasets are equal" || bad "$way: equal"
  a replicate status -r "$@" "$from" "$to" > /tmp/said 2>&1 && good "$way: status" || bad "$way: status at the end"
  echo password1 | $far load-key "$to/locked"
  for name in "" /large /locked /clone; do $far mount "$to$name" 2> /dev/null; done
  for name in "" /large /locked /clone; do there "$way: files of $to$name" "$at$name" "$there$name"; done
}
kernel() { zfs "$@"; }
ours() { a zfs "$@"; }
both "ours to the kernel" ours near/src "$mnt/near/src" kernel far/copy "$mnt/far/copy" --via "$via"
both "the kernel to ours" kernel far/own "$mnt/far/own" ours near/copy "$mnt/near/copy" --source-via "$via"
a zpool scrub -w near; a zpool status near | grep -q 'with 0 errors' && good "scrub of near" || { a zpool status near; echo "FAIL  scrub of near"; }
zpool scrub -w far; zpool status far | grep -q 'with 0 errors' && good "scrub of far" || { zpool status far; echo "FAIL  scrub of far"; }
a zpool export near && good "export of near" || echo "FAIL  export of near"
zpool export far || echo "FAIL  export of far"
for pool in near far; do zdb -e -p "$rep/$pool" -bcc "$pool" > /tmp/found 2>&1 && good "zdb of $pool" || { echo "FAIL  zdb of $pool"; tail -5 /tmp/found; }; done
kill "$(cat "$rep/run/lock" 2> /dev/null)" 2> /dev/null; unset AQUIFER_RUN
rm -rf "$rep"
