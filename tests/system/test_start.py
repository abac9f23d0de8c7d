"""Starting: without root in the user's own directories; under systemd, with a broken config, at
most every 5 s.
"""

import ctypes
import errno
import json
import os
import platform
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
import urllib.request

import pytest

from lib import BIN, REPO, TOKCTL, TOKEND, Daemon, datasets, few_descriptors, has, run, wait_for
from lib import with_parent
from lib.injected import injected

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


NOBODY = 57000 + os.getpid() % 4000  # owns nothing; differs between concurrent runs of this test

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


def check_own_directories(place, name, socket_path, **environment):
    scene = Scene(place, name, **environment)
    daemon = scene.daemon()
    assert scene.started(daemon), (f"{name}: it starts", scene.said())
    because = f"socket: {socket_path}, because uid {NOBODY} may not create /run/tokend/tokend.sock"
    assert has(
        scene.said(),
        because,
        f"state_dir: {scene.home}/.local/state/tokend/",
        f"ready at {socket_path}",
    ), f"{name}: the log says where"
    if os.path.exists(socket_path):
        status = os.stat(os.path.dirname(socket_path))
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (NOBODY, 0o700), (
            f"{name}: in a private directory"
        )
    code, out, err = scene.run(TOKCTL, "status", "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["socket"] == socket_path, (
        f"{name}: tokctl finds it",
        out + err,
    )
    code, out, err = scene.run(TOKCTL, "status", "-c", scene.config)
    assert (code, err) == (0, ""), f"{name}: tokctl finds it by its config"
    code, out, err = scene.run(sys.executable, "-c", TRAINER)
    assert code == 0 and out.startswith("[0, 1] " + scene.home), (
        f"{name}: a trainer finds it",
        out + err,
    )
    code, out, err = scene.run(f"{BIN}/example-trainer", "train")
    assert code == 0, (f"{name}: a trainer in C finds it", err)
    daemon.terminate()
    assert daemon.wait(20) == 0, f"{name}: it stops"
    assert not os.path.exists(socket_path), f"{name}: the socket is removed"


@pytest.mark.parametrize("limit", [4, 8, 10, 14, 40, 63])
def test_too_few_descriptors_are_named(place, limit):
    place.shard("web/a.bin", 20_000)
    streams = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("web")}}
    config = place.config(streams=streams)
    code, _, err = run(TOKEND, "-c", config, preexec_fn=few_descriptors(limit), timeout=20)
    assert code == 1 and has(err, "tokend needs 64; raise LimitNOFILE (ulimit -n)"), err


@needs_root
def test_another_users_directory_is_refused(place):
    """The directory in /tmp exists, and belongs to another user."""
    scene = Scene(place, "squatter")
    directory = f"/tmp/tokend-{NOBODY}"
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory, 0o777)
    try:
        daemon = scene.daemon()
        assert daemon.wait(20) == 1, "squatter: the daemon does not start"
        assert has(
            scene.said(), f"socket: {directory} must be a directory of uid {NOBODY} with mode 0700"
        ), "squatter: the log says why"
        assert has(scene.said(), "set XDG_RUNTIME_DIR to a directory of yours"), "and what to do"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{directory}/tokend.sock")
            listener.listen()
            _, _, err = scene.run(TOKCTL, "status")
            assert f"{directory}/tokend.sock (its directory does not belong to uid" in err, err
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()  # tokctl ignored it
    finally:
        shutil.rmtree(directory)


