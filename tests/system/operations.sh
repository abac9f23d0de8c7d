#!/usr/bin/env bash
# A node's life on a bare Debian under a real systemd. The packages are installed, configured, used
# by two trainers of another user, reloaded, upgraded, misconfigured, watched and purged. A job of
# Slurm gets a daemon of its own. The trainers' records prove that no sample was repeated or lost.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" != 0 ] || ! command -v systemd-nspawn >/dev/null; then
	echo "skipped: needs root and systemd-nspawn"
	exit 77
fi
scratch=$(mktemp -d)
root=$scratch/disk/root
ending() {
	umount -q "$root/usr" "$root/var/lib/dpkg" "$scratch/disk" || true
	rm -rf "$scratch"
}
trap ending EXIT
mkdir "$scratch/disk"
if ! mount -t tmpfs -o size=1g tmpfs "$scratch/disk" 2>"$scratch/why"; then
	echo "skipped: cannot mount a tmpfs here: $(cat "$scratch/why")"
	exit 77
fi

# ---- on the host: a root with this machine's /usr and package database, and nothing else ----

overlay() { # OF: what is written to it goes to memory
	local memory=$scratch/disk/$2
	mkdir -p "$root$1" "$memory"/{upper,work}
	mount -t overlay overlay -o "lowerdir=$1,upperdir=$memory/upper,workdir=$memory/work" \
		"$root$1"
}
bare_debian() {
	overlay /usr usr
	overlay /var/lib/dpkg dpkg
	mkdir -p "$root"/{proc,sys,dev,run,tmp,root,srv,home}
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	for link in bin sbin lib lib32 lib64 libx32; do
		[ ! -L "/$link" ] || cp -a "/$link" "$root/"
	done
	cp /usr/share/base-passwd/passwd.master "$root/etc/passwd"
	cp /usr/share/base-passwd/group.master "$root/etc/group"
	cp -a /etc/{ld.so.conf,ld.so.conf.d,alternatives,debian_version} "$root/etc/"
	touch "$root/etc/ld.so.cache"
	systemd-machine-id-setup --root="$root" >/dev/null 2>&1
	rm -f "$root/usr/sbin/policy-rc.d"
	# man-db would index all of this machine's pages at each installation.
	awk 'BEGIN { RS = ""; ORS = "\n\n" } !/^Package: man-db\n/' /var/lib/dpkg/status \
		>"$root/var/lib/dpkg/status"
	sed -i '/ man-db$/d' "$root/var/lib/dpkg/triggers/File"
	rm -f "$root"/var/lib/dpkg/{lock*,statoverride,triggers/Unincorp}
	printf 'u ada 1001 - /home/ada\nu bob 1002 - /home/bob\n' \
		>"$root/usr/lib/sysusers.d/people.conf"
	ln -s /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
}

env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory deb >"$scratch/make.log" 2>&1 ||
	{ tail -n 30 "$scratch/make.log" && exit 1; }
lintian --allow-root --fail-on error build/deb/*.changes
if ! bare_debian 2>"$scratch/why"; then
	echo "skipped: cannot make a root here: $(tail -n 1 "$scratch/why")"
	exit 77
fi
mkdir -p "$root"/srv/{packages,newer,trainer} "$root"/data/{web,code,books}
cp build/deb/*.deb "$root/srv/packages/"
dpkg-deb -R build/deb/tokend_*.deb "$scratch/newer" # the same package with another version
sed -i "s/^Version: .*/Version: 99.0/" "$scratch/newer/DEBIAN/control"
dpkg-deb -b --root-owner-group "$scratch/newer" "$root/srv/newer/tokend.deb" >/dev/null
for shard in web/0 web/1 code/0 books/0; do
	python3 tests/lib/ids.py "$root/data/$shard.bin" 2000000
done
chown 1001:1001 "$root/srv/trainer"
install -D -m 600 -o 1002 -g 1002 "$root/data/web/0.bin" "$root/home/bob/web/0.bin"
chown -R 1002:1002 "$root/home/bob" && chmod 700 "$root/home/bob"
install -D config/slurm.sh "$root/etc/slurm/tokend.sh"

# ---- in the container ----

