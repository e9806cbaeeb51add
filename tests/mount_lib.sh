# A daemon of its own and a mounted pool of sparse files; sourced by tests that use a mount. $1: the binary.
set -uo pipefail
binary=$(realpath "${1:?the aquifer binary}")
work=$(mktemp -d "${TMPDIR:-/tmp}/aquifer-mount.XXXXXX")
mnt=$work/mnt
export AQUIFER_RUN=$work/run
mkdir -p -m 700 "$AQUIFER_RUN"
mkdir "$work/bin" "$work/disks"
chmod 755 "$work" # other users work on the mount, too
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
for name in aquifer zpool zfs; do ln -s "$binary" "$work/bin/$name"; done
export PATH=$work/bin:$PATH
failed=0

skip() { echo "SKIPPED: $*"; exit 0; }

finish() {
  zpool export scratch >/dev/null 2>&1
  [ -f "$AQUIFER_RUN/lock" ] && kill "$(cat "$AQUIFER_RUN/lock")" 2>/dev/null
  umount -l "$mnt" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

[ "$(id -u)" = 0 ] || skip "needs root"
[ -e /dev/fuse ] || skip "no /dev/fuse here"

# get PACKAGE COMMAND: installs a package whose command is missing; false if it is unavailable
get() {
  command -v "$2" >/dev/null && return 0
  command -v apt-get >/dev/null || return 1
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$1" >/dev/null 2>&1
  command -v "$2" >/dev/null
}

# make_pool OPTIONS...: the pool `scratch`, a mirror of two files of 3 GiB
make_pool() {
  truncate -s 3G "$work/disks/a" "$work/disks/b"
  zpool create -O "mountpoint=$mnt" "$@" scratch mirror "$work/disks/a" "$work/disks/b" ||
    skip "the pool can't be mounted here"
}

# check NAME COMMAND...: one line of the table; the output on failure
check() {
  local name=$1 began=$SECONDS; shift
  if timeout "${LIMIT:-600}" "$@" >"$work/said" 2>&1; then
    printf '%-28s passed  %4d s  %s\n' "$name" $((SECONDS - began)) "$(grep -aE '^(Summary|counted):' "$work/said" | tail -1)"
  else
    printf '%-28s FAILED  %4d s\n' "$name" $((SECONDS - began))
    tail -n 15 "$work/said" | sed 's/^/    /'
    failed=1
  fi
}

# Checks the exported pool with the real zdb.
judge() {
  zpool export scratch || { echo "export: FAILED"; failed=1; return; }
  if command -v zdb >/dev/null && ! [ "$(command -v zdb)" = "$work/bin/zdb" ]; then
    check "zdb -e -bcc" sh -c "zdb -e -p '$work/disks' -bcc scratch 2>&1 | tee /dev/stderr | grep -q 'No leaks'"
  fi
}
