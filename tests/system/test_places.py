"""Daemon, trainers and tokctl look for sockets and state at the same places, and say where."""

import contextlib
import json
import os
import shutil
import socket
import sys

import pytest
from embedding import NOBODY, Scene, alone, as_nobody

from lib import BIN, TOKCTL, TOKEND, Daemon, datasets, has, wait_for
from lib import run as run_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hide other daemons")

REFUSED = """
import sys, tokend
tokend.Loader("train", 4, deadline=0.2, framework="numpy")
"""

WAITING = """
from tokend import _tokend
print("looking", flush=True)
client = _tokend.Client("train", 4, connect_ms=60000)
print(client.shape()["socket"])
"""

JOB = """
import sys, time, tokend
config, run = sys.argv[1:]
with tokend.Loader(
    "train", 4, run=run, config=config, rank=0, world=1, framework="numpy"
) as loader:
    print("ready", flush=True)
    for _ in loader:
        loader.control()
        time.sleep(0.005)
"""


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def daemons(scene):
    return [line for line in lines(scene.ctl("status", "--json")) if "sessions" in line]


@pytest.fixture
def scene(place):
    """A user without daemons."""
    scene = Scene(place, before=alone)
    os.mkdir(f"{scene.runtime}/tokend", 0o700)
    scene.places = [
        f"{scene.runtime}/tokend/tokend.sock",
        f"/tmp/tokend-{os.geteuid()}/tokend.sock",
        "/run/tokend/tokend.sock",
    ]
    yield scene
    for child in place.children:
        child.kill()  # it would start its daemon again
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"{scene.places[0]}.log")  # of lib.Daemon
    scene.end()


def start_job(scene, config, run):
    job = scene.spawn(sys.executable, "-c", JOB, config, run)
    assert job.stdout.readline() == "ready\n", job.communicate()[1]


def in_order(places, text):
    at = [text.find(f" {place}") for place in places]
    return -1 not in at and at == sorted(at)


def test_each_place_is_named_with_its_reason(scene):
    """tokctl, a C trainer and a Python trainer: one line each."""
    for more, expected in (
        ({}, scene.places),
        ({"TOKEND_SOCKET": "/nowhere/x"}, ["/nowhere/x, from $TOKEND_SOCKET (No such file"]),
    ):
        said = [scene.ctl("status", code=1, **more)]
        said.append(scene.ctl("drain", "train", "--run", "x", code=1, **more))
        for command in [BIN / "example-trainer", "train"], [sys.executable, "-c", REFUSED]:
            code, _, err = scene.run(*command, **more)
            said.append(err.splitlines()[-1])
            assert code
        for line in said:
            assert in_order(expected, line) and "(No such file or directory)" in line, line


def test_a_trainer_that_started_first_finds_its_daemon(scene):
    """It once looked only at the place that was right before the daemon created its socket."""
    trainer = scene.spawn(sys.executable, "-c", WAITING)
    assert trainer.stdout.readline() == "looking\n"

    def waits():  # it has looked, and waits for its next try
        with open(f"/proc/{trainer.pid}/wchan") as file:
            return "poll" in file.read()

    assert wait_for(waits)
    daemon = Daemon(scene.place, scene.config, socket_path=scene.places[0])
    out, err = trainer.communicate(timeout=60)
    assert out == f"{scene.places[0]}\n", err
    assert daemon.stop() == 0


