"""tokctl doctor: a line for each thing that a node needs, ok or with its remedy."""

import ctypes
import json
import os

import pytest
from test_cgroup import Group
from test_faults import forbid_uring

from lib import REPO, TOKCTL, Daemon, datasets, run
from lib.injected import injected
from lib.wire import Client, attach_message

WINDOW = 512
NOBODY = 65534


def streams(**keys):
    return {"train": {"seed": 1, "seq_len": WINDOW, "datasets": datasets("web"), **keys}}


def doctor(*arguments, **keys):
    """{check: (results, the texts, the remedies)} and the exit status."""
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
def node(place):
    """A config with one dataset, and its daemon."""
    place.shard("web/0.bin", 400 * WINDOW)
    place.shard("web/1.bin", 400 * WINDOW)
    return place, place.config(streams=streams())


def test_a_sound_node(node):
    place, config = node
    before = doctor("-c", config)
    assert before["daemon"][:2] == (["skip"], ["none runs yet"])
    daemon = Daemon(place, config)
    found = doctor("-c", config)
    for check in ("kernel", "io_uring", "rings", "daemon", "shards", "disk"):
        assert found[check][0] == ["ok"], found[check]
    assert f"pid {daemon.pid}" in found["daemon"][1][0]
    assert "8 trainers may take" in found["disk"][1][0]
    assert "2 shards" in found["shards"][1][0]
    assert doctor("--socket", daemon.socket)["shards"][0] == ["ok"], "the daemon's config is known"
    code, out, _ = run(TOKCTL, "doctor", "-c", config)
    lines = out.decode().splitlines()
    assert all(line[:5] in ("ok   ", "fix  ", "skip ") for line in lines) and len(lines) >= 9


def test_sessions_are_not_taken_for_the_daemon(node):
    """It once read the last packet of the list's first reply: a session's."""
    place, config = node
    daemon = Daemon(place, config)
    client = Client(daemon.socket)
    client.ask(**attach_message())
    text = doctor("--socket", daemon.socket)["daemon"][1][0]
    assert f"pid {daemon.pid} of " in text and text.endswith(", 1 sessions"), text


def test_a_user_that_root_may_not_become(node):
    _, config = node

    def forbid():  # PR_CAPBSET_DROP, CAP_SETGID
        ctypes.CDLL(None).prctl(24, 6, 0, 0, 0)

    shards = doctor("-c", config, "--user", "nobody", preexec_fn=forbid)["shards"]
    assert shards[:2] == (["fix"], ["cannot act as nobody: Operation not permitted"]), shards


def read_by_children():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def test_windows_are_read_whole(place):
    """It once counted short reads at the end of a shard as windows."""
    window = 1 << 19
    place.shard("web/0.bin", window)  # MiB
    stream = {"seed": 1, "seq_len": window - 1, "datasets": datasets("web")}
    config = place.config(streams={"train": stream})
    before = read_by_children()
    text = doctor("-c", config)["disk"][1][0]
    bytes_read = read_by_children() - before
    rate = int(text.split("web: ")[1].split()[0])
    assert bytes_read > 0.9 * rate * 0.3 * 2 * window, (bytes_read, text)


def test_without_a_config_and_a_daemon(node):
    """It once crashed."""
    place, _ = node
    found = doctor(env={**os.environ, "TOKEND_SOCKET": place.file("socket")})
    assert found["daemon"][0] != ["ok"]
    assert found["shards"][0] == ["skip"] and "name it with -c" in found["shards"][1][0]


def test_a_daemon_that_does_not_answer(node):
    place, config = node
    daemon = Daemon(place, config)
    daemon.kill()
    found = doctor("-c", config)["daemon"]
    assert found[0] == ["fix"] and daemon.socket in found[1][0]


def test_forbidden_io_uring_and_little_memory(node):
    _, config = node
    found = doctor("-c", config, preexec_fn=forbid_uring(1))
    assert found["io_uring"][0] == ["fix"] and "io_uring_disabled" in found["io_uring"][2][0]
    injected(38)
    try:
        group = Group()
    except RuntimeError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    memory = doctor("-c", config, preexec_fn=group.enter)["memory"]
    group.remove()
    assert memory[0] == ["fix"] and "memory: is 1024 MiB" in memory[1][0]
    injected(47)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as another user")
def test_shards_are_opened_as_the_daemons_user(node):
    place, config = node
    os.chmod(place.path, 0o755)
    assert doctor("-c", config, "--user", "nobody")["shards"][0] == ["ok"]
    os.chmod(place.file("web", "1.bin"), 0o600)
    shards = doctor("-c", config, "--user", "nobody")["shards"]
    assert shards[0] == ["fix"] and "as nobody: " in shards[1][0] and "1.bin" in shards[1][0]
    assert doctor("-c", config)["shards"][0] == ["ok"], "root may read it"
    code, _, err = run(TOKCTL, "doctor", "--user", "no-such-user")
    assert code == 2 and "no user no-such-user" in err


def test_a_driver_that_pins_and_one_that_refuses(node):
    _, config = node
    fake = {**os.environ, "LD_LIBRARY_PATH": f"{REPO}/build/gcc/check/fake"}
    assert doctor("-c", config, env=fake)["gpu"][0] == ["ok"]
    refusing = doctor("-c", config, env={**fake, "FAKE_CUDA_REGISTER_FAILS": "1"})["gpu"]
    assert refusing[0] == ["fix"] and "does not pin" in refusing[1][0]
