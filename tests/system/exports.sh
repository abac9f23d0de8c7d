#!/usr/bin/env bash
# libtokend.so exports exactly the functions of tokend.h, the programs none. That header is valid
# C99 and C++11. Every header of the tree compiles alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

exported=$(nm -D --defined-only build/lib/libtokend.so | awk '{print $3}')
if grep -v '^tokend_' <<<"$exported"; then
	echo "the library also exports the names above"
	exit 1
fi
if nm -D --defined-only build/bin/tokend build/bin/tokctl | grep ' T '; then
	echo "a program exports the functions above, and libraries would call them"
	exit 1
fi
declared=$(grep -o 'TOKEND_API .*\btokend_[a-z0-9_]*(' client/lib/tokend.h |
	grep -o 'tokend_[a-z0-9_]*(' | tr -d '(' | sort)
if ! diff <(echo "$declared") <(sort <<<"$exported"); then
	echo "tokend.h (<) and the library (>) differ"
	exit 1
fi

strict=(-Wall -Wextra -Wpedantic -Werror)
printf '#include "tokend.h"\nint main() { return tokend_version()[0] == 0; }\n' >"$scratch/use.cc"
for cxx in g++ clang++; do
	$cxx -std=c++11 "${strict[@]}" -Iclient/lib "$scratch/use.cc" -o "$scratch/use" \
		-Lbuild/lib -ltokend
	LD_LIBRARY_PATH=build/lib "$scratch/use"
done
printf '#include "tokend.h"\nint main(void) { return tokend_version()[0] == 0; }\n' \
	>"$scratch/use.c"
gcc -std=c99 "${strict[@]}" -Iclient/lib -c "$scratch/use.c" -o "$scratch/use.o"

for header in proto/*.h daemon/*/*.h client/lib/*.h client/ctl/*/*.h; do
	gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -I. -fsyntax-only -x c "$header"
done
echo "$(wc -l <<<"$exported") functions are exported"