@needs_root
def test_state_dir_is_systemds_unless_configured(place):
    """systemd names the directory, unless the config does."""
    scene = Scene(
        place, "unit", XDG_RUNTIME_DIR=place.file("unit", "run", ".keep")[: -len("/.keep")]
    )
    os.chown(scene.environment["XDG_RUNTIME_DIR"], NOBODY, NOBODY)
    given = place.file("unit", "given", ".keep")[: -len("/.keep")]
    os.chown(given, NOBODY, NOBODY)
    daemon = scene.daemon(STATE_DIRECTORY=given)
    assert scene.started(daemon), ("unit: it starts", scene.said())
    code, out, err = scene.run(sys.executable, "-c", TRAINER)
    assert code == 0 and f"] {given}/train/" in out, (
        "unit: state is in $STATE_DIRECTORY",
        out + err,
    )
    daemon.terminate()
    daemon.wait(20)

    scene.write({"state_dir": "/var/lib/tokend", "streams": {"train": scene.stream}})
    daemon = scene.daemon(STATE_DIRECTORY=given)
    assert scene.started(daemon), ("unit: it starts", scene.said())
    assert has(
        scene.said(),
        f"state_dir: uid {NOBODY} may not write to /var/lib/tokend: checkpoints will fail",
    ), "unit: a state_dir of the config is not replaced"
    daemon.terminate()
    daemon.wait(20)


def test_a_broken_config_ends_with_a_pause(place):
    """Under systemd: its messages, their priority, and how long it takes to end."""
    place.shard("a.bin", 20000)
    config = place.config(
        streams={"train": {"seed": 1, "seq_len": 64, "datsets": datasets("a.bin")}}
    )
    path = place.file("notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(20)
        begin = time.monotonic()
        journal, stderr = os.pipe()
        pipe = os.fstat(stderr)
        stream = f"{pipe.st_dev}:{pipe.st_ino}"
        daemon = place.spawn(
            [TOKEND, "-c", config],
            stderr=stderr,
            env={**os.environ, "NOTIFY_SOCKET": path, "JOURNAL_STREAM": stream},
        )
        os.close(stderr)
        assert has(manager.recv(65536).decode(), "STATUS=cannot start:", "datsets"), (
            "broken: systemctl status shows why"
        )
        assert daemon.wait(60) == 1, "broken: exit status"
        took = time.monotonic() - begin
    with open(journal) as file:
        err = file.read()
    lines = err.splitlines()
    assert lines and all(line.startswith("<3>") for line in lines), (
        "broken: every line has priority err",
        err,
    )
    assert has(err, "tokend.yaml:", "did you mean datasets?", "trainers wait"), (
        "broken: the log says why, and that trainers wait"
    )
    assert took >= 5, ("broken: at most one start in 5 s", took)

    daemon = place.spawn(
        [TOKEND, "-c", config], stderr=subprocess.PIPE, env={**os.environ, "NOTIFY_SOCKET": path}
    )
    daemon.stderr.read(1)
    begin = time.monotonic()
    daemon.terminate()
    daemon.wait(20)
    assert time.monotonic() - begin < 3, "broken: it can be stopped during the pause"
    begin = time.monotonic()
    inherited = {**os.environ, "JOURNAL_STREAM": stream}  # from a service that starts programs
    code, _, err = run(TOKEND, "-c", config, env=inherited)
    assert code == 1 and time.monotonic() - begin < 4 and len(err.splitlines()) == 1, (
        "broken: in a terminal it ends at once",
        err,
    )
    assert err.startswith("tokend: "), "broken: a priority is only for the journal"
    injected(54, 3)


WAITER = """
import sys, tokend

with tokend.Loader(
    "train", 2, socket=sys.argv[1], framework="numpy", slots=4, deadline=60
) as loader:
    print([next(loader)["position"].tolist() for _ in range(2)], flush=True)
    sys.stdin.readline()
    print([next(loader)["position"].tolist() for _ in range(20)], flush=True)
"""


def test_trainers_wait_for_a_mended_config(place):
    """A job waits while its daemon is restarted with a broken config, until that is mended."""
    place.shard("wait/a.bin", 20000)
    path = place.file("wait.sock")
    about = {"seed": 1, "seq_len": 64, "vocab": 50000, "datasets": datasets("wait")}
    config = place.config("wait.yaml", socket=path, streams={"train": about})
    daemon = Daemon(place, config)
    environment = {**os.environ, "PYTHONPATH": f"{REPO}/build/python"}
    trainer = place.spawn(
        [sys.executable, "-c", WAITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert trainer.stdout.readline() == "[[0, 1], [2, 3]]\n", "waiting: the trainer has begun"
    daemon.stop()
    place.config("wait.yaml", socket=path, streams={"train": {**about, "seq_len": "many"}})
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    code, _, err = run(TOKEND, "-c", config)
    assert code == 1 and "seq_len" in err, ("waiting: the broken config is refused", err)
    injected(54)
    assert "waiting for another" in trainer.stderr.readline(), "waiting: the trainer says so"
    assert trainer.poll() is None, "waiting: the trainer waits"
    place.config("wait.yaml", socket=path, streams={"train": about})
    daemon = Daemon(place, config)
    assert trainer.stdout.readline() == (f"{[[n, n + 1] for n in range(4, 44, 2)]}\n"), (
        "waiting: the trainer continues"
    )
    assert trainer.wait(20) == 0, "waiting: and ends with 0"
    daemon.stop()


@needs_root
def test_own_directories_below_xdg_runtime_dir(place):
    runtime = place.file("runtime", "run", ".keep")[: -len("/.keep")]
    os.chown(runtime, NOBODY, NOBODY)
    path = f"{runtime}/tokend/tokend.sock"
    check_own_directories(place, "runtime", path, XDG_RUNTIME_DIR=runtime)


@needs_root
def test_own_directories_below_tmp(place):
    try:
        check_own_directories(place, "tmp", f"/tmp/tokend-{NOBODY}/tokend.sock")
    finally:
        shutil.rmtree(f"/tmp/tokend-{NOBODY}", ignore_errors=True)


def pass_sockets(place, name, sockets):
    """tokend, with the sockets that systemd would pass: {name: socket}."""

    def take():
        with_parent()
        for i, one in enumerate(sockets.values()):
            os.dup2(one.fileno(), 100 + i)
        for i in range(len(sockets)):
            os.dup2(100 + i, 3 + i)

    place.shard("a.bin", 100_000)
    streams = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("a.bin")}}
    config = place.config(name, streams=streams, metrics="127.0.0.1:1")
    names = f"LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={':'.join(sockets)}"
    return subprocess.Popen(
        ["sh", "-c", f'{names} LISTEN_PID=$$ exec "$@"', "sh", TOKEND, "-c", config],
        stderr=subprocess.PIPE,
        text=True,
        close_fds=False,
        preexec_fn=take,
    )


def test_the_port_of_metrics_is_passed_by_name(place):
    """The sockets of systemd come in any order; that of metrics must be a port. The config's
    address is ignored, and the log says so."""
    path = place.file("passed.sock")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as clients,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket() as idle,
    ):
        clients.bind(path)
        clients.listen()
        daemon = pass_sockets(place, "a.yaml", {"metrics": port, "tokend.socket": clients})
        try:
            at = f"http://127.0.0.1:{port.getsockname()[1]}/metrics"
            assert "tokend_info" in urllib.request.urlopen(at, timeout=20).read().decode()
            assert run(TOKCTL, "status", "--socket", path)[0] == 0
        finally:
            daemon.terminate()
            err = daemon.stderr.read()
            assert daemon.wait(20) == 0 and "metrics: 127.0.0.1:1 is ignored" in err, err
        for wrong in (clients, idle):
            daemon = pass_sockets(place, "a.yaml", {"tokend.socket": clients, "metrics": wrong})
            assert daemon.wait(20) == 1 and "ListenStream=" in daemon.stderr.read()


