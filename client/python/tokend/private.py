"""A daemon of one's own, where none serves the config: one per config and user, gone a minute after
its last session.

A client that finds nobody at its socket calls the Starter of its config, at the beginning as in
mid-run. The lock beside the socket says who starts: whoever takes it hands it over to the daemon
with its birth, and the daemon keeps it until it ends, however that comes about. So there is one
daemon, and none is started beside one that starts, serves or leaves. The daemon is a process of its
own session: neither Ctrl-C nor the end of the trainer that started it takes it from the others.
What lies beside the socket (lock, log) it removes when it leaves; after a kill the next one takes
it over.
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
KEY_DIGITS = 16  # of the config, in its socket's name
# A service's, not its child's.
OTHERS = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "JOURNAL_STREAM",
    "STATE_DIRECTORY",
)

# A child that another thread forks meanwhile would hold the lock as long as it lives: no fork while
# we hold it.
_no_fork = threading.RLock()
os.register_at_fork(
    before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release
)

# by socket: (process, its log, where its part of that begins); for reaping, and to say why one
# failed
_children = {}


def _is_running(path):
    """Is it the wheel's command of that name, which asks us for the program behind it?"""
    return os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])


def program(name):
    """Where one of our programs is: $TOKEND_BIN, beside the package, in the build tree it stands
    in, or on PATH.
    """
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
            f"config: {name} is neither beside the package nor on PATH: install it, or set "
            "TOKEND_BIN to its directory"
        )
    return found


def directory():
    """Where the sockets of our private daemons lie."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        path = os.path.join(runtime, "tokend")
        if len(os.fsencode(_socket_in(path, "0" * KEY_DIGITS))) <= SOCKET_PATH_BYTES:
            return path
    return f"/tmp/tokend-{os.getuid()}"


def _socket_in(directory, key):
    return os.path.join(directory, key + ".sock")


def make_directory():
    """That, so that only we can write to it. Error: it cannot be had."""
    path = directory()
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise Error(
                f"config: {path}: {error.strerror}: set XDG_RUNTIME_DIR to a directory of yours, "
                "for the daemon's socket"
            ) from None
        with contextlib.suppress(FileNotFoundError):  # the last daemon in it has just left
            status = os.lstat(path)
            break
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Error(
            f"config: {path} must be a directory of uid {os.getuid()} with mode 0700: remove it"
        )


def socket_of(config):
    """Where the private daemon of @config, an absolute path, listens. Error: the file cannot be
    read.
    """
    # A config that was edited is another one: its readers must not meet a daemon that still serves
    # the former text.
    try:
        with open(config, "rb") as text:
            key = hashlib.sha256(os.fsencode(config) + b"\0" + text.read()).hexdigest()[:KEY_DIGITS]
    except OSError as error:
        raise Error(f"config: {config}: {error.strerror}: name a config file of tokend") from None
    return _socket_in(directory(), key)


def configured(config):
    """The socket that the config names, if a daemon answers there and serves this very file; else
    None.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TOKEND_SOCKET"}
    asked = subprocess.run(
        [program("tokctl"), "status", "-c", config, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if asked.returncode != 0:
        if "TOKEND_TRUST_UID" in asked.stderr:  # somebody listens there, but who may be anybody
            why = asked.stderr.strip().replace("tokctl:", "tokend:")
            warnings.warn(f"{why}; a private daemon serves {config}", RuntimeWarning, stacklevel=5)
        return None
    answer = json.loads(asked.stdout.splitlines()[-1])
    return answer["socket"] if os.path.realpath(answer["config"]) == config else None


def take_lock(path):
    """The lock beside a socket, a descriptor; None: a daemon has it, or who is about to start
    one.
    """
    lock = path + ".lock"
    while True:
        make_directory()
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the directory left with its last daemon
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # so did the lock, which we had opened before
        os.close(descriptor)


def command(config, path, lock):
    """How a private daemon is started whose lock is the descriptor @lock."""
    return [program("tokend"), "-c", config, "--socket", path, "--private", str(lock)]


def environment():
    return {name: value for name, value in os.environ.items() if name not in OTHERS}


def _look_after(path):
    """Error with its last line if the daemon that this process started could not serve."""
    child = _children.get(path)
    if child is None or child[0].poll() is None or _children.pop(path, None) is not child:
        return  # there is none, it lives, or another thread says it
    process, log, begin = child
    with log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").splitlines()
    if process.returncode > 0:
        last = (
            lines[-1]
            if lines
            else f"config: tokend exited with status {process.returncode} and said nothing"
        )
        raise Error(last.removeprefix("tokend: "))


class Starter:
    """Called where nobody listens at the socket @path: sees to it that a daemon for @config will.
    Does not wait for it.
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
            # behind the last words of one that was killed
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
    """attach(socket, connect_ms, absent) to a daemon that serves @config: the configured one, else
    a private one.
    """
    config = os.path.realpath(config)
    patience = max(1, round(deadline * 1000))
    found = configured(config)
    if found:
        return attach(found, connect_ms=patience)
    path = socket_of(config)
    make_directory()  # before anybody connects: what answers there is ours
    try:
        return attach(path, connect_ms=patience, absent=Starter(config, path))
    except ConnectError as error:
        text = (
            f"config: the daemon for {config} did not answer within {deadline:g} s; "
            f"its log is {path}.log"
        )
        raise ConnectError(text) from error
