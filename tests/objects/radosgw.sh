#!/usr/bin/env bash
# radosgw.sh start DIR PORT | stop-gateway DIR | start-gateway DIR | stop DIR
#
# A real radosgw (Ceph's S3 gateway): a monitor, an OSD that keeps objects in memory, a gateway, as
# plain processes of the calling user. Needs no root.
#
# start          S3 on 127.0.0.1:PORT, the monitor on 127.0.0.2:PORT; keys: TOKENDKEY,
#                tokendsecret0123456789
# stop-gateway   kills the gateway; the objects stay
# start-gateway  starts it again
# stop           kills everything; the objects are lost, logs stay in DIR
set -euo pipefail

fail() {
	echo "radosgw.sh: $*" >&2
	exit 1
}

# A pid may have been used again: only processes with this configuration are killed.
is_ours() {
	tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF -- "-c $dir/ceph.conf "
}

# SIGKILL: a clean shutdown takes seconds and saves nothing.
stop() { # NAME…
	local name pid
	for name in "$@"; do
		[ -f "$dir/$name.pid" ] || continue
		pid=$(<"$dir/$name.pid")
		while is_ours "$pid"; do
			kill -KILL "$pid" 2>/dev/null || true
			sleep 0.01
		done
		rm -f "$dir/$name.pid"
	done
}

launch() { # NAME PROGRAM ARGUMENT…
	local name=$1
	shift
	"$@" -c "$dir/ceph.conf" -f >"$dir/$name.out" 2>&1 </dev/null &
	echo $! >"$dir/$name.pid"
	# Until its execve(), it looks like this shell, and not like ours.
	until is_ours $! || ! kill -0 $! 2>/dev/null; do sleep 0.01; done
}

set_up() { # PROGRAM ARGUMENT…
	timeout 60 "$@" >>"$dir/setup.out" 2>&1 || fail "$1 failed; logs are in $dir"
}

write_config() {
	cat >"$dir/ceph.conf" <<-CONFIG
		[global]
		fsid = $1
		mon_host = v2:127.0.0.2:$port
		public_addr = 127.0.0.1
		cluster_addr = 127.0.0.1
		ms_bind_ipv6 = false

		# All of them listen on the loopback interface only.
		auth_cluster_required = none
		auth_service_required = none
		auth_client_required = none
		ms_mon_client_mode = crc

		run_dir = $dir
		log_file = $dir/\$name.log
		admin_socket =
		mon_data = $dir/mon
		osd_data = $dir/osd

		osd_objectstore = memstore
		memstore_device_bytes = 4294967296
		osd_crush_update_on_start = true
		osd_crush_chooseleaf_type = 0
		osd_pool_default_size = 1
		osd_pool_default_pg_num = 1
		osd_pool_default_pgp_num = 1
		osd_pool_default_pg_autoscale_mode = off
		mon_allow_pool_size_one = true
		mon_max_pg_per_osd = 1000
		# Each pool is a commit of the monitor, when it is first used.
		paxos_propose_interval = 0.05

		rgw_frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
		rgw_dns_name = localhost
		rgw_thread_pool_size = 64
	CONFIG
}

answers() {
	local line
	{
		printf 'GET / HTTP/1.0\r\n\r\n' >&3
		while IFS= read -r -t 2 line <&3 || [ -n "$line" ]; do
			case $line in *ListAllMyBucketsResult*) return 0 ;; esac
		done
	} 3<>"/dev/tcp/127.0.0.1/$port" 2>/dev/null
	return 1
}

start_gateway() {
	local deadline=$((SECONDS + 60)) name

	port=$(sed -n 's/^rgw_frontends.*:\([0-9]*\).*/\1/p' "$dir/ceph.conf")
	launch rgw radosgw -n client.admin
	until (answers) 2>/dev/null; do
		for name in mon osd rgw; do
			is_ours "$(<"$dir/$name.pid")" || fail "$name ended; logs are in $dir"
		done
		[ "$SECONDS" -lt "$deadline" ] || fail "no answer on port $port; logs are in $dir"
		sleep 0.05
	done
}

start() {
	local fsid osd

	mkdir -p "$dir/mon" "$dir/osd"
	trap '[ $? = 0 ] || stop rgw osd mon' EXIT
	fsid=$(cat /proc/sys/kernel/random/uuid) osd=$(cat /proc/sys/kernel/random/uuid)
	write_config "$fsid"
	set_up monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.2:$port]" \
		"$dir/monmap"
	set_up ceph-mon -i a -c "$dir/ceph.conf" --mkfs --monmap "$dir/monmap"
	launch mon ceph-mon -i a
	set_up ceph -c "$dir/ceph.conf" --connect-timeout 60 osd new "$osd"
	set_up ceph-osd -i 0 -c "$dir/ceph.conf" --mkfs --osd-uuid "$osd"
	launch osd ceph-osd -i 0
	set_up radosgw-admin -c "$dir/ceph.conf" user create --uid=test --display-name=test \
		--access-key=TOKENDKEY --secret-key=tokendsecret0123456789
	start_gateway
}

[ $# -ge 2 ] || fail "usage: radosgw.sh start DIR PORT | stop-gateway|start-gateway|stop DIR"
dir=$(realpath -m -- "$2") port=${3:-}
case $1 in
start) start ;;
stop-gateway) stop rgw ;;
start-gateway) start_gateway ;;
stop) stop rgw osd mon ;;
*) fail "unknown argument '$1'" ;;
esac
