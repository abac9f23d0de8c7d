# To source: boots this machine's /usr with what `make install` installs, under a real systemd in a
# container. The test fills $scratch/etc (/etc/tokend there), system (the units) and srv/check.sh.

if [ "$(id -u)" != 0 ] || ! command -v systemd-nspawn >/dev/null; then
	echo "skipped: needs root and systemd-nspawn"
	exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
container=(tests/lib/container.sh -D / --volatile=yes)
if ! "${container[@]}" true </dev/null >"$scratch/probe" 2>&1; then
	echo "skipped: systemd-nspawn cannot make a container here: $(tail -n 1 "$scratch/probe")"
	exit 77
fi
mkdir -p "$scratch"/{etc,srv} "$scratch"/system/{multi-user,sockets}.target.wants
chmod 755 "$scratch"
env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory install DESTDIR="$scratch/root" \
	PREFIX=/usr/local >/dev/null

boot() { # SECONDS OPTION…: runs check.sh there, which writes srv/verdict last
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
	timeout "$1" "${container[@]}" "${@:2}" --bind="$scratch/srv":/srv \
		--bind-ro="$scratch/system":/etc/systemd/system \
		--bind-ro="$scratch/etc":/etc/tokend \
		--bind-ro="$scratch/root/usr/local":/usr/local -b \
		</dev/null >"$scratch/boot.log" 2>&1
}

failed() {
	grep "^+" "$scratch/srv/log" 2>/dev/null | tail -n 5 # the commands before it failed
	tail -n 80 "$scratch/srv/log" 2>/dev/null || tail -n 30 "$scratch/boot.log"
	exit 1
}
