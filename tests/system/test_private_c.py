"""A C program that names a config and no socket: its daemon is found, started and started again."""

import json
import os
import shutil
import signal
import subprocess

import numpy
import pytest
from embedding import MICRO, SEQ, Scene, finish

from lib import BIN, Daemon, has, wait_for

PROGRAM = BIN.parent / "check/config-trainer"


def start(scene, rank=0, world=1, batches=10, program=PROGRAM, **environment):
    """Starts the C program; its rows go to a file."""
    keep = scene.place.file(scene.name, f"rank{rank}.rows")
    trainer = scene.place.spawn(
        [program, scene.config, *map(str, (rank, world, batches)), keep],
        env={**scene.environment, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    trainer.keep = keep
    return trainer


def right(scene, trainers, *loaders):
    for trainer in trainers:
        rows = numpy.fromfile(trainer.keep, "<u2").reshape(-1, MICRO, SEQ + 1)
        numpy.save(trainer.keep + ".npy", rows)
        trainer.keep += ".npy"
    return scene.right([*trainers, *loaders], len(rows))


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return file.read()


@pytest.mark.asan
def test_a_daemon_starts_and_is_started_again(place):
    scene = Scene(place, "kill")
    trainer = start(scene, batches=600)
    assert trainer.stdout.readline().startswith(f"private {scene.runtime}/tokend/")
    for kill in range(3):
        trainer.stdout.readline()
        assert wait_for(lambda: not children(trainer)), "neither a child nor a zombie is left"
        os.kill(scene.starts()[-1], signal.SIGKILL)
        assert wait_for(lambda kill=kill: len(scene.starts()) == kill + 2), scene.starts()
    (lines,) = finish("killed three times: the trainer does not notice", [trainer])
    assert int(lines[-1]) >= 3, "absent() is called as well"
    assert len(scene.starts()) == 4
    assert right(scene, [trainer])
    scene.end()
    assert scene.files() == []


def test_c_and_python_share_a_daemon(place):
    scene, world = Scene(place, "both"), 3
    trainers = [start(scene, rank, world, 20) for rank in range(2)]
    loader = scene.start(2, world, 20)
    finish("two C programs and a Loader", [*trainers, loader])
    assert len(scene.starts()) == 1
    assert right(scene, trainers, loader)
    scene.end()


def test_the_daemon_of_the_file_at_its_socket_is_used(place):
    scene = Scene(place, "shared", socket=place.file("own.sock"))
    daemon = Daemon(place, scene.config)
    trainer = start(scene)
    (lines,) = finish("a daemon of the file listens at the file's socket", [trainer])
    assert lines[0] == f"shared {daemon.socket}" == f"shared {place.file('own.sock')}"
    assert scene.starts() == [] and scene.files() == []
    assert right(scene, [trainer])


def failed(trainer):
    """The error's number and its line."""
    _, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 1 and err.count("\n") == 1, err
    code, line = err.split(" ", 1)
    return int(code), line.rstrip("\n")


@pytest.mark.asan
def test_failures_are_one_line(place):
    scene = Scene(place, "fault")
    config = scene.config
    with open(config) as file:
        whole = json.load(file)
    whole["streams"]["train"]["datasets"][0]["path"] = "nowhere"
    with open(config, "w") as file:
        json.dump(whole, file)
    code, line = failed(start(scene))
    assert code == -10 and line.startswith(f"{config}:1: ") and has(line, "path", "nowhere")
    assert not os.path.exists(f"{scene.runtime}/tokend")

    for scene.config, why in (
        (f"{config}.not", "No such file or directory"),
        (os.path.dirname(config), "Is a directory"),
    ):
        line = f"config: {scene.config}: {why}; pass a config file of tokend"
        assert failed(start(scene)) == (-10, line)
    scene.config = config
    os.mkdir(f"{scene.runtime}/tokend", 0o755)
    code, line = failed(start(scene))
    assert code == -10 and has(line, f"{scene.runtime}/tokend is not a directory of uid", "0700")


def test_programs_are_found_near_the_library(place):
    """A copy of the library without programs, and then in a prefix with them."""
    scene = Scene(place, "prefix")
    program = shutil.copy(PROGRAM, place.file("prefix", "check", "trainer"))
    shutil.copy(BIN.parent / "lib/libtokend.so.1", place.file("prefix", "lib", "libtokend.so.1"))
    away = place.file("prefix", "bin"), place.file("prefix", "elsewhere")
    os.rename(*away)
    environment = {"TOKEND_BIN": "", "PATH": "/nowhere"}
    code, line = failed(start(scene, program=program, **environment))
    assert code == -10 and line.startswith("config: tokctl is neither near the library nor on PATH")
    os.rename(*reversed(away))
    trainer = start(scene, program=program, **environment)
    assert trainer.stdout.readline().startswith("private ")
    finish("near the library: served", [trainer])
    scene.end()


def test_a_config_that_becomes_invalid_is_reported_and_tried_again(place):
    scene = Scene(place, "later")
    trainer = start(scene, batches=300)
    trainer.stdout.readline()
    with open(scene.config) as file:
        good = file.read()
    with open(scene.config, "w") as file:
        file.write(good.replace('"seed"', '"sead"'))
    os.kill(scene.starts()[0], signal.SIGKILL)
    assert has(trainer.stderr.readline(), "-10 ", scene.config, "sead")
    with open(scene.config, "w") as file:
        file.write(good)
    trainer.stdin.write("again\n")
    trainer.stdin.flush()
    finish("valid again: the trainer goes on", [trainer])
    assert right(scene, [trainer])
    scene.end()
