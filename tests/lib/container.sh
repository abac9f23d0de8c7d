#!/usr/bin/env bash
# container.sh OPTION…: systemd-nspawn in a cgroup of its own. Two systemds in the same one would
# stop each other's services.
set -u
roots=()
for root in /sys/fs/cgroup{/systemd,/unified,}; do
	if [ -e $root/cgroup.procs ] && mkdir "$root/container.$$"; then
		roots+=("$root")
		echo $$ >"$root/container.$$/cgroup.procs"
	fi
done
systemd-nspawn -q --register=no --keep-unit --private-network "$@"
status=$?
for root in "${roots[@]}"; do
	echo $$ >"$root/cgroup.procs"
	find "$root/container.$$" -depth -type d -exec rmdir {} +
done
exit $status
