#!/usr/bin/env bash
# The shipped units under a real systemd, booted from this machine's /usr in a container. The socket
# starts the daemon, and the sandbox lets it work. Two trainers of another user read through
# restarts, a kill and a hang. The daemon stops cleanly. tokend@USER does the same in its sandbox,
# with shards and state in the home directory of USER.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Of 100, as systemd-analyze counts.
declare -A exposure_most=([tokend.service]=8 [tokend-web.service]=15 [tokend@.service]=15)

# shellcheck source=tests/lib/boot.sh
. tests/lib/boot.sh

# ---- on the host: install, boot, check the verdict ----

# The example saves a cursor. It looks for the library in ../lib.
cp -L build/bin/example-trainer "$scratch/root/usr/local/bin/"

for unit in "${!exposure_most[@]}"; do
	systemd-analyze security --offline=true --threshold="${exposure_most[$unit]}" --no-pager \
		"$scratch/root/usr/local/lib/systemd/system/$unit" >"$scratch/exposure" ||
		{ grep -v '^✓' "$scratch/exposure" && exit 1; }
	tail -n 1 "$scratch/exposure"
done

mkdir -m 755 "$scratch/data"
python3 tests/lib/ids.py "$scratch/data/a.bin" 20000000
mkdir -p "$scratch/home" "$scratch/root/usr/local/lib/sysusers.d"
echo "u ada 1001 - /home/ada" >"$scratch/root/usr/local/lib/sysusers.d/ada.conf"
install -D -m 600 -o 1001 -g 1001 "$scratch/data/a.bin" "$scratch/home/ada/a.bin"
chown 1001:1001 "$scratch/home/ada"
chmod 700 "$scratch/home/ada"
cat >"$scratch/etc/tokend.yaml" <<-'END'
	io: uring
	allow_uids: [1000]
	streams:
	  train:
	    seed: 42
	    seq_len: 256
	    datasets:
	      - {name: random, path: /data/a.bin}
END
sed 's/^io: uring/&\ndirect: true/' "$scratch/etc/tokend.yaml" >"$scratch/etc/direct.yaml"
sed 's,/data/,/home/ada/,; s,^io,state_dir: /home/ada/state\n&,' \
	"$scratch/etc/direct.yaml" >"$scratch/etc/ada.yaml"

