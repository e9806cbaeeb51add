#!/usr/bin/env bash
# Installs the program, its links, man pages, completions, zedlets and systemd units: `make install`.
#
#   BINARY=target/release/aquifer PREFIX=/usr/local DESTDIR= SYSCONFDIR=/etc packaging/install.sh install|uninstall
#
# Foreign files are never overwritten: if there is one, nothing is installed. PREFIX/share/aquifer/manifest lists the
# installed files, and only those are removed. Zedlets are linked in ZEDDIR, those of OpenZFS stay; an empty ZEDDIR links none.
set -euo pipefail

action=${1:-install}
BINARY=${BINARY:-target/release/aquifer}
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
SYSCONFDIR=${SYSCONFDIR:-/etc}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
USERUNITDIR=${USERUNITDIR:-$PREFIX/lib/systemd/user}
BINDIR=${BINDIR:-$PREFIX/sbin}
ZEDLETS=${ZEDLETS:-$PREFIX/lib/aquifer/zed.d}
ZEDDIR=${ZEDDIR-$SYSCONFDIR/zfs/zed.d}
here=$(cd "$(dirname "$0")" && pwd)
manifest=$DESTDIR$PREFIX/share/aquifer/manifest

# Whether a path (without DESTDIR) is ours, or free.
ours() {
    local path=$DESTDIR$1
    [ -e "$path" ] || [ -L "$path" ] || return 0
    [ -f "$manifest" ] && grep -qxF -- "$1" "$manifest"
}

uninstall() {
    [ -f "$manifest" ] || { echo "nothing of ours is installed in $DESTDIR$PREFIX"; return 0; }
    local path
    while IFS= read -r path; do
        # A zedlet of the administrator in the place of a link.
        if [ "${path%/*}" = "$ZEDDIR" ] && [ ! -L "$DESTDIR$path" ]; then continue; fi
        rm -f -- "$DESTDIR$path"
        rmdir -p --ignore-fail-on-non-empty -- "$(dirname "$DESTDIR$path")" 2>/dev/null || true
    done <"$manifest"
    rm -f -- "$manifest"
    rmdir -p --ignore-fail-on-non-empty -- "$(dirname "$manifest")" 2>/dev/null || true
}

install_all() {
    [ -x "$BINARY" ] || { echo "$BINARY is missing: make build" >&2; exit 1; }
    local path link file
    # Not local: the trap needs it after the function has ended.
    stage=$(mktemp -d)
    trap 'rm -rf -- "$stage"' EXIT
    "$BINARY" pages --bindir "$BINDIR" "$stage/pages"
    # Everything is laid out first, so that it can be checked as a whole.
    local root=$stage/root
    install -D -m 755 "$BINARY" "$root$BINDIR/aquifer"
    if command -v strip >/dev/null; then strip --strip-debug "$root$BINDIR/aquifer"; fi
    while IFS= read -r link; do ln -s aquifer "$root$BINDIR/$link"; done <"$stage/pages/links"
    for file in "$stage"/pages/man/man*/*; do
        path=$PREFIX/share/man/$(basename "$(dirname "$file")")
        install -D -m 644 "$file" "$root$path/$(basename "$file")"
        gzip -9n "$root$path/$(basename "$file")"
    done
    for file in "$stage"/pages/bash/*; do install -D -m 644 "$file" "$root$PREFIX/share/bash-completion/completions/$(basename "$file")"; done
    for file in "$stage"/pages/zsh/*; do install -D -m 644 "$file" "$root$PREFIX/share/zsh/site-functions/$(basename "$file")"; done
    # zsh reads such a file when its command is completed first, and takes it as the function: it must answer at once.
    sed -i -E 's/^compdef (\S+) (\S+)$/&\n[ "${funcstack[1]}" != "_\2" ] || \1 "$@"/' "$root$PREFIX/share/zsh/site-functions"/_*
    for file in "$stage"/pages/fish/*; do install -D -m 644 "$file" "$root$PREFIX/share/fish/vendor_completions.d/$(basename "$file")"; done
    zedlets "$root"
    units "$here/systemd" "$root$UNITDIR"
    units "$here/systemd-user" "$root$USERUNITDIR"
    local conf=$SYSCONFDIR/aquifer/aquifer.conf
    # An existing settings file is not changed, and no uninstall removes it.
    [ -e "$DESTDIR$conf" ] || install -D -m 644 "$here/aquifer.conf" "$DESTDIR$conf"

    local clashes=0 list=$stage/list
    (cd "$root" && find . \( -type f -o -type l \) | sed 's/^\.//' | sort) >"$list"
    while IFS= read -r path; do
        ours "$path" || { echo "$DESTDIR$path is there and is not ours" >&2; clashes=1; }
    done <"$list"
    if [ "$clashes" = 1 ]; then
        echo "nothing was installed: choose another PREFIX" >&2
        exit 1
    fi
    uninstall >/dev/null
    mkdir -p "$DESTDIR$PREFIX"
    (cd "$root" && tar -cf - .) | (cd "${DESTDIR:-/}" && tar -xf - --no-same-owner --no-overwrite-dir)
    install -D -m 644 "$list" "$manifest"
    echo "installed in $DESTDIR$PREFIX"
}

# The zedlets, and a link for each event that they report, if the name is free.
zedlets() {
    local root=$1 name target link
    install -D -m 755 -t "$root$ZEDLETS" "$here"/zed.d/*.sh
    install -m 644 "$here/zed.d/zed.rc" "$here/zed.d/links" "$root$ZEDLETS"
    [ -n "$ZEDDIR" ] || return 0
    install -d -m 755 "$root$ZEDDIR"
    while read -r name target; do
        link=$DESTDIR$ZEDDIR/$name
        if [ "$(readlink "$link" || :)" = "$ZEDLETS/$target" ] || { [ ! -e "$link" ] && [ ! -L "$link" ]; }; then
            ln -s "$ZEDLETS/$target" "$root$ZEDDIR/$name"
        fi
    done <"$here/zed.d/links"
    # Settings are not changed, and no uninstall removes them.
    [ -e "$DESTDIR$ZEDDIR/zed.rc" ] || install -D -m 644 "$here/zed.d/zed.rc" "$DESTDIR$ZEDDIR/zed.rc"
}

units() {
    local file
    for file in "$1"/*; do
        mkdir -p "$2"
        sed "s#@BINDIR@#$BINDIR#g" "$file" >"$2/$(basename "$file")"
        chmod 644 "$2/$(basename "$file")"
    done
}

case $action in
install) install_all ;;
uninstall) uninstall ;;
*) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac
