
# Added to the suite's library by our runner: module parameters are the daemon's settings, kstats its counters.

function set_tunable_impl
{
	typeset name="$1" value="$2"

	eval "typeset tunable=\$$name"
	case "$tunable" in
	UNSUPPORTED)
		log_unsupported "Tunable '$name' is unsupported on $UNAME"
		;;
	"")
		log_fail "Tunable '$name' must be added to tunables.cfg"
		;;
	esac
	[[ -z "$value" ]] && return 1
	if [[ -e "/sys/module/zfs/parameters/$tunable" ]]; then
		echo "$value" >"/sys/module/zfs/parameters/$tunable"
		return
	fi
	# Saved as well, because a daemon ends with its last pool.
	/zts/aquifer set -s "$tunable=$value"
}

function get_tunable_impl
{
	typeset name="$1" module="${2:-zfs}" check_only="$3"

	eval "typeset tunable=\$$name"
	case "$tunable" in
	UNSUPPORTED)
		[[ -n "$check_only" ]] && return 1
		log_unsupported "Tunable '$name' is unsupported on $UNAME"
		;;
	"")
		[[ -n "$check_only" ]] && return 1
		log_fail "Tunable '$name' must be added to tunables.cfg"
		;;
	esac
	if [[ -e "/sys/module/$module/parameters/$tunable" ]]; then
		[[ -z "$check_only" ]] && cat "/sys/module/$module/parameters/$tunable"
		return 0
	fi
	typeset row=$(/zts/aquifer get -Hp "$tunable" 2>/dev/null)
	[[ -z "$row" ]] && return 1
	[[ -z "$check_only" ]] && echo "$row" | cut -f2
	return 0
}

# Writes the file of a kstat, if the daemon has it.
function zts_kstat
{
	typeset path="$1"

	mkdir -p "$(dirname "$path")"
	/zts/aquifer kstat "${path#/run/zts-kstat/}" >"$path" 2>/dev/null || rm -f "$path"
}

# The fault agents of OpenZFS's event daemon are part of the daemon that owns the pools: they are on while the suite's event daemon
# runs. Where the tree has no zedlets, that is all.
if ! typeset -f zts_zed_start >/dev/null; then
	function zed_setup
	{
		mkdir -p "$ZEDLET_DIR"
		touch "$ZEDLET_DIR/zed.rc"
	}

	function zed_cleanup
	{
		rm -rf "$ZEDLET_DIR"
	}

	function zts_zed_start
	{
		return 0
	}

	function zts_zed_stop
	{
		return 0
	}
fi

function zed_start
{
	/zts/aquifer set -s aquifer_fault_agents=1
	zts_zed_start
}

function zed_stop
{
	zts_zed_stop
	/zts/aquifer set -s aquifer_fault_agents=0
}
