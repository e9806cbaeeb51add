#!/usr/bin/env bash
# tests/clients.sh BINARY: third-party programs that use zpool and zfs, unmodified, with ours first in PATH. They are
# unpacked from Debian's archive, not installed. zrepl is not in it: $ZREPL names its program, or PATH has it.
. "$(dirname "$0")/mount_lib.sh"
command -v apt-get >/dev/null || skip "no apt-get here"
cd "$work" && mkdir debs && cd debs || exit 1
for package in zfs-auto-snapshot sanoid zfsnap libconfig-inifiles-perl libcapture-tiny-perl; do
  apt-get download -qq "$package" >/dev/null 2>&1 && dpkg-deb -x "$package"_*.deb "$work/root"
done
root=$work/root
export PERL5LIB=$root/usr/share/perl5
make_pool
zfs create scratch/home && zfs create scratch/home/a && zfs create scratch/no
zfs set com.sun:auto-snapshot=false scratch/no
snapshots() { zfs list -H -t snapshot -o name "$@"; }
export -f snapshots

if [ -x "$root/usr/sbin/zfs-auto-snapshot" ]; then
  auto() {
    for day in 1 2 3; do zfs snapshot -r "scratch/home@zfs-auto-snap_hourly-2026-01-0$day-0017"; done
    "$root/usr/sbin/zfs-auto-snapshot" --label=hourly --keep=2 // || return 1
    [ "$(snapshots -d 1 scratch/home | grep -c _hourly-)" = 2 ] && [ "$(snapshots -d 1 scratch/home/a | grep -c _hourly-)" = 2 ] &&
      [ "$(snapshots -d 1 scratch | grep -c _hourly-)" = 1 ] && ! snapshots -d 1 scratch/no | grep -q . &&
      ! snapshots | grep -q 2026-01-02
  }
  export -f auto; export root
  check zfs-auto-snapshot bash -c auto
else echo "zfs-auto-snapshot            SKIPPED: can't be had"; fi

if [ -x "$root/usr/sbin/sanoid" ]; then
  sanoid() {
    local conf=$work/sanoid; mkdir -p "$conf" /usr/share/sanoid
    printf '%s\n' '[scratch/home]' use_template=t recursive=yes '[template_t]' "hourly=$1" "daily=$1" "monthly=$1" \
      yearly=0 autosnap=yes autoprune=yes > "$conf/sanoid.conf"
    # Debian's sanoid reads its defaults from one place only.
    unshare -m sh -c "mount --bind '$root/usr/share/sanoid' /usr/share/sanoid && \"\$@\"" sh \
      perl "$root/usr/sbin/sanoid" --configdir="$conf" --cache-dir="$conf/cache" --run-dir="$conf/run" "${@:2}"
  }
  rounds() {
    sanoid 1 --take-snapshots --verbose || return 1
    [ "$(snapshots -r scratch/home | grep -c @autosnap_)" = 6 ] || { snapshots; return 1; }
    sanoid 1 --monitor-snapshots --force-update && sanoid 1 --monitor-health && sanoid 1 --monitor-capacity || return 1
    sleep 1
    sanoid 0 --prune-snapshots --force-update --verbose
    ! snapshots -r scratch/home | grep @autosnap_
  }
  export -f sanoid rounds; export work
  check sanoid bash -c rounds
  rmdir /usr/share/sanoid 2>/dev/null
else echo "sanoid                       SKIPPED: can't be had"; fi

if [ -x "$root/usr/sbin/zfSnap" ] && [ -e /sbin/zfs ]; then
  zfsnap() {
    # It asks for its zfs at one place only.
    unshare -m sh -c "mount --bind '$binary' /sbin/zfs && \"\$@\"" sh sh "$root/usr/sbin/zfSnap" "$@"
  }
  rounds() {
    zfsnap -a 1s -r scratch/home || return 1
    [ "$(snapshots -r scratch/home | grep -c -- --1s)" = 2 ] || { snapshots; return 1; }
    sleep 2; zfsnap -v -d
    ! snapshots -r scratch/home | grep -- --1s
  }
  export -f zfsnap rounds; export binary
  check zfsnap bash -c rounds
else echo "zfsnap                       SKIPPED: can't be had"; fi

# The second pool of the tools that copy.
truncate -s 512M "$work/copies.img" && zpool create -O mountpoint=none copies "$work/copies.img"
zfs create -o mountpoint=none scratch/send && zfs create -V 8M scratch/send/vol
# What both sides have in their snapshots, below two datasets.
same() { diff <(zfs list -Hp -r -t snapshot -o name,guid "$1" | sed "s#^$1##" | sort) <(zfs list -Hp -r -t snapshot -o name,guid "$2" | sed "s#^$2##" | sort); }
export -f same