cat >"$root/srv/trainer.py" <<-'END'
	"""A rank of a job. It makes slow steps until /srv/finish says at which step to end."""
	import os, sys, time
	import tokend

	rank = int(sys.argv[1])
	with tokend.Loader("train", 4, rank=rank, world=2, run="job", slots=8,
	                   framework="numpy", record="/srv/trainer/records") as loader:
	    for step, batch in enumerate(loader, 1):
	        with open(f"/srv/trainer/{rank}.part", "w") as file:
	            file.write(f"{step}\n")
	        os.replace(file.name, f"/srv/trainer/{rank}.step")
	        if not os.path.exists("/srv/finish"):
	            time.sleep(0.05)
	        elif step >= int(open("/srv/finish").read()):
	            break
END

cat >"$root/srv/operator.sh" <<-'END'
	#!/bin/bash
	# Runs in the container as root. If a command fails, there is no verdict.
	set -euxo pipefail
	config=/etc/tokend/tokend.yaml

	until_true() {
		for _ in $(seq 400); do
			if "$@"; then return 0; fi
			sleep 0.05
		done
		return 1
	}
	property() { systemctl show -p "$1" --value tokend; }
	status_is() { property StatusText | grep -q "$1"; }
	sessions() { [ "$(tokctl status --json | grep -c '"rank"')" = "$1" ]; }
	steps() { cat /srv/trainer/{0,1}.step; }
	further() { # than the steps before
		local now=($(steps))
		[ "${now[0]}" -gt "$1" ] && [ "${now[1]}" -gt "$2" ]
	}
	go_on() { until_true further $(steps); }
	inactive() { [ "$(systemctl is-active tokend)" = inactive ]; }

	slurm() { # a cluster of this node, without authentication; it does not talk to 127.0.0.1
		ip address add 192.0.2.1/32 dev lo
		cat >/etc/slurm/slurm.conf <<-CONF
			ClusterName=one
			SlurmctldHost=$HOSTNAME(192.0.2.1)
			SlurmUser=root
			AuthType=auth/none
			CredType=cred/none
			ProctrackType=proctrack/linuxproc
			TaskPlugin=task/none
			StateSaveLocation=/var/spool/slurmctld
			SlurmdSpoolDir=/var/spool/slurmd
			Prolog=/etc/slurm/tokend.sh
			TaskProlog=/etc/slurm/tokend.sh
			PrologFlags=Alloc
			NodeName=$HOSTNAME NodeAddr=192.0.2.1 CPUs=2
			PartitionName=all Nodes=ALL Default=YES
		CONF
		mkdir -p /var/spool/slurmctld /var/spool/slurmd
		slurmctld && slurmd
		until_true idle
		as_bob srun tokctl cat mine --rank 0 --world 1 --micro 4 --batches 99 | wc -c
		systemctl is-active tokend@bob
		sed -i.good 's/seed:/sed:/' /etc/tokend/bob.yaml
		as_bob srun tokctl status
		mv /etc/tokend/bob.yaml.good /etc/tokend/bob.yaml
	}
	idle() { timeout 10 sinfo -h 2>/srv/sinfo | grep -q idle; }
	as_bob() { setpriv --reuid bob --regid bob --clear-groups "$@"; }

	# Install. Without a config, nothing runs, and nothing fails.
	dpkg -i /srv/packages/*.deb
	systemctl start tokend
	inactive
	[ "$(property ConditionResult)" = no ]
	[ -z "$(systemctl list-units --failed --no-legend)" ]
	[ "$(stat -c %U:%a /usr/bin/tokctl)" = root:755 ]
	[ "$(tokend --version)" = "tokend $(dpkg-query -W -f='${Version}' tokend)" ]
	ls /usr/share/man/man{1/tokctl.1,8/tokend.8,5/tokend.yaml.5}.gz

	# Three shards, a config, and the service.
	cat >$config <<-YAML
		allow_uids: [1001]
		streams:
		  train:
		    seed: 42
		    seq_len: 256
		    datasets:
		      - {name: web, path: /data/web, dtype: u16, weight: 0.7}
		      - {name: code, path: /data/code, dtype: u16, weight: 0.3}
	YAML
	tokend -c $config --check
	systemctl start tokend && systemctl is-active tokend.socket tokend
	[ "$(stat -c %U "/proc/$(property MainPID)")" = tokend ]

	# Two trainers of the user ada.
	trainers=
	for rank in 0 1; do
		(cd /srv/trainer && exec setpriv --reuid ada --regid ada --clear-groups \
			env PYTHONPATH=/opt/venv python3 /srv/trainer.py $rank) &
		trainers="$trainers $!"
	done
	until_true sessions 2
	until_true test -e /srv/trainer/0.step -a -e /srv/trainer/1.step
	go_on

	# A new dataset and a new stream, by a reload. The trainers attach again.
	cat >>$config <<-YAML
		      - {name: books, path: /data/books, dtype: u16, weight: 0}
		  books:
		    seed: 42
		    seq_len: 256
		    datasets: [{name: books, path: /data/books, dtype: u16}]
	YAML
	before=$(property MainPID)
	systemctl reload tokend
	until_true status_is '2 sessions, 2 streams'
	tokctl cat books --rank 0 --world 1 --micro 4 --batches 100 | wc -c
	[ "$(property MainPID)" = "$before" ] && until_true sessions 2
	go_on

	# A job of Slurm. Its prolog starts a daemon for the user bob.
	cat >/etc/tokend/bob.yaml <<-YAML
		streams:
		  mine:
		    seed: 1
		    seq_len: 256
		    datasets: [{name: web, path: /home/bob/web, dtype: u16}]
	YAML
	if command -v slurmctld slurmd srun >/dev/null; then
		slurm
	else
		echo "skipped: Slurm: slurmctld, slurmd or srun is missing" >/srv/note
		systemctl start tokend@bob
	fi

	# An upgrade under them.
	before=$(property MainPID)
	socket=$(systemctl show -p ActiveEnterTimestampMonotonic --value tokend.socket)
	of_bob=$(systemctl show -p MainPID --value tokend@bob)
	dpkg -i /srv/newer/tokend.deb
	[ "$(property MainPID)" != "$before" ]
	systemctl is-active -q tokend@bob
	[ "$(systemctl show -p MainPID --value tokend@bob)" != "$of_bob" ]
	[ "$(systemctl show -p ActiveEnterTimestampMonotonic --value tokend.socket)" = "$socket" ]
	until_true sessions 2
	go_on

	# A config that is broken. A reload keeps the old one.
	sed -i.good 's/seed:/sed:/' $config
	if tokend -c $config --check; then exit 1; fi
	before=$(property MainPID)
	systemctl reload tokend
	until_true status_is 'did you mean seed'
	[ "$(property MainPID)" = "$before" ]
	go_on

	mv $config.good $config

	# The trainers end. Their records are compared with the order and the shards.
	last=$(($(sort -n <(steps) | tail -n 1) + 200))
	echo $last >/srv/last && mv /srv/last /srv/finish
	for trainer in $trainers; do wait "$trainer"; done
	[ "$(steps | sort -u)" = $last ]
	tokctl verify -c $config train /srv/trainer/records

	# Purge. Nothing stays, except the user tokend and what users own.
	dpkg --purge tokend tokctl libtokend-dev libtokend1 python3-tokend
	kept='-path /srv -o -path /opt -o -path /var/log -o -path /etc/slurm'
	kept="$kept -o -path /var/lib/tokend-bob"
	left=$(eval "find / /usr -xdev -maxdepth 5 \( $kept \) -prune" \
		"-o -iname '*tokend*' -print -o -name '*tokctl*' -print")
	[ -z "$left" ] || { echo "not removed: $left" && exit 1; }
	[ ! -e /run/tokend ] && [ ! -e /var/lib/tokend ] && [ ! -e /etc/tokend ]
	[ -z "$(pgrep -x tokend)" ]
	[ -z "$(systemctl list-units --failed --no-legend)" ]
	touch /srv/verdict
END

cat >"$root/etc/systemd/system/operator.service" <<-'END'
	[Unit]
	After=sockets.target
	[Service]
	Type=oneshot
	ExecStart=/bin/bash -c '/bin/bash /srv/operator.sh >/srv/transcript 2>&1; \
		journalctl -b --no-pager -u "tokend*" >/srv/journal 2>&1; \
		systemctl poweroff --no-block'
END
ln -s ../operator.service "$root/etc/systemd/system/multi-user.target.wants/"

site=$(readlink -f build/venv/lib/python3*/site-packages)
timeout 120 tests/lib/container.sh -D "$root" \
	--bind-ro="$site":/opt/venv -b </dev/null >"$scratch/boot.log" 2>&1 ||
	echo "the container did not boot and halt in time"
cat "$root/srv/note" 2>/dev/null || true
if [ ! -e "$root/srv/verdict" ]; then
	cat "$root"/srv/{transcript,journal} || tail -n 30 "$scratch/boot.log"
	exit 1
fi
echo "installed, used, reloaded, upgraded and purged"
