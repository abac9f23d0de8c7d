"""Embedded mode: Loader(config=) starts a daemon if none serves the config. Only one starts however
many processes try, a killed one is replaced, and no file is left over.
"""

import ctypes
import fcntl
import glob
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

import pytest
from embedding import TRAINER, Scene, finish

from lib import BIN, LONG, has, run, wait_for, with_parent

NOBODY = 61000 + os.getpid() % 4000  # owns nothing; differs between concurrent runs of this test

# A trainer that attaches again and again.
RETURNER = """
import sys, time, tokend
for pause in sys.argv[2:]:
    with tokend.Loader("train", 2, config=sys.argv[1], framework="numpy", deadline=60) as loader:
        print(next(loader)["position"][0])
    time.sleep(float(pause))
"""

# A trainer with two worker processes for a transform.
TRANSFORMER = """
import sys, time, tokend


def mark(tokens, position, rng):
    tokens[0] = position % 1000
    return tokens


if __name__ == "__main__":
    with tokend.Loader(
        "train",
        2,
        config=sys.argv[1],
        framework="numpy",
        slots=4,
        transform=mark,
        workers=2,
        deadline=60,
    ) as loader:
        for step in range(1000):
            batch = next(loader)
            assert batch["position"].tolist() == [2 * step, 2 * step + 1], (step, batch["position"])
            assert (batch["input_ids"][:, 0] == batch["position"] % 1000).all()
            print(step, flush=True)
            time.sleep(0.003)
"""


@pytest.mark.parametrize("world", [2, 8])
def test_processes_that_race_start_one_daemon(place, world):
    scene = Scene(place, f"race{world}")
    ranks = [scene.start(rank, world, 20) for rank in range(world)]
    finish(f"{world} processes race: all are served", ranks)
    assert len(scene.starts()) == 1, f"{world} processes race: one daemon was started"
    assert scene.right(ranks, 20), f"{world} processes race: the order is right"
    scene.end()
    assert scene.files() == [], f"{world} processes race: SIGTERM leaves no file"


def test_a_killed_daemon_is_replaced(place):
    """The daemon is killed three times while four ranks read."""
    scene, world, batches = Scene(place, "kill"), 4, 400
    ranks = [scene.start(rank, world, batches, 60, 0.003) for rank in range(world)]
    for rank in ranks:
        rank.stdout.readline()
    for kill in range(3):
        time.sleep(0.2)
        os.kill(scene.starts()[-1], signal.SIGKILL)
        again = wait_for(lambda kill=kill: len(scene.starts()) == kill + 2)
        assert again, (f"kill {kill + 1}: one of the ranks starts it again", scene.starts())
    said = finish("killed three times: no rank notices", ranks)
    assert len(scene.starts()) == 4, "killed three times: four daemons in all"
    assert all(int(lines[-1].split()[1]) >= 1 for lines in said), (
        "killed three times: every rank reattached",
        said,
    )
    assert scene.right(ranks, batches), "killed three times: the order is right"
    scene.end()
    assert scene.files() == [], "killed three times: no file is left"


