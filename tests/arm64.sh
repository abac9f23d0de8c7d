#!/usr/bin/env bash
# arm64.sh: builds the arm64 wheel on another machine and tries it with qemu: the programs' version,
# a daemon with a reader, the package. Debian's arm64 libraries come into build/arm64-root, which no
# program of this machine sees; apt verifies them. Run by `make wheel-arm64`.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
for package in "${packages[@]}"; do
	dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || {
		echo "arm64: run apt-get install --no-install-recommends ${packages[*]}" >&2
		exit 1
	}
done
place=$PWD/build/arm64
root=$PWD/build/arm64-root
python=$(basename "$(readlink -f /usr/bin/python3)")
libraries=(libuv1-dev liburing-dev libyaml-dev libjansson-dev libzstd-dev zlib1g-dev)
libraries+=(libcurl4-openssl-dev libexpat1-dev nettle-dev "lib$python-dev")
runs=("$python-minimal" "lib$python-minimal" "lib$python-stdlib" libexpat1 zlib1g) # Python itself

if [ ! -e "$root/complete" ]; then
	echo "Unpacking into build/arm64-root: ${libraries[*]} ${runs[*]}"
	rm -rf "$root" "$place/apt"
	mkdir -p "$root" "$place/apt/lists/partial" "$place/apt/cache/archives/partial"
	: >"$place/apt/status"
	options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=)
	options+=(-o "Dir::State=$place/apt" -o "Dir::State::status=$place/apt/status")
	options+=(-o "Dir::Cache=$place/apt/cache")
	apt-get "${options[@]}" update
	(cd "$place/apt/cache" && apt-get "${options[@]}" download "${libraries[@]}" "${runs[@]}")
	for package in "$place"/apt/cache/*.deb; do dpkg -x "$package" "$root"; done
	touch "$root/complete"
fi
make -s VARIANT=arm64 wheel

try=$place/try
rm -rf "$try"
mkdir -p "$try/bin" "$try/data"
"$python" -m zipfile -e build/arm64/dist/tokend-*.whl "$try"
mv "$try"/tokend-*.data/scripts/* "$try/bin"
chmod +x "$try"/bin/*
emulated=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)
for program in tokend tokctl; do "${emulated[@]}" "$try/bin/$program" --version; done

head -c 500000 /dev/urandom >"$try/data/a.bin"
cat >"$try/tokend.yaml" <<-YAML
	socket: $try/tokend.sock
	state_dir: $try/state
	memory: 64MiB
	io: pread
	streams:
	  train: {seed: 7, seq_len: 64, datasets: [{name: a, path: $try/data/a.bin, dtype: u16}]}
YAML
mkdir "$try/state"
"${emulated[@]}" "$try/bin/tokend" -c "$try/tokend.yaml" &
daemon=$!
trap 'kill $daemon 2>/dev/null || :' EXIT
for ((i = 0; i < 600; i++)); do [ -S "$try/tokend.sock" ] || sleep 0.1; done
read=(cat train --socket "$try/tokend.sock" --rank 0 --world 1 --micro 4 --slots 4 --batches 50)
"${emulated[@]}" "$try/bin/tokctl" "${read[@]}" --run emulated >"$try/there"
build/gcc/bin/tokctl "${read[@]}" --run native >"$try/here" # from the same daemon
cmp "$try/there" "$try/here"
[ "$(stat -c %s "$try/there")" -gt 20000 ]
kill $daemon
wait $daemon
echo "arm64: a daemon and a reader, emulated, deliver what a reader of this machine gets"

libraries_at=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu
PYTHONHOME=$root/usr PYTHONPATH=$try \
	"${emulated[@]}" -E "LD_LIBRARY_PATH=$libraries_at" "$root/usr/bin/$python" -c '
import platform, tokend
print("arm64: the package on", platform.machine(), tokend.__version__, tokend.Loader)
'
