#!/usr/bin/env bash
# Includes point down only: control → engine, io → dataset → shard; everything → proto; client → proto; tokctl → the offline parts.
set -euo pipefail
cd "$(dirname "$0")/../.."

allowed() { # from to
	case "$1 → $2" in
	"$1 → $1" | *" → proto") return 0 ;;
	"daemon → daemon/shard" | "daemon/io → daemon" | "daemon/engine → daemon") return 0 ;;
	"daemon/control → "daemon* | "daemon/main → daemon/control") return 0 ;;
	"client/ctl → client" | "client/ctl → daemon" | "client/ctl → daemon/shard") return 0 ;;
	"client/python → client" | "bench → client" | "bench → daemon" | "bench → daemon/shard") return 0 ;;
	esac
	return 1
}

bad=0 seen=0
while IFS=: read -r file include; do
	include=${include#*\"}
	target=$(realpath --relative-to=. -m "$(dirname "$file")/${include%%\"*}")
	from=$(dirname "$file") to=$(dirname "$target")
	[ "$file" = daemon/main.c ] && from=daemon/main
	seen=$((seen + 1))
	if [ ! -f "$target" ]; then
		echo "$file includes $target, which is not there"
		bad=1
	elif ! allowed "$from" "$to" || { [ "$from" = daemon/engine ] && [ "$to" = daemon ] && [ "$target" != daemon/table.h ]; }; then
		echo "$file includes $target: that points up or sideways"
		bad=1
	fi
done < <(grep -H '^#include "' proto/*.[ch] daemon/*.[ch] daemon/*/*.[ch] client/*.[ch] client/ctl/*.[ch] client/python/*.c bench/*.c)
[ "$seen" -gt 100 ] || { echo "only $seen includes seen: is this the tree?"; exit 1; }
[ $bad = 0 ] && echo "$seen includes point down"
exit $bad
