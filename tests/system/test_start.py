"""Starting a daemon: too little to start with, under systemd, with a broken config; and tokctl's
start and stop.
"""

import os
import shutil
import socket
import subprocess
import time

from embedding import Scene

from lib import TOKCTL, TOKEND, datasets, few_descriptors, has, run, wait_for
from lib.injected import injected


def write(place, path="a", stream=(), **keys):
    place.shard("a/0.bin", 20_000)
    stream = {"seed": 1, "seq_len": 64, "vocab": 50000, "datasets": datasets(path)} | dict(stream)
    return place.config(streams={"train": stream}, **keys)


def test_too_few_descriptors_are_named(place):
    for limit in 4, 63:
        more = {"preexec_fn": few_descriptors(limit), "timeout": 20}
        code, _, err = run(TOKEND, "-c", write(place), **more)
        assert code == 1 and has(err, "tokend needs 64; raise LimitNOFILE (ulimit -n)"), err
    code, _, err = run(TOKEND, "--check", "-c", write(place), preexec_fn=few_descriptors(64))
    assert code == 0 and has(err, "64 open files are enough for 2 clients; 16 need 138; raise"), err


def test_a_broken_config_ends_with_a_pause(place):
    """Under systemd: its messages, their priority, and how long it takes to end."""
    config = write(place, stream={"datsets": 1})
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(place.file("notify"))
    manager.settimeout(20)
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    journal, stderr = os.pipe()
    stream = f"{os.fstat(stderr).st_dev}:{os.fstat(stderr).st_ino}"
    begin = time.monotonic()
    daemon = place.spawn(
        [TOKEND, "-c", config], stderr=stderr, env={**environment, "JOURNAL_STREAM": stream}
    )
    os.close(stderr)
    assert has(manager.recv(65536).decode(), "STATUS=cannot start:", "datsets")
    assert daemon.wait(60) == 1
    assert time.monotonic() - begin >= 5, "at most one start in 5 s"
    with open(journal) as file:
        err = file.read()
    assert err and all(line.startswith("<3>") for line in err.splitlines()), err
    assert has(err, "tokend.yaml:", "did you mean datasets?", "trainers wait")

    daemon = place.spawn([TOKEND, "-c", config], stderr=subprocess.PIPE, env=environment)
    daemon.stderr.read(1)
    begin = time.monotonic()
    daemon.terminate()
    daemon.wait(20)
    assert time.monotonic() - begin < 3, "it can be stopped during the pause"
    begin = time.monotonic()
    inherited = {**os.environ, "JOURNAL_STREAM": stream}  # from a service that starts programs
    code, _, err = run(TOKEND, "-c", config, env=inherited)
    assert code == 1 and time.monotonic() - begin < 4, "in a terminal it ends at once"
    assert err.startswith("tokend: ") and err.count("\n") == 1, err
    injected(54, 3)


def test_tokctl_stop_ends_a_daemon_that_nobody_reads_from(place):
    scene = Scene(place, state_dir="state")
    start, stop = ((TOKCTL, name, "-c", scene.config) for name in ("start", "stop"))
    path = scene.run(*start)[1].split()[1]
    cat = "cat", "train", "-c", scene.config, "--rank=0", "--world=1", "--micro=1"
    reader = scene.spawn(TOKCTL, *cat)
    reader.stdout.buffer.read(1)
    code, _, err = scene.run(*stop)
    assert code == 1 and "1 session of trainers read from it" in err
    reader.kill()
    assert wait_for(lambda: scene.run(*stop)[0] == 0)
    assert not os.path.exists(path)
    code, _, err = scene.run(*stop)
    assert code == 1 and "no daemon at" in err


def test_start_gives_up_after_a_few_daemons_that_die(place):
    scene = Scene(place)
    with open(f"{scene.bin}/tokend", "w") as file:
        file.write("#!/bin/sh\necho this is start $$ >&2\nkill -SEGV $$\n")
    code, out, err = scene.run(TOKCTL, "start", "-c", scene.config)
    private = out.split()[-1]
    with open(f"{private}.log") as log:
        starts = log.read().splitlines()
    assert code == 1 and len(starts) == 5
    assert has(err, "killed by signal 11", "at the last of 5 starts", starts[-1]), err
    shutil.rmtree(os.path.dirname(private))


def test_one_line_says_what_is_wrong():
    for command, code, words in (
        ((TOKCTL, "start", "-c", "/dev/zero"), 1, "/dev/zero"),
        ((TOKCTL, "init", "x"), 2, "python -m tokend init"),
        ((TOKEND, "init", "x"), 2, "python -m tokend init"),
    ):
        got, _, err = run(*command)
        assert got == code and err.count("\n") == 1 and words in err, err
