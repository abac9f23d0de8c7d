"""A trainer takes tokens only from a daemon of root, of its own user, or of $TOKEND_TRUST_UID."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy
import pytest
from embedding import programs

from lib import BIN, REPO, TOKCTL, Daemon, datasets, has, run, wait_for, with_parent
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can start daemons of two users")

# has nothing, and shares nothing with another run of this test
STRANGER = 57000 + os.getpid() % 4000
PACKAGE = os.environ.get("TOKEND_PYTHON") or os.path.join(REPO, "build", "python")
TRAINER = """
import os, sys, tokend

with tokend.Loader(
    "train", 2, socket=sys.argv[1], rank=0, world=1, framework="numpy", deadline=20
) as loader:
    print(int(next(loader)["input_ids"][0, 0]), flush=True)
    for line in sys.stdin:
        print(int(next(loader)["input_ids"][0, 0]), flush=True)
"""


def become_stranger():
    with_parent()
    os.setgroups([])
    os.setgid(STRANGER)
    os.setuid(STRANGER)


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
                streams={"train": stream}, allow_uids=[STRANGER],
            )  # fmt: skip
        os.chown(place.file("stranger", "state"), STRANGER, STRANGER)

    def directory(self, name, uid, mode):
        path = self.place.file(name, "")
        os.chown(path, uid, uid)
        os.chmod(path, mode)
        return os.path.join(path, "tokend.sock")

    def daemon(self, who, socket, **keys):
        if who == "stranger":
            keys["preexec_fn"] = become_stranger
        return Daemon(self.place, self.configs[who], socket_path=socket, **keys)

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": PACKAGE, "TOKEND_BIN": BIN, **more}

    def trainer(self, socket, before=(), uid=0, **environment):
        """(exit code, first token or None, last line of stderr)"""
        user = {"user": uid, "extra_groups": []} if uid else {}
        code, out, err = run(
            *before, sys.executable, "-c", TRAINER, socket,
            env=self.environment(**environment), stdin=subprocess.DEVNULL, **user,
        )  # fmt: skip
        return code, int(out) if out.strip() else None, (err.strip().splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def scene(shared):
    return Scene(shared)


def test_a_strangers_socket_is_refused(scene):
    """A stranger listens in a shared directory."""
    socket = scene.directory("shared", 0, 0o1777)
    stranger = scene.daemon("stranger", socket)
    words = [f"uid {STRANGER}", socket, f"TOKEND_TRUST_UID={STRANGER}"]
    code, token, err = scene.trainer(socket)
    assert (code != 0, token) == (True, None) and has(err, "RefusedError", *words)
    code, out, err = run(TOKCTL, "status", "--socket", socket)
    assert (code, out) == (1, b"") and has(err, *words)
    assert not re.search("refused|disconnected", stranger.log()), "nothing is sent to it"
    injected(55, 2)
    for value, good in (
        (f"1,{STRANGER}", True),
        (f"{STRANGER}0", False),
        ("", False),
        ("x", False),
    ):
        code, token, err = scene.trainer(socket, TOKEND_TRUST_UID=value)
        assert (code, token) == ((0, 666) if good else (1, None)), value
        injected(55)
    trusting = scene.environment(TOKEND_TRUST_UID=str(STRANGER))
    assert run(TOKCTL, "status", "--socket", socket, env=trusting)[0] == 0
    assert scene.trainer(socket, uid=STRANGER)[:2] == (0, 666), "the stranger's own trainer"
    stranger.stop()


def test_a_private_daemon_replaces_a_strangers(scene):
    """If a stranger listens at the config's socket, a private daemon serves it, with a warning."""
    socket = scene.directory("named", 0, 0o1777)
    stranger = scene.daemon("stranger", socket)
    with open(scene.configs["root"]) as f:
        config = {**json.load(f), "socket": socket}
    with open(scene.place.file("root", "named.yaml"), "w") as f:
        json.dump(config, f)
    runtime, short = scene.place.file("runtime", ""), programs(scene.place.file("short", ""))
    environment = scene.environment(XDG_RUNTIME_DIR=runtime, TOKEND_BIN=short, LINGER="1")
    job = TRAINER.replace("socket=sys.argv[1]", "config=sys.argv[1]")
    code, out, err = run(
        sys.executable, "-c", job, f.name, env=environment, stdin=subprocess.DEVNULL
    )
    assert (code, out) == (0, b"1\n")
    assert has(err, "RuntimeWarning", f"uid {STRANGER}", "a private daemon serves")
    assert wait_for(lambda: not os.path.exists(f"{runtime}/tokend")), "it exits when it is unused"
    injected(55)
    stranger.stop()


def test_a_socket_taken_over_is_refused(scene):
    """The daemon dies, and the stranger takes its socket before the next daemon."""
    socket = scene.directory("contested", 0, 0o1777)
    daemon = scene.daemon("root", socket)
    assert scene.trainer(socket, uid=STRANGER) == (0, 1, ""), "root's daemon serves another user"
    trainer = scene.place.spawn(
        [sys.executable, "-c", TRAINER, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=scene.environment(),
    )  # fmt: skip
    assert trainer.stdout.readline() == "1\n", "a trainer of root's daemon"
    daemon.stop()
    stranger = scene.daemon("stranger", socket)
    out, err = trainer.communicate("\n" * 300, timeout=60)
    assert set(out.split()) == {"1"}, "it consumes its ring, and takes no token of the stranger"
    assert has(err.strip().splitlines()[-1], "RefusedError", f"uid {STRANGER}", socket)
    injected(55)
    stranger.stop()


@pytest.mark.parametrize(
    "before", [["unshare", "--user", "--map-root-user"], ["unshare", "--user"]]
)
@pytest.mark.parametrize("mode, own, good", [(0o755, 1, 1), (0o777, 1, 0), (0o1777, 0, 0)])
def test_rootless_containers_trust_the_directorys_owner(scene, before, mode, own, good):
    """In a user namespace, all outside users have uid 65534."""
    if not shutil.which("unshare") or run(*before, "true")[0] != 0:
        pytest.skip("user namespaces are not allowed here")
    socket = scene.directory(f"container-{len(before)}-{mode:o}", STRANGER * own, mode)
    stranger = scene.daemon("stranger", socket, env={**os.environ, "HOME": "/"})
    code, token, err = scene.trainer(socket, before=before)
    if good:
        assert (code, token, err) == (0, 666, "")
    else:
        assert (code, token) == (1, None) and has(err, "uid 65534", "TOKEND_TRUST_UID=65534")
    injected(55)
    stranger.stop()