if [ -x "$root/usr/sbin/syncoid" ]; then
  # Its snapshots are named by the second: two runs within one fail.
  syncoid() { sleep 1; perl "$root/usr/sbin/syncoid" --no-privilege-elevation --compress=none "$@"; }
  rounds() {
    zfs snapshot -r scratch/send@one
    syncoid -r scratch/send copies/send && syncoid -r scratch/send copies/send && same scratch/send/vol copies/send/vol || return 1
    # A partial receive is continued by its token.
    zfs create -o mountpoint=none -o encryption=on -o keyformat=passphrase -o keylocation="file://$work/pass" scratch/secret || return 1
    zfs snapshot scratch/secret@s
    zfs send -w scratch/secret@s > "$work/stream" && head -c $(($(stat -c %s "$work/stream") * 2 / 3)) "$work/stream" | zfs receive -s -u copies/secret
    [ "$(zfs get -Ho value receive_resume_token copies/secret)" != - ] || return 1
    syncoid --sendoptions=w scratch/secret copies/secret || return 1
    syncoid --sendoptions=w scratch/secret copies/secret && same scratch/secret copies/secret &&
      [ "$(zfs get -Ho value encryption copies/secret)" = aes-256-gcm ]
  }
  echo correct horse battery > "$work/pass"
  export -f syncoid rounds
  check syncoid bash -c rounds
else echo "syncoid                      SKIPPED: can't be had"; fi

if python3 -m pip install -q --target "$work/py" zfs-autobackup >/dev/null 2>&1; then
  autobackup() { PYTHONPATH=$work/py python3 -c 'from zfs_autobackup.ZfsAutobackup import cli; cli()' "$@"; }
  rounds() {
    zfs set autobackup:off1=true scratch/send && zfs create copies/auto || return 1
    autobackup --verbose --allow-empty off1 copies/auto && sleep 1 && autobackup --verbose --allow-empty off1 copies/auto || return 1
    [ "$(snapshots copies/auto/scratch/send/vol -r | grep -c @off1-)" = 2 ]
  }
  export -f autobackup rounds
  check zfs-autobackup bash -c rounds
else echo "zfs-autobackup               SKIPPED: can't be had"; fi

if python3 -m pip install -q --target "$work/py" pyznap >/dev/null 2>&1; then
  pyznap() { PYTHONPATH=$work/py python3 -c 'import sys; from pyznap.main import main; sys.exit(main())' --config "$work/pyznap.conf" "$@"; }
  rounds() {
    zfs create -o mountpoint=none scratch/py && zfs create -o mountpoint=none scratch/py/kid && zfs create -o mountpoint=none copies/py || return 1
    printf '%s\n' '[scratch/py]' 'hourly = 1' 'daily = 1' 'snap = yes' 'clean = yes' 'dest = copies/py' > "$work/pyznap.conf"
    pyznap snap && pyznap send && zfs create scratch/py/later || return 1
    sleep 1
    pyznap snap && pyznap send && pyznap snap --clean && same scratch/py copies/py && [ "$(snapshots copies/py/later | wc -l)" = 2 ]
  }
  export -f pyznap rounds
  check pyznap bash -c rounds
else echo "pyznap                       SKIPPED: can't be had"; fi

if zrepl=$(command -v "${ZREPL:-zrepl}"); then
  cat > "$work/zrepl.yml" <<END
global:
  control: { sockpath: $work/zrepl/control }
  serve: { stdinserver: { sockdir: $work/zrepl/in } }
jobs:
- { name: sink, type: sink, root_fs: copies/zrepl, serve: { type: local, listener_name: here }, recv: { placeholder: { encryption: inherit } } }
- name: push
  type: push
  connect: { type: local, listener_name: here, client_identity: us }
  filesystems: { "scratch/zrepl<": true }
  snapshotting: { type: manual }
  send: { encrypted: false }
  pruning: { keep_sender: [ { type: last_n, count: 1 } ], keep_receiver: [ { type: last_n, count: 2 } ] }
END
  mkdir -m 700 "$work/zrepl" "$work/zrepl/in"
  # In the end the source has the newest snapshot, and the target that and the one before.
  is_done() {
    local of there
    for of in scratch/zrepl scratch/zrepl/kid scratch/zrepl/vol; do
      there=$(snapshots -d 1 copies/zrepl/us/$of 2> /dev/null)
      [ "$(snapshots -d 1 $of)" = "$of@$1" ] && [[ $there = *@$1 ]] && [ "$(wc -l <<< "$there")" -le 2 ] || return 1
    done
  }
  replicated() {
    for _ in $(seq 150); do is_done "$1" && return; sleep 0.2; done
    zfs list -t all -r scratch/zrepl copies/zrepl; return 1
  }
  rounds() {
    zfs create -o mountpoint=none scratch/zrepl && zfs create -V 8M scratch/zrepl/vol && zfs create -o mountpoint=none scratch/zrepl/kid &&
      zfs create -o mountpoint=none copies/zrepl || return 1
    local of=(--config "$work/zrepl.yml") round
    "$zrepl" "${of[@]}" configcheck > /dev/null || return 1
    "$zrepl" "${of[@]}" daemon & local daemon=$!
    for round in one two three; do
      zfs snapshot -r "scratch/zrepl@$round" || return 1
      # It fails while the daemon starts, and while the job still prunes.
      for _ in $(seq 40); do sleep 0.5; "$zrepl" "${of[@]}" signal wakeup push && break; done
      replicated "$round" || { kill $daemon; return 1; }
    done
    kill $daemon; wait $daemon
    [ "$(snapshots -d 1 copies/zrepl/us/scratch/zrepl/vol | wc -l)" = 2 ] && [ "$(zfs list -Ho guid scratch/zrepl/vol@three)" = "$(zfs list -Ho guid copies/zrepl/us/scratch/zrepl/vol@three)" ]
  }
  export -f rounds is_done replicated; export zrepl work
  check zrepl bash -c rounds
else echo "zrepl                        SKIPPED: can't be had"; fi
zpool export copies || failed=1
judge
exit $failed
