"""Trainers in Python and C that name a config share one private daemon, which the first one starts.
A killed one is replaced, and no file is left over.
"""

import glob
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from embedding import STREAM, Scene

from lib import LONG, TOKCTL, TOKEND, Daemon, has, wait_for
from lib.process import children

# A trainer that attaches again and again.
RETURNER = """
import sys, time, tokend
for pause in sys.argv[2:]:
    with tokend.Loader("train", 2, config=sys.argv[1], framework="numpy", deadline=60) as loader:
        print(next(loader)["position"][0])
    time.sleep(float(pause))
"""


def state_of(place):
    """Keys of a config: root's service may run here, and is not this test's."""
    return {"socket": place.file("own.sock"), "state_dir": place.file("state")}


@pytest.mark.asan
def test_ranks_start_one_daemon_and_start_it_again(place):
    """Two ranks in C and two in Python, one with worker processes, which have sessions of their
    own. Nobody notices three kills.
    """
    scene, world = Scene(place, **state_of(place)), 4
    ranks = [scene.start_c(rank, world, 2000) for rank in range(2)]
    ranks += [scene.start(2 + i, world, 400, workers=2 * i, HOLD="1") for i in range(2)]
    first = [rank.stdout.readline() for rank in ranks]
    assert all(line.startswith(f"private {scene.runtime}/tokend/") for line in first[:2]), first
    assert len(scene.starts()) == 1
    for rank in ranks[2:]:  # workers import torch, and are there seconds later
        print(file=rank.stdin, flush=True)
    for kill in range(3):
        time.sleep(0.2)
        os.kill(scene.starts()[-1], signal.SIGKILL)
        assert wait_for(lambda kill=kill: len(scene.starts()) == kill + 2), scene.starts()
        assert wait_for(lambda: not children(ranks[0])), "neither a child nor a zombie"
    loaders = scene.finish(*ranks)[2:]
    assert all(int(lines[-1]) >= 1 for lines in loaders[:1]), "loaders attach again"
    assert len(scene.starts()) == 4
    scene.end()


