#!/bin/sh
# Slurm's prologs: a daemon tokend@USER for each user who has a config, /etc/tokend/USER.yaml.
# Install this file on the nodes as /etc/slurm/tokend.sh, and in slurm.conf set
#
#     Prolog=/etc/slurm/tokend.sh
#     TaskProlog=/etc/slurm/tokend.sh
#     PrologFlags=Alloc
#
# Jobs find the daemon by TOKEND_SOCKET. It stays when they end: without sessions it uses 10 MiB.
unit=tokend@${SLURM_JOB_USER:=$(id -un)}
[ -e "/etc/tokend/$SLURM_JOB_USER.yaml" ] || exit 0

case $SLURM_SCRIPT_CONTEXT in
prolog_slurmd)
	# A start returns when the daemon serves. A running daemon reads its config again. A config
	# that is broken must not drain the node: the task's output says why, see below.
	timeout 60 systemctl reload-or-restart "$unit" || true
	;;
prolog_task)
	echo "export TOKEND_SOCKET=/run/$(echo "$unit" | tr @ -)/tokend.sock"
	status=$(systemctl show -p StatusText --value "$unit")
	case $status in
	*"cannot start"* | *"not read again"*) echo "print $unit: $status" ;;
	esac
	;;
esac