def test_workers_start_the_daemon_too(place):
    """A transform's workers have sessions of their own, and can start the daemon too."""
    scene = Scene(place, "workers")
    with open(place.file("workers", "trainer.py"), "w") as f:
        f.write(TRANSFORMER)
    trainer = place.spawn(
        [sys.executable, f.name, scene.config],
        env=scene.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    trainer.stdout.readline()
    for kill in range(3):
        time.sleep(0.2)
        os.kill(scene.starts()[-1], signal.SIGKILL)
        wait_for(lambda kill=kill: len(scene.starts()) == kill + 2)
    (lines,) = finish("workers: killed three times, every batch is right", [trainer])
    assert (len(scene.starts()), lines[-1]) == (4, "999"), (
        "workers: four daemons in all, and the last batch"
    )
    scene.end()


def test_the_daemon_survives_its_starter(place):
    scene = Scene(place, "starter")
    first = scene.start(1, 2, 10_000, 1, 0.01)
    first.stdout.readline()
    second = scene.start(0, 1, 100, 1, 0.01)
    second.stdout.readline()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    finish("the starter is killed: the other trainer continues", [second])
    assert len(scene.starts()) == 1, "the starter is killed: the daemon lives"
    assert scene.right([second], 100), "the starter is killed: the order is right"
    scene.end()


def watch_removals(directory):
    """Watches a directory for removals, with inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.fsencode(directory), 0x200) >= 0, os.strerror(
        ctypes.get_errno()
    )  # IN_DELETE
    return watch


def removed(watch):
    """The suffixes of the removed files, in order."""
    events, endings = os.read(watch, 65536), []
    os.close(watch)
    while events:
        _, mask, _, n = struct.unpack_from("iIII", events)
        if mask & 0x200:
            endings.append(events[16 : 16 + n].rstrip(b"\0").decode()[16:])
        events = events[16 + n :]
    return endings


def test_the_daemon_exits_after_its_last_session(place):
    """The daemon exits after its last session and removes its files, including those that a killed
    one left.
    """
    scene = Scene(place, "linger")
    os.mkdir(f"{scene.runtime}/tokend", 0o700)
    watch = watch_removals(f"{scene.runtime}/tokend")
    finish("linger: served", [scene.start(0, 1, 5, 1)])
    ended = time.monotonic()
    assert [f[16:] for f in scene.files()] == [".sock", ".sock.lock", ".sock.log"], (
        "linger: socket, lock and log exist meanwhile"
    )
    gone = wait_for(lambda: not os.path.exists(f"{scene.runtime}/tokend"))
    seconds = time.monotonic() - ended
    assert gone and seconds < 5, (
        "linger: then files and directory are removed",
        (seconds, scene.files()),
    )
    assert removed(watch) == [".sock", ".sock.log", ".sock.lock"], (
        "linger: the lock is removed last, because the next daemon writes to the same log"
    )

    finish("after a kill: served", [scene.start(0, 1, 5, 60)])
    os.kill(scene.starts()[-1], signal.SIGKILL)
    time.sleep(0.1)
    assert len(scene.files()) == 3, "after a kill: its files exist"
    finish("after a kill: the next daemon serves", [scene.start(0, 1, 5, 1)])
    assert wait_for(lambda: not os.path.exists(f"{scene.runtime}/tokend")), (
        "after a kill: and removes all files",
        scene.files(),
    )

    starts, pauses = len(scene.starts()), [0.1, 2.7, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
    code, out, err = run(
        sys.executable,
        "-c",
        RETURNER,
        scene.config,
        *pauses,
        env={**scene.environment, "LINGER": "1"},
    )
    assert (code, out.split()) == (0, [b"0"] * len(pauses)), (
        "attaching before, during and after its exit: served each time"
    )
    seen = len(scene.starts()) - starts
    assert 2 <= seen < len(pauses), (
        "attaching again: served by the same daemon at first, by another one at last",
        (seen, err),
    )
    scene.end()


def as_nobody():
    with_parent()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def test_an_unprivileged_user_gets_own_directories(place):
    """A config of the service, whose socket and state_dir belong to root, read by another user."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    closed = place.file("closed", ".keep")[: -len("/.keep")]
    os.chmod(closed, 0o700)
    scene = Scene(place, "nobody", socket="/run/tokend/tokend.sock", state_dir=closed)
    os.chown(scene.environment["HOME"], NOBODY, NOBODY)
    os.chmod(scene.starts_path, 0o666)
    os.chmod(os.path.dirname(scene.starts_path), 0o777)  # for saved rows
    before = os.path.exists("/run/tokend")
    del scene.environment["XDG_RUNTIME_DIR"]
    directory = f"/tmp/tokend-{NOBODY}"
    rank = scene.start(0, 1, 5, 1, 0.0, "best", preexec_fn=as_nobody)
    (lines,) = finish("uid nobody: served", [rank])
    assert scene.right([rank], 5), "uid nobody: the order is right"
    state = scene.environment["HOME"] + "/.local/state/tokend/"
    path = lines[-1]
    assert path.startswith(state) and path.endswith("/train/default/best.cursor"), (
        "uid nobody: a checkpoint is in the user's directory",
        path,
    )
    status = os.stat(directory)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (NOBODY, 0o700), (
        "uid nobody: the socket's directory is private"
    )
    logs = [open(path).read() for path in glob.glob(f"{directory}/*.log")]
    words = f"state_dir: {state}", f"because uid {NOBODY} may not write to {closed}"
    assert has("".join(logs), *words), "uid nobody: the log says where the state is"
    arguments = (
        "plan",
        "-c",
        scene.config,
        "train",
        "--from",
        0,
        "--count",
        1,
        "--json",
        "--run",
        "default",
    )
    # It may not even look into state_dir.
    plan = place.spawn(
        [f"{BIN}/tokctl", *map(str, arguments)],
        env=scene.environment,
        preexec_fn=as_nobody,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = plan.communicate()
    assert plan.returncode == 0 and len(out.splitlines()) == 1, (
        "uid nobody: tokctl finds the run's mix log there",
        err,
    )
    assert wait_for(lambda: not os.path.exists(directory)), (
        "uid nobody: all files are removed",
        glob.glob(f"{directory}/*"),
    )
    assert os.path.exists("/run/tokend") == before and not os.listdir(closed), (
        "uid nobody: root's directories are unchanged"
    )

    del scene.environment["HOME"]
    rank = scene.start(0, 1, 5, 1, 0.0, "best", preexec_fn=as_nobody)
    out, err = rank.communicate(timeout=60)
    assert scene.right([rank], 5), ("no home: served", out)
    assert has(err.splitlines()[-1], "tokend.", closed, "Permission denied"), (
        "no home: a checkpoint fails with the reason"
    )
    wait_for(lambda: not os.path.exists(directory))


def test_faults_of_the_daemon_are_raised(place):
    scene = Scene(place, "fault")
    whole = json.load(open(scene.config))
    whole["streams"]["train"]["datasets"][0]["path"] = "nowhere"
    with open(scene.config, "w") as f:
        json.dump(whole, f)
    said = [rank.communicate(timeout=60)[1] for rank in [scene.start(rank, 8) for rank in range(8)]]
    last = [err.splitlines()[-1] for err in said]
    own = [line.startswith("tokend.Error: /") and "nowhere" in line for line in last]
    assert all(own), ("a broken config: all 8 raise the daemon's message", last)
    assert not os.path.exists(f"{scene.runtime}/tokend"), (
        "a broken config: no file is left",
        scene.files(),
    )

    # A daemon that hangs before it listens.
    scene = Scene(place, "hangs")
    with open(f"{scene.bin}/tokend", "w") as script:
        script.write(f"#!/bin/sh\necho $$ >>{scene.starts_path}\nexec sleep 100\n")
    # Python loses a Ctrl-C that arrives in a callback during an import.
    imported = TRAINER.replace("config, rank", 'print("imported", flush=True)\nconfig, rank', 1)
    ranks = [scene.start(rank, 2, program=imported) for rank in range(2)]
    assert [rank.stdout.readline() for rank in ranks] == ["imported\n"] * 2
    wait_for(scene.starts)
    time.sleep(0.3)
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    last = [rank.communicate(timeout=60)[1].splitlines()[-1] for rank in ranks]
    assert last == ["KeyboardInterrupt"] * 2, "a daemon that hangs: Ctrl-C ends the wait"
    assert len(scene.starts()) == 1, "a daemon that hangs: no second one is started"
    hasty = (TRAINER.replace("deadline=60", "deadline=0.5"), scene.config, "0", "1", "1", "0", "x")
    code, _, err = run(sys.executable, "-c", *hasty, env=scene.environment)
    words = "did not answer within 0.5 s; look at its log", ".sock.log"
    assert has(err.splitlines()[-1], *words), (
        "a daemon that hangs: the error at the deadline names its log"
    )
    os.kill(scene.starts()[0], signal.SIGKILL)

    # A daemon at the configured socket that serves another file is not used.
    other = Scene(place, "other", socket=place.file("shared.sock"))
    scene = Scene(place, "mine", socket=place.file("shared.sock"), metrics="127.0.0.1:1")
    theirs = place.spawn(
        [f"{BIN}/tokend", "-c", other.config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: os.path.exists(place.file("shared.sock")))
    finish("another config's daemon at the socket: served", [scene.start(0, 1, 5, 60)])
    assert len(scene.starts()) == 1, "another config's daemon at the socket: by a private daemon"
    finish("the same config's daemon at the socket: served", [other.start(0, 1, 5, 60)])
    assert len(other.starts()) == 0, "the same config's daemon at the socket: by that one"
    theirs.terminate()
    scene.end()

    # A metrics port in use does not stop a private daemon.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        scene = Scene(place, "port", metrics=f"127.0.0.1:{taken.getsockname()[1]}")
        finish("metrics port in use: served", [scene.start(0, 1, 5, 60)])
        (log,) = glob.glob(f"{scene.runtime}/tokend/*.log")
        assert has(open(log).read(), "metrics", "continuing without metrics"), (
            "metrics port in use: the log says so"
        )
        scene.end()


def test_a_starting_daemon_can_be_stopped(place):
    """As soon as the daemon can be connected to, SIGTERM ends it cleanly."""
    scene = Scene(place, "early")
    path, codes = place.file("early.sock"), []
    for _ in range(40):
        daemon = place.spawn(
            [f"{BIN}/tokend", "-c", scene.config, "--socket", path], stderr=subprocess.DEVNULL
        )
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                if probe.connect_ex(path) == 0 or daemon.poll() is not None:
                    break
        daemon.terminate()
        codes.append(daemon.wait(LONG))
    assert codes == [0] * 40, "SIGTERM at its first answer, 40 times: exit 0"
    assert glob.glob(path + "*") == [], "SIGTERM at its first answer: no file is left"


def test_run_serves_in_the_foreground(place):
    """python -m tokend run: the private daemon in the foreground."""
    scene = Scene(place, "run", socket="/run/tokend/nobody-makes-this.sock")
    keys = {"env": scene.environment, "stderr": subprocess.PIPE, "text": True}
    serving = place.spawn([sys.executable, "-m", "tokend", "run", "-c", scene.config], **keys)
    assert has(serving.stderr.readline(), "tokend: ready at " + scene.runtime), (
        "run: the log says where"
    )
    code, out, err = run(
        sys.executable,
        "-m",
        "tokend",
        "ctl",
        "status",
        "-c",
        scene.config,
        "--json",
        env=scene.environment,
    )
    assert code == 0 and json.loads(out)["pid"] == serving.pid, (
        "run: tokctl finds it by the config",
        err,
    )
    code, _, err = run(
        sys.executable, "-m", "tokend", "run", "-c", scene.config, env=scene.environment
    )
    assert code == 1 and "already runs, at " in err and err.count("\n") == 1, (
        "run: a second one is refused",
        (code, err),
    )
    rank = scene.start(0, 1, 20)
    finish("run: a loader finds it by the config", [rank])
    assert scene.right([rank], 20), "run: the order is right"
    assert scene.starts() == [serving.pid], "run: no other daemon was started"
    serving.send_signal(signal.SIGINT)
    assert serving.wait(LONG) == 0, "run: Ctrl-C ends it"
    assert not os.path.exists(f"{scene.runtime}/tokend"), ("run: no file is left", scene.files())
    for arguments in ([], ["run"], ["run", "-c"]):
        code, out, err = run(sys.executable, "-m", "tokend", *arguments, env=scene.environment)
        assert code == 2 and has(err, "python -m tokend") and not out, (
            f"usage: {arguments}",
            (code, err),
        )
    code, out, err = run(
        sys.executable, "-m", "tokend", "run", "-c", "/nowhere/x.yaml", env=scene.environment
    )
    assert code == 1 and "/nowhere/x.yaml" in err and err.count("\n") == 1, (
        "run: a missing config",
        err,
    )
    code, out, err = run(
        sys.executable, "-m", "tokend", "daemon", "--version", env=scene.environment
    )
    assert code == 0 and out.startswith(b"tokend "), ("daemon: runs tokend itself", err)
    code, _, err = run(
        f"{BIN}/tokend",
        "-c",
        scene.config,
        "--socket",
        place.file("x.sock"),
        "--private",
        "0",
        stdin=subprocess.DEVNULL,
    )
    assert code == 1 and "not a lock on" in err, (
        "--private without the lock is refused",
        (code, err),
    )
    path = place.file("others.sock")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as others,
        open(path + ".lock", "w") as lock,
    ):
        others.bind(path)
        others.listen()
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [
            f"{BIN}/tokend",
            "-c",
            scene.config,
            "--socket",
            path,
            "--private",
            str(lock.fileno()),
        ]
        refused = subprocess.run(
            command, pass_fds=[lock.fileno()], capture_output=True, text=True, check=False
        )
        assert has(refused.stderr, "another program listens at"), (
            "--private at another program's socket: refused"
        )
        assert glob.glob(path + "*") == [path], (
            "--private at another program's socket: the socket stays"
        )
    for more in (
        ["--private", "x", "--socket", "s"],
        ["--private", "0"],
        ["--private", "0", "--socket", "s", "--check"],
    ):
        code, _, err = run(f"{BIN}/tokend", "-c", scene.config, *more)
        assert code == 2 and err.startswith("tokend: --private") and err.count("\n") == 1, (
            f"usage: {more}",
            (code, err),
        )
    shutil.rmtree(scene.runtime)
