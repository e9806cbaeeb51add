#!/bin/sh
# Reports a disk that fails, lost data, and the end of a scrub or resilver, by mail or by a command of the administrator.
#
# zed runs it by the names of its links: statechange-notify.sh, data-notify.sh, scrub_finish-notify.sh and
# resilver_finish-notify.sh. Settings: zed.rc in the directory of zedlets. Exit codes: 0 reported, 1 failed, 2 nothing is set that
# could report, 3 not worth a report.
set -u
umask 077
rc=$ZED_ZEDLET_DIR/zed.rc
# shellcheck source=/dev/null
[ ! -f "$rc" ] || . "$rc"

pool=${ZEVENT_POOL:-}
[ -n "$pool" ] || exit 3
host=$(uname -n)
state=${ZEVENT_VDEV_STATE_STR:-}

# Whether a report with this tag is due: at most one in ZED_NOTIFY_INTERVAL_SECS.
due() {
    local dir stamp now last
    dir=${ZED_RUNDIR:-/run}/aquifer-zed-notify
    mkdir -p "$dir" || return 0
    stamp=$dir/$(printf %s "$1" | tr -c 'A-Za-z0-9._-' _)
    now=$(date +%s)
    last=$(cat "$stamp" 2>/dev/null || echo 0)
    case $last in '' | *[!0-9]*) last=0 ;; esac
    [ $((now - last)) -ge "${ZED_NOTIFY_INTERVAL_SECS:-3600}" ] || return 1
    echo "$now" >"$stamp"
}

case $ZEVENT_SUBCLASS in
statechange)
    subject="disk of pool $pool on $host is $state"
    case $state in
    FAULTED) what="Too many requests of a disk failed: the pool does not use it any more." ;;
    DEGRADED) what="Too many blocks of a disk had wrong checksums: the pool uses it only where there is no other copy." ;;
    REMOVED) what="A disk was removed." ;;
    UNAVAIL) what="A disk cannot be opened." ;;
    *) exit 3 ;;
    esac
    ;;
data | checksum | io)
    [ -n "${ZED_NOTIFY_DATA:-}" ] || exit 3
    subject="$ZEVENT_SUBCLASS error in pool $pool on $host"
    what="Data of the pool could not be read."
    due "$pool.${ZEVENT_VDEV_GUID:-0}.$ZEVENT_SUBCLASS" || exit 3
    ;;
scrub_finish | resilver_finish)
    subject="${ZEVENT_SUBCLASS%_finish} of pool $pool on $host has finished"
    what="A ${ZEVENT_SUBCLASS%_finish} has finished."
    if [ "$ZEVENT_SUBCLASS" = scrub_finish ] && [ "${ZED_NOTIFY_VERBOSE:-0}" = 0 ]; then
        ! "$ZPOOL" status -x "$pool" | grep -q "is healthy" || exit 3
    fi
    ;;
*) exit 3 ;;
esac
# The subject becomes a word of a command.
subject=$(printf %s "$subject" | tr -c 'A-Za-z0-9 ._:@/-' '?')

text=$(mktemp) || exit 1
trap 'rm -f -- "$text"' EXIT
{
    echo "$what"
    echo
    echo "  pool: $pool (${ZEVENT_POOL_GUID:-})"
    [ -z "$state" ] || echo " state: $state"
    [ -z "${ZEVENT_VDEV_PATH:-}" ] || echo "  disk: $ZEVENT_VDEV_PATH"
    [ -z "${ZEVENT_VDEV_GUID:-}" ] || echo "  guid: $ZEVENT_VDEV_GUID"
    [ -z "${ZEVENT_ZIO_OBJSET:-}" ] || echo "object: $ZEVENT_ZIO_OBJSET:${ZEVENT_ZIO_OBJECT:-}"
    echo " event: $ZEVENT_EID ($ZEVENT_CLASS)"
    echo "  time: ${ZEVENT_TIME_STRING:-}"
    echo "  host: $host"
    echo
    "$ZPOOL" status "$pool"
} >"$text" 2>&1

# Writes to the system's log, without which there is no other place for a failure.
log() {
    logger -p "${ZED_SYSLOG_PRIORITY:-daemon.notice}" -t "${ZED_SYSLOG_TAG:-zed}" -- "${0##*/}: $*" || :
}

mail_to() { # address
    local program options
    program=${ZED_EMAIL_PROG:-}
    if [ -z "$program" ]; then
        program=mail
        command -v mail >/dev/null || program=sendmail
    fi
    if ! command -v "${program%% *}" >/dev/null; then
        log "no program '$program' to send mail with"
        return 1
    fi
    if [ "$program" = sendmail ]; then
        { printf 'To: %s\nSubject: ZFS: %s\n\n' "$1" "$subject" && cat "$text"; } | sendmail -i -- "$1"
        return
    fi
    options=${ZED_EMAIL_OPTS:-"-s '@SUBJECT@' @ADDRESS@"}
    options=$(printf %s "$options" | sed "s|@SUBJECT@|ZFS: $(printf %s "$subject" | sed 's/[|&\\]/\\&/g')|g; s|@ADDRESS@|$1|g")
    eval "$program $options" <"$text"
}

sent=0 failed=0
set -f
for address in ${ZED_EMAIL_ADDR:-}; do
    case $address in *[!A-Za-z0-9.,_+@%=-]*) log "invalid address '$address'" && failed=1 && continue ;; esac
    if mail_to "$address"; then sent=1; else failed=1; fi
done
set +f
if [ -n "${ZED_NOTIFY_COMMAND:-}" ]; then
    if SUBJECT=$subject sh -c "$ZED_NOTIFY_COMMAND" <"$text"; then sent=1; else failed=1; fi
fi
if [ "$failed" = 1 ]; then log "a report of event $ZEVENT_EID failed: $subject"; fi
[ "$sent" = 0 ] || exit 0
[ "$failed" = 0 ] || exit 1
exit 2
