#!/usr/bin/env bash
# A real OpenZFS raidz2 pool of six disks, one of them lost and 60 MiB of another overwritten: what is there, every
# file back, and each compared with what OpenZFS saw before the damage. Nothing but the built binary and coreutils.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
aquifer=${1:?usage: run.sh AQUIFER-BINARY}
aquifer=$(cd "$(dirname "$aquifer")" && pwd)/$(basename "$aquifer")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\n$ %s\n' "${*/#$aquifer/aquifer}"; "$@"; }

say "Six disks' worth of a raidz2 pool, made by OpenZFS: disk3 is gone, disk5 was partly overwritten"
tar -xzSf "$here/damaged-raidz2.tar.gz"
mv damaged-raidz2 disks
ls -ls disks/disk*

say "Which pools are there, and in what state?"
run "$aquifer" zpool import -d disks

say "Its datasets and snapshots"
run "$aquifer" zfs list -d disks -t all -r tank

say "A look around, without mounting anything"
run "$aquifer" ls -l -d disks tank:/d | head -15

say "Every file back"
run "$aquifer" cp -a -d disks tank: rescued

say "Is each file what OpenZFS saw? (contents by SHA-256, then type, mode, links, size, time, link target)"
tr '\0' '\n' < disks/manifest/live.sha > want.sha
(cd rescued && sha256sum --quiet -c ../want.sha)
echo "contents: $(wc -l < want.sha) files equal"
fields='%y\t%m\t%n\t%s\t%T@\t%P\t%l\0'
# Directory sizes are the file system's own; devices and owners need root to be restored.
normal() { tr '\0' '\n' | awk -F'\t' -v OFS='\t' '$1 == "d" { $4 = "" ; $3 = "" } $1 !~ /[bc]/ && $6 != ""' | sort; }
(cd rescued && find . -mindepth 1 -printf "$fields") | normal > have.find
cut -z -f1,2,5- disks/manifest/live.find | normal > want.find
diff want.find have.find
echo "attributes: $(wc -l < want.find) files and directories equal"

say "What was damaged, and what repaired it"
status=0
run "$aquifer" verify -d disks tank > verify.txt || status=$?
head -12 verify.txt
echo "..."
tail -1 verify.txt
[ "$status" = 1 ] || { echo "verify should have found damage that redundancy covers"; exit 1; }

say "Done: one disk lost, one damaged, every byte back"
