"""Attacks on a daemon that succeed today: what each must not reach. A mended one says so by failing
here; its mark goes then, and it moves to the tests of its part.
"""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

import pytest

from lib import TOKCTL, Client, Daemon, Refused, client_of, datasets, free_port, run

VICTIM, ATTACKER, STRANGER = 61001, 61002, 61234
STREAM = {"seed": 1, "seq_len": 64, "datasets": datasets("web", "poison", dtype="u16")}
STREAM["datasets"][1]["weight"] = 0

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to become other users"),
    pytest.mark.xfail(strict=True, reason="a known attack"),
]


@pytest.fixture
def scene(place):
    for name in ("web", "poison"):
        place.shard(f"{name}/a.bin", 60_000)
    place.port = free_port()
    more = {"metrics": f"127.0.0.1:{place.port}", "allow_uids": [VICTIM, ATTACKER]}
    place.daemon = Daemon(place, place.config(streams={"train": STREAM}, **more))
    return place


def get(port, host):
    with socket.create_connection(("127.0.0.1", port)) as peer, peer.makefile("rb") as answer:
        peer.sendall(f"GET /status.json HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        return answer.read()


def test_a_page_of_another_host_reads_no_status(scene):
    """A name that is bound to 127.0.0.1 in mid-visit makes a browser ask with that name."""
    client = Client(scene.daemon.socket).attach(run="secret")
    assert b"secret" in get(scene.port, f"127.0.0.1:{scene.port}"), "the run is in the status"
    assert b"secret" not in get(scene.port, f"evil.example:{scene.port}")
    client.close()


def test_a_flood_of_a_stranger_costs_the_daemon_nothing(scene):
    """Requests for metrics whose answers nobody reads."""

    def cpu():
        with open(f"/proc/{scene.daemon.pid}/stat") as file:
            return sum(map(int, file.read().split()[13:15])) / os.sysconf("SC_CLK_TCK")

    before = cpu()
    child = os.fork()
    if child == 0:
        os.setuid(STRANGER)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", scene.port)) as peer:
                    peer.settimeout(0.1)
                    peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 64)
                    peer.recv(1 << 20)
        os._exit(0)
    _, _, used = os.wait4(child, 0)
    assert cpu() - before < 0.1 * (used.ru_utime + used.ru_stime)


def test_a_tag_of_another_user_is_not_found(scene):
    attacker = client_of(scene.daemon, ATTACKER).attach(run="evil")
    plain, edited = Path(scene.file("plain")), Path(scene.file("edited"))
    plain.write_bytes(attacker.feed["cursor"])
    code, _, err = run(TOKCTL, "cursor", "mix", plain, "poison=1", "-o", edited)
    assert code == 0, err
    cursor = edited.read_bytes()
    attacker.ask(op="checkpoint", tag="latest", cursor=cursor)
    victim = client_of(scene.daemon, VICTIM)
    try:
        victim.attach(run="mine", tag="latest")
    except Refused:
        return
    assert victim.feed["cursor"] != cursor


def test_a_live_run_of_root_stays_with_root(scene):
    root = Client(scene.daemon.socket).attach(run="prod")
    root.ask(op="checkpoint", tag="latest", cursor=root.feed["cursor"])
    attacker = client_of(scene.daemon, ATTACKER)
    try:
        attacker.attach(run="prod")
        operator = client_of(scene.daemon, ATTACKER)
        operator.ask(op="request", stream="train", run="prod", kind="mix", args="poison=1")
    except Refused:
        pass
    root.tell(op="pending")
    assert "poison" not in json.dumps(root.hear(), default=repr), "no request of another user"