def test_the_daemon_takes_the_named_socket_in_the_same_order(scene):
    option, variable, named = (scene.place.file(name) for name in ("option", "variable", "config"))
    config = scene.write("named.yaml", socket=named)
    for path, options, environment in (
        (option, ["--socket", option], {"TOKEND_SOCKET": variable}),
        (variable, [], {"TOKEND_SOCKET": variable}),
        (named, [], {}),
    ):
        daemon = scene.spawn(TOKEND, "-c", config, *options, **environment)
        assert any("ready at" in line for line in daemon.stderr)
        said = lines(scene.ctl("status", "-c", config, "--json", *options, **environment))
        assert (said[-1]["socket"], said[-1]["pid"]) == (path, daemon.pid)
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_status_lists_all_daemons_and_requests_choose_by_run(scene):
    configs = scene.config, scene.write("b.yaml")
    for config, run in zip(configs, ("pretrain", "decay"), strict=True):
        start_job(scene, config, run)
    sockets = {line["config"]: line["socket"] for line in daemons(scene)}
    assert set(sockets) == set(configs)
    sessions = [line for line in lines(scene.ctl("status", "--json")) if "session" in line]
    found = {(s["run"], s["daemon"]) for s in sessions}
    assert found == {("pretrain", sockets[configs[0]]), ("decay", sockets[configs[1]])}
    text = scene.ctl("status")
    assert all(f"{path}, private, serves {c}\n" in text for c, path in sockets.items()), text
    text = scene.ctl("status", "-c", configs[0])
    assert "pretrain" in text and "decay" not in text

    # A request needs to know which.
    mix = ["mix", "train", "web=1", "--json"]
    for more, words in (
        ((), "2 of 2 daemons have sessions of stream train; add -c FILE, or the --socket of"),
        (("--run", "pre"), "0 of 2 daemons have sessions of run pre of stream train"),
    ):
        assert has(scene.ctl(*mix, *more, code=1), words, "`tokctl status` lists")
    assert lines(scene.ctl(*mix, "--run", "pretrain"))[-1]["run"] == "pretrain"
    assert lines(scene.ctl(*mix, "-c", configs[1]))[-1]["run"] == "decay"
    assert has(scene.ctl("metrics", code=1), "2 daemons run; add -c FILE")
    start_job(scene, scene.write("c.yaml"), "pretrain")
    said = scene.ctl(*mix, "--run", "pretrain", code=1)
    assert "2 of 3 daemons have sessions of run pretrain of stream train; add -c FILE" in said


def test_an_edited_or_broken_config_still_names_its_daemon(scene):
    """A private daemon's socket has a name made from the text that it read."""
    start_job(scene, scene.config, "run")
    scene.write(memory=128 << 20)
    assert " run " in scene.ctl("status", "-c", scene.config, TOKEND_SOCKET="/nowhere/x")
    mixed = lines(scene.ctl("mix", "train", "web=1", "-c", scene.config, "--json"))[-1]
    assert mixed["run"] == "run"
    with open(scene.config, "a") as file:
        file.write("}")
    code, out, err = scene.run(BIN / "tokctl", "status", "-c", scene.config)
    assert code == 0 and "run" in out, (out, err)
    assert f"{scene.config}:1: " in err and "still serves" in err and err.count("\n") == 1
    code, out, err = scene.run(BIN / "tokctl", "doctor", "-c", scene.config)
    assert code == 1 and f"fix  config   {scene.config}:1: " in out and err == "", (out, err)
    assert "ok   daemon" in out and "skip shards" in out


def test_private_daemons_of_two_projects_share_no_state(scene):
    """As root, too, who may write to the default one."""
    paths = set()
    for name in "one.yaml", "two.yaml":
        config = scene.write(name)
        (printed,) = scene.finish(scene.start(0, 1, 5, "best", config=config))
        assert printed[-1].startswith(f"{scene.home}/.local/state/tokend/")
        paths.add(printed[-1])
        plan = "plan", "-c", config, "train", "--from", 0, "--count", 1, "--json"
        assert len(lines(scene.ctl(*plan, "--run", "default"))) == 1, "tokctl finds the run"
    assert len(paths) == 2


# ---- an unprivileged user ----