def without_ipv6():
    """socket(AF_INET6) fails, as in a kernel without IPv6."""
    with_parent()
    load_number, load_family = (0x20, 0, 0, 0), (0x20, 0, 0, 16)
    fail, allow = (6, 0, 0, 0x50000 | errno.EAFNOSUPPORT), (6, 0, 0, 0x7FFF0000)
    calls = {"x86_64": 41, "aarch64": 198}
    is_socket = (0x15, 0, 3, calls[platform.machine()])
    is_ipv6 = (0x15, 0, 1, int(socket.AF_INET6))
    lines = (load_number, is_socket, load_family, is_ipv6, fail, allow)
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    bytes_ = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(bytes_))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program) == 0  # PR_SET_SECCOMP


def test_an_address_of_ipv6_without_ipv6_fails_the_start(place):
    """Only a sandbox without any network is served without metrics."""
    place.shard("a.bin", 20000)
    streams = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("a.bin")}}
    config = place.config(streams=streams, metrics="[::1]:9464")
    daemon = place.spawn(
        [TOKEND, "-c", config], stderr=subprocess.PIPE, text=True, preexec_fn=without_ipv6
    )
    err = daemon.communicate(timeout=60)[1]
    assert daemon.returncode == 1
    assert has(err, "metrics: cannot listen at [::1]:9464") and "systemctl" not in err, err


