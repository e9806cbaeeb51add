#!/usr/bin/env bash
# Installs the real OpenZFS user-space tools (zdb, ztest, zstream) that tests compare with, from Debian's own
# archive. Does nothing if they are installed; prints a notice and continues if they are unavailable.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive
if command -v zdb >/dev/null && command -v ztest >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "oracle: zdb and ztest are not installed and can't be (no root or no apt): tests against them will be SKIPPED" >&2
  exit 0
fi
apt_() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null 2>&1; }
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
list=/etc/apt/sources.list.d/contrib.sources
if [ ! -f "$list" ] && [ -f /etc/apt/sources.list.d/debian.sources ]; then
  # The main archive's own entry, with the component that holds OpenZFS.
  awk 'BEGIN { RS = ""; ORS = "\n" } NR == 1' /etc/apt/sources.list.d/debian.sources |
    sed -e "s/^Suites:.*/Suites: $suite $suite-backports/" -e 's/^Components:.*/Components: contrib/' > "$list"
fi
apt_ update
apt_ install -y --no-install-recommends -t "$suite-backports" zfsutils-linux zfs-test ||
  apt_ install -y --no-install-recommends zfsutils-linux zfs-test ||
  echo "oracle: OpenZFS's tools could not be installed: tests against them will be SKIPPED" >&2
apt_ install -y --no-install-recommends fuse3 || true
exit 0
