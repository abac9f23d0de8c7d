"""A trainer takes tokens only from a daemon of root, of its own user, or of $TOKEND_TRUST_UID."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy
import pytest
from embedding import NOBODY, as_nobody, programs

from lib import TOKCTL, Daemon, child_environment, datasets, has, run, wait_for
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can start daemons of two users")

TRAINER = """
import sys, tokend

with tokend.Loader("train", 2, rank=0, world=1, framework="numpy", deadline=20, **{
        sys.argv[1]: sys.argv[2]}) as loader:
    print(int(next(loader)["input_ids"][0, 0]), flush=True)
    for line in sys.stdin:
        print(int(next(loader)["input_ids"][0, 0]), flush=True)
"""


class Scene:
    """Two daemons that can listen at one socket: root's, and a stranger's with forged tokens."""

    def __init__(self, place):
        self.place = place
        self.configs = {}
        for who, token in (("root", 1), ("stranger", 666)):
            tokens = numpy.random.default_rng(1).integers(0, 50000, 20_000).astype("<u2")
            tokens[::64] = token  # the first of each window
            tokens.tofile(place.file(who, "a.bin"))
            data = datasets("a.bin", shuffle="none")
            stream = {"seed": 1, "seq_len": 64, "vocab": 50000, "datasets": data}
            self.configs[who] = place.config(
                f"{who}/tokend.yaml", state_dir=place.file(who, "state", "")[:-1],
                streams={"train": stream}, allow_uids=[NOBODY],
            )  # fmt: skip
        os.chown(place.file("stranger", "state"), NOBODY, NOBODY)

    def socket(self, name, uid=0, mode=0o1777):
        """In a new directory."""
        path = self.place.file(name, "")
        os.chown(path, uid, uid)
        os.chmod(path, mode)
        return os.path.join(path, "tokend.sock")

    def stranger(self, socket, **keys):
        keys["preexec_fn"] = as_nobody
        return Daemon(self.place, self.configs["stranger"], socket_path=socket, **keys)

    def trainer(self, socket, before=(), uid=0, **environment):
        """(exit code, first token or None, last line of stderr)"""
        user = {"user": uid, "extra_groups": []} if uid else {}
        code, out, err = run(
            *before, sys.executable, "-c", TRAINER, "socket", socket,
            env=child_environment(**environment), stdin=subprocess.DEVNULL, **user,
        )  # fmt: skip
        return code, int(out) if out.strip() else None, (err.strip().splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def scene(shared):
    return Scene(shared)


def test_a_strangers_socket_is_refused(scene):
    """A stranger listens in a shared directory."""
    socket = scene.socket("shared")
    stranger = scene.stranger(socket)
    words = [f"uid {NOBODY}", socket, f"TOKEND_TRUST_UID={NOBODY}"]
    code, token, err = scene.trainer(socket)
    assert (code != 0, token) == (True, None) and has(err, "RefusedError", *words)
    code, out, err = run(TOKCTL, "status", "--socket", socket)
    assert (code, out) == (1, b"") and has(err, *words)
    assert not re.search("refused|disconnected", stranger.log()), "nothing is sent to it"
    for value, seen in ((f"1,{NOBODY}", (0, 666)), (f"{NOBODY}0", (1, None)), ("x", (1, None))):
        assert scene.trainer(socket, TOKEND_TRUST_UID=value)[:2] == seen, value
        injected(55)
    assert scene.trainer(socket, uid=NOBODY)[:2] == (0, 666), "the stranger's own trainer"
    stranger.stop()


def test_a_private_daemon_replaces_a_strangers(scene):
    """If a stranger listens at the config's socket, a private daemon serves it, with a warning."""
    socket = scene.socket("named")
    stranger = scene.stranger(socket)
    with open(scene.configs["root"]) as f:
        config = {**json.load(f), "socket": socket}
    with open(scene.place.file("root", "named.yaml"), "w") as f:
        json.dump(config, f)
    runtime, short = scene.place.file("runtime", ""), programs(scene.place.file("short", ""))
    environment = child_environment(XDG_RUNTIME_DIR=runtime, TOKEND_BIN=short, LINGER="1")
    keys = {"env": environment, "stdin": subprocess.DEVNULL}
    code, out, err = run(sys.executable, "-c", TRAINER, "config", f.name, **keys)
    assert (code, out) == (0, b"1\n")
    assert has(err, "RuntimeWarning", f"uid {NOBODY}", "a private daemon serves")
    assert wait_for(lambda: not os.path.exists(f"{runtime}/tokend")), "it exits when it is unused"
    injected(55)
    stranger.stop()


def test_a_socket_taken_over_is_refused(scene):
    """The daemon dies, and the stranger takes its socket before the next daemon."""
    socket = scene.socket("contested")
    daemon = Daemon(scene.place, scene.configs["root"], socket_path=socket)
    assert scene.trainer(socket, uid=NOBODY) == (0, 1, ""), "root's daemon serves another user"
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    command = [sys.executable, "-c", TRAINER, "socket", socket]
    trainer = scene.place.spawn(command, text=True, env=child_environment(), **pipes)
    assert trainer.stdout.readline() == "1\n", "a trainer of root's daemon"
    daemon.stop()
    stranger = scene.stranger(socket)
    out, err = trainer.communicate("\n" * 300, timeout=60)
    assert set(out.split()) == {"1"}, "it consumes its ring, and takes no token of the stranger"
    assert has(err.strip().splitlines()[-1], "RefusedError", f"uid {NOBODY}", socket)
    injected(55)
    stranger.stop()


@pytest.mark.parametrize(
    "mode, own, seen", [(0o755, 1, (0, 666)), (0o777, 1, (1, None)), (0o1777, 0, (1, None))]
)
def test_rootless_containers_trust_the_directorys_owner(scene, mode, own, seen):
    """In a user namespace, all outside users have uid 65534."""
    before = ["unshare", "--user"]
    if not shutil.which("unshare") or run(*before, "true")[0] != 0:
        pytest.skip("user namespaces are not allowed here")
    socket = scene.socket(f"container-{mode:o}", NOBODY * own, mode)
    stranger = scene.stranger(socket, env={**os.environ, "HOME": "/"})
    code, token, err = scene.trainer(socket, before=before)
    assert (code, token) == seen
    assert has(err, "uid 65534", "TOKEND_TRUST_UID=65534") if code else err == ""
    injected(55)
    stranger.stop()
