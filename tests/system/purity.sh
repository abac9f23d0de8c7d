#!/usr/bin/env bash
# proto/ and the engine do no I/O: linked together, they need only libc functions for memory, text
# and arithmetic.
set -euo pipefail
cd "$(dirname "$0")/../.."

allowed=' __assert_fail _GLOBAL_OFFSET_TABLE_ bcmp calloc floor free malloc memchr memcmp memcpy
	memmove memset qsort realloc snprintf sqrt strchr strcmp strlen strncmp vsnprintf
	__stack_chk_fail __udivti3 __umodti3 __udivmodti4 __popcountdi2 '
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

objects=(build/gcc/proto/*.o build/gcc/daemon/engine/*.o)
ld -r -o "$scratch/core.o" "${objects[@]}"
for symbol in $(nm -u "$scratch/core.o" | awk '{print $2}'); do
	# With _FORTIFY_SOURCE some calls go to checked variants of libc's functions.
	[[ $symbol =~ ^__([a-z]+)_chk$ ]] && symbol=${BASH_REMATCH[1]}
	case $allowed in
	*[[:space:]]"$symbol"[[:space:]]*) ;;
	*)
		echo "the core calls $symbol, which is not allowed"
		exit 1
		;;
	esac
done
gcc -shared -nostdlib -Wl,-z,defs -o "$scratch/core.so" "$scratch/core.o" \
	-lc -lm -lgcc
echo "${#objects[@]} objects do no I/O"
