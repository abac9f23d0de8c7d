#!/usr/bin/env bash
# proto/ and the engine are pure: linked together, they ask of the outside world nothing but memory,
# text and arithmetic.
set -euo pipefail
cd "$(dirname "$0")/../.."

allowed=' __assert_fail _GLOBAL_OFFSET_TABLE_ bcmp calloc floor free malloc memchr memcmp memcpy
	memmove memset qsort realloc snprintf sqrt strchr strcmp strlen strncmp vsnprintf
	__stack_chk_fail __udivti3 __umodti3 __udivmodti4 __popcountdi2 '
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for variant in gcc clang; do
	objects=("build/$variant"/proto/*.o "build/$variant"/daemon/engine/*.o)
	ld -r -o "$scratch/core.o" "${objects[@]}"
	for symbol in $(nm -u "$scratch/core.o" | awk '{print $2}'); do
		# Built with _FORTIFY_SOURCE, libc's functions have checking twins.
		[[ $symbol =~ ^__([a-z]+)_chk$ ]] && symbol=${BASH_REMATCH[1]}
		case $allowed in
		*[[:space:]]"$symbol"[[:space:]]*) ;;
		*)
			echo "$variant: the core needs $symbol, which is not in the list"
			exit 1
			;;
		esac
	done
	"$variant" -shared -nostdlib -Wl,-z,defs -o "$scratch/core.so" "$scratch/core.o" \
		-lc -lm -lgcc
	# The check must be able to fail.
	ld -r -o "$scratch/more.o" "$scratch/core.o" build/$variant/daemon/control/notify.o
	nm -u "$scratch/more.o" | grep -q ' socket$'
	echo "$variant: ${#objects[@]} objects are pure"
done
