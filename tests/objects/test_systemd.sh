#!/usr/bin/env bash
# The shipped unit with its whole sandbox and the drop-in for object stores, under a real systemd in
# a container. nginx there serves shards over TLS, by a name that must be looked up. Bytes from it
# are those of the disk, without a cache and with one. Without the drop-in there is no network.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=tests/lib/boot.sh
. tests/lib/boot.sh

# ---- on the host: install, certificates, shards ----

mkdir -p "$scratch"/{data/corpus/web,nvme,tls}
chmod 755 "$scratch"/{data,data/corpus,data/corpus/web}
for i in 0 1; do
	python3 tests/lib/ids.py "$scratch/data/corpus/web/$i.bin" 2000000
done
build/bin/tokctl manifest "$scratch/data/corpus/web" "$scratch/local.jsonl"
(
	cd "$scratch/tls"
	new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2)
	openssl req -x509 "${new_key[@]}" -subj /CN=tests -keyout ca.key -out ca.pem
	openssl req -x509 "${new_key[@]}" -subj /CN=store.test \
		-addext subjectAltName=DNS:store.test \
		-addext basicConstraints=critical,CA:FALSE -CA ca.pem -CAkey ca.key \
		-keyout server.key -out server.pem
) >"$scratch/openssl" 2>&1
cp "$scratch/tls/ca.pem" "$scratch/local.jsonl" "$scratch/etc/"
cat >"$scratch/tls/nginx.conf" <<-'END'
	daemon off;
	user root;
	pid /run/nginx.pid;
	error_log /srv/nginx.log;
	events {}
	http {
		access_log off;
		client_body_temp_path /run;
		proxy_temp_path /run;
		fastcgi_temp_path /run;
		uwsgi_temp_path /run;
		scgi_temp_path /run;
		server {
			listen 127.0.0.1:8443 ssl;
			ssl_certificate /tls/server.pem;
			ssl_certificate_key /tls/server.key;
			root /data;
		}
	}
END
printf '127.0.0.1 localhost store.test\n' >"$scratch/hosts"
dataset='{name: web, path: "https://store.test:8443/corpus/web/", manifest: /srv/web.jsonl'
cat >"$scratch/etc/tokend.yaml" <<-END
	allow_uids: [1000]
	stores:
	  https: {anonymous: true, ca: ca.pem}
	streams:
	  disk:
	    seed: 42
	    seq_len: 255
	    datasets: [{name: web, path: /data/corpus/web}]
	  windows:
	    seed: 42
	    seq_len: 255
	    datasets: [$dataset, fetch: window}]
END
cp "$scratch/etc/tokend.yaml" "$scratch/etc/cached.yaml"
cat >>"$scratch/etc/cached.yaml" <<-END
	  pieces:
	    seed: 42
	    seq_len: 255
	    datasets: [$dataset, fetch: piece, piece: 64KiB}]
	cache: {dir: /nvme/tokend, size: 64MiB}
END

cat >"$scratch/srv/check.sh" <<-'END'
	#!/bin/bash
	# Runs in the container. If a command fails, there is no verdict.
	set -euxo pipefail
	export PATH=/usr/local/bin:$PATH

	if [ $(($(cat /sys/class/net/lo/flags) & 1)) != 1 ]; then
		echo "skipped: a container in a container may have no loopback" >/srv/verdict
		exit
	fi
	nginx -c /tls/nginx.conf &
	until (exec 3<>/dev/tcp/127.0.0.1/8443) 2>/dev/null; do sleep 0.05; done
	install -d -o tokend -g tokend /nvme/tokend
	tokctl manifest https://store.test:8443/corpus/web/ /srv/web.jsonl \
		-c /etc/tokend/tokend.yaml --from /etc/tokend/local.jsonl
	read_stream() {
		setpriv --reuid 1000 --regid 1000 --clear-groups \
			timeout 60 tokctl cat "$1" --rank 0 --world 1 --micro 4 --batches 500
	}

	# Without the drop-in: no network. The daemon serves the disk, and waits for the store.
	read_stream disk >/srv/disk
	[ "$(stat -c %s /srv/disk)" = $((500 * 4 * 256 * 2)) ]
	! timeout 3 setpriv --reuid 1000 --regid 1000 --clear-groups tokctl cat windows \
		--rank 0 --world 1 --micro 4 --batches 1 >/srv/none

	install -D -m 644 /usr/local/share/doc/tokend/objects.conf \
		/run/systemd/system/tokend.service.d/objects.conf
	systemctl daemon-reload
	systemctl restart tokend
	read_stream windows | cmp - /srv/disk
	systemctl show -p RestrictAddressFamilies tokend | grep -vq NETLINK
	cp /etc/tokend/cached.yaml /srv/cached.yaml
	sed -i 's,ca.pem,/etc/tokend/ca.pem,' /srv/cached.yaml
	start='ExecStart=/usr/local/bin/tokend -c /srv/cached.yaml'
	printf '[Service]\nExecStart=\n%s\n' "$start" \
		>/run/systemd/system/tokend.service.d/cached.conf
	systemctl daemon-reload
	systemctl restart tokend
	read_stream pieces | cmp - /srv/disk
	find /nvme/tokend -name '*.0' | grep -q .
	echo "all is well" >/srv/verdict
END
boot 200 --bind-ro="$scratch/data":/data --bind="$scratch/nvme":/nvme \
	--bind-ro="$scratch/tls":/tls --bind-ro="$scratch/hosts":/etc/hosts || true
verdict=$(cat "$scratch/srv/verdict" 2>/dev/null || true)
case $verdict in
"all is well") ;;
skipped*) echo "$verdict" && exit 77 ;;
*) failed ;;
esac
echo "bytes from nginx over TLS in the whole sandbox are those of the disk"
