#!/usr/bin/env bash
# The shipped units under a real systemd, booted from this machine's /usr in a container. The socket
# starts the daemon, and the sandbox lets it work. Two trainers of another user read through
# restarts, a kill and a hang. The daemon stops cleanly.
set -euo pipefail
cd "$(dirname "$0")/../.."

EXPOSURE_MOST=20 # of 100, as systemd-analyze counts

if [ "$(id -u)" != 0 ] || ! command -v systemd-nspawn >/dev/null; then
	echo "skipped: needs root and systemd-nspawn"
	exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

container=(systemd-nspawn -q -D / --volatile=yes --register=no --keep-unit --private-network)
if ! "${container[@]}" true </dev/null >"$scratch/probe" 2>&1; then
	echo "skipped: systemd-nspawn cannot make a container here: $(tail -n 1 "$scratch/probe")"
	exit 77
fi

# ---- on the host: install, boot, check the verdict ----

mkdir -p "$scratch"/{etc,srv,data} "$scratch"/system/{multi-user,sockets}.target.wants
env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory install DESTDIR="$scratch/root" \
	PREFIX=/usr/local >/dev/null
# The example saves a cursor. It looks for the library in ../lib.
cp -L build/bin/example-trainer "$scratch/root/usr/local/bin/"

systemd-analyze security --offline=true --threshold=$EXPOSURE_MOST --no-pager \
	"$scratch/root/usr/local/lib/systemd/system/tokend.service" | tail -n 1

chmod 755 "$scratch" "$scratch/data"
head -c 40000000 /dev/urandom >"$scratch/data/a.bin"
cat >"$scratch/etc/tokend.yaml" <<-'END'
	io: uring
	allow_uids: [1000]
	metrics: 127.0.0.1:9464
	streams:
	  train:
	    seed: 42
	    seq_len: 256
	    datasets:
	      - {name: random, path: /data/a.bin}
END

