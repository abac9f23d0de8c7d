"""Attacks on a daemon that succeed today: what each must not reach. A mended one says so by failing
here; its mark goes then, and it moves to the tests of its part.
"""

import json
import os
from pathlib import Path

import pytest

from lib import TOKCTL, Client, Daemon, Refused, client_of, datasets, run

VICTIM, ATTACKER = 61001, 61002
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
    more = {"allow_uids": [VICTIM, ATTACKER]}
    place.daemon = Daemon(place, place.config(streams={"train": STREAM}, **more))
    return place


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