def test_a_port_in_use_is_reported_to_systemd(place):
    """So systemctl status shows why."""
    place.shard("a.bin", 20000)
    streams = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("a.bin")}}
    path = place.file("notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        manager.bind(path)
        manager.settimeout(20)
        config = place.config(streams=streams, metrics=f"127.0.0.1:{taken.getsockname()[1]}")
        daemon = place.spawn(
            [TOKEND, "-c", config],
            stderr=subprocess.PIPE,
            env={**os.environ, "NOTIFY_SOCKET": path},
        )
        assert has(manager.recv(65536).decode(), "STATUS=cannot start: metrics", "in use")
        daemon.terminate()
        daemon.wait(20)


def test_tokctl_stop_ends_a_daemon_that_nobody_reads_from(place):
    place.shard("stop/a.bin", 20000)
    config = place.file("stop", "tokend.yaml")
    stream = {"seed": 1, "seq_len": 64, "datasets": [{"name": "a", "path": "a.bin"}]}
    with open(config, "w") as file:
        json.dump({"state_dir": "state", "streams": {"train": stream}}, file)
    keys = {"env": {**os.environ, "XDG_RUNTIME_DIR": place.path, "PATH": f"{BIN}:/usr/bin:/bin"}}
    ask = (TOKCTL, "stop", "-c", config)
    try:
        path = run(TOKCTL, "start", "-c", config, **keys)[1].split()[1].decode()
        reader = place.spawn(
            [TOKCTL, "cat", "train", "-c", config, "--rank=0", "--world=1", "--micro=1"],
            stdout=subprocess.PIPE,
            **keys,
        )
        reader.stdout.read(1)
        code, _, err = run(*ask, **keys)
        assert code == 1 and "1 session of trainers would start it again" in err
        reader.kill()
        assert wait_for(lambda: run(*ask, **keys)[0] == 0)
        assert not os.path.exists(path)
        code, _, err = run(*ask, **keys)
        assert code == 1 and "no daemon at" in err
    finally:
        run(*ask, **keys)


def test_init_is_named_where_it_is(place):
    for program, code in ((TOKCTL, 2), (TOKEND, 2)):
        done = run(program, "init", "x")
        assert done[0] == code and "python -m tokend init" in done[2], done


def test_start_gives_up_after_a_few_daemons_that_die(place):
    place.shard("a.bin", 2000)
    config = place.config(streams={"train": {"seed": 1, "seq_len": 64, "datasets": datasets("a")}})
    fake = place.file("bin", "tokend")
    with open(fake, "w") as file:
        file.write("#!/bin/sh\necho this is start $$ >&2\nkill -SEGV $$\n")
    os.chmod(fake, 0o755)
    runtime = os.path.dirname(place.file("runtime", ".keep"))
    os.makedirs(runtime, exist_ok=True)
    environment = {**os.environ, "TOKEND_BIN": os.path.dirname(fake), "XDG_RUNTIME_DIR": runtime}
    environment.pop("TOKEND_SOCKET", None)
    code, out, err = run(TOKCTL, "start", "-c", config, env=environment, timeout=60)
    private = out.decode().split()[-1]
    with open(f"{private}.log") as log:
        starts = log.read().splitlines()
    assert code == 1 and len(starts) == 5
    assert has(err, "killed by signal 11", "at the last of 5 starts", starts[-1]), err
    shutil.rmtree(os.path.dirname(private))


def test_start_refuses_a_config_without_an_end():
    code, _, err = run(TOKCTL, "start", "-c", "/dev/zero", timeout=60)
    assert code == 1 and err.count("\n") == 1 and "/dev/zero" in err, err
