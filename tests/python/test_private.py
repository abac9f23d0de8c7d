"""Special cases of a private daemon's lock and directory. Its life is in
tests/system/test_embedded.py.
"""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from lib import BIN, TOKCTL, child_environment
from lib.stock import StockDaemon
from test_loader_daemon import kill_private

# A process forks, as a DataLoader does for its workers, while a daemon starts. The child lives on.
FORKER = """
import os, sys, threading, time
import tokend

config, directory = sys.argv[1:]
children = []


def forks():
    while not os.path.exists(f"{directory}/starting"):
        time.sleep(0.01)
    children.append(os.fork() or time.sleep(60))
    open(f"{directory}/go", "w").close()


thread = threading.Thread(target=forks)
thread.start()
with tokend.Loader("train", 4, config=config, framework="numpy", slots=2) as loader:
    thread.join()
    next(loader)
    with open(f"{directory}/starting") as file:
        os.kill(int(file.read()), 9)
    for _ in range(10):
        next(loader)
    print(loader.stats()["reattached"])
os.kill(children[0], 9)
"""

# tokend, as a program that starts when it may: it has the lock meanwhile.
SLOWLY = """#!/bin/sh
[ -e {0}/go ] || echo $$ >{0}/starting
while [ ! -e {0}/go ]; do sleep 0.01; done
exec {1}/tokend "$@"
"""


def test_a_child_forked_while_a_daemon_starts_does_not_keep_its_lock(directory):
    config = StockDaemon(directory).config
    programs = directory / "bin"
    programs.mkdir()
    (programs / "tokctl").symlink_to(TOKCTL)
    (programs / "tokend").write_text(SLOWLY.format(directory, BIN))
    (programs / "tokend").chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", FORKER, str(config), str(directory)],
            env=child_environment(XDG_RUNTIME_DIR=str(directory), TOKEND_BIN=str(programs)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    finally:
        kill_private(directory)


def start(config, *more, **environment):
    """Runs tokctl start. Returns its exit code, the socket and its errors."""
    command = [TOKCTL, "start", "-c", str(config), "--json", *more]
    done = subprocess.run(
        command,
        env=child_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout and json.loads(done.stdout), done.stderr


def end(config, **environment):
    out = subprocess.check_output(
        [TOKCTL, "status", "-c", str(config), "--json"], env=child_environment(**environment)
    )
    os.kill(json.loads(out)["pid"], signal.SIGTERM)


@pytest.mark.parametrize("more", [0, 1])
def test_a_runtime_directory_too_long_for_a_socket_is_not_used(directory, more):
    fits = 107 - len("/tokend/0123456789abcdef.sock") - len(f"{directory}/")
    runtime = directory / ("x" * (fits + more))
    runtime.mkdir()
    config, environment = StockDaemon(directory).config, {"XDG_RUNTIME_DIR": str(runtime)}
    code, told, err = start(config, **environment)
    assert (code, told["private"], err) == (0, True, "")
    expected = f"/tmp/tokend-{os.getuid()}" if more else f"{runtime}/tokend"
    assert os.path.dirname(told["socket"]) == expected
    assert len(told["socket"]) <= 107
    assert start(config, **environment) == (0, told, ""), "the same daemon again"
    end(config, **environment)


def test_a_directory_that_cannot_be_made_is_refused(directory):
    (directory / "file").write_text("")
    code, told, err = start(
        StockDaemon(directory).config, "--socket", f"{directory}/file/tokend/x.sock"
    )
    words = f"tokctl: config: {directory}/file/tokend: Not a directory; set XDG_RUNTIME_DIR"
    assert (code, told) == (1, "")
    assert err.startswith(words) and err.count("\n") == 1


@pytest.mark.parametrize("path", ["x.sock", "private/x.sock", "", "/x.sock"])
def test_a_socket_that_is_no_absolute_path_in_a_directory_is_refused(directory, monkeypatch, path):
    """The daemon's working directory is another one."""
    monkeypatch.chdir(directory)
    code, told, err = start(StockDaemon(directory).config, "--socket", path)
    assert (code, told) == (1, "") and "is not an absolute path" in err
    assert not (directory / "private").exists()


def test_a_daemon_that_is_starting_is_asked_once(directory):
    """It accepts nobody, and its queue is short."""
    config, environment = StockDaemon(directory).config, {"XDG_RUNTIME_DIR": str(directory)}
    path = start(config, **environment)[1]["socket"]
    kill_private(directory)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starting:
        starting.bind(path)
        starting.listen()
        asking = subprocess.Popen(
            [TOKCTL, "start", "-c", str(config)],
            env=child_environment(**environment),
            stdout=subprocess.PIPE,
        )
        starting.settimeout(20)
        connection, _ = starting.accept()
        starting.settimeout(1)
        with pytest.raises(TimeoutError):
            starting.accept()
        asking.stdout.close()
        assert asking.wait(20) == 1, "it ends when nobody wants to know"
        connection.close()


def test_a_caller_without_standard_input_gets_a_daemon(directory):
    """The daemon's lock must not get the number of a standard descriptor."""
    config, environment = StockDaemon(directory).config, {"XDG_RUNTIME_DIR": str(directory)}
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", TOKCTL, "start", "-c", str(config)],
        env=child_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    kill_private(directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("private ")


def test_an_edited_config_has_another_daemon(directory):
    config, environment = StockDaemon(directory).config, {"XDG_RUNTIME_DIR": str(directory)}
    try:
        first = start(config, **environment)[1]
        config.write_text(config.read_text() + "# edited\n")
        second = start(config, **environment)[1]
        assert first["socket"] != second["socket"]
    finally:
        kill_private(directory)
