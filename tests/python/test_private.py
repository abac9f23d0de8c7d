"""Special cases of a private daemon's lock and directory. Its life is in
tests/system/test_embedded.py.
"""

import os
import subprocess
import sys

import pytest
import tokend
from lib import child_environment
from lib.stock import StockDaemon
from test_loader_daemon import kill_private
from tokend import private

# A process forks, as a DataLoader does for its workers, while another thread starts a daemon.
FORKER = """
import os, sys, threading, time
import tokend
from tokend import private

command, forked = private.command, []


def slowly(*arguments):  # the lock is held here
    threading.Thread(target=lambda: forked.append(os.fork() or child())).start()
    time.sleep(0.3)
    return command(*arguments)


def child():
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    os._exit(any(name.endswith(".lock") for name in held))


private.command = slowly
with tokend.Loader("train", 4, config=sys.argv[1], framework="numpy") as loader:
    next(loader)
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0, "the child has the lock"
"""


def test_a_child_forked_while_a_daemon_starts_does_not_have_its_lock(directory):
    config = StockDaemon(directory).config
    try:
        forker = [sys.executable, "-c", FORKER, str(config)]
        done = subprocess.run(
            forker,
            env=child_environment(XDG_RUNTIME_DIR=str(directory)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        kill_private(directory)


def test_a_runtime_directory_too_long_for_a_socket_is_not_used(directory, monkeypatch):
    fits = 107 - len("/tokend/0123456789abcdef.sock") - len(f"{directory}/")
    for length, taken in ((fits, True), (fits + 1, False)):
        runtime = directory / ("x" * length)
        runtime.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert private.directory() == (
            f"{runtime}/tokend" if taken else f"/tmp/tokend-{os.getuid()}"
        )
        path = private.socket_of(StockDaemon(directory).config)
        assert len(path) <= 107
        assert path.startswith(private.directory())


def test_a_directory_that_cannot_be_made_is_refused(directory, monkeypatch):
    (directory / "file").write_text("")
    monkeypatch.setattr(private, "directory", lambda: f"{directory}/file/tokend")
    with pytest.raises(
        tokend.Error,
        match=rf"^config: {directory}/file/tokend: Not a directory; set XDG_RUNTIME_DIR",
    ):
        private.make_directory()
