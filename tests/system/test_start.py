#!/usr/bin/env python3
"""How a daemon starts: without root at places of the user's own, under systemd with a broken config not in a tight loop."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time

from harness import (
    BIN,
    REPO,
    TOKCTL,
    TOKEND,
    Checks,
    Daemon,
    Place,
    datasets,
    run,
    wait_for,
    with_parent,
)

NOBODY = 57000 + os.getpid() % 4000  # has nothing, and shares nothing with another run of this test

TRAINER = """
import tokend
with tokend.Loader("train", 2, framework="numpy", deadline=20) as loader:
    print(next(loader)["position"].tolist(), loader.checkpoint("best"))
"""


def as_nobody():
    with_parent()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


class Scene:
    """A config that names neither socket nor state_dir, and an unprivileged user's environment."""

    def __init__(self, place, name, **environment):
        self.place = place
        place.shard(f"{name}/a.bin", 20000)
        self.config = place.file(name, "tokend.yaml")
        self.stream = {"seed": 1, "seq_len": 64, "datasets": [{"name": "a", "path": "a.bin"}]}
        self.write({"streams": {"train": self.stream}})
        self.home = place.file(name, "home", ".keep")[: -len("/.keep")]
        os.chown(self.home, NOBODY, NOBODY)
        kept = {
            key: os.environ[key]
            for key in ("PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS")
            if key in os.environ
        }
        path = f"{REPO}/build/python"
        self.environment = {
            **kept,
            "HOME": self.home,
            "PYTHONPATH": path,
            "TOKEND_BIN": BIN,
            **environment,
        }
        self.log = place.file(name, "log")

    def write(self, config):
        with open(self.config, "w") as f:
            json.dump(config, f)

    def daemon(self, **more):
        log = open(self.log, "w")
        return self.place.spawn(
            [TOKEND, "-c", self.config],
            stderr=log,
            preexec_fn=as_nobody,
            env={**self.environment, **more},
        )

    def said(self):
        return open(self.log).read()

    def started(self, daemon):
        wait_for(lambda: "ready at" in self.said() or daemon.poll() is not None)
        return daemon.poll() is None

    def run(self, *arguments):
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            preexec_fn=as_nobody,
        )
        return done.returncode, done.stdout, done.stderr


def check_own_places(place, checks, name, socket_path, **environment):
    scene = Scene(place, name, **environment)
    daemon = scene.daemon()
    checks.ok(f"{name}: it starts", scene.started(daemon), scene.said())
    because = f"socket: {socket_path}, because uid {NOBODY} may not create /run/tokend/tokend.sock"
    checks.has(
        f"{name}: it says where",
        scene.said(),
        because,
        f"state_dir: {scene.home}/.local/state/tokend/",
        f"ready at {socket_path}",
    )
    if os.path.exists(socket_path):
        status = os.stat(os.path.dirname(socket_path))
        checks.equal(
            f"{name}: a directory of its own",
            (status.st_uid, stat.S_IMODE(status.st_mode)),
            (NOBODY, 0o700),
        )
    code, out, err = scene.run(TOKCTL, "status", "--json")
    checks.ok(
        f"{name}: tokctl finds it",
        code == 0 and json.loads(out.splitlines()[-1])["socket"] == socket_path,
        out + err,
    )
    code, out, err = scene.run(TOKCTL, "status", "-c", scene.config)
    checks.equal(f"{name}: tokctl finds it by its config", (code, err), (0, ""))
    code, out, err = scene.run(sys.executable, "-c", TRAINER)
    checks.ok(
        f"{name}: a trainer finds it",
        code == 0 and out.startswith("[0, 1] " + scene.home),
        out + err,
    )
    code, out, err = scene.run(f"{BIN}/example-trainer", "train")
    checks.ok(f"{name}: a trainer in C finds it", code == 0, err)
    daemon.terminate()
    checks.equal(f"{name}: it stops", daemon.wait(20), 0)
    checks.ok(f"{name}: the socket is gone", not os.path.exists(socket_path))


