"""tokctl doctor: a line for each thing that a node needs, ok or with its remedy."""

import json
import os

import pytest
from test_faults import forbid_uring

from lib import TOKCTL, Daemon, datasets, run
from lib.injected import injected
from lib.wire import Client, attach_message

WINDOW = 512


def doctor(*arguments, **keys):
    """{check: (results, the texts, the remedies)}. Checks the exit status."""
    code, out, err = run(TOKCTL, "doctor", "--json", *arguments, **keys)
    assert err == "", err
    found = {}
    for line in out.decode().splitlines():
        said = json.loads(line)
        assert (said["fix"] is not None) == (said["result"] == "fix")
        lists = found.setdefault(said["check"], ([], [], []))
        for which, key in zip(lists, ("result", "text", "fix")):
            which.append(said[key])
    fixes = sum(results.count("fix") for results, _, _ in found.values())
    assert code == (fixes > 0)
    return found


@pytest.fixture
def config(place):
    """A config with one dataset."""
    place.shard("web/0.bin", 400 * WINDOW)
    place.shard("web/1.bin", 400 * WINDOW)
    stream = {"seed": 1, "seq_len": WINDOW, "datasets": datasets("web")}
    return place.config(streams={"train": stream})


def test_a_sound_node(place, config):
    assert doctor("-c", config)["daemon"][:2] == (["skip"], ["none runs yet"])
    daemon = Daemon(place, config)
    found = doctor("-c", config)
    for check in ("io_uring", "daemon", "shards", "disk"):
        assert found[check][0] == ["ok"], found[check]
    assert f"pid {daemon.pid}" in found["daemon"][1][0]
    assert "8 trainers may take" in found["disk"][1][0]
    assert "2 shards" in found["shards"][1][0]
    client = Client(daemon.socket)
    client.ask(**attach_message())  # sessions were once taken for the daemon
    found = doctor("--socket", daemon.socket)
    assert found["daemon"][1][0].endswith(", 1 sessions"), found["daemon"]
    assert found["shards"][0] == ["ok"], "the daemon's config is known"


def test_without_a_daemon(place, config):
    """None is named, which once crashed, and one was killed."""
    found = doctor(env={**os.environ, "TOKEND_SOCKET": place.file("socket")})
    assert found["daemon"][0] != ["ok"]
    assert found["shards"][0] == ["skip"] and "name it with -c" in found["shards"][1][0]
    daemon = Daemon(place, config)
    daemon.kill()
    found = doctor("-c", config)["daemon"]
    assert found[0] == ["fix"] and daemon.socket in found[1][0]


def test_forbidden_io_uring(config):
    found = doctor("-c", config, preexec_fn=forbid_uring(1))["io_uring"]
    assert found[0] == ["fix"] and "io_uring_disabled" in found[2][0]
    injected(38)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as another user")
def test_shards_are_opened_as_the_daemons_user(place, config):
    named = "-c", config, "--user", "nobody"
    assert doctor(*named)["shards"][0] == ["ok"]
    os.chmod(place.file("web", "1.bin"), 0o600)
    shards = doctor(*named)["shards"]
    assert shards[0] == ["fix"] and "as nobody: " in shards[1][0] and "1.bin" in shards[1][0]
    code, _, err = run(TOKCTL, "doctor", "--user", "no-such-user")
    assert code == 2 and "no user no-such-user" in err
