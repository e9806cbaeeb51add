#!/usr/bin/env bash
# Installs the real OpenZFS user-space tools that tests compare with, from Debian's own archive:
# - zdb, ztest, zstream of the machine's own release;
# - zdb-2.4, zstream-2.4, ztest-2.4, ...: OpenZFS 2.4, in a Debian tree of its own (ORACLE_TREE, default /opt/trixie, 600 MB). Wrappers
#   in ORACLE_BIN (default /usr/local/bin) run its programs with its libraries, without a chroot.
# Does nothing if they are installed; prints a notice and continues if they are unavailable.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive
tree=${ORACLE_TREE:-/opt/trixie} bin=${ORACLE_BIN:-/usr/local/bin}
release=trixie
programs="zdb zstream ztest zhack zpool zfs raidz_test"

notice() { echo "oracle: $1: tests against them will be SKIPPED" >&2; }
apt_() { timeout 600 apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null 2>&1; }

# The machine's own release.
install_own() {
  local suite list=/etc/apt/sources.list.d/contrib.sources
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  if [ ! -f "$list" ] && [ -f /etc/apt/sources.list.d/debian.sources ]; then
    # The main archive's own entry, with the component that holds OpenZFS.
    awk 'BEGIN { RS = ""; ORS = "\n" } NR == 1' /etc/apt/sources.list.d/debian.sources |
      sed -e "s/^Suites:.*/Suites: $suite $suite-backports/" -e 's/^Components:.*/Components: contrib/' > "$list"
  fi
  apt_ update
  apt_ install -y --no-install-recommends -t "$suite-backports" zfsutils-linux zfs-test ||
    apt_ install -y --no-install-recommends zfsutils-linux zfs-test ||
    notice "OpenZFS's tools could not be installed"
  apt_ install -y --no-install-recommends fuse3 || true
}

# The mirror of the machine's first archive, as its sources name it.
mirror() {
  awk '/^URIs:/ { print $2; exit } $1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /:\//) { print $i; exit } }' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null
}

# Makes the tree with 2.4 at $1, in a mount namespace of its own, so that no mount outlives it.
make_tree() {
  unshare -m --propagation private bash -euc '
    root=$1 mirror=$2 release=$3
    debootstrap --variant=minbase --include=ca-certificates "$release" "$root" "$mirror"
    printf "deb %s %s main contrib\n" "$mirror" "$release" "$mirror" "$release-backports" > "$root/etc/apt/sources.list"
    cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" || true
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
    for folder in proc dev sys; do
      mountpoint -q "$root/$folder" || mount --rbind "/$folder" "$root/$folder"
    done
    chroot "$root" apt-get -qq update
    chroot "$root" apt-get -qq install -y --no-install-recommends -t "$release-backports" zfsutils-linux zfs-test
    chroot "$root" apt-get -qq clean
  ' make_tree "$1" "$(mirror)" "$release" </dev/null
}

# A script at $2 that runs the tree's program $1.
wrap() {
  local loader
  loader=$(ls "$tree"/lib64/ld-linux-*.so.* "$tree"/lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
  printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' \
    "$loader" "$tree/usr/lib/$(uname -m)-linux-gnu" "$1" > "$2" && chmod +x "$2"
}

# OpenZFS 2.4 beside the machine's own. An interrupted installation leaves no tree at its final place.
install_newest() {
  local part=$tree.part program at
  if [ ! -x "$tree/usr/sbin/zdb" ]; then
    [ ! -e "$tree" ] || { echo "oracle: $tree exists without zdb" >&2; return 1; }
    command -v debootstrap >/dev/null || apt_ install -y --no-install-recommends debootstrap ||
      { apt_ update && apt_ install -y --no-install-recommends debootstrap; } || return
    rm -rf "$part"
    mkdir -p "$part" || return
    timeout 900 bash -c "$(declare -f make_tree mirror); release=$release; make_tree '$part'" > "$part.log" 2>&1 ||
      { tail -n 5 "$part.log" >&2; rm -rf "$part" "$part.log"; return 1; }
    rm -f "$part.log" && mv "$part" "$tree" || return
  fi
  for program in $programs; do
    at=$(ls "$tree/usr/sbin/$program" "$tree/usr/bin/$program" 2>/dev/null | head -n 1)
    [ -z "$at" ] || wrap "$at" "$bin/$program-2.4" || return
  done
  [[ $("$bin/zdb-2.4" --help 2>&1) == *Usage* ]]
}

own() { command -v zdb >/dev/null && command -v ztest >/dev/null; }
newest() { [ -x "$bin/zdb-2.4" ] && [ -x "$bin/ztest-2.4" ]; }
own && newest && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  own || notice "zdb and ztest are not installed and can't be (no root or no apt)"
  newest || notice "zdb-2.4 and ztest-2.4 are not installed and can't be (no root or no apt)"
  exit 0
fi
lock=$(dirname "$0")/../target/oracle.lock
mkdir -p "${lock%/*}" && exec 9> "$lock" && flock 9
own || install_own
newest || install_newest || notice "OpenZFS 2.4's tools could not be installed"
exit 0
