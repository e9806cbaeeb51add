#!/usr/bin/env bash
# tests/kernel/image.sh DIR [RELEASE]: makes a small Debian (of this machine's release, or RELEASE) with a kernel and
# OpenZFS's module in it (DIR/root.img, DIR/vmlinuz, DIR/initrd.img), from the package source of this machine. Root; about
# 10 minutes; done once.
set -euo pipefail
dir=$1
[ -e "$dir/root.img" ] && exit 0
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
. /etc/os-release
sources=/etc/apt/sources.list.d/debian.sources
[ "$(id -u)" = 0 ] && [ -e "$sources" ] || { echo "needs root on a Debian" >&2; exit 1; }
command -v qemu-system-x86_64 >/dev/null && command -v debootstrap >/dev/null ||
  apt-get -qq install -y --no-install-recommends qemu-system-x86 seabios debootstrap attr acl >/dev/null
release=${2:-$VERSION_CODENAME}
mirror=$(awk '/^URIs:/ { print $2; exit }' "$sources")
root=$dir/root
rm -rf "$root"; mkdir -p "$dir"
debootstrap --variant=minbase \
  --include=systemd,systemd-sysv,udev,dbus,kmod,iproute2,procps,psmisc,fuse3,ca-certificates,e2fsprogs,util-linux \
  "$release" "$root" "$mirror"
: > "$root/etc/apt/sources.list"
sed "/^Suites:/s/$VERSION_CODENAME/$release/g" "$sources" > "$root/etc/apt/sources.list.d/debian.sources"
awk 'BEGIN { RS = ""; ORS = "\n" } NR == 1' "$sources" |
  sed -e "s/^Suites:.*/Suites: $release $release-backports/" -e 's/^Components:.*/Components: contrib/' \
    > "$root/etc/apt/sources.list.d/contrib.sources"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
mount --bind /proc "$root/proc"
trap 'umount "$root/proc"' EXIT
# A directory for temporary files outside is none inside.
apt_() { TMPDIR=/tmp chroot "$root" apt-get -qq "$@"; }
apt_ update
apt_ install -y --no-install-recommends linux-image-amd64 linux-headers-amd64 initramfs-tools nfs-kernel-server \
  nfs-common attr acl gcc make python3
apt_ install -y --no-install-recommends -t "$release-backports" zfs-dkms zfsutils-linux
rm -rf "$root/usr/sbin/policy-rc.d" "$root"/var/cache/apt/archives/*.deb
# The guest's own ZFS takes no pool by itself.
chroot "$root" systemctl -q disable zfs-import-cache zfs-import-scan zfs-mount zfs-zed nfs-server || true
cat > "$root/etc/systemd/system/guest.service" <<'X'
[Unit]
Description=What the host asks for
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'mkdir -p /share; mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share; bash /share/run.sh; sync; systemctl poweroff'
X
ln -sf ../guest.service "$root/etc/systemd/system/multi-user.target.wants/"
umount "$root/proc"; trap - EXIT
cp -L "$root/vmlinuz" "$root/initrd.img" "$dir/"
truncate -s 6G "$dir/root.img.new"
rm -rf "$root"/dev/*
mke2fs -q -t ext4 -d "$root" "$dir/root.img.new"
rm -rf "$root"
mv "$dir/root.img.new" "$dir/root.img"