def test_the_daemon_survives_its_starter_and_ends_after_its_last_session(place):
    """It removes its files, and those that a killed one left."""
    scene = Scene(place, **state_of(place))
    scene.environment["LINGER"] = "1"
    starter = scene.start(1, 2, 10_000)
    starter.stdout.readline()
    other = scene.start(0, 1, 100)
    other.stdout.readline()
    assert [file[24:] for file in scene.files()] == [".sock", ".sock.lock", ".sock.log"]
    starter.kill()
    scene.finish(other)
    assert len(scene.starts()) == 1
    gone = lambda: not os.path.exists(f"{scene.runtime}/tokend")
    assert wait_for(gone, 5), scene.files()

    scene.finish(scene.start(0, 1, 5, LINGER="60"))
    os.kill(scene.starts()[-1], signal.SIGKILL)
    assert len(scene.files()) == 3
    scene.finish(scene.start(0, 1, 5))
    assert wait_for(gone), scene.files()

    starts, pauses = len(scene.starts()), [0.1, 2.7, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
    code, out, err = scene.run(sys.executable, "-c", RETURNER, scene.config, *pauses)
    assert (code, out.split()) == (0, ["0"] * len(pauses)), "before, during and after its exit"
    assert 2 <= len(scene.starts()) - starts < len(pauses), err
    scene.end()


def test_a_daemon_at_the_files_socket_is_used_if_it_serves_the_file(place):
    path = place.file("shared.sock")
    other, mine = (Scene(place, name, socket=path, state_dir=name) for name in ("other", "mine"))
    daemon = Daemon(place, other.config).process
    other.finish(other.start())
    (lines,) = other.finish(other.start_c())
    assert lines[0] == f"shared {path}" and other.starts() == [] and other.files() == []
    assert f"no daemon serves {mine.config}; " in mine.run(TOKCTL, "stop", "-c", mine.config)[2]
    daemon.send_signal(signal.SIGSTOP)
    assert f"no reply from {path} " in other.run(TOKCTL, "status", "-c", other.config)[2]
    daemon.send_signal(signal.SIGCONT)
    mine.finish(mine.start())
    assert len(mine.starts()) == 1, "the other file's daemon is not used"
    mine.end()
    other.write(socket=path, state_dir="other", io="pread")
    trainer = other.start()
    _, err = trainer.communicate(timeout=60)
    assert "RuntimeWarning: " in err and f"edited after the daemon at {path} read it" in err, err
    _, _, err = other.run(TOKCTL, "status", "-c", other.config)
    assert f"{other.config} was edited after" in err and err.count("\n") == 1, err


def test_relative_paths_start_at_the_directory_of_a_linked_config(place):
    """In the loader as in all tools. A link in the file's directory names the same daemon."""
    scene, other = Scene(place, "real"), Scene(place, "other")
    place.shard("other/web/a.bin", 50_000, seed=9)
    os.remove(other.config)
    for directory in "real", "other":
        os.symlink("../real/tokend.yaml", place.file(directory, "link.yaml"))
    names = scene.config, place.file("real", "link.yaml")
    assert len({scene.run(TOKCTL, "start", "-c", name)[1] for name in names}) == 1
    other.config = place.file("other", "link.yaml")
    other.finish(other.start())
    other.finish(other.start_c())
    for each in scene, other:
        each.end()


def test_other_data_that_are_mounted_have_a_daemon_of_their_own(place):
    """As in two containers that share the runtime directory. Other mounts change nothing."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    scene, sockets = Scene(place, **state_of(place)), []
    start = TOKCTL, "start", "-c", scene.config
    for over in "user", "code":
        mount = f'mount --bind {place.file("home/web")} {place.file("home", over)} && exec "$@"'
        sockets.append(scene.run("unshare", "-m", "sh", "-c", mount, "sh", *start))
    assert sockets[0] == scene.run(*start) != sockets[1]
    assert [code for code, _, _ in sockets] == [0, 0] and len(scene.starts()) == 2
    scene.end()


def test_a_starting_daemon_can_be_stopped(place):
    """As soon as it can be connected to, SIGHUP does not end it and SIGTERM does, cleanly."""
    scene, path = Scene(place, state_dir=place.file("state")), place.file("early.sock")
    for _ in range(40):
        daemon = place.spawn(
            [TOKEND, "-c", scene.config, "--socket", path],
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # without a terminal
        )
        while daemon.poll() is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                if probe.connect_ex(path) == 0:
                    break
        daemon.send_signal(signal.SIGHUP)
        daemon.terminate()
        assert daemon.wait(LONG) == 0
        assert glob.glob(path + "*") == []


def test_run_serves_in_the_foreground(place):
    """python -m tokend run: the private daemon in the foreground."""
    scene = Scene(place, **state_of(place))
    tokend = sys.executable, "-m", "tokend"
    run = *tokend, "run", "-c", scene.config
    serving = scene.spawn(*run)
    assert has(serving.stderr.readline(), "tokend: ready at " + scene.runtime)
    code, out, err = scene.run(*tokend, "ctl", "status", "-c", scene.config, "--json")
    assert code == 0 and json.loads(out)["pid"] == serving.pid, err
    code, _, err = scene.run(*run)
    assert code == 1 and "already runs, at " in err and err.count("\n") == 1, err
    scene.finish(scene.start())
    assert scene.starts() == [serving.pid]
    serving.send_signal(signal.SIGINT)
    assert serving.wait(LONG) == 0
    assert not os.path.exists(f"{scene.runtime}/tokend")
    for command, expected, word in (
        ((*tokend, "run", "--wrong"), 2, "--wrong"),
        ((*tokend, "run", "-c", "/nowhere/x.yaml"), 1, "/nowhere/x.yaml"),
        ((TOKEND, "-c", scene.config, "--private", "0"), 2, "--private"),
        ((TOKEND, "-c", scene.config, "--private", "0", "--socket", "/x"), 1, "not a lock on"),
    ):
        code, out, err = scene.run(*command)
        assert (code, out) == (expected, "") and word in err, (command, err)


# A process forks, as a DataLoader does for its workers, while its daemon starts.
FORKER = """
import os, sys, threading, time, tokend
config, directory = sys.argv[1:]
def forks():
    while not os.path.exists(f"{directory}/starting"):
        time.sleep(0.01)
    if os.fork() == 0:
        time.sleep(60)
    open(f"{directory}/go", "w").close()
threading.Thread(target=forks).start()
with tokend.Loader("train", 4, config=config, framework="numpy", slots=2) as loader:
    next(loader)
    os.kill(int(open(f"{directory}/starting").read()), 9)
    for _ in range(10):
        next(loader)
    print(loader.stats()["reattached"])
"""


def test_a_child_forked_while_a_daemon_starts_does_not_keep_its_lock(place):
    scene = Scene(place, **state_of(place))
    at = scene.home
    with open(f"{scene.bin}/tokend", "r+") as script:
        rest = script.read().split("\n", 1)[1]
        script.seek(0)
        script.write(f"#!/bin/sh\n[ -e {at}/go ] || echo $$ >{at}/starting\n")
        script.write(f"while [ ! -e {at}/go ]; do sleep 0.01; done\n{rest}")
    forker = scene.spawn(sys.executable, "-c", FORKER, scene.config, at)
    assert forker.stdout.readline() == "1\n", forker.communicate(timeout=60)
    scene.end()


def test_tokctl_start_where_no_socket_or_input_can_be(place):
    scene = Scene(place, **state_of(place))
    start = TOKCTL, "start", "-c", scene.config
    for path, words in (
        (f"{scene.config}/tokend/x.sock", "/tokend: Not a directory; set XDG_RUNTIME_DIR"),
        ("private/x.sock", "is not an absolute path"),  # the daemon's directory is another one
        ("/x.sock", "is not an absolute path"),
    ):
        code, out, err = scene.run(*start, "--socket", path)
        assert (code, out, err.count("\n")) == (1, "", 1) and words in err
    # The daemon's lock must not get the number of a standard descriptor.
    code, out, err = scene.run("sh", "-c", 'exec "$@" <&-', "sh", *start)
    assert (code, err) == (0, "") and out.startswith("private "), err
    long = scene.directory("run/" + "x" * 90)  # too long for a socket
    code, out, err = scene.run(*start, "--json", XDG_RUNTIME_DIR=long)
    path = json.loads(out)["socket"]
    assert (code, os.path.dirname(path), err) == (0, f"/tmp/tokend-{os.getuid()}", "")
    scene.end()
    assert wait_for(lambda: not os.path.exists(path))


# ---- only in C ----


def failed(trainer):
    """The error's number and its line."""
    _, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 1 and err.count("\n") == 1, err
    code, line = err.split(" ", 1)
    return int(code), line.rstrip("\n")


@pytest.mark.asan
def test_failures_are_one_line(place):
    scene = Scene(place)
    config = scene.config
    nowhere = {**STREAM, "datasets": [{"name": "web", "path": "nowhere"}]}
    scene.write(streams={"train": nowhere})
    code, line = failed(scene.start_c())
    assert code == -10 and line.startswith(f"{config}:1: ") and has(line, "path", "nowhere")
    assert not os.path.exists(f"{scene.runtime}/tokend")
    for scene.config, why in (
        (f"{config}.not", "opened: No such file or directory"),
        (os.path.dirname(config), "read: not a regular file"),
    ):
        line = f"{scene.config}: cannot be {why}; pass a config file of tokend"
        assert failed(scene.start_c()) == (-10, line)
    scene.config = config
    os.mkdir(f"{scene.runtime}/tokend", 0o755)
    code, line = failed(scene.start_c())
    assert code == -10 and has(line, f"{scene.runtime}/tokend is not a directory of uid", "0700")


def test_a_config_that_becomes_invalid_is_reported_and_tried_again(place):
    scene = Scene(place, **state_of(place))
    trainer = scene.start_c(batches=300)
    trainer.stdout.readline()
    scene.write(**state_of(place), sead=1)
    os.kill(scene.starts()[0], signal.SIGKILL)
    assert has(trainer.stderr.readline(), "-10 ", scene.config, "sead")
    scene.write(**state_of(place))
    trainer.stdin.write("again\n")
    trainer.stdin.flush()
    scene.finish(trainer)
    scene.end()
