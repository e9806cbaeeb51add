#!/bin/sh
# Writes a line for each event to the system's log. Settings: zed.rc in the directory of zedlets.
set -u
rc=$ZED_ZEDLET_DIR/zed.rc
# shellcheck source=/dev/null
[ ! -f "$rc" ] || . "$rc"

# Both settings are patterns of the shell, separated by |.
if [ -n "${ZED_SYSLOG_SUBCLASS_INCLUDE:-}" ]; then
    eval "case \$ZEVENT_SUBCLASS in $ZED_SYSLOG_SUBCLASS_INCLUDE) ;; *) exit 0 ;; esac"
elif [ -n "${ZED_SYSLOG_SUBCLASS_EXCLUDE=history_event}" ]; then
    eval "case \$ZEVENT_SUBCLASS in $ZED_SYSLOG_SUBCLASS_EXCLUDE) exit 0 ;; esac"
fi

line="eid=$ZEVENT_EID class=$ZEVENT_SUBCLASS"
if [ "${ZED_SYSLOG_DISPLAY_GUIDS:-0}" = 1 ]; then
    line="$line${ZEVENT_POOL_GUID:+ pool_guid=$ZEVENT_POOL_GUID}${ZEVENT_VDEV_GUID:+ vdev_guid=$ZEVENT_VDEV_GUID}"
else
    line="$line${ZEVENT_POOL:+ pool='$ZEVENT_POOL'}${ZEVENT_VDEV_PATH:+ vdev=${ZEVENT_VDEV_PATH##*/}}"
fi
line="$line${ZEVENT_VDEV_STATE_STR:+ vdev_state=$ZEVENT_VDEV_STATE_STR}${ZEVENT_ZIO_SIZE:+ size=$ZEVENT_ZIO_SIZE}"
line="$line${ZEVENT_ZIO_OFFSET:+ offset=$ZEVENT_ZIO_OFFSET}${ZEVENT_ZIO_ERR:+ err=$ZEVENT_ZIO_ERR}"
if [ -n "${ZEVENT_ZIO_OBJSET:-}" ]; then
    line="$line bookmark=$ZEVENT_ZIO_OBJSET:${ZEVENT_ZIO_OBJECT:-}:${ZEVENT_ZIO_LEVEL:-}:${ZEVENT_ZIO_BLKID:-}"
fi
exec logger -p "${ZED_SYSLOG_PRIORITY:-daemon.notice}" -t "${ZED_SYSLOG_TAG:-zed}" -- "$line"