def test_a_private_daemon_of_a_user_has_directories_of_its_own(place):
    """The config has the service's, which belong to root."""
    closed = place.file("closed", "x")[:-2]
    os.chmod(closed, 0o700)
    scene = Scene(place, before=as_nobody, socket="/run/tokend/tokend.sock", state_dir=closed)
    state = f"{scene.home}/.local/state/tokend/"
    (first,) = scene.finish(scene.start(0, 1, 5, "best"))
    assert first[-1].startswith(state) and first[-1].endswith("/best.cursor"), first
    path = lines(scene.ctl("status", "-c", scene.config, "--json"))[-1]["socket"]
    directory = os.path.dirname(path)
    assert directory == f"{scene.runtime}/tokend"
    assert (os.stat(directory).st_uid, os.stat(directory).st_mode & 0o777) == (NOBODY, 0o700)
    with open(f"{path}.log") as log:
        assert has(log.read(), f"state_dir: {state}", f"uid {NOBODY} may not write to {closed}")
    plan = "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--json"
    assert len(lines(scene.ctl(*plan, "--run", "default"))) == 1, "it may not look into closed"
    scene.end()
    assert not os.listdir(closed)


def test_a_users_daemon_without_a_runtime_directory(place):
    """Its socket is below /tmp, and its state where systemd says, or in its home."""
    scene, directory = Scene(place, before=as_nobody), f"/tmp/tokend-{NOBODY}"
    del scene.environment["XDG_RUNTIME_DIR"]
    path, given = f"{directory}/tokend.sock", scene.directory("given")
    for state, more in (
        (f"{scene.home}/.local/state/tokend", {}),
        (given, {"STATE_DIRECTORY": given}),
    ):
        daemon, said = scene.spawn(TOKEND, "-c", scene.config, **more), ""
        while "ready at" not in said and (line := daemon.stderr.readline()):
            said += line
        because = f"{path}, because uid {NOBODY} may not create /run/tokend/tokend.sock"
        assert has(said, f"socket: {because}", f"ready at {path}")
        (printed,) = scene.finish(scene.start(0, 1, 5, "best", config=""))
        assert printed[-1].startswith(f"{state}/") and "/train/" in printed[-1]
        assert lines(scene.ctl("status", "--json"))[-1]["socket"] == path
        daemon.terminate()
        assert daemon.wait(20) == 0
    shutil.rmtree(directory)


def test_another_users_directory_is_refused(place):
    """The directory in /tmp exists, and belongs to another user."""
    scene, directory = Scene(place, before=as_nobody), f"/tmp/tokend-{NOBODY}"
    del scene.environment["XDG_RUNTIME_DIR"]
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory, 0o777)
    try:
        code, _, err = scene.run(TOKEND, "-c", scene.config)
        said = f"socket: {directory} must be a directory of uid {NOBODY} with mode 0700"
        assert code == 1 and has(err, said, "set XDG_RUNTIME_DIR to a directory of yours")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{directory}/tokend.sock")
            listener.listen()
            said = f"{directory}/tokend.sock (its directory does not belong to uid"
            assert said in scene.ctl("status", code=1)
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()  # tokctl ignored it
    finally:
        shutil.rmtree(directory)


def test_a_config_that_nobody_names_is_looked_for(place):
    place.shard("web/a.bin", 5000)
    stream = {"seed": 1, "seq_len": 64, "datasets": datasets("web")}
    named = {**os.environ, "TOKEND_CONFIG": place.config(streams={"train": stream})}
    here, elsewhere = place.file(""), place.file("elsewhere/x", "")
    plan = TOKCTL, "plan", "train", "--from", 0, "--count", 1
    for cwd, env, words in (
        (here, None, None),
        (elsewhere, named, None),
        (elsewhere, None, "needs -c FILE: $TOKEND_CONFIG is not set"),
        (here, {**named, "TOKEND_CONFIG": "none.yaml"}, "none.yaml: cannot be opened"),
    ):
        code, out, err = run_program(*plan, cwd=cwd, env=env)
        right = err == "" and b"a.bin" in out if words is None else code > 0 and words in err
        assert right, (cwd, out, err)
