#!/usr/bin/env bash
# Builds a .deb with dpkg-deb: `make deb`. The package does not touch an installed OpenZFS:
#
#   /usr/lib/aquifer/{bin,share}   the program, its links (zpool, zfs, …), man pages, completions
#   /usr/sbin/aquifer              a link to the program; man pages aquifer(8), aquifer-settings(5); systemd units
#   /usr/sbin/zpool, …             links for unused names, created at installation; removed with the package
#   /etc/zfs/zed.d                 likewise links to zedlets, and zed.rc
#
#   BINARY=target/release/aquifer OUT=target packaging/deb.sh
set -euo pipefail

BINARY=${BINARY:-target/release/aquifer}
OUT=${OUT:-target}
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v dpkg-deb >/dev/null; then
    echo "dpkg-deb is missing, installing it" >&2
    { apt-get update && apt-get install -y dpkg; } || dnf install -y dpkg || { echo "no way to get dpkg-deb" >&2; exit 1; }
fi
[ -x "$BINARY" ] || { echo "$BINARY is missing: make build" >&2; exit 1; }

version=$("$BINARY" version | sed 's/^aquifer-//')
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf -- "$stage"' EXIT
root=$stage/root
home=/usr/lib/aquifer

BINARY=$BINARY PREFIX=$home BINDIR=$home/bin DESTDIR=$root SYSCONFDIR=/etc UNITDIR=/usr/lib/systemd/system \
    USERUNITDIR=/usr/lib/systemd/user ZEDLETS=$home/zed.d ZEDDIR= "$here/install.sh" install >/dev/null
rm -rf "$root$home/share/aquifer"
# Units call the program at its public path.
sed -i "s#$home/bin/aquifer#/usr/sbin/aquifer#" "$root"/usr/lib/systemd/{system,user}/*.service
mkdir -p "$root/usr/sbin" "$root/usr/share/man/man5" "$root/usr/share/man/man8" "$root/usr/share/bash-completion/completions"
ln -s ../lib/aquifer/bin/aquifer "$root/usr/sbin/aquifer"
ln -s ../../../lib/aquifer/share/man/man5/aquifer-settings.5.gz "$root/usr/share/man/man5/"
ln -s ../../../lib/aquifer/share/man/man8/aquifer.8.gz "$root/usr/share/man/man8/"
ln -s ../../../lib/aquifer/share/bash-completion/completions/aquifer "$root/usr/share/bash-completion/completions/"
install -D -m 644 "$here/../README.md" "$root/usr/share/doc/aquifer/README.md"
cat "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" >"$root/usr/share/doc/aquifer/copyright"

# The oldest C library with all symbols that the program needs.
libc=$(grep -ao 'GLIBC_[0-9.]*' "$BINARY" | sed 's/GLIBC_//' | sort -uV | tail -1)
mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: aquifer
Version: $version
Architecture: $arch
Maintainer: Aquifer developers <aquifer@localhost>
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: libc6 (>= ${libc:-2.31}), libgcc-s1
Recommends: fuse3
Section: admin
Priority: optional
Description: OpenZFS pools in user space
 Pools, datasets and mounted file systems of OpenZFS without a kernel module:
 the commands zpool, zfs, zdb, arcstat and arc_summary, and a daemon that owns
 imported pools. An installed OpenZFS stays as it is.
CONTROL
echo /etc/aquifer/aquifer.conf >"$root/DEBIAN/conffiles"
install -m 755 "$here/debian/postinst" "$here/debian/prerm" "$here/debian/postrm" "$root/DEBIAN/"
(cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$OUT"
dpkg-deb --root-owner-group ${DEB_COMPRESS:--Zxz} --build "$root" "$OUT/aquifer_${version}_$arch.deb"
