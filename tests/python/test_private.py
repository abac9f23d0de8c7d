"""Special cases of a private daemon's lock and directory. Its life is in
tests/system/test_embedded.py.
"""

import json
import os
import sys

import pytest
from lib import BIN, TOKCTL, child_environment, run
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
        settings = {"XDG_RUNTIME_DIR": str(directory), "TOKEND_BIN": str(programs)}
        command = [sys.executable, "-c", FORKER, config, directory]
        code, out, err = run(*command, env=child_environment(**settings))
        assert (code, out) == (0, b"1\n"), err
    finally:
        kill_private(directory)


def start(directory, config, *more, **keys):
    """Runs tokctl start: its exit code, its output and its errors."""
    environment = child_environment(**{"XDG_RUNTIME_DIR": str(directory), **keys})
    code, out, err = run(TOKCTL, "start", "-c", config, "--json", *more, env=environment)
    return code, out and json.loads(out), err


@pytest.mark.parametrize("more", [0, 1])
def test_a_runtime_directory_too_long_for_a_socket_is_not_used(directory, more):
    fits = 107 - len("/tokend/0123456789abcdef.sock") - len(f"{directory}/")
    runtime = directory / ("x" * (fits + more))
    runtime.mkdir()
    config = StockDaemon(directory).config
    code, told, err = start(runtime, config)
    assert (code, told["private"], err) == (0, True, "")
    expected = f"/tmp/tokend-{os.getuid()}" if more else f"{runtime}/tokend"
    assert os.path.dirname(told["socket"]) == expected
    assert len(told["socket"]) <= 107
    assert start(runtime, config) == (0, told, ""), "the same daemon again"
    config.write_text(config.read_text() + "# edited\n")
    other = start(runtime, config)[1]["socket"]
    assert other != told["socket"], "an edited config has another daemon"
    for path in (told["socket"], other):
        os.kill(json.loads(run(TOKCTL, "status", "--socket", path, "--json")[1])["pid"], 15)


@pytest.mark.parametrize(
    "path, words",
    [
        ("{}/file/tokend/x.sock", "/file/tokend: Not a directory; set XDG_RUNTIME_DIR"),
        ("private/x.sock", "is not an absolute path"),  # the daemon's directory is another one
        ("", "is not an absolute path"),
        ("/x.sock", "is not an absolute path"),
    ],
)
def test_a_socket_in_no_directory_is_refused(directory, monkeypatch, path, words):
    monkeypatch.chdir(directory)
    (directory / "file").write_text("")
    config = StockDaemon(directory).config
    code, told, err = start(directory, config, "--socket", path.format(directory))
    assert (code, told, err.count("\n")) == (1, b"", 1) and words in err
    assert not (directory / "private").exists()


def test_a_caller_without_standard_input_gets_a_daemon(directory):
    """The daemon's lock must not get the number of a standard descriptor."""
    config, environment = StockDaemon(directory).config, {"XDG_RUNTIME_DIR": str(directory)}
    command = ["sh", "-c", 'exec "$@" <&-', "sh", TOKCTL, "start", "-c", config]
    code, out, err = run(*command, env=child_environment(**environment))
    kill_private(directory)
    assert (code, err) == (0, "") and out.startswith(b"private ")
