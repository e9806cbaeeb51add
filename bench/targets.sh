#!/usr/bin/env bash
# The work of docs/speed.md's table of targets through mounts, each row side by side in one run: ours, zfs-fuse, btrfs and ext4 on
# loop devices, and the transport alone ("nothing": written bytes are dropped, reads are answered from memory).
#
#   bench/targets.sh [ROW…]     RUNS=3 rounds in which the peers alternate, medians; MIB=1024 MiB of a stream
#   SVG=FILE bench/targets.sh   also draws the rates into FILE
#
# A second table has the processor time of the whole machine for each MiB, file or operation: of the daemon, the kernel and the program.
#
# Rows: the layouts stripe, mirror, raidz1, raidz2, raidz3 (1 MiB writes, cold reads, hot reads), random, fsync, tree, text, import.
# Vdevs are files on /dev/shm, data do not compress (but for text). Needs root, fio; peers that are missing are left out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
aquifer=${AQUIFER:-$root/target/release/aquifer}
nothing=${NOTHING:-$root/target/release/examples/nothing}
fuse=${ZFS_FUSE:-/opt/zfs-fuse}
runs=${RUNS:-3} mib=${MIB:-1024}
aquifer=$(realpath -m "$aquifer") nothing=$(realpath -m "$nothing")
svg=${SVG:+$(realpath -m "$SVG")}

