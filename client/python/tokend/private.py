"""Private daemons: Loader(config=) starts one if no daemon serves the config.

There is one per config and user. It ends a minute after its last session. If nobody listens at the
socket, at the beginning or in mid-run, the client calls the Starter of its config.

A lock file next to the socket decides who starts the daemon. The process that takes the lock passes
it to the daemon at start, and the daemon keeps it until it ends, also by a kill. So no second
daemon starts while one starts, serves or ends. The daemon has a session of its own: neither Ctrl-C
nor the end of the trainer that started it stops it. When it ends it removes lock and log; after a
kill the next daemon uses them.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import warnings

from ._tokend import ConnectError, Error

LINGER_SECONDS = 60
SOCKET_PATH_BYTES = 107
KEY_DIGITS = 16  # of the config's hash in its socket's name
SERVICE_ONLY = (  # of a systemd service, not of its children
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "JOURNAL_STREAM",
    "STATE_DIRECTORY",
)

# No fork while we hold the lock: the child would hold it as long as it lives.
_no_fork = threading.RLock()
os.register_at_fork(
    before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release
)

# by socket: (process, log file, offset of its first line); to reap it, and to report its last line
_children = {}


def _is_running(path):
    """Is @path the running script: the wheel's command, which looks for the program it starts?"""
    return os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])


def program(name):
    """Returns the path of tokend or tokctl: in $TOKEND_BIN, the package, its build tree or PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [
        os.environ.get("TOKEND_BIN"),
        os.path.join(here, "bin"),
        os.path.join(here, "..", "..", "bin"),
    ]
    places.append(os.path.join(here, "..", "..", "..", "build", "bin"))
    for place in filter(None, places):
        path = os.path.join(place, name)
        if os.access(path, os.X_OK) and os.path.isfile(path) and not _is_running(path):
            return os.path.abspath(path)
    found = shutil.which(name)
    if found is None:
        raise Error(
            f"config: {name} is neither in the package nor on PATH; install it, or set TOKEND_BIN "
            "to its directory"
        )
    return found


def directory():
    """Returns the directory of this user's private sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        path = os.path.join(runtime, "tokend")
        if len(os.fsencode(_socket_in(path, "0" * KEY_DIGITS))) <= SOCKET_PATH_BYTES:
            return path
    return f"/tmp/tokend-{os.getuid()}"


def _socket_in(directory, key):
    return os.path.join(directory, key + ".sock")


def make_directory():
    """Makes directory(), writable for this user only. Raises Error if that is impossible."""
    path = directory()
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise Error(
                f"config: {path}: {error.strerror}; set XDG_RUNTIME_DIR to a directory of yours, "
                "for the daemon's socket"
            ) from None
        with contextlib.suppress(FileNotFoundError):  # removed by the last daemon in it
            status = os.lstat(path)
            break
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Error(
            f"config: {path} is not a directory of uid {os.getuid()} with mode 0700; remove it"
        )


def socket_of(config):
    """Returns the socket of the private daemon of @config, an absolute path. Raises Error if the
    file cannot be read.
    """
    # The key depends on the text: readers of an edited config must not find the daemon of the old
    # one.
    try:
        with open(config, "rb") as text:
            key = hashlib.sha256(os.fsencode(config) + b"\0" + text.read()).hexdigest()[:KEY_DIGITS]
    except OSError as error:
        raise Error(f"config: {config}: {error.strerror}; pass a config file of tokend") from None
    return _socket_in(directory(), key)


def configured(config):
    """Returns the socket that the config names; None if no daemon of this file listens there."""
    environment = {name: value for name, value in os.environ.items() if name != "TOKEND_SOCKET"}
    asked = subprocess.run(
        [program("tokctl"), "status", "-c", config, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if asked.returncode != 0:
        if "TOKEND_TRUST_UID" in asked.stderr:  # the listener is not trusted
            why = asked.stderr.strip().replace("tokctl:", "tokend:")
            warnings.warn(
                f"{why}; until then a private daemon serves {config}", RuntimeWarning, stacklevel=5
            )
        return None
    answer = json.loads(asked.stdout.splitlines()[-1])
    return answer["socket"] if os.path.realpath(answer["config"]) == config else None


def take_lock(path):
    """Takes the lock of a socket: returns a descriptor; None if a daemon has it, or a process that
    is starting one.
    """
    lock = path + ".lock"
    while True:
        make_directory()
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the last daemon has removed the directory
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # a daemon has removed the lock file that we opened
        os.close(descriptor)


def command(config, path, lock):
    """Returns the command line of a private daemon; @lock: the lock's descriptor."""
    return [program("tokend"), "-c", config, "--socket", path, "--private", str(lock)]


def environment():
    return {name: value for name, value in os.environ.items() if name not in SERVICE_ONLY}


def _look_after(path):
    """Raises Error with its last line if the daemon that this process started has failed."""
    child = _children.get(path)
    if child is None or child[0].poll() is None or _children.pop(path, None) is not child:
        return  # no daemon, it runs, or another thread raises the error
    process, log, begin = child
    with log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").splitlines()
    if process.returncode > 0:
        last = (
            lines[-1]
            if lines
            else f"config: tokend exited with status {process.returncode} without a message"
        )
        raise Error(last.removeprefix("tokend: "))


class Starter:
    """Starts a daemon for @config at the socket @path. The client calls it when nobody listens
    there. It does not wait for the daemon.
    """

    def __init__(self, config, path):
        self._config, self._path = config, path

    def __call__(self):
        _look_after(self._path)
        with _no_fork:
            self._start()

    def _start(self):
        lock = take_lock(self._path)
        if lock is None:
            return
        try:
            # after the lines of one that was killed
            log = open(self._path + ".log", "a+b", buffering=0)
            begin = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [*command(self._config, self._path, lock), "--linger", str(LINGER_SECONDS)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                pass_fds=(lock,),
                env=environment(),
            )
            _children[self._path] = process, log, begin
        finally:
            os.close(lock)


def attach(config, deadline, attach):
    """Calls attach(socket, connect_ms, absent) for the daemon of @config: the one at the socket
    that the config names, otherwise a private one.
    """
    config = os.path.realpath(config)
    patience = max(1, round(deadline * 1000))
    found = configured(config)
    if found:
        return attach(found, connect_ms=patience)
    path = socket_of(config)
    make_directory()  # before we connect: only this user's daemon can listen in it
    try:
        return attach(path, connect_ms=patience, absent=Starter(config, path))
    except ConnectError as error:
        text = (
            f"config: the daemon for {config} did not answer within {deadline:g} s; "
            f"look at its log, {path}.log"
        )
        raise ConnectError(text) from error
