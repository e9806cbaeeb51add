#!/usr/bin/env bash
# Speed of the functions that OpenZFS writes by hand, ours beside OpenZFS's own, one thread, blocks of 128 KiB: fletcher4, AES-256-GCM,
# parity of raidz (eight data columns of 16 KiB) and its reconstruction. GB of data a second of processor time; the raidz figures of
# OpenZFS are of the clock (raidz_test -B), so the machine must be idle.
#
#   bench/primitives.sh     RUNS=3, the best of each; raidz_test -B takes some minutes each time
#
# LIBZPOOL and RAIDZ_TEST name OpenZFS's library and program; TREE is a file system tree with libzpool.so.7 (2.4), if it is not the
# system's. Needs a C compiler.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tree=${TREE:-/}
profile=${PROFILE:-release}
runs=${RUNS:-3}
say() { echo "bench: $*" >&2; }
loader=() libzpool=${LIBZPOOL:-libzpool.so.6} raidz_test=${RAIDZ_TEST:-raidz_test}
if [ -e "$tree/usr/lib/x86_64-linux-gnu/libzpool.so.7" ]; then
  loader=("$tree/lib64/ld-linux-x86-64.so.2" --library-path "$tree/lib/x86_64-linux-gnu:$tree/usr/lib/x86_64-linux-gnu")
  libzpool=${LIBZPOOL:-libzpool.so.7} raidz_test=${RAIDZ_TEST:-raidz_test-2.4}
fi
command -v cc >/dev/null && command -v "$raidz_test" >/dev/null || { say "SKIPPED: needs a C compiler and raidz_test"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cc -O2 -o "$dir/primitives" "$root/bench/primitives.c" -ldl
for package in checksum crypt raidz-math; do
  (cd "$root" && cargo build -q --profile "$profile" -p "$package" --example "${package%-math}_speed")
done
for _ in $(seq "$runs"); do
  "$root/target/$profile/examples/checksum_speed" | awk '$2 == "fletcher4" && $3 + 0 { print $2, $3 }' >> "$dir/ours"
  "$root/target/$profile/examples/crypt_speed" | awk '$1 == "aes-256-gcm" { print "aes-256-gcm-encrypt", $2; print "aes-256-gcm-decrypt", $3 }' >> "$dir/ours"
  "$root/target/$profile/examples/raidz_speed" |
    awk '{ sub(/^raidz /, ""); rate = $(NF - 1); NF -= 2; gsub(/ /, "-"); print "raidz-" $0, rate }' >> "$dir/ours"
  "${loader[@]}" "$dir/primitives" "$libzpool" |
    awk '$1 == "fletcher4" { print } $1 == "aes-256-gcm" { print $1 "-encrypt", $2; print $1 "-decrypt", $3 }' >> "$dir/theirs"
  "$raidz_test" -B 2>/dev/null | awk -F', *' '
    BEGIN {
      n["gen_p"] = "generate-P"; n["gen_pq"] = "generate-PQ"; n["gen_pqr"] = "generate-PQR"
      n["rec_p"] = "rebuild-1-data-of-raidz1 rebuild-1-data-of-raidz2"
      n["rec_pq"] = "rebuild-2-data-of-raidz2 rebuild-2-data-of-raidz3"; n["rec_pqr"] = "rebuild-3-data-of-raidz3"
    }
    { gsub(/ /, "", $2) }
    ($2 in n) && $4 == 131072 { k = split(n[$2], of, " "); for (i = 1; i <= k; i++) print "raidz-" of[i], $5 * 8 * 1.048576 / 1000 }' >> "$dir/theirs"
done
best() { awk -v row="$1" '$1 == row && $2 > most { most = $2 } END { printf "%.2f", most }' "$2"; }
printf '%-34s %10s %10s %8s\n' 'GB a second' ours OpenZFS ratio
for row in $(awk '{ print $1 }' "$dir/ours" | awk '!seen[$0]++'); do
  ours=$(best "$row" "$dir/ours") theirs=$(best "$row" "$dir/theirs")
  printf '%-34s %10s %10s %8s\n' "$row" "$ours" "$theirs" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { print (b + 0 ? sprintf("%.2f", a / b) : "-") }')"
done