cat >"$scratch/srv/check.sh" <<-'END'
	#!/bin/bash
	# Runs in the container. If a command fails, there is no verdict.
	set -euxo pipefail
	export PATH=/usr/local/bin:$PATH
	batches=4000

	property() { systemctl show -p "$1" --value tokend; }
	until_true() {
		for _ in $(seq 400); do
			if "$@"; then return 0; fi
			sleep 0.05
		done
		return 1
	}
	other_pid() {
		now=$(property MainPID) && [ "$now" != 0 ] && [ "$now" != "$1" ] &&
			systemctl is-active -q tokend
	}
	sessions() { [ "$(tokctl status --json | grep -c '"stream"')" = "$1" ]; }
	read_rank() {
		setpriv --reuid 1000 --regid 1000 --clear-groups \
			tokctl cat train --rank "$1" --world 2 --micro 4 --batches $batches \
			--slots 8
	}
	slowly() { python3 -c 'import sys, time
	while data := sys.stdin.buffer.read(1 << 16):
	    sys.stdout.buffer.write(data); sys.stdout.flush(); time.sleep(0.05)'; }

	# The socket exists before the daemon, and the first client starts the daemon.
	systemctl is-active tokend.socket
	[ "$(systemctl is-active tokend)" = inactive ]
	for rank in 0 1; do
		read_rank $rank >/srv/still.$rank
		[ "$(stat -c %s /srv/still.$rank)" = $((batches * 4 * 257 * 2)) ]
	done
	systemctl is-active tokend
	[ "$(stat -c %U "/proc/$(property MainPID)")" = tokend ]
	tokctl status --json | grep -q '"io":"uring"'
	[ "$(property WatchdogUSec)" = 30s ]
	if [ $(($(cat /sys/class/net/lo/flags) & 1)) = 1 ]; then
		exec 3<>/dev/tcp/127.0.0.1/9464
		printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
		cat <&3 >/srv/metrics
		grep -q ^tokend_ /srv/metrics
	else
		echo "metrics not tested: a container in a container may have no loopback" \
			>/srv/note
	fi

	# It writes snapshots, and to no other directory.
	example-trainer train
	saved=$(find /var/lib/tokend -type f)
	[ -n "$saved" ]
	ls -lR /var/lib/tokend
	example-trainer train /run/tokend/tokend.sock example
	[ "$(stat -c %U /var/lib/tokend)" = tokend ]

	# From here on the watchdog notices a hanging loop sooner.
	mkdir -p /run/systemd/system/tokend.service.d
	printf '[Service]\nWatchdogSec=2s\n' >/run/systemd/system/tokend.service.d/watchdog.conf
	systemctl daemon-reload
	systemctl restart tokend

	readers=
	for rank in 0 1; do
		read_rank $rank | slowly >/srv/through.$rank &
		readers="$readers $!"
	done
	for _ in 1 2 3; do
		until_true sessions 2
		pid=$(property MainPID)
		systemctl restart tokend
		other_pid "$pid"
	done
	until_true sessions 2
	pid=$(property MainPID)
	kill -KILL "$pid"
	until_true other_pid "$pid"
	until_true sessions 2
	pid=$(property MainPID)
	kill -STOP "$pid"
	until_true other_pid "$pid"
	until_true sessions 2
	for reader in $readers; do wait "$reader"; done
	for rank in 0 1; do cmp /srv/through.$rank /srv/still.$rank; done

	# It stops cleanly. The socket's file stays for the next daemon.
	systemctl stop tokend.socket tokend.service
	[ "$(property Result)" = success ]
	[ "$(property ExecMainStatus)" = 0 ]
	[ "$(ls -A /run/tokend)" = tokend.sock ]
	if journalctl -b -u tokend | grep -i 'not permitted'; then exit 1; fi

	# A config that is refused: the service is restarted, because trainers wait, but not many
	# times a second, and an operator sees the reason.
	sed 's/seed/sed/' /etc/tokend/tokend.yaml >/srv/broken.yaml
	printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/tokend -c /srv/broken.yaml\n' \
		>/run/systemd/system/tokend.service.d/broken.conf
	systemctl daemon-reload
	systemctl start tokend.socket
	systemctl start --no-block tokend
	sleep 8
	[ "$(property NRestarts)" -le 1 ]
	property StatusText | grep 'cannot start: /srv/broken.yaml'
	[ "$(journalctl -b -u tokend -p err | grep -c 'did you mean seed')" -le 2 ]
	journalctl -b -u tokend -p err | grep 'trainers wait'
	systemctl stop tokend.socket tokend.service
	echo "all is well" >/srv/verdict
END

cat >"$scratch/system/check.service" <<-'END'
	[Unit]
	After=tokend.socket
	[Service]
	Type=oneshot
	ExecStart=/bin/bash -c '/bin/bash /srv/check.sh >/srv/log 2>&1; \
		journalctl -b --no-pager -u "tokend*" >>/srv/log 2>&1; \
		systemctl poweroff --no-block'
END
ln -s ../check.service "$scratch/system/multi-user.target.wants/check.service"
ln -s /usr/local/lib/systemd/system/tokend.socket "$scratch/system/sockets.target.wants/"
ln -s /lib/systemd/system/multi-user.target "$scratch/system/default.target"
ln -s /dev/null "$scratch/system/systemd-firstboot.service"

booted=true
timeout 150 "${container[@]}" --bind="$scratch/srv":/srv --bind-ro="$scratch/data":/data \
	--bind-ro="$scratch/system":/etc/systemd/system --bind-ro="$scratch/etc":/etc/tokend \
	--bind-ro="$scratch/root/usr/local":/usr/local -b </dev/null >"$scratch/boot.log" 2>&1 ||
	booted=false
if [ "$(cat "$scratch/srv/verdict" 2>/dev/null)" != "all is well" ] || ! $booted; then
	tail -n 80 "$scratch/srv/log" 2>/dev/null || tail -n 30 "$scratch/boot.log"
	$booted || echo "the container did not boot and halt in time"
	exit 1
fi
cat "$scratch/srv/note" 2>/dev/null || true
echo "two trainers read through three restarts, a kill and a hang"
