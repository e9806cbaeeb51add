# Shared by the host and the guest: what a user sees of a file system, and something to see.

# manifest DIR: names, kinds, modes, owners, sizes, times, links, contents, attributes and ACLs below DIR.
manifest() {
  (
    cd "$1" || exit 1
    find . -xdev -path ./.zfs -prune -o -printf '%P|%y|%m|%U:%G|%s|%T@|%n|%l\n' | sort
    find . -xdev -type f -print0 | sort -z | xargs -0 sha256sum
    getfattr -R -d -m - . 2>/dev/null | sort
    getfacl -R -n -s . 2>/dev/null
  )
}

# contents DIR: names and contents only.
contents() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

# accounts POOL: space and properties of all but the pool's own dataset, which has what importing writes.
accounts() {
  zfs list -Hp -r -t all -o name,used,referenced,logicalused,logicalreferenced,usedbysnapshots,usedbychildren "$1" |
    grep -v "^$1	"
}

# fill DIR SOURCE: files of all kinds, some removed again.
fill() {
  local d=$1 i
  cp -a "$2" "$d/src"
  mkdir -p "$d/d" "$d/$(printf 'n%.0s' $(seq 200))"
  for i in $(seq 300); do echo "file $i" > "$d/d/f$i"; done
  head -c 5000000 /dev/urandom > "$d/rand"
  ln "$d/rand" "$d/hard"; ln -s rand "$d/soft"; mkfifo "$d/fifo"; mknod "$d/null" c 1 3
  truncate -s 100M "$d/sparse"; echo mid | dd of="$d/sparse" bs=1 seek=50000000 conv=notrunc status=none
  setfattr -n user.big -v "$(head -c 3000 /dev/zero | tr '\0' x)" "$d/rand"
  setfattr -n user.a -v b "$d/d"
  chmod 4755 "$d/d/f1"; chown 1000:1001 "$d/d/f2"; touch -d '2001-02-03 04:05:06.789' "$d/d/f3"
  setfacl -m u:1000:rwx "$d/d/f4"; setfacl -d -m g:1001:rx "$d/d"
  for i in $(seq 50); do rm "$d/d/f$((i * 3))"; done
}
