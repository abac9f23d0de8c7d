"""Daemons are upgraded under running trainers: an older build and this tree work together, through
a kill and a mix (daemon/CHANGES.md).
"""

import fcntl
import json
import os
import pathlib
import subprocess

import pytest

from lib import BIN, REPO, Daemon, datasets, rows_at, run, status, wait_for
from lib.cat import Cat
from lib.injected import injected

pytestmark = pytest.mark.nightly
OLDER = "6c95828"
BATCHES, MICRO = 2000, 4


@pytest.fixture(scope="module")
def builds():
    """The directories of programs. The older build is kept in build/release/."""
    if subprocess.run(["git", "cat-file", "-e", OLDER], cwd=REPO, capture_output=True).returncode:
        pytest.skip(f"commit {OLDER} is not in this clone: git fetch --unshallow")
    path = REPO / "build/release" / OLDER
    path.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "built").exists():
            archive = subprocess.check_output(["git", "archive", OLDER], cwd=REPO)
            subprocess.run(["tar", "-x", "-C", path], input=archive, check=True)
            makes = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VARIANT")
            environment = {name: value for name, value in os.environ.items() if name not in makes}
            command = ["make", "-s", "-j2", "CFLAGS=-O1", "programs"]
            subprocess.run(command, cwd=path, env=environment, check=True)
            (path / "built").touch()
    return {"older": path / "build/gcc/bin", "tree": pathlib.Path(BIN)}


@pytest.fixture
def daemon(place):
    for name in ("web", "code"):
        place.shard(f"{name}/a.bin", 300_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web", "code")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    yield daemon
    daemon.kill()


def restart(daemon, programs):
    daemon.kill()
    daemon.program = str(programs / "tokend")
    daemon.start()
    injected(6, os.readlink(f"/proc/{daemon.pid}/exe") == os.path.realpath(daemon.program))


@pytest.mark.parametrize(("client", "server"), [("older", "tree"), ("tree", "older")])
def test_bytes_stay_the_same_through_an_upgrade(place, builds, daemon, client, server):
    restart(daemon, builds[client])
    cat = Cat(place, daemon, 0, BATCHES, world=1, program=str(builds[client] / "tokctl"))
    assert cat.reads()
    restart(daemon, builds[server])
    cat.drain()
    code, out, err = cat.end()
    assert (code, err) == (0, "")
    assert out == rows_at(daemon.config, "train", 0, BATCHES * MICRO).tobytes()


@pytest.mark.parametrize("operator", ["older", "tree"])
@pytest.mark.parametrize(
    ("client", "server"), [("older", "tree"), ("tree", "older"), ("older program", "tree")]
)
def test_a_mix_and_a_drain(place, builds, daemon, client, server, operator):
    """By the C example; the older program also with this tree's library."""
    program, libraries = builds[client.partition(" ")[0]], builds["tree"].parent / "lib"
    restart(daemon, builds[server])
    environment = {**os.environ, "TOKEND_SOCKET": daemon.socket}
    if client == "older program":
        environment["LD_LIBRARY_PATH"] = str(libraries)
    command = [program / "example-trainer", "train", "", "", "1000000000"]
    trainer = place.spawn(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert wait_for(lambda: status(daemon.socket)[0])
    with open(f"/proc/{trainer.pid}/maps") as maps:
        assert (str(os.path.realpath(libraries)) in maps.read()) == (client != "older")

    def ask(*arguments):
        command = [builds[operator] / "tokctl", *arguments, "--json", "--socket", daemon.socket]
        code, out, err = run(*command)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    assert ask("status")[0]["run"] == "default"
    acts_from = ask("mix", "train", "web=1", "code=3")[-1]["acts_from"]
    ask("drain", "train", "--tag", "left")
    assert trainer.wait(60) == 0
    saved = place.file("state/train/default/left.cursor")
    for programs in builds.values():
        code, out, err = run(programs / "tokctl", "cursor", "show", "--json", saved)
        assert code == 0 and json.loads(out)["next"] >= acts_from, (out, err)
