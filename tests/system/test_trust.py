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

from lib import BIN, REPO, TOKCTL, TOKEND, datasets, has, run, wait_for, with_parent
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can start daemons of two users")


STRANGER = (
    57000 + os.getpid() % 4000
)  # has nothing, and shares nothing with another run of this test
PACKAGE = os.environ.get("TOKEND_PYTHON") or os.path.join(REPO, "build", "python")

TRAINER = """
import os, sys, tokend

with tokend.Loader(
    "train", 2, socket=sys.argv[1], rank=0, world=1, framework="numpy", deadline=float(sys.argv[2])
) as loader:
    print(int(next(loader)["input_ids"][0, 0]), flush=True)
    for line in sys.stdin:
        print(int(next(loader)["input_ids"][0, 0]), flush=True)
"""


def become(uid):
    def act():
        with_parent()
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    return act


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
            state = place.file(who, "state", ".keep")[: -len("/.keep")]
            self.configs[who] = place.config(
                f"{who}/tokend.yaml", state_dir=state, streams={"train": stream}
            )
            os.chown(state, *[0 if who == "root" else STRANGER] * 2)

    def directory(self, name, uid, mode):
        path = self.place.file(name, ".keep")[: -len("/.keep")]
        os.chown(path, uid, uid)
        os.chmod(path, mode)
        return os.path.join(path, "tokend.sock")

    def daemon(self, who, socket, **keys):
        uid = 0 if who == "root" else STRANGER
        with open(self.place.file(f"{who}.log"), "wb") as log:
            daemon = self.place.spawn(
                [TOKEND, "-c", self.configs[who], "--socket", socket],
                stderr=log,
                preexec_fn=become(uid),
                **keys,
            )
        said = self.place.file(f"{who}.log")
        if (
            not wait_for(lambda: "ready at" in open(said).read() or daemon.poll() is not None)
            or daemon.poll() is not None
        ):
            raise RuntimeError(open(said).read())
        return daemon

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": PACKAGE, "TOKEND_BIN": BIN, **more}

    def trainer(self, socket, deadline=20, before=(), **environment):
        """(exit code, first token or None, last line of stderr)"""
        code, out, err = run(
            *before,
            sys.executable,
            "-c",
            TRAINER,
            socket,
            str(deadline),
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
        )
        return (
            code,
            int(out) if out.strip() else None,
            err.strip().splitlines()[-1] if err.strip() else "",
        )


def end(daemon):
    daemon.terminate()
    daemon.wait(20)


def test_a_strangers_socket_is_refused(scene):
    socket = scene.directory("shared", 0, 0o1777)
    stranger = scene.daemon("stranger", socket)
    code, token, err = scene.trainer(socket)
    assert (code != 0, token) == (True, None), (
        "a stranger listens in a shared directory: root's trainer takes no token"
    )
    assert has(err, "RefusedError", f"uid {STRANGER}", socket, f"TOKEND_TRUST_UID={STRANGER}"), (
        "  and names the stranger, and what to do"
    )
    code, out, err = run(TOKCTL, "status", "--socket", socket)
    assert (code, out) == (1, b""), "  tokctl does not talk to it either"
    assert has(err, f"uid {STRANGER}", socket, f"TOKEND_TRUST_UID={STRANGER}"), (
        "  and says the same"
    )
    assert not re.search("refused|disconnected", open(scene.place.file("stranger.log")).read()), (
        "  and sends it nothing"
    )
    injected(55, 2)
    for value, good in (
        (f"{STRANGER}", True),
        (f"1,{STRANGER}", True),
        ("1", False),
        (f"{STRANGER}0", False),
        ("", False),
        ("x", False),
    ):
        code, token, err = scene.trainer(socket, TOKEND_TRUST_UID=value)
        assert (code, token) == ((0, 666) if good else (1, None)), f"  TOKEND_TRUST_UID={value!r}"
        injected(55)
    code, _, err = run(
        TOKCTL, "status", "--socket", socket, env=scene.environment(TOKEND_TRUST_UID=str(STRANGER))
    )
    assert (code, err) == (0, ""), "  tokctl with TOKEND_TRUST_UID"
    code, token, err = run(
        sys.executable,
        "-c",
        TRAINER,
        socket,
        "20",
        env=scene.environment(),
        stdin=subprocess.DEVNULL,
        user=STRANGER,
        extra_groups=[],
    )
    assert (code, token) == (0, b"666\n"), "  the stranger's own trainer trusts it"
    end(stranger)


