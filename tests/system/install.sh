#!/usr/bin/env bash
# The files of `make install` work where they are installed, for C and Python, and `make uninstall`
# removes all of them.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
top=$root/usr

quiet_make() { # independent of the make that runs the tests
	env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory "$@" DESTDIR="$root" PREFIX=/usr \
		>"$scratch/make.log" 2>&1 ||
		{ cat "$scratch/make.log" && exit 1; }
}
quiet_make install
find "$root" ! -type d -printf '%P\n' | sort

# Programs: they have the tree's version. The library needs only glibc.
version=$(sed -n 's/.*TOKEND_VERSION "\(.*\)"/\1/p' proto/version.h)
[ "$("$top/bin/tokend" --version)" = "tokend $version" ]
[ "$("$top/bin/tokctl" --version)" = "tokctl $version" ]
needed=$(readelf -d "$top/lib/libtokend.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if grep -vE '^(libc|libm|ld-linux.*)\.so' <<<"$needed"; then exit 1; fi

# The library, found through pkg-config.
export PKG_CONFIG_PATH=$top/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
[ "$(pkg-config --modversion tokend)" = "$version" ]
cat >"$scratch/use.c" <<'END'
#include <stdio.h>
#include <tokend.h>
int main(void) { return puts(tokend_version()) < 0; }
END
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
# shellcheck disable=SC2046
gcc "$scratch/use.c" -o "$scratch/use" $(pkg-config --cflags --libs tokend)
[ "$(LD_LIBRARY_PATH=$top/lib "$scratch/use")" = "$version" ]

# The package, without the tree in its path.
(
	cd "$scratch"
	PYTHONPATH=$top/lib/tokend/python "$OLDPWD/build/venv/bin/python" \
		-c 'import tokend; print(tokend.__file__, tokend.Loader)'
)

# The units: all placeholders are replaced, and the programs that they start exist.
units=$top/lib/systemd/system
if grep -r '@[A-Z]*@' "$units" "$top/lib/pkgconfig"; then exit 1; fi
sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$units"/*.service | while read -r started; do
	[ -x "$root$started" ]
done

# The completions, as bash-completion and zsh find them, and the man pages.
for program in tokctl tokend; do
	cmp "$top/share/bash-completion/completions/$program" build/gcc/completion/$program.bash
done
cmp "$top/share/zsh/site-functions/_tokctl" build/gcc/completion/_tokctl
for page in man1/tokctl.1 man8/tokend.8 man5/tokend.yaml.5; do
	cmp "$top/share/man/$page" "build/gcc/man/${page#*/}"
done

quiet_make uninstall
left=$(find "$root" ! -type d)
[ -z "$left" ] || { echo "left behind: $left" && exit 1; }
