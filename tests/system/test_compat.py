"""Daemons are upgraded under running trainers: the last release and this tree work together,
through a kill and a mix.
"""

import json
import os
import subprocess
import sys

import pytest

from lib import BIN, PACKAGE, REPO, child_environment, run, wait_for
from lib.injected import injected
from lib.release import Release, release
from lib.stock import StockDaemon

pytestmark = pytest.mark.nightly
LAST_RELEASE = "6c95828"
MICRO, WINDOW = 4, 64


def this_tree():
    tree = Release(REPO)
    tree.tokend, tree.tokctl = str(BIN / "tokend"), str(BIN / "tokctl")
    tree.package = str(PACKAGE)
    return tree


class Trainer:
    """A process with the client package of @build, driven by commands."""

    def __init__(self, build, daemon):
        self.process = subprocess.Popen(
            [sys.executable, REPO / "tests/lib/compat_trainer.py", daemon.socket],
            env=child_environment(PYTHONPATH=build.package, TOKEND_BIN=""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.said()["file"].startswith(build.package)

    def said(self):
        line = self.process.stdout.readline()
        assert line, "the trainer is gone"
        return json.loads(line)

    def __call__(self, name, argument=None):
        self.process.stdin.write(json.dumps([name, argument]) + "\n")
        self.process.stdin.flush()
        return self.said()

    def end(self):
        self.process.stdin.close()
        try:
            assert self.process.wait(20) == 0
        finally:
            self.process.kill()


def restart(daemon, build):
    before = daemon.pid
    daemon.kill()
    daemon.program = build.tokend
    daemon.start()
    injected(6, daemon.pid != before and os.readlink(f"/proc/{daemon.pid}/exe") == build.tokend)


def assert_rows(daemon, rows, start, cursor=None):
    """Checks that @rows are those of the order from position @start on."""
    planned = daemon.plan("train", start, len(rows), cursor)
    assert [position for position, _ in rows] == list(range(start, start + len(rows)))
    for (_, tokens), row in zip(rows, planned, strict=True):
        assert tokens == daemon.tokens(row, WINDOW).tolist()


def status(build, daemon):
    code, out, err = run(build.tokctl, "status", "--json", "--socket", daemon.socket)
    assert code == 0, err
    *sessions, total = map(json.loads, out.splitlines())
    assert total["sessions"] == len(sessions) == 1
    return sessions[0]


def mix(build, daemon, trainer, rows, *weights):
    """Changes the mix with @build's tokctl. Returns the position from which it acts, and the cursor
    afterwards.
    """
    tokctl = subprocess.Popen(
        [build.tokctl, "mix", "train", *weights, "--run", "compat", "--socket", daemon.socket]
        + ["--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def carried_out():
        rows.extend(trainer("step", 1)["rows"])
        return trainer("control") if tokctl.poll() is None else None

    said = wait_for(lambda: (s := carried_out()) and s["request"] and s)
    kind, acts_from, error = said["request"]
    assert (kind, error) == ("mix", None)
    out, err = tokctl.communicate(timeout=30)
    assert tokctl.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["acts_from"] == acts_from
    return acts_from, bytes.fromhex(said["cursor"])


@pytest.fixture(scope="module")
def builds():
    return {"release": release(LAST_RELEASE), "tree": this_tree()}


@pytest.mark.parametrize("operator", ["release", "tree"])
@pytest.mark.parametrize(
    ("client", "server"), [("release", "tree"), ("tree", "release")], ids="{0[0]}-{0[1]}".format
)
def test_through_a_kill_and_a_mix(builds, directory, client, server, operator):
    daemon = StockDaemon(directory)
    daemon.program = builds[client].tokend  # the client's own; it is upgraded in mid-run
    daemon.start()
    trainer = Trainer(builds[client], daemon)
    try:
        rows = trainer("step", 10)["rows"]
        restart(daemon, builds[server])
        rows += trainer("step", 20)["rows"]  # more than the ring holds
        assert status(builds[operator], daemon)["run"] == "compat"
        restart(daemon, builds[server])
        rows += trainer("step", 20)["rows"]
        begin = bytes.fromhex(trainer("cursor")["cursor"])
        acts_from, cursor = mix(builds[operator], daemon, trainer, rows, "web=1", "code=3")
        assert_rows(daemon, rows, 0)
        more = trainer("step", (acts_from - len(rows)) // MICRO + 30)["rows"]
        assert_rows(daemon, more, len(rows), cursor)
        assert begin != cursor and trainer("save", "kept")["path"].endswith("/kept.cursor")
        restart(daemon, builds[client])
        assert len(trainer("step", 20)["rows"]) == 20 * MICRO
        trainer.end()
    finally:
        trainer.process.kill()
        daemon.end()


def test_a_program_of_the_release_runs_with_this_library(builds, directory):
    """The program was built with the release's header and library; it takes this tree's library
    and daemon, and then the release's daemon.
    """
    program = f"{builds['release'].path}/build/gcc/bin/example-trainer"
    library = str(BIN.parent / "lib")
    environment = child_environment(LD_LIBRARY_PATH=library)
    listed = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True)
    assert f"{library}/libtokend.so.1" in listed.stdout
    daemon = StockDaemon(directory)
    environment["TOKEND_SOCKET"] = daemon.socket
    for build in ("tree", "release"):
        daemon.program = builds[build].tokend
        daemon.start()
        try:
            code, out, err = run(program, "train", env=environment)
        finally:
            daemon.end()
        assert code == 0 and out.startswith(b"100 steps"), (out, err)
    saved = directory / "state/train/default/example.cursor"
    code, out, err = run(builds["release"].tokctl, "cursor", "show", "--json", saved)
    assert code == 0 and json.loads(out)["next"] == 800, (out, err)
