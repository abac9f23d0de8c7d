"""Daemon, trainers and tokctl look for sockets and state at the same places, and say where."""

import ctypes
import json
import os
import signal
import subprocess
import sys

import pytest

from lib import BIN, TOKCTL, TOKEND, Daemon, child_environment, wait_for, with_parent

LOADER = """
import sys, tokend
tokend.Loader("train", 4, deadline=0.2, framework="numpy", **eval(sys.argv[1]))
"""

WAITING = """
import sys
from tokend import _tokend
print("looking", flush=True)
client = _tokend.Client("train", 4, connect_ms=60000)
print(client.socket())
"""

TRAINER = """
import sys, time, tokend
config, *runs = sys.argv[1:]
given = {"config": config, "rank": 0, "world": 1, "framework": "numpy"}
loaders = [tokend.Loader("train", 4, run=r, **given) for r in runs]
print("ready", flush=True)
while True:
    for loader in loaders:
        next(loader)
        loader.control()
    time.sleep(0.005)
"""


_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_PRIVATE = 0x20000, 1 << 18 | 1 << 14


def alone():
    """For preexec_fn: no daemon of another test is at the default places."""
    with_parent()
    if _libc.unshare(CLONE_NEWNS) or _libc.mount(b"", b"/", None, MS_PRIVATE, None):
        os._exit(77)
    for place in "/run", f"/tmp/tokend-{os.geteuid()}":
        for _ in range(9):  # the last private daemon of another test removes the second
            os.makedirs(place, mode=0o700, exist_ok=True)
            if _libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, b"mode=0700") == 0:
                break
        else:
            os._exit(77)


class Scene:
    """Two configs without a socket, and the environment of a user."""

    def __init__(self, place):
        if os.geteuid() != 0:
            pytest.skip("needs root to hide other daemons")
        self.place = place
        place.shard("web.bin", 60_000)
        place.shard("code.bin", 40_000)
        self.runtime = place.file("run", ".keep")[: -len("/.keep")]
        os.makedirs(f"{self.runtime}/tokend", mode=0o700)
        self.environment = {
            **child_environment(TOKEND_BIN=str(BIN), XDG_RUNTIME_DIR=self.runtime),
            "XDG_STATE_HOME": place.file("state"),
        }
        self.environment.pop("TOKEND_SOCKET", None)
        self.a, self.b = self.config("a.yaml"), self.config("b.yaml")

    def config(self, name, **keys):
        path = self.place.file(name)
        streams = {"train": {"seed": 3, "seq_len": 32, "datasets": self.datasets()}}
        with open(path, "w") as file:
            json.dump({"memory": 64 << 20, "streams": streams, **keys}, file)
        return path

    def datasets(self):
        return [{"name": n, "path": f"{n}.bin", "dtype": "u16"} for n in ("web", "code")]

    @property
    def places(self):
        return [
            f"{self.runtime}/tokend/tokend.sock",
            f"/tmp/tokend-{os.geteuid()}/tokend.sock",
            "/run/tokend/tokend.sock",
        ]

    def ctl(self, *arguments, code=0, **environment):
        got, out, err = self.run(TOKCTL, *arguments, env={**self.environment, **environment})
        assert got == code and err.count("\n") == (code != 0), (arguments, got, out, err)
        return out if code == 0 else err

    def run(self, *arguments, **keys):
        done = subprocess.run(
            [str(a) for a in arguments], capture_output=True, text=True, preexec_fn=alone, **keys
        )
        return done.returncode, done.stdout, done.stderr

    def python(self, program, *arguments, **environment):
        return self.place.spawn(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=alone,
        )


@pytest.fixture
def scene(place):
    """Two private daemons, each with a job on stream train; and the jobs."""
    scene = Scene(place)
    scene.jobs = [
        scene.python(TRAINER, config, name)
        for config, name in ((scene.a, "pretrain"), (scene.b, "decay"))
    ]
    for job in scene.jobs:
        assert job.stdout.readline() == "ready\n", job.communicate()[1]
    yield scene
    for line in daemons(scene):
        os.kill(line["pid"], signal.SIGTERM)
    assert wait_for(lambda: not os.path.exists(f"{scene.runtime}/tokend"))


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def daemons(scene):
    return [line for line in lines(scene.ctl("status", "--json")) if "sessions" in line]


