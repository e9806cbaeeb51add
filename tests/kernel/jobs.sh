# Sourced in the guest by begun.sh and edges.sh: pools below $begun that the kernel leaves in the middle of something.
begun=/mnt/$part mnt=/run/aquifer-kernel-test
rm -rf "$begun" "/share/$part.tar"; mkdir -p "$begun" "$mnt"

param() { [ -w "/sys/module/zfs/parameters/$1" ] && echo "$2" > "/sys/module/zfs/parameters/$1"; }

new() { # POOL COUNT MIB WORDS…, with @N for its disk N and @N-M for several
  local pool=$1 count=$2 size=$3 word words=() i; shift 3
  mkdir "$begun/$pool"
  for i in $(seq "$count"); do truncate -s "${size}M" "$begun/$pool/d$i"; done
  for word; do
    case $word in
      @*-*) for i in $(seq "$(echo "${word#@}" | cut -d- -f1)" "${word#*-}"); do words+=("$begun/$pool/d$i"); done ;;
      @*) words+=("$begun/$pool/d${word#@}") ;;
      *) words+=("$word") ;;
    esac
  done
  zpool create -f -O mountpoint="$mnt/$pool" -O acltype=posix "$pool" "${words[@]}" || return 1
  fill "$mnt/$pool" "$(ls -d /usr/lib/python3*/json)"
  head -c "${BYTES:-24000000}" /dev/urandom > "$mnt/$pool/large"
  sync -f "$mnt/$pool"
}

meanwhile() { # POOL: changes while the work is under way
  echo later > "$mnt/$1/later"; rm -f "$mnt/$1/rand" "$mnt/$1/d/f1"; head -c 3000000 /dev/urandom > "$mnt/$1/more"
  echo x >> "$mnt/$1/hard"; sync -f "$mnt/$1"
}

leave() { # POOL [STATUS]: exports it; status must have shown this
  zpool status -vt "$1" > /tmp/found
  [ -z "$2" ] || grep -qE "$2" /tmp/found || { echo "FAIL  $1 has no work under way"; cat /tmp/found; }
  manifest "$mnt/$1" > "$begun/$1/manifest"
  zpool export "$1" && echo "begun $1" || echo "FAIL  export of $1"
}

disk() { echo "$begun/$1/d$2"; }

# with PARAMETER VALUE COMMAND…: runs the command with this module parameter.
with() { local name=$1 old; old=$(cat "/sys/module/zfs/parameters/$name"); param "$name" "$2"; "${@:3}"; param "$name" "$old"; }

# crash POOL: what the devices have at this moment, in place of an exported pool.
crash() {
  zpool sync "$1"; manifest "$mnt/$1" > "$begun/$1/manifest"
  zpool freeze "$1"
  rm -rf /mnt/copy; mkdir /mnt/copy; cp --sparse=always "$begun/$1"/d* /mnt/copy/
  zpool export "$1"; mv /mnt/copy/d* "$begun/$1/"; touch "$begun/$1/force"; echo "begun $1"
}

secret() { # DATASET WORDS…: an encrypted dataset
  echo 'correct horse battery' > "$begun/${1%%/*}/key"
  zfs create -o encryption=aes-256-gcm -o keyformat=passphrase "${@:2}" "$1" < "$begun/${1%%/*}/key"
}

# The pools as an archive for the host.
keep() { tar -C /mnt -cSf "/share/$part.tar" "$part"; }