def check_squatter(place, checks):
    """The directory in /tmp exists already, and belongs to someone else."""
    scene = Scene(place, "squatter")
    directory = f"/tmp/tokend-{NOBODY}"
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory, 0o777)
    try:
        daemon = scene.daemon()
        checks.equal("squatter: the daemon does not start", daemon.wait(20), 1)
        checks.has(
            "squatter: why",
            scene.said(),
            f"socket: {directory} must be a directory of uid {NOBODY} with mode 0700",
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{directory}/tokend.sock")
            listener.listen()
            _, _, err = scene.run(TOKCTL, "status")
            checks.ok("squatter: its socket is not looked at", directory not in err, err)
    finally:
        shutil.rmtree(directory)


def check_state_directory(place, checks):
    """systemd names the directory; a config that names one is obeyed."""
    scene = Scene(
        place, "unit", XDG_RUNTIME_DIR=place.file("unit", "run", ".keep")[: -len("/.keep")]
    )
    os.chown(scene.environment["XDG_RUNTIME_DIR"], NOBODY, NOBODY)
    given = place.file("unit", "given", ".keep")[: -len("/.keep")]
    os.chown(given, NOBODY, NOBODY)
    daemon = scene.daemon(STATE_DIRECTORY=given)
    checks.ok("unit: it starts", scene.started(daemon), scene.said())
    code, out, err = scene.run(sys.executable, "-c", TRAINER)
    checks.ok(
        "unit: state lies in $STATE_DIRECTORY", code == 0 and f"] {given}/train/" in out, out + err
    )
    daemon.terminate()
    daemon.wait(20)

    scene.write({"state_dir": "/var/lib/tokend", "streams": {"train": scene.stream}})
    daemon = scene.daemon(STATE_DIRECTORY=given)
    checks.ok("unit: it starts", scene.started(daemon), scene.said())
    checks.has(
        "unit: a config's state_dir is not replaced",
        scene.said(),
        f"state_dir: uid {NOBODY} may not write to /var/lib/tokend: checkpoints will fail",
    )
    daemon.terminate()
    daemon.wait(20)


def check_broken_config(place, checks):
    """As systemd starts it: what it says, at what priority, and how long it takes to end."""
    place.shard("a.bin", 20000)
    config = place.config(
        streams={"train": {"seed": 1, "seq_len": 64, "datsets": datasets("a.bin")}}
    )
    path = place.file("notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(20)
        begin = time.monotonic()
        daemon = place.spawn(
            [TOKEND, "-c", config],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NOTIFY_SOCKET": path, "JOURNAL_STREAM": "1:2"},
        )
        checks.has(
            "broken: systemctl status shows why",
            manager.recv(65536).decode(),
            "STATUS=cannot start:",
            "datsets",
        )
        err = daemon.communicate(timeout=60)[1]
        took = time.monotonic() - begin
    lines = err.splitlines()
    checks.ok(
        "broken: every line has priority err",
        lines and all(line.startswith("<3>") for line in lines),
        err,
    )
    checks.has(
        "broken: trainers wait", err, "tokend.yaml:", "did you mean datasets?", "trainers wait"
    )
    checks.equal("broken: exit status", daemon.returncode, 1)
    checks.ok("broken: at most one start in 5 s", took >= 5, took)

    daemon = place.spawn(
        [TOKEND, "-c", config], stderr=subprocess.PIPE, env={**os.environ, "NOTIFY_SOCKET": path}
    )
    daemon.stderr.read(1)
    begin = time.monotonic()
    daemon.terminate()
    daemon.wait(20)
    checks.ok("broken: it can be stopped meanwhile", time.monotonic() - begin < 3)
    begin = time.monotonic()
    code, _, err = run(TOKEND, "-c", config)
    checks.ok(
        "broken: in a terminal it ends at once",
        code == 1 and time.monotonic() - begin < 4 and len(err.splitlines()) == 1,
        err,
    )


WAITER = """
import sys, tokend
with tokend.Loader("train", 2, socket=sys.argv[1], framework="numpy", slots=4, deadline=60) as loader:
    print([next(loader)["position"].tolist() for _ in range(2)], flush=True)
    sys.stdin.readline()
    print([next(loader)["position"].tolist() for _ in range(20)], flush=True)
"""


def check_trainers_wait(place, checks):
    """A running job, and its daemon is started again with a config that is broken, and mended later."""
    place.shard("wait/a.bin", 20000)
    path = place.file("wait.sock")
    about = {"seed": 1, "seq_len": 64, "datasets": datasets("wait")}
    config = place.config("wait.yaml", socket=path, streams={"train": about})
    daemon = Daemon(place, config)
    environment = {**os.environ, "PYTHONPATH": f"{REPO}/build/python"}
    trainer = place.spawn(
        [sys.executable, "-c", WAITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    checks.equal("waiting: it has begun", trainer.stdout.readline(), "[[0, 1], [2, 3]]\n")
    daemon.stop()
    place.config("wait.yaml", socket=path, streams={"train": {**about, "seq_len": "many"}})
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    code, _, err = run(TOKEND, "-c", config)
    checks.ok("waiting: the broken config starts nothing", code == 1 and "seq_len" in err, err)
    time.sleep(1)
    checks.ok("waiting: the trainer waits", trainer.poll() is None)
    place.config("wait.yaml", socket=path, streams={"train": about})
    daemon = Daemon(place, config)
    checks.equal(
        "waiting: it goes on",
        trainer.stdout.readline(),
        f"{[[n, n + 1] for n in range(4, 44, 2)]}\n",
    )
    checks.equal("waiting: and ends well", trainer.wait(20), 0)
    daemon.stop()


def main():
    checks = Checks()
    with Place() as place:
        check_broken_config(place, checks)
        check_trainers_wait(place, checks)
        if os.getuid() == 0:
            runtime = place.file("runtime", "run", ".keep")[: -len("/.keep")]
            os.chown(runtime, NOBODY, NOBODY)
            check_own_places(
                place, checks, "runtime", f"{runtime}/tokend/tokend.sock", XDG_RUNTIME_DIR=runtime
            )
            try:
                check_own_places(place, checks, "tmp", f"/tmp/tokend-{NOBODY}/tokend.sock")
            finally:
                shutil.rmtree(f"/tmp/tokend-{NOBODY}", ignore_errors=True)
            check_squatter(place, checks)
            check_state_directory(place, checks)
        else:
            checks.skip("own places", "needs root to become another user")
    checks.exit()


main()