def in_order(places, text):
    at = [text.find(f" {place}") for place in places]
    return -1 not in at and at == sorted(at)


def test_each_place_is_named_with_its_reason(place):
    """tokctl, a C trainer and a Python trainer: one line each."""
    scene = Scene(place)
    closed = place.file("closed", "s")
    cases = [
        ({}, {}, scene.places),
        ({"TOKEND_SOCKET": "/nowhere/x"}, {}, ["/nowhere/x, from $TOKEND_SOCKET (No such file"]),
        ({}, {"config": scene.config("named.yaml", socket=closed)}, [closed]),
    ]
    for more, named, expected in cases:
        options = ["-c", named["config"]] if named else []
        err = scene.ctl("status", *options, code=1, **more)
        assert in_order(expected, err), err
        if named:
            assert ", private (No such file" in err, err
            continue
        code, _, c = scene.run(BIN / "example-trainer", "train", env={**scene.environment, **more})
        loader = scene.python(LOADER, named, **more)
        python = loader.communicate()[1].splitlines()[-1]
        for said in (c, python):
            assert in_order(expected, said) and "(No such file or directory)" in said, said
        assert code and loader.returncode


def test_a_trainer_that_started_first_finds_its_daemon(place):
    """It once looked only at the place that was right before the daemon created its socket."""
    scene = Scene(place)
    trainer = scene.python(WAITING)
    assert trainer.stdout.readline() == "looking\n"

    def waits():  # it has looked, and waits for its next try
        with open(f"/proc/{trainer.pid}/wchan") as file:
            return "poll" in file.read()

    assert wait_for(waits)
    daemon = Daemon(place, scene.a, socket_path=scene.places[0])
    out, err = trainer.communicate(timeout=60)
    assert out == f"{scene.places[0]}\n", err
    assert daemon.stop() == 0


def test_the_daemon_takes_the_named_socket_in_the_same_order(place):
    scene = Scene(place)
    paths = {name: place.file(name) for name in ("option", "variable", "config")}
    config = scene.config("named.yaml", socket=paths["config"])
    for named in (["option", "variable", "config"], ["variable", "config"], ["config"]):
        environment = {"TOKEND_SOCKET": paths["variable"]} if "variable" in named else {}
        option = ["--socket", paths["option"]] if "option" in named else []
        daemon = place.spawn(
            [TOKEND, "-c", config, *option], env={**scene.environment, **environment}
        )
        assert wait_for(lambda name=named[0]: os.path.exists(paths[name]))
        said = lines(scene.ctl("status", "-c", config, "--json", *option, **environment))
        assert (said[-1]["socket"], said[-1]["pid"]) == (paths[named[0]], daemon.pid)
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_status_lists_all_daemons_and_requests_choose_by_run(scene):
    sockets = {line["config"]: line["socket"] for line in daemons(scene)}
    assert set(sockets) == {scene.a, scene.b}
    sessions = [line for line in lines(scene.ctl("status", "--json")) if "session" in line]
    assert {(s["run"], s["daemon"]) for s in sessions} == {
        ("pretrain", sockets[scene.a]),
        ("decay", sockets[scene.b]),
    }
    text = scene.ctl("status")
    for config, path in sockets.items():
        assert f"{path}, private, serves {config}\n" in text, text
    assert "pretrain" in scene.ctl("status", "-c", scene.a)
    assert "decay" not in scene.ctl("status", "-c", scene.a)

    # A request needs to know which.
    mix = ["mix", "train", "web=1", "--json"]
    err = scene.ctl(*mix, code=1)
    assert all(f"--socket {path}" in err for path in sockets.values()), err
    err = scene.ctl(*mix, "--run", "none", code=1)
    assert "none of the 2 daemons" in err and sockets[scene.a] in err, err
    assert lines(scene.ctl(*mix, "--run", "pre"))[-1]["run"] == "pretrain"
    assert lines(scene.ctl(*mix, "-c", scene.b))[-1]["run"] == "decay"
    err = scene.ctl("top", "--count", "1", code=1)
    assert "2 daemons run" in err and all(path in err for path in sockets.values()), err
    # With one daemon left, it is the one.
    scene.jobs[1].kill()
    os.kill(next(line["pid"] for line in daemons(scene) if line["config"] == scene.b), 15)
    assert wait_for(lambda: not os.path.exists(sockets[scene.b]))
    assert lines(scene.ctl(*mix))[-1]["run"] == "pretrain"