cat >"$scratch/srv/check.sh" <<-'END'
	#!/bin/bash
	# Runs in the container. If a command fails, there is no verdict.
	set -euxo pipefail
	export PATH=/usr/local/bin:$PATH
	batches=4000
	unit=tokend
	units="tokend.socket tokend.service"

	property() { systemctl show -p "$1" --value $unit; }
	until_true() {
		for _ in $(seq 400); do
			if "$@"; then return 0; fi
			sleep 0.05
		done
		return 1
	}
	other_pid() {
		now=$(property MainPID) && [ "$now" != 0 ] && [ "$now" != "$1" ] &&
			systemctl is-active -q $unit
	}
	sessions() { [ "$(tokctl status --json | grep -c '"session":')" = "$1" ]; }
	read_rank() {
		setpriv --reuid 1000 --regid 1000 --clear-groups \
			tokctl cat train --rank "$1" --world 2 --micro 4 --batches $batches \
			--slots 8
	}
	metrics() { # at a port of the host
		exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
		printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
		cat <&3 >/srv/metrics
		exec 3>&-
		grep -qx "tokend_up ${2:-1}" /srv/metrics
	}
	logged() { journalctl -b -u $unit | grep "$1"; }
	injected() { echo "$1 1" >>/srv/faults; }
	slowly() { python3 -c 'import os, sys, time
	while data := sys.stdin.buffer.read(1 << 13):
	    sys.stdout.buffer.write(data); sys.stdout.flush()
	    time.sleep(0 if os.path.exists("/srv/over") else 0.05)'; }

	# The socket exists before the daemon, and the first client starts the daemon.
	systemctl is-active tokend.socket
	[ "$(systemctl is-active tokend)" = inactive ]
	for rank in 0 1; do read_rank $rank >/srv/still.$rank; done
	[ "$(stat -c %s /srv/still.1)" = $((batches * 4 * 257 * 2)) ]
	systemctl is-active tokend
	[ "$(stat -c %U "/proc/$(property MainPID)")" = tokend ]
	tokctl status --json | grep -q '"io":"uring"'
	[ "$(property WatchdogUSec)" = 30s ]
	[ "$(property TasksMax)" = 1100 ] && [ "$(property MemoryMax)" != infinity ]

	# Another unit serves its metrics, as a user who may only ask for the status.
	loopback=true
	[ $(($(cat /sys/class/net/lo/flags) & 1)) = 1 ] || loopback=false
	$loopback || echo "skipped: metrics: a container in a container may have no loopback" \
		>/srv/note
	systemctl start tokend-web
	[ "$(stat -c %U "/proc/$(systemctl show -p MainPID --value tokend-web)")" = tokend-web ]
	! $loopback || until_true metrics 9464
	if setpriv --reuid tokend-web --clear-groups tokctl cat train --rank 0 --world 1 \
		--micro 4 --batches 1; then exit 1; fi
	logged 'user tokend-web may only ask'

	# A scrape does not start a daemon that was stopped.
	systemctl stop $units
	! $loopback || until_true metrics 9464 0
	[ "$(systemctl is-active $units | sort -u)" = inactive ]
	systemctl start $units
	! $loopback || until_true metrics 9464

	# It writes snapshots, and to no other directory.
	example-trainer train
	[ -n "$(find /var/lib/tokend -type f)" ]
	example-trainer train "" example
	[ "$(stat -c %U /var/lib/tokend)" = tokend ]

	# From here on the watchdog notices a hang sooner, and shards are read with O_DIRECT.
	drop_in() { # NAME, lines
		mkdir -p /run/systemd/system/$unit.service.d
		printf '[Service]\n%b\n' "$2" >"/run/systemd/system/$unit.service.d/$1.conf"
		systemctl daemon-reload
	}
	drop_in watchdog WatchdogSec=2s
	drop_in direct 'ExecStart=\nExecStart=/usr/local/bin/tokend -c /etc/tokend/direct.yaml'
	systemctl restart tokend

	# Restarts, a kill and a hang under two slow trainers. Every process of them gets the bytes
	# that the daemon before them served.
	says() { property StatusText | grep -x "$1"; }
	disturbed() { # RESTARTS
		readers=
		for rank in 0 1; do
			read_rank $rank | slowly >/srv/through.$rank &
			readers="$readers $!"
		done
		until_true says '2 sessions, 1 stream, . waiting'
		for _ in $(seq "$1"); do
			until_true sessions 2
			pid=$(property MainPID)
			systemctl restart $unit
			other_pid "$pid"
		done
		until_true sessions 2
		systemctl stop $units
		sleep 1 # the trainers find no daemon
		systemctl start $units
		injected 7
		for signal in KILL STOP; do
			until_true sessions 2
			pid=$(property MainPID)
			kill -$signal "$pid"
			until_true other_pid "$pid"
			injected $([ $signal = KILL ] && echo 5 || echo 8)
		done
		until_true sessions 2
		touch /srv/over
		for reader in $readers; do wait "$reader"; done
		rm /srv/over
		for rank in 0 1; do cmp /srv/through.$rank /srv/still.$rank; done
		tokctl status --json | grep -q '"io":"uring"'
	}
	stops_cleanly() {
		timeout 5 systemctl stop $units
		[ "$(property Result)" = success ]
		[ "$(property ExecMainStatus)" = 0 ]
		if logged 'not permitted'; then exit 1; fi
	}
	disturbed 3
	! $loopback || until_true metrics 9464

	# The journal has the levels of lines.
	found() { # WORDS
		journalctl -b -o cat _SYSTEMD_UNIT=tokend.service PRIORITY=6 | grep "$1" >/dev/null
	}
	found ' attached: stream train, run tokctl@1000, rank 1 '
	found ' detached: stream train, run tokctl@1000, rank 0 '
	found '^ready at '

	stops_cleanly # the socket's file stays for the next daemon
	[ "$(ls -A /run/tokend)" = tokend.sock ]

	# tokend@USER: its shards, which only USER can read, and its state are in USER's home
	# directory. Its clients are of another user.
	unit=tokend@ada
	units=$unit
	drop_in watchdog WatchdogSec=2s
	systemctl start $unit
	[ "$(stat -c %U "/proc/$(property MainPID)")" = ada ]
	export TOKEND_SOCKET=/run/tokend-ada/tokend.sock TOKEND_TRUST_UID=1001
	disturbed 0
	example-trainer train
	example-trainer train "" example
	[ -n "$(find /home/ada/state -type f -user ada -path '*example*')" ]
	stops_cleanly
	unset TOKEND_SOCKET TOKEND_TRUST_UID
	unit=tokend

	# A config that is refused: the service is restarted, because trainers wait, but not many
	# times a second, and an operator sees the reason.
	sed 's/seed/sed/' /etc/tokend/tokend.yaml >/srv/broken.yaml
	drop_in direct 'ExecStart=\nExecStart=/usr/local/bin/tokend -c /srv/broken.yaml'
	systemctl start tokend.socket
	systemctl start --no-block tokend
	tells_why() { property StatusText | grep 'cannot start: /srv/broken.yaml'; }
	was_restarted() { [ "$(property NRestarts)" -ge 1 ]; }
	until_true tells_why
	begin=$SECONDS
	until_true was_restarted
	[ $((SECONDS - begin)) -ge 4 ] && [ "$(property NRestarts)" -eq 1 ]
	injected 54
	systemctl stop tokend.socket tokend.service
	echo "all is well" >/srv/verdict
END

booted=true
boot 500 --bind-ro="$scratch/data":/data --bind="$scratch/home":/home || booted=false
if [ "$(cat "$scratch/srv/verdict" 2>/dev/null)" != "all is well" ] || ! $booted; then
	$booted || echo "the container did not boot and halt in time"
	failed
fi
cat "$scratch/srv/note" 2>/dev/null || true
[ -z "${TOKEND_FAULTS:-}" ] || cat "$scratch/srv/faults" >>"$TOKEND_FAULTS"
echo "two trainers read through three restarts, a kill and a hang, and those of a user likewise"