def test_a_private_daemon_replaces_a_strangers(scene):
    """If a stranger listens at the config's socket, a private daemon serves it, with a warning."""
    socket = scene.directory("named", 0, 0o1777)
    stranger = scene.daemon("stranger", socket)
    with open(scene.configs["root"]) as f:
        config = {**json.load(f), "socket": socket}
    with open(scene.place.file("root", "named.yaml"), "w") as f:
        json.dump(config, f)
    runtime = scene.place.file("runtime", ".keep")[: -len("/.keep")]
    job = TRAINER.replace("socket=sys.argv[1]", "config=sys.argv[1]")
    short = programs(scene.place.file("short", ".keep")[: -len("/.keep")])
    code, out, err = run(
        sys.executable,
        "-c",
        job,
        f.name,
        "20",
        env=scene.environment(XDG_RUNTIME_DIR=runtime, TOKEND_BIN=short, LINGER="1"),
        stdin=subprocess.DEVNULL,
    )
    assert (code, out) == (0, b"1\n"), (
        "Loader(config=) with a stranger at the config's socket: a private daemon"
    )
    assert has(err, "RuntimeWarning", f"uid {STRANGER}", "a private daemon serves"), (
        "  and a warning"
    )
    assert wait_for(lambda: not os.path.exists(f"{runtime}/tokend")), (
        "  which exits when it is not needed"
    )
    injected(55)
    end(stranger)


def test_a_daemon_of_root_is_trusted(scene):
    socket = scene.directory("of-root", 0, 0o755)
    config = scene.configs["root"]
    text = open(config).read()
    with open(config, "w") as f:
        f.write(text.replace("{", f'{{"allow_uids": [{STRANGER}],', 1))
    daemon = scene.daemon("root", socket)
    assert scene.trainer(socket) == (0, 1, ""), "root's daemon serves root"
    code, token, err = run(
        sys.executable,
        "-c",
        TRAINER,
        socket,
        "20",
        env=scene.environment(),
        stdin=subprocess.DEVNULL,
        user=STRANGER,
        extra_groups=[],
    )
    assert (code, token, err) == (0, b"1\n", ""), "  and another user"
    end(daemon)


def test_a_socket_taken_over_is_refused(scene):
    """The daemon dies, and the stranger takes its socket before the next daemon."""
    socket = scene.directory("contested", 0, 0o1777)
    daemon = scene.daemon("root", socket)
    trainer = scene.place.spawn(
        [sys.executable, "-c", TRAINER, socket, "60"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=scene.environment(),
    )  # fmt: skip
    assert trainer.stdout.readline() == "1\n", "a trainer of root's daemon"
    end(daemon)
    stranger = scene.daemon("stranger", socket)
    out, err = trainer.communicate("\n" * 300, timeout=60)
    assert set(out.split()) == {"1"}, "  consumes its ring, and takes no token of the stranger"
    assert has(err.strip().splitlines()[-1], "RefusedError", f"uid {STRANGER}", socket), (
        "  whose uid it names"
    )
    injected(55)
    end(stranger)


def test_rootless_containers_trust_the_directorys_owner(scene):
    """In a user namespace, all outside users have uid 65534."""
    container = ["unshare", "--user", "--map-root-user"]
    if not shutil.which("unshare") or run(*container, "true")[0] != 0:
        pytest.skip("user namespaces are not allowed here")
    for before, inside in ((container, "as its root"), (["unshare", "--user"], "as nobody")):
        for mode, uid, good in (
            (0o755, STRANGER, True),
            (0o777, STRANGER, False),
            (0o1777, 0, False),
        ):
            socket = scene.directory(f"container-{len(before)}-{mode:o}-{uid}", uid, mode)
            stranger = scene.daemon("stranger", socket, env={**os.environ, "HOME": "/"})
            code, token, err = scene.trainer(socket, before=before)
            name = f"in a rootless container, {inside}: a directory of uid {uid} with mode {mode:o}"
            if good:
                assert (code, token, err) == (0, 666, ""), f"{name} is trusted"
            else:
                assert (code, token) == (1, None), f"{name} is refused"
                assert has(err, "uid 65534", "TOKEND_TRUST_UID=65534"), "  with its uid"
            injected(55)
            end(stranger)


@pytest.fixture(scope="module")
def scene(shared):
    return Scene(shared)
