#!/usr/bin/env bash
# tests/xfstests.sh BINARY [TEST…]: xfstests' generic tests on mounts of ours; run by hand before a release, as root.
#
# XFSTESTS_DIR names a built checkout (not part of this repository; docs/testing.md describes the build). Without tests, all
# generic ones. Each has LIMIT seconds (120). RESULTS (target/xfstests) keeps one line for each test that has run, and the
# output of failed ones; listed tests are not run again, so that a run continues where it stopped.
#
# Everything happens in name spaces of its own: the mount helper, the test users, the daemon and its mounts end with it.
set -uo pipefail
binary=$(realpath "${1:?the aquifer binary}")
: "${XFSTESTS_DIR:?a built checkout of xfstests}"
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export RESULTS=${RESULTS:-$here/../target/xfstests} LIMIT=${LIMIT:-120}
[ "$(id -u)" = 0 ] || { echo "SKIPPED: needs root"; exit 0; }
[ -e /dev/fuse ] || { echo "SKIPPED: no /dev/fuse here"; exit 0; }
[ -x "$XFSTESTS_DIR/ltp/fsstress" ] || { echo "$XFSTESTS_DIR is not built"; exit 1; }
if [ -z "${IN_NAMESPACE:-}" ]; then
  IN_NAMESPACE=1 exec unshare -m -p -f --mount-proc --kill-child bash "$0" "$@"
fi
shift
# xfstests names files in /tmp by process ids, which begin at 1 in each name space: two runs must not meet.
echo $((RANDOM % 32000 + 300)) > /proc/sys/kernel/ns_last_pid
mkdir -p "$RESULTS/said"
work=$(mktemp -d "${TMPDIR:-/tmp}/aquifer-xfstests.XXXXXX")
chmod 755 "$work"
export AQUIFER_RUN=$work/run
mkdir -p -m 700 "$AQUIFER_RUN"
mkdir "$work/test" "$work/scratch" "$work/over" "$work/bin"
for name in zpool zfs mount.zfs; do ln -s "$binary" "$work/bin/$name"; done
PATH=$work/bin:$PATH

# over FOLDER: changes below it disappear with the name space
over() {
  mount -t tmpfs tmpfs "$work/over" && mkdir "$work/over/up" "$work/over/work" &&
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$work/over/up,workdir=$work/over/work" "$1"
}
over "$(realpath /sbin)" && over /etc || { echo "SKIPPED: no overlay here"; exit 0; }

# mount(8) calls it with SOURCE FOLDER -o OPTIONS
cat > /sbin/mount.fuse.aquifer <<HELPER
#!/bin/sh
source=\$1 at=\$2 options=rw
shift 2
while getopts sfnvo:t:N: letter; do [ "\$letter" = o ] && options=\$OPTARG; done
AQUIFER_RUN=$AQUIFER_RUN exec $work/bin/mount.zfs "\$source" "\$at" -o "\$options"
HELPER
chmod 755 /sbin/mount.fuse.aquifer
for user in fsgqa fsgqa2 123456-fsgqa; do
  home=$work/home/$user
  mkdir -p "$home"
  id "$user" >/dev/null 2>&1 || useradd -M -d "$home" "$user" 2>/dev/null || useradd -M -d "$home" --badname "$user" 2>/dev/null
  chown "$user" "$home" 2>/dev/null
done

# xfstests knows FUSE by the type `fuse` only; ours is `fuse.zfs`.
printf '#!/bin/sh\n%s "$@" | sed s/fuse.zfs/fuse/\n' "$(command -v df)" > "$work/bin/df"
chmod 755 "$work/bin/df"

export FSTYP=fuse FUSE_SUBTYP=.aquifer HOST_OPTIONS=$work/config
export TEST_DEV=xfstests/test TEST_DIR=$work/test SCRATCH_DEV=xfstests/scratch SCRATCH_MNT=$work/scratch
export RESULT_BASE=$work/results
: > "$HOST_OPTIONS"

begin() {
  truncate -s 6G "$work/disk"
  zpool create -o cachefile=none -O mountpoint=none -O acltype=posix -O xattr=sa xfstests "$work/disk" &&
    zfs create -o mountpoint=legacy -o quota=2G xfstests/test && zfs create -o mountpoint=legacy -o quota=2G xfstests/scratch
}

# All processes of this name space except this shell: a hanging test or daemon leaves some.
end() {
  umount -l "$work/test" "$work/scratch" 2>/dev/null
  for pid in $(ps -e -o pid= --no-headers); do [ "$pid" = 1 ] || [ "$pid" = $$ ] || kill -9 "$pid" 2>/dev/null; done
  sleep 1
  umount -l "$work/test" "$work/scratch" 2>/dev/null
  rm -rf "$work/disk" "${AQUIFER_RUN:?}"/*
}
trap 'end; umount -l "$work/over" "$work/over"; rm -rf "$work"' EXIT

sound() { timeout 20 zpool status -x 2>/dev/null | grep -q "all pools are healthy"; }

# one TEST: its line in the table
one() {
  local test=$1 began=$SECONDS verdict why= out=$RESULT_BASE/$1 said=$RESULTS/said/${1//\//-}
  rm -rf "$RESULT_BASE"
  (cd "$XFSTESTS_DIR" && timeout -k 10 "$LIMIT" setsid ./check "$test") > "$said" 2>&1 < /dev/null
  case $? in
    124 | 137) verdict=limit why="more than $LIMIT s" ;;
    *)
      if [ -e "$out.notrun" ]; then verdict=notrun why=$(head -n 1 "$out.notrun")
      elif grep -q '^Failures: ' "$said"; then
        why=$(grep -m 1 -E '^ +[+][^+]' "$said" || grep -m 1 -E '^ +-[^-]' "$said")
        verdict=fail why=$(sed 's/^ *//' <<< "$why" | tr '\t' ' ' | cut -c 1-120)
      elif grep -q '^Passed all 1 tests' "$said"; then verdict=pass
      else verdict=fail why="no verdict: $(tail -n 1 "$said")"; fi ;;
  esac
  [ -e "$out.out.bad" ] && cat "$out.out.bad" >> "$said"
  case $verdict in pass | notrun) rm "$said" ;; esac
  if ! sound; then
    [ $verdict = limit ] || { verdict=fail why="the pool is not sound afterwards; $why"; }
    { zpool status; tail -n 50 "$AQUIFER_RUN/log"; } >> "$said" 2>&1
  fi
  printf '%s\t%s\t%d\t%s\n' "$test" "$verdict" $((SECONDS - began)) "$why" | tee -a "$RESULTS/table"
  case $verdict in limit) ;; *) sound && return ;; esac
  end; begin
}

begin || { echo "SKIPPED: no pool here"; exit 0; }
touch "$RESULTS/table"
[ $# = 0 ] && set -- $(cd "$XFSTESTS_DIR/tests" && ls generic | grep -xE '[0-9]+' | sed 's|^|generic/|')
for test; do
  grep -q "^$test	" "$RESULTS/table" || one "$test"
done
for verdict in pass fail limit notrun; do
  printf '%-7s %4d\n' $verdict "$(cut -f 2 "$RESULTS/table" | grep -cx $verdict)"
done
