#!/usr/bin/env bash
# tests/posix.sh BINARY [SECONDS]: third-party file system tests on a mount of ours. Installs missing tools
# where it can; tests without their tool are SKIPPED. fsx runs for SECONDS (60), one seed after the other from SEED (1).
. "$(dirname "$0")/mount_lib.sh"
seconds=${2:-60} seed=${SEED:-1}
tools=$(dirname "$binary")/tools
PATH=$PATH:$tools/bin:$HOME/.cargo/bin

crate() { command -v "$1" >/dev/null || cargo install -q --root "$tools" "$1" >/dev/null 2>&1; command -v "$1" >/dev/null; }

make_pool -O acltype=posix
dir=$mnt/here
mkdir "$dir"
cd "$dir" || exit 1

if crate pjdfstest; then
  printf '%s\n' '[features]' posix_fallocate={} rename_ctime={} utimensat={} utime_now={} '[settings]' naptime=0.01 \
    '[dummy_auth]' 'entries=[["nobody","nogroup"],["daemon","daemon"],["bin","bin"]]' > "$work/pjd.toml"
  check pjdfstest pjdfstest -c "$work/pjd.toml" -p "$dir"
else echo "pjdfstest                    SKIPPED: can't be had"; fi

fsx_for() {
  local until=$((SECONDS + $1)) n=0
  while [ $SECONDS -lt $until ]; do
    fsx -S "$seed" -N 5000 "$dir/fsx" || { echo "seed $seed"; return 1; }
    rm -f "$dir"/fsx*; seed=$((seed + 1)) n=$((n + 5000))
  done
  echo "counted: $n operations"
}
export -f fsx_for; export seed dir
if crate fsx; then LIMIT=$((seconds + 120)) check fsx bash -c "fsx_for $seconds"
else echo "fsx                          SKIPPED: can't be had"; fi

if get fio fio; then
  one() { check "fio $1" fio --name=v --directory="$dir" --verify=crc32c --verify_state_save=0 --do_verify=1 "${@:2}"; rm -f "$dir"/v.*; }
  one psync --size=64m --rw=randrw --bs=4k --ioengine=psync
  one mmap --size=32m --rw=randwrite --bs=4k --ioengine=mmap
  # Several writers of one record at a time.
  for _ in 1 2 3 4; do one "direct, 8 at once" --size=32m --rw=randwrite --bs=16k --ioengine=libaio --iodepth=8 --direct=1; done
else echo "fio                          SKIPPED: can't be had"; fi

if get stress-ng stress-ng; then
  stress() {
    local all; all=$(stress-ng --help)
    for s in access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate file-ioctl filename \
      flock fpunch fstat getdent hdd io iomix lease link locka lockf lockofd mmapaddr msync open rename revio seek \
      sendfile splice symlink sync-file touch utime xattr; do
      grep -q -- "--$s N" <<< "$all" || continue
      local small=
      case $s in
        hdd | iomix | fallocate | sync-file | revio) small="--$s-bytes 16m" ;;
        seek) small="--seek-size 16m" ;;
      esac
      stress-ng --"$s" 2 -t 1 --temp-path "$dir" --verify $small || { echo "stressor $s"; return 1; }
    done
  }
  export -f stress
  check stress-ng bash -c stress
else echo "stress-ng                    SKIPPED: can't be had"; fi

if get git git; then
  check git bash -c "git init -q r && cd r && git config user.email a@b && git config user.name a && cp -r '$here/../crates' . &&
    git add . && git commit -qm one && git checkout -qb two && git rm -qr crates/zpl && git commit -qm two &&
    git checkout -q - && git status --porcelain | wc -l | grep -qx 0 && git gc -q && git clone -q . ../c && git -C ../c fsck --full"
  rm -rf r c
fi
if get sqlite3 sqlite3; then
  check sqlite3 bash -c 'for j in wal delete; do (echo "pragma journal_mode=$j; create table if not exists t(a,b);"
    for i in $(seq 100); do echo "insert into t values($i,randomblob(2000));"; done) | sqlite3 x.db || exit 1; done
    [ "$(sqlite3 x.db "pragma integrity_check; select count(*) from t" | xargs)" = "ok 200" ]'
fi
if command -v dpkg >/dev/null; then
  check "dpkg --root" bash -c 'mkdir -p root/var/lib/dpkg/{info,updates} && cd root && : > var/lib/dpkg/status && : > var/lib/dpkg/available &&
    apt-get download -qq hello tree && dpkg --root=. --force-not-root --force-depends -i ./*.deb && dpkg --root=. --verify &&
    usr/bin/hello && dpkg --root=. --force-not-root -P tree && ! test -e usr/bin/tree'
fi
cd /
judge
exit $failed