def test_a_broken_config_still_names_its_daemon(place):
    """The daemon serves what it has read, so an operator can ask it with the same -c."""
    scene = Scene(place)
    daemon = scene.python(TRAINER, scene.a, "run")
    try:
        assert daemon.stdout.readline() == "ready\n", daemon.communicate()[1]
        with open(scene.a, "a") as file:
            file.write("}")
        for command in (("status",), ("top", "--count", "1")):
            code, out, err = scene.run(TOKCTL, *command, "-c", scene.a, env=scene.environment)
            assert code == 0 and "run" in out, (out, err)
            assert f"{scene.a}:1: " in err and "still serves" in err and err.count("\n") == 1
        code, out, err = scene.run(TOKCTL, "doctor", "-c", scene.a, env=scene.environment)
        assert code == 1 and f"fix  config   {scene.a}:1: " in out and err == "", (out, err)
        assert "ok   daemon" in out and "skip shards" in out
        scene.ctl("status", "-c", scene.place.file("absent.yaml"), code=1)
    finally:
        for line in daemons(scene):
            os.kill(line["pid"], signal.SIGTERM)


def test_an_edited_config_still_names_its_daemon(place):
    """A private daemon's socket has a name made from the text that it read."""
    scene = Scene(place)
    daemon = scene.python(TRAINER, scene.a, "run")
    try:
        assert daemon.stdout.readline() == "ready\n", daemon.communicate()[1]
        other = Daemon(place, scene.b, socket_path=scene.places[0])  # of another config
        scene.config("a.yaml", memory=128 << 20)
        for more in {}, {"TOKEND_SOCKET": "/nowhere/x"}:
            assert " run " in scene.ctl("status", "-c", scene.a, **more)
        mixed = lines(scene.ctl("mix", "train", "web=1", "-c", scene.a, "--json"))[-1]
        assert mixed["run"] == "run"
        other.stop()
        assert " run " in scene.ctl("status", "-c", scene.a)
    finally:
        for line in daemons(scene):
            os.kill(line["pid"], signal.SIGTERM)


def test_the_beginning_of_a_runs_name_is_enough(place):
    """Online among the sessions, offline among the mix logs."""
    scene = Scene(place)
    state = place.file("shared")
    config = scene.config("state.yaml", state_dir=state)
    job = scene.python(TRAINER, config, "exp", "exp-1", "exp-2", "base")
    try:
        assert job.stdout.readline() == "ready\n", job.communicate()[1]
        drain = ["drain", "train", "-c", config, "--timeout", 20, "--json", "--run"]
        err = scene.ctl(*drain, "exp-", code=1)
        assert "exp-1, exp-2" in err, err
        for typed, run_ in (("b", "base"), ("exp", "exp"), ("exp-1", "exp-1")):
            mix = ["mix", "train", "web=1", "-c", config, "--json", "--run", typed]
            assert lines(scene.ctl(*mix))[-1]["run"] == run_
        plan = ["plan", "train", "-c", config, "--from", 0, "--count", 1, "--run"]
        assert wait_for(lambda: os.path.exists(f"{state}/train/base/mixes/000002.cursor"))
        assert scene.ctl(*plan, "b") == scene.ctl(*plan, "base")
        assert scene.ctl(*plan, "exp") != ""
        err = scene.ctl(*plan, "exp-", code=1)
        assert "exp-1, exp-2" in err, err
        err = scene.ctl(*plan, "nothing", code=1)
        assert f"{state}/train/nothing/mixes (No such file or directory)" in err, err
        assert f"{scene.environment['XDG_STATE_HOME']}/tokend/" in err, err
    finally:
        for line in daemons(scene):
            os.kill(line["pid"], signal.SIGTERM)