say() { echo "bench: $*" >&2; }
skip() { say "SKIPPED: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, to mount"
[ -x "$aquifer" ] || skip "$aquifer is not built"
command -v fio >/dev/null || skip "needs fio"
dir=$(mktemp -d /dev/shm/bench-targets.XXXXXX)
mkdir -p "$dir"/{bin,run,results,cpu,disks} "$dir"/mnt/{ours,nothing,zfs-fuse,btrfs,ext4}
chmod 700 "$dir/run"
for name in zpool zfs; do ln -s "$aquifer" "$dir/bin/$name"; done
export AQUIFER_RUN=$dir/run PATH=$dir/bin:$PATH

declare -A members=([stripe]=4 [mirror]=2 [raidz1]=4 [raidz2]=6 [raidz3]=8)
declare -A words=([stripe]="" [mirror]=mirror [raidz1]=raidz1 [raidz2]=raidz2 [raidz3]=raidz3)
# raid1c3 and raid6 are the nearest of btrfs; the last two have no equal there.
declare -A profiles=([stripe]=raid0 [mirror]=raid1 [raidz1]=raid5 [raidz2]=raid6)

now= loops=() peer_daemon=
ended() {
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$1" 2>/dev/null || return 0; sleep 0.1; done
  kill -9 "$1" 2>/dev/null || true
}
stop() {
  cd /
  case $now in
    ours) zpool destroy -f bttarget 2>/dev/null || true ;;
    zfs-fuse) "$fuse/sbin/zpool" destroy -f btpeer 2>/dev/null || true ;;
    nothing | btrfs | ext4) umount "$dir/mnt/$now" 2>/dev/null || true ;;
  esac
  [ -z "$peer_daemon" ] || ended "$peer_daemon"
  for loop in "${loops[@]}"; do losetup -d "$loop"; done
  now= loops=() peer_daemon=
  rm -f "$dir"/disks/*
}
trap 'stop; rm -rf "$dir"' EXIT

# In a virtual machine the first use of a page of memory costs more than the work that is measured, and hosts take free pages back
# within seconds: the memory that a peer is about to use is touched right before its turn.
warm() {
  local want=$((mib * 6)) free
  free=$(awk '/^MemAvailable/ { print int($2 * 8 / 10240) }' /proc/meminfo)
  [ "$want" -le "$free" ] || want=$free
  head -c "${want}M" /dev/zero > "$dir/touched"
  rm "$dir/touched"
}
# start WHERE LAYOUT [RECORDSIZE]: an empty file system; fails where the peer has no such layout
start() {
  local where=$1 layout=$2 record=${3:-128K} disks=() i
  case $where in
    btrfs) [ -n "${profiles[$layout]:-}" ] && command -v mkfs.btrfs >/dev/null || return 1 ;;
    ext4) [ "$layout" = stripe ] || return 1 ;;
    zfs-fuse) [ -x "$fuse/sbin/zfs-fuse" ] || return 1 ;;
    nothing) [ -x "$nothing" ] || return 1 ;;
  esac
  now=$where
  warm
  for i in $(seq "${members[$layout]}"); do
    truncate -s 3G "$dir/disks/$i"
    disks+=("$dir/disks/$i")
  done
  case $where in
    ours) zpool create -O recordsize="$record" -m "$dir/mnt/ours" bttarget ${words[$layout]} "${disks[@]}" ;;
    nothing)
      "$nothing" "$dir/mnt/nothing" & peer_daemon=$!
      for _ in $(seq 50); do mountpoint -q "$dir/mnt/nothing" && return; sleep 0.1; done
      return 1 ;;
    zfs-fuse)
      mkdir -p "$(realpath -m /var/run/zfs)" "$(realpath -m /var/lock/zfs)"
      "$fuse/sbin/zfs-fuse" -n >/dev/null 2>&1 & peer_daemon=$!
      for _ in $(seq 50); do "$fuse/sbin/zpool" list >/dev/null 2>&1 && break; sleep 0.2; done
      for _ in $(seq 10); do
        "$fuse/sbin/zpool" create -f -m "$dir/mnt/zfs-fuse" btpeer ${words[$layout]} "${disks[@]}" >/dev/null 2>&1 && break
        "$fuse/sbin/zpool" destroy -f btpeer 2>/dev/null || true
        sleep 0.5
      done
      "$fuse/sbin/zfs" set recordsize="$record" btpeer ;;
    btrfs)
      for i in "${disks[@]}"; do loops+=("$(losetup --find --show "$i")"); done
      mkfs.btrfs -q -f -d "${profiles[$layout]}" -m raid1 "${loops[@]}" >/dev/null
      btrfs device scan >/dev/null
      mount -t btrfs "${loops[0]}" "$dir/mnt/btrfs" ;;
    ext4)
      truncate -s 12G "${disks[0]}"
      loops+=("$(losetup --find --show "${disks[0]}")")
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "${loops[0]}"
      mount "${loops[0]}" "$dir/mnt/ext4" ;;
  esac
}
# Afterwards no cache contains any of its data.
cold() {
  cd /
  sync
  case $now in
    ours) zpool export bttarget; zpool import -d "$dir/disks" bttarget ;;
    zfs-fuse) "$fuse/sbin/zpool" export btpeer; "$fuse/sbin/zpool" import -d "$dir/disks" btpeer ;;
    btrfs | ext4) umount "$dir/mnt/$now"; mount "${loops[0]}" "$dir/mnt/$now" ;;
  esac
  echo 3 > /proc/sys/vm/drop_caches
  cd "$dir/mnt/$now"
}

# Microseconds during which processors were busy, since the machine started.
busy() { awk -v hz="$(getconf CLK_TCK)" '$1 == "cpu" { printf "%.0f\n", ($2 + $3 + $4 + $7 + $8) * 1e6 / hz }' /proc/stat; }
# result ROW AMOUNT COMMAND...: AMOUNT a second
result() {
  local row=$1 amount=$2 t cpu; shift 2
  cpu=$(busy) t=$(date +%s%N)
  "$@" > "$dir/said" 2>&1 || { cat "$dir/said" >&2; return 1; }
  t=$(($(date +%s%N) - t)) cpu=$(($(busy) - cpu))
  awk -v n="$amount" -v t="$t" 'BEGIN { printf "%.1f\n", n * 1e9 / t }' >> "$dir/results/$row.$now"
  awk -v n="$amount" -v t="$cpu" 'BEGIN { printf "%.1f\n", t / n }' >> "$dir/cpu/$row.$now"
}
# jobs ROW KIB ARGUMENTS...: operations of KIB a second of a run of fio
jobs() {
  local row=$1 size=$2 cpu; shift 2
  cpu=$(busy)
  fio --name=job --directory="$dir/mnt/$now" --minimal --fallocate=none --bs="${size}k" "$@" > "$dir/said" 2>&1 || { cat "$dir/said" >&2; return 1; }
  cpu=$(($(busy) - cpu))
  awk -F';' 'NF > 50 { n += $8 + $49 } END { printf "%.1f\n", n }' "$dir/said" >> "$dir/results/$row.$now"
  awk -F';' -v size="$size" -v t="$cpu" 'NF > 50 { n += ($6 + $47) / size } END { printf "%.1f\n", t / n }' "$dir/said" >> "$dir/cpu/$row.$now"
}

layout() {
  cd "$dir/mnt/$now"
  result "$1-write" "$mib" dd if="$dir/random" of=large bs=1M conv=fsync status=none
  local read=large
  if [ "$now" = nothing ]; then read=zeros; echo 3 > /proc/sys/vm/drop_caches; else cold; fi
  result "$1-cold" "$mib" dd if=$read of=/dev/null bs=1M count="$mib" status=none
  result "$1-hot" "$mib" dd if=$read of=/dev/null bs=1M count="$mib" status=none
}
random() {
  cd "$dir/mnt/$now"
  if [ "$now" = nothing ]; then
    jobs random-read 8 --filename=zeros --size="${mib}M" --rw=randread --runtime=5 --time_based
    jobs random-rewrite 8 --filename=zeros --size="${mib}M" --rw=randwrite --number_ios=20000 --end_fsync=1 --refill_buffers
    return
  fi
  fio --name=job --filename=data --size="${mib}M" --rw=write --bs=1M --end_fsync=1 --refill_buffers --minimal >/dev/null
  cold
  jobs random-read 8 --filename=data --size="${mib}M" --rw=randread --runtime=5 --time_based
  cold
  jobs random-rewrite 8 --filename=data --size="${mib}M" --rw=randwrite --number_ios=20000 --end_fsync=1 --refill_buffers
}
synced() {
  [ "$now" = nothing ] && return
  cd "$dir/mnt/$now"
  jobs fsync-1 4 --size=64M --rw=write --fsync=1 --runtime=4 --time_based --group_reporting
  jobs fsync-16 4 --size=8M --rw=write --fsync=1 --numjobs=16 --runtime=4 --time_based --group_reporting
}
tree() {
  [ "$now" = nothing ] && return
  cd "$dir/mnt/$now"
  result tar-x "$files" tar -xf "$dir/tree.tar"
  result git-clone 1 git clone -q "$dir/source.git" clone
  result rm-r "$files" rm -r usr
}
text() {
  case $now in ours | zfs-fuse) ;; *) return ;; esac
  local codec
  for codec in lz4 zstd-3 gzip-6; do
    case $now in
      ours) zfs set compression=$codec bttarget ;;
      zfs-fuse) "$fuse/sbin/zfs" set compression="${codec/lz4/lzjb}" btpeer 2>/dev/null || continue ;;
    esac
    cd "$dir/mnt/$now"
    result "text-$codec" "$((mib / 2))" dd if="$dir/text" of=text-$codec bs=1M conv=fsync status=none
  done
}
# Ours alone: 1,000 file systems with 100 snapshots each.
imported() {
  [ "$now" = ours ] || return 0
  cd /
  zfs set mountpoint=none bttarget
  seq 1000 | sed 's|^|bttarget/f|' | while read -r name; do echo "zfs create $name"; done > "$dir/create"
  sh -e "$dir/create"
  for i in $(seq 100); do zfs snapshot -r "bttarget@s$i"; done
  zpool export bttarget
  result import-1000-datasets 1 zpool import -d "$dir/disks" bttarget
}

median() { [ -s "$dir/$1" ] && sort -n "$dir/$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }' || echo -; }
measured() { ls "$dir/results" | sed 's/\.[^.]*$//' | sort -u; }

rows=("$@")
[ $# -gt 0 ] || rows=(stripe mirror raidz1 raidz2 raidz3 random fsync tree text import)
all=(ours zfs-fuse btrfs ext4 nothing)
if [ -x "$fuse/sbin/zfs-fuse" ] && "$fuse/sbin/zpool" list >/dev/null 2>&1; then say "without zfs-fuse, which is in use"; fuse=/nonexistent; fi
say "making the data"
dd if=/dev/urandom of="$dir/random" bs=1M count="$mib" status=none
case " ${rows[*]} " in *" tree "* | *" text "*)
  tar -C / -cf "$dir/tree.tar" usr/include usr/share/doc
  files=$(tar -tf "$dir/tree.tar" | wc -l)
  git clone -q --bare "$root" "$dir/source.git"
  sources=("$root"/crates/*/src/*.rs "$root"/docs/*.md)
  for _ in $(seq 1000); do cat "${sources[@]}" 2>/dev/null || break; done | head -c "$((mib / 2))M" > "$dir/text" || true ;;
esac
for round in $(seq "$runs"); do
  for row in "${rows[@]}"; do
    for where in "${all[@]}"; do
      say "round $round of $runs: $row, $where"
      case $row in
        stripe | mirror | raidz?) start "$where" "$row" && layout "$row" ;;
        random) start "$where" raidz2 8K && random ;;
        fsync) start "$where" raidz2 && synced ;;
        tree) start "$where" raidz2 && tree ;;
        text) start "$where" stripe && text ;;
        import) start "$where" stripe && imported ;;
        *) skip "unknown row $row" ;;
      esac || say "$row: not by $where"
      stop
    done
  done
done

printf '%-22s' 'a second'; printf ' %10s' "${all[@]}" of-limit of-zfs-fuse of-btrfs; echo
for row in $(measured); do
  printf '%-22s' "$row"
  for where in "${all[@]}"; do printf ' %10s' "$(median "results/$row.$where")"; done
  for where in nothing zfs-fuse btrfs; do
    awk -v a="$(median "results/$row.ours")" -v b="$(median "results/$row.$where")" 'BEGIN { printf " %10s", b + 0 ? sprintf("%.2f", a / b) : "-" }'
  done
  echo
done
echo; printf '%-22s' 'processor µs for each'; printf ' %10s' "${all[@]}"; echo
for row in $(measured); do
  printf '%-22s' "$row"
  for where in "${all[@]}"; do printf ' %10s' "$(median "cpu/$row.$where")"; done
  echo
done

# Bars of one row are drawn to the scale of its fastest peer.
draw() {
  awk '
    BEGIN { split("#1f5fa8 #c8503c #7a7a7a #b0a070 #d8d8d8", colours, " ") }
    NR == 1 { for (i = 2; i <= NF; i++) peer[i] = $i; peers = NF; next }
    {
      top = y + 16; most = 0
      for (i = 2; i <= peers; i++) if ($i + 0 > most) most = $i
      body = body sprintf("<text x=\"170\" y=\"%d\" text-anchor=\"end\">%s</text>\n", top + 11, $1)
      for (i = 2; i <= peers; i++) if ($i != "-") {
        wide = most ? $i / most * 400 : 0
        body = body sprintf("<rect x=\"180\" y=\"%d\" width=\"%.1f\" height=\"12\" fill=\"%s\"/><text x=\"%.0f\" y=\"%d\">%s %s</text>\n", top, wide, colours[i - 1], 186 + wide, top + 11, $i, peer[i])
        top += 14
      }
      y = top
    }
    END {
      printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", y + 16
      printf "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n", body
    }'
}
[ -z "$svg" ] || {
  echo "row ${all[*]}"
  for row in $(measured); do
    printf '%s' "$row"
    for where in "${all[@]}"; do printf ' %s' "$(median "results/$row.$where")"; done
    echo
  done
} | draw > "$svg"
